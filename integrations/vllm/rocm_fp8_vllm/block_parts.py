"""Weights in blocks of 128x128 whose parts, joined in one linear, do not all end with a block.

A checkpoint has scales for each part, whose last block may be cut off: 64 rows of K and 64 of V have a row of scales
each. vLLM gives the joined linear the scales of as many blocks as its rows fill, and finds no place for the last ones,
or loads two parts' scales into one place. Here each part keeps its own scales, and is a GEMM of its own.
"""

import functools
import inspect

import torch
from vllm.model_executor.layers.quantization.compressed_tensors.schemes import CompressedTensorsW8A8Fp8
from vllm.model_executor.layers.quantization.fp8 import Fp8LinearMethod
from vllm.model_executor.layers.quantization.quark.schemes import QuarkW8A8Fp8PerBlock
from vllm.model_executor.parameter import BlockQuantScaleParameter

from .block_linear import BLOCK, BlockScaledFp8Linear, blocks_of

__all__ = ["install"]

SCHEMES = (Fp8LinearMethod, CompressedTensorsW8A8Fp8, QuarkW8A8Fp8PerBlock)


class PartScales(BlockQuantScaleParameter):
    """The scale's type [blocks of all parts, blocks of K]. Each part's scales begin with a row of their own."""


def _load(param: PartScales, loaded_weight: torch.Tensor, loaded_shard_id: str | int | None = None) -> None:
    """A part's scales into their place."""
    parts = param.rocm_fp8_parts
    if not isinstance(loaded_shard_id, str | int):
        raise ValueError(
            f"FP8 blocks: the checkpoint joins parts of {parts} rows; each of them but the last must divide by {BLOCK}"
        )
    part, blocks = param._shard_id_as_int(loaded_shard_id), blocks_of(parts)
    place = param.data.narrow(0, sum(blocks[:part]), blocks[part])
    if place.shape != loaded_weight.shape:
        raise ValueError(f"FP8 blocks: scales {list(loaded_weight.shape)} for a part that has {list(place.shape)}")
    place.copy_(loaded_weight)


def _keep_parts(create_weights):
    """create_weights of one of vLLM's schemes; what it makes for our linear has its parts' scales apart."""

    signature = inspect.signature(create_weights)

    @functools.wraps(create_weights)
    def wrapper(self, layer, *arguments, **keywords):
        parts = signature.bind(self, layer, *arguments, **keywords).arguments["output_partition_sizes"]
        if self.weight_block_size is None or list(self.weight_block_size) != [BLOCK, BLOCK]:
            return create_weights(self, layer, *arguments, **keywords)
        if len(parts) < 2 or not any(rows % BLOCK for rows in parts):
            return create_weights(self, layer, *arguments, **keywords)
        allowed = getattr(layer, "allow_fp8_block_shape_mismatch", False)
        layer.allow_fp8_block_shape_mismatch = True  # of some formats vLLM has said so
        create_weights(self, layer, *arguments, **keywords)
        if not isinstance(self.fp8_linear, BlockScaledFp8Linear):
            layer.allow_fp8_block_shape_mismatch = allowed
            return create_weights(self, layer, *arguments, **keywords)
        workers = getattr(layer, "tp_size", 1)
        if workers > 1:
            raise ValueError(
                f"FP8 blocks: each of {workers} workers has {parts} rows of the parts of "
                f"{getattr(layer, 'prefix', 'a linear')}; all of them must divide by {BLOCK}"
            )
        if any(rows % BLOCK for rows in parts[:-1]):
            name = self.fp8_linear._get_layer_params(layer).block_scale_attr
            theirs = getattr(layer, name)
            # NaN until they are loaded: `scales` finds those that are not.
            data = theirs.data.new_full((sum(blocks_of(parts)), theirs.shape[1]), float("nan"))
            scales = PartScales(data=data, input_dim=1, output_dim=0, weight_loader=_load)
            scales.rocm_fp8_parts = layer.rocm_fp8_parts = list(parts)
            scales.scale_type = "weight_scale"
            layer.register_parameter(name, scales)

    wrapper.rocm_fp8_parts = True
    return wrapper


def install() -> None:
    for scheme in SCHEMES:
        if not hasattr(scheme.create_weights, "rocm_fp8_parts"):
            scheme.create_weights = _keep_parts(scheme.create_weights)
