"""Scales of MX weights as files hold them, of any model: as bytes, in float8_e8m0fnu, or as other powers of two.

vLLM's parameters for them are bytes, and most of its loaders copy the numbers of a file: 2^-6 becomes the byte 0, which
is 2^-127. An engine starts, and its tokens mean nothing. Here a scale becomes its byte before it is loaded.

Scales of linears are NaN until they are loaded. Those that are NaN behind it are refused: the file has it so, or lacks
them.
"""

import functools
from collections.abc import Callable

import torch
from vllm.config import ModelConfig, VllmConfig
from vllm.model_executor.model_loader import base_loader
from vllm.model_executor.model_loader.weight_utils import default_weight_loader
from vllm.model_executor.parameter import BasevLLMParameter

__all__ = ["as_bytes", "check", "install", "mark"]

_NAN = 255


def as_bytes(name: str, scale: torch.Tensor) -> torch.Tensor:
    """uint8 of a scale in uint8, float8_e8m0fnu or a wider type, of any shape. Raises: ValueError that names the scale
    where it holds other numbers than powers of two."""
    if scale.dtype == torch.uint8:
        return scale
    exponents = scale.to(torch.float8_e8m0fnu)
    if scale.dtype != torch.float8_e8m0fnu and not torch.equal(exponents.float(), scale.float()):
        raise ValueError(f"{name}: {scale.dtype}, with other numbers than powers of two; MX scales are exponents")
    return exponents.view(torch.uint8)


def mark(model: torch.nn.Module, made_up: bool) -> None:
    """Of a model that was made, before its weights are loaded: in place. made_up: whether no file fills them."""
    for name, scale in model.named_parameters():
        if scale.dtype != torch.uint8 or scale.is_meta or not name.endswith(("scale", "scale_inv")):
            continue
        scale.weight_loader = _of_bytes(name, getattr(scale, "weight_loader", default_weight_loader))
        scale.rocm_fp8_exponents = not made_up
        if not made_up and isinstance(scale, BasevLLMParameter):  # experts' may be padded
            scale.data.fill_(_NAN)


def check(model: torch.nn.Module) -> None:
    """Of a model whose weights are loaded. Raises: ValueError that names a scale with NaN."""
    for name, scale in model.named_parameters():
        if getattr(scale, "rocm_fp8_exponents", False) and bool((scale.data == _NAN).any()):
            raise ValueError(f"{name}: holds NaN, or the checkpoint lacks a part of it")


def _of_bytes(name: str, loader: Callable) -> Callable:
    @functools.wraps(loader)
    def load(param: torch.nn.Parameter, loaded_weight: torch.Tensor, *arguments, **keywords):
        return loader(param, as_bytes(name, loaded_weight), *arguments, **keywords)

    return load


def install() -> None:
    """As `heads` does it."""
    made, ready = base_loader.BaseModelLoader.create_model, base_loader.process_weights_after_loading
    if hasattr(ready, "rocm_fp8_exponents"):
        return

    @functools.wraps(made)
    def create_model(
        self, vllm_config: VllmConfig, model_config: ModelConfig, *arguments, **keywords
    ) -> torch.nn.Module:
        model = made(self, vllm_config, model_config, *arguments, **keywords)
        mark(model, made_up=vllm_config.load_config.load_format == "dummy")
        return model

    @functools.wraps(ready)
    def process_weights_after_loading(model: torch.nn.Module, *arguments, **keywords):
        check(model)
        return ready(model, *arguments, **keywords)

    process_weights_after_loading.rocm_fp8_exponents = True
    base_loader.BaseModelLoader.create_model = create_model
    base_loader.process_weights_after_loading = process_weights_after_loading
