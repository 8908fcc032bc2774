"""Every part of every fused architecture, watched, wrapped or replaced in every way: as the model that is not quantised
shows it. What a part is made to do is so strong that a way which is not seen is off by its whole size."""

import copy

import pytest
import torch

from problems.tiny_llama import distance, kernelized, logits, tokens
from problems.tiny_models import FUSED
from problems.tiny_moe import any_model

pytestmark = pytest.mark.usefixtures("without_gradients")

# FP8's noise, and what a token that goes to another expert makes of it; a part that is left out, or works where it
# must not, is off by .5 and more in logits, of models whose layers add as much as they are given.
NOISE = 0.4


def zeroed(value):
    if isinstance(value, tuple):
        return (zeroed(value[0]), *value[1:])
    return torch.zeros_like(value)


def by_pre_hook(module: torch.nn.Module) -> None:
    module.register_forward_pre_hook(
        lambda each, args: tuple(zeroed(value) if i == 0 else value for i, value in enumerate(args))
    )


def by_keyword_hook(module: torch.nn.Module) -> None:
    def hook(each, args, kwargs):
        if args:
            return (zeroed(args[0]), *args[1:]), kwargs
        return args, kwargs | {"hidden_states": zeroed(kwargs["hidden_states"])}

    module.register_forward_pre_hook(hook, with_kwargs=True)


def by_hook(module: torch.nn.Module) -> None:
    module.register_forward_hook(lambda each, args, result: zeroed(result))


def by_wrapper(module: torch.nn.Module) -> None:
    own = module.forward
    module.forward = lambda *args, **kwargs: zeroed(own(*args, **kwargs))


def by_strict_wrapper(module: torch.nn.Module) -> None:
    """Of what takes one argument: it knows no other."""
    own = module.forward
    module.forward = lambda x: zeroed(own(x))


def by_subclass(module: torch.nn.Module) -> None:
    kind = type(module)

    class Changed(kind):
        def forward(self, *args, **kwargs):
            return zeroed(super().forward(*args, **kwargs))

    Changed.__name__ = kind.__name__  # transformers records outputs by it
    module.__class__ = Changed
    vars(module).pop("forward", None)  # kernelize's


WAYS = {
    "pre-hook": by_pre_hook,
    "pre-hook with keywords": by_keyword_hook,
    "hook": by_hook,
    "wrapper": by_wrapper,
    "strict wrapper": by_strict_wrapper,
    "subclass": by_subclass,
}
NORMS = ("input_layernorm", "post_attention_layernorm")
DENSE = (*NORMS, "self_attn", "self_attn.o_proj", "mlp", "mlp.act_fn", "mlp.down_proj")
MIXTURE = (*NORMS, "self_attn", "self_attn.o_proj", "mlp", "mlp.experts")
LATENT = ("self_attn.q_a_layernorm", "self_attn.q_b_proj", "self_attn.kv_a_layernorm", "self_attn.kv_b_proj")
SHARED = ("mlp.shared_experts", "mlp.shared_experts.act_fn", "mlp.shared_experts.down_proj")
HEADS = ("self_attn.q_norm", "self_attn.k_norm")
PARTS = {name: DENSE + HEADS * name.startswith("qwen3") for name in FUSED}
PARTS |= {"mixtral": MIXTURE, "qwen3_moe": MIXTURE + HEADS, "deepseek_v3": MIXTURE + LATENT + SHARED}
# Ways that a part's call, in transformers, has no place for.
ONLY_KEYWORDS = ("self_attn",)
MANY_ARGUMENTS = ("self_attn", "mlp.experts")


def cases():
    for name, parts in PARTS.items():
        for part in parts:
            for way in WAYS:
                left = {"pre-hook": ONLY_KEYWORDS, "strict wrapper": MANY_ARGUMENTS}
                if part in left.get(way, ()):
                    continue
                yield pytest.param(name, part, way, id=f"{name}-{part}-{way}")


@pytest.mark.parametrize("name, part, way", list(cases()))
def test_a_part(kernel, device, e4m3fn, generator, name, part, way):
    original = any_model(name, generator, device)
    ids = tokens(generator, 2, 9, device)
    model = copy.deepcopy(original)
    kernel.quantization.quantize(model, activations="dynamic")
    model = kernelized(kernel, model)
    plain = logits(original, ids)
    for each in (original, model):
        for layer in each.model.layers[1:]:  # the last
            WAYS[way](layer.get_submodule(part))
    wanted = logits(original, ids)
    got = logits(model, ids)
    assert distance(got, wanted) <= NOISE
    if distance(plain, wanted) > 2 * NOISE:  # what was done is seen in the logits
        assert distance(got, plain) > NOISE
