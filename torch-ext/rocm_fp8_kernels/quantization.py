"""From a float16 or bfloat16 Llama, or an FP8 checkpoint, to one whose linears are FP8.

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16)
    kernel.quantization.quantize_llama(model, [input_ids, ...])  # or (model, activations="dynamic"): without text
    kernel.quantization.save_quantized(model, "llama-fp8")  # compressed-tensors: for transformers and vLLM, too
    ...
    model = kernel.quantization.load_quantized("llama-fp8", device="cuda")  # or another's FP8 checkpoint: checkpoints/

`quantize_llama` quantises the decoder layers' linears, Q, K and V as one, Gate and Up as one. Embeddings, norms, rotary
embeddings, attention itself and the head stay as they are.
"""

from collections.abc import Iterable

import torch

from .arguments import FP8
from .checkpoints import load_quantized, save_quantized
from .linear import Fp8Linear
from .ops import fp8_dtype as _device_fp8_dtype

__all__ = ["Fp8Linear", "calibrate", "load_quantized", "quantize_llama", "save_quantized"]

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
