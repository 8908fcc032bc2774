"""fused_moe: its parts byte for byte, the reference within a bound, and the AMD MoE challenge's problem."""

import pytest
import torch

from problems.buffers import same_bytes
from problems.grouped_gemm import Moe, draw_moe
from problems.inputs import normal
from problems.pairwise import SAMPLE, pairwise

BF16, F16 = torch.bfloat16, torch.float16
PROBLEMS = [
    Moe(*each)
    for each in pairwise(
        (0, 1, 3, 17, 40),
        (1, 4, 33),
        (1, 2, 4),
        (64, 200),
        (32, 130),
        ("group", "row", "static", "none"),
        (BF16, F16),
        seed=SAMPLE,
    )
    if each[2] <= each[1]
]
each_problem = pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.id)


def moved(arguments, device):
    args, keywords = arguments
    keywords = {n: v.to(device) if isinstance(v, torch.Tensor) else v for n, v in keywords.items()}
    return tuple(a.to(device) for a in args), keywords


@pytest.mark.parametrize("power_of_two", [False, True])
@each_problem
def test_its_parts_one_after_the_other(kernel, device, formats, generator, problem, power_of_two):
    args, keywords = moved(draw_moe(problem, formats[0], generator), device)
    x, w13, w2, weights, experts = args
    shared = normal(x.shape, problem.dtype, generator).to(device)
    got = kernel.fused_moe(*args, **keywords, shared=shared, power_of_two=power_of_two)

    rows, offsets, positions = kernel.moe_sort(experts, problem.experts)
    gather = dict(rows=rows, slots=problem.chosen)
    if problem.inputs == "none":
        c = kernel.grouped_gemm(x, w13, None, None, offsets, **gather, out_dtype=problem.dtype)
        hidden, hidden_scale, scales = kernel.reference.swiglu(c), None, (None, None)
    else:
        static = problem.inputs == "static"
        scales = keywords["scale_w13"], keywords["scale_w2"]
        scaling = {} if static else dict(scaling=problem.inputs, power_of_two=power_of_two)
        q, scale = kernel.quantize_fp8(x, keywords.get("input_scale"), **scaling)
        hidden, hidden_scale = kernel.grouped_gemm_swiglu_fp8(
            q, w13, scale, scales[0], offsets, **gather, dtype=problem.dtype,
            **(dict(scale=keywords["hidden_scale"]) if static else scaling),
        )  # fmt: skip
    y = kernel.grouped_gemm(hidden, w2, hidden_scale, scales[1], offsets, out_dtype=problem.dtype)
    assert same_bytes(got, kernel.moe_combine(y, weights, positions, shared=shared))
    if problem.inputs != "none":  # quantised by the caller
        keywords["input_scale"] = scale
        options = dict(shared=shared, power_of_two=power_of_two, dtype=problem.dtype)
        assert same_bytes(got, kernel.fused_moe(q, *args[1:], **keywords, **options))


@pytest.mark.parametrize("power_of_two", [False, True])
@each_problem
def test_as_the_reference(kernel, device, formats, generator, problem, power_of_two):
    """Sums differ in their order alone, which may move a code: by 1/8 of a value at most, which averages out."""
    args, keywords = moved(draw_moe(problem, formats[0], generator), device)
    got = kernel.fused_moe(*args, **keywords, power_of_two=power_of_two).float()
    wanted = kernel.reference.fused_moe(*args, **keywords, power_of_two=power_of_two).float()
    assert got.shape == wanted.shape
    if got.numel():
        assert (got - wanted).norm() <= 2e-2 * wanted.norm()


def test_experts_of_other_ranks_are_left_out(kernel, device, formats, generator):
    problem = Moe(19, 6, 3, 96, 64, "group", BF16)
    args, keywords = moved(draw_moe(problem, formats[0], generator), device)
    x, w13, w2, weights, experts = args
    whole = kernel.fused_moe(*args, **keywords).float()
    parts = 0
    for rank in range(2):
        mine = range(3 * rank, 3 * rank + 3)
        expert_map = torch.tensor([e - 3 * rank if e in mine else -1 for e in range(6)], dtype=torch.int32)
        of_rank = {n: v[mine.start : mine.stop] if n.startswith("scale_w") else v for n, v in keywords.items()}
        part = kernel.fused_moe(
            x, w13[mine.start : mine.stop], w2[mine.start : mine.stop], weights, experts,
            expert_map=expert_map.to(device), **of_rank,
        )  # fmt: skip
        parts = parts + part.float()
    assert (parts - whole).norm() <= 1e-2 * whole.norm()


def test_one_graph_serves_every_routing(kernel, device, backend, formats, generator):
    if device.type != "cuda":
        pytest.skip("graphs are a GPU's")
    args, keywords = moved(draw_moe(Moe(33, 8, 2, 128, 64, "group", BF16), formats[0], generator), device)
    kernel.fused_moe(*args, **keywords)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = kernel.fused_moe(*args, **keywords)
    for _ in range(4):
        args[4].copy_(torch.randint(-1, 9, args[4].shape, generator=generator))
        graph.replay()
        assert same_bytes(out, kernel.fused_moe(*args, **keywords))


def challenge(kernel, x, router, gate, up, down, top_k: int):
    """The AMD developer challenge's layer (gpu-mode/reference-kernels, problems/amd/moe): float16, softmax over all
    experts in float16, not renormalised; the last expert is shared. Weights are stored (in, out)."""
    logits = x @ router.t()
    weights, experts = kernel.moe_route(logits.softmax(-1, dtype=F16).float().log(), top_k)
    shared = len(gate) - 1
    ones = torch.ones(len(x), 1, device=x.device)
    w13 = torch.cat([gate, up], 2).transpose(1, 2).contiguous()
    w2 = down.transpose(1, 2).contiguous()
    experts = torch.cat([experts, torch.full_like(experts[:, :1], shared)], 1)
    return kernel.fused_moe(x, w13, w2, torch.cat([weights, ones], 1), experts)


@pytest.mark.parametrize(
    "tokens, experts, top_k, d, hidden",
    [(40, 4, 2, 256, 128), pytest.param(512, 8, 4, 2048, 1024, marks=pytest.mark.full)],
)
def test_the_challenge(kernel, device, generator, tokens, experts, top_k, d, hidden):
    x = normal((tokens, d), F16, generator).to(device)
    router = normal((experts, d), F16, generator, d**-0.5).to(device)
    gate, up = (normal((experts + 1, d, hidden), F16, generator, d**-0.5).to(device) for _ in range(2))
    down = normal((experts + 1, hidden, d), F16, generator, hidden**-0.5).to(device)
    got = challenge(kernel, x, router, gate, up, down, top_k).float()

    scores = (x @ router.t()).softmax(-1, dtype=F16)
    # Scores in float16 are often equal: the expert of the lower number comes first, which topk does not promise.
    weights, chosen = (each[:, :top_k] for each in scores.sort(stable=True, dim=-1, descending=True))
    wanted = torch.zeros(tokens, d, device=device)
    for e in range(experts + 1):
        h = torch.nn.functional.silu((x.float() @ gate[e].float()).half().float()).half()
        h = h * (x.float() @ up[e].float()).half()
        y = (h.float() @ down[e].float()).half().float()
        of_all = torch.ones(tokens, device=device)
        wanted += ((weights.float() * (chosen == e)).sum(-1) if e < experts else of_all)[:, None] * y
    torch.testing.assert_close(got, wanted.half().float(), rtol=1e-2, atol=1e-2)
