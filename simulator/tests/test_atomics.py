"""Atomic additions to global memory against AMD's pseudocode, lane after lane."""

import numpy as np
import pytest

from simulator import MemoryFault
from simulator.memory import atomics
from simulator.tests.harness import ARCHS, LANES, SEED, Snippets, needs_clang, patterns
from simulator.tests.pseudocode import Value, assert_same, execute

pytestmark = needs_clang

KINDS = {"add": "int", "add_f32": "f32", "pk_add_f16": "f16", "pk_add_bf16": "f32"}
ACTIVE = 0xFFFF_F0FF_FFFF_5FFF


def body(name: str) -> str:
    """Adds each lane's v10 to a dword that two lanes share, once with the old value and once without; then loads."""
    text = "v_and_b32 v20, -8, v0\n v_lshrrev_b32 v20, 1, v20\n"
    text += "global_store_dword v0, v11, s[6:7]\n s_waitcnt vmcnt(0)\n s_mov_b64 exec, s[8:9]\n"
    text += f"global_atomic_{name} v30, v20, v10, s[6:7] sc0\n s_waitcnt vmcnt(0)\n"
    text += f"global_atomic_{name} v20, v10, s[6:7] offset:128\n s_waitcnt vmcnt(0)\n s_mov_b64 exec, -1\n"
    return text + "global_load_dword v31, v0, s[6:7]\n s_waitcnt vmcnt(0)"


def test_every_atomic_is_here():
    assert set(KINDS) == set(atomics.SUMS)


@pytest.mark.parametrize("arch", ARCHS)
def test_against_the_pseudocode(arch):
    snippets = Snippets({name: body(name) for name in KINDS}, arch)
    rng = np.random.default_rng(SEED)
    for name, kind in KINDS.items():
        given, start = (patterns(kind, rng) for _ in range(2))
        result = snippets.run(name, [given, start], [ACTIVE & 0xFFFFFFFF, ACTIVE >> 32])
        memory = [Value("b", 32, int(each)) for each in start]
        for first in (0, 32):  # dwords 0 to 31, then 32 to 63
            for lane in range(LANES):
                if not ACTIVE >> lane & 1:
                    continue
                place = first + lane // 2
                before = memory[place]
                memory[place] = Value("b", 32, before.bits, before.vague)  # a copy, which is changed
                at = Value("u", 32, place)
                names = {"MEM": memory, "ADDR": at, "CalcGlobalAddr": lambda *_, at=at: at}
                execute(f"global_atomic_{name}", names | {"DATA": Value("b", 32, int(given[lane]))})
                if first == 0:
                    assert_same(int(result[0][lane]), before, f"{name}, lane {lane}: what was there")
        for lane in range(LANES):
            assert_same(int(result[1][lane]), memory[lane], f"{name}, dword {lane}")
        assert (result[0][[lane for lane in range(LANES) if not ACTIVE >> lane & 1]] == 0x5A5A5A5A).all()


@pytest.mark.parametrize("arch", ARCHS)
def test_they_are_aligned(arch):
    odd = Snippets({"odd": "v_add_u32 v20, 2, v0\n global_atomic_pk_add_f16 v20, v10, s[6:7]"}, arch)
    with pytest.raises(MemoryFault, match="not a multiple of 4"):
        odd.run("odd")
