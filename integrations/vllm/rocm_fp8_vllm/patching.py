"""A function of vLLM's replaced for all who call it."""

import sys
from types import ModuleType

__all__ = ["replace"]


def replace(home: ModuleType, name: str, ours) -> None:
    """Puts `ours` in the place of home.name, in modules that have it by that name, too."""
    theirs = getattr(home, name)
    for module in list(sys.modules.values()):
        if getattr(module, name, None) is theirs:
            setattr(module, name, ours)
