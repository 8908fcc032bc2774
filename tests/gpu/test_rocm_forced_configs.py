"""Forced configurations of the ROCm variant that split K: what the launcher checks against its counters is what it
launches, for every form that the table has and every form that takes its place. No workgroup runs."""

import re

import pytest
import torch

from benchmarks.harness.forms import entry
from benchmarks.harness.gpu_cases import CONFIG_VARIABLE
from problems.operators import comm_operators, moe_operators, operators, tensors
from problems.reserved import reserved
from scripts.host_configs import configs
from tests.gpu.simulated_kernels import loaded, readable

kernel = loaded

COUNTERS = 1024  # of a set: those of the next stream lie behind it
PARTS = 2
TABLES = configs().tables
TILES, STREAMS, SKINNY, INT8 = (TABLES[name] for name in ("tiles", "streams", "skinny", "int8_tiles"))
GENERAL = {configs().block_scaled_fallback_shape(shape) for shape in range(len(TILES) + len(STREAMS))}


@pytest.fixture
def launch(simulated_rocm, arch, environment):
    """launch(operator, shape, call) -> (kernel, workgroups), or None where it is refused for want of counters."""

    def start(operator: str, shape: int, call) -> tuple[str, int] | None:
        environment(CONFIG_VARIABLE, entry(operator, "rocm", shape, PARTS))
        with simulated_rocm.on(arch, sample=lambda grid: []) as kernel:
            simulated_rocm.runtime.launches.clear()
            try:
                call(kernel)
            except RuntimeError as error:
                assert "more tiles than there are counters" in str(error) or "more columns than" in str(error), error
                assert not simulated_rocm.runtime.launches
                return None
        ((name, grid, *_),) = simulated_rocm.runtime.launches
        return readable([name])[0], grid[0]

    return start


# What makes a stream take its general form, whatever the table's shape: (k, scale_b, its dtype).
KINDS = {
    "fast": (256, "one", torch.float32),
    "careful": (260, "one", torch.float32),
    "channels": (256, "channels", torch.float32),
    "exponents": (256, "one", torch.float8_e8m0fnu),
}


def block_scaled(m: int, n: int, kind: str, fp8: torch.dtype):
    k, scales, dtype = KINDS[kind]
    a, b, out = reserved((m, k), fp8), reserved((n, k), fp8), reserved((m, n), torch.bfloat16)
    scale_a = torch.ones(1)
    scale_b = (torch.ones(1, n) if scales == "channels" else torch.ones(1)).to(dtype)
    return lambda kernel: kernel.block_scaled_gemm(a, b, scale_a, scale_b, out=out)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stream", range(len(STREAMS)))
def test_streams(launch, fp8, stream, kind):
    """A general form has 16 columns, whatever the shape's name says."""
    columns = STREAMS[stream]["columns"] if kind == "fast" else 16
    for tiles in (COUNTERS, COUNTERS + 1):
        found = launch("block_scaled_gemm", len(TILES) + stream, block_scaled(4, tiles * columns, kind, fp8))
        assert found is None if tiles > COUNTERS else found[1] == tiles * PARTS, (tiles, found)


def test_the_columns_that_a_shape_names_are_not_those_of_its_general_form(launch, fp8):
    """1,024 tiles by the table, 2,048 by what is launched."""
    wide = next(i for i, s in enumerate(STREAMS) if s["columns"] == 32)
    for kind in KINDS:
        found = launch("block_scaled_gemm", len(TILES) + wide, block_scaled(4, COUNTERS * 32, kind, fp8))
        assert (found is not None) == (kind == "fast"), (kind, found)


@pytest.mark.parametrize("shape", range(len(TILES)))
def test_tiles(launch, fp8, shape):
    """A persistent kernel's workgroups are fewer than its tiles; its name says whose they are."""
    columns = TILES[shape]["columns"]
    for kind in ("fast", "careful") if shape in GENERAL else ("fast",):
        for tiles in (COUNTERS, COUNTERS + 1):
            found = launch("block_scaled_gemm", shape, block_scaled(40, tiles * columns, kind, fp8))
            assert found is None if tiles > COUNTERS else found[0].startswith(f"block_scaled_gemm_tiles<{shape}, ")


@pytest.mark.parametrize("shape", range(-1, len(SKINNY)))
def test_skinny_gemm(launch, fp8, shape):
    columns = SKINNY[shape]["columns"] if shape >= 0 else 16
    for k in (1024, 1025) if shape < 0 else (1024,):
        for tiles in (COUNTERS, COUNTERS + 1):
            n = tiles * columns
            a, b, out = reserved((4, k), fp8), reserved((n, k), fp8), reserved((4, n), torch.bfloat16)
            call = lambda kernel: kernel.skinny_gemm(a, b, torch.ones(1), torch.ones(1), out=out)
            found = launch("skinny_gemm", shape, call)
            assert found is None if tiles > COUNTERS else found[1] == tiles * PARTS, (tiles, found)


@pytest.mark.parametrize("shape", range(len(INT8)))
def test_int8_gemm(launch, shape):
    columns = INT8[shape]["columns"]
    for k in (256, 255) if configs().int8_fallback_shape(shape) == shape else (256,):
        for tiles in (COUNTERS, COUNTERS + 1):
            n = tiles * columns
            a, b, out = reserved((4, k), torch.int8), reserved((n, k), torch.int8), reserved((4, n), torch.bfloat16)
            call = lambda kernel: kernel.int8_gemm(a, b, torch.ones(1), torch.ones(1), out=out)
            found = launch("int8_gemm", shape, call)
            careful = "true" if k % 16 else "false"
            assert found is None if tiles > COUNTERS else found[0] == f"int8_gemm_tiles<{shape}, {careful}>", found


# --- by names ---

FORMS = {"block_scaled_gemm": TILES + STREAMS, "skinny_gemm": SKINNY, "int8_gemm": INT8}
NAMED = [(operator, place) for operator, forms in FORMS.items() for place in range(len(forms))]


def test_these_are_all_gemms_with_scales_of_both_operands(simulated_rocm, arch):
    with simulated_rocm.on(arch) as kernel:
        schemas = operators(kernel)
    # MX weights' kernels follow from the operands alone.
    of_mx = {name for name in schemas if name.endswith("_mx")}
    scaled = {name for name, schema in schemas.items() if {"scale_a", "scale_b"} <= tensors(schema)} - of_mx
    assert scaled - moe_operators(kernel) - comm_operators(kernel) == FORMS.keys()


@pytest.fixture
def launched(simulated_rocm, arch, fp8, environment):
    """launched(operator, text) -> the kernel and its workgroups, at one size."""
    one = torch.ones(1)

    def start(operator: str, text: str | None) -> tuple[str, int]:
        dtype = torch.int8 if operator == "int8_gemm" else fp8
        a, b, out = reserved((4, 512), dtype), reserved((256, 512), dtype), reserved((4, 256), torch.bfloat16)
        environment(CONFIG_VARIABLE, text)
        with simulated_rocm.on(arch, sample=lambda grid: []) as kernel:
            simulated_rocm.runtime.launches.clear()
            getattr(kernel, operator)(a, b, one, one, out=out)
        ((name, grid, *_),) = simulated_rocm.runtime.launches
        return readable([name])[0], grid[0]

    return start


@pytest.mark.parametrize(
    "operator, place", NAMED, ids=[f"{operator}-{FORMS[operator][place]['name']}" for operator, place in NAMED]
)
def test_a_name_is_a_place_in_the_table(launched, operator, place):
    name = FORMS[operator][place]["name"]
    named = launched(operator, f"{operator}:{name},split=2")
    family, number = {
        "skinny_gemm": ("skinny_gemm_stream", place),
        "int8_gemm": ("int8_gemm_tiles", place),
        "block_scaled_gemm": ("block_scaled_gemm_tiles", place)
        if place < len(TILES)
        else ("block_scaled_gemm_stream", place - len(TILES)),
    }[operator]
    assert re.match(rf"{family}<{number}\b", named[0])
    others = ";".join(f"{other}:fallback" for other in FORMS if other != operator)
    assert launched(operator, f"{others};{operator}:{name},split=2") == named


def test_an_operator_that_is_not_named_has_its_own_choice(launched):
    own = launched("int8_gemm", None)
    assert launched("int8_gemm", "skinny_gemm:fallback,split=2") == own


UNKNOWN = [
    *(
        "t64x64",
        "int8_gemm",
        "gemm:t64x64",
        "int8_gemm:t64x64,2",
        "int8_gemm:t64x64,",
        "int8_gemm:t64x64,split=",
        "int8_gemm:t64x64,split=0",
    ),
    *("int8_gemm:t64x64,parts=2", "int8_gemm:t64x64,split=2x", "int8_gemm:t64x65", "int8_gemm:t64x64,split=99"),
    *("int8_gemm:t64x64,pieces=2", "int8_gemm:fallback"),
]


@pytest.mark.parametrize("text", UNKNOWN)
def test_what_is_not_known_is_refused(launched, text):
    with pytest.raises(RuntimeError, match="int8_gemm: ROCM_FP8_KERNELS_CONFIG "):
        launched("int8_gemm", text)


@pytest.mark.parametrize("config", ["none", "{name},split=17", "{name},pieces=2", "fallback,split=17"])
@pytest.mark.parametrize("operator", FORMS)
def test_limits_of_each_operator(launched, operator, config):
    with pytest.raises(RuntimeError, match=f"{operator}: ROCM_FP8_KERNELS_CONFIG names a "):
        launched(operator, f"{operator}:{config.format(name=FORMS[operator][0]['name'])}")
