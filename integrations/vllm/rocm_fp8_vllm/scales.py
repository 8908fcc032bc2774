"""Scales of MX and FP8 weights, and of FP8 inputs, as files hold them or lack them; of any model.

vLLM's parameters for MX scales are bytes, and most of its loaders copy the numbers of a file: 2^-6 becomes the byte 0,
which is 2^-127. An engine starts, and its tokens mean nothing. Here a scale in float8_e8m0fnu, or in another type that
holds a power of two, becomes its byte before it is loaded.

What a file lacks vLLM does not miss. Scales of MX linears are NaN here until they are loaded; those of FP8 linears are
negative, by vLLM. Those that are so behind it are refused.
"""

import functools
from collections.abc import Callable

import torch
from vllm.model_executor.model_loader.weight_utils import default_weight_loader
from vllm.model_executor.parameter import BasevLLMParameter, PerTensorScaleParameter

from .patching import around_loading

__all__ = ["as_bytes", "check", "install", "mark"]

_NAN = 255
_FP8 = (torch.float8_e4m3fn, torch.float8_e4m3fnuz)
_OF_FP8 = ("weight_scale", "weight_scale_inv", "input_scale")


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
    for scale in _of_fp8(model).values():
        scale.rocm_fp8_of_files = not made_up
    for name, scale in model.named_parameters():
        if scale.dtype != torch.uint8 or scale.is_meta or not name.endswith(("scale", "scale_inv")):
            continue
        scale.weight_loader = _of_bytes(name, getattr(scale, "weight_loader", default_weight_loader))
        scale.rocm_fp8_of_files = not made_up
        if not made_up and isinstance(scale, BasevLLMParameter):  # experts': `weights`
            scale.data.fill_(_NAN)


def check(model: torch.nn.Module) -> None:
    """Of a model whose weights are loaded. Raises: ValueError that names a scale which is NaN or, of FP8, negative."""
    for name, scale in model.named_parameters():
        of_files = getattr(scale, "rocm_fp8_of_files", False)
        if of_files and scale.dtype == torch.uint8 and bool((scale.data == _NAN).any()):
            raise ValueError(f"{name}: holds NaN, or the checkpoint lacks a part of it")
    for name, scale in _of_fp8(model).items():
        values = scale.data.float()
        if isinstance(scale, PerTensorScaleParameter) and bool((values[1:] < 0).all()):
            values = values[:1]  # of parts that a file has joined the first alone is loaded
        if getattr(scale, "rocm_fp8_of_files", False) and not bool((values >= 0).all()):
            raise ValueError(f"{name}: holds NaN or negative numbers, or the checkpoint lacks a part of it")


def _of_fp8(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Name -> scales of each linear whose weight is loaded in FP8."""
    found = {}
    for name, module in model.named_modules():
        own = module._parameters
        if (weight := own.get("weight")) is not None and weight.dtype in _FP8:
            scales = {last: own.get(last) for last in _OF_FP8}
            found |= {f"{name}.{last}": scale for last, scale in scales.items() if _is_filled(scale)}
    return found


def _is_filled(scale: torch.nn.Parameter | None) -> bool:
    return isinstance(scale, BasevLLMParameter) and scale.is_floating_point() and not scale.is_meta


def _of_bytes(name: str, loader: Callable) -> Callable:
    @functools.wraps(loader)
    def load(param: torch.nn.Parameter, loaded_weight: torch.Tensor, *arguments, **keywords):
        return loader(param, as_bytes(name, loaded_weight), *arguments, **keywords)

    return load


def install() -> None:
    around_loading("scales", lambda model, _, made_up: mark(model, made_up), lambda model, _: check(model))
