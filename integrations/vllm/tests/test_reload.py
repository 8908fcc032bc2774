"""Weights that change in a running engine: afterwards it is the engine that would have loaded them."""

import pytest
import torch

from tests.settings import full

from .cases import text
from .conftest import teacher_forced


@pytest.mark.parametrize(
    "name",
    [
        "one layer, static",  # compiled
        full("cut blocks"),
        "int8, zero points",  # sums of weights' rows follow
        full("bfloat16"),  # which becomes FP8
        "Mixtral dynamic",  # scales of gates and ups change their shape
        "Qwen3-MoE mxfp4",  # weights change their name
        *(full("Qwen3-MoE mxfp4 quark"), full("gpt-oss")),
        *("Qwen3 compressed-tensors, MXFP4", full("Qwen3 quark, MXFP8")),
        full("Qwen3-MoE compressed-tensors, MXFP8"),
    ],
)
def test_reloaded_weights_give_the_bits_of_an_engine_that_loaded_them(name, engine, checkpoint):
    arguments = dict(enforce_eager=name != "one layer, static")
    arguments |= dict(quantization="fp8") if name == "bfloat16" else {}
    ids = text(2, 200)
    _, expected = teacher_forced(engine(f"{name}, changed", **arguments), ids)
    llm = engine(name, **arguments)
    _, before = teacher_forced(llm, ids)
    assert (before - expected).abs().mean() > 0.1
    for folder, bits in ((f"{name}, changed", expected), (name, before)):
        llm.collective_rpc("reload_weights", kwargs=dict(weights_path=str(checkpoint(folder))))
        assert torch.equal(teacher_forced(llm, ids)[1], bits)
