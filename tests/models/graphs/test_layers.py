"""Layers, norms and linears that torch compiles give eager's bytes."""

import shutil

import pytest
import torch

from problems import checkpoints
from problems.buffers import same_bytes
from problems.inputs import normal
from problems.tiny_llama import (
    ACTIVATIONS,
    VARIANTS,
    distance,
    kernelized,
    llama,
    logits,
    near,
    quantize,
    quantized,
    tokens,
)
from tests.models.test_layers import COMPILED, INFERENCE, layer_arguments
from tests.models.test_mx_linears import every_kind, written_and_loaded

pytestmark = pytest.mark.usefixtures("without_gradients", "open_norms", "fresh_graphs")

every_activation = pytest.mark.parametrize("activations", ACTIVATIONS)
# Inductor keeps float32 where eager rounds to bfloat16 between elementwise steps, and its divisions on a GPU are not
# correctly rounded, unless told otherwise.
EAGERS_NUMBERS = {"emulate_precision_casts": True, "eager_numerics.division_rounding": True}
COMPILERS = {"traced": dict(backend="aot_eager"), "inductor": dict(options=EAGERS_NUMBERS)}
every_compiler = pytest.mark.parametrize(
    "compiler",
    [
        "traced",
        pytest.param(
            "inductor",
            marks=[
                pytest.mark.full,
                pytest.mark.skipif(
                    not (shutil.which("g++") or shutil.which("clang++")), reason="inductor needs a C++ compiler"
                ),
            ],
        ),
    ],
)


@every_compiler
@every_activation
def test_a_compiled_decoder_layer_gives_eagers_bytes(kernel, device, generator, compiler, activations):
    model = quantized(kernel, generator, device, activations=activations)[1]
    compiled = torch.compile(model.model.layers[0], fullgraph=True, **COMPILERS[compiler])
    for length in (24, 40):  # one skinny_gemm a linear, and two
        hidden, arguments = layer_arguments(model, length, generator, device)
        before = hidden.clone()
        wanted = model.model.layers[0](hidden, **arguments)
        assert same_bytes(compiled(hidden, **arguments), wanted)
        assert same_bytes(hidden, before)


@every_compiler
def test_a_compiled_rms_norm_gives_eagers_bytes(kernel, device, generator, compiler):
    model = kernelized(kernel, llama(generator, device=device), INFERENCE | COMPILED)
    compiled = torch.compile(model.model.norm, fullgraph=True, **COMPILERS[compiler])
    x = normal((3, 7, 64), torch.bfloat16, generator).to(device)
    assert same_bytes(compiled(x), model.model.norm(x))


def test_layers_that_are_fused_in_part_compile_without_breaks(kernel, device, generator, tmp_path):
    ignored = ("lm_head", "model.layers.0.self_attn.k_proj", "model.layers.1.mlp.down_proj")
    original, ids = llama(generator, **VARIANTS["grouped"]), tokens(generator, 2, 40)
    checkpoints.write("fbgemm_fp8", original, ids, tmp_path / "made", ignored)
    model = kernelized(kernel, kernel.quantization.load_quantized(tmp_path / "made", device))
    wanted = logits(model, ids.to(device))
    for i, layer in enumerate(model.model.layers):
        model.model.layers[i] = torch.compile(layer, fullgraph=True, backend="eager")
    assert same_bytes(logits(model, ids.to(device)), wanted)


@every_kind
@pytest.mark.parametrize("name", ["llama", "deepseek_v3"])
def test_compiled_mx_layers_give_eagers_bytes(kernel, device, generator, tmp_path, form, name):
    model = written_and_loaded(kernel, device, generator, tmp_path, form, name)[0]
    layer = model.model.layers[0]
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for length in (5, 40):
        hidden = torch.randn(1, length, model.config.hidden_size, generator=generator).bfloat16().to(device)
        angles = model.model.rotary_emb(hidden, torch.arange(length, device=device)[None])
        before = hidden.clone()
        assert same_bytes(compiled(hidden, position_embeddings=angles), layer(hidden, position_embeddings=angles))
        assert same_bytes(hidden, before)


@pytest.mark.parametrize("compiler", [None, "aot_eager", "inductor"])
@pytest.mark.parametrize("write", ["copy_", "add_", "new", "data", "inference"])
def test_sums_follow_a_weight_that_is_written(kernel, device, generator, compiler, write):
    """An int8 linear's sums of its weight, where its inputs have zero points."""

    def linear() -> torch.nn.Module:
        original = torch.nn.Linear(64, 48).to(device, torch.bfloat16)
        original.weight.copy_(torch.randn(48, 64, generator=generator))
        return kernel.smoothquant.Int8Linear.from_float(original, symmetric=False)

    one, other = linear(), linear()
    x = (torch.randn(3, 64, generator=generator) + 1).to(device, torch.bfloat16)
    call = torch.compile(one, fullgraph=True, backend=compiler) if compiler else one
    assert distance(call(x), other(x)) > 0.1
    one.weight_scale, one.bias = other.weight_scale, other.bias
    if write == "copy_":
        one.weight.copy_(other.weight)
    elif write == "add_":
        one.weight.add_(other.weight - one.weight)
    elif write == "new":
        one.weight = other.weight.clone()
    elif write == "data":  # torch does not count it: the method is needed
        one.weight.data.copy_(other.weight)
        one.sum_weights()
    else:
        with torch.inference_mode():
            one.weight.copy_(other.weight)
    assert torch.equal(one.weight_sum, one.weight.sum(-1, dtype=torch.int32)[None])
    assert same_bytes(call(x), other(x))


def test_by_reference(kernel, device, generator, calls):
    """Nested, after an error, in a compiled model: which is compiled anew, and takes the operators afterwards."""
    model = quantize(kernel, llama(generator, device=device, num_hidden_layers=1), [], "dynamic")
    ids = tokens(generator, 2, 20, device)
    wanted = logits(model, ids)
    compiled = torch.compile(model, backend="aot_eager")
    assert same_bytes(logits(compiled, ids), wanted)
    calls.clear()
    with kernel.by_reference():
        with pytest.raises(ZeroDivisionError), kernel.by_reference():
            raise ZeroDivisionError
        plain = logits(model, ids)
        assert same_bytes(logits(compiled, ids), plain) and calls == []
    assert distance(plain, wanted) <= near(device)
    assert same_bytes(logits(compiled, ids), wanted) and same_bytes(logits(model, ids), wanted)
