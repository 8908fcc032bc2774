"""Every fault that the simulator claims to find, planted; LDS races are in test_races.py."""

import numpy as np
import pytest

from simulator import (
    Checks,
    DeadlockFault,
    LdsFault,
    MemoryFault,
    Simulator,
    UninitialisedFault,
    UnsupportedError,
    WaitFault,
)
from simulator.tests.harness import ARCHS, LANES, Snippets, assemble, launch, needs_clang

pytestmark = [needs_clang, pytest.mark.parametrize("arch", ARCHS)]


def run(body: str, arch: str, lds: int = 0, checks: Checks | None = None, scalars=()) -> np.ndarray:
    return Snippets({"planted": body}, arch, lds, checks).run("planted", scalars=scalars)


def fails(kind, body: str, arch: str, *mentions: str, **options) -> None:
    with pytest.raises(kind) as caught:
        run(body, arch, **options)
    text = str(caught.value)
    assert "kernel planted, workgroup (0, 0, 0), wave 0, 0x" in text
    for each in mentions:
        assert each in text


def test_vector_load_not_waited_for(arch):
    fails(WaitFault, "global_load_dword v20, v0, s[4:5]\n v_mov_b32 v30, v20", arch, "v20", "`v_mov_b32_e32 v30, v20`")


def test_a_wait_covers_only_the_older_loads(arch):
    loads = "global_load_dword v20, v0, s[4:5]\n global_load_dwordx2 v[22:23], v0, s[4:5]\n s_waitcnt vmcnt(1)\n"
    run(loads + "v_mov_b32 v30, v20", arch)
    fails(WaitFault, loads + "v_mov_b32 v30, v23", arch, "v23")


def test_a_pending_register_may_not_be_overwritten(arch):
    fails(WaitFault, "global_load_dword v20, v0, s[4:5]\n v_mov_b32 v20, 0", arch, "v20")


def test_scalar_loads_come_back_in_any_order(arch):
    loads = (
        "s_load_dword s20, s[0:1], 0x10\n s_load_dword s21, s[0:1], 0x14\n s_waitcnt lgkmcnt({})\n s_mov_b32 s22, s20"
    )
    run(loads.format(0), arch)
    fails(WaitFault, loads.format(1), arch, "s20")


def test_lds_loads_come_back_in_order(arch):
    loads = "ds_write_b32 v0, v0\n ds_read_b32 v20, v0\n ds_read_b32 v21, v0\n s_waitcnt lgkmcnt(1)\n"
    run(loads + "v_mov_b32 v30, v20", arch, lds=256)
    fails(WaitFault, loads + "v_mov_b32 v30, v21", arch, "v21", lds=256)
    # A scalar load among them may have been what the counter saw.
    mixed = (
        "ds_write_b32 v0, v0\n ds_read_b32 v20, v0\n s_load_dword s20, s[0:1], 0x10\n"
        " s_waitcnt lgkmcnt(1)\n v_mov_b32 v30, v20"
    )
    fails(WaitFault, mixed, arch, "v20", lds=256)


def test_missing_waits_can_be_forgiven(arch):
    body = "v_mov_b32 v21, 7\n ds_write_b32 v0, v21\n ds_read_b32 v20, v0\n v_mov_b32 v30, v20"
    fails(WaitFault, body, arch, "v20", lds=256)
    assert (run(body, arch, lds=256, checks=Checks(waits=False))[0] == 7).all()


def test_global_memory_beyond_a_buffer(arch):
    one_before = "s_sub_u32 s4, s4, 1\n s_subb_u32 s5, s5, 0\n global_load_ubyte v20, v0, s[4:5]"
    fails(MemoryFault, one_before, arch, "lane 0", "1 bytes before argument 0")
    # Lane 63's four bytes end one byte behind the output's 2048.
    beyond = "global_store_dword v0, v10, s[6:7] offset:1793"
    fails(MemoryFault, beyond, arch, "lane 63: store of 4 bytes", "argument 1")
    run("s_mov_b64 exec, 1\n" + beyond, arch)


def test_the_arguments_are_read_only(arch):
    fails(MemoryFault, "global_store_dword v0, v10, s[0:1]", arch, "read-only")


def test_misaligned_access_where_it_is_checked(arch):
    body = "global_load_dword v20, v0, s[4:5] offset:2\n s_waitcnt vmcnt(0)"
    run(body, arch)
    fails(MemoryFault, body, arch, "lane 0", "not a multiple of 4", checks=Checks(alignment=True))
    fails(MemoryFault, "global_atomic_add v0, v10, s[6:7] offset:2", arch, "not a multiple of 4")


def test_lds_bounds(arch):
    fails(LdsFault, "ds_write_b64 v0, v[10:11]", arch, "lane 63: LDS bytes 252 to +8 of 256", lds=256)


def test_lds_that_was_never_written(arch):
    body = "s_mov_b64 exec, {}\n ds_write_b32 v0, v10\n s_mov_b64 exec, -1\n ds_read_b32 v30, v0"
    run(body.format(-1), arch, lds=256)
    fails(LdsFault, body.format(63), arch, "lane 6: LDS bytes 24 to +4 were never written", lds=256)
    run(body.format(63), arch, lds=256, checks=Checks(uninitialised_lds=False))


def test_registers_that_were_never_written(arch):
    strict = Checks(uninitialised_registers=True)
    run("v_mov_b32 v30, v10", arch, checks=strict)
    fails(UninitialisedFault, "v_mov_b32 v30, v50", arch, "v50", checks=strict)
    fails(UninitialisedFault, "s_mov_b32 s20, s60", arch, "s60", checks=strict)
    # Without the check they hold something else in every run.
    bench = Snippets({"garbage": "v_mov_b32 v30, v50"}, arch)
    assert (bench.run("garbage", seed=1)[0] != bench.run("garbage", seed=2)[0]).any()


def test_a_barrier_that_one_wave_misses(arch):
    # Wave 1 waits for a flag that wave 0 would set behind the barrier.
    body = """
      v_readfirstlane_b32 s20, v0
      v_mov_b32 v1, 0
      v_mov_b32 v2, 0
      ds_write_b32 v1, v2
      s_waitcnt lgkmcnt(0)
      s_cmp_lg_u32 s20, 0
      s_cbranch_scc1 spin
      s_barrier
      ds_write_b32 v1, v0
      s_endpgm
    spin:
      s_sleep 1
      ds_read_b32 v3, v1
      s_waitcnt lgkmcnt(0)
      v_readfirstlane_b32 s21, v3
      s_cmp_eq_u32 s21, 0
      s_cbranch_scc1 spin
      s_barrier"""
    with pytest.raises(DeadlockFault) as caught:
        launch(body, arch, 128)
    text = str(caught.value)
    assert "wave 0: at a barrier" in text and "wave 1: at 0x" in text


def test_a_spin_without_sleep_ends_too(arch):
    with pytest.raises(DeadlockFault):
        launch("spin:\n s_branch spin", arch, 64, max_idle=10_000)


def test_a_loop_that_works_is_no_deadlock(arch):
    body = """
      s_movk_i32 s20, 2000
    loop:
      s_sub_u32 s20, s20, 1
      s_cmp_lg_u32 s20, 0
      s_cbranch_scc1 loop"""
    launch(body, arch, 256, max_idle=100_000)


def test_what_is_not_known_is_refused(arch):
    for body, mention in {
        "scratch_load_dword v20, v0, off": "scratch_load_dword",
        "v_cvt_f32_fp8_dpp v30, v10 row_shr:1 row_mask:0xf bank_mask:0xf": "v_cvt_f32_fp8_dpp",
        "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 4), 3": "FP16_OVFL",
        "v_mov_b32 v30, v90": "beyond the kernel's",
        "v_mqsad_pk_u16_u8 v[30:31], v[10:11], v12, v[14:15]": "v_mqsad_pk_u16_u8",
    }.items():
        with pytest.raises(UnsupportedError) as caught:
            run(body, arch)
        assert mention in str(caught.value) and "in planted" in str(caught.value)
    if arch == "gfx942":
        with pytest.raises(UnsupportedError):
            Simulator(assemble({"other": "s_nop 0"}, "gfx950", raw=True), arch)


def test_inactive_lanes_touch_nothing(arch):
    out = run("s_mov_b64 exec, 0\n global_store_dword v0, v10, s[0:1]\n v_mov_b32 v30, 1", arch)
    assert (out[0] == 0x5A5A5A5A).all() and out.shape[1] == LANES
