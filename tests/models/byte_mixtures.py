"""What the tests of the byte-level mixtures, DeepSeek V3 and gpt-oss, share."""

from collections.abc import Callable

import torch

from examples.byte_deepseek.train import ALL_EXPERTS_FUNCTIONS
from examples.byte_llama.train import Streams
from examples.llama_fp8 import decoding, text


def streams() -> Streams:
    data = torch.frombuffer(bytearray(text.corpus.held_out_files()[0][1]), dtype=torch.uint8)
    return Streams(data, data[:4000], data[-4000:])


def assert_one_mlp_is_the_experts(model: torch.nn.Module, one_mlp: Callable, within: float) -> None:
    """Values and gradients, in float32: two orders of sums."""
    ids, found = torch.randint(256, (2, 32)), {}
    ALL_EXPERTS_FUNCTIONS.register("one_mlp", one_mlp)
    for name in ("eager", "one_mlp"):
        model.set_experts_implementation(name)
        model.zero_grad()
        logits = model(input_ids=ids, use_cache=False).logits
        logits.square().mean().backward()
        found[name] = [logits.detach(), *(p.grad for p in model.parameters())]
    for one, other in zip(*found.values(), strict=True):
        assert (one - other).norm() <= within * one.norm()


@torch.no_grad()
def quality_of(model: torch.nn.Module, loaded: text.LoadedModel) -> decoding.Quality:
    """On modules held out from training."""
    held_out = text.held_out_windows(loaded.tokenizer, loaded.context // 2, 32)
    return decoding.measure(model, loaded.tokenizer, held_out, lambda n: None)


def with_inputs(model: torch.nn.Module, inputs: str) -> torch.nn.Module:
    """In place: what enters its MXFP4 experts."""
    for module in model.modules():
        if hasattr(module, "gate_up_scale"):
            assert module.format == "mxfp4"
            module.inputs = inputs
    return model
