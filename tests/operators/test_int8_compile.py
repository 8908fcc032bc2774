"""The int8 operators in torch.compile without graph breaks, and torch's own checks of their registrations."""

from collections.abc import Callable

import pytest
import torch

from tests.operators.compiled import BACKEND, Result, assert_meta_as, both_ways, parts
from tests.problems.buffers import same_bytes
from tests.problems.inputs import normal, weights
from tests.problems.int8 import INT8, any_bytes
from tests.problems.operators import int8_operators

N, K, D = 40, 72, 72


@pytest.fixture(autouse=True)
def fresh_graphs():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def calls(kernel) -> dict[str, Callable[..., Result]]:
    """Each operator, in each of its forms, as a function of tensors alone."""
    k = kernel
    return {
        "int8_gemm": lambda a, b, sa, sb, bias, **o: k.int8_gemm(a, b, sa, sb, bias, activation="relu", **o),
        "int8_gemm-zeros": lambda a, b, sa, sb, bias, zero, sums, by, **o: k.int8_gemm(
            *(a, b, sa, sb, bias), zero_a=zero, sum_b=sums, scale_out=by, out_dtype=INT8, **o
        ),
        "linear_abde_i8": lambda a, b, d, alpha, beta, **o: k.linear_abde_i8(a, b, d, alpha, beta, **o),
        "linear_relu_abde_i8": lambda a, b, d, **o: k.linear_relu_abde_i8(a, b, d, 0.01, 0.5, **o),
        "linear_ab_i8_de_f32": lambda a, b, d, alpha, **o: k.linear_ab_i8_de_f32(a, b, d, alpha, 2, **o),
        "bmm_abe_i8": lambda a, b, **o: k.bmm_abe_i8(a, b, 0.003, **o),
        "bmm_ab_i8_e_f32": lambda a, b, alpha, **o: k.bmm_ab_i8_e_f32(a, b, alpha, **o),
        "quantize_int8": lambda x, **o: k.quantize_int8(x, **o)[:2],
        "quantize_int8-zeros": lambda x, **o: k.quantize_int8(x, symmetric=False, **o),
        "quantize_int8-static": lambda x, scale, zero, **o: k.quantize_int8(x, scale, zero, **o)[0],
        "layer_norm_int8": lambda x, residual, w, b, **o: k.layer_norm_int8(x, w, b, residual=residual, **o)[:2],
        "layer_norm_int8-static": lambda x, w, scale, **o: k.layer_norm_int8(x, w, None, scale, **o)[0],
        "softmax_int8": lambda x, mask, **o: k.softmax_int8(x, mask, **o),
    }


def arguments(name: str, rows: int, device, generator) -> tuple[torch.Tensor, ...]:
    def one(value: float) -> torch.Tensor:
        return torch.tensor([value])

    def x() -> torch.Tensor:
        return normal((rows, D), torch.bfloat16, generator)

    a, b = any_bytes((rows, K), generator), any_bytes((N, K), generator)
    scaled = (a, b, torch.rand(rows, 1) / 100, torch.rand(1, N) / 100, normal((N,), torch.bfloat16, generator))
    zeros = (torch.randint(-128, 128, (rows, 1)).int(), b.sum(-1, dtype=torch.int32), one(0.5))
    batches = any_bytes((3, rows, K), generator), any_bytes((3, N, K), generator)
    weight = weights((D,), torch.bfloat16, generator)
    values = {
        "int8_gemm": scaled,
        "int8_gemm-zeros": scaled + zeros,
        "linear_abde_i8": (a, b, any_bytes((N,), generator), one(0.01), one(0.5)),
        "linear_relu_abde_i8": (a, b, any_bytes((rows, N), generator)),
        "linear_ab_i8_de_f32": (a, b, normal((N,), torch.float32, generator), one(0.01)),
        "bmm_abe_i8": batches,
        "bmm_ab_i8_e_f32": (*batches, one(0.02)),
        "quantize_int8": (x(),),
        "quantize_int8-zeros": (x(),),
        "quantize_int8-static": (x(), one(0.02), torch.tensor([3], dtype=torch.int32)),
        "layer_norm_int8": (x(), x(), weight, weight.clone()),
        "layer_norm_int8-static": (x(), weight, one(0.02)),
        "softmax_int8": (x(), x()),
    }[name]
    return tuple(value.to(device) for value in values)


FORMS = tuple(calls(None))
every_form = pytest.mark.parametrize("name", FORMS)


@every_form
def test_one_graph_that_writes_into_out(kernel, device, generator, name):
    args = arguments(name, 4, device, generator)
    out = torch.empty_like(parts(calls(kernel)[name](*(a.clone() for a in args)))[0])

    def function(out, *args):
        before = out.float() * 2
        result = parts(calls(kernel)[name](*args, out=out))[0]
        # What is computed from `out` afterwards must see the new values.
        return before + result.float() + out.float()

    both_ways(function, (out.fill_(1), *args), torch.compile(function, fullgraph=True, backend=BACKEND))


@every_form
def test_any_number_of_rows_in_one_graph(kernel, device, generator, name):
    with torch._dynamo.config.patch(error_on_recompile=True):
        compiled = torch.compile(calls(kernel)[name], fullgraph=True, backend="aot_eager", dynamic=True)
        for rows in (5, 17, 64):
            got = both_ways(calls(kernel)[name], arguments(name, rows, device, generator), compiled)
            assert parts(got)[0].float().abs().sum() > 0


@every_form
def test_meta_tensors_give_shapes(kernel, device, generator, name):
    args = arguments(name, 4, device, generator)
    assert_meta_as(calls(kernel)[name](*(a.to("meta") for a in args)), calls(kernel)[name](*args))


def test_attention_in_one_graph(kernel, device, generator):
    """SmoothQuant's: the operators one after the other, nothing copied, no host in between."""
    heads, tokens, d = 3, 7, 16

    def function(x, weight, bias, one, alpha):
        q, _, _ = kernel.layer_norm_int8(x, weight, bias, one)
        q = q.view(tokens, heads, d).transpose(0, 1)
        scores = kernel.bmm_ab_i8_e_f32(q, q, alpha)
        p = kernel.softmax_int8(scores)
        return kernel.bmm_abe_i8(p, q.mT.contiguous(), 1 / 127)

    x = normal((tokens, heads * d), torch.float32, generator).to(device)
    weight, bias = (torch.randn(heads * d, generator=generator).to(device) * 30 for _ in range(2))
    args = x, weight, bias, torch.ones(1, device=device), torch.tensor([0.0005], device=device)
    got = both_ways(function, args, torch.compile(function, fullgraph=True, backend=BACKEND))
    assert got.float().std() > 1


# --- the registrations ---


def registered_samples(operator: str, device, generator):
    """Arguments of the registered operator: dense, without rows, and with rows apart; each of its forms."""

    def i8(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=INT8, device=device)

    def f32(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, device=device)

    def i32(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.int32, device=device)

    for rows, pad in ((0, 0), (4, 0), (4, 5)):

        def apart(t: torch.Tensor, pad=pad) -> torch.Tensor:
            return torch.cat([t, t[..., :pad]], dim=-1)[..., : t.shape[-1]]

        if operator == "int8_gemm":
            *args, zero, sums, by = arguments("int8_gemm-zeros", rows, device, generator)
            args[0] = apart(args[0])
            yield (apart(i8(rows, N)), *args, zero, sums, by, 1, False)
            yield (apart(f32(rows, N)), *args[:4], None, None, None, None, 2, True)
        elif operator.startswith("linear"):
            a, b, d, *_ = arguments(operator, rows, device, generator)
            out = f32(rows, N) if operator.endswith("f32") else i8(rows, N)
            yield (apart(out), apart(a), b, d, torch.full((1,), 0.1, device=device), None, 0.0, 0.5, False)
            yield (apart(out), apart(a), b, d, None, torch.ones(1, device=device), 0.1, 0.0, True)
        elif operator.startswith("bmm"):
            a, b, *_ = arguments(operator, rows, device, generator)
            out = f32(3, rows, N) if operator.endswith("f32") else i8(3, rows, N)
            yield (apart(out), apart(a), b, None, 0.1)
            yield (apart(out), a, apart(b), torch.full((1,), 0.1, device=device), 0.0)
        else:
            x, residual, weight, bias = arguments("layer_norm_int8", rows, device, generator)
            one, zero = torch.full((1,), 0.03, device=device), i32(1) + 5
            middle = {
                "quantize_int8": [()],
                "layer_norm_int8": [(residual, weight, bias), (None, weight, None)],
                "softmax_int8": [(apart(residual),), (None,)],
            }[operator]
            for tensors in middle:
                if operator == "softmax_int8":
                    yield (apart(i8(rows, D)), apart(x), *tensors)
                    continue
                last = (1e-5,) if "norm" in operator else ()
                yield (apart(i8(rows, D)), f32(rows, 1), i32(rows, 1), apart(x), *tensors, None, None, *last)
                yield (apart(i8(rows, D)), f32(rows, 1), None, apart(x), *tensors, None, None, *last)
                yield (apart(i8(rows, D)), None, None, apart(x), *tensors, one, zero, *last)


OPERATORS = tuple(dict.fromkeys(name.split("-")[0] for name in FORMS))
every_operator = pytest.mark.parametrize("operator", OPERATORS)


def test_no_operator_is_left_out(kernel):
    assert set(OPERATORS) == int8_operators(kernel)


WRITTEN = {
    "quantize_int8": {"out", "scale_out", "zero_point_out"},
    "layer_norm_int8": {"out", "scale_out", "zero_point_out", "residual"},
}


@every_operator
def test_torchs_checks_of_the_registration(kernel, device, generator, operator):
    op = getattr(kernel._ops.ops, operator).default
    for sample in registered_samples(operator, device, generator):
        torch.library.opcheck(op, sample)


@every_operator
def test_what_the_schema_says_is_written_and_nothing_else(kernel, device, generator, operator):
    op = getattr(kernel._ops.ops, operator).default
    declared = {argument.name for argument in op._schema.arguments if argument.is_write}
    assert declared == WRITTEN.get(operator, {"out"})
    for sample in registered_samples(operator, device, generator):
        before = [a.clone() if isinstance(a, torch.Tensor) else a for a in sample]
        assert op(*sample) is None
        changed = {
            argument.name
            for argument, a, b in zip(op._schema.arguments, sample, before)
            if isinstance(a, torch.Tensor) and not same_bytes(a, b)
        }
        given = {argument.name for argument, a in zip(op._schema.arguments, sample) if a is not None}
        assert changed == (declared & given if sample[0].numel() else set())
