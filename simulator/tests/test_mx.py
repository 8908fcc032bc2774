"""v_mfma_f32_*_f8f6f4 and v_mfma_scale_f32_*_f8f6f4 against sums in which every element and scale is placed by hand."""

import functools
import itertools
import math

import numpy as np
import pytest

from simulator import Simulator, UnsupportedError
from simulator.schedule.program import decode
from simulator.tests.harness import LANES, SEED, assemble, compile_hip, launch, needs_clang

pytestmark = needs_clang

SHAPES = {16: 128, 32: 64}  # rows of A and columns of B: K
# CBSZ and BLGP: (bits of the exponent, of the mantissa, bias)
TYPES = [(4, 3, 7), (5, 2, 15), (2, 3, 1), (3, 2, 3), (2, 1, 1)]
E4M3, E5M2, E2M1 = 0, 1, 4
ONE = [0x38, 0x3C, 0x08, 0x0C, 0x02]
BYTES = list(itertools.product(range(4), repeat=2))  # which one of A's and of B's dword


def bits_of(kind: int) -> int:
    return 1 + sum(TYPES[kind][:2])


def value_of(kind: int, code: int) -> float:
    exponent_bits, mantissa_bits, bias = TYPES[kind]
    sign = -1.0 if code >> exponent_bits + mantissa_bits else 1.0
    exponent, mantissa = code >> mantissa_bits & (1 << exponent_bits) - 1, code & (1 << mantissa_bits) - 1
    if kind == E4M3 and code & 0x7F == 0x7F:
        return math.nan
    if kind == E5M2 and exponent == 31:
        return math.nan if mantissa else sign * math.inf
    return sign * math.ldexp(mantissa + (exponent > 0) * 2.0**mantissa_bits, max(exponent, 1) - bias - mantissa_bits)


@functools.cache
def table(kind: int) -> np.ndarray:
    return np.array([value_of(kind, code) for code in range(1 << bits_of(kind))])


def scales_of(scales: np.ndarray) -> np.ndarray:
    return np.where(scales == 255, np.nan, 2.0 ** (scales - 127.0))


def place(kind: int, size: int, lane: int, element: int) -> int:
    """The k of a lane's element."""
    group = lane // size
    if bits_of(kind) == 8:
        return 16 * group + element + (SHAPES[size] // 2 - 16) * (element // 16)
    return 32 * group + element


def fragment(kind: int, codes: np.ndarray) -> np.ndarray:
    """[row, k] codes as [register, lane] dwords, the unused of eight registers zero."""
    size, width = len(codes), bits_of(kind)
    lanes = []
    for lane in range(LANES):
        elements = (int(codes[lane % size, place(kind, size, lane, i)]) << width * i for i in range(32))
        lanes.append(np.frombuffer(sum(elements).to_bytes(32, "little"), np.uint32))
    return np.array(lanes).T


def scale_words(scales: np.ndarray, byte: int, rng: np.random.Generator) -> np.ndarray:
    """[row, block] bytes in that byte of each lane's dword; the others are random."""
    size = len(scales)
    words = rng.integers(0, 256, (LANES, 4)).astype(np.uint8)
    for lane in range(LANES):
        words[lane, byte] = scales[lane % size, lane // size]
    return words.view(np.uint32)[:, 0]


def sums(kinds, a, b, scales_a, scales_b, c) -> tuple[np.ndarray, np.ndarray]:
    """(the sums of D, of the absolute values) of [row, k] codes, each sum exact."""
    a_values, b_values = (
        table(kind)[codes] * np.repeat(scales_of(scales), 32, axis=1)
        for kind, codes, scales in zip(kinds, (a, b), (scales_a, scales_b))
    )
    size = len(a)
    exact, absolute = np.zeros((2, size, size))
    for row, column in np.ndindex(size, size):
        products = a_values[row] * b_values[column]
        with np.errstate(invalid="ignore"):
            plain = products.sum() + c[row, column]
        exact[row, column] = math.fsum([*products, c[row, column]]) if math.isfinite(plain) else plain
        absolute[row, column] = np.abs(products).sum() + abs(c[row, column])
    return exact, absolute


def row_of(size: int, register: int, lane: int) -> int:
    if size == 16:
        return 4 * (lane // 16) + register
    return 8 * (register // 4) + 4 * (lane // 32) + register % 4


def text(size: int, kinds, chosen=None) -> str:
    """A in v[10:17], B in v[18:25], the scales in v26 and v27, C and D from v28 on; `chosen` the scales' bytes."""
    registers = [bits_of(kind) for kind in kinds]
    a, b = f"v[10:{9 + registers[0]}]", f"v[18:{17 + registers[1]}]"
    sums_at = f"v[28:{27 + size * size // LANES}]"
    line = f"{size}x{size}x{SHAPES[size]}_f8f6f4 {sums_at}, {a}, {b}, {sums_at}"
    types = f"cbsz:{kinds[0]} blgp:{kinds[1]}"
    if chosen is None:
        return f"v_mfma_f32_{line} {types}"
    low, high = ([each >> i & 1 for each in chosen] for i in (0, 1))
    return f"v_mfma_scale_f32_{line}, v26, v27 op_sel:[{low[0]},{low[1]},0] op_sel_hi:[{high[0]},{high[1]},0] {types}"


def body(size: int, line: str) -> str:
    count = size * size // LANES
    loads = "".join(
        f"global_load_dword v{10 + i}, v{i // 16}, s[4:5] offset:{256 * (i % 16)}\n" for i in range(18 + count)
    )
    stores = "".join(f"global_store_dword v0, v{28 + i}, s[6:7] offset:{256 * i}\n" for i in range(count))
    return (
        "s_load_dwordx4 s[4:7], s[0:1], 0x0\n v_lshlrev_b32 v0, 2, v0\n v_add_u32 v1, 0x1000, v0\n"
        f"v_add_u32 v2, 0x2000, v0\n s_waitcnt lgkmcnt(0)\n {loads} s_waitcnt vmcnt(0)\n {line}\n"
        f"s_nop 15\n s_nop 3\n {stores} s_waitcnt vmcnt(0)"
    )


def key_of(size: int, kinds, chosen) -> str:
    return f"k{size}_{kinds[0]}_{kinds[1]}_" + ("none" if chosen is None else f"{chosen[0]}{chosen[1]}")


def bytes_for(kinds) -> tuple[int, int]:
    """All sixteen choices over all pairs of types."""
    return BYTES[(5 * kinds[0] + kinds[1]) % 16]


PAIRS = list(itertools.product(range(5), repeat=2))


@functools.cache
def simulator() -> Simulator:
    cases = [(size, kinds, chosen) for size in SHAPES for kinds in PAIRS for chosen in (None, bytes_for(kinds))]
    bodies = {key_of(*each): body(each[0], text(*each)) for each in cases}
    return Simulator(assemble(bodies, "gfx950", raw=True), "gfx950")


def multiply(size, kinds, a, b, scales_a=None, scales_b=None, c=None, rng=None) -> np.ndarray:
    """D [row, column] of codes [row, k] and [column, k]."""
    rng = rng or np.random.default_rng(SEED)
    chosen = None if scales_a is None else bytes_for(kinds)
    count = size * size // LANES
    data = np.zeros((18 + count, LANES), np.uint32)
    data[:8], data[8:16] = fragment(kinds[0], a), fragment(kinds[1], b)
    if chosen:
        data[16], data[17] = scale_words(scales_a, chosen[0], rng), scale_words(scales_b, chosen[1], rng)
    rows = np.array([[row_of(size, register, lane) for lane in range(LANES)] for register in range(count)])
    columns = np.broadcast_to(np.arange(LANES) % size, rows.shape)
    if c is not None:
        data[18:] = c.astype(np.float32)[rows, columns].view(np.uint32)
    out = np.zeros((count, LANES), np.uint32)
    simulator().launch(key_of(size, kinds, chosen), 1, LANES, [data, out, bytes(32)])
    result = np.zeros((size, size), np.float32)
    result[rows, columns] = out.view(np.float32)
    return result


def finite_codes(kind: int, shape, rng: np.random.Generator) -> np.ndarray:
    return rng.choice(np.flatnonzero(np.isfinite(table(kind))), shape)


def assert_close(got: np.ndarray, exact: np.ndarray, absolute: np.ndarray, what: str) -> None:
    """Half an ulp of float32, and what float64 loses in 129 additions."""
    with np.errstate(over="ignore"):
        half = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64) / 2
    assert (np.abs(got - exact) <= half + 129 * 2.0**-53 * absolute).all(), what


@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "scaled"])
@pytest.mark.parametrize("kinds", PAIRS, ids=str)
@pytest.mark.parametrize("size", SHAPES)
def test_every_pair_of_types(size, kinds, scaled):
    rng = np.random.default_rng([SEED, size, *kinds])
    a, b = (finite_codes(kind, (size, SHAPES[size]), rng) for kind in kinds)
    shape = (size, SHAPES[size] // 32)
    scales = [rng.integers(110, 140, shape) if scaled else np.full(shape, 127) for _ in range(2)]
    c = rng.standard_normal((size, size)).astype(np.float32).astype(np.float64)
    got = multiply(size, kinds, a, b, *(scales if scaled else (None, None)), c=c, rng=rng)
    assert_close(got, *sums(kinds, a, b, *scales, c), f"seed {SEED}")


@pytest.mark.parametrize("side", [0, 1], ids="AB")
@pytest.mark.parametrize("size", SHAPES)
def test_every_e2m1_code_in_every_place(size, side):
    """The other side is ones at one k a row; scales go through 0 to 254, so that both ends of float32 are met."""
    depth = SHAPES[size]
    other = np.full((size, depth // 32), 127)
    row, k = np.arange(size)[:, None], np.arange(depth)
    for shift, start in itertools.product(range(16), range(0, depth, size)):
        codes = (row + k + shift) % 16
        scales = (37 * shift + 11 * start + 5 * row + 3 * np.arange(depth // 32)) % 255
        ones = np.where(k == start + row, ONE[E2M1], 0)
        operands = [(codes, scales), (ones, other)]
        (a, scales_a), (b, scales_b) = operands if side == 0 else operands[::-1]
        got = multiply(size, (E2M1, E2M1), a, b, scales_a, scales_b)
        chosen = np.arange(start, start + size)
        with np.errstate(over="ignore"):
            wanted = (table(E2M1)[codes[:, chosen]] * 2.0 ** (scales[:, chosen // 32] - 127.0)).astype(np.float32)
        assert np.array_equal(got, wanted if side == 0 else wanted.T), (shift, start)


@pytest.mark.parametrize("kind", [E4M3, E2M1])
def test_every_scale(kind):
    """One product a row and column: 2^(both scales), to zero and to infinity, and NaN for 255."""
    rng = np.random.default_rng(SEED)
    ones = np.zeros((16, 128), int)
    ones[:, 0] = ONE[kind]
    for first in range(0, 256, 16):
        scales_a, scales_b = (rng.integers(0, 255, (16, 4)) for _ in range(2))
        scales_a[:, 0], scales_b[:, 0] = np.arange(first, first + 16), rng.permutation(256)[:16]
        got = multiply(16, (kind, kind), ones, ones, scales_a, scales_b)
        with np.errstate(over="ignore"):
            wanted = np.ldexp(1.0, scales_a[:, :1] + scales_b[:, 0] - 254).astype(np.float32)
        nan = (scales_a[:, :1] == 255) | (scales_b[:, 0] == 255)
        assert np.array_equal(got, np.where(nan, np.nan, wanted), equal_nan=True), f"seed {SEED}"


# e4m3: a gfx950 chip printed these lanes (Composable Kernel, test/mx_mfma_op/scale_mapping_*.txt) for row 0, by the
# lanes' group and the half of its 32 bytes.
PRINTED = {
    16: {(0, 0): 0, (0, 1): 32, (1, 0): 0, (1, 1): 32, (2, 0): 16, (2, 1): 48, (3, 0): 16, (3, 1): 48},
    32: {(0, 0): 0, (0, 1): 32, (1, 0): 0, (1, 1): 32},
}


@pytest.mark.parametrize("size", SHAPES)
def test_the_lane_that_scales_an_element_is_the_one_that_hardware_printed(size):
    data = np.zeros((18 + size * size // LANES, LANES), np.uint32)
    data[8:16] = 0x38383838  # ones
    chosen = bytes_for((E4M3, E4M3))
    data[16], data[17] = (np.arange(LANES) + 64) << 8 * chosen[0], 127 << 8 * chosen[1]
    for group, element in itertools.product(range(LANES // size), range(32)):
        data[:8] = 0
        here = np.arange(LANES) // size == group
        data[element // 4, here] = 0x38 << 8 * (element % 4)
        out = np.zeros((size * size // LANES, LANES), np.float32)
        simulator().launch(key_of(size, (E4M3, E4M3), chosen), 1, LANES, [data, out, bytes(32)])
        for register, lane in np.ndindex(out.shape):
            scaling = PRINTED[size][group, element // 16] + row_of(size, register, lane)
            assert out[register, lane] == 2.0 ** (scaling + 64 - 127)


@pytest.mark.parametrize("size", SHAPES)
def test_a_nan_reaches_its_row_or_column_and_no_other(size):
    rng = np.random.default_rng(SEED)
    depth = SHAPES[size]
    kinds = (E4M3, E2M1)
    a, b = (finite_codes(kind, (size, depth), rng) for kind in kinds)
    a[3], b[9] = 0, 0  # zeros do not hide a scale that is NaN
    scales_a, scales_b = (rng.integers(120, 134, (size, depth // 32)) for _ in range(2))
    scales_a[3, 1], scales_b[9, 0] = 255, 255
    a[5, depth - 1] = 0xFF
    nan = np.zeros((size, size), bool)
    nan[[3, 5]], nan[:, 9] = True, True
    got = multiply(size, kinds, a, b, scales_a, scales_b, rng=rng)
    assert np.array_equal(np.isnan(got), nan)
    assert (got.view(np.uint32)[nan] == 0x7FC00000).all()


def test_infinities_of_e5m2():
    a, b = np.zeros((2, 16, 128), int)
    a[0, 7], a[1, 100], a[2, 3] = 0x7C, 0xFC, 0x7C
    b[:, 7], b[:, 100] = ONE[E5M2], ONE[E5M2]
    scales = np.zeros((16, 4), int)  # 2^-127 leaves an infinity one
    got = multiply(16, (E5M2, E5M2), a, b, scales, scales)
    assert (got[0] == np.inf).all() and (got[1] == -np.inf).all() and np.isnan(got[2]).all() and (got[3:] == 0).all()


def test_zeros_with_a_sign():
    """-0 is a zero: the sum of products and +0 is +0, whatever the addends' signs."""
    zeros = np.full((16, 128), 8)
    got = multiply(16, (E2M1, E2M1), zeros, np.full((16, 128), ONE[E2M1]), np.full((16, 4), 9), np.full((16, 4), 200))
    assert (got.view(np.uint32) == 0).all()


REFUSED = {
    "a sixth type": (text(16, (E4M3, E4M3), (0, 0)).replace("cbsz:0", "cbsz:5"), "a type of v_mfma_scale"),
    "a scalar as scale": (".long 0xD3AC1000, 0x00001308, 0xD3AD0800, 0x040A250A", "v8, s9/.Invalid register"),
    "a constant as scale": (".long 0xD3AC1000, 0x0001E508, 0xD3AD0800, 0x040A250A", "v8, 1.0/.Invalid immediate"),
    "half of a pair": (".long 0xD3AC1000, 0x00021308", "v_mfma_ld_scale_b32"),
    "inactive lanes": (f"s_mov_b64 exec, 1\n {text(16, (E4M3, E4M3), (0, 0))}", "with inactive lanes"),
}


@pytest.mark.parametrize("line, reason", REFUSED.values(), ids=REFUSED)
def test_what_is_not_known_is_refused_by_name(line, reason):
    with pytest.raises(UnsupportedError, match=reason):
        launch(line, "gfx950", LANES)


def test_the_other_chip_has_none():
    line = "\tv_mfma_scale_f32_16x16x128_f8f6f4 v[0:3], v[10:17], v[18:25], v[2:5], v8, v9  // D3AC0000 00021308"
    with pytest.raises(UnsupportedError, match="f8f6f4 on gfx942"):
        decode(line, 0, "gfx942")


SOURCE = r"""
#include <hip/hip_runtime.h>
typedef int Words __attribute__((ext_vector_type(8)));
typedef float Four __attribute__((ext_vector_type(4)));
typedef float Sixteen __attribute__((ext_vector_type(16)));

// TYPE's registers, the others zero, so that the compiler drops them.
template <int TYPE> __device__ Words used(Words w) {
    if (TYPE >= 2) w[6] = w[7] = 0;
    if (TYPE == 4) w[4] = w[5] = 0;
    return w;
}
#ifdef __gfx950__
#define MULTIPLY(SHAPE, ...) __builtin_amdgcn_mfma_scale_f32_##SHAPE##_f8f6f4(__VA_ARGS__)
#else
#define MULTIPLY(SHAPE, X, Y, C, ...) C
#endif
#define KERNEL(SHAPE, SUMS, A, B, BYTE_A, BYTE_B)                                                                  \
    extern "C" __global__ void k##SHAPE##_##A##_##B(const Words* data, const int* scales, SUMS* c) {               \
        const int i = threadIdx.x;                                                                                 \
        c[i] = MULTIPLY(SHAPE, used<A>(data[i]), used<B>(data[i + 64]), c[i], A, B, BYTE_A, scales[i], BYTE_B,      \
                        scales[i + 64]);                                                                           \
    }
KERNEL(16x16x128, Four, 0, 4, 2, 1)
KERNEL(16x16x128, Four, 4, 4, 3, 0)
KERNEL(16x16x128, Four, 1, 2, 0, 3)
KERNEL(32x32x64, Sixteen, 4, 0, 1, 2)
KERNEL(32x32x64, Sixteen, 3, 4, 2, 2)
KERNEL(32x32x64, Sixteen, 0, 0, 0, 1)
"""
COMPILED = [(16, (0, 4), (2, 1)), (16, (4, 4), (3, 0)), (16, (1, 2), (0, 3)), (32, (4, 0), (1, 2))]
COMPILED += [(32, (3, 4), (2, 2)), (32, (0, 0), (0, 1))]


@pytest.mark.parametrize("size, kinds, chosen", COMPILED, ids=str)
def test_what_clang_makes_of_the_builtins(size, kinds, chosen, tmp_path):
    """With hazards checked: the compiler's distances are enough."""
    rng = np.random.default_rng([SEED, size, *kinds])
    depth, count = SHAPES[size], size * size // LANES
    a, b = (finite_codes(kind, (size, depth), rng) for kind in kinds)
    scales = [rng.integers(110, 140, (size, depth // 32)) for _ in range(2)]
    data = np.ascontiguousarray(np.stack([fragment(kind, codes).T for kind, codes in zip(kinds, (a, b))]))
    words = np.stack([scale_words(each, byte, rng) for each, byte in zip(scales, chosen)])
    out = np.zeros((LANES, count), np.float32)
    name = f"k{size}x{size}x{depth}_{kinds[0]}_{kinds[1]}"
    Simulator(compile_hip(SOURCE, tmp_path), "gfx950").launch(name, 1, LANES, [data, words, out])
    got = np.zeros((size, size), np.float32)
    for lane, register in np.ndindex(out.shape):
        got[row_of(size, register, lane), lane % size] = out[lane, register]
    assert_close(got, *sums(kinds, a, b, *scales, np.zeros((size, size))), f"seed {SEED}")
