"""torch.compile of several operators after one another, as models use them, and of what no single call shows.

Each operator by itself: test_contract_compile.py."""

from collections.abc import Callable

import pytest
import torch

from problems.buffers import same_bytes
from problems.inputs import normal, positive, random_fp8, weights
from problems.operators import function_of
from problems.registry import OPERATORS
from tests.operators.compiled import BACKEND, assert_meta_as, both_ways

pytestmark = pytest.mark.usefixtures("fresh_graphs")

E8M0 = torch.float8_e8m0fnu
NORMS = ("rms_norm_dynamic_fp8", "add_rms_norm_dynamic_fp8")
COMPUTED = ("quantize_fp8", *NORMS, "swiglu_dynamic_fp8")


def drawn(on, operator: str, form: str | None = None, **sizes) -> tuple[torch.Tensor, ...]:
    """The tensors of a call of the registry's, in the function's order."""
    each = OPERATORS[operator]
    arguments = each.arguments(on(each, **sizes), form or each.first)
    return tuple(t for t in arguments.values() if isinstance(t, torch.Tensor))


def compiled(function: Callable, **options) -> Callable:
    return torch.compile(function, fullgraph=True, **dict(backend=BACKEND) | options)


# --- norms and GEMMs of FP8 ---


def test_a_batch_that_is_no_rows(kernel, device, generator):
    # The wrapper copies a transposed batch; the decision must not break the graph.
    x = normal((3, 5, 40), torch.bfloat16, generator).to(device)
    residual = normal((3, 5, 40), torch.bfloat16, generator).to(device)
    weight, scale = weights((40,), torch.bfloat16, generator).to(device), positive((1,), generator).to(device)

    def function(x, residual, weight, scale):
        return kernel.add_rms_norm_fp8(x.transpose(0, 1), residual.transpose(0, 1), weight, scale)

    both_ways(function, (x, residual, weight, scale), compiled(function))


def test_the_residual_is_seen_to_change(kernel, on):
    x, residual, weight, scale = args = drawn(on, "add_rms_norm_fp8")

    def function(x, residual, weight, scale):
        before = residual * 2
        q = kernel.add_rms_norm_fp8(x, residual, weight, scale)
        # Read between, written again by a second layer, read once more.
        between = residual.clone()
        q2 = kernel.add_rms_norm_fp8(between, residual, weight, scale)
        return before.float() + between.float() + residual.float() + q.float() + q2.float()

    both_ways(function, args, compiled(function))
    clone = residual.clone()
    compiled(function)(x, clone, weight, scale)
    assert same_bytes(clone, (x + residual) + (x + residual))


def test_a_decoder_layer_in_one_graph(kernel, device, generator):
    """The operators one after the other, as a model uses them."""
    hidden, inner, fp8 = 40, 48, kernel.fp8_dtype(device)
    x, residual = (normal((4, hidden), torch.bfloat16, generator).to(device) for _ in range(2))
    weight = weights((hidden,), torch.bfloat16, generator).to(device)
    gate_up = random_fp8((2 * inner, hidden), fp8, generator).to(device)
    down = random_fp8((hidden, inner), fp8, generator).to(device)
    one = torch.ones((), device=device)

    def function(x, residual, weight, gate_up, down, one):
        q = kernel.add_rms_norm_fp8(x, residual, weight, one, out_dtype=fp8)
        h = kernel.skinny_gemm(q, gate_up, one, one * 0.02)
        return kernel.skinny_gemm(kernel.swiglu_fp8(h, one, out_dtype=fp8), down, one, one)

    args = (x, residual, weight, gate_up, down, one)
    got = both_ways(function, args, compiled(function))
    assert got.float().abs().sum() > 0


def scaled_by(kernel, kinds: tuple[torch.dtype, torch.dtype]) -> Callable[..., torch.Tensor]:
    """The operator by scales that are made in the graph, of these types."""

    def function(a, b, exponents_a, exponents_b):
        scales = (torch.exp2(e).to(kind) for e, kind in zip((exponents_a, exponents_b), kinds))
        return kernel.block_scaled_gemm(a, b, *scales).float() * 2

    return function


def blocks_of_scales(kernel, rows: int, device, generator) -> tuple[torch.Tensor, ...]:
    """a, b and the exponents of their scales, of float32: column-major as activations', square as weights'."""
    a, b = (random_fp8((n, 300), kernel.fp8_dtype(device), generator).to(device) for n in (rows, 150))
    of_a = torch.randint(-6, 3, (3, rows), generator=generator).float().to(device).t()
    return a, b, of_a, torch.randint(-6, 3, (2, 3), generator=generator).float().to(device)


@pytest.mark.parametrize("kinds", [(E8M0, E8M0), (torch.float32, E8M0), (E8M0, torch.float32)], ids=str)
@pytest.mark.parametrize("compiler", ["aot_eager", BACKEND])
def test_one_graph_with_each_type_of_scales(kernel, device, generator, kinds, compiler):
    function = scaled_by(kernel, kinds)
    args = blocks_of_scales(kernel, 5, device, generator)
    wide = scaled_by(kernel, (torch.float32, torch.float32))(*args)
    got = both_ways(function, args, compiled(function, backend=compiler))
    assert same_bytes(got, wide)
    assert_meta_as(function(*(a.to("meta") for a in args)), got)


def test_any_number_of_rows_with_scales_of_bytes(kernel, device, generator):
    function = scaled_by(kernel, (E8M0, E8M0))
    with torch._dynamo.config.patch(error_on_recompile=True):
        graph = compiled(function, backend="aot_eager", dynamic=True)
        for rows in (5, 17, 130):  # not 3, the number of blocks: the graph would be of equal sizes
            both_ways(function, blocks_of_scales(kernel, rows, device, generator), graph)


# --- scales that are computed ---


@pytest.mark.parametrize("shape", [(0, 40), (3, 0)], ids=str)
@pytest.mark.parametrize("kind", [dict(), dict(power_of_two=True), dict(scale_dtype=E8M0)], ids=str)
@pytest.mark.parametrize("operator", COMPUTED)
def test_one_graph_of_an_empty_tensor(kernel, device, operator, shape, kind):
    """Its scales are written without a kernel of the package."""

    def function(x):
        args = {"quantize_fp8": (x,), "swiglu_dynamic_fp8": (torch.cat([x, x], dim=-1),)}.get(operator)
        args = args or (x, *[x.clone()] * (operator == NORMS[1]), x.new_ones(x.shape[-1]))
        return tuple(getattr(kernel, operator)(*args, scaling=scaling, **kind)[1] for scaling in ("tensor", "row"))

    x = torch.empty(shape, dtype=torch.bfloat16, device=device)
    # Inductor folds these scales to constants, and knows no constant of this type on a CPU.
    backend = "aot_eager" if "scale_dtype" in kind else BACKEND
    both_ways(function, (x,), compiled(function, backend=backend))


@pytest.mark.parametrize("compiler", ["eager", "aot_eager", BACKEND])
@pytest.mark.parametrize("operator", NORMS)
def test_normalized_out_may_be_the_graphs_own(kernel, on, operator, compiler):
    """A buffer of the caller's, one of the graph's own, none."""

    def function(y, *args):
        before, own, results = y * 2, torch.ones_like(y), []
        for normalized in (y, own, None):
            results += getattr(kernel, operator)(*args, normalized_out=normalized)
        return before, y + 1, own + 1, *(result.float() for result in results)

    *args, _, y = drawn(on, operator)
    # "eager" calls the library itself, where no write counts.
    graph, counts = compiled(function, backend=compiler), compiler != "eager"
    got = both_ways(function, (torch.ones_like(y), *args), graph, counts=counts)
    assert (got[0] == 2).all() and not (got[1] == 2).all()


def test_calls_are_counted_eager_and_compiled(kernel, device):
    x, scale = torch.ones(2, 64, dtype=torch.bfloat16, device=device), torch.ones(1, device=device)

    def calls() -> dict[str, int]:
        return {name: count - before[name] for name, count in kernel.call_counts().items() if count != before[name]}

    before = kernel.call_counts()
    assert set(before) == {function_of(name) for name, each in OPERATORS.items() if not each.composite}
    kernel.swiglu_fp8(x, scale)
    kernel.quantize_fp8(x, scale)
    kernel.quantize_fp8(x)
    assert calls() == {"swiglu_fp8": 1, "quantize_fp8": 2}
    graph = compiled(lambda: kernel.swiglu_fp8(x, scale))
    graph()
    graph()
    with pytest.raises(RuntimeError, match="swiglu_fp8: scale"):
        kernel.swiglu_fp8(x, scale.double())
    assert calls() == {"swiglu_fp8": 3, "quantize_fp8": 2}


# --- int8, mixtures of experts, latent attention ---


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
    got = both_ways(function, args, compiled(function))
    assert got.float().std() > 1


def test_a_mixture_of_experts_in_one_graph(kernel, device, generator, on):
    """From the router's logits to the residual, nothing read on the host in between."""
    x, w13, w2, _, _, s13, s2 = drawn(on, "fused_moe", rows=5)
    router = normal((len(w13), x.shape[1]), torch.bfloat16, generator).to(device)

    def function(x, router, w13, w2, s13, s2):
        weights, experts = kernel.moe_route(x @ router.t(), 2, renormalize=True)
        return x + kernel.fused_moe(x, w13, w2, weights, experts, scale_w13=s13, scale_w2=s2, shared=x * 0.5)

    # Inductor may round torch's own operations less often.
    both_ways(function, (x, router, w13, w2, s13, s2), compiled(function, backend="aot_eager"))


def test_a_cache_is_written_then_read_in_one_graph(kernel, on):
    def function(kv, k_rope, cache, slots, cos, sin, scale, q, lengths, table):
        kernel.mla_append(kv, k_rope, cache, slots, cos=cos, sin=sin, cache_scale=scale)
        out = kernel.mla_decode(q, cache, lengths, 0.07, block_table=table, cache_scale=scale)
        return out * 2, out.amax(-1)

    def arguments(rows: int) -> tuple[torch.Tensor, ...]:
        q, _, lengths, table, *_ = drawn(on, "mla_decode", rows=rows)
        return (*drawn(on, "mla_append", rows=rows), q, lengths, table)

    got = both_ways(function, arguments(5), compiled(function))
    assert got[0].float().abs().sum() > 0
    torch._dynamo.reset()
    with torch._dynamo.config.patch(error_on_recompile=True):
        graph = compiled(function, backend="aot_eager", dynamic=True)
        for rows in (5, 17, 20):
            both_ways(function, arguments(rows), graph)


# --- between ranks ---


def layer(alone):
    """What follows one another in a decoder layer."""

    def function(x, residual, weight, scale):
        y = alone.all_reduce(x)
        q = alone.all_reduce_add_rms_norm_fp8(y, residual, weight, scale)
        q2, scales = alone.all_reduce_add_rms_norm_dynamic_fp8(y * 2, residual, weight, scaling="group", group_size=32)
        parts = alone.all_gather(alone.reduce_scatter(residual))
        x = x.clone()
        alone.all_reduce(x * 3, out=x)
        return q.float() + q2.float() + parts.float(), scales, x

    return function


def layer_arguments(on, rows: int = 5) -> tuple[torch.Tensor, ...]:
    return drawn(on, "all_reduce_add_rms_norm_fp8", rows=rows)


def test_a_layer_between_ranks_in_one_graph(kernel, alone, on):
    before = kernel.call_counts()
    layer(alone)(*(t.clone() for t in layer_arguments(on)))
    counted = {name: count - before[name] for name, count in kernel.call_counts().items() if count != before[name]}
    norms = {f"all_reduce_add_rms_norm{kind}_fp8": 1 for kind in ("", "_dynamic")}
    assert counted == {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1} | norms
    both_ways(layer(alone), layer_arguments(on), compiled(layer(alone)))
    torch._dynamo.reset()
    with torch._dynamo.config.patch(error_on_recompile=True):
        graph = compiled(layer(alone), backend="aot_eager", dynamic=True)
        for rows in (5, 17, 20):
            both_ways(layer(alone), layer_arguments(on, rows), graph)


def test_launches_keep_their_order(alone, device, generator):
    """Compiled code may not exchange collectives that share no operand: each rank might choose another order."""
    launched = []

    def function(x, y):
        return alone.all_reduce(y.relu()), alone.all_reduce(x)

    def look(module, inputs):
        names = [str(node.target) for node in module.graph.nodes if "all_reduce" in str(node.target)]
        launched.append(len(names))
        return module.forward

    x, y = (normal((3, 40), torch.bfloat16, generator).to(device) for _ in range(2))
    both_ways(function, (x, y), compiled(function, backend=look))
    both_ways(function, (x, y), compiled(function))
    assert launched == [2]
