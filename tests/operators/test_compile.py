"""torch.compile without graph breaks, torch's own checks of the registrations, and equality with eager."""

import sys
from collections.abc import Callable

import pytest
import torch

from tests.operators.compiled import BACKEND, Result, assert_meta_as, both_ways, parts
from tests.problems.buffers import same_bytes
from tests.problems.inputs import normal, positive, random_fp8, weights
from tests.problems.operators import (
    comm_operators,
    fp8_operators,
    function_of,
    mla_operators,
    moe_operators,
    scaling_operators,
)


@pytest.fixture(autouse=True)
def fresh_graphs():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


NATIVE = torch.float8_e4m3fn


@pytest.fixture(autouse=True)
def native_format(kernel, device, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "NATIVE", kernel.fp8_dtype(device))


def inputs(rows: int, generator) -> dict[str, Callable[[], tuple[torch.Tensor, ...]]]:
    """Operator -> its positional arguments, without out."""

    def half(*shape) -> torch.Tensor:
        return normal(shape, torch.bfloat16, generator)

    weight, scale = weights((40,), torch.bfloat16, generator), positive((1,), generator)
    return {
        "rms_norm": lambda: (half(rows, 40), weight),
        "rms_norm_fp8": lambda: (half(rows, 40), weight, scale),
        "add_rms_norm_fp8": lambda: (half(rows, 40), half(rows, 40), weight, scale),
        "rms_norm_dynamic_fp8": lambda: (half(rows, 40), weight),
        "add_rms_norm_dynamic_fp8": lambda: (half(rows, 40), half(rows, 40), weight),
        "swiglu_fp8": lambda: (half(rows, 80), scale),
        "swiglu_dynamic_fp8": lambda: (half(rows, 80),),
        "quantize_fp8": lambda: (half(rows, 40),),
        "quantize_static_fp8": lambda: (half(rows, 40), scale),
        "skinny_gemm": lambda: (
            random_fp8((rows, 64), NATIVE, generator),
            random_fp8((40, 64), NATIVE, generator),
            positive((rows, 1), generator),
            positive((1, 40), generator),
            half(40),
        ),
        "block_scaled_gemm": lambda: (
            random_fp8((rows, 200), NATIVE, generator),
            random_fp8((40, 200), NATIVE, generator),
            positive((rows, 2), generator),
            positive((1, 2), generator),
            half(40),
        ),
    }


def arguments(operator: str, rows: int, device, generator) -> tuple[torch.Tensor, ...]:
    return tuple(value.to(device) for value in inputs(rows, generator)[operator]())


# As the schemas name them.
OPERATORS = tuple(inputs(1, torch.Generator()))
GEMMS = ("skinny_gemm", "block_scaled_gemm", "int8_gemm")
every_operator = pytest.mark.parametrize("operator", OPERATORS)


def test_no_operator_is_left_out(kernel):
    assert set(OPERATORS) == fp8_operators(kernel)
    assert set(COMPUTED) == scaling_operators(kernel)


@every_operator
def test_one_graph_that_writes_into_out(kernel, device, generator, operator):
    args = arguments(operator, 4, device, generator)
    out = torch.empty_like(parts(getattr(kernel, function_of(operator))(*(a.clone() for a in args)))[0])

    def function(out, *args):
        result = parts(getattr(kernel, function_of(operator))(*args, out=out))[0]
        # What is computed from `out` afterwards must see the new values.
        return result.float() + out.float()

    compiled = torch.compile(function, fullgraph=True, backend=BACKEND)
    both_ways(function, (out.fill_(1), *args), compiled)


@every_operator
def test_any_number_of_rows_in_one_graph(kernel, device, generator, operator):
    graphs = 0

    def count(module, inputs):
        nonlocal graphs
        graphs += 1
        return module.forward

    function = getattr(kernel, function_of(operator))
    # Backends of torch's own go through more stages; the number of graphs is Dynamo's alone.
    counted = torch.compile(function, fullgraph=True, backend=count, dynamic=True)
    compiled = torch.compile(function, fullgraph=True, backend=BACKEND, dynamic=True)
    for rows in (3, 7, 32):
        args = arguments(operator, rows, device, generator)
        both_ways(function, args, compiled)
        both_ways(function, args, counted)
    assert graphs == 1


def test_a_batch_that_is_no_rows(kernel, device, generator):
    # The wrapper copies a transposed batch; the decision must not break the graph.
    x = normal((3, 5, 40), torch.bfloat16, generator).to(device)
    residual = normal((3, 5, 40), torch.bfloat16, generator).to(device)
    weight, scale = weights((40,), torch.bfloat16, generator).to(device), positive((1,), generator).to(device)

    def function(x, residual, weight, scale):
        return kernel.add_rms_norm_fp8(x.transpose(0, 1), residual.transpose(0, 1), weight, scale)

    both_ways(function, (x, residual, weight, scale), torch.compile(function, fullgraph=True, backend=BACKEND))


def test_the_residual_is_seen_to_change(kernel, device, generator):
    x, residual, weight, scale = arguments("add_rms_norm_fp8", 4, device, generator)

    def function(x, residual, weight, scale):
        before = residual * 2
        q = kernel.add_rms_norm_fp8(x, residual, weight, scale)
        # Read between, written again by a second layer, read once more.
        between = residual.clone()
        q2 = kernel.add_rms_norm_fp8(between, residual, weight, scale)
        return before.float() + between.float() + residual.float() + q.float() + q2.float()

    args = (x, residual, weight, scale)
    both_ways(function, args, torch.compile(function, fullgraph=True, backend=BACKEND))
    clone = residual.clone()
    torch.compile(function, fullgraph=True, backend=BACKEND)(x, clone, weight, scale)
    assert same_bytes(clone, (x + residual) + (x + residual))


def test_a_decoder_layer_in_one_graph(kernel, device, generator):
    """The operators one after the other, as a model uses them."""
    hidden, inner = 40, 48
    x, residual = (normal((4, hidden), torch.bfloat16, generator).to(device) for _ in range(2))
    weight = weights((hidden,), torch.bfloat16, generator).to(device)
    gate_up = random_fp8((2 * inner, hidden), NATIVE, generator).to(device)
    down = random_fp8((hidden, inner), NATIVE, generator).to(device)
    one = torch.ones((), device=device)

    def function(x, residual, weight, gate_up, down, one):
        q = kernel.add_rms_norm_fp8(x, residual, weight, one, out_dtype=NATIVE)
        h = kernel.skinny_gemm(q, gate_up, one, one * 0.02)
        return kernel.skinny_gemm(kernel.swiglu_fp8(h, one, out_dtype=NATIVE), down, one, one)

    args = (x, residual, weight, gate_up, down, one)
    got = both_ways(function, args, torch.compile(function, fullgraph=True, backend=BACKEND))
    assert got.float().abs().sum() > 0


def registered_samples(operator: str, device, generator):
    """Arguments of the registered operator: dense, without rows, and as columns of wider tensors."""
    computed = operator == "quantize_fp8" or "dynamic" in operator
    normalized = "rms_norm_dynamic" in operator

    def rest(rows: int) -> tuple:
        """The arguments behind the inputs."""
        found = (1e-6,) if "rms_norm" in operator else ()
        found += (torch.zeros(rows, 40, dtype=torch.bfloat16, device=device),) * normalized
        found += (7.0,) * operator.startswith("swiglu_dynamic")
        return (*found, torch.tensor([1.5], device=device), 32, 224.0, False) if computed else found

    def written(rows: int, width: int) -> tuple[torch.Tensor, ...]:
        sizes = [(torch.bfloat16 if operator in ("rms_norm", *GEMMS) else NATIVE, 40, width)]
        sizes += [(torch.float32, 2, width - 38)] * computed
        return tuple(torch.zeros((rows, w), dtype=t, device=device)[:, :d] for t, d, w in sizes)

    for rows in (0, 4):
        args = arguments(operator, rows, device, generator)
        yield (*written(rows, 40), *args, *rest(rows))
    wide = torch.cat([args[0], args[0]], dim=-1)[:, : args[0].shape[1]]
    yield (*written(4, 64), wide, *args[1:], *rest(4))
    if normalized:
        yield (*written(4, 40), *args, 1e-6, None, *rest(4)[2:])


@every_operator
def test_torchs_checks_of_the_registration(kernel, device, generator, operator):
    op = getattr(kernel._ops.ops, operator).default
    utilities = ["test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"]
    # test_schema compares arguments before and after with arithmetic that torch lacks for FP8; the next test does
    # the same for every operator.
    if operator == "rms_norm":
        utilities.append("test_schema")
    for sample in registered_samples(operator, device, generator):
        torch.library.opcheck(op, sample, test_utils=utilities)


@every_operator
def test_what_the_schema_says_is_written_and_nothing_else(kernel, device, generator, operator):
    op = getattr(kernel._ops.ops, operator).default
    declared = {argument.name for argument in op._schema.arguments if argument.is_write}
    more = {
        "add_rms_norm_fp8": {"residual"},
        "quantize_fp8": {"scale_out"},
        "rms_norm_dynamic_fp8": {"scale_out", "normalized_out"},
        "add_rms_norm_dynamic_fp8": {"scale_out", "normalized_out", "residual"},
        "swiglu_dynamic_fp8": {"scale_out"},
    }
    assert declared == {"out"} | more.get(operator, set())
    for sample in list(registered_samples(operator, device, generator))[1:]:
        before = [a.clone() if isinstance(a, torch.Tensor) else a for a in sample]
        assert op(*sample) is None
        changed = {
            argument.name
            for argument, a, b in zip(op._schema.arguments, sample, before)
            if isinstance(a, torch.Tensor) and not same_bytes(a, b)
        }
        given = {argument.name for argument, a in zip(op._schema.arguments, sample) if a is not None}
        assert changed == declared & given


@every_operator
def test_meta_tensors_give_shapes(kernel, device, generator, operator):
    args = arguments(operator, 4, device, generator)
    function = getattr(kernel, function_of(operator))
    assert_meta_as(function(*(a.to("meta") for a in args)), function(*args))


# --- block_scaled_gemm ---

E8M0 = torch.float8_e8m0fnu


def scaled_by(kernel, kinds: tuple[torch.dtype, torch.dtype]) -> Callable[..., torch.Tensor]:
    """The operator by scales that are made in the graph, of these types."""

    def function(a, b, exponents_a, exponents_b):
        scales = (torch.exp2(e).to(kind) for e, kind in zip((exponents_a, exponents_b), kinds))
        return kernel.block_scaled_gemm(a, b, *scales).float() * 2

    return function


def blocks_of_scales(rows: int, device, generator) -> tuple[torch.Tensor, ...]:
    """a, b and the exponents of their scales, of float32: column-major as activations', square as weights'."""
    a, b = (random_fp8((n, 300), NATIVE, generator).to(device) for n in (rows, 150))
    of_a = torch.randint(-6, 3, (3, rows), generator=generator).float().to(device).t()
    return a, b, of_a, torch.randint(-6, 3, (2, 3), generator=generator).float().to(device)


@pytest.mark.parametrize("kinds", [(E8M0, E8M0), (torch.float32, E8M0), (E8M0, torch.float32)], ids=str)
@pytest.mark.parametrize("compiler", ["aot_eager", BACKEND])
def test_one_graph_with_each_type_of_scales(kernel, device, generator, kinds, compiler):
    function = scaled_by(kernel, kinds)
    args = blocks_of_scales(5, device, generator)
    wide = scaled_by(kernel, (torch.float32, torch.float32))(*args)
    got = both_ways(function, args, torch.compile(function, fullgraph=True, backend=compiler))
    assert same_bytes(got, wide)
    assert_meta_as(function(*(a.to("meta") for a in args)), got)


def test_scales_of_bytes_are_arguments_of_a_graph(kernel, device, generator):
    a, b, of_a, of_b = blocks_of_scales(5, device, generator)
    args = a, b, torch.exp2(of_a).to(E8M0), torch.exp2(of_b).to(E8M0)
    both_ways(kernel.block_scaled_gemm, args, torch.compile(kernel.block_scaled_gemm, fullgraph=True, backend=BACKEND))


def test_any_number_of_rows_with_scales_of_bytes(kernel, device, generator):
    function = scaled_by(kernel, (E8M0, E8M0))
    with torch._dynamo.config.patch(error_on_recompile=True):
        compiled = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=True)
        for rows in (5, 17, 130):  # not 3, the number of blocks: the graph would be of equal sizes
            both_ways(function, blocks_of_scales(rows, device, generator), compiled)


# --- computed scales ---

MODES = [
    dict(scaling="tensor"),
    dict(scaling="tensor", scale_dtype=E8M0, fp8_max=224.0),
    dict(scaling="row", column_major_scales=True),
    dict(scaling="row", power_of_two=True, scale_ub=1.5),
    dict(scaling="row", scale_dtype=E8M0),
    dict(scaling="group", group_size=32, scale_dtype=E8M0, column_major_scales=True),
    dict(scaling="group", group_size=64, power_of_two=True, column_major_scales=True),
    dict(scaling="group", fp8_max=224.0, scale_ub=1.5),
]
COMPUTED = ("quantize_fp8", "rms_norm_dynamic_fp8", "add_rms_norm_dynamic_fp8", "swiglu_dynamic_fp8")
NORMS = COMPUTED[1:3]
every_computed = pytest.mark.parametrize("operator", COMPUTED)
# The scales are allocated by one function for all: each of the fused operators has a third of the modes.
every_mode = pytest.mark.parametrize(
    "operator, mode",
    [("quantize_fp8", mode) for mode in MODES] + [(COMPUTED[1 + i % 3], mode) for i, mode in enumerate(MODES)],
    ids=lambda v: v if isinstance(v, str) else "-".join(map(str, v.values())),
)


def in_mode(mode: dict, kernel, operator: str, device) -> Callable[..., Result]:
    if "scale_ub" in mode:
        mode = mode | dict(scale_ub=torch.tensor([mode["scale_ub"]], device=device))
    return lambda *args: getattr(kernel, operator)(*args, **mode)


def operands(operator: str, shape, device, generator) -> tuple[torch.Tensor, ...]:
    """With rows of 200 values, which have several groups."""
    x, residual = (normal((*shape, 200), torch.bfloat16, generator).to(device) for _ in range(2))
    weight = weights((200,), torch.bfloat16, generator).to(device)
    return {
        "quantize_fp8": (x,),
        "rms_norm_dynamic_fp8": (x, weight),
        "add_rms_norm_dynamic_fp8": (x, residual, weight),
        "swiglu_dynamic_fp8": (torch.cat([x, residual], dim=-1),),
    }[operator]


@every_mode
def test_one_graph_of_each_kind_of_scales(kernel, device, generator, operator, mode):
    function = in_mode(mode, kernel, operator, device)
    args = operands(operator, (2, 3), device, generator)
    got = both_ways(function, args, torch.compile(function, fullgraph=True, backend=BACKEND))
    assert got[1].float().min() > 0
    assert_meta_as(in_mode(mode, kernel, operator, "meta")(*(a.to("meta") for a in args)), got)


@every_mode
def test_any_number_of_rows_with_each_kind_of_scales(kernel, device, generator, operator, mode):
    function = in_mode(mode, kernel, operator, device)
    with torch._dynamo.config.patch(error_on_recompile=True):
        compiled = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=True)
        for rows in (3, 17, 64):
            both_ways(function, operands(operator, (rows,), device, generator), compiled)


@pytest.mark.parametrize("shape", [(0, 40), (3, 0)], ids=str)
@pytest.mark.parametrize("kind", [dict(), dict(power_of_two=True), dict(scale_dtype=E8M0)], ids=str)
@every_computed
def test_one_graph_of_an_empty_tensor(kernel, device, operator, shape, kind):
    """Its scales are written without a kernel of the package."""

    def function(x):
        args = {"quantize_fp8": (x,), "swiglu_dynamic_fp8": (torch.cat([x, x], dim=-1),)}.get(operator)
        args = args or (x, *[x.clone()] * (operator == NORMS[1]), x.new_ones(x.shape[-1]))
        return tuple(getattr(kernel, operator)(*args, scaling=scaling, **kind)[1] for scaling in ("tensor", "row"))

    x = torch.empty(shape, dtype=torch.bfloat16, device=device)
    # Inductor folds these scales to constants, and knows no constant of this type on a CPU.
    backend = "aot_eager" if "scale_dtype" in kind else BACKEND
    both_ways(function, (x,), torch.compile(function, fullgraph=True, backend=backend))


@every_computed
def test_scales_are_seen_to_be_written(kernel, device, generator, operator):
    def function(scales, *args):
        before = scales * 2
        q, got = getattr(kernel, operator)(*args, scaling="group", scale_out=scales)
        return before, q.float() * scales[:, :1], got + scales

    args = torch.ones(4, 2, device=device), *operands(operator, (4,), device, generator)
    both_ways(function, args, torch.compile(function, fullgraph=True, backend=BACKEND))


@pytest.mark.parametrize("compiler", ["eager", "aot_eager", BACKEND])
@pytest.mark.parametrize("operator", NORMS)
def test_normalized_out_is_seen_to_be_written(kernel, device, generator, operator, compiler):
    """An argument that may be missing: a buffer of the caller's, one of the graph's own, none."""

    def function(y, *args):
        before = y * 2
        own = torch.ones_like(y)
        results = []
        for normalized in (y, own, None):
            results += getattr(kernel, operator)(*args, normalized_out=normalized)
        return before, y + 1, own + 1, *(result.float() for result in results)

    args = operands(operator, (4,), device, generator)
    args = torch.ones_like(args[0]), *args
    got = both_ways(function, args, torch.compile(function, fullgraph=True, backend=compiler))
    assert (got[0] == 2).all() and not (got[1] == 2).all()


@pytest.mark.parametrize("limit", [None, 1, 0.5])
def test_a_limit_in_one_graph(kernel, device, generator, limit):
    def function(x):
        return kernel.swiglu_dynamic_fp8(x, limit=limit)

    args = operands("swiglu_dynamic_fp8", (4,), device, generator)
    for dynamic in (False, True):
        both_ways(function, args, torch.compile(function, fullgraph=True, backend=BACKEND, dynamic=dynamic))


def test_calls_are_counted_eager_and_compiled(kernel, device):
    x, scale = torch.ones(2, 64, dtype=torch.bfloat16, device=device), torch.ones(1, device=device)

    def calls() -> dict[str, int]:
        return {name: count - before[name] for name, count in kernel.call_counts().items() if count != before[name]}

    before = kernel.call_counts()
    operators = {name for name in kernel.__all__ if name.endswith(("_fp8", "_int8", "_i8", "_f32"))}
    assert set(before) == operators | {"rms_norm", *GEMMS} | moe_operators(kernel) | mla_operators(
        kernel
    ) | comm_operators(kernel)
    kernel.swiglu_fp8(x, scale)
    kernel.quantize_fp8(x, scale)
    kernel.quantize_fp8(x)
    assert calls() == {"swiglu_fp8": 1, "quantize_fp8": 2}
    compiled = torch.compile(lambda: kernel.swiglu_fp8(x, scale), fullgraph=True, backend=BACKEND)
    compiled()
    compiled()
    with pytest.raises(RuntimeError, match="swiglu_fp8: scale"):
        kernel.swiglu_fp8(x, scale.double())
    assert calls() == {"swiglu_fp8": 3, "quantize_fp8": 2}
