"""What the operators write counts as written for torch's autograd, and gradients that would get lost are refused."""

import pytest
import torch

from tests.operators.bad_calls import TENSORS, valid_call
from tests.problems.inputs import normal, positive
from tests.problems.operators import fp8_operators, function_of, int8_operators

INT8 = ("int8_gemm", "linear_abde_i8", "linear_relu_abde_i8", "linear_ab_i8_de_f32", "bmm_abe_i8", "bmm_ab_i8_e_f32")
INT8_ROWS = ("quantize_int8", "layer_norm_int8", "softmax_int8")
every_operator = pytest.mark.parametrize("operator", TENSORS)


def versions(arguments: dict) -> dict[str, int]:
    return {name: t._version for name, t in arguments.items() if isinstance(t, torch.Tensor)}


def assert_written(before: dict[str, int], after: dict[str, int], written: set[str]) -> None:
    assert {name for name in before if after[name] > before[name]} == written


def test_no_operator_is_left_out(kernel):
    assert set(TENSORS) == fp8_operators(kernel)
    assert {*INT8, *INT8_ROWS} == int8_operators(kernel)


@every_operator
@pytest.mark.parametrize("compiler", [None, "aot_eager", "inductor"])
def test_written_arguments_count_their_writes(kernel, device, generator, operator, compiler):
    call = valid_call(kernel, operator, device, generator)
    written = {"out", "residual", "normalized_out", "scale_out"} & call.arguments.keys()
    function = getattr(kernel, function_of(operator))
    if compiler:
        torch._dynamo.reset()
        function = torch.compile(function, fullgraph=True, backend=compiler)
    for _ in range(2):
        before = versions(call.arguments)
        function(**call.arguments)
        assert_written(before, versions(call.arguments), written)


@pytest.mark.parametrize("operator", INT8)
def test_int8_results_count_their_writes(kernel, device, operator):
    batches = (2,) if operator.startswith("bmm") else ()
    a, b = (torch.ones(*batches, rows, 32, dtype=torch.int8, device=device) for rows in (4, 8))
    one, d = torch.ones(1, device=device), torch.ones(8, device=device)
    out = torch.empty(*batches, 4, 8, dtype=torch.float32 if "f32" in operator else torch.int8, device=device)
    more = {"int8_gemm": (one, one), "linear_ab_i8_de_f32": (d,)}.get(operator, () if batches else (d.to(torch.int8),))
    before = out._version, a._version, b._version
    getattr(kernel, operator)(a, b, *more, out=out)
    assert out._version > before[0] and (a._version, b._version) == before[1:]


@pytest.mark.parametrize("operator", INT8_ROWS)
def test_int8_rows_count_their_writes(kernel, device, generator, operator):
    x = normal((4, 32), torch.bfloat16, generator).to(device)
    given, written = dict(x=x, out=torch.empty(4, 32, dtype=torch.int8, device=device)), {"out"}
    if operator != "softmax_int8":
        given |= dict(
            scale_out=torch.empty(4, 1, device=device),
            zero_point_out=torch.empty(4, 1, dtype=torch.int32, device=device),
        )
        written |= {"scale_out", "zero_point_out"}
    if operator == "layer_norm_int8":
        given |= dict(weight=x[0].clone(), residual=x.clone())
        written.add("residual")
    options = dict(symmetric=False) if "scale_out" in given else {}
    before = versions(given)
    getattr(kernel, operator)(**given, **options)
    assert_written(before, versions(given), written)


def test_inference_tensors_are_written(kernel, device, generator):
    with torch.inference_mode():
        x = normal((2, 64), torch.bfloat16, generator).to(device)
        residual, one = torch.zeros_like(x), torch.ones(1, device=device)
        kernel.add_rms_norm_fp8(x, residual, x[0].clone(), one)
        assert torch.equal(residual, x)


@every_operator
def test_a_refused_call_writes_nothing_and_counts_nothing(kernel, device, generator, operator):
    call = valid_call(kernel, operator, device, generator)
    call.arguments["out"] = call.arguments["out"][:2]
    before = versions(call.arguments)
    with pytest.raises(RuntimeError):
        call(kernel)
    assert versions(call.arguments) == before


def test_autograd_sees_that_a_saved_residual_has_changed(kernel, device, generator):
    """x * x saves x. A residual written afterwards gave 2 * (x + residual) as its gradient, without a word."""
    leaf = torch.ones(1, 8, dtype=torch.bfloat16, device=device, requires_grad=True)
    residual = leaf * 1
    loss = (residual * residual).sum()
    x, scale = normal((1, 8), torch.bfloat16, generator).to(device), positive((1,), generator).to(device)
    weight = torch.ones_like(x[0])
    with torch.no_grad():
        kernel.add_rms_norm_fp8(x, residual, weight, scale)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


FLOATS = [
    (operator, name)
    for operator, names in TENSORS.items()
    for name in names
    if name in ("x", "residual", "weight", "scale", "scale_a", "scale_b", "bias", "normalized_out")
]


@pytest.mark.parametrize("operator, name", FLOATS)
@pytest.mark.parametrize("compiler", [None, "aot_eager"])
def test_a_gradient_that_would_get_lost_is_refused(kernel, device, generator, operator, name, compiler):
    call = valid_call(kernel, operator, device, generator)
    call.arguments[name].requires_grad_()
    function = getattr(kernel, function_of(operator))
    if compiler:
        torch._dynamo.reset()
        function = torch.compile(function, fullgraph=True, backend=compiler)
    before = versions(call.arguments)
    with pytest.raises(Exception, match=f"{function_of(operator)}: {name}: requires grad"):
        function(**call.arguments)
    assert versions(call.arguments) == before
    with torch.no_grad():
        function(**call.arguments)
