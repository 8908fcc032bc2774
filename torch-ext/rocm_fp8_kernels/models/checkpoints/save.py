"""A quantised model as a compressed-tensors checkpoint."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from ...layers.experts import why_not
from ..codes import refuse_adapters
from ..fp8.experts import Fp8Experts, experts_of
from ..fp8.linear import BLOCK, Fp8Linear, QuantizedLinear
from .experts import mx_tensors, split_blocks, split_experts, split_stacks
from .names import complete_settings
from .published import DOWN, GATE_UP, Names
from .tensors import read_json

__all__ = ["save_quantized", "whole"]


def save_quantized(model: torch.nn.Module, directory: str | os.PathLike) -> None:
    """Writes a quantised model as a checkpoint that transformers and load_quantized read, and vLLM where it knows the
    architecture's linears by transformers' names.

    The format is compressed-tensors ("float-quantized", "mxfp4-pack-quantized", of both "mixed-precision"), with scales
    of blocks "fp8", as DeepSeek's checkpoints have it, and of gpt-oss with experts in MXFP4 "mxfp4", its own. Where
    blocks are cut off at an edge such that transformers would take those of "fp8" for smaller ones, it is
    compressed-tensors, which transformers then does not read, and says so. Nor does it read experts in MXFP8: a
    RuntimeError names a size of their scales.

    The files are config.json, generation_config.json and model.safetensors, in several parts with an index above 5 GB.
    They have the names of the architecture's published checkpoints: joined linears are split, and experts have a tensor
    for each matrix. They are written beside `directory` and renamed: it holds a whole checkpoint or is not there.

    Raises: ValueError where the model is not quantised, has an adapter (PEFT) that is not merged, is float8_e4m3fnuz
        (checkpoints are float8_e4m3fn, which load_quantized turns into the device's format), or bounds its scales by an
        activation_scale_ub, for which the formats have no place; where blocks of 128x128 hold rows of an expert's
        gate_proj and up_proj; where published checkpoints of the architecture hold experts stacked, for whose scales
        there is no format, or transformers would not read a tensor; of experts by blocks, and of inputs' scales that
        are rounded to powers of two, where the format is not "fp8"; of gpt-oss where more than experts, or other than
        MXFP4 beside 16 bits, is quantised. FileExistsError; ImportError without
        compressed-tensors.
    """
    try:
        from compressed_tensors.compressors import ModelCompressor
    except ImportError as error:  # its own dependencies, too: release 0.17 imports psutil and does not ask for it
        raise ImportError(f"FP8 checkpoints need the Python package compressed-tensors: {error}") from None
    from huggingface_hub import save_torch_state_dict

    directory = Path(directory)
    refuse_adapters(model)
    linears = {name: module for name, module in model.named_modules() if isinstance(module, QuantizedLinear)}
    experts = {name: module for name, module in model.named_modules() if isinstance(module, Fp8Experts)}
    _check(model, linears, experts)
    stacks = {name: module for name, module in experts_of(model).items() if why_not(module) is None}
    names = Names(model, {name: len(module.down_proj) for name, module in (experts | stacks).items()})
    stacks = {name: module for name, module in stacks.items() if names.has_matrices(name)}
    in_blocks = _are_in_blocks(model, linears, experts)
    for name in experts if not in_blocks else ():
        if not names.has_matrices(name):
            kind = type(model).__name__
            raise ValueError(f"{name}: checkpoints of {kind} hold experts stacked, and have no place for their scales")

    split = linears.keys() | experts.keys() | stacks.keys()
    first: dict[int, str] = {}  # of tied tensors one is written
    state = {
        name: value.detach().contiguous()
        for name, value in model.state_dict(keep_vars=True).items()
        if name.rpartition(".")[0] not in split and first.setdefault(id(value), name) == name
    }
    kinds: dict[tuple[str, str], list[str]] = {}  # (weights, inputs), as Fp8Linear's -> names, or patterns, of linears
    for name, linear in linears.items():
        for part, values in _parts(model, name, linear):
            state |= {f"{part}.{key}": value for key, value in values.items()}
            kinds.setdefault((linear.weights, linear.inputs), []).extend(names.of_rules(part))
    for name, module in experts.items():
        if in_blocks:
            state |= split_blocks(name, module)
            continue
        for part, kind, values in split_experts(name, module):
            state |= {f"{part}.{key}": value for key, value in values.items()}
            pattern = names.pattern(name, part.rpartition(".")[2])
            if pattern not in kinds.setdefault(kind, []):
                kinds[kind].append(pattern)
    fp8 = not in_blocks and _is_fp8(linears | experts, state)
    ignore = [each for name in _left_out(model) for each in names.of_rules(name)]
    for name, module in stacks.items():
        state |= split_stacks(name, module)
        ignore += [names.pattern(name, part) for part in GATE_UP + DOWN] if not fp8 else [names.of_rules(name)[-1]]
    state = _published(state, names, {name for of_kind in kinds.values() for name in of_kind}, fp8)

    with whole(directory) as partial:
        model.config.save_pretrained(partial)
        if model.generation_config is not None:
            model.generation_config.save_pretrained(partial)
        if not fp8 and not in_blocks:
            ModelCompressor(quantization_config=_config(kinds, ignore)).update_config(str(partial))
        settings = complete_settings(read_json(partial / "config.json"), model)
        # A cast of the model does not change its configuration, and readers take the type from there.
        settings["dtype"] = str(model.dtype).removeprefix("torch.")
        if in_blocks:
            settings["quantization_config"] = dict(quant_method="mxfp4", modules_to_not_convert=ignore)
        if fp8:
            rounded = any(module.power_of_two for module in (linears | experts).values())
            settings["quantization_config"] = _fp8_settings(ignore, rounded)
        (partial / "config.json").write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        save_torch_state_dict(state, partial)


def _are_in_blocks(model, linears: dict[str, torch.nn.Module], experts: dict[str, Fp8Experts]) -> bool:
    """Whether the format is "mxfp4", gpt-oss'. Raises: ValueError that names what it has no place for."""
    if getattr(model.config, "model_type", None) != "gpt_oss":
        return False
    for name, module in experts.items():
        if (module.format, module.inputs) != ("mxfp4", "16bit"):
            raise ValueError(f"{name}: checkpoints of gpt-oss hold MXFP4 beside 16 bits, not {module.kind()}")
    if linears:
        raise ValueError(f"{next(iter(linears))} is quantised; checkpoints of gpt-oss have experts in MXFP4 alone")
    return True


def _is_fp8(quantised: dict[str, QuantizedLinear | Fp8Experts], state: dict[str, torch.Tensor]) -> bool:
    """Whether the format is "fp8". Raises: ValueError that names what only this format holds, where it is not."""
    mx = {name for name, module in quantised.items() if module.format != "fp8"}
    by_blocks = {name for name, module in quantised.items() if module.inputs == "group"}
    rounded = {module.power_of_two for name, module in quantised.items() if name not in mx}
    scales = [name for name in state if name.endswith(".weight_scale") and state[name].dtype != torch.uint8]
    smaller = next((name for name in scales if _taken_for_smaller(name, state)), None)
    if len(by_blocks) == len(quantised) and len(rounded) == 1 and smaller is None:
        return True
    why = f"transformers would take {smaller} for one of smaller blocks" if smaller else "other linears differ"
    for name, module in quantised.items():
        if name not in mx and module.power_of_two:
            raise ValueError(f"{name} rounds the scales of its inputs; compressed-tensors cannot say so, and {why}")
        if name in by_blocks and isinstance(module, Fp8Experts):
            raise ValueError(f"{name} has scales of blocks, which compressed-tensors has no place for, and {why}")
    return False


def _taken_for_smaller(name: str, state: dict[str, torch.Tensor]) -> bool:
    """Whether the sizes of a weight are multiples of the number of its scales, and blocks therefore no 128 long."""
    sizes = state[name.removesuffix("_scale")].shape, state[name].shape
    return any(count > 1 and size % count == 0 and size != count * BLOCK for size, count in zip(*sizes))


def _check(model, linears: dict[str, QuantizedLinear], experts: dict[str, Fp8Experts]) -> None:
    """Raises: ValueError that names what no file can say."""
    if not linears and not experts:
        raise ValueError("the model is not quantised")
    if any(getattr(module, "communicator", None) is not None for module in model.modules()):
        raise ValueError("the model is one rank's share of it; save it before parallelize")
    if any(pattern in "weight_scale" for pattern in getattr(model, "_keep_in_fp32_modules_strict", None) or ()):
        raise ValueError(f"transformers keeps scales of a {type(model).__name__} in float32, and multiplies by others")
    replaced = _replaced()
    for name, module in model.named_modules():
        if type(module).__name__ in replaced:
            raise ValueError(f"{name}: transformers puts other modules in its place in a quantised checkpoint")
    for name, module in (linears | experts).items():
        if module.weight.dtype == torch.float8_e4m3fnuz:
            raise ValueError(f"the model's FP8 format is {module.weight.dtype}; checkpoints hold float8_e4m3fn")
        if isinstance(module, Fp8Linear) and module.scale_ub is not None:
            raise ValueError(f"{name} has a scale_ub; compressed-tensors checkpoints hold none")


def _replaced() -> set[str]:
    """Classes that transformers replaces, before it reads a quantised checkpoint, by others with a linear a matrix."""
    try:
        from transformers.quantizers.base import MODULES_TO_PATCH_FOR_QUANTIZATION as replaced
    except ImportError:
        return set()
    return {name for name, how in replaced.items() if "compressed-tensors" in map(str, _methods(how))}


def _methods(how: dict) -> list:
    return [getattr(each, "value", each) for each in how.get("quantization_methods", ())]


def _published(state: dict, names: Names, quantised: set[str], fp8: bool) -> dict[str, torch.Tensor]:
    """The tensors by the names of files. Raises: ValueError that names what transformers would not read."""
    for name in state:
        if not names.is_read(name):
            raise ValueError(f"{name}: transformers would not read it under the name that it has in checkpoints")

    def called(name: str) -> str:
        linear, _, last = name.rpartition(".")
        # Of compressed-tensors' scales transformers rounds those to the model's dtype that it has not renamed; with
        # others it cannot multiply. So linears that it renames keep its names, which it reads, too.
        name = name if linear in quantised and not fp8 else names.published(name)
        return f"{name}_inv" if fp8 and last == "weight_scale" else name

    return {called(name): value for name, value in state.items()}


def _fp8_settings(ignore: list[str], rounded: bool) -> dict:
    settings = dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic", weight_block_size=[BLOCK, BLOCK])
    return settings | dict(modules_to_not_convert=ignore) | (dict(scale_fmt="ue8m0") if rounded else {})


@contextmanager
def whole(directory: Path) -> Iterator[Path]:
    """A folder beside `directory`, which gets that name at the end, or is removed where something fails. Raises:
    FileExistsError."""
    if directory.exists():
        raise FileExistsError(f"{directory} exists")
    partial = directory.with_name(f".{directory.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        yield partial
        os.rename(partial, directory)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _parts(model: torch.nn.Module, name: str, linear: QuantizedLinear):
    """(transformers' name, its tensors) of each linear that is in this one."""
    from ..fp8.planning import parts_of

    parts, rows = parts_of(model, name)
    ends = torch.tensor(rows).cumsum(0).tolist()
    for part, end, count in zip(parts, ends, rows):
        of = slice(end - count, end)
        # Clones: safetensors refuses tensors that share memory.
        if linear.format == "fp8":
            values = {"weight": linear.weight[of].clone(), "weight_scale": linear.scales_of_rows(of).clone()}
        else:
            values = mx_tensors(linear.weight[of], linear.weight_scale[of])
        if linear.input_scale is not None:
            values["input_scale"] = linear.input_scale.clone()
        if linear.bias is not None:
            values["bias"] = linear.bias[of].clone()
        yield part, values


def _left_out(model: torch.nn.Module) -> list[str]:
    """Names of what is a linear in some engine, and not quantised: transformers' routers are none, vLLM's are."""
    others = (QuantizedLinear, Fp8Experts, torch.nn.Embedding)
    modules = ((name, module) for name, module in model.named_modules() if not isinstance(module, others))
    return [
        name for name, module in modules if getattr(module, "weight", None) is not None and module.weight.dim() == 2
    ]


def _config(kinds: dict[tuple[str, str], list[str]], ignore: list[str]):
    from compressed_tensors.quantization import QuantizationConfig

    from .schemes import settings_of_groups

    groups = {
        f"group_{i}": (["Linear"] if len(kinds) == 1 else names, *kind) for i, (kind, names) in enumerate(kinds.items())
    }
    return QuantizationConfig.model_validate(settings_of_groups(groups, ignore))
