"""Tensors of quantised models as files hold them or lack them: of linears, experts, embeddings and norms, of any model.

vLLM checks no quantised model for what a checkpoint lacks. Experts without scales have ones, without weights they have
memory as it was allocated. A file's numbers are copied whatever their type is: bytes of FP8 become numbers, FP8 becomes
bfloat16 without its scale, and an MX scale of 2^-6 becomes the byte 0, which is 2^-127. Rows that are too many are cut
off. An engine starts in each case, and its tokens mean nothing.

Here each parameter has a loader that looks at what it is given: MX scales of any type become bytes, another type or too
large a tensor is refused. Parameters of linears, experts and embeddings hold a mark until they are loaded: NaN, or
bytes that no row begins with. Those that hold it behind the loading are refused, as is NaN from a file. Where no mark
can be, the calls of the loader are counted. For norms, sinks and routers' biases vLLM's own check of names is asked,
which it has for models that are not quantised.
"""

import functools
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from vllm.config import ModelConfig
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.model_executor.model_loader import _LOAD_FORMAT_TO_MODEL_LOADER
from vllm.model_executor.model_loader.base_loader import BaseModelLoader
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.model_executor.model_loader.weight_utils import default_weight_loader

from .patching import around_loading
from .settings import refuse_unknown
from .shapes import is_padded, of_gpt_oss, why_not

__all__ = ["as_bytes", "check", "install", "mark", "refuse_bias"]

# Others (bitsandbytes, experts_int8) make weights of another type while they load them.
_METHODS = (
    *("fp8", "fbgemm_fp8", "compressed-tensors", "quark", "mxfp4", "gpt_oss_mxfp4", "deepseek_v4_fp8"),
    *("modelopt", "modelopt_mxfp8"),
)
_OF_EXPERTS = ("weight", "weight_packed", "bias", "weight_scale", "weight_scale_inv", "input_scale")
_OF_LINEARS = (*_OF_EXPERTS, "input_zero_point", "e_score_correction_bias")
# float8_e4m3fn's and float8_e4m3fnuz's NaN.
_NAN = {torch.float8_e4m3fn: 0x7F, torch.float8_e4m3fnuz: 0x80}
_FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_BYTES = (torch.uint8, torch.int8)
# Of codes each byte is one: the first ones of a row, in MXFP4 a block of -1 and 3 in turn.
_MARK, _MARKED = 0xA5, 16
_AT_ONCE = 2**26  # numbers
_OF_BYTES = 255  # NaN of MX scales
_EXPERT = re.compile(r"(.*\.experts)\.(\d+\.\w+\.bias|\w+_bias)$")
_COPIED = re.compile(r"(.*\.experts)\.(\d+)\.(gate_up|down)_proj\.(weight|weight_scale|input_scale|bias)$")
_STACK = re.compile(r"(.*\.experts)\.(gate_up|down)_proj_(blocks|scales|bias)$")
_SCALES = ("weight_scale", "weight_scale_inv", "input_scale")
_OF_CACHE = tuple(f".{each}_scale" for each in ("k", "v", "q", "prob"))  # vLLM takes negative ones for absent


def as_bytes(name: str, scale: torch.Tensor) -> torch.Tensor:
    """uint8 of a scale in uint8, float8_e8m0fnu or a wider type, of any shape. Raises: ValueError that names the scale
    where it holds other numbers than powers of two."""
    if scale.dtype == torch.uint8:
        return scale
    exponents = scale.to(torch.float8_e8m0fnu)
    if scale.dtype != torch.float8_e8m0fnu and not torch.equal(exponents.float(), scale.float()):
        raise ValueError(f"{name}: {scale.dtype}, with other numbers than powers of two; MX scales are exponents")
    return exponents.view(torch.uint8)


def mark(model: torch.nn.Module, made_up: bool, drafts: bool = False) -> None:
    """Of a quantised model that was made, before its weights are loaded: in place.

    Args:
        made_up: whether no file fills them.
        drafts: whether it drafts for another model, which gives it its embedding.
    """
    for name, (module, values) in _parameters(model).items():
        values.weight_loader = _looking(name, module, getattr(values, "weight_loader", default_weight_loader))
        values.rocm_fp8_loaded, values.rocm_fp8_wanted = set(), None
        if made_up or not _is_wanted(module, name, drafts):
            continue
        parts = [] if isinstance(module, RoutedExperts) and is_padded(module) else list(_parts(name, values))
        for part, marked in parts:
            part.fill_(marked)
        values.rocm_fp8_wanted = 0 if parts and not _is_shared(name, values) else _calls(module, name, values)


def check(model: torch.nn.Module) -> None:
    """Of a model whose weights are loaded. Raises: ValueError that names what is not filled, or holds NaN."""
    model.__dict__.pop("load_weights", None)  # `_watch`'s
    if (filled := model.__dict__.pop("rocm_fp8_filled", None)) is not None:
        # As of a model that is not quantised: some of vLLM's methods have parameters that no file fills.
        DefaultModelLoader.track_weights_loading(None, model, filled, quantized=False)
    for name, (_, values) in _parameters(model).items():
        loaded, wanted = getattr(values, "rocm_fp8_loaded", ()), getattr(values, "rocm_fp8_wanted", None)
        if wanted is None and not (loaded and values.is_floating_point()):
            continue
        if len(loaded) < (wanted or 0) or any(_is_left(*each) for each in _parts(name, values)):
            raise ValueError(f"{name}: holds NaN, or the checkpoint lacks a part of it")


def _parameters(model: torch.nn.Module) -> dict[str, tuple[torch.nn.Module, torch.nn.Parameter]]:
    """Name -> its module and itself; one that several modules have counts for the first."""
    modules = dict(model.named_modules())
    own = {name: (modules[name.rpartition(".")[0]], values) for name, values in model.named_parameters()}
    return {name: each for name, each in own.items() if not each[1].is_meta and each[1].numel()}


def _is_wanted(module: torch.nn.Module, name: str, drafts: bool) -> bool:
    """Whether each file of such a model fills it. Some of vLLM's methods have parameters that none fills."""
    last = name.rpartition(".")[2]
    if isinstance(module, ParallelLMHead):
        return last in _OF_LINEARS and module.weight.dtype not in _FLOATS and not drafts  # others are `heads`'
    if isinstance(module, LinearBase):
        return last in _OF_LINEARS
    if isinstance(module, RoutedExperts):
        return last.partition("_")[0] in ("w13", "w2") and last.partition("_")[2] in _OF_EXPERTS
    return isinstance(module, VocabParallelEmbedding) and not drafts


def _is_shared(name: str, values: torch.nn.Parameter) -> bool:
    """Whether gates and ups have one place."""
    return name.endswith("w13_input_scale") and values.dim() == 1


def _calls(module: torch.nn.Module, name: str, values: torch.nn.Parameter) -> int:
    """How many of a loader fill it. gpt-oss' files hold all experts in one tensor."""
    if not isinstance(module, RoutedExperts):
        return 1
    if _is_gpt_oss(module):
        return 1
    gated = ".w13_" in f".{name}" and module.moe_config.is_act_and_mul and not _is_copied(module)
    return len(values) * (2 if gated else 1)


def _is_gpt_oss(experts: RoutedExperts) -> bool:
    """Whether they are read from gpt-oss' own files."""
    return experts.quant_config is not None and experts.quant_config.get_name() == "gpt_oss_mxfp4"


def _is_copied(experts: RoutedExperts) -> bool:
    """Whether they are gpt-oss' in Quark's format: the model copies each expert's tensors, without a loader."""
    config = experts.quant_config
    return config is not None and config.get_name() == "quark" and getattr(experts, "w13_bias", None) is not None


def _parts(name: str, values: torch.nn.Parameter) -> Iterator[tuple[torch.Tensor, float | int]]:
    """(a part of the values, its mark): all of them, of codes their first columns. None of what has no mark."""
    data, of_codes = values.data, values.dtype in _BYTES
    if of_codes and not name.endswith(_SCALES):
        if data.shape[-1] >= _MARKED:
            yield data.view(torch.uint8)[..., :_MARKED], _MARK
        return
    if data.dtype in _NAN:
        data, marked = data.view(torch.uint8), _NAN[data.dtype]
    elif data.dtype == torch.float8_e8m0fnu or of_codes:
        data, marked = data.view(torch.uint8), _OF_BYTES
    elif data.is_floating_point():
        marked = float("nan")
    else:
        return
    # Few at a time: what is computed of them takes as much memory.
    for part in [data] if data.dim() == 0 else data.split(max(1, _AT_ONCE * len(data) // data.numel())):
        yield part, marked


def _is_left(part: torch.Tensor, marked: float | int) -> bool:
    if part.is_floating_point():
        return bool(part.isnan().any())
    if marked == _NAN[torch.float8_e4m3fn]:
        part = part & marked  # of both signs
    found = part == marked
    return bool((found.all(-1) if marked == _MARK else found).any())


def _looking(name: str, module: torch.nn.Module, loader: Callable) -> Callable:
    """The loader, which takes what fits alone. Of scales of gates' and ups' inputs the largest stays: vLLM keeps the
    one that was loaded last."""
    is_scale = isinstance(module, (LinearBase, ParallelLMHead, RoutedExperts)) and name.endswith(_SCALES)

    @functools.wraps(loader)
    def load(param: torch.nn.Parameter, loaded_weight: torch.Tensor, *arguments, **keywords):
        if is_scale and param.dtype in (torch.uint8, torch.float8_e8m0fnu):
            loaded_weight = as_bytes(name, loaded_weight).view(param.dtype)
        if not _takes(param.dtype, loaded_weight.dtype, is_scale):
            raise ValueError(f"{name}: {param.dtype} by the settings, {loaded_weight.dtype} in the checkpoint")
        if (is_scale or name.endswith(_OF_CACHE)) and not _are_scales(loaded_weight):
            raise ValueError(f"{name}: holds NaN, infinity or negative numbers in the checkpoint")
        if name.endswith("bias") and bool(loaded_weight.isnan().any()):
            raise ValueError(f"{name}: holds NaN in the checkpoint")
        part = _part(module, arguments, keywords)
        if reason := why_not(module, name, param, loaded_weight, part):
            raise ValueError(f"{name}: {reason}")
        before = param.data.clone() if _is_shared(name, param) else None
        try:
            result = loader(param, loaded_weight, *arguments, **keywords)
        except (AssertionError, RuntimeError, IndexError) as error:  # which name no tensor
            raise ValueError(f"{name}: {list(loaded_weight.shape)} in the checkpoint does not fit: {error}") from error
        if result is not False:  # an expert of another worker
            param.rocm_fp8_loaded.add(part)
        if before is not None:
            param.data.copy_(torch.fmax(before, param.data))  # of the mark and a number the number
        return result

    return load


def _part(module: torch.nn.Module, arguments: tuple, keywords: dict[str, Any]) -> Any:
    """What is loaded of a parameter: of a joined linear one of its own, of experts a matrix of one."""
    if isinstance(module, RoutedExperts):
        given = dict(zip(("weight_name", "shard_id", "expert_id"), arguments)) | keywords
        return given.get("shard_id"), given.get("expert_id")
    return next(iter((*arguments, *keywords.values())), None)


def _takes(own: torch.dtype, given: torch.dtype, is_scale: bool) -> bool:
    if own in _FLOATS:
        return given in _FLOATS or (is_scale and given == torch.float8_e8m0fnu)
    if own in _BYTES:
        return given in _BYTES
    return given == own or not (own.is_floating_point or given.is_floating_point)


def _are_scales(values: torch.Tensor) -> bool:
    if values.dtype in (*_BYTES, torch.float8_e8m0fnu):
        return not bool((values.view(torch.uint8) == _OF_BYTES).any())
    return bool(((values.float() >= 0) & values.float().isfinite()).all())


def refuse_bias(
    modules: dict[str, torch.nn.Module], joined_parts: dict[str, list[str]], name: str, values: torch.Tensor
) -> None:
    """Raises: ValueError where a file's tensor is a bias that the model has no place for. vLLM drops it.

    joined_parts: the model's packed_modules_mapping: a linear -> those of a file that are joined in it.
    """
    before, _, last = name.removesuffix(".bias").rpartition(".")
    joined = next((of for of, parts in joined_parts.items() if last in parts), last)
    if found := _EXPERT.match(name):
        module = modules.get(f"{found[1]}.routed_experts")
        lacks = isinstance(module, RoutedExperts) and getattr(module, "w13_bias", None) is None
    else:
        module = modules.get(f"{before}.{last}", modules.get(f"{before}.{joined}"))
        kinds = LinearBase, ParallelLMHead, RMSNorm
        lacks = isinstance(module, kinds) and module._parameters.get("bias") is None
    if lacks and bool(values.any()):
        raise ValueError(f"{name}: the checkpoint has this bias, and by config.json the model has none")


def _look_at_copied(modules: dict[str, torch.nn.Module], name: str, values: torch.Tensor) -> None:
    """As a loader looks at what it is given, but for types, which the model's copy would take for numbers."""
    found = _COPIED.match(name)
    experts = modules.get(f"{found[1]}.routed_experts") if found else None
    if not isinstance(experts, RoutedExperts) or not _is_copied(experts):
        return
    part = "w2" if found[3] == "down" else "w13"
    own = experts._parameters.get(f"{part}_{found[4]}")
    if own is None:
        return  # the model says so
    if not _takes(own.dtype, values.dtype, False):
        raise ValueError(f"{name}: {own.dtype} by the settings, {values.dtype} in the checkpoint")
    _looking(name, experts, lambda *given, **named: None)(own, values, name, part, int(found[2]))


def _look_at_stack(modules: dict[str, torch.nn.Module], name: str, values: torch.Tensor) -> None:
    """gpt-oss' model cuts a worker's share out of a file's tensor before a loader sees it."""
    found = _STACK.match(name)
    experts = modules.get(f"{found[1]}.routed_experts") if found else None
    if not isinstance(experts, RoutedExperts) or not _is_gpt_oss(experts):
        return
    wanted = of_gpt_oss(experts, found[2] == "down", found[3])
    if values.shape != wanted:
        raise ValueError(f"{name}: {list(wanted)} by the settings, {list(values.shape)} in the checkpoint")


def _check_sinks(name: str, values: torch.Tensor) -> None:
    """gpt-oss' model copies them by itself: no loader looks at them."""
    if values.dtype not in _FLOATS or bool(values.isnan().any()):
        raise ValueError(f"{name}: {values.dtype} in the checkpoint, or NaN; sinks are numbers of 16 or 32 bits")


def _watch(model: torch.nn.Module) -> None:
    """Has what files hold looked at, and what is filled noted, until `check`: of any loader that reads them by
    model.load_weights."""
    theirs, modules = model.load_weights, dict(model.named_modules())
    joined_parts = getattr(model, "packed_modules_mapping", {})

    def looked_at(weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        for name, values in weights:
            if name.endswith("bias"):
                refuse_bias(modules, joined_parts, name, values)
            elif name.endswith(".sinks"):
                _check_sinks(name, values)
            _look_at_copied(modules, name, values)
            _look_at_stack(modules, name, values)
            yield name, values

    @functools.wraps(theirs)
    def load_weights(weights: Iterable[tuple[str, torch.Tensor]], *arguments, **keywords) -> set[str] | None:
        model.rocm_fp8_filled = theirs(looked_at(weights), *arguments, **keywords)
        return model.rocm_fp8_filled

    model.load_weights = load_weights


def _refusing(theirs):
    """A loader's load_model: one that is its own makes no model that `mark` sees, and may bring weights that are in a
    kernel's layout."""

    @functools.wraps(theirs)
    def load_model(self, vllm_config, model_config: ModelConfig, *arguments, **keywords) -> torch.nn.Module:
        if _is_served(model_config):
            _refuse_format(model_config, self.load_config.load_format)
        return theirs(self, vllm_config, model_config, *arguments, **keywords)

    return load_model


def _refuse_format(config: ModelConfig, load_format: str) -> None:
    raise ValueError(f"load_format {load_format}: not for {config.quantization}. Load the checkpoint itself")


def _is_served(config: ModelConfig) -> bool:
    return config.quantization in _METHODS


def _drafts(config: ModelConfig) -> bool:
    return config.runner_type == "draft"


def _mark(model: torch.nn.Module, config: ModelConfig, load_format: str) -> None:
    if not _is_served(config):
        return
    refuse_unknown(config)
    if "sharded" in load_format:  # its files are what a kernel's layout made of the weights, which would be made again
        _refuse_format(config, load_format)
    mark(model, load_format == "dummy", _drafts(config))
    _watch(model)


def install() -> None:
    if around_loading("weights", _mark, lambda model, config: check(model)):
        for kind in set(_LOAD_FORMAT_TO_MODEL_LOADER.values()):
            if kind.load_model is not BaseModelLoader.load_model:
                kind.load_model = _refusing(kind.load_model)
