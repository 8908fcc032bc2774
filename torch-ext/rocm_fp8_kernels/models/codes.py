"""Modules whose buffers are codes and scales: what a model's casts and state dictionaries may do to them."""

from collections.abc import Callable, Sequence

import torch

__all__ = ["CODES", "Codes", "as_bytes", "in_rows", "join", "refuse_adapters", "refuse_save_pretrained"]

CODES = (torch.int8, torch.uint8, torch.float8_e4m3fn, torch.float8_e4m3fnuz)
_UNCAST = {*CODES, torch.float8_e8m0fnu}  # a copy into exponents would round scales to powers of two
_METADATA = "rocm_fp8_kernels"


def in_rows(x: torch.Tensor) -> torch.Tensor:
    """x, or a copy where a row's values are no neighbours: operators refuse what Mamba's layers hand on."""
    return x if x.stride(-1) == 1 else x.contiguous()


def as_bytes(t: torch.Tensor) -> torch.Tensor:
    """Codes and exponents as uint8; other numbers as they are."""
    return t.view(torch.uint8) if t.dtype.itemsize == 1 else t


def join(tensors: Sequence[torch.Tensor], dim: int = 0) -> torch.Tensor:
    """torch.cat, of codes and exponents as bytes: torch 2.11 joins no float8_e8m0fnu."""
    return torch.cat([as_bytes(t) for t in tensors], dim).view(tensors[0].dtype)


class Codes(torch.nn.Module):
    """No cast changes its buffers but those of FOLLOWS, which have the model's dtype. A state dictionary says what it
    holds (in the metadata that torch.save keeps), and takes no other codes: a copy would cast them without scales."""

    FOLLOWS: tuple[str, ...] = ()

    def kind(self) -> str:
        """What its codes and scales are: state dictionaries of one kind fit another's module."""
        return type(self).__name__

    def _apply(self, fn: Callable, recurse: bool = True) -> "Codes":
        before = {name: value for name, value in self._buffers.items() if name not in self.FOLLOWS}
        super()._apply(fn, recurse)
        for name, value in before.items():
            if value is not None and self._buffers[name].dtype != value.dtype:
                self._buffers[name] = value.to(self._buffers[name].device)
        return self

    def _save_to_state_dict(self, destination, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if hasattr(destination, "_metadata"):
            destination._metadata[prefix[:-1]][_METADATA] = self.kind()

    def _load_from_state_dict(self, state, prefix, metadata, strict, missing, unexpected, errors) -> None:
        found = [
            f"{prefix}{name}: holds {state[prefix + name].dtype}; needs {value.dtype}"
            for name, value in self._buffers.items()
            if value is not None
            and prefix + name in state
            and {value.dtype, state[prefix + name].dtype} & _UNCAST
            and state[prefix + name].dtype != value.dtype
        ]
        if metadata.get(_METADATA, self.kind()) != self.kind():
            found.append(f"{prefix[:-1]}: holds {metadata[_METADATA]}; needs {self.kind()}")
        if found:
            errors += found
        else:
            super()._load_from_state_dict(state, prefix, metadata, strict, missing, unexpected, errors)


class _Refusal:
    """In the place of a model's save_pretrained. It holds no model, so that models can be copied and pickled."""

    def __init__(self, instead: str):
        self._instead = instead

    def __call__(self, *args, **kwargs):
        raise ValueError(f"save_pretrained would write no quantization_config: {self._instead} writes the checkpoint")


def refuse_save_pretrained(model: torch.nn.Module, instead: str) -> None:
    """Of a quantised model of transformers and the models in it: what transformers writes could not be loaded."""
    for module in model.modules():
        if hasattr(type(module), "save_pretrained"):
            module.save_pretrained = _Refusal(instead)


def refuse_adapters(model: torch.nn.Module) -> None:
    """ValueError where a model has PEFT's adapters. Their linears have names that nothing else reads, and layers of
    theirs read the dtype of a linear's weight."""
    for name, module in model.named_modules():
        if hasattr(module, "base_layer"):
            raise ValueError(f"{name} has an adapter that is not merged; merge_and_unload() gives a model without")
    if hasattr(model, "peft_config") and hasattr(model, "get_base_model"):
        raise ValueError(f"a {type(model).__name__} wraps the model; get_base_model() or merge_and_unload() gives it")
