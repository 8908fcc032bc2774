"""Joined linears whose parts have different weight scales, on a CPU.

vLLM brings such parts to one scale by quantising them a second time: its build for a CPU lacks the operator, and the
second rounding costs a byte-level Llama 0.006 bits a byte. Here the scales become scales of the output channels, and
the weights stay what they are. On a GPU vLLM's way stands: its linears for many rows ask for one scale.
"""

import sys

import torch
from vllm.model_executor.layers.quantization.utils import w8a8_utils

__all__ = ["install"]

_NAME = "requantize_with_max_scale"


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


def install() -> None:
    theirs = getattr(w8a8_utils, _NAME)
    for module in list(sys.modules.values()):  # some have it by name
        if getattr(module, _NAME, None) is theirs:
            setattr(module, _NAME, keep_scales)
