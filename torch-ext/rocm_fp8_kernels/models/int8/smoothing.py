"""SmoothQuant's migration: what activations lose of their range, the weights that follow take.

    s[j] = max |X[:, j]|^alpha / max |W[:, j]|^(1 - alpha)        X / s, W * s: the product is the same

X is what a norm gives to linears. So 1 / s is multiplied into the norm's weight (and bias), and s into the columns of
the linears' weights. Nothing is added to the model.
"""

from collections.abc import Iterable, Mapping

import torch

from ..calibration import observe

__all__ = ["channel_maxima", "observed", "pairs", "smooth"]

# Norm of a decoder layer -> the linears that read it, by names in the layer.
_OPT = {
    "self_attn_layer_norm": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "final_layer_norm": ("fc1",),
}
_LLAMA = {
    "input_layernorm": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "post_attention_layernorm": ("mlp.gate_proj", "mlp.up_proj"),
}


def pairs(model: torch.nn.Module) -> dict[str, list[str]]:
    """Norm -> the linears that read it and nothing else does, by qualified names: of OPT, Llama, Mistral, Qwen2, Qwen3.

    Raises: ValueError where there are none.
    """
    from transformers.models.opt.modeling_opt import OPTDecoderLayer

    from ..fp8.architectures import CLASSES

    found = {}
    for name, layer in model.named_modules():
        if isinstance(layer, OPTDecoderLayer) and layer.do_layer_norm_before:
            known = _OPT
        elif type(layer) in CLASSES and CLASSES[type(layer)].router is None:  # routers read norms, too
            known = _LLAMA
        else:
            continue
        for norm, linears in known.items():
            if all(type(layer.get_submodule(linear)) is torch.nn.Linear for linear in linears):
                found[f"{name}.{norm}"] = [f"{name}.{linear}" for linear in linears]
    if not found:
        raise ValueError(
            f"{type(model).__name__} has no norms that can be smoothed; known: OPT (with norms before"
            " attention and MLP), Llama, Mistral, Qwen2, Qwen3"
        )
    return found


@torch.no_grad()
def observed(
    model: torch.nn.Module, inputs: Iterable[torch.Tensor | Mapping], names: Iterable[str], outputs: Iterable[str] = ()
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Largest magnitudes, of each channel, float32: of the inputs of modules `names`, of the results of `outputs`.

    Raises: ValueError where there is no input, an input does not reach a module, or a number is not finite.
    """
    seen: tuple[dict, dict] = {}, {}

    def note(place: dict, name: str):
        def show(values: torch.Tensor) -> None:
            if values.numel():
                most = values.abs().amax(0).float()
                place[name] = torch.maximum(place[name], most) if name in place else most

        return show

    names, outputs = list(names), list(outputs)
    observe(model, inputs, *({name: note(place, name) for name in of} for of, place in zip((names, outputs), seen)))
    for wanted, place, what in ((names, seen[0], "input"), (outputs, seen[1], "result")):
        for name in wanted:
            if name not in place:
                raise ValueError(f"inputs: none of them reaches {name}")
            if not bool(torch.isfinite(place[name]).all()):
                raise ValueError(f"the {what} of {name} holds NaN or infinity")
    return seen


def channel_maxima(model: torch.nn.Module, inputs: Iterable[torch.Tensor | Mapping]) -> dict[str, torch.Tensor]:
    """What `smooth` needs: the largest magnitude of each channel of what each norm gives to linears.

    Args:
        model: OPT, Llama, Mistral, Qwen2 or Qwen3, not quantised.
        inputs: as in `quantization.calibrate`; text like that which the model will see.

    Returns: qualified name of the norm -> float32 [hidden_size].
    Raises: ValueError where the model has no such norm, there is no input, or a number is NaN or infinite.
    """
    firsts = {norm: linears[0] for norm, linears in pairs(model).items()}
    seen, _ = observed(model, inputs, firsts.values())
    return {norm: seen[first] for norm, first in firsts.items()}


@torch.no_grad()
def smooth(model: torch.nn.Module, maxima: dict[str, torch.Tensor], alpha: float = 0.5) -> torch.nn.Module:
    """Moves range from activations into weights, in place: the model computes the same but for rounding in its dtype.

    Args:
        model: as in `channel_maxima`.
        maxima: from `channel_maxima`.
        alpha: from 0 to 1; how much of the range moves. 0.5 is SmoothQuant's for OPT, 0.85 its for Llama-2.

    Returns: model.
    Raises: ValueError that names the norm or the setting, before the model is changed.
    """
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha: {alpha}; needs 0 to 1")
    factors, found = {}, pairs(model)
    for norm, linears in found.items():
        if norm not in maxima:
            raise ValueError(f"maxima: none of {norm}")
        weights = [model.get_submodule(linear).weight for linear in linears]
        given, gain = maxima[norm].to(weights[0].device).float(), getattr(model.get_submodule(norm), "weight", None)
        if gain is None:
            raise ValueError(f"{norm} has no weight that could take a factor")
        if given.shape != gain.shape:
            raise ValueError(f"maxima of {norm}: shape {list(given.shape)}; needs {list(gain.shape)}")
        largest = torch.stack([weight.float().abs().amax(0) for weight in weights]).amax(0)
        if not bool((torch.isfinite(largest) & torch.isfinite(given)).all()):
            raise ValueError(f"{norm}: its maxima or the weights after it hold NaN or infinity")
        factor = given.pow(alpha) / largest.pow(1 - alpha)
        # A channel without values, or without weights, has nothing to move.
        factors[norm] = torch.where((given > 0) & (largest > 0), factor.clamp(1e-5, 1e5), 1.0)
    for norm, factor in factors.items():
        module = model.get_submodule(norm)
        for values in (module.weight, getattr(module, "bias", None)):
            if values is not None:
                values.copy_(values.float() / factor)
        for linear in found[norm]:
            weight = model.get_submodule(linear).weight
            weight.copy_(weight.float() * factor)
    return model
