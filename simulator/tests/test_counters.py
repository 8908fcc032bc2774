"""The simulator's counters against numbers worked out by hand."""

import itertools

import numpy as np
import pytest

from simulator import Checks, Simulator
from simulator.counting.counters import class_of, matrix_cycles, occupancy
from simulator.tests.harness import ARCHS, LANES, assemble, needs_clang

pytestmark = needs_clang

BASE = "s_load_dwordx4 s[4:7], s[0:1], 0x0\n s_waitcnt lgkmcnt(0)\n"


def counted(arch: str, body: str, *, grid: int = 1, threads: int = LANES, lds: int = 0, **options):
    """Of a kernel with an input buffer at s[4:5] and an output buffer at s[6:7], both at multiples of 128 bytes."""
    simulator = Simulator(
        assemble({"kernel": BASE + body}, arch, lds=lds, raw=True), arch, checks=Checks(hazards=False)
    )
    buffers = []
    for _ in range(2):
        memory = np.zeros(64 * 1024 + 128, np.uint8)
        start = -memory.ctypes.data % 128
        buffers.append(memory[start : start + 64 * 1024])
    return simulator.launch("kernel", grid, threads, [*buffers, bytes(32)], **options)


@pytest.mark.parametrize("arch", ARCHS)
def test_classes_of_instructions(arch):
    body = """
      v_lshlrev_b32 v1, 2, v0
      global_load_dword v2, v1, s[4:5]
      ds_write_b32 v1, v1
      s_waitcnt vmcnt(0) lgkmcnt(0)
      s_barrier
      v_exp_f32 v3, v2
      v_pk_mul_f32 v[4:5], v[2:3], v[2:3]
      v_mov_b32 v8, 0
      v_mov_b32 v9, 0
      v_mfma_f32_16x16x32_fp8_fp8 v[12:15], v[8:9], v[8:9], 0
      s_nop 7
      s_mov_b32 s8, 3
      s_cmp_eq_u32 s8, 4
      s_cbranch_scc1 end
      global_store_dword v1, v3, s[6:7]
      global_atomic_add v1, v2, s[6:7]
    end:"""
    counters = counted(arch, body, lds=256)
    assert counters.instructions == {
        "smem": 1, "wait": 2, "valu": 3, "vmem_load": 1, "lds": 1, "barrier": 1, "transcendental": 1, "packed": 1,
        "mfma": 1, "other": 2, "salu": 2, "branch": 1, "vmem_store": 1, "vmem_atomic": 1,
    }  # fmt: skip
    assert counters.total == 19 and counters.matrix_cycles == 16
    assert counters.accesses == 3 and counters.bytes_loaded == 256 and counters.bytes_stored == 512
    assert [count for ins, count in zip(counters.program, counters.counts) if ins.mnemonic == "s_nop"] == [1]


def test_names_of_classes():
    expected = {
        "s_endpgm": "other", "buffer_wbl2": "other", "s_buffer_load_dword": "smem", "buffer_load_dwordx4": "vmem_load",
        "v_rcp_iflag_f32_e32": "transcendental", "v_sqrt_f16_e32": "transcendental", "v_cvt_pk_fp8_f32": "valu",
        "v_smfmac_f32_16x16x64_fp8_fp8": "mfma", "ds_bpermute_b32": "lds", "s_branch": "branch", "s_sleep": "other",
    }  # fmt: skip
    assert {name: class_of(name) for name in expected} == expected
    cycles = {
        "v_mfma_f32_16x16x32_fp8_fp8": 16, "v_mfma_f32_32x32x16_fp8_fp8": 32, "v_smfmac_f32_16x16x64_fp8_fp8": 16,
        "v_mfma_f32_16x16x128_f8f6f4": 32, "v_mfma_f32_32x32x64_f8f6f4": 64, "v_mfma_f32_32x32x8_bf16_1k": 32,
        "v_mfma_f32_16x16x32_bf16": 16, "v_mfma_f32_32x32x16_f16": 32,
        "v_add_f32_e32": 0,
    }  # fmt: skip
    assert {name: matrix_cycles(name, {}) for name in cycles} == cycles
    for a, b in itertools.product(range(5), repeat=2):
        types = {"cbsz": str(a)} | ({"blgp": str(b)} if b else {})
        cycles = [matrix_cycles(f"v_mfma_scale_f32_{shape}_f8f6f4", types) for shape in ("16x16x128", "32x32x64")]
        assert cycles == ([32, 64] if min(a, b) < 2 else [16, 32])


# How a load of 4 bytes a lane is addressed: (bytes, different bytes, 128-byte lines, 64-byte lines)
STRIDES = {
    "v_lshlrev_b32 v1, 2, v0": (256, 256, 2, 4),  # contiguous
    "v_lshlrev_b32 v1, 2, v0\n v_add_u32 v1, 2, v1": (256, 256, 3, 5),  # the last lane's word lies across a line's end
    "v_lshlrev_b32 v1, 3, v0": (256, 256, 4, 8),
    "v_lshlrev_b32 v1, 7, v0": (256, 256, 64, 64),
    "v_lshlrev_b32 v1, 9, v0": (256, 256, 64, 64),
    "v_mov_b32 v1, 64": (256, 4, 1, 1),
    "v_lshlrev_b32 v1, 2, v0\n s_mov_b64 exec, 0xff": (32, 32, 1, 1),
}


@pytest.mark.parametrize("arch", ARCHS)
def test_lines_of_an_access(arch):
    for address, (size, different, lines, half_lines) in STRIDES.items():
        counters = counted(arch, f"{address}\n global_load_dword v2, v1, s[4:5]\n s_waitcnt vmcnt(0)")
        found = counters.bytes_loaded, counters.lines_loaded, counters.half_lines_loaded
        assert found == (size, lines, half_lines), address
        assert counters.coalescing == different / (128 * lines)
        assert counters.distinct_lines == lines and counters.bytes_distinct == 64 * half_lines


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("size, accesses", [(512, 1), (264, 4)])
def test_lanes_beyond_a_buffer_make_no_access_more(arch, size, accesses):
    """Half of the lanes lie beyond: one access of the others'. A lane that lies in part inside is read by dwords."""
    body = f"""
      s_mov_b32 s6, {size}
      s_mov_b32 s7, 0x00027000
      v_lshlrev_b32 v1, 4, v0
      buffer_load_dwordx4 v[4:7], v1, s[4:7], 0 offen
      s_waitcnt vmcnt(0)
    """
    counters = counted(arch, body)
    assert (counters.accesses, counters.bytes_loaded) == (accesses, size)
    assert counters.half_lines_loaded == sum(-(-(size - 4 * i) // 64) for i in range(accesses))


@pytest.mark.parametrize("arch", ARCHS)
def test_each_line_once_in_the_footprints(arch):
    # Every workgroup loads the first 1024 bytes twice, and stores 256 bytes of its own: 8 lines and 2 lines each.
    body = """
      s_lshl_b32 s8, s2, 8
      v_lshlrev_b32 v1, 4, v0
      global_load_dwordx4 v[4:7], v1, s[4:5]
      global_load_dwordx4 v[8:11], v1, s[4:5]
      v_lshl_add_u32 v2, v0, 2, s8
      s_waitcnt vmcnt(0)
      global_store_dword v2, v4, s[6:7]"""
    counters = counted(arch, body, grid=5)
    assert counters.lines_loaded == 5 * 16 and counters.lines_stored == 5 * 2
    assert counters.distinct_lines == 8 + 5 * 2 and counters.bytes_distinct == 1024 + 5 * 256
    prints = {each.name: (each.size, each.half_lines, each.shared) for each in counters.footprints}
    assert prints == {"argument 0": (65536, 16, 16), "argument 1": (65536, 20, 0)}
    some = counted(arch, body, grid=5, groups=[1, 3, 4])
    assert some.workgroups == 3 and some.grid == 5 and some.lines_loaded == 3 * 16
    assert some.bytes_distinct == 1024 + 3 * 256


def lds_cycles(arch: str, address: str, access: str) -> tuple[int, int]:
    counters = counted(arch, f"{address}\n {access}\n s_waitcnt lgkmcnt(0)", lds=65536)
    return counters.lds_cycles, counters.lds_conflict_cycles


LINEAR4, LINEAR8, LINEAR16 = (f"v_lshlrev_b32 v1, {shift}, v0" for shift in (2, 3, 4))
# address, access: cycles and conflict cycles on gfx942, the same on gfx950
BANKS = {
    (LINEAR4, "ds_write_b32 v1, v1"): ((2, 0), (2, 0)),
    (LINEAR8, "ds_write_b64 v1, v[2:3]"): ((4, 0), (4, 0)),
    (LINEAR16, "ds_write_b128 v1, v[4:7]"): ((8, 0), (8, 0)),
    # Lanes 32 bytes apart: every eighth bank, 4 lanes of each 32 banks' turn; 32 lanes on 4 banks.
    ("v_lshlrev_b32 v1, 5, v0", "ds_write_b32 v1, v1"): ((16, 14), (16, 14)),
    # All on one bank: 32 cycles for each half.
    ("v_lshlrev_b32 v1, 7, v0", "ds_write_b32 v1, v1"): ((64, 62), (64, 62)),
    # 512 bytes apart, 16 bytes a lane: the 8 lanes of a phase on the same four banks.
    ("v_lshlrev_b32 v1, 9, v0", "ds_write_b128 v1, v[4:7]"): ((64, 56), (64, 56)),
    ("v_mov_b32 v1, 0", "ds_write_b32 v1, v1"): ((2, 0), (2, 0)),
    (LINEAR4 + "\n s_mov_b64 exec, 0xff", "ds_write_b32 v1, v1"): ((1, 0), (1, 0)),
}


@pytest.mark.parametrize("number, arch", list(enumerate(ARCHS)))
def test_bank_conflicts_of_writes(number, arch):
    for (address, access), expected in BANKS.items():
        assert lds_cycles(arch, address, access) == expected[number], (address, access)


# Reads after everything was written without a conflict: by lane, its byte address.
READS = {
    ("b32", LINEAR4): ((2, 0), (2, 0)),
    ("b64", LINEAR8): ((4, 0), (2, 0)),
    ("b128", LINEAR16): ((8, 0), (4, 0)),
    # 8-way: lanes 32 bytes apart use 4 of 32 banks; of gfx950's 64 banks 8, with 4 lanes on each.
    ("b32", "v_lshlrev_b32 v1, 5, v0"): ((16, 14), (8, 6)),
    # 128 bytes apart: gfx942 has the 8 lanes of each phase on four banks. gfx950's phase of 16 lanes: on eight.
    ("b128", "v_lshlrev_b32 v1, 7, v0"): ((64, 56), (32, 28)),
    # Lanes that read the same 16 bytes share a cycle; 8 different ones 32 bytes apart are two on each of 32 banks.
    ("b128", "v_and_b32 v1, 3, v0\n v_lshlrev_b32 v1, 4, v1"): ((8, 0), (4, 0)),
    ("b128", "v_and_b32 v1, 7, v0\n v_lshlrev_b32 v1, 5, v1"): ((16, 8), (4, 0)),
}


@pytest.mark.parametrize("number, arch", list(enumerate(ARCHS)))
def test_bank_conflicts_of_reads(number, arch):
    fill = "v_lshlrev_b32 v3, 4, v0\n" + "".join(
        f"ds_write_b128 v3, v[4:7] offset:{1024 * i}\n" for i in range(8)
    )  # 8 KiB
    base = lds_cycles(arch, fill, "s_nop 0")
    assert base == (64, 0)
    for (kind, address), expected in READS.items():
        into = {"b32": "v8", "b64": "v[8:9]", "b128": "v[8:11]"}[kind]
        cycles, conflicts = lds_cycles(arch, fill + address, f"s_waitcnt lgkmcnt(0)\n ds_read_{kind} {into}, v1")
        assert (cycles - 64, conflicts) == expected[number], (kind, address)


def test_occupancy():
    of = {
        vgprs: occupancy("gfx942", vgprs, 64, 0).limits["registers"] // 4
        for vgprs in (64, 72, 80, 96, 128, 168, 256, 512)
    }
    assert of == {64: 8, 72: 7, 80: 6, 96: 5, 128: 4, 168: 3, 256: 2, 512: 1}
    ring = occupancy("gfx942", 64, 896, 40000)  # 14 waves, one workgroup's LDS fits
    assert (ring.waves, ring.workgroups, ring.waves_per_simd, ring.limited_by) == (14, 1, 3.5, "LDS")
    assert occupancy("gfx950", 64, 896, 40000).workgroups == 2  # 32 waves of room
    assert occupancy("gfx942", 64, 64, 0).limited_by == "workgroups"
    assert occupancy("gfx942", 104, 1024, 0).workgroups == 1
    assert occupancy("gfx942", 24, 256, 513).workgroups == 8


@pytest.mark.parametrize("arch", ARCHS)
def test_occupancy_of_a_launch(arch):
    found = counted(arch, "s_nop 0", threads=256, lds=1024).occupancy
    assert (found.waves, found.workgroups, found.limited_by) == (4, 4, "registers")  # 128 registers: 4 waves a SIMD
