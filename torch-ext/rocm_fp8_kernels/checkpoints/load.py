"""A checkpoint as a model: which linears are joined, their scales, what stays unquantised."""

import os
import re
import warnings
from pathlib import Path

import torch

from ..linear import Fp8Linear
from ..ops import fp8_dtype as _device_fp8_dtype
from .schemes import Scheme, schemes_of
from .tensors import Tensors, read_json

__all__ = ["load_quantized"]

_HALF = (torch.bfloat16, torch.float16)
_FLOATS = (*_HALF, torch.float32)
_OF_THE_CACHE = re.compile(r".*\.self_attn\.(?:(?:k|v|kv)_scale|[kv]_proj\.output_scale)")


@torch.no_grad()
def load_quantized(directory: str | os.PathLike, device: torch.device | str = "cpu") -> torch.nn.Module:
    """A LlamaForCausalLM from an FP8 checkpoint, on `device`, in the device's FP8 format, for inference.

    Q, K and V become one linear, Gate and Up another. Different weight scales of such parts become scales of channels:
    the weights stay what they are. Of different static input scales the largest is taken, as vLLM does.

    A decoder layer's attention, and its MLP, is fused where all of its linears are quantised, those of one input alike.
    Otherwise it keeps transformers' module: its quantised linears, and a quantised head, quantise their own input, and
    the others stay as they are.

    Args:
        directory: config.json with a quantization_config, and model.safetensors or files with an index. Formats:
            compressed-tensors (float-quantized), fp8 (AutoFP8), quark, fbgemm_fp8; weights in float8_e4m3fn with scales
            per tensor or channel. Scales of the KV cache are not used, with a warning.
        device: where the tensors are read to.

    Raises: FileNotFoundError that names the file; ValueError that names the tensor, file or setting; ImportError
        without compressed-tensors. Names, shapes and dtypes are checked before tensors are read.
    """
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    from .. import llama

    directory, device = Path(directory), torch.device(device)
    file = directory / "config.json"
    settings = read_json(file)
    if settings.get("model_type") != "llama":
        raise ValueError(f"{file}: model_type {settings.get('model_type')!r}; known: llama")
    quantization = settings.pop("quantization_config", None)
    if not isinstance(quantization, dict):
        raise ValueError(f"{file}: no quantization_config")
    tensors = Tensors(directory, device)
    config = LlamaConfig.from_dict(settings)
    dtype = config.dtype or tensors.dtype("model.embed_tokens.weight")
    if dtype not in _HALF:
        raise ValueError(f"{file}: dtype {dtype}; needs float16 or bfloat16")
    with torch.device("meta"):
        model = LlamaForCausalLM(config).to(dtype)
    layers = llama.decoder_layers(model)
    try:
        schemes = schemes_of(model, quantization)
    except ValueError as error:
        raise ValueError(f"{file}: quantization_config: {error}") from None
    _check(model, schemes, tensors, directory)

    names = {module: name for name, module in model.named_modules()}

    def join(linears: list[torch.nn.Linear], kind: type[Fp8Linear] = Fp8Linear) -> Fp8Linear:
        return _joined(kind, [names[linear] for linear in linears], schemes, tensors, linears[0], dtype)

    for layer in layers:
        halves = [half for half in llama.HALVES if _is_fusable(layer, half, names, schemes)]
        llama.convert(layer, join, halves)
    for name, module in list(model.named_modules()):
        if isinstance(module, torch.nn.Linear) and name in schemes:
            model.set_submodule(name, join([module], llama.QuantizingFp8Linear))
    state = {}
    for name, value in model.state_dict().items():
        if value.is_meta and not (config.tie_word_embeddings and name == "lm_head.weight"):
            state[name] = tensors.read(name).to(dtype)
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, strict=False, assign=True)
    # The one module whose buffers are computed rather than stored.
    model.model.rotary_emb = LlamaRotaryEmbedding(config).to(device)
    model.tie_weights()
    if (directory / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(directory)
    if _device_fp8_dtype(device) == torch.float8_e4m3fnuz:
        for module in model.modules():
            if isinstance(module, Fp8Linear):
                module.to_fnuz_()
    return model.requires_grad_(False).eval()


def _check(model: torch.nn.Module, schemes: dict[str, Scheme], tensors: Tensors, directory: Path) -> None:
    """ValueError where a tensor is missing, is not as the model and the schemes say, or is one too many."""
    left, tied = tensors.names(), model.config.tie_word_embeddings
    if tied and "lm_head" in schemes:
        raise ValueError(f"{directory}: lm_head is quantised and tied to the embedding")

    def check(name: str, shapes, dtypes) -> None:
        tensors.check(name, shapes, dtypes)
        left.discard(name)

    for name, value in model.state_dict().items():
        linear, _, last = name.rpartition(".")
        if linear not in schemes or last != "weight":
            if not (tied and name == "lm_head.weight" and name not in left):
                check(name, [tuple(value.shape)], _FLOATS)
            continue
        rows = value.shape[0]
        check(name, [tuple(value.shape)], (torch.float8_e4m3fn,))
        check(f"{linear}.weight_scale", [(rows, 1), (rows,)] if schemes[linear].channel else [(1,), ()], _FLOATS)
        if not schemes[linear].dynamic:
            check(f"{linear}.input_scale", [(1,), ()], _FLOATS)
    left = {name for name in left if not name.endswith("rotary_emb.inv_freq")}
    of_the_cache = {name for name in left if _OF_THE_CACHE.fullmatch(name)}
    if left - of_the_cache:
        raise ValueError(f"{directory}: unknown tensor {min(left - of_the_cache)}")
    if of_the_cache:
        warnings.warn(f"{directory}: the KV cache keeps the model's dtype: its scales are not used", stacklevel=4)


def _is_fusable(layer: torch.nn.Module, half: str, names: dict, schemes: dict[str, Scheme]) -> bool:
    """Whether all of its linears are quantised, and those of one input take it alike."""
    from .. import llama

    for parent, _, parts in llama.linears_of(layer, [half]):
        found = [schemes.get(names[getattr(parent, part)]) for part in parts]
        if None in found or len({(scheme.dynamic, scheme.scale_ub) for scheme in found}) > 1:
            return False
    return True


def _joined(
    kind: type[Fp8Linear],
    names: list[str],
    schemes: dict[str, Scheme],
    tensors: Tensors,
    first: torch.nn.Linear,
    dtype: torch.dtype,
) -> Fp8Linear:
    """The linears of these names, which have one input, as one."""
    scheme = schemes[names[0]]
    weights = [tensors.read(f"{name}.weight") for name in names]
    scales = [_scale(tensors, f"{name}.weight_scale") for name in names]
    one = not scheme.dynamic and all(scale.numel() == 1 and torch.equal(scale, scales[0]) for scale in scales)
    result = kind(
        *(first.in_features, sum(len(weight) for weight in weights)),
        bias=first.bias is not None,
        channel_scales=not one,
        dtype=dtype,
        fp8_dtype=torch.float8_e4m3fn,
        device="meta",
        dynamic=scheme.dynamic,
    )
    result.weight = torch.cat(weights)
    channels = [scale.expand(len(weight)) for scale, weight in zip(scales, weights)]
    result.weight_scale = scales[0].clone() if one else torch.cat(channels).reshape(1, -1)
    if not scheme.dynamic:
        result.input_scale = torch.cat([_scale(tensors, f"{name}.input_scale") for name in names]).amax().reshape(1)
    if scheme.scale_ub is not None:
        result.scale_ub = torch.tensor([scheme.scale_ub], device=result.weight.device)
    if first.bias is not None:
        result.bias = torch.cat([tensors.read(f"{name}.bias").to(dtype) for name in names])
    return result


def _scale(tensors: Tensors, name: str) -> torch.Tensor:
    """float32 [n]. Raises: ValueError where one is no positive number."""
    scale = tensors.read(name).float().reshape(-1)
    wrong = scale[~((scale > 0) & (scale < float("inf")))]
    if wrong.numel():
        raise ValueError(f"{name}: holds {wrong[0].item()}; scales are positive numbers")
    return scale
