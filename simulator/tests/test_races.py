"""LDS races, planted: accesses of two waves that nothing orders are found under every schedule. Flags are quiet."""

import functools
import re

import numpy as np
import pytest

from simulator import Checks, LdsFault, RaceFault, Simulator
from simulator.tests.harness import ARCHS, assemble, launch, needs_clang

pytestmark = [needs_clang, pytest.mark.parametrize("arch", ARCHS)]
SEEDS = range(5)

# The word at 256, and data from 0 on, begin as zeros that all waves know; then {first} of wave 0 and {second} of the
# others.
PARTS = """
  s_load_dwordx2 s[4:5], s[0:1], 0x0
  v_readfirstlane_b32 s20, v0
  s_lshr_b32 s20, s20, 6
  v_lshlrev_b32 v1, 2, v0
  v_mov_b32 v4, 0
  v_mov_b32 v5, 0
  v_mov_b32 v8, 7
  v_mov_b32 v9, 7
  v_mov_b32 v10, 7
  v_mov_b32 v11, 7
  s_mov_b32 m0, 0
  s_movk_i32 s21, 4
  s_cmp_lg_u32 s20, 0
  s_cbranch_scc1 ready
  ds_write_b32 v4, v5 offset:256
  ds_write_b32 v4, v5 offset:260
  ds_write_b64 v4, v[4:5] offset:264
ready:
  s_waitcnt lgkmcnt(0)
  s_barrier
  s_cmp_lg_u32 s20, 0
  s_cbranch_scc1 other
  {first}
  s_waitcnt vmcnt(0) lgkmcnt(0)
  s_endpgm
other:
  {second}
  s_waitcnt vmcnt(0) lgkmcnt(0)
"""
ONE_LANE, ALL_LANES = "s_mov_b64 exec, 1\n", "s_mov_b64 exec, -1\n"
LOOK = "ds_read_b32 v6, v4 offset:256\n s_waitcnt lgkmcnt(0)\n"
SET = "ds_write_b32 v4, v8 offset:256\n"
CHANGE = LOOK + "v_lshl_add_u32 v6, v6, 1, v0\n ds_write_b32 v4, v6 offset:256\n s_waitcnt lgkmcnt(0)\n"
REPEATED = "again{0}:\n {1}\n s_sub_u32 s21, s21, 1\n s_cmp_lg_u32 s21, 0\n s_cbranch_scc1 again{0}\n"
POLL = "poll:\n s_sleep 1\n" + LOOK + "v_readfirstlane_b32 s22, v6\n s_cmp_eq_u32 s22, 0\n s_cbranch_scc1 poll\n"
TO_LDS = "s_movk_i32 m0, 0x100\n global_load_lds_dword v4, s[4:5]\n"

# What wave 0 does, and what wave 1 does, with nothing that orders them.
RACES = {
    "both read, change and write": (CHANGE, CHANGE),
    "so many times": (REPEATED.format(0, CHANGE), REPEATED.format(1, CHANGE)),
    "one changes, one reads": (CHANGE, LOOK),
    "both set, to different values": (SET, "ds_write_b32 v4, v0 offset:256"),
    "both set with one lane": (ONE_LANE + SET, ONE_LANE + "ds_write_b32 v4, v0 offset:256"),
    "one lane sets, all read": (ONE_LANE + SET, LOOK),
    "one lane sets, one reads": (ONE_LANE + SET, ONE_LANE + LOOK),
    "one sets, the other reads many times": (SET, REPEATED.format(1, LOOK)),
    "one sets many times": (REPEATED.format(0, "v_add_u32 v8, 1, v8\n" + SET), LOOK),
    "a wider read": (SET, "ds_read_b64 v[6:7], v4 offset:256"),
    "a read of two words": (SET, "ds_read2_b32 v[6:7], v4 offset0:64 offset1:65"),
    "a half is read": (SET, "ds_read_u16 v6, v4 offset:258"),
    "a wider write, set before or behind": ("ds_write_b64 v4, v[8:9] offset:256", "ds_write_b32 v4, v0 offset:260"),
    "a write of four words": ("ds_write_b128 v4, v[8:11] offset:256", "ds_write_b32 v4, v0 offset:260"),
    "a wider write of what is read": ("ds_write_b128 v4, v[8:11] offset:256", "ds_read_b32 v6, v4 offset:264"),
    "two words written, one read": ("ds_write2_b32 v4, v8, v9 offset0:65 offset1:64", LOOK),
    "a wider write of what is looked at": ("ds_write_b64 v4, v[8:9] offset:256", POLL),
    "a byte of what is looked at": ("ds_write_b8 v4, v8 offset:256", POLL),
    "a half of what is set": ("ds_write_b16 v4, v8 offset:258", "ds_write_b32 v4, v0 offset:256"),
    "a byte of what is read": ("ds_write_b8 v4, v8 offset:257", LOOK),
    "a load to LDS of what is read": (TO_LDS, LOOK),
    "a load to LDS of what is looked at": (ONE_LANE + TO_LDS + "s_waitcnt vmcnt(0)\n", POLL),
}  # fmt: skip


# The same with what orders them.
ORDERED = {
    "a barrier": (CHANGE + "s_barrier", "s_barrier\n" + CHANGE),
    "the same value": (SET, SET),
    "the same value in part": (SET, "ds_write_b8 v4, v8 offset:256"),
    "other words": (SET, CHANGE.replace("256", "260")),
    "a flag": (SET, POLL),
    "a flag that one lane sets": (ONE_LANE + SET, POLL),
    "a flag that one lane looks at": (SET, ONE_LANE + POLL),
    "a flag that is set back": (SET, POLL + "ds_write_b32 v4, v5 offset:256\n"),
    "a flag that is changed": (SET, POLL + CHANGE),
    "data behind a flag": (CHANGE.replace("256", "260") + SET, POLL + CHANGE.replace("256", "260")),
}
PLANTED = RACES | {f"{name}, the other way round": (b, a) for name, (a, b) in RACES.items()} | ORDERED
LABEL = re.compile(r"\b(poll|again\d)\b")


@functools.cache
def planted(arch: str) -> Simulator:
    """All of them in one code object, whose labels are made different."""
    bodies = {}
    for number, (first, second) in enumerate(PLANTED.values()):
        body = PARTS.format(first=LABEL.sub(r"\1_of_first", first), second=LABEL.sub(r"\1_of_second", second))
        bodies[f"case{number}"] = re.sub(r"\b(ready|other|\w+_of_\w+)\b", rf"\1_{number}", body)
    return Simulator(assemble(bodies, arch, 512, raw=True), arch, checks=Checks(hazards=False))


def run(arch: str, name: str, seed: int, threads: int = 128) -> None:
    out = np.full(1024, 5, np.uint32)
    planted(arch).launch(f"case{list(PLANTED).index(name)}", 1, threads, [out, out, bytes(32)], seed=seed)


@pytest.mark.parametrize("name", RACES)
def test_accesses_without_order(arch, name):
    for seed in SEEDS:
        for threads, case in ((128, name), (192, f"{name}, the other way round")):
            with pytest.raises(RaceFault):
                run(arch, case, seed, threads)


@pytest.mark.parametrize("name", ORDERED)
def test_accesses_with_order(arch, name):
    for seed in SEEDS:
        run(arch, name, seed)


def test_a_flag_that_two_waves_change(arch):
    """Found unless the schedule has the later one's look tell it of the earlier one's change."""
    found = 0
    for seed in range(20):
        try:
            run(arch, "a flag that is changed", seed, 192)
        except RaceFault:
            found += 1
    assert found > 0


# Each wave writes its lanes' words and reads those of the other wave.
EXCHANGE = """
  v_lshlrev_b32 v1, 2, v0
  v_xor_b32 v2, 0x100, v1
  ds_write_b32 v1, v0
  {between}
  ds_read_b32 v3, v2
  s_waitcnt lgkmcnt(0)
"""


def test_lds_race(arch):
    launch(EXCHANGE.format(between="s_waitcnt lgkmcnt(0)\n s_barrier"), arch, 128, lds=512)
    for seed in range(3):
        with pytest.raises((RaceFault, LdsFault)) as caught:
            launch(EXCHANGE.format(between="s_waitcnt lgkmcnt(0)"), arch, 128, lds=512, seed=seed)
        assert "wave" in str(caught.value)
    # Even where the schedule happens to have the other wave's words there.
    with pytest.raises(RaceFault, match="the write of wave|a read of wave"):
        launch(
            EXCHANGE.format(between="s_waitcnt lgkmcnt(0)"), arch, 128, lds=512,
            checks=Checks(uninitialised_lds=False, hazards=False),
        )  # fmt: skip


def test_equal_values_do_not_race(arch):
    clear = "v_mov_b32 v1, 0\n v_mov_b32 v2, 0\n v_mov_b32 v3, 0\n ds_write_b64 v1, v[2:3]"
    launch(clear, arch, 128)


FLAG = """
  v_mov_b32 v4, 0
  v_mov_b32 v5, 0
  v_readfirstlane_b32 s20, v0
  v_and_b32 v1, 63, v0
  v_lshlrev_b32 v1, 2, v1
  ds_write_b32 v4, v5 offset:256
  s_waitcnt lgkmcnt(0)
  s_barrier
  s_cmp_lg_u32 s20, 0
  s_cbranch_scc1 consumer
  ds_write_b32 v1, v0
  v_mov_b32 v5, 1
  s_waitcnt lgkmcnt(0)
  {publish}
  s_endpgm
consumer:
  s_sleep 1
  ds_read_b32 v3, v4 offset:256
  s_waitcnt lgkmcnt(0)
  v_readfirstlane_b32 s21, v3
  s_cmp_eq_u32 s21, 0
  s_cbranch_scc1 consumer
  ds_read_b32 v6, v1
  s_waitcnt lgkmcnt(0)
  {after}
"""


def test_a_flag_orders_waves(arch):
    published = "ds_write_b32 v4, v5 offset:256"
    for seed in range(5):
        launch(FLAG.format(publish=published, after=""), arch, 128, lds=512, seed=seed)
    # Words written behind the flag are not covered by it.
    late = published + "\n ds_write_b32 v1, v0"
    found = 0
    for seed in range(5):
        try:
            launch(FLAG.format(publish=late, after=""), arch, 128, lds=512, seed=seed)
        except RaceFault:
            found += 1
    assert found == 5


# Wave 0 reads a slot and frees it; wave 1 waits for that and fills it anew.
SLOT = """
  v_readfirstlane_b32 s20, v0
  v_and_b32 v1, 63, v0
  v_lshlrev_b32 v1, 2, v1
  v_mov_b32 v4, 0
  v_mov_b32 v5, 0
  s_cmp_lg_u32 s20, 0
  s_cbranch_scc1 begin
  ds_write_b32 v1, v0
  ds_write_b32 v4, v5 offset:256
  s_waitcnt lgkmcnt(0)
begin:
  s_barrier
  v_mov_b32 v5, 1
  s_cmp_lg_u32 s20, 0
  s_cbranch_scc1 producer
  {consume}
  s_waitcnt lgkmcnt(0)
  s_endpgm
producer:
  s_sleep 1
  ds_read_b32 v3, v4 offset:256
  s_waitcnt lgkmcnt(0)
  v_readfirstlane_b32 s21, v3
  s_cmp_eq_u32 s21, 0
  s_cbranch_scc1 producer
  ds_write_b32 v1, v0
  s_waitcnt lgkmcnt(0)
"""
READ, FREE = "ds_read_b32 v6, v1\n", "ds_write_b32 v4, v5 offset:256\n"


@pytest.mark.parametrize("seed", range(5))
def test_a_slot_freed_before_it_is_read(arch, seed):
    launch(SLOT.format(consume=READ + "s_waitcnt lgkmcnt(0)\n" + FREE), arch, 128, lds=512, seed=seed)
    # One wave's LDS operations execute in order: the flag cannot be there before the read.
    launch(SLOT.format(consume=READ + FREE), arch, 128, lds=512, seed=seed)
    with pytest.raises(RaceFault):
        launch(SLOT.format(consume=FREE + READ), arch, 128, lds=512, seed=seed)


# Wave 0 announces what wave 1 reads.
ANNOUNCED = """
  s_load_dwordx2 s[4:5], s[0:1], 0x0
  v_readfirstlane_b32 s20, v0
  v_and_b32 v1, 63, v0
  v_lshlrev_b32 v1, 2, v1
  v_mov_b32 v4, 0
  v_mov_b32 v5, 0
  s_mov_b32 m0, 0
  ds_write_b32 v4, v5 offset:256
  ds_write_b32 v1, v5
  s_waitcnt lgkmcnt(0)
  s_barrier
  v_mov_b32 v5, 1
  s_cmp_lg_u32 s20, 0
  s_cbranch_scc1 consumer
  {produce}
  ds_write_b32 v4, v5 offset:256
  s_waitcnt vmcnt(0) lgkmcnt(0)
  s_endpgm
consumer:
  s_sleep 1
  {before}
  ds_read_b32 v3, v4 offset:256
  s_waitcnt lgkmcnt(0)
  v_readfirstlane_b32 s21, v3
  s_cmp_eq_u32 s21, 0
  s_cbranch_scc1 consumer
  {behind}
"""
TO_LDS = "global_load_lds_dword v1, s[4:5]\n"


@pytest.mark.parametrize("seed", range(5))
def test_data_that_is_not_there_when_its_flag_is(arch, seed):
    def announced(produce, before="", behind=READ):
        body = ANNOUNCED.format(produce=produce, before=before, behind=behind)
        launch(body, arch, 128, lds=512, seed=seed)

    announced("ds_write_b32 v1, v0")
    announced(TO_LDS + "s_waitcnt vmcnt(0)")
    with pytest.raises(RaceFault):
        announced(TO_LDS)
    # Read ahead of the look that finds the flag set.
    with pytest.raises(RaceFault):
        announced("ds_write_b32 v1, v0", before=READ, behind="")


@pytest.mark.parametrize("seed", range(3))
def test_a_barrier_does_not_wait_for_lds(arch, seed):
    for missing in ("", "ds_read_b32 v4, v1\n s_waitcnt lgkmcnt(1)"):
        with pytest.raises(RaceFault):
            launch(
                EXCHANGE.format(between=missing + "\n s_barrier"), arch, 128, lds=512, seed=seed,
                checks=Checks(uninitialised_lds=False, hazards=False),
            )  # fmt: skip
    launch(
        EXCHANGE.format(between="ds_read_b32 v4, v1\n s_waitcnt lgkmcnt(0)\n s_barrier"), arch, 128, lds=512, seed=seed
    )
