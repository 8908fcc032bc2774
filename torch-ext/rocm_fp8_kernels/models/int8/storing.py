"""Int8 checkpoints: compressed-tensors ("int-quantized") of Int8Linear, torch-int's names of SmoothQuant's OPT."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import torch

from ..checkpoints.load import compute_buffers
from ..checkpoints.names import (
    check_left,
    check_tied,
    complete_settings,
    no_sparsity,
    pop_settings,
    refuse_experts,
    tied_names,
)
from ..checkpoints.save import whole
from ..checkpoints.settings import check_settings
from ..checkpoints.tensors import Tensors, read_json
from ..codes import refuse_save_pretrained
from .modules import Int8Linear, LayerNormQ

__all__ = ["load_quantized", "save_quantized"]

_FLOATS = (torch.bfloat16, torch.float16, torch.float32)
_FORMAT = "int-quantized"
_INT8 = {"num_bits": 8, "type": "int"}
_PICKLED, _PICKLED_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"


def save_quantized(model: torch.nn.Module, directory: str | os.PathLike) -> None:
    """Writes config.json, generation_config.json and model.safetensors, in several parts with an index above 5 GB.

    A model of Int8Linear becomes compressed-tensors, which transformers and vLLM load: int8 weights, weight_scale
    float32 [out_features, 1]; of static ones input_scale float32 [1] and input_zero_point int8 [1]. A static OPT of
    `quantize` becomes a checkpoint with the names of torch-int's Int8OPTForCausalLM, without a quantization_config.
    The directory holds a whole checkpoint or is not there.

    Raises: ValueError where the model is not quantised to int8; FileExistsError.
    """
    from huggingface_hub import save_torch_state_dict

    directory = Path(directory)
    linears = {name: module for name, module in model.named_modules() if isinstance(module, Int8Linear)}
    static = any(isinstance(module, LayerNormQ) for module in model.modules())
    if not linears and not static:
        raise ValueError("the model is not quantised to int8")
    kinds = {(module.symmetric, module.static) for module in linears.values()}
    if len(kinds) > 1:
        raise ValueError("linears' inputs differ in zero points, or in being static; needs one kind")
    first: dict[int, str] = {}  # of tied tensors one is written
    state = {
        name: value.detach().contiguous()
        for name, value in model.state_dict(keep_vars=True).items()
        if first.setdefault(id(value), name) == name
    }
    for name in linears:
        key = f"{name}.weight_scale"
        if key in state:
            state[key] = state[key].reshape(-1, 1)
        key = f"{name}.input_zero_point"
        if key in state:
            state[key] = state[key].to(torch.int8)
    with whole(directory) as partial:
        model.config.save_pretrained(partial)
        if model.generation_config is not None:
            model.generation_config.save_pretrained(partial)
        settings = complete_settings(read_json(partial / "config.json"), model)
        settings["dtype"] = str(next(model.parameters()).dtype).removeprefix("torch.")
        if linears:
            ignore = [name for name, module in model.named_modules() if type(module) is torch.nn.Linear]
            settings["quantization_config"] = _settings(ignore, *kinds.pop())
        (partial / "config.json").write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        save_torch_state_dict(state, partial)


def _settings(ignore: list[str], symmetric: bool, static: bool) -> dict:
    strategy = "tensor" if static else "token"
    group = {
        "targets": ["Linear"],
        "weights": _INT8 | {"symmetric": True, "strategy": "channel", "dynamic": False},
        "input_activations": _INT8 | {"symmetric": symmetric, "strategy": strategy, "dynamic": not static},
        "format": _FORMAT,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": _FORMAT,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ignore,
    }


@torch.inference_mode(False)
@torch.no_grad()
def load_quantized(directory: str | os.PathLike, device: torch.device | str = "cpu") -> torch.nn.Module:
    """A causal language model of transformers from an int8 checkpoint, on `device`, for inference.

    Args:
        directory: config.json, and model.safetensors or files with an index. Either a quantization_config of
            compressed-tensors, "int-quantized": weights with scales of channels or tensors, activations dynamic by
            token or static by tensor, symmetric or not. Or an OPT with torch-int's names, as
            mit-han-lab/opt-125m-smoothquant; its weights may also be pytorch_model.bin, of which tensors alone are
            read.
        device: where the model is put.

    Raises: FileNotFoundError that names the file; ValueError that names the tensor, file or setting; ImportError where
        compressed-tensors is needed and not there.
    """
    from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM, GenerationConfig

    directory, device = Path(directory), torch.device(device)
    file = directory / "config.json"
    settings = read_json(file)
    kind = settings.get("model_type")
    if kind not in CONFIG_MAPPING or CONFIG_MAPPING[kind] not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ValueError(f"{file}: model_type {kind!r}; known: transformers' causal language models")
    quantization = pop_settings(settings)
    tensors = _tensors(directory, device)
    config = CONFIG_MAPPING[kind].from_dict(settings)
    embedding = next((name for name in sorted(tensors.names()) if name.endswith("embed_tokens.weight")), "")
    dtype = config.dtype or tensors.dtype(embedding)
    if dtype not in _FLOATS:
        raise ValueError(f"{file}: dtype {dtype}; needs float16, bfloat16 or float32")
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    refuse_experts(model, directory)
    if quantization is not None:
        try:
            kinds = _targets(model, quantization)
        except ValueError as error:
            raise ValueError(f"{file}: quantization_config: {error}") from None
        for name, (symmetric, static) in kinds.items():
            linear = model.get_submodule(name)
            options = dict(bias=linear.bias is not None, symmetric=symmetric, static=static, dtype=dtype)
            empty = Int8Linear(linear.in_features, linear.out_features, **options, device="meta")
            model.set_submodule(name, empty)
    elif any(name.endswith(".qk_bmm.a") for name in tensors.names()):
        from . import opt

        opt.empty_layers(model)
    else:
        raise ValueError(f"{file}: no quantization_config, and no tensors of torch-int's OPT")
    cache = bool((quantization or {}).get("kv_cache_scheme"))
    model.load_state_dict(dict(_state(model, tensors, directory, cache)), strict=False, assign=True)
    for module in model.modules():
        if isinstance(module, LayerNormQ):
            module.one = torch.ones(1, device=device)  # is not stored
    compute_buffers(model, device)
    model.tie_weights()
    if (directory / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(directory)
    refuse_save_pretrained(model, "smoothquant.save_quantized")
    return model.requires_grad_(False).eval()


def _state(model: torch.nn.Module, tensors, directory: Path, cache: bool) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, tensor) of the model's; ValueError where one is missing, is another's, or is one too many."""
    tied, wanted, left = tied_names(model), model.state_dict(), tensors.names()
    linears = [name for name, module in model.named_modules() if isinstance(module, Int8Linear)]
    of_weights, of_inputs = ({f"{name}.{kind}_scale" for name in linears} for kind in ("weight", "input"))
    stored = {tied[name]: name for name in sorted(tensors.names(), reverse=True) if name in tied}
    read: dict[str, torch.Tensor] = {}
    for name, value in wanted.items():
        source = stored.get(tied[name], name)
        left -= {name, source}
        if tied[name] not in read:
            shape, kinds = tuple(value.shape), _FLOATS if value.dtype in _FLOATS else (value.dtype,)
            kinds += (torch.int8,) if value.dtype == torch.int32 else ()  # zero points
            shapes = [(shape[1], 1), (shape[1],), shape, (1,), (), (1, 1)] if name in of_weights else [shape]
            if value.numel() == 1:
                shapes += [(1,), (), (1, 1)]
            tensors.check(source, shapes, kinds)
            found = tensors.read(source).to(value.dtype)
            if not bool(torch.isfinite(found).all()):
                raise ValueError(f"{directory}: {source}: holds NaN or infinity")
            if name in of_weights | of_inputs and not bool((found > 0).all()):
                raise ValueError(f"{directory}: {source}: scales are positive numbers")
            if name in of_weights:
                found = found.reshape(1, -1).expand(shape).contiguous()
            read[tied[name]] = found.reshape(shape)
        yield name, read[tied[name]]
    spare = {f"{name}.{each}" for name in linears for each in ("input_scale", "weight_zero_point", "input_zero_point")}
    check_left(model, left, tensors, directory, spare=spare, cache=cache)
    check_tied(tensors, tied, directory)


def _targets(model: torch.nn.Module, settings: dict) -> dict[str, tuple[bool, bool]]:
    """Linears that are int8: whether their inputs are symmetric, and static. ValueError that names what is unknown."""
    try:
        from compressed_tensors.quantization import QuantizationConfig
        from compressed_tensors.utils import match_named_modules
    except ImportError as error:  # its own dependencies, too: release 0.17 imports psutil and does not ask for it
        raise ImportError(f"int8 checkpoints need the Python package compressed-tensors: {error}") from None
    from pydantic import ValidationError

    if settings.get("quant_method") != "compressed-tensors" or settings.get("format") != _FORMAT:
        raise ValueError(
            f"quant_method {settings.get('quant_method')!r}, format {settings.get('format')!r};"
            f" known: compressed-tensors, {_FORMAT}"
        )
    check_settings(settings)
    no_sparsity(settings)
    try:
        config = QuantizationConfig.model_validate(settings)
    except ValidationError as error:
        one = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, one['loc']))}: {one['msg']}") from None
    found: dict[str, tuple[bool, bool]] = {}
    for group, scheme in config.config_groups.items():
        weights, inputs = scheme.weights, scheme.input_activations
        given = [
            None if part is None else (part.num_bits, str(part.type), part.symmetric, str(part.strategy), part.dynamic)
            for part in (weights, inputs)
        ]
        known = [(8, "int", True, strategy, False) for strategy in ("channel", "tensor")]
        ways = (("token", True), ("tensor", False))
        of_inputs = [(8, "int", symmetric, *way) for symmetric in (True, False) for way in ways]
        if given[0] not in known or given[1] not in of_inputs or scheme.output_activations:
            raise ValueError(
                f"config_groups.{group}: weights and inputs (bits, type, symmetric, strategy, dynamic) {given};"
                " known: 8-bit int; weights symmetric, by channel or tensor; inputs dynamic by token, static by tensor"
            )
        for name, module in match_named_modules(model, scheme.targets, config.ignore):
            if isinstance(module, torch.nn.Embedding):
                raise ValueError(f"{name} is quantised, an Embedding; known: linears")
            if isinstance(module, torch.nn.Linear):
                found.setdefault(name, (inputs.symmetric, not inputs.dynamic))
    if not found:
        raise ValueError("no linear of the model is quantised")
    return found


class _Pickled:
    """As Tensors, of pytorch_model.bin: what torch.save wrote. Nothing but tensors is made of it."""

    def __init__(self, directory: Path, files: list[str], device: torch.device):
        self._directory, self._device, self._tensors = directory, device, {}
        for name in files:
            path = directory / name
            if not path.is_file():
                raise FileNotFoundError(f"{path}: no such file")
            try:
                found = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
            except Exception as error:  # a pickle can fail in any way
                raise ValueError(f"{path}: {str(error).splitlines()[0] or type(error).__name__}") from None
            if not isinstance(found, dict) or not all(isinstance(value, torch.Tensor) for value in found.values()):
                raise ValueError(f"{path}: no dictionary of tensors")
            self._tensors |= found

    def names(self) -> set[str]:
        return set(self._tensors)

    def check(self, name: str, shapes: list[tuple[int, ...]], dtypes: tuple[torch.dtype, ...]) -> None:
        if name not in self._tensors:
            raise ValueError(f"{self._directory}: no tensor {name}")
        value = self._tensors[name]
        if value.dtype not in dtypes or tuple(value.shape) not in shapes:
            has = f"{value.dtype} {list(value.shape)}"
            raise ValueError(f"{self._directory}: {name}: {has}; needs {dtypes[0]} {list(shapes[0])}")

    def dtype(self, name: str) -> torch.dtype | None:
        return self._tensors[name].dtype if name in self._tensors else None

    def read(self, name: str) -> torch.Tensor:
        return self._tensors[name].to(self._device)


def _tensors(directory: Path, device: torch.device) -> Tensors | _Pickled:
    safe = any((directory / f"model.safetensors{end}").is_file() for end in ("", ".index.json"))
    if not safe and (directory / _PICKLED_INDEX).is_file():
        parts = read_json(directory / _PICKLED_INDEX).get("weight_map")
        if not isinstance(parts, dict) or not all(isinstance(f, str) and f == Path(f).name for f in parts.values()):
            raise ValueError(f"{directory / _PICKLED_INDEX}: no weight_map of names of files in this folder")
        return _Pickled(directory, sorted(set(parts.values())), device)
    if not safe and (directory / _PICKLED).is_file():
        return _Pickled(directory, [_PICKLED], device)
    return Tensors(directory, device)
