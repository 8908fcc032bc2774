"""torch.export of quantised models, for any number of rows: the program chooses its GEMMs when it runs."""

import contextlib

import kernels
import pytest
import torch
from packaging import version

from problems.buffers import same_bytes
from problems.tiny_llama import kernelized, llama, logits, quantize, tokens
from problems.tiny_moe import MODELS, moe

pytestmark = pytest.mark.usefixtures("without_gradients")

LONGEST = 200
KINDS = {
    "static": dict(activations="static"),
    "channel": dict(activations="dynamic"),
    "tensor": dict(activations="dynamic", granularity="tensor"),
    "block": dict(activations="dynamic", granularity="block"),
    "int8": dict(symmetric=True),
    "int8 zeros": dict(symmetric=False),
}


class Logits(torch.nn.Module):
    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return logits(self.model, ids)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strict", [False, pytest.param(True, marks=pytest.mark.full)], ids=["traced", "strict"])
def test_an_exported_model_takes_any_number_of_rows(kernel, device, generator, kind, strict):
    model, ids = llama(generator, device=device), tokens(generator, 2, 12, device)
    if kind.startswith("int8"):
        model = kernel.smoothquant.quantize(model, activations="dynamic", alpha=None, **KINDS[kind])
    else:
        model = quantize(kernel, model, [ids], **KINDS[kind])
    model = kernelized(kernel, model, kernels.Mode.INFERENCE | kernels.Mode.TORCH_COMPILE)
    sizes = ({1: torch.export.Dim("length", min=2, max=LONGEST)},)
    program = torch.export.export(Logits(model), (ids,), dynamic_shapes=sizes, strict=strict).module()
    for length in (5, 16, 17, 70):  # 10, 32, 34 and 140 rows
        ids = tokens(generator, 2, length, device)
        assert same_bytes(program(ids), logits(model, ids)), length


@pytest.mark.skipif(
    version.parse(torch.__version__) < version.parse("2.12"),
    reason="torch 2.11's scaled_dot_product_attention adds a guard on the length, whatever the linears are",
)
@pytest.mark.parametrize("fast", [True, False], ids=["kernels", "reference"])
@pytest.mark.parametrize("granularity", ["channel", pytest.param("block", marks=pytest.mark.full)])
@pytest.mark.parametrize("name", MODELS)
def test_an_exported_mixture_takes_any_number_of_tokens(kernel, device, e4m3fn, generator, name, granularity, fast):
    model = moe(name, generator, device=device)
    kernel.quantization.quantize(model, activations="dynamic", granularity=granularity)
    sizes = ({1: torch.export.Dim("length", min=2, max=LONGEST)},)
    ids = tokens(generator, 2, 12, device)
    # A program keeps the operators that it was exported with.
    with contextlib.nullcontext() if fast else kernel.by_reference():
        program = torch.export.export(Logits(model), (ids,), dynamic_shapes=sizes).module()
        for length in (5, 17, 70):
            ids = tokens(generator, 2, length, device)
            assert same_bytes(program(ids), logits(model, ids)), length
