"""Weights that change in a running engine: afterwards it is the engine that would have loaded them."""

import pytest
import torch

from tests.settings import full

from .cases import text
from .conftest import teacher_forced


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("static", dict(enforce_eager=False)),
        full("cut blocks", dict(enforce_eager=True)),
        ("int8, zero points", dict(enforce_eager=True)),  # sums of weights' rows follow
        full("bfloat16", dict(enforce_eager=True, quantization="fp8")),
        ("Mixtral dynamic", dict(enforce_eager=True)),  # scales of gates and ups change their shape
        ("Qwen3-MoE mxfp4", dict(enforce_eager=True)),  # weights change their name
        full("Qwen3-MoE mxfp4 quark", dict(enforce_eager=True)),
        full("gpt-oss", dict(enforce_eager=True)),
        ("Qwen3 compressed-tensors, MXFP4", dict(enforce_eager=True)),
        full("Qwen3 quark, MXFP8", dict(enforce_eager=True)),
        full("Qwen3-MoE compressed-tensors, MXFP8", dict(enforce_eager=True)),
    ],
    ids=[
        *("static, compiled", "cut blocks", "int8, zero points", "bfloat16 to fp8", "experts"),
        *("MXFP4 experts", "MXFP4 experts, quark", "gpt-oss"),
        *("MXFP4 linears", "MXFP8 linears, quark", "MXFP8 experts"),
    ],
)
def test_reloaded_weights_give_the_bits_of_an_engine_that_loaded_them(name, arguments, engine, checkpoint):
    ids = text(2, 200)
    _, expected = teacher_forced(engine(f"{name}, changed", **arguments), ids)
    llm = engine(name, **arguments)
    _, before = teacher_forced(llm, ids)
    assert (before - expected).abs().mean() > 0.1
    for folder, bits in ((f"{name}, changed", expected), (name, before)):
        llm.collective_rpc("reload_weights", kwargs=dict(weights_path=str(checkpoint(folder))))
        assert torch.equal(teacher_forced(llm, ids)[1], bits)
