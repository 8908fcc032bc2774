"""What a checkpoint says of the inputs beside MX weights.

vLLM's methods do not always hand it on to the functions that choose a kernel: compressed-tensors' are W4A4 whatever the
inputs are, and of MXFP8 no method asks. A method of vLLM's that knows runs within `asking_for`; what is chosen there
asks `asked`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors import CompressedTensorsConfig
from vllm.model_executor.layers.quantization.utils.quant_utils import (
    QuantKey,
    kFp8DynamicTensorSym,
    kFp8DynamicTokenSym,
    kMxfp4Dynamic,
    kMxfp8Dynamic,
)

__all__ = ["asked", "asking_for", "of_compressed_tensors"]

# None, or a tuple of one: None within it means inputs that are not quantised.
_asked: ContextVar[tuple[Any] | None] = ContextVar("inputs beside MX weights", default=None)


@contextmanager
def asking_for(inputs: Any) -> Iterator[None]:
    """inputs: vLLM's key, None for 16 bits, or a checkpoint's own settings that no key stands for."""
    token = _asked.set((inputs,))
    try:
        yield
    finally:
        _asked.reset(token)


def asked(default: QuantKey | None) -> Any:
    """default: what vLLM hands on, or takes for granted."""
    told = _asked.get()
    return default if told is None else told[0]


def of_compressed_tensors(inputs: Any) -> Any:
    """inputs: a scheme's QuantizationArgs, or None. Returns: as `asking_for` takes it."""
    if inputs is None or inputs.dynamic is not True:
        return inputs
    if CompressedTensorsConfig._is_mxfp4(inputs):  # whatever their scales are
        return kMxfp4Dynamic if inputs.scale_dtype in (None, torch.uint8) else inputs
    if CompressedTensorsConfig._is_mxfp8(inputs):
        return kMxfp8Dynamic
    if (inputs.num_bits, inputs.type, inputs.symmetric) == (8, "float", True):
        return {"token": kFp8DynamicTokenSym, "tensor": kFp8DynamicTensorSym}.get(inputs.strategy, inputs)
    return inputs
