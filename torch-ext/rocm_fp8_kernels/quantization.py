"""From a float16 or bfloat16 Llama to one whose linears are FP8: weights, activation scales, checkpoints.

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16)
    kernel.quantization.quantize_llama(model, [input_ids, ...])  # or (model, activations="dynamic"): without text
    kernel.quantization.save_quantized(model, "llama-fp8")
    ...
    model = kernel.quantization.load_quantized("llama-fp8", device="cuda")

Quantised are the decoder layers' linears, Q, K and V as one, Gate and Up as one. Embeddings, norms, rotary
embeddings, attention itself and the head stay as they are.
"""

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import torch

from .arguments import FP8
from .linear import Fp8Linear
from .ops import fp8_dtype as _device_fp8_dtype

__all__ = ["Fp8Linear", "calibrate", "load_quantized", "quantize_llama", "save_quantized"]

_WEIGHTS, _FORMAT = "fp8.safetensors", "rocm-fp8-kernels.1"
_ACTIVATIONS = ("static", "dynamic")


@torch.no_grad()
def calibrate(model: torch.nn.Module, inputs: Iterable[torch.Tensor]) -> dict[str, float]:
    """The largest magnitude that each decoder linear's input takes on `inputs`.

    Args:
        model: a Llama that is not quantised.
        inputs: token ids, int64 [batch, length], on any device; text like that which the model will see.

    Returns: qualified name of the linear ("model.layers.0.mlp.down_proj") -> largest magnitude.
    Raises: ValueError where the model is no Llama, there is no input, or an activation is NaN or infinite.
    """
    from . import llama

    largest: dict[str, torch.Tensor] = {}
    names = {module: name for name, module in model.named_modules()}

    def observe(name: str):
        def hook(module, arguments):
            most = arguments[0].detach().abs().amax().float()
            largest[name] = torch.maximum(largest[name], most) if name in largest else most

        return hook

    handles = []
    for layer in llama.decoder_layers(model):
        for parent, _, parts in llama.linears_of(layer):
            linear = getattr(parent, parts[0])  # all of them have one input
            handles.append(linear.register_forward_pre_hook(observe(names[linear])))
    was_training = model.training
    model.eval()
    try:
        for ids in inputs:
            model(input_ids=ids.to(model.device), use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
        model.train(was_training)
    if not largest:
        raise ValueError("inputs: empty; calibration needs text")
    result = {name: value.item() for name, value in largest.items()}
    for name, value in result.items():
        if not value < float("inf"):
            raise ValueError(f"the input of {name} becomes {value}")
    return result


@torch.no_grad()
def quantize_llama(
    model: torch.nn.Module,
    inputs: Iterable[torch.Tensor] | None = None,
    *,
    granularity: str = "channel",
    fp8_dtype: torch.dtype | None = None,
    activations: str = "static",
) -> torch.nn.Module:
    """Quantises a Llama's decoder layers, in place.

    Args:
        model: any transformers model with LlamaDecoderLayer modules, float16 or bfloat16.
        inputs: as in `calibrate`, for static scales; None for dynamic ones.
        granularity: "channel": a weight scale for each output channel; "tensor": one a (joined) linear.
        fp8_dtype: torch.float8_e4m3fn or torch.float8_e4m3fnuz; that of the model's device if None.
        activations: "static": each linear's input has one scale, which puts the largest magnitude in `inputs` on the
            format's largest number; what exceeds it later saturates. "dynamic": each row of an input has a scale of its
            own, computed by the operator that quantises it.

    Returns: model. It runs on the reference operators until `kernels.kernelize` puts the kernels in.
    Raises: ValueError that says what is wrong, before the model is changed.
    """
    from . import llama

    layers = llama.decoder_layers(model)
    if granularity not in ("tensor", "channel"):
        raise ValueError(f"granularity: {granularity!r}; needs 'tensor' or 'channel'")
    if activations not in _ACTIVATIONS:
        raise ValueError(f"activations: {activations!r}; needs 'static' or 'dynamic'")
    dynamic = activations == "dynamic"
    if dynamic != (inputs is None):
        raise ValueError("inputs: dynamic scales take none" if dynamic else "inputs: None; calibration needs text")
    fp8_dtype = fp8_dtype or _device_fp8_dtype(model.device)
    if fp8_dtype not in FP8:
        raise ValueError(f"fp8_dtype: {fp8_dtype}; allowed: {', '.join(map(str, FP8))}")
    for layer in layers:
        llama.check_linears(layer)
    # By id: as keys the modules would keep all of the old weights alive until the end.
    names = {id(module): name for name, module in model.named_modules()}
    largest = {} if dynamic else calibrate(model, inputs)

    def join(linears: list[torch.nn.Linear]) -> Fp8Linear:
        if dynamic:
            return Fp8Linear.quantized(linears, None, granularity, fp8_dtype)
        scale = largest[names[id(linears[0])]] / torch.finfo(fp8_dtype).max or 1.0
        return Fp8Linear.quantized(linears, torch.tensor([scale]), granularity, fp8_dtype)

    for layer in layers:  # one after the other, so that two copies of the whole model never exist
        llama.convert(layer, join)
    return model


def save_quantized(model: torch.nn.Module, directory: str | os.PathLike) -> None:
    """Writes a quantised model: config.json, generation_config.json and fp8.safetensors.

    The files are written beside `directory` and renamed: it holds a whole checkpoint or is not there.

    Raises: ValueError where the model is not quantised or is float8_e4m3fnuz (checkpoints are float8_e4m3fn, which
    load_quantized turns into the device's format); FileExistsError.
    """
    from safetensors.torch import save_file

    directory = Path(directory)
    linears = [module for module in model.modules() if isinstance(module, Fp8Linear)]
    if not linears:
        raise ValueError("the model is not quantised")
    if linears[0].weight.dtype != torch.float8_e4m3fn:
        raise ValueError(f"the model's FP8 format is {linears[0].weight.dtype}; checkpoints hold float8_e4m3fn")
    if directory.exists():
        raise FileExistsError(f"{directory} exists")
    settings = {
        "format": _FORMAT,
        "channel_scales": json.dumps(linears[0].weight_scale.numel() > 1),
        "activations": "dynamic" if linears[0].input_scale is None else "static",
        "dtype": str(linears[0].dtype).removeprefix("torch."),
    }
    state = {name: value.contiguous() for name, value in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    partial = directory.with_name(f".{directory.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        model.config.save_pretrained(partial)
        if model.generation_config is not None:
            model.generation_config.save_pretrained(partial)
        save_file(state, partial / _WEIGHTS, metadata=settings)
        os.rename(partial, directory)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


@torch.no_grad()
def load_quantized(directory: str | os.PathLike, device: torch.device | str = "cpu") -> torch.nn.Module:
    """A LlamaForCausalLM as `save_quantized` wrote it, on `device`, in the device's FP8 format.

    Raises: FileNotFoundError, or ValueError that says what the checkpoint lacks.
    """
    from safetensors import SafetensorError, safe_open
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    from . import llama

    directory, device = Path(directory), torch.device(device)
    for name in (_WEIGHTS, "config.json"):  # transformers would take a default configuration
        if not (directory / name).is_file():
            raise FileNotFoundError(f"{directory / name}: no such file")
    config = LlamaConfig.from_pretrained(directory)
    try:
        with safe_open(directory / _WEIGHTS, framework="pt", device=str(device)) as file:
            settings = file.metadata() or {}
            if settings.get("format") != _FORMAT:
                raise ValueError(f"{directory / _WEIGHTS}: format {settings.get('format')!r}; needs {_FORMAT!r}")
            activations = settings.get("activations", "static")
            if activations not in _ACTIVATIONS:
                raise ValueError(
                    f"{directory / _WEIGHTS}: activations {activations!r}; known: {', '.join(_ACTIVATIONS)}"
                )
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{directory / _WEIGHTS}: {error}") from None
    dtype = getattr(torch, settings["dtype"])

    with torch.device("meta"):
        model = LlamaForCausalLM(config).to(dtype)

    def join(linears: list[torch.nn.Linear]) -> Fp8Linear:
        return Fp8Linear(
            *(linears[0].in_features, sum(linear.out_features for linear in linears)),
            bias=linears[0].bias is not None,
            channel_scales=json.loads(settings["channel_scales"]),
            dtype=dtype,
            fp8_dtype=torch.float8_e4m3fn,
            device="meta",
            dynamic=activations == "dynamic",
        )

    for layer in llama.decoder_layers(model):
        llama.convert(layer, join)
    if config.tie_word_embeddings and "model.embed_tokens.weight" in state:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    try:
        model.load_state_dict(state, assign=True)
    except RuntimeError as error:
        raise ValueError(f"{directory}: {error}") from None
    # The one module whose buffers are computed rather than stored.
    model.model.rotary_emb = LlamaRotaryEmbedding(config).to(device)
    model.tie_weights()
    if (directory / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(directory)
    if _device_fp8_dtype(device) == torch.float8_e4m3fnuz:
        for module in model.modules():
            if isinstance(module, Fp8Linear):
                module.to_fnuz_()
    return model.eval()
