"""Fp8Linear: rows in any number, scales of its input and of its rows, and what it promises of its weight."""

import copy
import sys

import pytest
import torch

from problems.buffers import same_bytes
from problems.inputs import FP8, positive, random_fp8
from problems.tiny_llama import ACTIVATIONS, LAYER, VARIANTS, fp8_linears, llama, logits, quantize, quantized, tokens

pytestmark = pytest.mark.usefixtures("without_gradients")

every_activation = pytest.mark.parametrize("activations", ACTIVATIONS)


@pytest.mark.parametrize("granularity", ["channel", "tensor"])
@pytest.mark.parametrize("rows", [1, 31, 32, 33, 64, 75])
@every_activation
def test_a_linears_rows_do_not_depend_on_their_number(kernel, device, generator, calls, rows, granularity, activations):
    """Up to 32, and above: there another operator adds in another order."""
    if device.type != "cpu":
        pytest.skip("more rows than skinny_gemm takes go to the GPU's library")
    few = rows <= kernel.SKINNY_GEMM_MAX_ROWS
    model = llama(generator, device=device, **VARIANTS["biases"])
    quantize(kernel, model, [tokens(generator, 1, 16, device)], activations, granularity=granularity)
    for linear in fp8_linears(kernel, model)[:4]:
        x = random_fp8((rows, linear.in_features), FP8[0], generator).to(device)
        scales = positive((rows, 1), generator).to(device) if activations == "dynamic" else [None] * rows
        given = scales if activations == "dynamic" else None
        calls.clear()
        together = linear(x, scale=given)
        assert calls == ["skinny_gemm" if few else "block_scaled_gemm"]
        alone = torch.cat([linear(row[None], scale=scale) for row, scale in zip(x, scales)])
        if few:
            assert same_bytes(together, alone)
        else:
            torch.testing.assert_close(together, alone, rtol=2**-7, atol=2**-7)
            again = torch.cat([x, x[:7].contiguous()]), None if given is None else torch.cat([given, given[:7]])
            assert same_bytes(linear(again[0], scale=again[1])[:rows], together)
        # Leading dimensions are rows, however many.
        if given is not None:
            given = given.view(1, rows, 1, 1)
        x = x.view(1, rows, 1, -1)
        assert same_bytes(linear(x, scale=given).view(rows, -1), together)


@pytest.mark.parametrize("granularity", ["channel", "tensor"])
@pytest.mark.parametrize("rows", [33, 75])
def test_many_rows_with_scales_of_their_own(kernel, device, generator, monkeypatch, rows, granularity):
    """torch._scaled_mm, which has a CPU's version, against block_scaled_gemm."""
    model = llama(generator, device=device, **VARIANTS["biases"])
    quantize(kernel, model, [], "dynamic", granularity=granularity)
    for linear in fp8_linears(kernel, model)[:4]:
        x = random_fp8((rows, linear.in_features), linear.weight.dtype, generator).to(device)
        scale = positive((rows, 1), generator).to(device)
        results = []
        for gemm in ("block_scaled_gemm", "library"):
            module = sys.modules[f"{kernel.__name__}.ops.linear"]
            monkeypatch.setattr(module, "gemm_for", lambda *_, gemm=gemm, **options: gemm)
            results.append(linear(x, scale=scale))
        # Before the bias _scaled_mm rounds to bfloat16 once more.
        torch.testing.assert_close(*results, rtol=2**-6, atol=2**-6)


@pytest.mark.parametrize("granularity", ["channel", "tensor"])
@pytest.mark.parametrize("rows", [64, 128, 129])
@every_activation
def test_what_multiplies_many_rows(kernel, device, generator, calls, rows, granularity, activations):
    """On an NVIDIA GPU torch._scaled_mm, but for up to 128 rows where rows or channels have scales of their own."""
    model = llama(generator, device=device, **VARIANTS["biases"])
    quantize(kernel, model, [tokens(generator, 1, 16, device)], activations, granularity=granularity)
    linear = fp8_linears(kernel, model)[0]
    x = random_fp8((rows, linear.in_features), linear.weight.dtype, generator).to(device)
    scale = positive((rows, 1), generator).to(device) if activations == "dynamic" else None
    calls.clear()
    linear(x, scale=scale)
    own = activations == "dynamic" or granularity == "channel"
    ours = device.type == "cpu" or (own and rows <= 128 and torch.version.hip is None)
    assert calls == (["block_scaled_gemm"] if ours else [])


@every_activation
def test_scales_reach_the_gemm_uncopied(kernel, device, generator, monkeypatch, activations):
    model = quantized(kernel, generator, device, activations=activations)[1]
    operators, linear = (sys.modules[f"{kernel.__name__}.ops{part}"] for part in ("", ".linear"))
    gemm, made, taken = linear.skinny_gemm, [], []

    def keeping(original):
        def call(*args, **kwargs):
            result = original(*args, **kwargs)
            made.append(result[1].data_ptr() if isinstance(result, tuple) else None)
            return result

        return call

    def taking(a, b, scale_a, *args, **kwargs):
        taken.append(scale_a.data_ptr())
        assert scale_a.shape == ((len(a), 1) if activations == "dynamic" else (1,))
        return gemm(a, b, scale_a, *args, **kwargs)

    for name in ("quantize_fp8", *LAYER[activations]):
        monkeypatch.setattr(operators, name, keeping(getattr(operators, name)))
    monkeypatch.setattr(linear, "skinny_gemm", taking)
    logits(model, tokens(generator, 2, 5, device))
    linears = fp8_linears(kernel, model)
    wanted = made if activations == "dynamic" else [linear.input_scale.data_ptr() for linear in linears]
    # In the order of computation, which is not that of the modules.
    assert len(taken) == 8 and sorted(taken) == sorted(wanted)


@pytest.mark.parametrize(
    "rows, n, k, own, device, wanted",
    [
        (32, 64, 64, True, "cpu", "skinny_gemm"),
        (33, 64, 64, True, "cpu", "block_scaled_gemm"),
        (32, 64, 64, False, "cuda", "skinny_gemm"),
        (33, 64, 64, False, "cuda", "library"),
        (33, 64, 24, False, "cuda", "block_scaled_gemm"),
        (33, 24, 64, True, "cuda", "block_scaled_gemm"),
        (129, 64, 64, True, "cuda", "library"),
    ],
)
def test_the_choice_by_rows(kernel, rows, n, k, own, device, wanted):
    choice = kernel.quantization.gemm_for(rows, n, k, own_scales=own, device=torch.device(device))
    assert choice == wanted


@pytest.mark.parametrize("hip", [None, "7.2"])
def test_the_choice_of_an_nvidia_gpu_for_scales_of_rows(kernel, monkeypatch, hip):
    monkeypatch.setattr(torch.version, "hip", hip)
    choice = kernel.quantization.gemm_for(128, 64, 64, own_scales=True, device=torch.device("cuda"))
    assert choice == ("library" if hip else "block_scaled_gemm")


def test_a_linear_without_any_scale_says_so(kernel, device, generator):
    linear = quantized(kernel, generator, device, activations="dynamic")[1].model.layers[0].mlp.down_proj
    x = random_fp8((2, linear.in_features), linear.weight.dtype, generator).to(device)
    with pytest.raises(ValueError, match="scale: None; this linear has no input_scale"):
        linear(x)
    assert "dynamic input scales" in repr(linear)


def test_a_linear_promises_a_constant_weight_from_its_second_call_on(kernel, device, generator, monkeypatch):
    """And not where the weight has been written since, or replaced, even at the same address."""
    linear = torch.nn.Linear(64, 32, dtype=torch.bfloat16).to(device)
    quantize = type(quantized(kernel, generator, device)[1].model.layers[0].mlp.down_proj).quantized
    layer = quantize([linear], torch.ones(1), "tensor", kernel.fp8_dtype(device))
    x = random_fp8((2, 64), kernel.fp8_dtype(device), generator).to(device)
    promises, original = [], kernel.skinny_gemm

    def skinny_gemm(*args, constant_b: bool, **kwargs):
        promises.append(constant_b)
        return original(*args, constant_b=constant_b, **kwargs)

    monkeypatch.setattr(sys.modules[f"{kernel.__name__}.ops.linear"], "skinny_gemm", skinny_gemm)

    def call() -> torch.Tensor:
        return layer(x)

    first = call()
    assert same_bytes(call(), first) and promises == [False, True]
    layer.weight.copy_(layer.weight.clone())
    assert same_bytes(call(), first) and same_bytes(call(), first) and promises[2:] == [False, True]
    layer.weight = layer.weight.view_as(layer.weight)
    call()
    call()
    layer = copy.deepcopy(layer)
    call()
    assert promises[4:] == [False, True, False]
    with torch.inference_mode():  # a tensor made here does not count its changes
        layer.weight = layer.weight.clone()
        call()
        call()
    assert promises[7:] == [False, False]


def test_no_rows(kernel, device, generator):
    model = quantized(kernel, generator, device)[1]
    linear = model.model.layers[0].mlp.down_proj
    x = random_fp8((0, 7, linear.in_features), FP8[0], generator).to(device)
    for scale in (None, torch.ones(0, 7, 1, device=device)):
        assert linear(x, scale=scale).shape == (0, 7, linear.out_features)
