"""Linears and experts on DeepGEMM in the places of a transformers model's: what torch.compile makes a layer of that
quantises in the same blocks. Without an installed DeepGEMM the modules raise ImportError when they are made."""

import torch

from benchmarks.harness.moe_peers import first_of

BLOCK, MASKED_STEP = 128, 64
FP8 = torch.float8_e4m3fn


def quantised(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(codes, float32 scales of groups of 128) of rows [M, K]; for torch.compile."""
    groups = x.float().unflatten(-1, (-1, BLOCK))
    scale = groups.abs().amax(-1).clamp(min=1e-10) / torch.finfo(FP8).max
    return (groups / scale[..., None]).to(FP8).flatten(-2), scale


def in_blocks(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(codes, float32 scales of 128 x 128) of a weight [..., N, K]."""
    n, k = weight.shape[-2:]
    filled = torch.nn.functional.pad(weight, (0, -k % BLOCK, 0, -n % BLOCK))
    scale = filled.unflatten(-2, (-1, BLOCK)).unflatten(-1, (-1, BLOCK)).abs().amax((-3, -1)).float()
    scale = scale.clamp(min=1e-10) / torch.finfo(FP8).max
    each = scale.repeat_interleave(BLOCK, -2)[..., :n, :].repeat_interleave(BLOCK, -1)[..., :k]
    return (weight / each).to(FP8), scale


def column_major(scale: torch.Tensor) -> torch.Tensor:
    """Of the last two dimensions, columns 16 bytes apart or more: DeepGEMM then copies none."""
    rows = scale.shape[-2]
    padded = scale.new_empty(*scale.shape[:-2], scale.shape[-1], -(-rows // 4) * 4)
    padded[..., :rows] = scale.transpose(-1, -2)
    return padded.transpose(-1, -2)[..., :rows, :]


@torch.library.custom_op("rocm_fp8_kernels_peers::gemm", mutates_args=())
def gemm(a: torch.Tensor, scale_a: torch.Tensor, b: torch.Tensor, scale_b: torch.Tensor) -> torch.Tensor:
    import deep_gemm

    out = torch.empty(a.shape[0], b.shape[0], dtype=torch.bfloat16, device=a.device)
    deep_gemm.fp8_gemm_nt((a, scale_a), (b, scale_b), out, disable_ue8m0_cast=True)
    return out


@gemm.register_fake
def _(a, scale_a, b, scale_b):
    return a.new_empty(a.shape[0], b.shape[0], dtype=torch.bfloat16)


@torch.library.custom_op("rocm_fp8_kernels_peers::masked_gemm", mutates_args=())
def masked_gemm(
    a: torch.Tensor, scale_a: torch.Tensor, b: torch.Tensor, scale_b: torch.Tensor, counts: torch.Tensor, expected: int
) -> torch.Tensor:
    import deep_gemm

    out = torch.empty(*a.shape[:2], b.shape[1], dtype=torch.bfloat16, device=a.device)
    function = first_of(deep_gemm, "m_grouped_fp8_gemm_nt_masked", "fp8_m_grouped_gemm_nt_masked")
    function((a, scale_a), (b, scale_b), out, counts, expected, disable_ue8m0_cast=True)
    return out


@masked_gemm.register_fake
def _(a, scale_a, b, scale_b, counts, expected):
    return a.new_empty(*a.shape[:2], b.shape[1], dtype=torch.bfloat16)


class PeerLinear(torch.nn.Module):
    """weight: FP8 [N, K] and its scales of blocks, as quantize_weight returns them."""

    def __init__(self, weight: tuple[torch.Tensor, torch.Tensor]):
        super().__init__()
        import deep_gemm  # noqa: F401

        self.codes, self.scale = weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        codes, scale = quantised(x.reshape(-1, x.shape[-1]))
        return gemm(codes, column_major(scale), self.codes, self.scale).view(*x.shape[:-1], -1)


class PeerExperts(torch.nn.Module):
    """Of each expert a fixed number of rows, as DeepGEMM's masked form for decode steps wants them: all tokens fit."""

    def __init__(self, gate_up: tuple[torch.Tensor, torch.Tensor], down: tuple[torch.Tensor, torch.Tensor]):
        super().__init__()
        import deep_gemm  # noqa: F401

        (self.w13, self.scale_w13), (self.w2, self.scale_w2) = gate_up, down

    def forward(self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor):
        x = hidden_states.reshape(-1, hidden_states.shape[-1])
        rows, chosen, experts = len(x), top_k_index.shape[1], len(self.w13)
        height = -(-rows // MASKED_STEP) * MASKED_STEP
        expected = max(1, -(-rows * chosen // experts))
        expert = top_k_index.reshape(-1)
        one_hot = (expert[:, None] == torch.arange(experts, device=x.device)).int()
        place = expert * height + one_hot.cumsum(0).gather(1, expert[:, None])[:, 0] - 1
        counts = one_hot.sum(0, dtype=torch.int32)

        def grouped(rows_of: torch.Tensor, w: torch.Tensor, scale_w: torch.Tensor) -> torch.Tensor:
            codes, scale = quantised(rows_of)
            a = torch.empty(experts * height, codes.shape[1], dtype=torch.uint8, device=x.device)
            a = a.index_copy(0, place, codes.view(torch.uint8)).view(FP8).view(experts, height, -1)
            scales = torch.empty(experts * height, scale.shape[1], device=x.device).index_copy(0, place, scale)
            out = masked_gemm(a, column_major(scales.view(experts, height, -1)), w, scale_w, counts, expected)
            return out.view(experts * height, -1)[place]

        gate, up = grouped(x.repeat_interleave(chosen, 0), self.w13, self.scale_w13).chunk(2, -1)
        y = grouped(torch.nn.functional.silu(gate) * up, self.w2, self.scale_w2)
        weighted = y.view(rows, chosen, -1) * top_k_weights[..., None].to(y.dtype)
        return weighted.sum(1).view(hidden_states.shape)
