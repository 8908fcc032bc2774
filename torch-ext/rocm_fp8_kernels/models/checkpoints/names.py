"""What else is in the checkpoints that people publish: tensors that nothing here uses, tied ones that differ, experts,
where their quantization_config stands, and what their config.json says beyond transformers'. For FP8 and int8."""

import re
import warnings
from pathlib import Path

import torch

from .tensors import Tensors

__all__ = [
    "check_left",
    "check_tied",
    "complete_settings",
    "no_sparsity",
    "pop_settings",
    "refuse_experts",
    "tied_names",
]

# Scales of the KV cache, of attention's own products and of quantised outputs.
_SCALES = re.compile(
    r".*\b(?:self_attn|attn|attention)\.(?:\w+_proj\.|attn\.)?"
    r"(?:(?:[qkv]|kv|prob|prob_output|output)_scale|(?:[qkv]|kv|prob)_zero_point)"
)
_OF_THE_CACHE = re.compile(r".*\b(?:(?:k|v|kv)_(?:scale|zero_point)|[kv]_proj\.output_scale)")
_LAYER = re.compile(r".*\blayers\.(\d+)\.")
# By model_type, what vLLM reads in config.json and transformers takes for granted.
_READ_BY_ENGINES = {
    "deepseek_v3": {"topk_method": "noaux_tc", "scoring_func": "sigmoid"},
    "minimax_m2": {"scoring_func": "sigmoid", "use_routing_bias": True},
}


def pop_settings(settings: dict) -> dict | None:
    """The quantization_config of a config.json, which is taken out of it. Older releases of compressed-tensors call it
    compression_config, and have it in one more level."""
    found = settings.pop("quantization_config", None)
    old = settings.pop("compression_config", None)
    if found is None and isinstance(old, dict):
        inner = old.get("quantization_config")
        found = {"quant_method": "compressed-tensors"} | (old if inner is None else old | inner)
        found.pop("quantization_config", None)
    if isinstance(found, dict) and found.get("quant_method") == "fp8" and "expert_dtype" in settings:
        found = {"expert_dtype": settings["expert_dtype"]} | found  # DeepSeek-V4 says it beside
    return found if isinstance(found, dict) else None


def complete_settings(settings: dict, model: torch.nn.Module) -> dict:
    """The config.json of a model with what save_pretrained adds to its configuration, and published ones say."""
    architectures = settings.get("architectures") or [type(model).__name__]
    return _READ_BY_ENGINES.get(settings.get("model_type"), {}) | settings | {"architectures": architectures}


def no_sparsity(settings: dict) -> None:
    """Raises: ValueError where weights are packed as sparse, or transformed."""
    for name in ("transform_config", "sparsity_config"):
        inner = settings.get(name) or {}
        if any(inner.values()) and inner.get("format") != "dense":
            raise ValueError(f"{name}: {inner}; known: none")


def tied_names(model: torch.nn.Module) -> dict[str, str]:
    """Name of each tensor -> the first name of the same tensor."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(value), name) for name, value in model.state_dict(keep_vars=True).items()}


def check_tied(tensors: Tensors, tied: dict[str, str], directory: Path) -> None:
    """Raises: ValueError where the files hold two different tensors for one of the model's."""
    stored: dict[str, str] = {}
    for name in sorted(tensors.names() & tied.keys()):
        other = stored.setdefault(tied[name], name)
        if other != name and not torch.equal(tensors.read(other), tensors.read(name)):
            raise ValueError(
                f"{directory}: {other} and {name} differ, and are one tensor in the model; tie_word_embeddings must be"
                " false in config.json, or one of them left out"
            )


def refuse_experts(model: torch.nn.Module, where: Path) -> None:
    """For int8. Raises: ValueError where a model has experts that are no linears of their own."""
    for name, value in model.named_parameters():
        if value.dim() == 3 and "expert" in name:
            raise ValueError(f"{where}: {name}: mixtures of experts are quantised to FP8 alone")


def check_left(
    model: torch.nn.Module, left: set[str], tensors: Tensors, directory: Path, *, spare: set[str], cache: bool
) -> None:
    """Of the tensors that a model does not read: one warning that lists those that nothing here uses.

    Args:
        left: their names. Decoder layers beyond the model's predict more tokens.
        spare: names of scales and zero points that the scheme has no use for; zero points must be 0.
        cache: whether the configuration has a scheme of the KV cache.

    Raises: ValueError that names one that is unknown.
    """
    left = {name for name in left if not name.endswith("rotary_emb.inv_freq")}
    layers = getattr(model.config.get_text_config(), "num_hidden_layers", None)
    # What transformers leaves of the architecture, too: Qwen3-Next's and 3.5's mtp.*, which predicts more tokens.
    passed_over = [re.compile(each) for each in getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()]
    unused = set()
    for name in left:
        layer = _LAYER.match(name)
        beyond = layer is not None and layers is not None and int(layer[1]) >= layers
        known = any(pattern.search(name) for pattern in passed_over)
        if beyond or known or _SCALES.fullmatch(name) or (name in spare and not name.endswith("zero_point")):
            unused.add(name)
        elif name in spare:
            if bool(tensors.read(name).any()):
                raise ValueError(f"{directory}: {name}: holds other numbers than 0, and the scheme is symmetric")
            unused.add(name)
    if left - unused:
        raise ValueError(f"{directory}: unknown tensor {min(left - unused)}")
    if unused or cache:
        # A line for all layers.
        kinds = sorted({re.sub(r"\.\d+\.", ".*.", name) for name in unused})
        of_the_cache = cache or any(_OF_THE_CACHE.fullmatch(name) for name in unused)
        what = ["the KV cache keeps the model's dtype: its scales are not used"] if of_the_cache else []
        what += [f"tensors that nothing here uses: {', '.join(kinds)}"] if kinds else []
        warnings.warn(f"{directory}: {'; '.join(what)}", stacklevel=6)
