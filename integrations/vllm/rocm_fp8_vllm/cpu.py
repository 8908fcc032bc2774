"""What vLLM's build for a CPU lacks, or costs bits there.

Joined linears whose parts have different weight scales: vLLM brings such parts to one scale by quantising them a second
time, which costs a byte-level Llama 0.006 bits a byte. Here the scales become scales of the output channels, and the
weights stay what they are. On a GPU vLLM's way stands: its linears for many rows ask for one scale.

Quantisation to FP8, which `quantization="fp8"` asks for where a checkpoint is not quantised: `quantize_fp8` does it.

Rotation of latent attention's queries and keys, [T, heads, 64]: vLLM's operator for CPUs takes the heads for rows. Its
own definition in torch does it. (YaRN's, which most such checkpoints ask for, has no operator and was right.)

AMX, whose tiles Linux gives to processes that ask for them, and kills others. vLLM's attention uses them and does not
ask: oneDNN has, in the linears ahead of it, in whose place ours stand.
"""

import functools

import torch
from vllm import _custom_ops
from vllm.model_executor.layers.quantization.utils import w8a8_utils
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding
from vllm.platforms import current_platform

from .kernel import kernel
from .patching import replace

__all__ = ["install"]


def keep_scales(
    weight: torch.Tensor, weight_scale: torch.Tensor, logical_widths: list[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """In the place of `w8a8_utils.requantize_with_max_scale`.

    Args:
        weight: FP8 [N, K].
        weight_scale: float32 [parts]. A last one that was not loaded is the least float8_e4m3fn or less: the parts
            were joined in the checkpoint.
        logical_widths: output channels of each part, N together.

    Returns: (float32 [] or [N], weight)
    """
    largest = weight_scale.max()
    joined = weight_scale.dim() == 0 or weight_scale[-1] <= torch.finfo(torch.float8_e4m3fn).min
    if joined or bool((weight_scale == largest).all()):
        return largest, weight
    widths = torch.tensor(logical_widths, device=weight_scale.device)
    return weight_scale.repeat_interleave(widths), weight


def quantize(
    input: torch.Tensor,
    scale: torch.Tensor | None = None,
    num_token_padding: int | None = None,
    scale_ub: torch.Tensor | None = None,
    use_per_token_if_dynamic: bool = False,
    output: torch.Tensor | None = None,
    group_shape: tuple[int, int] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """In the place of `_custom_ops.scaled_fp8_quant`, with its arguments.

    Returns: (FP8 [M, K], scale or a computed one: float32 [1] or, of rows, [M, 1])
    Raises: ValueError for scales of groups and for rows that are added, which no linear asks for here.
    """
    if num_token_padding is not None and num_token_padding > input.shape[0]:
        raise ValueError(f"num_token_padding: {num_token_padding}; quantize_fp8 adds no rows to {input.shape[0]}")
    if group_shape not in (None, (-1, -1)) or (scale is not None and scale.numel() != 1):
        raise ValueError(f"group_shape: {group_shape}; quantize_fp8 takes one scale, or computes them")
    scaling = dict(scaling="row", scale_ub=scale_ub) if use_per_token_if_dynamic else dict(scaling="tensor")
    given = None if scale is None else scale.reshape(())
    q, computed = kernel.quantize_fp8(input, given, **scaling, out=output, out_dtype=current_platform.fp8_dtype())
    return q, computed if scale is None else scale


def rotate(theirs):
    """RotaryEmbedding.forward_cpu, but for tensors with a dimension of heads."""

    @functools.wraps(theirs)
    def forward_cpu(
        self: RotaryEmbedding, positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if query.dim() > 2:
            return self.forward_native(positions, query, key)
        return theirs(self, positions, query, key)

    forward_cpu.rocm_fp8_rotates = True
    return forward_cpu


def install() -> None:
    if torch.cpu._is_amx_tile_supported():
        torch.cpu._init_amx()
    replace(w8a8_utils, "requantize_with_max_scale", keep_scales)
    replace(_custom_ops, "scaled_fp8_quant", quantize)
    if not hasattr(RotaryEmbedding.forward_cpu, "rocm_fp8_rotates"):
        RotaryEmbedding.forward_cpu = rotate(RotaryEmbedding.forward_cpu)
