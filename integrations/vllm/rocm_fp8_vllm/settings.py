"""A checkpoint's quantization_config: settings that vLLM would pass over are refused, by the package's own check.

Its classes read the settings that they know. One that they do not know may change what the weights mean, or the inputs
(a rotation): an engine would start, and compute something else. ModelOpt's and DeepSeek-V4's are not looked at: vLLM's
classes for them read what models ask for.
"""

from vllm.config import ModelConfig

from .kernel import kernel

__all__ = ["refuse_unknown"]

# Beside those that the package reads: vLLM reads the first, it adds the numbers of heads, and older files of
# compressed-tensors have quantization_config in their compression_config.
_READ_BY_VLLM = {
    "fp8": ("store_dtype",),
    "compressed-tensors": ("quantization_config", "total_num_heads", "total_num_kv_heads"),
}


def refuse_unknown(config: ModelConfig) -> None:
    """Raises: ValueError that names a setting of the model's checkpoint."""
    if config.quantization == "deepseek_v4_fp8":  # "fp8" in config.json
        return
    for owner in (config.hf_config, config.hf_text_config):
        settings = getattr(owner, "quantization_config", None) or getattr(owner, "compression_config", None)
        if isinstance(settings, dict):
            try:
                kernel.quantization.check_settings(settings, _READ_BY_VLLM)
            except ValueError as error:
                raise ValueError(f"quantization_config: {error}") from None
