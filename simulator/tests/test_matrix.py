"""MFMA and SMFMAC on random data for every element, against plain products in which each element is placed by hand."""

import itertools

import numpy as np
import pytest
import torch

from problems.fp8_by_definition import decode_table
from simulator.tests.harness import ARCHS, LANES, Snippets, needs_clang

pytestmark = needs_clang

# instruction: (M = N, K, bits of an element, sparse)
DENSE = {
    "v_mfma_f32_16x16x32_fp8_fp8": (16, 32, "fp8"),
    "v_mfma_f32_32x32x16_fp8_fp8": (32, 16, "fp8"),
    "v_mfma_f32_16x16x16_bf16": (16, 16, "bf16"),
    "v_mfma_f32_32x32x8_bf16": (32, 8, "bf16"),
    "v_mfma_f32_16x16x16_f16": (16, 16, "f16"),
    "v_mfma_f32_32x32x8_f16": (32, 8, "f16"),
    "v_mfma_i32_16x16x32_i8": (16, 32, "i8"),
    "v_mfma_i32_32x32x16_i8": (32, 16, "i8"),
}
# A and B hold their k in the same order, whichever it is: here in that of the others.
OF_GFX950 = {
    "v_mfma_f32_16x16x128_f8f6f4": (16, 128, "fp8"),
    "v_mfma_f32_32x32x64_f8f6f4": (32, 64, "fp8"),
    "v_mfma_i32_16x16x64_i8": (16, 64, "i8"),
    "v_mfma_i32_32x32x32_i8": (32, 32, "i8"),
    "v_mfma_f32_16x16x32_bf16": (16, 32, "bf16"),
    "v_mfma_f32_32x32x16_bf16": (32, 16, "bf16"),
    "v_mfma_f32_16x16x32_f16": (16, 32, "f16"),
    "v_mfma_f32_32x32x16_f16": (32, 16, "f16"),
}
# Which half of the index register holds the places: CBSZ other than 0 says the first.
INDEX_SETS = {"": 0, " abid:1": 1, " cbsz:7": 0, " cbsz:1 abid:3": 0}
SPARSE = {"v_smfmac_f32_16x16x64_fp8_fp8": (16, 64), "v_smfmac_f32_32x32x32_fp8_fp8": (32, 32)}


def row_of(size: int, register: int, lane: int) -> int:
    """The row of D that a lane's register holds; its column is lane mod size."""
    if size == 16:
        return 4 * (lane // 16) + register
    return 8 * (register // 4) + 4 * (lane // 32) + register % 4


def element_codes(kind: str, shape, rng) -> tuple[np.ndarray, np.ndarray]:
    """(codes, values) of random elements whose sums of products float32 holds exactly."""
    small = rng.integers(-7, 8, shape)
    if kind == "i8":
        full = rng.integers(-128, 128, shape)
        return full.astype(np.int8).view(np.uint8), full.astype(np.float64)
    if kind == "bf16":
        return (small.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16), small.astype(np.float64)
    return small.astype(np.float16).view(np.uint16), small.astype(np.float64)


def fp8_codes(shape, rng, fnuz: bool) -> tuple[np.ndarray, np.ndarray]:
    values = np.array(decode_table(torch.float8_e4m3fnuz if fnuz else torch.float8_e4m3fn))
    usable = np.flatnonzero(np.isfinite(values) & (np.abs(values) >= 0.25) & (np.abs(values) <= 16) | (values == 0))
    codes = rng.choice(usable, shape).astype(np.uint8)
    return codes, values[codes]


def run(arch: str, instruction: str, body: str, a_regs, b_regs, c_regs, index=None) -> np.ndarray:
    """Output registers of the snippet; A stands in v10 on, B behind it, then the sparse index."""
    snippets = Snippets({"product": body}, arch)
    inputs = [*a_regs, *b_regs, *([index] if index is not None else []), *c_regs]
    return snippets.run("product", inputs)


@pytest.mark.parametrize(
    "arch, instruction", [*itertools.product(ARCHS, DENSE), *itertools.product(["gfx950"], OF_GFX950)]
)
def test_dense(arch, instruction):
    size, depth, kind = (DENSE | OF_GFX950)[instruction]
    rng = np.random.default_rng(7)
    make = (
        (lambda shape: fp8_codes(shape, rng, arch == "gfx942"))
        if kind == "fp8"
        else (lambda shape: element_codes(kind, shape, rng))
    )
    (a, a_values), (b, b_values) = make((size, depth)), make((depth, size))
    width = depth * size // LANES
    registers = width * a.itemsize // 4
    a_regs, b_regs = (np.zeros((LANES, width), a.dtype) for _ in range(2))
    for lane in range(LANES):
        for position in range(width):
            k = width * (lane // size) + position
            a_regs[lane, position] = a[lane % size, k]
            b_regs[lane, position] = b[k, lane % size]
    a_regs, b_regs = (np.ascontiguousarray(each.view(np.uint32).T) for each in (a_regs, b_regs))
    count = size * size // LANES
    assert a_regs.shape == (registers, LANES)
    last = 10 + registers - 1
    left = f"v[10:{last}]" if registers > 1 else "v10"
    right = f"v[{last + 1}:{last + registers}]" if registers > 1 else "v11"
    # C starts as the register's number plus the lane's, from v0 (4 * lane) and constants.
    integer = kind == "i8"
    body = "".join(
        f"v_lshrrev_b32 v{40 + i}, 2, v0\n v_add_u32 v{40 + i}, {100 * i}, v{40 + i}\n"
        + ("" if integer else f"v_cvt_f32_u32 v{40 + i}, v{40 + i}\n")
        for i in range(count)
    )
    body += f"{instruction} v[40:{39 + count}], {left}, {right}, v[40:{39 + count}]\n"
    for part in range(0, count, 8):
        texts = "".join(f"v_mov_b32 v{30 + i}, v{40 + part + i}\n" for i in range(min(8, count - part)))
        result = run(arch, instruction, body + texts, a_regs, b_regs, [])
        expected = a_values @ b_values
        for i in range(min(8, count - part)):
            for lane in range(LANES):
                wanted = expected[row_of(size, part + i, lane), lane % size] + lane + 100 * (part + i)
                bits = int(wanted) & 0xFFFFFFFF if integer else int(np.float32(wanted).view(np.uint32))
                assert int(result[i][lane]) == bits


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("modifiers, second_set", INDEX_SETS.items())
@pytest.mark.parametrize("instruction", SPARSE)
def test_sparse(arch, instruction, modifiers, second_set):
    size, depth = SPARSE[instruction]
    rng = np.random.default_rng(8)
    stored, values = fp8_codes((size, depth // 2), rng, arch == "gfx942")
    b, b_values = fp8_codes((depth, size), rng, arch == "gfx942")
    places = np.array([(i, j) for i in range(4) for j in range(i + 1, 4)])[rng.integers(0, 6, (size, depth // 4))]
    dense = np.zeros((size, depth))
    for row in range(size):
        for group in range(depth // 4):
            for which in range(2):
                dense[row, 4 * group + places[row, group, which]] = values[row, 2 * group + which]
    width = depth * size // LANES
    a_regs, b_regs, index = (
        np.zeros((LANES, width // 2), np.uint8),
        np.zeros((LANES, width), np.uint8),
        np.zeros(LANES, np.uint32),
    )
    for lane in range(LANES):
        start, row = width * (lane // size), lane % size
        a_regs[lane] = stored[row, start // 2 : (start + width) // 2]
        b_regs[lane] = b[start : start + width, row]
        for group in range(width // 4):
            first, second = places[row, start // 4 + group]
            index[lane] |= int(first | second << 2) << 4 * group + 16 * second_set
    a_regs, b_regs = (np.ascontiguousarray(each.view(np.uint32).T) for each in (a_regs, b_regs))
    index ^= rng.integers(0, 1 << 16, LANES, np.uint32) << np.uint32(16 * (1 - second_set))
    count = size * size // LANES
    body = "".join(
        f"v_mov_b32 v{40 + i}, {float(i)}\n" if i in (0, 1, 2, 4) else f"v_mov_b32 v{40 + i}, 0\n" for i in range(count)
    )
    body += f"{instruction} v[40:{39 + count}], v[10:11], v[12:15], v16{modifiers}\n"
    expected = dense @ b_values
    for part in range(0, count, 8):
        texts = "".join(f"v_mov_b32 v{30 + i}, v{40 + part + i}\n" for i in range(min(8, count - part)))
        result = run(arch, instruction, body + texts, a_regs, b_regs, [], index)
        for i in range(min(8, count - part)):
            register = part + i
            for lane in range(LANES):
                start = register if register in (0, 1, 2, 4) else 0
                wanted = expected[row_of(size, register, lane), lane % size] + start
                assert int(result[i][lane]) == int(np.float32(wanted).view(np.uint32))
