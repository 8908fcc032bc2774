"""What else computes mixtures of experts on an NVIDIA GPU: DeepGEMM's grouped GEMMs, vLLM's experts, and a composition
of torch's own operators. The first two need nothing but an installed package; without it they raise ImportError."""

import itertools
from collections.abc import Callable

import torch

BLOCK = 128
MOST_MASKED = 64  # expected rows up to which DeepGEMM has a fixed number of rows for each expert
MASKED_STEP = 64


def deep_gemm_call(
    a: torch.Tensor, scale_a: torch.Tensor, b: torch.Tensor, scale_b: torch.Tensor, offsets: torch.Tensor
) -> tuple[Callable[[], object], Callable[[], torch.Tensor]]:
    """A call of DeepGEMM for FP8 rows sorted by expert, and its result in their order. Few rows of an expert are
    masked, many contiguous, each expert's padded: that, and its layout of scales, is prepared outside of the call."""
    import deep_gemm

    bounds = offsets.tolist()
    counts = [end - begin for begin, end in itertools.pairwise(bounds)]
    live, experts, n = bounds[-1], len(counts), b.shape[1]
    masked = live <= MOST_MASKED * experts
    step = MASKED_STEP if masked else alignment(deep_gemm)
    heights = [-(-count // step) * step for count in counts]
    if masked:
        heights = [max(heights)] * experts
    begins = [sum(heights[:e]) for e in range(experts)]
    places = torch.cat([begin + torch.arange(count) for begin, count in zip(begins, counts)]).to(a.device)
    total = sum(heights)
    padded = torch.zeros(total, a.shape[1], dtype=torch.uint8, device=a.device)
    padded[places] = a[:live].view(torch.uint8)
    scales = torch.ones(total, scale_a.shape[1], device=a.device)
    scales[places] = scale_a[:live]
    out = torch.empty(total, n, dtype=torch.bfloat16, device=a.device)
    padded = padded.view(a.dtype)
    aligned = getattr(deep_gemm, "get_mn_major_tma_aligned_tensor", lambda scales: scales)
    if masked:
        shape = (experts, heights[0])
        operands = padded.view(*shape, -1), aligned(scales.view(*shape, -1))
        of_experts = torch.tensor(counts, dtype=torch.int32, device=a.device)
        function = first_of(deep_gemm, "m_grouped_fp8_gemm_nt_masked", "fp8_m_grouped_gemm_nt_masked")
        more = out.view(*shape, n), of_experts, max(1, -(-live // experts))
    else:
        owners = torch.full((total,), -1, dtype=torch.int32)
        for e, (begin, count) in enumerate(zip(begins, counts)):
            owners[begin : begin + count] = e
        operands = padded, aligned(scales)
        function = first_of(deep_gemm, "m_grouped_fp8_gemm_nt_contiguous")
        more = out, owners.to(a.device)
    return (
        lambda: function(operands, (b, scale_b), *more, disable_ue8m0_cast=True),
        lambda: out[places],
    )


def alignment(deep_gemm) -> int:
    names = ("get_m_alignment_for_contiguous_layout", "get_mk_alignment_for_contiguous_layout")
    return int(first_of(deep_gemm, *names)())


def of_vllm(w13: torch.Tensor, w2: torch.Tensor, scales: dict[str, torch.Tensor]) -> Callable:
    """vLLM's experts in Triton, with scales of blocks: a function of rows, weights and experts."""
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.fused_moe.config import fp8_w8a8_moe_quant_config
    from vllm.model_executor.layers.fused_moe.fused_moe import fused_experts

    quantised = fp8_w8a8_moe_quant_config(scales["scale_w13"], scales["scale_w2"], block_shape=[BLOCK, BLOCK])

    def call(x: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        with set_current_vllm_config(VllmConfig()):
            return fused_experts(x, w13, w2, weights, ids, quant_config=quantised)

    return call


def of_cutlass(w13: torch.Tensor, w2: torch.Tensor, scales: dict[str, torch.Tensor]) -> Callable:
    """vLLM's experts in CUTLASS: a function of 16-bit rows, weights and experts. scales: fused_moe's keywords, of
    output channels [E, N, 1] and rows, or of experts [E, 1, 1] and static inputs."""
    from vllm import _custom_ops
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation
    from vllm.model_executor.layers.fused_moe.experts.cutlass_moe import run_cutlass_moe_fp8
    from vllm.model_executor.layers.fused_moe.moe_permute_unpermute import MoEPermuteScratch

    experts, d, hidden = w2.shape
    of_input, of_hidden, of_product = (
        torch.full((experts,), size, dtype=torch.int64, device=w2.device) for size in (d, hidden, 2 * hidden)
    )
    scratch = MoEPermuteScratch(num_experts=experts, num_local_experts=experts, device=w2.device)
    of_rows, of_x, of_values = scales["inputs"] == "row", scales.get("input_scale"), scales.get("hidden_scale")
    common = dict(activation=MoEActivation.SILU, global_num_experts=experts, expert_map=None, a2_scale=of_values)
    common |= dict(w1_scale=scales["scale_w13"], w2_scale=scales["scale_w2"], expert_num_tokens=None)
    common |= dict(ab_strides1=of_input, ab_strides2=of_hidden, c_strides1=of_product, c_strides2=of_input)
    common |= dict(per_act_token=of_rows, per_out_ch=of_rows, use_batched_format=False, permute_scratch=scratch)

    def call(x: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        rows = ids.numel()
        first, second = (x.new_empty(rows * max(size, d)) for size in (2 * hidden, hidden))
        quantised, scale_x = _custom_ops.scaled_fp8_quant(x, of_x, use_per_token_if_dynamic=True)
        out, own = torch.empty_like(x), dict(topk_weights=weights, workspace13=first, workspace2=second)
        run_cutlass_moe_fp8(out, quantised, w13, w2, ids, a1q_scale=scale_x, out_dtype=x.dtype, **own, **common)
        return out

    return call


def first_of(module, *names: str) -> Callable:
    """Versions of a package call the same function by several names."""
    found = [getattr(module, name) for name in names if hasattr(module, name)]
    if not found:
        raise ImportError(f"{module.__name__} has none of {', '.join(names)}")
    return found[0]


def dequantised(codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """bfloat16 [E, N, K] of FP8 codes with scales of 128 x 128 blocks, an expert at a time."""
    wide = torch.empty(codes.shape, dtype=torch.bfloat16, device=codes.device)
    for e in range(len(codes)):
        block = scale[e].repeat_interleave(BLOCK, 0)[: codes.shape[1]].repeat_interleave(BLOCK, 1)[:, : codes.shape[2]]
        wide[e] = codes[e].float() * block
    return wide


def unfused(
    x: torch.Tensor, w13: torch.Tensor, w2: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor
) -> torch.Tensor:
    """fused_moe of bfloat16 experts by torch's own operators, none of which reads a count on the host: for
    torch.compile, and for a graph."""
    order = ids.flatten().argsort(stable=True)
    tokens = order // ids.shape[1]
    counts = (ids.flatten()[:, None] == torch.arange(len(w13), device=ids.device)).sum(0)
    ends = counts.cumsum(0).int()
    gate, up = torch._grouped_mm(x[tokens], w13.transpose(1, 2), offs=ends).chunk(2, -1)
    hidden = torch.nn.functional.silu(gate) * up
    y = torch._grouped_mm(hidden, w2.transpose(1, 2), offs=ends) * weights.flatten()[order, None]
    return torch.zeros(x.shape, dtype=torch.float32, device=x.device).index_add(0, tokens, y.float()).to(x.dtype)
