"""Settings of a quantization_config that nothing would read.

The library compressed-tensors and vLLM pass over what they do not know. It may change what weights mean, or their
inputs (a rotation): a model would be loaded, and compute something else. Null and empty say nothing. False may mean
more than that something is off: "symmetric".
"""

from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["check_settings"]

_LEFT = ("quant_method", "modules_to_not_convert", "dequantize")
_KNOWN = {
    "compressed-tensors": (
        *(*_LEFT, "config_groups", "format", "ignore", "kv_cache_scheme", "quantization_status", "version"),
        *("global_compression_ratio", "run_compressed", "sparsity_config", "transform_config"),
    ),
    "fp8": (
        *(*_LEFT, "ignored_layers", "activation_scheme", "fmt"),
        *("weight_block_size", "scale_fmt", "kv_cache_scheme"),
    ),
    "quark": (
        *("quant_method", "quant_mode", "version", "export", "exclude", "algo_config", "global_quant_config"),
        *("layer_quant_config", "layer_type_quant_config", "kv_cache_quant_config", "kv_cache_post_rope"),
    ),
    "fbgemm_fp8": (*_LEFT, "activation_scale_ub"),
    "mxfp4": _LEFT,
}
_OF_A_GROUP = ("targets", "weights", "input_activations", "output_activations", "format")
# Of Quark: what its export says, a layer, and a tensor of it.
_EXPORT = ("kv_cache_group", "min_kv_scale", "weight_format", "pack_method", "weight_merge_groups")
_LAYER = ("weight", "input_tensors", "output_tensors", "bias", "target_device")
_TENSOR = (
    *("dtype", "is_dynamic", "qscheme", "ch_axis", "group_size", "block_size", "symmetric", "round_method"),
    *("scale_type", "scale_format", "scale_calculation_mode", "zero_point_type", "is_scale_quant"),
    *("mx_element_dtype", "qat_spec", "observer_cls", "enable_buffer_reuse", "max_input_numel"),
)


def check_settings(settings: dict[str, Any], more: Mapping[str, Iterable[str]] = {}) -> None:
    """Of the quantization_config of a checkpoint's config.json; methods that are not known here are left alone.

    Args:
        more: quant_method -> names of settings that the caller reads beside.

    Raises: ValueError that names a setting which nothing reads, or a value of one that changes what is computed.
    """
    method = settings.get("quant_method", "compressed-tensors")
    if method not in _KNOWN:
        return
    _names("", settings, (*_KNOWN[method], *more.get(method, ())))
    if method == "compressed-tensors":
        for name, group in (settings.get("config_groups") or {}).items():
            _names(f"config_groups.{name}.", group, _OF_A_GROUP)
    elif method == "fp8":
        _value("", settings, "fmt", ("e4m3", "float8_e4m3fn"))
        _value("", settings, "scale_fmt", ("float", "ue8m0"))
    elif method == "quark":
        _quark(settings)


def _names(where: str, settings: Any, known: Iterable[str]) -> None:
    for name in sorted(settings.keys() - set(known)) if isinstance(settings, dict) else ():
        if settings[name] not in (None, [], {}):
            raise ValueError(f"{where}{name}: nothing here knows what it asks for; known: {', '.join(known)}")


def _value(where: str, settings: dict[str, Any], name: str, known: tuple, of: str = "") -> None:
    value = settings.get(name)
    if value is not None and value not in known:
        raise ValueError(f"{where}{name} {value!r}; known{of}: {', '.join(map(str, known))}")


def _quark(settings: dict[str, Any]) -> None:
    export, rules = settings.get("export") or {}, settings.get("layer_quant_config") or {}
    _names("export.", export, _EXPORT)
    _value("export.", export, "weight_format", ("real_quantized",))
    if settings.get("layer_type_quant_config"):
        raise ValueError("layer_type_quant_config; known: global_quant_config, layer_quant_config, exclude")
    # Others (smoothquant, awq, gptq, autosmoothquant) have done their work in the weights; rotations may not have.
    for algorithm in settings.get("algo_config") or ():
        name = str((algorithm or {}).get("name", "")).lower()
        if "rot" in name:
            raise ValueError(f"algo_config: {name!r}, which may rotate activations; known: what changes weights alone")
    layers = {"global_quant_config": settings.get("global_quant_config")}
    layers |= {f"layer_quant_config.{pattern}": layer for pattern, layer in rules.items()}
    for where, layer in layers.items():
        _names(f"{where}.", layer, _LAYER)
        for name in ("weight", "input_tensors"):
            tensors = (layer or {}).get(name)
            for tensor in tensors if isinstance(tensors, list) else [tensors or {}]:
                _tensor(f"{where}.{name}.", tensor, name == "input_tensors")


def _tensor(where: str, tensor: dict[str, Any], is_input: bool) -> None:
    _names(where, tensor, _TENSOR)
    scheme = tensor.get("qscheme")
    if scheme == "per_group":
        _value(where, tensor, "ch_axis", (-1, 1), f" of {scheme}")
    elif scheme == "per_channel" and not is_input:
        _value(where, tensor, "ch_axis", (0,), f" of {scheme}")
    if str(tensor.get("dtype")).startswith("fp"):  # int8 has zero points
        _value(where, tensor, "symmetric", (True,))
    if is_input and tensor.get("scale_format") == "e8m0":
        _value(where, tensor, "scale_calculation_mode", ("even",))
