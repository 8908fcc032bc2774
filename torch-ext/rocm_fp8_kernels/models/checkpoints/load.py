"""A checkpoint as a model: which linears are joined, their scales, what stays unquantised."""

import os
import re
from collections import Counter
from pathlib import Path

import torch

from ...ops.mx import MX_BLOCK
from ..codes import refuse_save_pretrained
from ..fp8.experts import experts_of
from ..fp8.linear import BLOCK, QuantizedLinear
from ..fp8.source import choosers, readers
from .experts import StoredExperts, take_apart
from .joined import input_kinds, joined, to_format_of
from .names import check_left, check_tied, pop_settings, tied_names
from .published import Names
from .schemes import EXPONENTS, Scheme, schemes_of
from .tensors import Tensors, read_json

__all__ = ["compute_buffers", "load_quantized"]

_HALF = (torch.bfloat16, torch.float16)
_FLOATS, _INTEGERS = (*_HALF, torch.float32), (torch.int32, torch.int64)
# What a scheme's weights and scales may be called: vLLM's and compressed-tensors' names, transformers', DeepSeek's.
_WEIGHTS = ("weight", "weight_packed")
_WEIGHT_SCALES = ("weight_scale", "weight_scale_inv", "scale")
_INPUT_SCALES = ("input_scale", "activation_scale")


@torch.inference_mode(False)
@torch.no_grad()
def load_quantized(directory: str | os.PathLike, device: torch.device | str = "cpu") -> torch.nn.Module:
    """A causal language model of transformers from an FP8 or MX checkpoint, for inference, on `device`.

    Q, K and V become one linear, Gate and Up another. Different weight scales of such parts become scales of channels:
    the weights stay what they are. Of different static input scales the largest is taken, as vLLM does. The experts of
    a mixture become one module, whose input has one static scale, too; where the checkpoint leaves them out they stay
    transformers'. Buffers, such as what corrects a router's scores, keep the type that they have in the files, and what
    from_pretrained keeps in float32 has it.

    A decoder layer's attention, and its MLP, is fused where the architecture is known (../fp8/architectures.py) and
    all of its linears are quantised, those of one input alike. Otherwise it keeps transformers' module: its quantised
    linears, and a quantised head, quantise their own input, and the others stay as they are. One warning says
    so, unless the checkpoint's own rules leave linears out.

    Args:
        directory: config.json with a quantization_config, and model.safetensors or files with an index. Formats:
            compressed-tensors (float-quantized, mxfp4-pack-quantized, mxfp8-quantized, mixed-precision of these), fp8
            (AutoFP8, Qwen3-FP8, DeepSeek; of V4 experts in MXFP4), quark, fbgemm_fp8, mxfp4 (gpt-oss); weights in
            float8_e4m3fn with scales per tensor, channel or block of 128x128, MXFP4 or MXFP8. Inputs beside MX weights
            are what the settings say: none in 16 bits. Experts have a tensor for each matrix, by the names of
            DeepSeek-V3 and Qwen3-MoE or of Mixtral, or are stacked as transformers has them, with scales of blocks, or
            as gpt-oss'. Scales of the KV cache and of attention, and layers that predict more tokens, are not used,
            with a warning.
        device: where the tensors are read to.

    Raises: FileNotFoundError that names the file; ValueError that names the tensor, file or setting; ImportError
        without compressed-tensors. Names, shapes and dtypes are checked before tensors are read.
    """
    from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM, GenerationConfig

    from ..fp8 import planning

    directory, device = Path(directory), torch.device(device)
    file = directory / "config.json"
    settings = read_json(file)
    kind = settings.get("model_type")
    if kind not in CONFIG_MAPPING or CONFIG_MAPPING[kind] not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ValueError(f"{file}: model_type {kind!r}; known: transformers' causal language models")
    quantization = pop_settings(settings)
    if quantization is None:
        raise ValueError(f"{file}: no quantization_config")
    tensors = Tensors(directory, device)
    config = CONFIG_MAPPING[kind].from_json_file(file)  # it knows how transformers writes infinity
    config.__dict__.pop("quantization_config", None)
    config.__dict__.pop("compression_config", None)
    dtype = config.dtype or tensors.dtype("model.embed_tokens.weight")
    if dtype not in _HALF:
        raise ValueError(f"{file}: dtype {dtype}; needs float16 or bfloat16")
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    _empty(model)
    names = Names(model, {name: len(module.down_proj) for name, module in experts_of(model).items()})
    tensors.rename({name: own for name in tensors.names() if (own := names.own(name)) != name})
    try:
        apart = take_apart(model, tensors)
    except ValueError as error:
        raise ValueError(f"{directory}: {error}") from None
    try:
        schemes = schemes_of(model, quantization, names.of_rules)
    except ValueError as error:
        raise ValueError(f"{file}: quantization_config: {error}") from None
    tied = tied_names(model)
    experts = [StoredExperts(name, module, tensors) for name, module in apart.items()]
    cache = bool(quantization.get("kv_cache_scheme"))
    schemes = _check(model, schemes, experts, tensors, directory, tied, cache)
    of_experts = {name for each in experts for name in each.linears()}

    def join(names: list[str]) -> QuantizedLinear:
        return joined(names, schemes, tensors.read, dtype, bias=model.get_submodule(names[0]).bias is not None)

    planned = planning.plan(
        model, input_kinds({name: scheme for name, scheme in schemes.items() if name not in of_experts})
    )
    planning.replace_linears(model, planned, join)
    for each in experts:
        model.set_submodule(each.name, each.read(schemes, dtype))
    stored = {first: name for name, first in tied.items() if name in tensors}
    state, buffers, wide = {}, dict(model.named_buffers()), _kept_in_float32(model, dtype)
    for name, value in model.state_dict().items():
        if value.is_meta and tied[name] not in state:
            values = tensors.read(stored[tied[name]])
            if not value.is_floating_point():
                values = values.to(value.dtype)
            elif name not in buffers:  # what corrects routers' scores is one, and stays in its type
                values = values.to(torch.float32 if wide.search(name) else value.dtype)
            state[tied[name]] = values
    state |= {name: state[first] for name, first in tied.items() if first in state}
    model.load_state_dict(state, strict=False, assign=True)
    compute_buffers(model, device)
    model.tie_weights()
    if (directory / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(directory)
    to_format_of(model)
    planning.finish(model)
    refuse_save_pretrained(model, "quantization.save_quantized")
    planned.warn(model)
    return model.requires_grad_(False).eval()


def _empty(model: torch.nn.Module) -> None:
    """Parameters that are on no device meta (DiffLlama's, by torch.normal) to it: what is there is not read."""
    for module in model.modules():
        for name, value in module._parameters.items():
            if value is not None and not value.is_meta:
                module._parameters[name] = torch.nn.Parameter(value.to("meta"))


def _kept_in_float32(model: torch.nn.Module, dtype: torch.dtype) -> re.Pattern:
    """What names of tensors hold that from_pretrained keeps in float32 in a model of this dtype."""
    patterns = set(getattr(model, "_keep_in_fp32_modules_strict", None) or ())
    if dtype == torch.float16:
        patterns |= set(getattr(model, "_keep_in_fp32_modules", None) or ())
    return re.compile("|".join(each.replace("*", ".*") for each in sorted(patterns)) or "(?!)")


def compute_buffers(model: torch.nn.Module, device: torch.device) -> None:
    """Those that are computed rather than stored: of rotary embeddings, above all. As from_pretrained does it."""
    for name, module in model.named_modules():
        computed = [each for each, value in module._buffers.items() if value is not None and value.is_meta]
        for each in computed:
            module._buffers[each] = torch.empty_like(module._buffers[each], device=device)
        module._is_hf_initialized = True
        for each, value in (*module._parameters.items(), *module._buffers.items()):
            if value is not None:
                value._is_hf_initialized = each not in computed
        steps = name.split(".")
        for end in range(len(steps) + 1) if computed else ():  # a parent may compute it: Falcon-H1's model
            model.get_submodule(".".join(steps[:end]))._is_hf_initialized = False
    model.initialize_weights()


def _check(
    model,
    schemes: dict[str, Scheme],
    experts: list[StoredExperts],
    tensors: Tensors,
    directory: Path,
    tied: dict[str, str],
    cache: bool,
) -> dict[str, Scheme]:
    """The schemes, with the names that the files have for scales.

    Raises: ValueError where a tensor is missing, is not as the model and the schemes say, or is one too many.
    """
    left, stored = tensors.names(), {tied[name] for name in tensors.names() if name in tied}
    found, spare, uses = {}, set(), Counter(tied.values())

    def check(name: str, shapes, dtypes) -> None:
        tensors.check(name, shapes, dtypes)
        left.discard(name)

    # What other code reads, or chooses by, publishers leave in 16 bits without a rule that says so.
    loose = {name for name, module in model.named_modules() if type(module) is not torch.nn.Linear}
    loose |= readers(model).keys() | choosers(model).keys()
    wide = _kept_in_float32(model, torch.float16)  # these, too: transformers quantises none of them
    loose |= {name for name, _ in model.named_modules() if wide.search(name)}
    stacked = set()
    for each in experts:
        try:
            scheme = each.scheme(schemes)
        except ValueError as error:
            raise ValueError(f"{directory}: {error}") from None
        if each.stacked:
            each.check_stacks(scheme, check)
            stacked |= set(each.linears())
    for name, value in model.state_dict().items():
        linear, _, last = name.rpartition(".")
        if linear in stacked:
            if linear in schemes:
                found[linear] = schemes[linear]
            continue
        if linear not in schemes or last != "weight":
            # Of tied tensors one is enough.
            if name in left or tied[name] not in stored:
                check(name, [tuple(value.shape)], _FLOATS if value.is_floating_point() else (value.dtype, *_INTEGERS))
            continue
        if uses[tied[name]] > 1:
            raise ValueError(f"{directory}: {linear} is quantised and tied to {tied[name]}")
        if linear in loose and tensors.dtype(name) in _FLOATS and not _scales(tensors, linear):
            check(name, [tuple(value.shape)], _FLOATS)
            continue
        rows, k = value.shape
        scheme, blocks = schemes[linear], tuple(-(-size // BLOCK) for size in value.shape)
        scheme = found[linear] = scheme._replace(
            scale_name=_stored(tensors, linear, (scheme.scale_name, *_WEIGHT_SCALES)),
            input_name=_stored(tensors, linear, _INPUT_SCALES),
            weight_name=_stored(tensors, linear, _WEIGHTS) if scheme.mx else _WEIGHTS[0],
        )
        if scheme.mx:
            if k % MX_BLOCK:
                raise ValueError(f"{directory}: {linear}: {k} inputs; MX weights need a multiple of {MX_BLOCK}")
            check(f"{linear}.{scheme.weight_name}", *scheme.of_weight(rows, k))
            check(f"{linear}.{scheme.scale_name}", [(rows, k // MX_BLOCK)], EXPONENTS)
            continue
        check(name, [tuple(value.shape)], (torch.float8_e4m3fn,))
        one = [(1,), (), (1, 1)]
        shapes = {"tensor": one, "channel": [(rows, 1), (rows,), (1, rows)], "block": [blocks]}[scheme.weights]
        of_blocks = (torch.float8_e8m0fnu,) if scheme.weights == "block" else ()
        check(f"{linear}.{scheme.scale_name}", shapes, (*_FLOATS, *of_blocks))
        if not scheme.dynamic:
            check(f"{linear}.{scheme.input_name}", one, _FLOATS)
        spare |= {f"{linear}.{each}" for each in (*_INPUT_SCALES, "weight_zero_point", "input_zero_point")}
    check_left(model, left, tensors, directory, spare=spare, cache=cache)
    check_tied(tensors, tied, directory)
    return found


def _scales(tensors: Tensors, linear: str) -> list[str]:
    return [name for name in (*_WEIGHT_SCALES, *_INPUT_SCALES) if f"{linear}.{name}" in tensors]


def _stored(tensors: Tensors, linear: str, names: tuple[str, ...]) -> str:
    """The first of the names that is there; of one that is not, the check says so."""
    return next((name for name in names if f"{linear}.{name}" in tensors), names[0])
