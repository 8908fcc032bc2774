"""v_cvt_scalef32_pk_*: AMD's pseudocode, executed, for the bits that they read and write; what it only names from the
formats' definitions, in exact fractions."""

import functools
import math
from fractions import Fraction

import numpy as np
import pytest

from simulator import Simulator, UnsupportedError
from simulator.isa import scaled
from simulator.schedule.program import decode
from simulator.tests.harness import LANES, SEED, Snippets, compile_hip, needs_clang, patterns
from simulator.tests.pseudocode import Value, assert_same, encode, execute, pseudocode

pytestmark = needs_clang

# (bits of the exponent, of the mantissa, bias, largest number, code of what is beyond, of NaN)
NARROW = {"fp8": (4, 3, 7, 448, 0x7F, 0x7F), "bf8": (5, 2, 15, 57344, 0x7C, 0x7E), "fp4": (2, 1, 1, 6, 7, 7)}
WIDE = ("f32", "f16", "bf16")


def value_of(code: int, narrow: str) -> Fraction | float:
    """Of a code without its sign."""
    _, mantissa_bits, bias, largest, beyond, nan = NARROW[narrow]
    exponent, mantissa = code >> mantissa_bits, code & (1 << mantissa_bits) - 1
    significand = mantissa if exponent == 0 else mantissa + (1 << mantissa_bits)
    number = Fraction(significand) * Fraction(2) ** (max(exponent, 1) - bias - mantissa_bits)
    if number <= largest:
        return number
    return math.inf if code == beyond != nan else math.nan


@functools.cache
def numbers_of(narrow: str) -> list[Fraction]:
    """Those of the finite codes, in order."""
    codes = range(1 << sum(NARROW[narrow][:2]))
    return [value for code in codes if isinstance(value := value_of(code, narrow), Fraction)]


def to_narrow(narrow: str, clamp: bool, value: Value, scale: Value) -> Value:
    exponent_bits, mantissa_bits, _, _, beyond, nan = NARROW[narrow]
    width = exponent_bits + mantissa_bits + 1
    sign = value.bits >> value.width - 1 << width - 1
    numbers, number = numbers_of(narrow), value.number
    if math.isnan(number) or scale.bits == 255:
        return Value("b", width, sign | nan)
    largest = len(numbers) - 1
    over = largest if clamp else beyond
    if math.isinf(number):
        return Value("b", width, sign | over)
    exact = abs(Fraction(number)) / Fraction(2) ** (scale.bits - 127)
    step = numbers[-1] - numbers[-2]
    # The number behind the largest one would have the next code: the middle goes to the even one of the two.
    if exact > numbers[-1] + step / 2 or (exact == numbers[-1] + step / 2 and largest % 2):
        return Value("b", width, sign | over)
    code = min(range(len(numbers)), key=lambda each: (abs(numbers[each] - exact), each % 2))
    return Value("b", width, sign | code)


def to_wide(narrow: str, wide: str, code: Value, scale: Value) -> Value:
    width = sum(NARROW[narrow][:2])
    magnitude, sign = value_of(code.bits & (1 << width) - 1, narrow), -1 if code.bits >> width & 1 else 1
    if scale.bits == 255 or magnitude != magnitude:
        return encode(math.nan, wide)
    if magnitude == 0 or magnitude == math.inf:
        return encode(math.copysign(float(magnitude), sign), wide)
    return encode(sign * magnitude * Fraction(2) ** (scale.bits - 127), wide)


def functions(clamp: bool) -> dict:
    """What the pseudocode names, by its names."""
    found = {}
    for narrow in NARROW:
        for wide in WIDE:
            found[f"{wide}_to_{narrow}_scale"] = functools.partial(to_narrow, narrow, clamp)
            found[f"{narrow}_to_{wide}_scale"] = functools.partial(to_wide, narrow, wide)
    return found


def parts(name: str) -> tuple[str, str]:
    """(result, source)."""
    return tuple(name.removeprefix("v_cvt_scalef32_pk_").split("_"))


def selections(name: str) -> list[tuple[str, int]]:
    """(text, OPSEL's bits) of every place that a source or a destination can have."""
    result, source = parts(name)
    operands = 4 if source == "f32" or result == "fp4" else 3
    bits = {"fp4": [2, 3], "fp8": [3], "bf8": [3]}[result] if result in NARROW else [0, 1] if source == "fp4" else [0]
    found = []
    for choice in range(1 << len(bits)):
        opsel = sum((choice >> i & 1) << bit for i, bit in enumerate(bits))
        listed = [opsel >> i & 1 for i in range(operands - 1)] + [opsel >> 3]
        found.append((f"op_sel:{listed}".replace(" ", "") if opsel else "", opsel))
    return found


CASES = {
    f"{name}_{opsel}_{clamp}": (name, text, opsel, clamp)
    for name in scaled.NAMES
    for text, opsel in selections(name)
    for clamp in ([False, True] if parts(name)[0] in NARROW else [False])
}


@functools.cache
def snippets() -> Snippets:
    """The sources in v10 and v12, the scale in v14, the old destination in v20 and v21, EXEC in s[10:11]."""
    bodies = {}
    for key, (name, text, _, clamp) in CASES.items():
        result, source = parts(name)
        target = "v[30:31]" if result == "f32" else "v30"
        sources = "v10, v12, v14" if source == "f32" else "v10, v14"
        bodies[key] = (
            f"v_mov_b32 v30, v20\n v_mov_b32 v31, v21\n s_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), {int(clamp)}\n"
            f"s_mov_b64 exec, s[10:11]\n {name} {target}, {sources} {text}\n"
            "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), 0"
        )
    return Snippets(bodies, "gfx950")


def wide_words(kind: str, rng: np.random.Generator, scale: np.ndarray, largest: int) -> np.ndarray:
    """Half of the lanes as they come, special values among them; half such that the results lie in the range."""
    words = patterns("f16" if kind == "f16" else "f32", rng)
    near = rng.choice([-1.0, 1.0], LANES) * largest * 2.0 ** rng.uniform(-9, 0.2, LANES)
    near[::3] = np.round(near[::3] * 4) / 4  # ties
    near *= np.where(scale < 255, 2.0 ** (scale.astype(np.float64) - 127), 1)
    with np.errstate(over="ignore"):
        single = near.astype(np.float32).view(np.uint32)
        half = near.astype(np.float16).view(np.uint16).astype(np.uint32)
    near_words = {"f32": single, "bf16": single >> 16, "f16": half}[kind]
    if kind != "f32":
        near_words = near_words | np.roll(near_words, 1) << np.uint32(16)
    return np.where(rng.integers(0, 2, LANES) == 1, near_words, words).astype(np.uint32)


def check(key: str, rng: np.random.Generator, exponents: np.ndarray, words: np.ndarray | None, active: int) -> None:
    name, _, opsel, clamp = CASES[key]
    result, source = parts(name)
    # Neither the scale's sign nor its mantissa counts.
    scale = exponents.astype(np.uint32) << np.uint32(23) | rng.integers(0, 1 << 32, LANES, np.uint32) & 0x807FFFFF
    inputs = [np.zeros(LANES, np.uint32) for _ in range(12)]
    for at in (0, 2):
        inputs[at] = words if words is not None else wide_words(source, rng, exponents, NARROW[result][3])
    inputs[4], inputs[10], inputs[11] = scale, *rng.integers(0, 1 << 32, (2, LANES), np.uint32)
    got = snippets().run(key, inputs, [0, 0, active & 0xFFFFFFFF, active >> 32])
    for lane in range(LANES):
        old = int(inputs[10][lane]) | int(inputs[11][lane]) << 32
        bits = int(got[0][lane]) | int(got[1][lane]) << 32
        if not active >> lane & 1:
            assert bits == old, "an inactive lane"
            continue
        operands = [int(inputs[at][lane]) for at in ((0, 2, 4) if source == "f32" else (0, 4))]
        registers = [[] for _ in range(LANES)]
        registers[lane] = [Value("b", 32, operands[0]), Value("b", 32, old)]
        names = {f"S{i}": Value("b", 32, each) for i, each in enumerate(operands)} | functions(clamp)
        names |= {"OPSEL": Value("b", 4, opsel), "VGPR": registers, "laneId": Value("u", 32, lane)}
        names |= {"SRC0": Value("u", 32, 0), "VDST": Value("u", 32, 1), "D0": Value("b", 64, old)}
        after = execute(name, names)
        expected = registers[lane][1] if result in NARROW else after["D0"]
        width = 64 if result == "f32" else 32
        what = f"{key}, lane {lane}, of {[hex(each) for each in operands]}, seed {SEED}"
        assert_same(bits & (1 << width) - 1, expected.part(0, width), what)
        assert bits >> width == old >> width, what


def test_all_of_the_manuals_forms_are_there():
    assert all(pseudocode(name) for name in scaled.NAMES) and len(scaled.NAMES) == 18


@pytest.mark.parametrize("key", CASES)
def test_against_the_pseudocode(key):
    rng = np.random.default_rng([SEED, list(CASES).index(key)])
    source = parts(CASES[key][0])[1]
    # Every scale, some of them twice; the last time with some lanes switched off.
    for start in range(0, 320, LANES):
        exponents = np.arange(start, start + LANES) % 256
        words = None
        if source in NARROW:  # every code; of FP8 in two launches of four
            words = np.arange(LANES * 4, dtype=np.uint8).view(np.uint32) ^ np.uint32(start)
            words = rng.permutation(words)
        active = int(rng.integers(0, 1 << 63)) if start == 256 else (1 << 64) - 1
        check(key, rng, exponents, words, active)
    if parts(CASES[key][0])[0] in NARROW:  # scales near 1, where results are neither zero nor the largest
        check(key, rng, rng.integers(120, 135, LANES), None, (1 << 64) - 1)


@pytest.mark.parametrize("scale, exponent", {"1.0": 127, "-4.0": 129, "0": 0, "1": 0, "s12": 140}.items())
def test_scales_that_are_constants(scale, exponent):
    body = f"v_cvt_scalef32_pk_bf16_fp4 v30, v10, {scale} op_sel:[0,1,0]"
    codes = np.arange(LANES, dtype=np.uint32) * 4 << np.uint32(16)
    result = Snippets({"constant": body}, "gfx950").run("constant", [codes], [0, 0, 0, 0, 140 << 23])[0]
    for lane in range(LANES):
        code = lambda at: Value("b", 4, lane * 4 >> at)
        low, high = (to_wide("fp4", "bf16", code(at), Value("u", 8, exponent)) for at in (0, 4))
        assert result[lane] == low.bits | high.bits << 16


REFUSED = {
    "a packed source with a sign": "v_cvt_scalef32_pk_fp4_bf16 v30, -v10, v11",
    "stochastic": "v_cvt_scalef32_sr_pk_fp4_f32 v30, v[10:11], v12, v13",
    "one number": "v_cvt_scalef32_f32_fp8 v30, v10, v11",
    "FP6": "v_cvt_scalef32_pk32_bf16_fp6 v[30:45], v[10:15], v16",
    "half a place": "v_cvt_scalef32_pk_fp8_f32 v30, v10, v11, v12 op_sel:[0,0,1,0]",
    "beyond 16 bits": "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), 1\n v_cvt_scalef32_pk_f16_fp8 v30, v10, v11",
}


@pytest.mark.parametrize("body", REFUSED.values(), ids=REFUSED)
def test_what_is_not_known_is_refused_by_name(body):
    with pytest.raises(UnsupportedError, match="v_cvt_scalef32_"):
        Snippets({"refused": body}, "gfx950").run("refused", [np.full(LANES, 0x7E7E7E7E, np.uint32), 200 << 23])


def test_the_other_chip_has_none():
    with pytest.raises(UnsupportedError, match="v_cvt_scalef32_pk_bf16_fp4 on gfx942"):
        decode("\tv_cvt_scalef32_pk_bf16_fp4 v1, v1, v2  // D2510001 00020501", 0, "gfx942")


# Quantises 32 numbers of each lane to MXFP4 in the order of gpt-oss, and back to bfloat16.
SOURCE = r"""
#include <hip/hip_runtime.h>
typedef __bf16 Pair __attribute__((ext_vector_type(2)));

extern "C" __global__ void there_and_back(const float* x, unsigned* codes, Pair* back, float scale) {
#ifdef __gfx950__
    for (int word = 0; word < 4; ++word) {
        const float* v = x + threadIdx.x * 32 + word * 8;
        unsigned packed = 0;
        packed = __builtin_amdgcn_cvt_scalef32_pk_fp4_f32(packed, v[0], v[1], scale, 0);
        packed = __builtin_amdgcn_cvt_scalef32_pk_fp4_f32(packed, v[2], v[3], scale, 1);
        packed = __builtin_amdgcn_cvt_scalef32_pk_fp4_f32(packed, v[4], v[5], scale, 2);
        packed = __builtin_amdgcn_cvt_scalef32_pk_fp4_f32(packed, v[6], v[7], scale, 3);
        codes[threadIdx.x * 4 + word] = packed;
        Pair* out = back + threadIdx.x * 16 + word * 4;
        out[0] = __builtin_amdgcn_cvt_scalef32_pk_bf16_fp4(packed, scale, 0);
        out[1] = __builtin_amdgcn_cvt_scalef32_pk_bf16_fp4(packed, scale, 1);
        out[2] = __builtin_amdgcn_cvt_scalef32_pk_bf16_fp4(packed, scale, 2);
        out[3] = __builtin_amdgcn_cvt_scalef32_pk_bf16_fp4(packed, scale, 3);
    }
#endif
}
"""


def test_a_compiled_kernel_there_and_back(tmp_path):
    """With hazards checked: the compiler's distances are enough."""
    x = (np.random.default_rng(SEED).standard_normal(LANES * 32) * 3).astype(np.float32)
    codes, back = np.zeros(LANES * 4, np.uint32), np.zeros(LANES * 32, np.uint16)
    simulator = Simulator(compile_hip(SOURCE, tmp_path), "gfx950")
    simulator.launch("there_and_back", 1, LANES, [x, codes, back, 0.5])
    nibbles = np.stack([codes.view(np.uint8) & 15, codes.view(np.uint8) >> 4], axis=1).ravel()
    for number, nibble, bits in zip(x, nibbles, back):
        value = Value("b", 32, int(number.view(np.uint32))).part(0, 32, "f")
        assert nibble == to_narrow("fp4", False, value, Value("u", 8, 126)).bits, f"seed {SEED}"
        assert bits == to_wide("fp4", "bf16", Value("b", 4, int(nibble)), Value("u", 8, 126)).bits
