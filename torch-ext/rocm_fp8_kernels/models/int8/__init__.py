"""INT8 with SmoothQuant: from a float model, or an int8 checkpoint, to one whose linears multiply int8.

model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16)
kernel.smoothquant.quantize(model, [input_ids, ...])  # OPT, "static": scales of tensors, from text
kernel.smoothquant.quantize(model, [input_ids, ...], activations="dynamic")  # Llama and others: scales of rows
kernel.smoothquant.save_quantized(model, "model-int8")
model = kernel.smoothquant.load_quantized("model-int8")

static     W8A8 as SmoothQuant's OPT: attention's two products are int8, too. Stored with torch-int's names. Attention
           that is spread evenly over 254 keys or more becomes zeros (softmax_int8)
dynamic    weights by scales of channels, activations by scales of rows. Stored as compressed-tensors, for vLLM, too

smoothing.py   what moves range from activations into weights
modules.py     the int8 linears and norm;  opt.py  OPT's decoder layer on them;  sums.py  sums for zero points
storing.py     checkpoints
"""

import warnings
from collections.abc import Iterable, Mapping

import torch

from ..calibration import batches
from ..codes import refuse_adapters, refuse_save_pretrained
from .modules import Int8Linear, LayerNormQ, W8A8B8O8Linear, W8A8B8O8LinearReLU, W8A8BFP32OFP32Linear
from .smoothing import channel_maxima, smooth
from .storing import load_quantized, save_quantized

__all__ = [
    "Int8Linear",
    "LayerNormQ",
    "W8A8B8O8Linear",
    "W8A8B8O8LinearReLU",
    "W8A8BFP32OFP32Linear",
    "channel_maxima",
    "load_quantized",
    "quantize",
    "save_quantized",
    "smooth",
]

_ACTIVATIONS = ("static", "dynamic")
_FLOATS = (torch.float16, torch.bfloat16, torch.float32)


@torch.inference_mode(False)
@torch.no_grad()
def quantize(
    model: torch.nn.Module,
    inputs: Iterable[torch.Tensor | Mapping] | None = None,
    *,
    activations: str = "static",
    alpha: float | None = 0.5,
    symmetric: bool = True,
) -> torch.nn.Module:
    """Smooths a model and quantises its decoder layers' linears to int8, in place. Embeddings and head stay.

    Args:
        model: a transformers model in float16, bfloat16 or float32. "static": OPT, with norms before attention and MLP.
        inputs: as in `quantization.calibrate`; text like that which the model will see. None where nothing is
            calibrated: "dynamic" with alpha=None.
        activations: "static": one scale for each tensor, which puts the largest magnitude in `inputs` on 127; what
            exceeds it later saturates. "dynamic": each row of a linear's input has a scale of its own.
        alpha: how much of the activations' range moves into weights, as in `smooth`; None: the model is not smoothed.
            Models that `smooth` does not know need None.
        symmetric: False gives each row a zero point, too: its scale then covers its numbers' range, not twice their
            largest magnitude. "dynamic" alone.

    Returns: model, on this package's operators.
    Raises: ValueError that says what is wrong; before the weights are changed, but for what calibration after smoothing
        finds.
    """
    if activations not in _ACTIVATIONS:
        raise ValueError(f"activations: {activations!r}; needs 'static' or 'dynamic'")
    if not symmetric and activations == "static":
        raise ValueError("symmetric: False; static int8 has no zero points")
    if any(isinstance(module, (Int8Linear, LayerNormQ)) for module in model.modules()):
        raise ValueError("the model is quantised already")
    if inputs is None and (activations == "static" or alpha is not None):
        raise ValueError("inputs: None; calibration needs text")
    if inputs is not None and activations == "dynamic" and alpha is None:
        raise ValueError("inputs: dynamic scales without smoothing take none")
    inputs = None if inputs is None else list(batches(inputs))  # read once to smooth, once for scales
    names, unquantised = _linears(model)
    if activations == "static":
        from . import opt

        opt.check(model)
    if alpha is not None:
        smooth(model, channel_maxima(model, inputs), alpha)
    if activations == "static":
        opt.quantize_layers(model, inputs)
        refuse_save_pretrained(model, "smoothquant.save_quantized")
        return model
    places: dict[int, list[tuple[torch.nn.Module, str]]] = {}  # a linear may be in several
    for parent in model.modules():
        for last, child in parent._modules.items():
            places.setdefault(id(child), []).append((parent, last))
    for name in names:  # one after the other, so that two copies of the whole model never exist
        linear = model.get_submodule(name)
        made = Int8Linear.from_float(linear, symmetric=symmetric)
        for parent, last in places[id(linear)]:
            setattr(parent, last, made)
    refuse_save_pretrained(model, "smoothquant.save_quantized")
    from ..fp8.planning import share_left

    said = [f"{name} stays as it is, because {why}" for name, why in unquantised.items()]
    if (left := share_left(model)) > 0:
        said.insert(0, f"{left:.0%} of its numbers stay as they are (experts among them)")
    if said:
        warnings.warn(f"{type(model).__name__}: {'; '.join(said)}", stacklevel=4)
    return model.requires_grad_(False)


def _linears(model: torch.nn.Module) -> tuple[list[str], dict[str, str]]:
    """Names of those to be quantised; and those whose weight other code reads -> why they stay."""
    from ..fp8 import planning

    refuse_adapters(model)
    names = planning.quantisable(model)
    for name in names:
        weight = model.get_submodule(name).weight
        if weight.dtype not in _FLOATS:
            raise ValueError(f"{name}: the weight's dtype is {weight.dtype}; needs float16, bfloat16 or float32")
        if not 1 <= weight.shape[1] <= 131071:
            raise ValueError(f"{name}: in_features is {weight.shape[1]}; needs 1 to 131071")
        if not bool(torch.isfinite(weight).all()):
            raise ValueError(f"the weight of {name} holds NaN or infinity")
    return names, planning.unquantised(model)
