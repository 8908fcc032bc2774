"""What workgroups in flight share: the beginnings that are run, and what a recording makes of them."""

import numpy as np
import pytest

from simulator import Checks, Simulator
from simulator.counting.profile import Profile
from simulator.counting.sharing import Beginnings, in_flight
from simulator.tests.harness import ARCHS, LANES, assemble, needs_clang
from simulator.timing import cost
from simulator.timing.recording import record

pytestmark = needs_clang

# A GEMM's way with memory: of 64 workgroups four with the same number / 16 read a slab of the first 16 KiB together,
# sixteen with the same number % 16 one of the second 16 KiB; each writes 256 bytes of its own. Ten slabs, ten times.
GEMM = """
  s_load_dwordx4 s[4:7], s[0:1], 0x0
  s_waitcnt lgkmcnt(0)
  s_lshr_b32 s8, s2, 4
  s_lshl_b32 s8, s8, 12
  s_and_b32 s9, s2, 15
  s_lshl_b32 s9, s9, 10
  s_add_i32 s9, s9, 0x4000
  v_lshlrev_b32 v1, 2, v0
  v_add_u32 v2, s8, v1
  v_add_u32 v3, s9, v1
  s_movk_i32 s10, 4
again:
  global_load_dword v4, v2, s[4:5]
  global_load_dword v5, v3, s[4:5]
  v_add_u32 v2, 0x100, v2
  v_add_u32 v3, 0x100, v3
  s_waitcnt vmcnt(0)
  s_sub_u32 s10, s10, 1
  s_cmp_lg_u32 s10, 0
  s_cbranch_scc1 again
  s_lshl_b32 s11, s2, 8
  v_add_u32 v6, s11, v1
  global_store_dword v6, v4, s[6:7]"""

# The second wave sleeps until the first one, which never comes that far under Beginnings, has written the LDS.
FLAG = """
  s_load_dwordx4 s[4:7], s[0:1], 0x0
  v_mov_b32 v1, 0
  v_mov_b32 v2, 1
  ds_write_b32 v1, v1
  s_waitcnt lgkmcnt(0)
  s_barrier
  v_readfirstlane_b32 s8, v0
  s_cmp_ge_u32 s8, 64
  s_cbranch_scc1 look
  global_load_dword v3, v1, s[4:5]
  global_load_dword v4, v1, s[4:5]
  s_waitcnt vmcnt(0)
  ds_write_b32 v1, v2
  s_branch done
look:
  s_sleep 1
  ds_read_b32 v3, v1
  s_waitcnt lgkmcnt(0)
  v_readfirstlane_b32 s9, v3
  s_cmp_eq_u32 s9, 1
  s_cbranch_scc0 look
done:"""


BUFFERS = [np.zeros(32 * 1024 + 128, np.uint8) for _ in range(2)]  # a sample and its beginnings have the same
BUFFERS = [each[-each.ctypes.data % 128 :][: 32 * 1024] for each in BUFFERS]


def run(arch: str, body: str, grid: int, threads: int = LANES, lds: int = 0, **options):
    simulator = Simulator(assemble({"kernel": body}, arch, lds, raw=True), arch, checks=Checks(hazards=False))
    return simulator.launch("kernel", grid, threads, [*BUFFERS, bytes(32)], **options)


@pytest.mark.parametrize("arch", ARCHS)
def test_lines_of_a_launch_by_workgroup_and_chiplet(arch):
    counters = run(arch, GEMM, 64)
    read, written = sorted(counters.footprints, key=lambda each: each.written)
    # 4 slabs of 1 KiB in 4 x 16 places; every workgroup reads 16 half lines of each kind.
    assert read.half_lines == 16 * 4 + 16 * 16 and read.by_workgroup == 64 * 32
    # Slabs of the first kind are read on all 8 chiplets; those of the second by workgroups 16 apart, on one.
    assert read.by_chiplet == 16 * 4 * 8 + 16 * 16
    assert written.half_lines == written.by_workgroup == written.by_chiplet == 64 * 4


@pytest.mark.parametrize("arch", ARCHS)
def test_a_sample_learns_from_beginnings_what_others_share(arch):
    watched = Profile()
    sample = run(arch, GEMM, 64, groups=[0, 37], profile=watched)
    beginnings = run(arch, GEMM, 64, groups=in_flight(64, 304, 2), profile=Beginnings(4))
    assert beginnings.workgroups == 8 and sum(beginnings.counts) < 8 / 64 * 60 * 64
    # Two slabs of each kind were read by 8 workgroups: 4 x 2 of the first kind, 2 x 2 of the second, 4 half lines each.
    (read,) = (each for each in beginnings.footprints if not each.written)
    assert read.half_lines == read.by_chiplet == 4 * (4 * 2 + 2 * 2) and read.by_workgroup == 4 * 8 * 4
    found = record(sample, watched, beginnings)
    assert [(each.own, each.fills) for each in found.buffers] == [(32, 48 / 128), (4, 1.0)]
    # A sample takes the whole buffer for read. Of 64 x 2048 bytes the L2 caches fetch three eighths.
    moved = cost.traffic(found, cost.CHIPS[arch], warm=False)
    assert moved.hbm == 32 * 1024 + 64 + 64 * 256
    assert (moved.fetched, moved.stored) == (64 * 2048 * 3 / 8, 64 * 256)
    assert moved.table.tolist() == [[3 / 8, (32 * 1024 + 64) / (64 * 2048 * 3 / 8)], [1, 1]]
    assert cost.traffic(found, cost.CHIPS[arch], warm=True).hbm == 0
    everything = record(*[run(arch, GEMM, 64, profile=watched), watched])
    assert everything.buffers[0].fills == (64 * 8 + 256) / 2048


def test_in_flight_is_one_chiplets_share():
    assert in_flight(20, 304, 2) == [0, 8, 16]
    assert in_flight(10_000, 304, 2) == list(range(0, 8 * 76, 8))


@pytest.mark.parametrize("arch", ARCHS)
def test_waves_that_wait_for_one_that_was_ended_end(arch):
    counters = run(arch, FLAG, 1, threads=128, lds=256, profile=Beginnings(1))
    assert counters.mnemonics["global_load_dword"] == 2 and "ds_write_b32" in counters.mnemonics
    (read,) = counters.footprints
    assert read.by_workgroup == 1


@pytest.mark.parametrize("arch", ARCHS)
def test_what_is_cut_short_counts_nothing(arch):
    """Each workgroup counts itself behind few accesses, as split-K does."""
    body = """
      s_load_dwordx4 s[4:7], s[0:1], 0x0
      s_waitcnt lgkmcnt(0)
      v_mov_b32 v1, 0
      v_mov_b32 v2, 1
      global_load_dword v3, v1, s[4:5]
      s_waitcnt vmcnt(0)
      global_atomic_add v1, v2, s[6:7]"""
    simulator = Simulator(assemble({"kernel": body}, arch, raw=True), arch)
    counters = np.zeros(64, np.uint32)
    launch = ("kernel", 8, LANES, [np.zeros(64, np.uint32), counters, bytes(32)])
    assert simulator.launch(*launch, profile=Beginnings()).workgroups == 8 and not counters.any()
    simulator.launch(*launch)
    assert counters[0] == 8 * LANES
