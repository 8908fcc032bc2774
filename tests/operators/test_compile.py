"""torch.compile without graph breaks, torch's own checks of the registrations, and equality with eager."""

import shutil
import sys
from collections.abc import Callable

import pytest
import torch

from tests.problems.buffers import same_bytes
from tests.problems.inputs import normal, positive, random_fp8, weights

# Inductor needs a C++ compiler for what it generates around the operators; tracing and functionalisation do not.
BACKEND = "inductor" if shutil.which("g++") or shutil.which("clang++") else "aot_eager"


@pytest.fixture(autouse=True)
def fresh_graphs():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


NATIVE = torch.float8_e4m3fn


@pytest.fixture(autouse=True)
def native_format(kernel, device, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "NATIVE", kernel.fp8_dtype(device))


def arguments(operator: str, rows: int, device, generator) -> tuple[torch.Tensor, ...]:
    """Positional arguments, without out."""

    def half(*shape) -> torch.Tensor:
        return normal(shape, torch.bfloat16, generator)

    weight, scale = weights((40,), torch.bfloat16, generator), positive((1,), generator)
    values = {
        "rms_norm": lambda: (half(rows, 40), weight),
        "rms_norm_fp8": lambda: (half(rows, 40), weight, scale),
        "add_rms_norm_fp8": lambda: (half(rows, 40), half(rows, 40), weight, scale),
        "swiglu_fp8": lambda: (half(rows, 80), scale),
        "skinny_gemm": lambda: (
            random_fp8((rows, 64), NATIVE, generator),
            random_fp8((40, 64), NATIVE, generator),
            positive((rows, 1), generator),
            positive((1, 40), generator),
            half(40),
        ),
    }[operator]()
    return tuple(value.to(device) for value in values)


OPERATORS = ("rms_norm", "rms_norm_fp8", "add_rms_norm_fp8", "swiglu_fp8", "skinny_gemm")
every_operator = pytest.mark.parametrize("operator", OPERATORS)


def both_ways(function: Callable, args: tuple, compiled: Callable) -> torch.Tensor:
    """The compiled result, after its bytes and those of every argument afterwards were found equal to eager's."""
    eager_args, compiled_args = (tuple(a.clone() for a in args) for _ in range(2))
    wanted, got = function(*eager_args), compiled(*compiled_args)
    assert same_bytes(got, wanted)
    for i, (a, b) in enumerate(zip(compiled_args, eager_args)):
        assert same_bytes(a, b), f"argument {i} afterwards"
    return got


@every_operator
def test_one_graph_with_an_allocated_result(kernel, device, generator, operator):
    function = getattr(kernel, operator)
    compiled = torch.compile(function, fullgraph=True, backend=BACKEND)
    both_ways(function, arguments(operator, 4, device, generator), compiled)


@every_operator
def test_one_graph_that_writes_into_out(kernel, device, generator, operator):
    args = arguments(operator, 4, device, generator)
    out = torch.empty_like(getattr(kernel, operator)(*(a.clone() for a in args)))

    def function(out, *args):
        result = getattr(kernel, operator)(*args, out=out)
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

    function = getattr(kernel, operator)
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
    dtype = torch.bfloat16 if operator in ("rms_norm", "skinny_gemm") else NATIVE
    rest = (1e-6,) if "rms_norm" in operator else ()
    for rows in (0, 4):
        args = arguments(operator, rows, device, generator)
        yield (torch.zeros((rows, 40), dtype=dtype, device=device), *args, *rest)
    out = torch.zeros(4, 64, dtype=dtype, device=device)[:, :40]
    wide = torch.cat([args[0], args[0]], dim=-1)[:, : args[0].shape[1]]
    yield (out, wide, *args[1:], *rest)


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
    assert declared == ({"out", "residual"} if operator == "add_rms_norm_fp8" else {"out"})
    for sample in list(registered_samples(operator, device, generator))[1:]:
        before = [a.clone() if isinstance(a, torch.Tensor) else a for a in sample]
        assert op(*sample) is None
        changed = {
            argument.name
            for argument, a, b in zip(op._schema.arguments, sample, before)
            if isinstance(a, torch.Tensor) and not same_bytes(a, b)
        }
        assert changed == declared


@every_operator
def test_meta_tensors_give_shapes(kernel, device, generator, operator):
    args = arguments(operator, 4, device, generator)
    wanted = getattr(kernel, operator)(*args)
    got = getattr(kernel, operator)(*(a.to("meta") for a in args))
    assert got.is_meta and (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
