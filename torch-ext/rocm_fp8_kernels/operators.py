"""Which operators this package's modules call: its own, or the reference in their place."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from . import ops, reference

_by_reference = False


def operators() -> ModuleType:
    """Asked by a module at each call. A compiled one is compiled anew where the answer has changed."""
    return reference if _by_reference else ops


@contextmanager
def by_reference() -> Iterator[None]:
    """What the package's modules call meanwhile is `reference`: plain PyTorch, slow, on any device.

        with kernel.by_reference():
            wanted = model(input_ids).logits

    Modules: quantised models, and those of `layers`. Of the whole process. Operators that are called by name, and those
    between ranks, stay what they are. A program of torch.export keeps those that it was exported with; fused_moe alone
    asks at each call.
    """
    global _by_reference
    before, _by_reference = _by_reference, True
    try:
        yield
    finally:
        _by_reference = before
