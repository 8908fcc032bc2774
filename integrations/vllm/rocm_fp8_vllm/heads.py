"""A head that no file fills, of any model: refused as the model is loaded.

vLLM checks neither heads nor quantised models for weights that a checkpoint lacks. A tied head is the embedding where
the model's class ties them, and memory as it was allocated where the class does not (DeepSeek): an engine starts, and
all tokens are as likely or none is.

A model's heads get a mark when it is made. Where the mark is still there when its weights are loaded, by whatever
loader, nothing has filled them.
"""

import torch
from vllm.config import ModelConfig
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    UnquantizedEmbeddingMethod,
    VocabParallelEmbedding,
)

from .patching import around_loading

__all__ = ["check", "install", "mark"]

_MARK = float("nan")


def mark(model: torch.nn.Module, config: ModelConfig) -> None:
    """Of a model that was made, before its weights are loaded: in place. One that drafts for another is given its head,
    and one that pools has none."""
    if config.runner_type == "generate":
        for weight in _own_heads(model).values():
            weight.data[0] = _MARK


def check(model: torch.nn.Module, config: ModelConfig) -> None:
    """Of a model whose weights are loaded. Raises: ValueError that names a head which nothing has filled."""
    for name, weight in _own_heads(model).items():
        if bool(weight[0].isnan().all()):
            kind, tied = type(model).__name__, getattr(config.hf_text_config, "tie_word_embeddings", False)
            why = f", and vLLM's {kind} does not tie it to the embedding (tie_word_embeddings: true)" if tied else ""
            raise ValueError(
                f"{name}.weight: the checkpoint has no such tensor{why}. Store the head"
                + (" as a copy of the embedding, with tie_word_embeddings: false" if tied else "")
            )


def _own_heads(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Name -> weight of each head that is no embedding, has rows here and is not quantised."""
    embeddings, heads = set(), {}
    for name, module in model.named_modules():
        weight = getattr(module, "weight", None)
        if isinstance(module, ParallelLMHead):
            # ModelOpt's settings give one that is not quantised a linear's method.
            plain = isinstance(module.quant_method, (UnquantizedEmbeddingMethod, UnquantizedLinearMethod))
            if plain and isinstance(weight, torch.Tensor) and not weight.is_meta and len(weight):
                heads[name] = weight
        elif isinstance(module, VocabParallelEmbedding):
            embeddings.add(id(weight))
    return {name: weight for name, weight in heads.items() if id(weight) not in embeddings}


def install() -> None:
    around_loading("heads", lambda model, config, _: mark(model, config), check)
