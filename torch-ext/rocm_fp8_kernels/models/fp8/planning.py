"""From a model's linears to quantised ones, in place: what is fused, what quantises its own input, and why.

A decoder layer of a known architecture (architectures.py) has two halves, attention and MLP. Each is fused as a whole
or not at all. Whatever is not fused keeps its module; its linears are replaced one by one.
"""

import re
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from transformers.activations import ACT2FN

from ...layers.norms import rounds_as_rms_norm
from ..codes import CODES, Codes
from .architectures import CLASSES, classes_of
from .cache import check_mask
from .experts import Fp8Experts
from .halves import FusedHalf, JoinedPart
from .latent import FusedLatentAttention
from .linear import QuantizedLinear
from .moe import FusedMoe
from .residual import hand_on_residual
from .source import choosers, readers

__all__ = [
    "Plan",
    "check_linears",
    "finish",
    "parts_of",
    "plan",
    "quantisable",
    "replace_linears",
    "share_left",
    "unquantised",
]

_HALF_PRECISION = (torch.float16, torch.bfloat16)
_SILU = ("silu", "swish")


@dataclass
class Plan:
    """What becomes of a model's linears, by qualified names.

    fused: (decoder layer's name, its half) -> name of the joined linear -> names of the linears.
    alone: those that will quantise their own input.
    plain: those that stay in 16 bits, whatever a checkpoint holds: other code reads their weight, or has its own
        forward.
    why: the reason why a half could not be fused, by its name.
    stay: experts and linears that are not quantised -> why.
    """

    fused: dict[tuple[str, str], dict[str, list[str]]] = field(default_factory=dict)
    alone: list[str] = field(default_factory=list)
    plain: list[str] = field(default_factory=list)
    why: dict[str, str] = field(default_factory=dict)
    stay: dict[str, str] = field(default_factory=dict)
    known: bool = True  # whether the model has layers of a known architecture

    def inputs(self) -> Iterator[list[str]]:
        """The linears that have one input, in the order of computation within a half."""
        for joined in self.fused.values():
            yield from joined.values()
        for name in (*self.alone, *self.plain):
            yield [name]

    def warn(self, model: torch.nn.Module) -> None:
        """One warning, where something that could have been fused is not. Its caller has the decorators
        torch.inference_mode and torch.no_grad."""
        what = f"{len(self.alone)} linears are quantised one by one, each with its own input"
        if (left := share_left(model)) > 0:
            what += f"; {left:.0%} of its numbers stay as they are (experts among them)"
        kinds: dict[tuple[str, str], list[str]] = {}  # a line for all layers
        for name, why in self.stay.items():
            kinds.setdefault((re.sub(r"\.\d+(?=\.)", ".*", name), why), []).append(name)
        for (_, why), names in kinds.items():
            more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
            what += f"; {names[0]}{more} stays as it is, because {why}"
        if not self.known and (self.alone or self.plain):
            message = f"{type(model).__name__} has no decoder layer that can be fused: {what}"
        elif self.why:
            name, why = next(iter(self.why.items()))
            more = f" (and {len(self.why) - 1} more)" if len(self.why) > 1 else ""
            message = f"{type(model).__name__}: {name}{more} is not fused, because {why}: {what}"
        elif self.stay:
            message = f"{type(model).__name__}: {what}"
        else:
            return
        warnings.warn(message, stacklevel=5)  # after this one, its caller and the wrappers of two contexts


def quantisable(model: torch.nn.Module) -> list[str]:
    """Names of the linears that `quantize` takes: those of the decoder layers of a known architecture. Of another
    model: all but the head. ValueError where there are none, or where some are FP8 already."""
    if any(isinstance(module, QuantizedLinear) for module in model.modules()):
        raise ValueError("the model is quantised already")
    linears = {name: module for name, module in model.named_modules() if type(module) is torch.nn.Linear and name}
    known = {name: module for name, module in model.named_modules() if type(module) in CLASSES}
    if known:
        wanted = {
            part for name, layer in known.items() for joined in _joined(name, layer).values() for part in _parts(joined)
        }
        found = [name for name in linears if name in wanted]
    else:
        head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
        stay = choosers(model) | readers(model)
        found = [name for name, module in linears.items() if module is not head and name not in stay]
    if not found:
        raise ValueError(f"{type(model).__name__} holds no linear that can be quantised")
    for name in found:
        weight = getattr(model.get_submodule(name), "weight", None)
        if weight is None:
            raise ValueError(f"{name} has no weight: it is quantised already, by another library")
        if weight.is_meta:
            raise ValueError(f"the weight of {name} is on the device meta; needs its numbers (offload the model later)")
    return found


def share_left(model: torch.nn.Module) -> float:
    """The share of a quantised model's numbers that is not quantised; 0 where no expert is among them. What chooses
    experts is none."""
    left = {name: value.numel() for name, value in model.named_parameters()}
    of_experts = [name for name in left if "expert" in name]
    choose = choosers(model) if of_experts else {}
    if all(name.rpartition(".")[0] in choose for name in of_experts):
        return 0.0
    codes = sum(
        value.numel() * (2 if value.dtype == torch.uint8 else 1)  # of MXFP4
        for module in model.modules()
        if isinstance(module, Codes)
        for value in module.buffers(recurse=False)
        if value.dtype in CODES
    )
    return sum(left.values()) / (sum(left.values()) + codes)


def check_linears(model: torch.nn.Module, names: list[str]) -> None:
    """ValueError that names the first linear that the operators do not take, or whose weight holds no numbers."""
    for name in names:
        weight = model.get_submodule(name).weight
        if weight.dtype not in _HALF_PRECISION:
            raise ValueError(f"{name}: the weight's dtype is {weight.dtype}; needs float16 or bfloat16")
        if weight.shape[1] < 1:
            raise ValueError(f"{name}: in_features is {weight.shape[1]}; needs 1 at least")
        if not bool(torch.isfinite(weight).all()):
            raise ValueError(f"the weight of {name} holds NaN or infinity")


def _joined(name: str, layer: torch.nn.Module) -> dict[str, dict[str, list[str]]]:
    """Half -> name of the joined linear -> qualified names of the linears, of this decoder layer."""
    return {
        half: {to: [f"{name}.{half}.{part}" for part in parts] for to, parts in joined.items()}
        for half, (_, fused) in CLASSES[type(layer)].halves_of(layer).items()
        # Of a module of another class the linears may be any.
        if (joined := fused.joined_of(layer.get_submodule(half)))
    }


def _parts(joined: dict[str, list[str]]) -> list[str]:
    return [part for parts in joined.values() for part in parts]


def plan(model: torch.nn.Module, wanted: Mapping[str, Hashable]) -> Plan:
    """For the linears of these names; each with what must be equal where linears are joined: how its input is
    quantised, and the format of MX weights."""
    modules = dict(model.named_modules())
    layers = [name for name, module in modules.items() if type(module) in CLASSES]
    result, fused = Plan(known=bool(layers)), set()
    for name in layers:
        for half, joined in _joined(name, modules[name]).items():
            parts = _parts(joined)
            if not all(part in wanted for part in parts):
                continue  # so the checkpoint wants it
            why = _why_not(modules, modules[name], half, joined, wanted)
            if why is None:
                result.fused[name, half] = joined
                fused |= set(parts)
            else:
                result.why[f"{name}.{half}"] = why
    reads = readers(model)
    for name in wanted:
        if name in fused:
            continue
        if name in reads or type(modules[name]) is not torch.nn.Linear:
            result.plain.append(name)
            result.stay[name] = _why_plain(modules[name], reads.get(name))
        else:
            result.alone.append(name)
    return result


def _why_plain(linear: torch.nn.Module, reader: str | None) -> str:
    return f"it is a {type(linear).__name__}" if reader is None else f"{reader} reads its weight"


def unquantised(model: torch.nn.Module) -> dict[str, str]:
    """Linears whose weight other code reads, and which `quantize` therefore leaves as they are -> why."""
    if any(type(module) in CLASSES for module in model.modules()):
        return {}  # of those it takes the layers' alone
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    reads, choose = readers(model), choosers(model)
    linears = {name: model.get_submodule(name) for name in reads.keys() - choose.keys()}
    return {
        name: _why_plain(module, reads[name])
        for name, module in sorted(linears.items())
        if module is not head and type(module) is torch.nn.Linear
    }


def _why_not(modules, layer: torch.nn.Module, half: str, joined, wanted: Mapping[str, Hashable]) -> str | None:
    module = layer.get_submodule(half)
    own, _ = CLASSES[type(layer)].halves_of(layer)[half]
    if type(module) is not own:
        return f"it is a {type(module).__name__}"
    if (why := _why_not_norm(layer, half)) is not None:
        return why
    is_mlp = half != "self_attn"
    if is_mlp and module.config.hidden_act not in _SILU:
        return f"hidden_act is {module.config.hidden_act!r}, and swiglu_fp8 needs 'silu'"
    if is_mlp and type(module.act_fn) is not type(ACT2FN[module.config.hidden_act]):
        return f"act_fn is a {type(module.act_fn).__name__}, and swiglu_fp8 needs hidden_act's"
    for parts in joined.values():
        names = ", ".join(part.rpartition(".")[2] for part in parts)
        if len({wanted[part] for part in parts}) > 1:
            return f"{names}, or their inputs, are quantised in different ways"
        if len({modules[part].bias is None for part in parts}) > 1:
            return f"some, but not all of {names} have a bias"
    return None


def _why_not_norm(layer: torch.nn.Module, half: str) -> str | None:
    before = "input_layernorm" if half == "self_attn" else "post_attention_layernorm"
    norm = type(getattr(layer, before))
    return (
        None if rounds_as_rms_norm(norm) else f"{before} is a {norm.__name__}, which is another function than rms_norm"
    )


def replace_linears(model: torch.nn.Module, planned: Plan, join: Callable[[list[str]], QuantizedLinear]) -> None:
    """Replaces the linears by what `join` makes of those of these names, which are still in their places.

    In place: hooks, hidden-state recorders and references to the layers stay valid. One after the other, so that two
    copies of the whole model never exist.
    """
    for (name, half), joined in planned.fused.items():
        layer = model.get_submodule(name)
        classes = classes_of(layer)
        _, fused_class = classes.halves_of(layer)[half]
        parent = layer.get_submodule(half)
        for fused, parts in joined.items():
            linear = join(parts)
            for part in parts:
                delattr(parent, last := part.rpartition(".")[2])
                if last != fused:
                    setattr(parent, last, JoinedPart(fused))
            setattr(parent, fused, linear)
        parent.__class__ = fused_class
        layer.__class__ = classes.layer

    places: dict[torch.nn.Module, list[tuple[torch.nn.Module, str]]] = {}  # a linear may be in several
    alone = {name: model.get_submodule(name) for name in planned.alone}
    wanted = set(alone.values())
    for parent in model.modules():
        for name, child in parent._modules.items():
            if child in wanted:
                places.setdefault(child, []).append((parent, name))
    wanted.clear()
    for name in planned.alone:
        linear = join([name])
        for parent, last in places.pop(alone.pop(name)):
            setattr(parent, last, linear)

    for name in planned.plain:
        _keep_numbers(model, name, join([name]))

    _hook_bases(model, hand_on_residual)


def _hook_bases(model: torch.nn.Module, hook: Callable) -> None:
    """A forward pre-hook, with keyword arguments, of the base models of known architectures; once each."""
    bases = {classes.model for classes in CLASSES.values()}
    for module in model.modules():
        if type(module) in bases and hook not in module._forward_pre_hooks.values():
            module.register_forward_pre_hook(hook, with_kwargs=True)


def _keep_numbers(model: torch.nn.Module, name: str, linear: QuantizedLinear) -> None:
    """Gives the module of that name what the quantised linear stands for, in its dtype."""
    module = model.get_submodule(name)
    if type(module) is torch.nn.Linear:  # without what a quantizer of transformers has added to it
        module = torch.nn.Linear(linear.in_features, linear.out_features, bias=False, device="meta")
        model.set_submodule(name, module)
    module.weight = torch.nn.Parameter(linear.dequantized(), requires_grad=False)
    if linear.bias is not None:
        module.bias = torch.nn.Parameter(linear.bias, requires_grad=False)


def finish(model: torch.nn.Module) -> None:
    """After linears and experts are what they will be: fuses mixtures of experts, and makes what attention needs of
    their numbers."""
    for layer in model.modules():
        classes = classes_of(layer)
        for half, (own, fused) in classes.halves_of(layer).items() if classes else ():
            module = layer.get_submodule(half)
            if not issubclass(fused, FusedMoe) or type(module) is not own:
                continue
            known = type(module.gate) is classes.router[0] and isinstance(module.experts, Fp8Experts)
            if known and _why_not_norm(layer, half) is None:
                module.__class__, module.gate.__class__, layer.__class__ = fused, classes.router[1], classes.layer
    latent = [module for module in model.modules() if isinstance(module, FusedLatentAttention)]
    for module in latent:
        absorb(module)
        module.register_load_state_dict_post_hook(absorb)
    if latent:
        _hook_bases(model, check_mask)


def absorb(attention: FusedLatentAttention, *_) -> None:
    attention.absorb()


def parts_of(model: torch.nn.Module, name: str) -> tuple[list[str], list[int]]:
    """transformers' names of the linears in this quantised linear, and how many of its outputs each has."""
    parent_name, _, last = name.rpartition(".")
    parent = model.get_submodule(parent_name)
    if not isinstance(parent, FusedHalf):
        return [name], [parent.get_submodule(last).out_features]
    return [f"{parent_name}.{part}" for part in parent.joined_of(parent)[last]], parent.rows_of_parts(last)
