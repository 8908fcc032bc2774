"""A quantised model as a compressed-tensors checkpoint."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from ..fp8.experts import Fp8Experts, experts_of, why_not
from ..fp8.linear import Fp8Linear
from .experts import split_experts, split_stacks
from .names import complete_settings
from .tensors import read_json

__all__ = ["save_quantized", "whole"]


def save_quantized(model: torch.nn.Module, directory: str | os.PathLike) -> None:
    """Writes a quantised model as compressed-tensors ("float-quantized"), which transformers and vLLM load.
    (transformers 5.19 takes no experts with scales of blocks.)

    The files are config.json, generation_config.json and model.safetensors, in several parts with an index above 5 GB.
    They have the names of transformers' linears: joined ones are split, and experts have a tensor for each matrix.
    They are written beside `directory` and renamed: it holds a whole checkpoint or is not there.

    Raises: ValueError where the model is not quantised, is float8_e4m3fnuz (checkpoints are float8_e4m3fn, which
        load_quantized turns into the device's format), or bounds its scales by an activation_scale_ub or rounds them to
        powers of two, for which the format has no place, or where blocks of 128x128 hold rows of an expert's gate_proj
        and up_proj; FileExistsError; ImportError without compressed-tensors.
    """
    try:
        from compressed_tensors.compressors import ModelCompressor
    except ImportError as error:  # its own dependencies, too: release 0.17 imports psutil and does not ask for it
        raise ImportError(f"FP8 checkpoints need the Python package compressed-tensors: {error}") from None
    from huggingface_hub import save_torch_state_dict

    directory = Path(directory)
    linears = {name: module for name, module in model.named_modules() if isinstance(module, Fp8Linear)}
    experts = {name: module for name, module in model.named_modules() if isinstance(module, Fp8Experts)}
    if not linears and not experts:
        raise ValueError("the model is not quantised")
    if any(getattr(module, "communicator", None) is not None for module in model.modules()):
        raise ValueError("the model is one rank's share of it; save it before parallelize")
    for name, module in (linears | experts).items():
        codes = module.weight if name in linears else module.down_proj
        if codes.dtype != torch.float8_e4m3fn:
            raise ValueError(f"the model's FP8 format is {codes.dtype}; checkpoints hold float8_e4m3fn")
        if name in linears and module.scale_ub is not None:
            raise ValueError(f"{name} has a scale_ub; compressed-tensors checkpoints hold none")
        if module.power_of_two:
            raise ValueError(f"{name} rounds the scales of its inputs; compressed-tensors checkpoints cannot say so")
    stacks = {name: module for name, module in experts_of(model).items() if why_not(module) is None}
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
            kinds.setdefault((linear.weights, linear.inputs), []).append(part)
    for name, module in experts.items():
        for part, kind, values in split_experts(name, module):
            state |= {f"{part}.{key}": value for key, value in values.items()}
            pattern = rf"re:{re.escape(name)}\.\d+\.{part.rpartition('.')[2]}$"
            if pattern not in kinds.setdefault(kind, []):
                kinds[kind].append(pattern)
    ignore = _left_out(model)
    for name, module in stacks.items():
        state |= split_stacks(name, module)
        ignore.append(rf"re:{re.escape(name)}\.\d+\..*")

    with whole(directory) as partial:
        model.config.save_pretrained(partial)
        if model.generation_config is not None:
            model.generation_config.save_pretrained(partial)
        ModelCompressor(quantization_config=_config(kinds, ignore)).update_config(str(partial))
        settings = complete_settings(read_json(partial / "config.json"), model)
        (partial / "config.json").write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        save_torch_state_dict(state, partial)


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


def _parts(model: torch.nn.Module, name: str, linear: Fp8Linear):
    """(transformers' name, its tensors) of each linear that is in this one."""
    from ..fp8.planning import parts_of

    parts, rows = parts_of(model, name)
    ends = torch.tensor(rows).cumsum(0).tolist()
    for part, end, count in zip(parts, ends, rows):
        of = slice(end - count, end)
        # Clones: safetensors refuses tensors that share memory.
        values = {"weight": linear.weight[of].clone()}
        values["weight_scale"] = linear.scales_of_rows(of).clone()
        if linear.input_scale is not None:
            values["input_scale"] = linear.input_scale.clone()
        if linear.bias is not None:
            values["bias"] = linear.bias[of].clone()
        yield part, values


def _left_out(model: torch.nn.Module) -> list[str]:
    """Names of what is a linear in some engine, and not quantised: transformers' routers are none, vLLM's are."""
    others = (Fp8Linear, Fp8Experts, torch.nn.Embedding)
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
