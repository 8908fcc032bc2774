"""What is put in the place of vLLM's functions, or around them."""

import functools
import sys
from collections.abc import Callable
from types import ModuleType

import torch
from vllm.config import ModelConfig
from vllm.model_executor.model_loader import base_loader

__all__ = ["around_loading", "replace"]


def replace(home: ModuleType, name: str, ours) -> None:
    """Puts `ours` in the place of home.name, in modules that have it by that name, too."""
    theirs = getattr(home, name)
    for module in list(sys.modules.values()):
        if getattr(module, name, None) is theirs:
            setattr(module, name, ours)


def around_loading(
    what: str,
    mark: Callable[[torch.nn.Module, ModelConfig, str], None],
    check: Callable[[torch.nn.Module, ModelConfig], None],
) -> bool:
    """Has models marked as they are made, and checked before vLLM brings their weights into the kernels' layout.

    Args:
        what: a name for both.
        mark: of the model, its configuration, and vLLM's load_format.

    Returns: whether it was not done before.
    """
    made, ready = base_loader.BaseModelLoader.create_model, base_loader.process_weights_after_loading
    known = getattr(made, "rocm_fp8_around", ())
    if what in known:
        return False

    @functools.wraps(made)
    def create_model(self, vllm_config, model_config, *arguments, **keywords) -> torch.nn.Module:
        model = made(self, vllm_config, model_config, *arguments, **keywords)
        mark(model, model_config, self.load_config.load_format)
        return model

    @functools.wraps(ready)
    def process_weights_after_loading(model, model_config, *arguments, **keywords):
        check(model, model_config)
        return ready(model, model_config, *arguments, **keywords)

    create_model.rocm_fp8_around = (*known, what)
    base_loader.BaseModelLoader.create_model = create_model
    base_loader.process_weights_after_loading = process_weights_after_loading
    return True
