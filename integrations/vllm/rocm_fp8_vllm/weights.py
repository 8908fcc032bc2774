"""Weights of quantised models as files hold them or lack them: of linears and experts, of any model.

vLLM checks no quantised model for what a checkpoint lacks. Experts without scales have ones, without weights they have
memory as it was allocated. A file's numbers are copied whatever their type is: bytes of FP8 become numbers, and FP8
becomes bfloat16 without its scale. An engine starts in each case.

Here parameters hold a mark until they are loaded: NaN, or bytes that no row begins with. Those that hold it behind the
loading are refused. So are files with another type. For norms, sinks and routers' biases vLLM's own check is switched
on, which it has for models that are not quantised.
"""

import functools
import re
from collections.abc import Callable, Iterable, Iterator

import torch
from vllm.config import ModelConfig
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.model_executor.model_loader.weight_utils import default_weight_loader

from .patching import around_loading

__all__ = ["check", "install", "mark", "refuse_bias"]

# Others (bitsandbytes, experts_int8) make weights of another type while they load them.
_METHODS = (
    *("fp8", "fbgemm_fp8", "compressed-tensors", "quark", "mxfp4", "gpt_oss_mxfp4", "deepseek_v4_fp8"),
    *("modelopt", "modelopt_mxfp8"),
)
_WEIGHTS = ("weight", "weight_packed", "bias")
_OF_LINEARS = (*_WEIGHTS, "e_score_correction_bias")
_OF_INT8 = (*_WEIGHTS, "weight_scale", "input_scale", "input_zero_point")  # those of FP8 and MX: `scales`
_OF_EXPERTS = (*_WEIGHTS, "weight_scale", "weight_scale_inv", "input_scale")
# float8_e4m3fn's and float8_e4m3fnuz's NaN.
_NAN = {torch.float8_e4m3fn: 0x7F, torch.float8_e4m3fnuz: 0x80}
_FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
# Of codes each byte is one: the first ones of a row, in MXFP4 a block of -1 and 3 in turn.
_MARK, _MARKED = 0xA5, 16
_OF_BYTES = 255  # NaN of MX scales
_JOINED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
_EXPERT = re.compile(r"(.*\.experts)\.\d+\.\w+\.bias$")


def mark(model: torch.nn.Module, made_up: bool, drafts: bool = False) -> None:
    """Of a quantised model that was made, before its weights are loaded: in place.

    Args:
        made_up: whether no file fills them.
        drafts: whether it drafts for another model, which gives it its embedding.
    """
    for name, values in _of_files(model, drafts).items():
        if values.is_meta:
            continue
        values.weight_loader = _of_one_type(name, getattr(values, "weight_loader", default_weight_loader))
        if not made_up:
            for part, marked in _ends(name, values):
                part.fill_(marked)
            values.rocm_fp8_marked = True


def check(model: torch.nn.Module) -> None:
    """Of a model whose weights are loaded. Raises: ValueError that names what is not filled, or holds NaN."""
    for name, values in _of_files(model, drafts=False).items():
        ends = list(_ends(name, values))
        left = any(_is_left(*each) for each in ends) if ends else not hasattr(values, "rocm_fp8_loaded")
        if left and getattr(values, "rocm_fp8_marked", False):
            raise ValueError(f"{name}: holds NaN, or the checkpoint lacks a part of it")


def _of_files(model: torch.nn.Module, drafts: bool) -> dict[str, torch.nn.Parameter]:
    found = {}
    for name, module in model.named_modules():
        if isinstance(module, LinearBase):
            weight = module._parameters.get("weight")
            wanted = _OF_INT8 if weight is not None and weight.dtype == torch.int8 else _OF_LINEARS
        elif isinstance(module, RoutedExperts) and (not _is_padded(module) or _has_stacks(module)):
            wanted = tuple(f"{part}_{last}" for part in ("w13", "w2") for last in _OF_EXPERTS)
        elif isinstance(module, VocabParallelEmbedding) and not isinstance(module, ParallelLMHead) and not drafts:
            wanted = ("weight",)  # heads are `heads`'
        else:
            continue
        own = ((last, module._parameters.get(last)) for last in wanted)
        own = {f"{name}.{last}": values for last, values in own if values is not None and values.numel()}
        if isinstance(module, RoutedExperts):
            for values in own.values():
                values.rocm_fp8_padded = _is_padded(module)
        found |= own
    return found


def _is_padded(experts: RoutedExperts) -> bool:
    """Whether some of their rows or columns are in no file. A worker's share of gpt-oss may have no others."""
    config = experts.moe_config
    sizes = config.hidden_dim, config.intermediate_size_per_partition
    return sizes != (config.hidden_dim_unpadded, config.intermediate_size_per_partition_unpadded)


def _has_stacks(experts: RoutedExperts) -> bool:
    """Whether one call of a parameter's loader fills it: gpt-oss' files hold all experts in one tensor."""
    return experts.quant_config is not None and experts.quant_config.get_name() == "gpt_oss_mxfp4"


def _ends(name: str, values: torch.nn.Parameter) -> Iterator[tuple[torch.Tensor, float | int]]:
    """(a part of the values, its mark): first and last columns of weights, all of what has few. None of what has no
    mark, or zeros for padding: there it counts that the loader is called."""
    if getattr(values, "rocm_fp8_padded", False):
        return
    data, of_codes = values.data, values.dtype in (torch.uint8, torch.int8)
    if of_codes and not name.endswith("scale"):
        if data.shape[-1] >= _MARKED:
            yield data.view(torch.uint8)[..., :_MARKED], _MARK
        return
    if data.dtype in _NAN:
        data, marked = data.view(torch.uint8), _NAN[data.dtype]
    elif data.is_floating_point() or of_codes:
        marked = _OF_BYTES if of_codes else float("nan")
    else:
        return
    for part in [data] if data.dim() < 2 or data.shape[-1] < 3 else [data[..., 0], data[..., -1]]:
        yield part, marked


def _is_left(part: torch.Tensor, marked: float | int) -> bool:
    if part.is_floating_point():
        return bool(part.isnan().any())
    if marked == _NAN[torch.float8_e4m3fn]:
        part = part & marked  # of both signs
    found = part == marked
    return bool((found.all(-1) if marked == _MARK else found).any())


def _of_one_type(name: str, loader: Callable) -> Callable:
    """The loader, which takes the parameter's type alone. Of scales of gates' and ups' inputs, which have one place,
    the largest stays: vLLM keeps the one that was loaded last."""

    @functools.wraps(loader)
    def load(param: torch.nn.Parameter, loaded_weight: torch.Tensor, *arguments, **keywords):
        if not _takes(name, param.dtype, loaded_weight.dtype):
            raise ValueError(f"{name}: {param.dtype} by the settings, {loaded_weight.dtype} in the checkpoint")
        param.rocm_fp8_loaded = True
        before = param.data.clone() if name.endswith("w13_input_scale") and param.dim() == 1 else None
        result = loader(param, loaded_weight, *arguments, **keywords)
        if before is not None:
            param.data.copy_(torch.fmax(before, param.data))  # of NaN and a number the number
        return result

    return load


def _takes(name: str, own: torch.dtype, given: torch.dtype) -> bool:
    if own in _NAN:
        return given == own
    if name.endswith(("scale", "scale_inv")):
        return own not in _FLOATS or given in (*_FLOATS, torch.float8_e8m0fnu)  # bytes: `scales`
    return given in _FLOATS if own in _FLOATS else given == own or {given, own} == {torch.uint8, torch.int8}


def refuse_bias(modules: dict[str, torch.nn.Module], name: str, values: torch.Tensor) -> None:
    """Raises: ValueError where a file's tensor is a bias that the model has no place for. vLLM drops it."""
    before, _, last = name.removesuffix(".bias").rpartition(".")
    joined = next((of for of, parts in _JOINED.items() if last in parts), last)
    if found := _EXPERT.match(name):
        module = modules.get(f"{found[1]}.routed_experts")
        lacks = isinstance(module, RoutedExperts) and getattr(module, "w13_bias", None) is None
    else:
        module = modules.get(f"{before}.{last}", modules.get(f"{before}.{joined}"))
        lacks = isinstance(module, LinearBase) and module._parameters.get("bias") is None
    if lacks and bool(values.any()):
        raise ValueError(f"{name}: the checkpoint has this bias, and by config.json the model has none")


def _with_biases(theirs):
    """DefaultModelLoader.get_all_weights."""

    @functools.wraps(theirs)
    def get_all_weights(self, model_config: ModelConfig, model: torch.nn.Module) -> Iterable[tuple[str, torch.Tensor]]:
        modules = dict(model.named_modules())
        for name, values in theirs(self, model_config, model):
            if _is_served(model_config) and name.endswith(".bias"):
                refuse_bias(modules, name, values)
            yield name, values

    return get_all_weights


def _with_names(theirs):
    """DefaultModelLoader.load_weights."""

    @functools.wraps(theirs)
    def load_weights(self, model: torch.nn.Module, model_config: ModelConfig) -> None:
        self.rocm_fp8_all_modules = self.enable_weights_track is not None  # the user has said so
        if _is_served(model_config) and not _drafts(model_config) and not self.rocm_fp8_all_modules:
            self.enable_weights_track = True
        return theirs(self, model, model_config)

    return load_weights


def _of_plain_modules(theirs):
    """DefaultModelLoader.track_weights_loading: as of a model that is not quantised. Some of vLLM's methods have
    parameters that no file fills."""

    @functools.wraps(theirs)
    def track_weights_loading(self, model, loaded_weights, quantized: bool = False) -> None:
        return theirs(self, model, loaded_weights, quantized and self.rocm_fp8_all_modules)

    return track_weights_loading


def _is_served(config: ModelConfig) -> bool:
    return config.quantization in _METHODS


def _drafts(config: ModelConfig) -> bool:
    return config.runner_type == "draft"


def _mark(model: torch.nn.Module, config: ModelConfig, made_up: bool) -> None:
    if _is_served(config):
        mark(model, made_up, _drafts(config))


def install() -> None:
    if around_loading("weights", _mark, lambda model, config: check(model)):
        for name, ours in (
            ("get_all_weights", _with_biases),
            ("load_weights", _with_names),
            ("track_weights_loading", _of_plain_modules),
        ):
            setattr(DefaultModelLoader, name, ours(getattr(DefaultModelLoader, name)))
