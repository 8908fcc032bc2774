"""What a model's tensors are called in the checkpoints that people publish, where transformers calls them otherwise.

transformers renames tensors, and stacks those of experts, as it loads them. Its own mapping is asked here, both ways:
a file of ours has the published names, which from_pretrained and vLLM read; rules and files may have either.
"""

import re

import torch

__all__ = ["DOWN", "GATE_UP", "Names"]

GATE_UP, DOWN = ("gate_proj", "up_proj"), ("down_proj",)
_WEIGHT = ".weight"


class Names:
    """Of one model. Its experts have a name for each matrix: NAME.E.PART, of GATE_UP and DOWN."""

    def __init__(self, model: torch.nn.Module, experts: dict[str, int]):
        """experts: name of a module of stacked experts -> how many it has. In `model` they are still stacked."""
        self._forward, self._backward, self._converts = _renamings(model)
        self._modules = {name for name, _ in model.named_modules()}
        self._prefix = getattr(model, "base_model_prefix", "")
        self._published: dict[str, str] = {}  # a matrix of an expert -> its linear in published files
        self._own: dict[str, str] = {}
        for name, count in experts.items():
            self._published |= self._matrices(model, name, count)
        for own, published in self._published.items():
            # Files of earlier releases, and of other tools, have gone half of the way.
            for alias in (published, self._renamed(published + _WEIGHT).removesuffix(_WEIGHT)):
                self._own[alias] = own

    def has_matrices(self, experts: str) -> bool:
        """Whether published files have a tensor for each matrix of these experts: else they are stacked there, too."""
        return f"{experts}.0.{DOWN[0]}" in self._published

    def own(self, name: str) -> str:
        """Of a tensor in a file: its name in the model, or that of an expert's matrix."""
        linear, dot, last = name.rpartition(".")
        if linear in self._own:
            return f"{self._own[linear]}{dot}{last}"
        renamed = self._renamed(name)
        # Files of the model without its head lack the prefix that it has here, as DeepSeek-V4's do.
        for found in (renamed, f"{self._prefix}.{renamed}"):
            linear, dot, last = found.rpartition(".")
            if linear in self._own or linear in self._modules:
                return f"{self._own.get(linear, linear)}{dot}{last}"
        return renamed

    def published(self, name: str) -> str:
        """Of a tensor of the model, or of an expert's matrix: its name in a file, which `own` turns back."""
        linear, dot, last = name.rpartition(".")
        if linear in self._published:
            return f"{self._published[linear]}{dot}{last}"
        found = name
        for transform in self._backward:
            found = transform.rename_source_key(found)[0]
        return found if found == name or self._renamed(found) == name else name

    def pattern(self, experts: str, part: str) -> str:
        """A rule for this matrix of all experts, as published files call them."""
        name = self._published.get(f"{experts}.0.{part}", f"{experts}.0.{part}")
        before, _, last = name.rpartition(".0.")
        return rf"re:{re.escape(before)}\.\d+\.{re.escape(last)}$"

    def is_read(self, name: str) -> bool:
        """Whether from_pretrained reads what a file calls `published(name)` as that tensor."""
        return name.rpartition(".")[0] in self._published or self._renamed(self.published(name)) == name

    def of_rules(self, module: str) -> list[str]:
        """What rules may call a module: as the model does, and as published files do."""
        other = self.published(module + _WEIGHT).removesuffix(_WEIGHT)
        return [module] if other == module else [module, other]

    def _renamed(self, name: str) -> str:
        found = name
        for transform in self._forward:
            found = transform.rename_source_key(found)[0]
        # A pattern may be so wide that it changes transformers' own names, too: it lets those be.
        own, other = (each.rpartition(".")[0] for each in (name, found))
        lost = other not in self._modules and f"{self._prefix}.{other}" not in self._modules
        return name if own in self._modules and lost else found

    def _matrices(self, model: torch.nn.Module, experts: str, count: int) -> dict[str, str]:
        """Numbers that stand for the matrices go the way of transformers' save_pretrained. Where they come out one by
        one, files have a tensor for each."""
        if not self._converts:
            return {}
        found = {}
        for stack, parts in (("gate_up_proj", GATE_UP), ("down_proj", DOWN)):
            marks = torch.arange(count * len(parts), dtype=torch.float32).view(count, len(parts), 1)
            matrices = [f"{experts}.{e}.{part}" for e in range(count) for part in parts]
            for name, values in _reverted(model, {f"{experts}.{stack}": marks}).items():
                own = matrices[int(values)] if values.numel() == 1 else ""
                place = f".{own.removeprefix(experts).split('.')[1]}." if own else ""
                if not own or not name.endswith(_WEIGHT) or place not in name:
                    return {}
                found[own] = name.removesuffix(_WEIGHT)
        return found if len(found) == 3 * count and len(set(found.values())) == len(found) else {}


def _renamings(model: torch.nn.Module) -> tuple[list, list, bool]:
    """transformers' renamings as it loads, those as it saves, and whether it converts tensors as well."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import PrefixChange, WeightConverter, WeightRenaming

    transforms = get_model_conversion_mapping(model, add_legacy=False)
    forward = [each for each in transforms if isinstance(each, WeightRenaming)]
    # What a prefix was nobody knows: save_pretrained leaves it out, too.
    backward = [each.reverse_transform() for each in reversed(forward) if not isinstance(each, PrefixChange)]
    return forward, backward, any(isinstance(each, WeightConverter) for each in transforms)


def _reverted(model: torch.nn.Module, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    from transformers.core_model_loading import revert_weight_conversion

    # Of a model that from_pretrained has loaded: as of any other.
    loaded = model.__dict__.pop("_weight_conversions", None)
    try:
        return revert_weight_conversion(model, state)
    finally:
        if loaded is not None:
            model._weight_conversions = loaded
