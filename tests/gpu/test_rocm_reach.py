"""Offsets of 32 bits in the ROCm variant's GEMMs: they reach 2^30 bytes from a tile's first row. At that bound, which
is each form's own by its rows and columns, and just beyond it, a launch is right, falls back or is refused by name.

Strides are so large that what lies between rows takes no memory (problems/reserved.py)."""

import contextlib
import re

import pytest
import torch

from benchmarks.harness.simulated_rocm import FORMATS
from problems import grouped_gemm as problems
from problems.buffers import same_bytes
from problems.grouped_gemm import Case, draw
from problems.inputs import positive, random_fp8
from problems.reserved import reserved
from scripts.host_configs import configs
from tests.gpu.simulated_kernels import simulated
from tests.settings import SEED

kernel = simulated  # the package on each chip
CONFIG = "ROCM_FP8_KERNELS_CONFIG"
REACH = 2**30
TABLES = configs().tables
TILES, STREAMS, GATED = TABLES["grouped_tiles"], TABLES["grouped_streams"], TABLES["grouped_gated"]
FALLBACK = TILES[-1]
E8M0 = torch.float8_e8m0fnu
ONE = torch.ones(1)


def names(forms) -> list[str]:
    return [form["name"] for form in forms]


def last_in_reach(rows: int, row_bytes: int, unit: int) -> int:
    """The largest stride in bytes, a multiple of `unit`, at which `rows` rows end within reach."""
    return (REACH - row_bytes) // (rows - 1) // unit * unit


def apart(values: torch.Tensor, stride: int) -> torch.Tensor:
    """The same rows, `stride` elements apart."""
    rows, columns = values.shape
    wide = reserved(((rows - 1) * stride + columns,), values.dtype).as_strided(values.shape, (stride, 1))
    wide.view(torch.uint8 if values.itemsize == 1 else torch.int32).copy_(
        values.view(torch.uint8 if values.itemsize == 1 else torch.int32)
    )
    return wide


def at_and_beyond(last: int, unit: int):
    return ((last, True), (last + unit, False))


# --- scales of A, computed with ---


def with_scales(rows: int, n: int, exponents: bool, fp8: torch.dtype, generator) -> problems.Inputs:
    """One expert that has all rows, and two blocks of K."""
    given = dict(slots=0, scale_a="group", scale_b="block", exponents=exponents, biased=None)
    kinds = dict(dtype=torch.float32, values=random_fp8, layout="dense", expected=None)
    return draw(Case(rows, 1, n, 144, 0, routing=problems.even, **given, **kinds), (fp8,), generator)


@pytest.mark.parametrize("exponents", (False, True), ids=("float32", "e8m0"))
@pytest.mark.parametrize("form", TILES + STREAMS, ids=lambda form: form["name"])
def test_scales_of_a_tile(kernel, launched, fp8, environment, generator, form, exponents):
    """All rows of a tile have their own scales, or a shorter tile takes the launch."""
    environment(CONFIG, f"grouped_gemm:{form['name']}")
    rows, size = form["rows"], 1 if exponents else 4
    inputs = with_scales(rows, 34, exponents, fp8, generator)
    dense, of_kind = inputs.scale_a, TILES if form in TILES else STREAMS
    place = of_kind.index(form)
    shorter = [i for i, other in enumerate(TILES[:-1]) if form in TILES[:-1] and i > place and other["rows"] < rows]
    for stride, inside in at_and_beyond(last_in_reach(rows, 2 * size, size), size):
        inputs.scale_a = apart(dense, stride // size)
        launched.names()
        if not inside and not shorter:
            with pytest.raises(RuntimeError, match=r"^grouped_gemm: scale_a: .*more than 1 GiB"):
                inputs.call(kernel)
            assert launched.names() == []
            continue
        out = inputs.call(kernel, out_dtype=torch.float32)
        inputs.assert_right(out, f"{form['name']}, stride {stride}")
        (name,) = launched.names()
        assert re.match(rf"grouped_gemm_\w+<{place if inside else shorter[0]}, ", name), name


@pytest.mark.parametrize("form", GATED, ids=lambda form: form["name"])
def test_scales_of_a_gated_tile(kernel, launched, fp8, environment, generator, form):
    """In two launches beyond the bound, with the same bytes; where the variable names the form, it is refused."""
    rows = form["rows"]
    inputs = with_scales(rows, 256, False, fp8, generator)
    dense = inputs.scale_a
    keywords = dict(dtype=torch.bfloat16, scaling="group")
    environment(CONFIG, "grouped_gemm:t64x64")
    wanted, wanted_scales = kernel.grouped_gemm_swiglu_fp8(*inputs.operands(), **keywords)
    environment(CONFIG, f"grouped_gemm:{form['name']}")
    for stride, inside in at_and_beyond(last_in_reach(rows, 8, 4), 4):
        inputs.scale_a = apart(dense, stride // 4)
        launched.names()
        refused = contextlib.nullcontext() if inside else pytest.raises(RuntimeError, match=CONFIG)
        with refused:
            got, scales = kernel.grouped_gemm_swiglu_fp8(*inputs.operands(), **keywords)
            assert same_bytes(got, wanted) and same_bytes(scales, wanted_scales)
        assert [name.partition("<")[0] for name in launched.names()] == ["grouped_gemm_gated"] * inside


# --- which form is launched; no workgroup runs ---


@pytest.fixture
def chosen(simulated_rocm, arch, launched):
    """chosen(call) -> the kernels that call(kernel) launches, or None where it is refused."""

    def find(call) -> list[str] | None:
        launched.names()
        with simulated_rocm.on(arch, sample=lambda grid: []) as kernel:
            try:
                call(kernel)
            except RuntimeError as error:
                assert "ROCM_FP8_KERNELS_CONFIG" in str(error) or "GiB" in str(error), error
                assert launched.names() == []
                return None
        return launched.names()

    return find


def overlapping(rows: int, k: int, stride: int, dtype: torch.dtype) -> torch.Tensor:
    """Rows that may be longer than their stride."""
    return reserved(((rows - 1) * stride + k,), dtype).as_strided((rows, k), (stride, 1))


LONG = 2**23


def careful(name: str) -> bool:
    """By the template's arguments, as the kernels are named."""
    return {
        "grouped_gemm_tiles": lambda last: last[-1] == "true",
        "grouped_gemm_stream": lambda last: last[-1] == "true",
        "block_scaled_gemm_tiles": lambda last: last[2] == "true",
        "block_scaled_gemm_stream": lambda last: last[2] == "true",
        "block_scaled_gemm_direct": lambda last: False,
        "int8_gemm_tiles": lambda last: last[1] == "true",
        "skinny_gemm_stream": lambda last: False,
        "skinny_gemm_fallback": lambda last: True,
    }[name.partition("<")[0]](name.partition("<")[2].rstrip(">").split(", "))


@pytest.mark.parametrize("operand", ("a", "gathered", "b"))
@pytest.mark.parametrize("form", TILES[:-1] + STREAMS, ids=lambda form: form["name"])
def test_grouped_operands(chosen, fp8, environment, form, operand):
    """Rows that overlap are longer than their stride: the last one counts."""
    environment(CONFIG, f"grouped_gemm:{form['name']}")
    index = (TILES if form in TILES else STREAMS).index(form)
    rows = {"a": form["rows"], "gathered": 3 * form["rows"] + 1, "b": form["columns"]}[operand]
    for stride, inside in at_and_beyond(last_in_reach(rows, LONG, 16), 16):
        far, near = overlapping(rows, LONG, stride, fp8), overlapping(rows, LONG, 16, fp8)
        a, b = (near, far) if operand == "b" else (far, near)
        sources = torch.zeros(rows, dtype=torch.int32) if operand == "gathered" else None
        offsets = torch.tensor([0, rows], dtype=torch.int32)
        out = reserved((rows, rows), torch.bfloat16)
        (name,) = chosen(lambda kernel: kernel.grouped_gemm(a, b[None], ONE, ONE, offsets, rows=sources, out=out))
        own = re.match(rf"grouped_gemm_\w+<{index}, \w+, false>", name) is not None
        assert own == inside, (name, stride)


@pytest.mark.parametrize("form", GATED, ids=lambda form: form["name"])
def test_weights_of_a_gated_tile(chosen, fp8, environment, form):
    """Its loads count gates and ups of all hidden values."""
    environment(CONFIG, f"grouped_gemm:{form['name']}")
    a, offsets = overlapping(form["rows"], LONG, 16, fp8), torch.tensor([0, form["rows"]], dtype=torch.int32)
    for n in (256, 512):
        for stride, inside in at_and_beyond(last_in_reach(n, LONG, 16), 16):
            b = overlapping(n, LONG, stride, fp8)[None]
            call = dict(scaling="group", out=reserved((form["rows"], n // 2), fp8))
            found = chosen(lambda kernel: kernel.grouped_gemm_swiglu_fp8(a, b, ONE, ONE, offsets, **call))
            assert (found is not None) == inside, (n, stride, found)


def test_the_launchers_own_choice(chosen, library, arch, fp8):
    """Sizes that ask for the tallest tile: where its scales are out of reach, the next one takes the launch."""
    tallest = max(TILES, key=lambda form: form["rows"])
    rows, k = tallest["rows"], 272
    place, chip = TILES.index(tallest), list(FORMATS).index(arch)
    n = next(
        n
        for n in range(tallest["columns"], 2**20, 256)
        if library.grouped_config(1, rows, n, k, 1, chip, rows)[0] == place
    )
    a, b, out = reserved((rows, k), fp8), reserved((1, n, k), fp8), reserved((rows, n), torch.bfloat16)
    offsets = torch.tensor([0, rows], dtype=torch.int32)
    for stride, inside in at_and_beyond(last_in_reach(rows, 4, 4), 4):
        scale = apart(positive((rows, 1), torch.Generator().manual_seed(SEED)), stride // 4)
        (name,) = chosen(lambda kernel: kernel.grouped_gemm(a, b, scale, ONE, offsets, out=out))
        assert name.startswith(f"grouped_gemm_tiles<{place if inside else place + 1}, "), name


@pytest.mark.parametrize("expected", (1, 100), ids=("stream", "tile"))
def test_rows_of_a_beyond_31_bits(kernel, fp8, generator, expected):
    """Slots number 2^31 of them: the last of those is read, and those behind it are in nobody's way."""
    k, far = 16, [2**31 - 1, 0, 2**30 + 5]
    near, b = random_fp8((3, k), fp8, generator), random_fp8((1, 20, k), fp8, generator)
    a, offsets = reserved((2**31 + 8, k), fp8), torch.tensor([0, 3], dtype=torch.int32)
    a.view(torch.uint8)[far] = near.view(torch.uint8)
    keywords = dict(slots=1, expected_rows=expected)
    wanted = kernel.grouped_gemm(near, b, ONE, ONE, offsets, rows=torch.arange(3).int(), **keywords)
    got = kernel.grouped_gemm(a, b, ONE, ONE, offsets, rows=torch.tensor(far, dtype=torch.int32), **keywords)
    assert same_bytes(got, wanted)


def test_scales_of_b_are_named(chosen, kernel, fp8):
    """Channels' scales are read by 64 bits; of blocks those of one row count."""
    a, b, offsets = reserved((5, 256), fp8), reserved((2, 256, 256), fp8), torch.tensor([0, 5, 5], dtype=torch.int32)
    far = reserved((3 * 2**28 + 8,), torch.float32)
    channels, rows = far.as_strided((2, 256, 1), (1, 2**20, 1)), far.as_strided((2, 2, 2), (1, 2**29, 4))
    blocks = far.as_strided((2, 2, 2), (1, 4, 2**28))
    for scale in (channels, rows):
        assert chosen(lambda kernel: kernel.grouped_gemm(a, b, ONE, scale, offsets, expected_rows=100)), scale.stride()
    with pytest.raises(RuntimeError, match=r"^grouped_gemm: scale_b: .*more than 1 GiB"):
        kernel.grouped_gemm(a, b, ONE, blocks, offsets)


# --- the other GEMMs, whose launchers take one bound for all of their forms ---

OTHERS = {
    "block_scaled_gemm": TABLES["tiles"] + TABLES["streams"],
    "int8_gemm": TABLES["int8_tiles"],
    "skinny_gemm": TABLES["skinny"],
}
FORCED = [(operator, form) for operator, forms in OTHERS.items() for form in forms]


@pytest.mark.parametrize("operand", ("a", "b"))
@pytest.mark.parametrize("operator, form", FORCED, ids=[f"{operator}-{form['name']}" for operator, form in FORCED])
def test_no_form_reaches_further(chosen, fp8, environment, operator, form, operand):
    """Just beyond the form's own bound no fast form is launched."""
    environment(CONFIG, f"{operator}:{form['name']}")
    rows, columns = form["rows"], form["columns"]
    dtype, k = (torch.int8, 131056) if operator == "int8_gemm" else (fp8, LONG)
    far = rows if operand == "a" else columns
    stride = last_in_reach(far, k, 16) + 16
    a, b = (overlapping(r, k, stride if name == operand else 16, dtype) for name, r in (("a", rows), ("b", columns)))
    out = reserved((rows, columns), torch.bfloat16)
    found = chosen(lambda kernel: getattr(kernel, operator)(a, b, ONE, ONE, out=out))
    assert found is None or all(map(careful, found)), found


@pytest.mark.parametrize("operand", ("scale_a", "scale_b"))
@pytest.mark.parametrize("form", OTHERS["block_scaled_gemm"], ids=lambda form: form["name"])
def test_no_form_reaches_scales_further(chosen, fp8, environment, form, operand):
    environment(CONFIG, f"block_scaled_gemm:{form['name']}")
    rows, columns = form["rows"], form["columns"]
    a, b, out = reserved((rows, 256), fp8), reserved((columns, 256), fp8), reserved((rows, columns), torch.bfloat16)
    far = rows if operand == "scale_a" else columns
    scale = reserved(((far - 1) * (REACH // 4 // (far - 1) + 1) + 2,), torch.float32)
    scale = scale.as_strided((far, 2), (REACH // 4 // (far - 1) + 1, 1))
    scales = dict(scale_a=ONE, scale_b=ONE) | {operand: scale}
    found = chosen(lambda kernel: kernel.block_scaled_gemm(a, b, **scales, out=out))
    assert found is None or all(map(careful, found)), found
