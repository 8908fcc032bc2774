"""A compressed-tensors model that transformers has loaded, as one on these operators."""

import operator

import torch

from ..codes import refuse_save_pretrained
from ..fp8.experts import experts_of
from ..fp8.linear import BLOCK, QuantizedLinear
from .experts import Apart
from .joined import check_codes, input_kinds, joined, to_format_of
from .published import Names
from .schemes import Scheme, schemes_of

__all__ = ["convert"]

_HALF = (torch.bfloat16, torch.float16)


@torch.inference_mode(False)
@torch.no_grad()
def convert(model: torch.nn.Module) -> torch.nn.Module:
    """Turns what from_pretrained made of a compressed-tensors FP8 checkpoint into a model on these operators, in place.

        model = AutoModelForCausalLM.from_pretrained("Llama-3.1-8B-Instruct-FP8")  # dtype: float16 or bfloat16
        kernel.quantization.convert(model)

    The weights are the checkpoint's. from_pretrained rounds the scales to the model's dtype; `load_quantized` keeps
    them as they are. What is fused, and what a warning names, is as in `load_quantized`. Mixtures of experts are
    refused where they are quantised: transformers decompresses them as it loads them, and `load_quantized` does not. So
    are MX weights, which `load_quantized` reads.

    Args:
        model: its linears as from_pretrained leaves them: in FP8. That is so before the first call of the model, which
            makes compressed-tensors decompress them, and without dequantize, run_compressed=False or
            use_optimized_inference.

    Returns: model, for inference.
    Raises: ValueError that names the tensor or the setting, before the model is changed; ImportError without
        compressed-tensors.
    """
    from ..fp8 import planning

    settings = getattr(getattr(model, "config", None), "quantization_config", None)
    if settings is None:
        raise ValueError("the model's config has no quantization_config")
    settings = settings if isinstance(settings, dict) else settings.to_dict()
    if settings.get("quant_method") != "compressed-tensors":
        raise ValueError(f"quant_method {settings.get('quant_method')!r}; known: compressed-tensors")
    if settings.get("kv_cache_scheme"):
        raise ValueError("kv_cache_scheme: a quantised KV cache; load_quantized leaves it in the model's dtype")
    try:
        schemes = _schemes(model, settings)
    except ValueError as error:
        raise ValueError(f"quantization_config: {error}") from None
    for name, scheme in schemes.items():
        _check(model, name, scheme)
    dtype = model.dtype
    if dtype not in _HALF:
        raise ValueError(f"the model's dtype is {dtype}; needs float16 or bfloat16")

    def join(names: list[str]) -> QuantizedLinear:
        bias = model.get_submodule(names[0]).bias is not None
        return joined(names, schemes, lambda name: operator.attrgetter(name)(model).data, dtype, bias=bias)

    planned = planning.plan(model, input_kinds(schemes))
    planning.replace_linears(model, planned, join)
    to_format_of(model)
    planning.finish(model)
    # From here on the model is none of compressed-tensors': nothing is left to decompress, and save_pretrained would
    # describe what is no longer there.
    hook = model.__dict__.pop("ct_decompress_hook", None)
    if hook is not None:
        hook.remove()
    del model.config.quantization_config
    model.hf_quantizer, model.is_quantized = None, False
    model.__dict__.pop("quantization_method", None)
    refuse_save_pretrained(model, "quantization.save_quantized")
    planned.warn(model)
    return model.requires_grad_(False).eval()


def _schemes(model: torch.nn.Module, settings: dict) -> dict[str, Scheme]:
    """schemes_of. Raises: ValueError where experts are among what is quantised."""
    own = experts_of(model)
    names = Names(model, {name: len(module.down_proj) for name, module in own.items()})
    try:
        for name, module in own.items():
            model.set_submodule(name, Apart(module))
        schemes = schemes_of(model, settings, names.of_rules)
    finally:
        for name, module in own.items():
            model.set_submodule(name, module)
    for name in own:
        if any(linear.startswith(f"{name}.") for linear in schemes):
            raise ValueError(f"{name} is quantised, and decompressed by transformers; load_quantized keeps it in FP8")
    return schemes


def _check(model: torch.nn.Module, name: str, scheme: Scheme) -> None:
    linear = model.get_submodule(name)
    if scheme.mx:
        raise ValueError(f"{name} has {scheme.weights} weights; known: FP8. load_quantized reads them")
    blocks = -(-linear.out_features // BLOCK) * -(-linear.in_features // BLOCK)
    counts = {"tensor": 1, "channel": linear.out_features, "block": blocks}
    scales = {scheme.scale_name: counts[scheme.weights]}
    if not scheme.dynamic:
        scales["input_scale"] = 1
    if linear.weight.dtype != torch.float8_e4m3fn:
        raise ValueError(f"{name}.weight is {linear.weight.dtype}, decompressed; needs torch.float8_e4m3fn")
    if linear.weight.is_meta:
        raise ValueError(f"{name}.weight is on the device meta")
    check_codes(f"{name}.weight", linear.weight)
    for key, count in scales.items():
        scale = getattr(linear, key, None)
        if scale is None:
            raise ValueError(f"{name}.{key} is not there")
        if scale.numel() != count:
            raise ValueError(f"{name}.{key}: shape {list(scale.shape)}; needs {count} elements")
        if not bool(((scale > 0) & (scale < float("inf"))).all()):
            raise ValueError(f"{name}.{key}: scales are positive numbers")
