"""A checkpoint's quantization_config: settings that vLLM would pass over are refused.

Its classes read the settings that they know. One that they do not know may change what the weights mean, or the inputs
(a rotation): an engine would start, and compute something else.
"""

from typing import Any

from vllm.config import ModelConfig

__all__ = ["refuse_unknown"]

_ALL = ("quant_method", "modules_to_not_convert", "dequantize")
# By what config.json calls the method. ModelOpt's and DeepSeek-V4's are not listed: vLLM's classes for them read what
# models ask for.
_KNOWN = {
    "fp8": (
        *(*_ALL, "ignored_layers", "activation_scheme", "fmt", "weight_block_size", "scale_fmt", "store_dtype"),
        "kv_cache_scheme",
    ),
    "compressed-tensors": (
        *(*_ALL, "config_groups", "format", "ignore", "kv_cache_scheme", "quantization_status", "version"),
        *("global_compression_ratio", "run_compressed", "sparsity_config", "transform_config"),
        "quantization_config",  # of an older compression_config
        *("total_num_heads", "total_num_kv_heads"),  # vLLM adds them
    ),
    "quark": (
        *("quant_method", "quant_mode", "version", "export", "exclude", "algo_config", "global_quant_config"),
        *("layer_quant_config", "layer_type_quant_config", "kv_cache_quant_config", "kv_cache_post_rope"),
    ),
    "fbgemm_fp8": (*_ALL, "activation_scale_ub"),
    "mxfp4": _ALL,
}


def refuse_unknown(config: ModelConfig) -> None:
    """Raises: ValueError that names a setting of the model's checkpoint."""
    if config.quantization == "deepseek_v4_fp8":  # "fp8" in config.json
        return
    for owner in (config.hf_config, config.hf_text_config):
        settings = getattr(owner, "quantization_config", None) or getattr(owner, "compression_config", None)
        if isinstance(settings, dict):
            _check(settings)


def _check(settings: dict[str, Any]) -> None:
    method = settings.get("quant_method", "compressed-tensors")
    for name in sorted(settings.keys() - _KNOWN.get(method, settings.keys())):
        # False may mean more than that something is off: "symmetric".
        if settings[name] not in (None, [], {}):
            raise ValueError(
                f"quantization_config: {name}: vLLM would pass it over; known: {', '.join(_KNOWN[method])}"
            )
    # Others have done their work in the weights. Rotations may rotate inputs, too, which vLLM does not do for Quark.
    for algorithm in (settings.get("algo_config") or ()) if method == "quark" else ():
        name = str((algorithm or {}).get("name", "")).lower()
        if "rot" in name:
            raise ValueError(f"quantization_config: algo_config: {name!r}, which may rotate activations")
