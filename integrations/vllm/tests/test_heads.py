"""Heads: one that no file fills is refused, in any format; those that are filled, or tied by vLLM, are not."""

from types import SimpleNamespace

import pytest
import torch
from rocm_fp8_vllm import heads, weights
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    UnquantizedEmbeddingMethod,
    VocabParallelEmbedding,
)
from vllm.model_executor.model_loader import base_loader

from problems import checkpoints


@pytest.mark.parametrize("name", ["byte DeepSeek, tied", "byte DeepSeek, tied, saved"])
def test_a_tied_head_that_vllm_does_not_tie_is_refused(name, engine, checkpoint):
    assert "lm_head.weight" not in checkpoints.stored(checkpoint(name))
    message = r"lm_head\.weight: the checkpoint has no such tensor, and vLLM's DeepseekV3ForCausalLM does not tie it"
    with pytest.raises(ValueError, match=message):
        engine(name, enforce_eager=True)


class Model(torch.nn.Module):
    def __init__(self, monkeypatch, tied: bool = False):
        super().__init__()
        module = "vllm.model_executor.layers.vocab_parallel_embedding"  # an engine alone has set them up
        monkeypatch.setattr(f"{module}.get_tensor_model_parallel_rank", lambda: 0)
        monkeypatch.setattr(f"{module}.get_tensor_model_parallel_world_size", lambda: 1)
        with set_current_vllm_config(VllmConfig()):
            self.embedding, self.lm_head = VocabParallelEmbedding(100, 8), ParallelLMHead(100, 8)
        if tied:
            self.lm_head = self.lm_head.tie_weights(self.embedding)
        for each in (self.embedding, self.lm_head):
            torch.nn.init.ones_(each.weight)

    def load(self, module: torch.nn.Module) -> None:
        module.weight.weight_loader(module.weight, torch.full((100, 8), 2.0))


def config(runner: str = "generate", tied: bool = False) -> SimpleNamespace:
    return SimpleNamespace(runner_type=runner, hf_text_config=SimpleNamespace(tie_word_embeddings=tied))


@pytest.mark.parametrize("method", [UnquantizedEmbeddingMethod, UnquantizedLinearMethod])  # ModelOpt's is the latter
@pytest.mark.parametrize("says_tied", [False, True])
def test_one_line_names_the_head(says_tied, method, monkeypatch):
    model = Model(monkeypatch)
    model.lm_head.quant_method = method()
    heads.mark(model, config(tied=says_tied))
    model.load(model.embedding)
    with pytest.raises(ValueError, match=r"^lm_head\.weight: the checkpoint has no such tensor") as raised:
        heads.check(model, config(tied=says_tied))
    assert ("vLLM's Model does not tie it to the embedding" in str(raised.value)) == says_tied
    assert str(raised.value).endswith("tie_word_embeddings: false" if says_tied else "Store the head")
    model.load(model.lm_head)
    heads.check(model, config(tied=says_tied))
    assert not model.lm_head.weight.isnan().any()


def test_other_heads_are_left_alone(monkeypatch):
    """Tied ones; those that a draft is given; those that are tied as weights are loaded, are quantised, or on meta."""
    model = Model(monkeypatch, tied=True)
    heads.mark(model, config(tied=True))
    assert (model.lm_head.weight == 1).all()
    heads.check(model, config(tied=True))
    for runner in ("draft", "pooling"):
        model = Model(monkeypatch)
        heads.mark(model, config(runner))
        assert (model.lm_head.weight == 1).all()
        heads.check(model, config(runner))
    model = Model(monkeypatch)
    heads.mark(model, config())
    model.lm_head.weight = model.embedding.weight
    heads.check(model, config())
    model = Model(monkeypatch)
    model.lm_head.quant_method = object()
    heads.mark(model, config())
    assert (model.lm_head.weight == 1).all()
    model = Model(monkeypatch).to("meta")
    heads.mark(model, config())
    heads.check(model, config())


@pytest.mark.parametrize("part", [heads, weights], ids=["heads", "weights"])
def test_they_are_put_in_once(part):
    part.install()
    first = base_loader.BaseModelLoader.create_model, base_loader.process_weights_after_loading
    part.install()
    assert first == (base_loader.BaseModelLoader.create_model, base_loader.process_weights_after_loading)
    assert first[0].rocm_fp8_around.count(part.__name__.rpartition(".")[2]) == 1
