"""The architectures of transformers whose decoder layers are fused: a row each, and the classes that it makes.

The classes are subclasses of the architecture's own, so whatever looks for a MistralDecoderLayer or LlamaAttention
(hidden states, attentions, device maps) finds them.

Imported when a model is quantised: nothing else of the package needs transformers.
"""

import importlib
from typing import NamedTuple

import torch

from ...layers.watching import ours
from ..signatures import CACHE, parameters
from .decoder import Fp8DecoderLayer
from .halves import Architecture, FusedAttention, FusedHalf, FusedMLP, Routing
from .latent import FusedLatentAttention
from .moe import FusedMoe, MoeRouter

ARCHITECTURES = (
    Architecture("llama", "Llama"),
    Architecture("mistral", "Mistral", window=lambda attention: attention.config.sliding_window),
    Architecture("qwen2", "Qwen2", window=lambda attention: attention.sliding_window),
    Architecture("qwen3", "Qwen3", window=lambda attention: attention.sliding_window, head_norms=True),
    Architecture(
        "mixtral",
        "Mixtral",
        window=lambda attention: getattr(attention.config, "sliding_window", None),
        experts=Routing("SparseMoeBlock", "TopKRouter"),
    ),
    Architecture(
        "qwen3_moe",
        "Qwen3Moe",
        window=lambda attention: attention.sliding_window,
        head_norms=True,
        experts=Routing("SparseMoeBlock", "TopKRouter", rounded=True),
    ),
    Architecture("deepseek_v3", "DeepseekV3", latent=True, experts=Routing("MoE", "TopkRouter", scoring="sigmoid")),
)


# Of transformers' forwards, as the fused ones know them.
_PARAMETERS = {
    "Attention": ("hidden_states", "position_embeddings", "attention_mask", CACHE),
    "DecoderLayer": ("hidden_states", "attention_mask", "position_ids", CACHE, "use_cache", "position_embeddings"),
}
_OPTIONAL = {"DecoderLayer": ("use_cache",)}  # Mixtral's comes with **kwargs


class Classes(NamedTuple):
    """An architecture's own, and those that take their place."""

    model: type[torch.nn.Module]
    layer: type[torch.nn.Module]
    # Place in the layer -> (own, fused) of each kind of module that may be there.
    halves: dict[str, tuple[tuple[type[torch.nn.Module], type[FusedHalf]], ...]]
    router: tuple[type[torch.nn.Module], type[MoeRouter]] | None

    def halves_of(self, layer: torch.nn.Module) -> dict[str, tuple[type[torch.nn.Module], type[FusedHalf]]]:
        """Place -> (own, fused) of each half that this layer has; `own` may not be its class."""
        found = {}
        for place, kinds in self.halves.items():
            try:
                module = layer.get_submodule(place)
            except AttributeError:  # shared experts of a layer without a mixture
                continue
            found[place] = next((each for each in kinds if isinstance(module, each[0])), kinds[0])
        return found


def _made(row: Architecture) -> Classes:
    modeling = importlib.import_module(f"transformers.models.{row.name}.modeling_{row.name}")

    def own(what: str) -> type[torch.nn.Module]:
        return getattr(modeling, row.prefix + what)

    def made(mixin: type, what: str, **facts) -> type:
        # Found under their names in this module: that is how pickle and copy look for a class.
        name = f"Fp8{row.prefix}{what}"
        cls = globals()[name] = type(name, (mixin, own(what)), {"__module__": __name__} | facts)
        ours(cls.forward)  # transformers 5.24 wraps those of decoder layers
        return cls

    taken = {what: parameters(own(what), known, _OPTIONAL.get(what, ())) for what, known in _PARAMETERS.items()}
    facts = dict(modeling=modeling, architecture=row, PARAMETERS=taken["Attention"])
    attention = made(FusedLatentAttention if row.latent else FusedAttention, "Attention", **facts)
    halves, mlps, router = {"self_attn": ((own("Attention"), attention),)}, [], None
    if hasattr(modeling, f"{row.prefix}MLP"):
        parameters(own("MLP"), ("x",), keywords=False)
        mlps.append((own("MLP"), made(FusedMLP, "MLP")))
    shared = tuple(mlps)
    if row.experts is not None:
        for what in (row.experts.block, row.experts.router):
            parameters(own(what), ("hidden_states",), keywords=False)
        mlps.insert(0, (own(row.experts.block), made(FusedMoe, row.experts.block)))
        router = own(row.experts.router), made(MoeRouter, row.experts.router, routing=row.experts)
    halves["mlp"] = tuple(mlps)
    if row.experts is not None and shared:
        halves["mlp.shared_experts"] = shared
    layer = made(Fp8DecoderLayer, "DecoderLayer", PARAMETERS=taken["DecoderLayer"])
    return Classes(own("Model"), layer, halves, router)


# The architecture's own decoder layer -> what takes its place.
CLASSES: dict[type[torch.nn.Module], Classes] = {made.layer.__bases__[1]: made for made in map(_made, ARCHITECTURES)}


def classes_of(layer: torch.nn.Module) -> Classes | None:
    """Of a decoder layer, fused or not."""
    kind = type(layer)
    return CLASSES.get(kind) or (CLASSES.get(kind.__bases__[1]) if issubclass(kind, Fp8DecoderLayer) else None)
