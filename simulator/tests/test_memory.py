"""Lanes and memory: DPP, permutations, LDS, global memory, buffers, atomics; checked lane by lane."""

import numpy as np
import pytest

from simulator import Checks, MemoryFault, Simulator, WaitFault
from simulator.faults import UnsupportedError
from simulator.tests.harness import ARCHS, LANES, Snippets, assemble, needs_clang

pytestmark = needs_clang

ALL = (1 << 64) - 1
SOME = 0xF00FFF0FFFF5FF3F

# control: the lane that a lane reads, or None
DPP = {
    "quad_perm:[3,1,0,2]": lambda i: i // 4 * 4 + (3, 1, 0, 2)[i % 4],
    "row_shl:3": lambda i: i + 3 if i % 16 + 3 < 16 else None,
    "row_shr:1": lambda i: i - 1 if i % 16 >= 1 else None,
    "row_shr:8": lambda i: i - 8 if i % 16 >= 8 else None,
    "row_ror:5": lambda i: i // 16 * 16 + (i - 5) % 16,
    "wave_shl:1": lambda i: i + 1 if i < 63 else None,
    "wave_shr:1": lambda i: i - 1 if i else None,
    "wave_rol:1": lambda i: (i + 1) % 64,
    "wave_ror:1": lambda i: (i - 1) % 64,
    "row_mirror": lambda i: i // 16 * 16 + 15 - i % 16,
    "row_half_mirror": lambda i: i // 8 * 8 + 7 - i % 8,
    "row_bcast:15": lambda i: i // 16 * 16 - 1 if i >= 16 else None,
    "row_bcast:31": lambda i: i // 32 * 32 - 1 if i >= 32 else None,
    "row_newbcast:6": lambda i: i // 16 * 16 + 6,
}


@pytest.mark.parametrize("arch", ARCHS)
def test_dpp(arch):
    rows, banks = 0xB, 0xD
    snippets, plan = {}, {}
    for number, (control, source) in enumerate(DPP.items()):
        for zero in (0, 1):
            name = f"dpp{number}_{zero}"
            tail = " bound_ctrl:1" if zero else ""
            snippets[name] = (
                f"s_mov_b64 exec, s[8:9]\n v_mov_b32_dpp v30, v10 {control} row_mask:{rows} bank_mask:{banks}{tail}\n"
                f"v_add_u32_dpp v31, v10, v11 {control} row_mask:0xf bank_mask:0xf{tail}\n"
            )
            plan[name] = (source, zero)
    bench = Snippets(snippets, arch)
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 1 << 31, (2, LANES), np.uint32)
    for active in (ALL, SOME):
        for name, (source, zero) in plan.items():
            moved, added = bench.run(name, [a, b], [active & 0xFFFFFFFF, active >> 32])[:2]
            for lane in range(LANES):
                at = source(lane)
                valid = at is not None and active >> at & 1
                written = active >> lane & 1 and (valid or zero)
                value = int(a[at]) if valid else 0
                enabled = rows >> lane // 16 & 1 and banks >> lane % 16 // 4 & 1
                assert moved[lane] == (value if written and enabled else 0x5A5A5A5A), (snippets[name], lane)
                assert added[lane] == (value + int(b[lane]) & 0xFFFFFFFF if written else 0x5A5A5A5A), (
                    snippets[name],
                    lane,
                )


@pytest.mark.parametrize("arch", ARCHS)
def test_lane_permutations(arch):
    body = """
      v_readlane_b32 s20, v10, 37
      v_readfirstlane_b32 s21, v11
      s_mov_b64 s[22:23], exec
      s_mov_b64 exec, s[8:9]
      v_readfirstlane_b32 s24, v10
      ds_bpermute_b32 v30, v11, v10
      ds_permute_b32 v31, v12, v10
      ds_swizzle_b32 v32, v10 offset:swizzle(BITMASK_PERM,"0pi1p")
      ds_swizzle_b32 v33, v10 offset:swizzle(QUAD_PERM,2,0,3,1)
      s_waitcnt lgkmcnt(0)
      s_mov_b64 exec, s[22:23]
      v_mov_b32 v34, s20
      v_mov_b32 v35, s21
      v_mov_b32 v36, s24
      v_mbcnt_lo_u32_b32 v37, s8, 5
      v_mbcnt_hi_u32_b32 v37, s9, v37
      v_writelane_b32 v36, s20, 9"""
    bench = Snippets({"permute": body}, arch)
    rng = np.random.default_rng(1)
    a, where = rng.integers(0, 1 << 32, LANES, np.uint32), rng.integers(0, 256, LANES, np.uint32)
    scatter = rng.permutation(LANES).astype(np.uint32) * 4
    for active in (ALL, SOME):
        got = bench.run("permute", [a, where, scatter], [active & 0xFFFFFFFF, active >> 32])
        on = [bool(active >> lane & 1) for lane in range(LANES)]
        seen = [int(a[lane]) if on[lane] else 0 for lane in range(LANES)]
        scattered = [0] * LANES
        for lane in range(LANES):
            if on[lane]:
                scattered[scatter[lane] // 4] = int(a[lane])
        for lane in range(LANES):
            if on[lane]:
                within = lane % 32
                mask_source = within & 0b01001 | (within ^ 0b00100) & 0b00100 | 0b00010
                expected = [
                    seen[where[lane] // 4 % 64], scattered[lane], seen[lane // 32 * 32 + mask_source],
                    seen[lane // 4 * 4 + (2, 0, 3, 1)[lane % 4]],
                ]  # fmt: skip
            else:
                expected = [0x5A5A5A5A] * 4
            assert [int(got[i][lane]) for i in range(4)] == expected
        first = next(lane for lane in range(LANES) if on[lane])
        assert (got[4] == a[37]).all() and (got[5] == where[0]).all()
        assert (np.delete(got[6], 9) == a[first]).all() and got[6][9] == a[37]
        assert [int(each) for each in got[7]] == [5 + sum(on[:lane]) for lane in range(LANES)]


@pytest.mark.parametrize("arch", ARCHS)
def test_lds(arch):
    body = """
      v_lshlrev_b32 v20, 2, v0
      ds_write_b128 v20, v[10:13]
      s_waitcnt lgkmcnt(0)
      ds_read_b64 v[30:31], v20 offset:8
      ds_read2_b32 v[32:33], v20 offset0:1 offset1:0
      ds_read_u16 v34, v20 offset:6
      ds_read_i8 v35, v20 offset:3
      ds_read_u16_d16_hi v37, v20
      v_subrev_u32 v21, 16, v20
      ds_read_u8 v36, v21 offset:23
      s_waitcnt lgkmcnt(0)"""
    bench = Snippets({"lds": body}, arch, lds=1024)
    rng = np.random.default_rng(2)
    data = rng.integers(0, 1 << 32, (4, LANES), np.uint32)
    got = bench.run("lds", data)
    for lane in range(LANES):
        words = [int(data[i][lane]) for i in range(4)]
        assert [int(got[i][lane]) for i in range(4)] == [words[2], words[3], words[1], words[0]]
        assert got[4][lane] == words[1] >> 16
        assert got[5][lane] == ((words[0] >> 24 ^ 0x80) - 0x80) & 0xFFFFFFFF
        assert got[6][lane] == words[1] >> 24  # by an address that is negative in lanes 0 to 3
        assert got[7][lane] == 0x5A5A | (words[0] & 0xFFFF) << 16


@pytest.mark.parametrize("arch", ARCHS)
def test_three_words_of_lds(arch):
    body = """
      v_lshlrev_b32 v20, 2, v0
      ds_write_b128 v20, v[10:13]
      ds_write_b96 v20, v[12:14] offset:4
      ds_read_b96 v[30:32], v20
      ds_read_b32 v33, v20 offset:12
      s_waitcnt lgkmcnt(0)"""
    data = np.random.default_rng(3).integers(0, 1 << 32, (5, LANES), np.uint32)
    got = Snippets({"three": body}, arch, lds=1024).run("three", data)
    assert (got[:4] == data[[0, 2, 3, 4]]).all()


@pytest.mark.parametrize("arch", ARCHS)
def test_parts_of_lds_words(arch):
    body = """
      ds_write_b32 v0, v10
      ds_write_b8 v0, v11 offset:1
      ds_write_b16 v0, v12 offset:2
      ds_read_b32 v30, v0
      s_waitcnt lgkmcnt(0)"""
    data = np.random.default_rng(6).integers(0, 1 << 32, (3, LANES), np.uint32)
    got = Snippets({"parts": body}, arch, lds=256).run("parts", data)[0]
    assert (got == (data[0] & 0xFF | (data[1] & 0xFF) << 8 | data[2] << 16)).all()


GLOBAL = """
  s_load_dwordx4 s[4:7], s[0:1], 0x0
  s_load_dwordx4 s[8:11], s[0:1], 0x10
  v_lshlrev_b32 v1, 4, v0
  v_lshlrev_b32 v2, 2, v0
  s_waitcnt lgkmcnt(0)
  v_mov_b32 v4, s4
  v_mov_b32 v5, s5
  v_add_co_u32 v4, vcc, v4, v1
  v_addc_co_u32 v5, vcc, 0, v5, vcc
  global_load_dwordx4 v[10:13], v[4:5], off
  global_load_sbyte v14, v[4:5], off offset:5
  global_load_ushort v15, v1, s[4:5] offset:10
  v_mov_b32 v16, 0x1234
  global_load_short_d16_hi v16, v1, s[4:5] offset:2
  s_waitcnt vmcnt(0)
  global_store_dwordx4 v1, v[10:13], s[6:7]
  global_store_dword v2, v14, s[6:7] offset:1024
  global_store_dword v2, v15, s[6:7] offset:1280
  global_store_short_d16_hi v2, v16, s[6:7] offset:1536
  global_store_byte v2, v16, s[6:7] offset:1538
  s_mov_b32 s12, s4
  s_and_b32 s13, s5, 0xffff
  s_movk_i32 s14, 1000
  s_mov_b32 s15, 0x20000
  buffer_load_dwordx4 v[20:23], v1, s[12:15], 0 offen
  v_mov_b32 v30, 1
  v_mov_b32 v31, 0
  global_atomic_add v24, v31, v30, s[6:7] offset:2048 sc0
  s_waitcnt vmcnt(0)
  global_store_dword v2, v24, s[6:7] offset:2304
  global_store_dword v2, v20, s[6:7] offset:2560
  global_store_dword v2, v22, s[6:7] offset:2816
"""


@pytest.mark.parametrize("arch", ARCHS)
def test_global_memory(arch):
    simulator = Simulator(assemble({"copy": GLOBAL}, arch, raw=True), arch, checks=Checks(hazards=False))
    rng = np.random.default_rng(3)
    source = rng.integers(0, 256, 1024).astype(np.uint8)
    out = np.zeros(3072, np.uint8)
    counters = simulator.launch("copy", 1, LANES, [source, out, bytes(32)])
    words = out.view(np.uint32)
    assert (out[:1024] == source).all()
    rows = source.reshape(LANES, 16)
    assert (words[256:320].view(np.int32) == rows[:, 5].view(np.int8)).all()
    assert (words[320:384] == rows[:, 10:12].copy().view(np.uint16)[:, 0]).all()
    expected = rows[:, 2].astype(np.uint32) | rows[:, 3].astype(np.uint32) << 8 | 0x34 << 16
    assert (words[384:448] == expected).all()
    assert words[512] == LANES and sorted(words[576:640]) == list(range(LANES))
    # Raw buffer of 1000 bytes: dwords that do not lie wholly in it read as 0.
    dwords = source.view(np.uint32).reshape(LANES, 4)
    for column, at in ((0, 640), (2, 704)):
        inside = np.arange(LANES) * 16 + 4 * column + 4 <= 1000
        assert (words[at : at + 64] == np.where(inside, dwords[:, column], 0)).all()
    assert counters.bytes_loaded == LANES * (16 + 1 + 2 + 2) + 1000 // 4 * 4
    assert counters.bytes_stored == LANES * (16 + 4 * 2 + 2 + 1 + 4 * 3 + 4)


@pytest.mark.parametrize("arch", ARCHS)
def test_flat_access_reaches_global_memory_only(arch):
    body = """
      v_mov_b32 v20, s4
      v_mov_b32 v21, s5
      v_add_co_u32 v20, vcc, v20, v0
      v_addc_co_u32 v21, vcc, 0, v21, vcc
      flat_load_dword v22, v[20:21] offset:256
      s_waitcnt {}
      v_mov_b32 v30, v22"""
    bodies = {"both": body.format("vmcnt(0) lgkmcnt(0)"), "one": body.format("vmcnt(0)")}
    bodies["null"] = "v_mov_b32 v20, 0\n v_mov_b32 v21, 0\n flat_load_dword v22, v[20:21]"
    bench = Snippets(bodies, arch)
    data = np.random.default_rng(5).integers(0, 1 << 32, (2, LANES), np.uint32)
    assert (bench.run("both", data)[0] == data[1]).all()
    with pytest.raises(WaitFault):
        bench.run("one", data)
    with pytest.raises(MemoryFault):
        bench.run("null", data)


def test_turned_reads():
    """Four numbers of four rows each: of 16 lanes, lane i reads row i / 4 and gets column i."""
    body = """
      ds_write_b64 v21, v[10:11]
      s_waitcnt lgkmcnt(0)
      ds_read_b64_tr_b16 v[30:31], v22 offset:8
      s_waitcnt lgkmcnt(0)"""
    prologue = "v_lshlrev_b32 v21, 1, v0\n v_subrev_u32 v22, 8, v21\n"  # v0: lane * 4
    bench = Snippets({"turned": prologue + body}, "gfx950", lds=1024)
    data = np.random.default_rng(6).integers(0, 1 << 32, (2, LANES), np.uint32)
    got = bench.run("turned", data)
    # [16 lanes][row][column]
    rows = np.ascontiguousarray(data[:2].T).view(np.uint16).reshape(4, 4, 16)
    turned = np.ascontiguousarray(got[:2].T).view(np.uint16).reshape(4, 16, 4)
    assert (turned == rows.transpose(0, 2, 1)).all()
    refused = Snippets({"part": "s_mov_b64 exec, 3\n ds_read_b64_tr_b16 v[30:31], v0"}, "gfx950", lds=1024)
    with pytest.raises(UnsupportedError):
        refused.run("part", data)


@pytest.mark.parametrize("arch", ARCHS)
def test_loads_into_lds_land_when_they_are_waited_for(arch):
    body = """
      v_lshlrev_b32 v20, 2, v0
      ds_write_b32 v0, v10 offset:256
      s_movk_i32 m0, 0x100
      s_waitcnt lgkmcnt(0)
      s_mov_b64 s[20:21], s[4:5]
      global_load_lds_dword v0, s[20:21] offset:256
      ds_read_b32 v30, v0 offset:512
      s_waitcnt lgkmcnt(0)
      s_waitcnt vmcnt(0)
      ds_read_b32 v31, v0 offset:512
      s_waitcnt lgkmcnt(0)"""
    bench = Snippets({"direct": body}, arch, lds=1024, checks=Checks(uninitialised_lds=False))
    data = np.random.default_rng(4).integers(0, 1 << 32, (2, LANES), np.uint32)
    got = bench.run("direct", data)
    assert (got[0] != data[1]).any() and (got[1] == data[1]).all()
