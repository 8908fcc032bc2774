"""The simulator's profile, its playing back of courses, and the cost model: numbers worked out by hand."""

import dataclasses

import numpy as np
import pytest

from simulator import Checks, Simulator
from simulator.counting import profile
from simulator.counting.profile import Course, Profile
from simulator.tests.harness import ARCHS, LANES, assemble, needs_clang
from simulator.timing import cost
from simulator.timing.recording import record
from simulator.timing.timeline import UnitRates, pack, play

pytestmark = needs_clang
BASE = "s_load_dwordx4 s[4:7], s[0:1], 0x0\n s_waitcnt lgkmcnt(0)\n"


def run(arch: str, body: str, *, grid: int = 1, threads: int = LANES, lds: int = 0, watched=None, **options):
    """(counters, profile) of a kernel with 64 KiB at s[4:5] to read and at s[6:7] to write."""
    simulator = Simulator(
        assemble({"kernel": BASE + body}, arch, lds=lds, raw=True), arch, checks=Checks(hazards=False)
    )
    buffers = [np.zeros(64 * 1024 + 128, np.uint8) for _ in range(2)]
    buffers = [each[-each.ctypes.data % 128 :][: 64 * 1024] for each in buffers]
    watched = watched or Profile()
    return simulator.launch("kernel", grid, threads, [*buffers, bytes(32)], profile=watched, **options), watched


# --- Profile ---


@pytest.mark.parametrize("arch", ARCHS)
def test_what_waits_waited_for(arch):
    body = """
      v_lshlrev_b32 v1, 2, v0
      global_load_dword v2, v1, s[4:5]
      global_load_dword v3, v1, s[4:5]
      ds_write_b32 v1, v1
      s_waitcnt vmcnt(1)
      s_waitcnt vmcnt(0)
      s_waitcnt vmcnt(0)
      ds_read_b32 v4, v1
      s_load_dword s8, s[4:5], 0x0
      s_waitcnt lgkmcnt(0)"""
    counters, watched = run(arch, body, lds=256)
    found = {key: (waits.times, waits.outstanding) for key, waits in watched.waits.items()}
    assert found == {
        ("vmcnt", "load (first touch)"): (1, 2),
        ("vmcnt", "load (cached)"): (1, 1),
        ("lgkmcnt", "scalar load"): (2, 4),  # the arguments alone, then one behind two LDS operations
    }
    assert counters.most_in_flight == 2
    sites = {ins.mnemonic: site for ins, site in zip(counters.program, watched.sites) if site.accesses}
    assert sites["global_load_dword"].lines == 2 and sites["ds_read_b32"].lds_cycles == 2


POLL = """
  v_mov_b32 v1, 0
  v_mov_b32 v2, 1
  ds_write_b32 v1, v1
  s_waitcnt lgkmcnt(0)
  s_barrier
  v_readfirstlane_b32 s8, v0
  s_cmp_ge_u32 s8, 64
  s_cbranch_scc1 look
  ds_write_b32 v1, v2
  s_branch done
look:
  ds_read_b32 v3, v1
  s_waitcnt lgkmcnt(0)
  v_readfirstlane_b32 s9, v3
  s_cmp_eq_u32 s9, 1
  s_cbranch_scc1 done
  s_sleep 1
  s_branch look
done:"""


@pytest.mark.parametrize("arch", ARCHS)
def test_looks_in_vain_are_not_kept(arch):
    found, polls = set(), set()
    for seed in range(12):
        counters, watched = run(arch, POLL, threads=128, lds=256, seed=seed)
        steps = watched.courses[0][1].steps
        found.add(tuple(steps[steps.index((profile.BARRIER,)) :]))
        polls.add(counters.mnemonics.get("s_sleep", 0))
    assert len(found) == 1 and len(polls) > 1
    assert [step for step in found.pop() if step[0] == profile.ACQUIRE] == [(profile.ACQUIRE, 0, 3)]


@pytest.mark.parametrize("arch", ARCHS)
def test_a_flag_is_what_a_loop_looks_at(arch):
    """Data that all lanes read at one address is none, whoever wrote it last: nothing waits for it."""
    data = POLL.replace("s_cbranch_scc1 done\n  s_sleep 1\n  s_branch look", "s_cbranch_scc1 done")
    kept = []
    for body in (POLL, data):
        # Without the race check: the second one has a race.
        simulator = Simulator(
            assemble({"kernel": BASE + body}, arch, lds=256, raw=True), arch, checks=Checks(races=False)
        )
        buffers, watched = [np.zeros(1024, np.uint8) for _ in range(2)], Profile()
        counters = simulator.launch("kernel", 1, 128, [*buffers, bytes(32)], profile=watched)
        steps = record(counters, watched).courses.steps
        kept.append((steps[:, 0] == profile.ACQUIRE).any())
    assert kept == [True, False]


@pytest.mark.parametrize("arch", ARCHS)
def test_how_far_back_a_line_was_touched(arch):
    body = """
      v_lshlrev_b32 v1, 2, v0
      global_load_dword v2, v1, s[4:5]
      global_load_dword v3, v1, s[4:5] offset:256
      global_load_dword v4, v1, s[4:5] offset:512 nt
      global_load_dword v5, v1, s[4:5]
      global_load_dword v6, v1, s[4:5]
      global_store_dword v1, v1, s[6:7]
      global_load_dword v7, v1, s[4:5]"""
    _, watched = run(arch, body)
    # Half lines: 256 bytes are four; what streams counts for nothing.
    assert touches(watched) == [(4, 4, 0), (4, 4, 0), (4, 4, 0), (4, 0, 4), (4, 0, 0), (4, 4, 0), (4, 0, 4)]


@pytest.mark.parametrize("arch", ARCHS)
def test_other_bytes_of_a_half_line_come_with_the_first(arch):
    """Rows of 96 bytes, of which lanes read 16 at a time: every second one begins amid a half line."""
    body = """
      v_mul_u32_u24 v1, 0x60, v0
      v_lshlrev_b32 v2, 4, v0
      global_load_dwordx4 v[4:7], v1, s[4:5]
      global_load_dwordx4 v[8:11], v1, s[4:5] offset:16
      global_load_dwordx4 v[12:15], v1, s[4:5] offset:32
      global_load_dwordx4 v[16:19], v2, s[4:5]
      global_load_dwordx4 v[20:23], v1, s[4:5] offset:80 nt
      global_load_dwordx4 v[24:27], v2, s[4:5] offset:32"""
    counters, watched = run(arch, body)
    # 96 half lines hold all rows. The first load touches two of three; the third one the others and a half of these.
    assert touches(watched) == [(64, 64, 0), (64, 0, 0), (64, 32, 0), (16, 0, 16), (64, 0, 128), (17, 0, 34)]
    (read,) = counters.footprints
    assert [each.own for each in watched.buffers.values()] == [96] == [read.half_lines]


@pytest.mark.parametrize("arch", ARCHS)
def test_what_streamed_comes_anew(arch):
    body = """
      v_lshlrev_b32 v1, 4, v0
      global_load_dwordx4 v[4:7], v1, s[4:5] nt
      global_load_dwordx4 v[8:11], v1, s[4:5] offset:32 nt
      global_load_dwordx4 v[12:15], v1, s[4:5] offset:48
      global_load_dwordx4 v[16:19], v1, s[4:5] offset:16"""
    _, watched = run(arch, body)
    assert touches(watched) == [(16, 16, 0), (17, 17, 0), (17, 17, 0), (17, 0, 0)]
    assert [each.own for each in watched.buffers.values()] == [17]


def touches(watched) -> list[tuple[int, int, int]]:
    """Of a workgroup of one wave: half lines of each access, new ones, what was touched since the rest was."""
    return [step[1:4] for step in watched.courses[0][0].steps if step[0] == profile.MEMORY]


@pytest.mark.parametrize("arch", ARCHS)
def test_trace_of_a_wave(arch):
    lines = []
    body = "s_movk_i32 s8, 0x11\n v_mov_b32 v1, s8\n v_add_u32 v2, v0, v1\n s_cmp_eq_u32 s8, s8"
    watched = Profile(trace=(1, 0), trace_limit=5, write=lines.append)
    run(arch, body, grid=3, watched=watched)
    assert len(lines) == 5
    assert lines[2].endswith(" s8=0x11") and lines[3].endswith(" v1=[0x11]")
    assert lines[4].endswith(" v2=[0x11, 0x12, 0x50]") and "v_add_u32_e32 v2, v0, v1" in lines[4]


# --- Playing back ---

RATES = UnitRates(hbm=32.0, fabric=64.0, store=64.0, l2=64.0)
LOAD = (profile.MEMORY, 16, 16, 0, "load", False, 0)  # 1024 bytes
COLD = np.array([[1.0, 1.0]])
WAIT_ALL = (profile.WAIT, 0, 0)


def played(*groups, resident: int = 1, buffers=COLD, rates=RATES):
    packed = pack([[Course(list(steps)) for steps in group] for group in groups])
    return play(packed, len(groups), resident, rates, buffers)


def vector(cycles: int) -> tuple:
    return profile.VECTOR, cycles


def test_a_load_takes_its_latency_and_its_bytes():
    found = played([[LOAD, WAIT_ALL]])
    # 1024 bytes at 32 a cycle, then 900 cycles; the wave stands still from cycle 8 on.
    assert found.cycles == 932 and found.stalls == {"HBM": 924} and found.loads_in_flight == 1
    cached = (profile.MEMORY, 16, 0, 0, "load", False, 0)
    assert played([[cached, WAIT_ALL]]).cycles == 16 + 288
    # Eight in flight share the bandwidth, not the latency.
    assert played([[LOAD] * 8 + [WAIT_ALL]]).cycles == 8 * 32 + 900
    assert played([[LOAD, WAIT_ALL] * 8]).cycles == 8 * 932
    # Only the older one is waited for.
    assert played([[LOAD, LOAD, (profile.WAIT, 1, 15)]]).cycles == 932


def test_where_a_load_comes_from():
    """Of four workgroups that share a line one fetches it: the others wait as long, and take no bandwidth."""
    quarter = np.array([[0.25, 1.0]])
    assert played([[LOAD, WAIT_ALL]], buffers=quarter).cycles == 8 + 900
    assert played([[LOAD] * 8 + [WAIT_ALL]], buffers=quarter).cycles == 7 * 16 + 8 + 900  # L1 serves one in 16 cycles
    in_memory_side_cache = np.array([[1.0, 0.0]])
    assert played([[LOAD, WAIT_ALL]], buffers=in_memory_side_cache).cycles == 16 + 500
    in_l2 = np.array([[0.0, 0.0]])
    assert played([[LOAD, WAIT_ALL]], buffers=in_l2).cycles == 16 + 288


def test_what_l2_has_lost_comes_from_the_memory_side_cache():
    again = (profile.MEMORY, 16, 0, 4000, "load", False, 0)
    holds, half, little = (dataclasses.replace(RATES, reach=reach) for reach in (4000.0, 2000.0, 0.0))
    assert played([[again, WAIT_ALL]], rates=holds).cycles == 16 + 288
    assert played([[again, WAIT_ALL]], rates=half).cycles == 8 + 500
    assert played([[again, WAIT_ALL]], rates=little).cycles == 16 + 500


def test_a_load_that_is_new_in_part():
    part = (profile.MEMORY, 16, 4, 4000, "load", False, 0)
    holds, half = (dataclasses.replace(RATES, reach=reach) for reach in (4000.0, 2000.0))
    # Eight times 256 bytes at 32 a cycle; L1 serves one access in 16.
    assert played([[part] * 8 + [WAIT_ALL]], rates=holds).cycles == 7 * 16 + 8 + 900
    # Twelve half lines, half of which L2 has lost, besides: 640 bytes from the memory-side cache at 64 a cycle.
    slow = dataclasses.replace(half, fabric=16.0)
    assert played([[part] * 8 + [WAIT_ALL]], rates=slow).cycles == 8 * 40 + 900


def test_stores_go_past_what_a_unit_draws():
    store = (profile.MEMORY, 16, 16, 0, "store", False, 0)
    in_memory_side_cache = np.array([[1.0, 0.0]])
    rates = dataclasses.replace(RATES, fabric=16.0, store=64.0)
    times = [
        played([[each] * 8 + [WAIT_ALL]], rates=rates, buffers=in_memory_side_cache).cycles for each in (LOAD, store)
    ]
    assert times == [8 * 64 + 500, 8 * 16 + 288]


def test_what_opening_a_barrier_and_starting_a_workgroup_take():
    slow = UnitRates(hbm=32.0, fabric=64.0, store=64.0, l2=64.0, barrier=20.0, start=100.0)
    barrier = (profile.BARRIER,)
    assert played([[barrier, vector(8)], [vector(16), barrier]], rates=slow).cycles == 16 + 20 + 8
    assert played([[vector(8)]], [[vector(8)]], rates=slow).cycles == 8 + 100 + 8


def test_waves_share_their_simd():
    assert played([[vector(64)]] * 4).cycles == 64
    found = played([[vector(64)]] * 5)
    assert found.cycles == 128 and found.stalls == {"issue": 64}
    matrix = (profile.MATRIX, 16)
    assert played([[matrix, matrix]]).stalls == {"matrix unit": 12}


def test_barriers_and_flags():
    barrier = (profile.BARRIER,)
    found = played([[vector(64), barrier, vector(8)], [vector(16), barrier, vector(8)]])
    assert found.cycles == 72 and found.stalls == {"barrier": 48}
    flag = (8, 1)
    found = played([[vector(64), (profile.RELEASE, *flag)], [(profile.ACQUIRE, *flag), vector(4)]])
    assert found.cycles == 64 + 51 + 4 and found.stalls == {"LDS flag": 115}


def test_the_units_lds_serves_one_access_at_a_time():
    access = (profile.LDS, 8)
    assert played([[access, WAIT_ALL]]).cycles == 8 + 51
    assert played([[access, WAIT_ALL]] * 4).cycles == 4 * 8 + 51
    # What loads bring to it takes its time as well, and no counter waits for that.
    assert played([[(profile.FILL, 8), access, WAIT_ALL]]).cycles == 2 * 8 + 51
    assert played([[access, (profile.FILL, 8), WAIT_ALL]]).cycles == 8 + 51


def test_workgroups_follow_one_another():
    group = [[LOAD, WAIT_ALL]]
    assert played(group, group, group).cycles == 3 * 932
    assert played(group, group, group, resident=3).cycles == 3 * 32 + 900


# --- The model ---

TOY = cost.Chip(
    "two units", units=2, clock=1e9, hbm=64e9, fabric=96e9, l2=128e9, launch_profiler=2e-6, launch_graph=1e-6,
    launch_events=5e-6, unit_hbm=64.0,
)  # fmt: skip
COPY = """
  s_lshl_b32 s8, s2, 12
  v_lshl_add_u32 v1, v0, 4, s8
  global_load_dwordx4 v[4:7], v1, s[4:5]
  s_waitcnt vmcnt(0)
  global_store_dwordx4 v1, v[4:7], s[6:7]"""


@pytest.mark.parametrize("groups", [None, range(3)])
@pytest.mark.parametrize("arch", ARCHS)
def test_parts_of_a_copy(arch, groups):
    # 16 workgroups read and write 4 KiB each; 3 of them stand for all.
    result = cost.estimate(record(*run(arch, COPY, grid=16, threads=256, groups=groups)), TOY)
    size = 16 * 8192
    assert result.bytes == size
    expected = {
        "launch": 1e-6, "HBM": size / 64e9, "fabric": size / 96e9, "L2": size / 128e9, "L1": size / 64 / 2e9,
        "issue": 16 * 4 * 4 / 4 / 2e9, "matrix": 0, "LDS": 0,
    }  # fmt: skip
    assert {name: result.parts[name] for name in expected} == pytest.approx(expected)
    assert result.bound == "HBM" and result.rounds == 8 / 4
    assert result.seconds == pytest.approx(sum(result.parts[name] for name in ("launch", "HBM", "latency")))
    # A first load cannot come back earlier, and all bytes take their time.
    assert 1e-6 + size / 64e9 <= result.seconds <= 1e-6 + size / 64e9 + 2 * 1.3e-6


@pytest.mark.parametrize("timing, seconds", [("profiler", 2e-6), ("graph", 1e-6), ("events", 5e-6)])
def test_a_launch_costs_what_its_timing_says(timing, seconds):
    found = record(*run("gfx942", COPY, grid=16, threads=256))
    one, other = (cost.estimate(found, TOY, timing=each) for each in (timing, "graph"))
    assert one.parts["launch"] == seconds and one.seconds - other.seconds == pytest.approx(seconds - 1e-6)


TWICE = """
  s_lshl_b32 s8, s2, 14
  v_lshl_add_u32 v1, v0, 4, s8
  s_movk_i32 s10, 2
again:
  global_load_dwordx4 v[4:7], v1, s[4:5]
  s_movk_i32 s9, 0x1000
  v_add_u32 v2, s9, v1
  global_load_dwordx4 v[8:11], v2, s[4:5]
  s_waitcnt vmcnt(0)
  s_sub_u32 s10, s10, 1
  s_cmp_lg_u32 s10, 0
  s_cbranch_scc1 again"""


def test_rows_that_are_read_twice_are_fetched_twice_where_l2_is_full():
    """1 KiB lies between two reads of a line. A chiplet's L2 keeps that for 4,096 workgroups in flight."""
    found = record(*run("gfx942", TWICE, grid=4))
    few, many = (dataclasses.replace(found, grid=grid, buffers=tuple(
        dataclasses.replace(each, size=grid << 11) for each in found.buffers
    )) for grid in (8 << 12, 8 << 13))  # fmt: skip
    chip = dataclasses.replace(cost.CHIPS["gfx942"], units=8192)
    moved = [cost.traffic(each, chip, warm=False) for each in (few, many)]
    assert moved[0].fetched == moved[0].hbm == 8 << 23
    assert (moved[1].hbm, moved[1].fetched) == (8 << 24, 12 << 24)  # every second line is there no more


UNEVEN = """
  s_lshl_b32 s8, s2, 15
  v_lshl_add_u32 v1, v0, 4, s8
  s_cmp_eq_u32 s2, 0
  s_cselect_b32 s10, 1, 7
again:
  global_load_dwordx4 v[4:7], v1, s[4:5]
  s_movk_i32 s9, 0x1000
  v_add_u32 v1, s9, v1
  s_waitcnt vmcnt(0)
  s_sub_u32 s10, s10, 1
  s_cmp_lg_u32 s10, 0
  s_cbranch_scc1 again"""


def test_who_has_more_to_load_gets_what_others_leave():
    """4 KiB and 28: the second workgroup ends last. It draws more than a half of the bandwidth, which is the bound."""
    found = record(*run("gfx942", UNEVEN, grid=2, threads=256))
    chip = dataclasses.replace(TOY, hbm=4e9)
    light, heavy = (
        cost.estimate(dataclasses.replace(found, courses=found.courses.from_kind(i)), chip).seconds for i in range(2)
    )
    both = cost.of_fullest(found, chip=chip)
    assert light < both.seconds < heavy
    # All bytes at the chip's bandwidth, a latency, the launch.
    assert both.seconds == pytest.approx(32768 / 4e9 + 1e-6, rel=0.15)
    turned = dataclasses.replace(found, courses=found.courses.from_kind(1))
    assert cost.of_fullest(turned, chip=chip).seconds == both.seconds


def test_who_multiplies_more_ends_last():
    multiply = "v_mfma_f32_32x32x16_fp8_fp8 a[0:15], v[8:9], v[8:9], a[0:15]\n"
    body = f"""
  v_mov_b32 v8, 0
  v_mov_b32 v9, 0
  v_lshlrev_b32 v1, 2, v0
  global_load_dword v2, v1, s[4:5]
  s_waitcnt vmcnt(0)
  s_cmp_eq_u32 s2, 0
  s_cbranch_scc1 done
  {multiply * 200}
done:"""
    found = record(*run("gfx942", body, grid=2, threads=256))
    alone = [cost.estimate(dataclasses.replace(found, courses=found.courses.from_kind(i))).seconds for i in range(2)]
    assert alone[0] < alone[1] == cost.of_fullest(found).seconds


def test_no_more_lines_than_a_buffer_has():
    found = record(*run("gfx942", COPY, grid=16, threads=256, groups=range(2)))
    assert [each.own for each in found.buffers] == [64, 64]
    assert [cost.distinct_bytes(each, 16) for each in found.buffers] == [65536] * 2
    assert [cost.distinct_bytes(each, 1000) for each in found.buffers] == [65536 + 64] * 2


BOUNDS = {
    "issue": "v_exp_f32 v1, v1\n" * 400,
    "matrix": "v_mov_b32 v8, 0\n v_mov_b32 v9, 0\n"
    + "v_mfma_f32_32x32x16_fp8_fp8 a[0:15], v[8:9], v[8:9], a[0:15]\n" * 200,
    "LDS": "v_lshlrev_b32 v1, 7, v0\n" + "ds_write_b32 v1, v1\n" * 60 + "s_waitcnt lgkmcnt(0)\n",
    "latency": "".join(
        f"global_load_dword v2, v1, s[4:5] offset:{128 * i}\n s_waitcnt vmcnt(0)\n" for i in range(20)
    ),
}  # fmt: skip


@pytest.mark.parametrize("bound", BOUNDS)
def test_bounds(bound):
    body = "v_lshlrev_b32 v1, 2, v0\n" + BOUNDS[bound]
    result = cost.estimate(record(*run("gfx942", body, grid=4, threads=256, lds=65536)))
    assert result.bound == bound
    assert bound in cost.describe(result)


def test_conflicts_cost_time():
    times = [
        cost.estimate(
            record(*run("gfx942", BOUNDS["LDS"].replace(" 7,", f" {shift},"), threads=512, lds=65536))
        ).seconds
        for shift in (2, 4, 7)
    ]
    assert times[0] < times[1] < times[2]
