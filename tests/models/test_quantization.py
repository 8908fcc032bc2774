"""From a bfloat16 Llama to FP8: weights, scales, calibration, whole models and the errors.

What a quantised model should compute comes from `fake_quantized`: the original model, its linears one by one on
weights and inputs that were rounded to FP8 here, without the package's code.
"""

import contextlib
import copy
import sys
import weakref

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from problems.buffers import same_bytes
from problems.checkpoints import assert_same_state, copied_state
from problems.inputs import FP8, positive, random_codes, short
from problems.tiny_llama import ACTIVATIONS, NEAR, VARIANTS, distance, llama, logits, quantize, reference_logits, tokens

pytestmark = pytest.mark.usefixtures("without_gradients")

GRANULARITIES = ("channel", "tensor")
every_format = pytest.mark.parametrize("fp8_dtype", FP8, ids=short)
every_granularity = pytest.mark.parametrize("granularity", GRANULARITIES)
every_activation = pytest.mark.parametrize("activations", ACTIVATIONS)

# The linears of a decoder layer that share an input, hence an input scale and a scale of the joined weight.
JOINED = (
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    ("self_attn.o_proj",),
    ("mlp.gate_proj", "mlp.up_proj"),
    ("mlp.down_proj",),
)


def linear_module(kernel):
    return sys.modules[kernel.quantization.Fp8Linear.__module__]


def nearest_fp8(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """By definition: the nearest of all codes, the even one of two as near; the sign apart; no -0 in fnuz."""
    magnitudes = torch.arange(128, dtype=torch.uint8).view(dtype).double()
    magnitudes = magnitudes[~magnitudes.isnan()]  # in the order of their codes
    distances = (values.double().abs()[..., None] - magnitudes).abs()
    near = distances == distances.amin(-1, keepdim=True)
    codes = torch.arange(len(magnitudes))
    # Of two neighbours one code is even: prefer it, by the sort key 0 for even and 1 for odd.
    code = torch.where(near, codes % 2, 2).argmin(-1)
    sign = values.signbit() & ((code > 0) | (dtype == torch.float8_e4m3fn))
    return (code + 128 * sign).to(torch.uint8).view(dtype)


# --- weights ---


@every_format
@every_granularity
def test_weights_are_the_nearest_codes(kernel, generator, fp8_dtype, granularity):
    weight = torch.randn(24, 40, generator=generator).bfloat16()
    weight[3] *= 1e-4  # a quiet channel: with a scale of its own it keeps its precision
    weight[5] = 0
    quantized, scale = linear_module(kernel).quantize_weight(weight, fp8_dtype, granularity)
    largest = torch.tensor([max(abs(v) for v in row) for row in weight.tolist()])
    if granularity == "tensor":
        assert scale.shape == (1,)
        wanted = largest.max().reshape(1, 1) / torch.finfo(fp8_dtype).max
    else:
        assert scale.shape == (1, 24)
        wanted = largest.reshape(24, 1) / torch.finfo(fp8_dtype).max
        assert scale[0, 5] == 1
        wanted[5] = 1
    assert scale.dtype == torch.float32 and torch.equal(scale.reshape(-1), wanted.reshape(-1))
    assert same_bytes(quantized, nearest_fp8(weight.float() / wanted, fp8_dtype))
    tops = (quantized.float().abs() == torch.finfo(fp8_dtype).max).any(dim=1)
    assert tops.sum() == 23 if granularity == "channel" else 1 <= tops.sum() < 23


@every_format
@every_granularity
def test_a_weight_of_zeros(kernel, fp8_dtype, granularity):
    quantized, scale = linear_module(kernel).quantize_weight(torch.zeros(3, 4).half(), fp8_dtype, granularity)
    assert (quantized.view(torch.uint8) == 0).all() and (scale == 1).all()


@every_granularity
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_no_numbers_are_refused(kernel, generator, granularity, bad):
    weight = torch.randn(4, 8, generator=generator)
    weight[2, 3] = bad
    with pytest.raises(ValueError, match="weight: .*NaN or infinity"):
        linear_module(kernel).quantize_weight(weight, FP8[0], granularity)


@every_format
@pytest.mark.parametrize("n, k", [(1, 1), (128, 128), (300, 129), (130, 640)])
def test_weights_of_blocks(kernel, generator, fp8_dtype, n, k):
    weight = torch.randn(n, k, generator=generator).bfloat16()
    quantized, scale = linear_module(kernel).quantize_weight(weight, fp8_dtype, "block")
    assert scale.shape == (-(-n // 128), -(-k // 128))
    for i, rows in enumerate(weight.split(128, 0)):
        for j, block in enumerate(rows.split(128, 1)):
            largest = block.float().abs().max() / torch.finfo(fp8_dtype).max
            assert scale[i, j] == largest
            codes = quantized[i * 128 : (i + 1) * 128, j * 128 : (j + 1) * 128]
            assert same_bytes(codes, nearest_fp8(block.float() / largest, fp8_dtype))


def test_an_unknown_granularity_is_refused(kernel, generator):
    with pytest.raises(ValueError, match="granularity: 'row'; needs one of tensor, channel, block"):
        linear_module(kernel).quantize_weight(torch.randn(4, 8, generator=generator), FP8[0], "row")


def test_fnuz_means_the_same_numbers(kernel, generator):
    codes = torch.arange(256, dtype=torch.uint8)
    codes = codes[(codes & 0x7F) != 0x7F]  # but NaN
    scale = torch.rand(1, generator=generator) + 0.5
    weight, doubled = linear_module(kernel).to_fnuz(codes.view(torch.float8_e4m3fn), scale)
    assert weight.dtype == torch.float8_e4m3fnuz and not weight.float().isnan().any()
    assert torch.equal(weight.double() * doubled.double(), codes.view(torch.float8_e4m3fn).double() * scale.double())
    zeros = weight.view(torch.uint8)[(codes & 0x7F) == 0]
    assert zeros.tolist() == [0, 0]


@every_activation
def test_a_linear_in_fnuz_computes_the_same(kernel, device, generator, activations):
    # Twice the scales and half the codes' values: exact, so the bytes are equal. -0 in the weight becomes 0.
    model = llama(generator, device=device, **VARIANTS["biases"])
    quantize(kernel, model, [tokens(generator, 1, 16, device)], activations, fp8_dtype=FP8[0])
    linear = model.model.layers[1].mlp.gate_up_proj
    linear.weight.view(torch.uint8)[::3, ::5] = 0x80
    codes = random_codes((5, linear.in_features), FP8[0], generator).to(device).view(torch.uint8)
    codes[codes == 0x80] = 0
    scale, twice = None, None
    if activations == "dynamic":
        scale = positive((5, 1), generator).to(device)
        twice = 2 * scale
    converted = copy.deepcopy(linear).to_fnuz_()
    assert converted.weight.dtype == FP8[1] and (converted.input_scale is None) == (activations == "dynamic")
    # A GPU multiplies one of the two formats.
    with contextlib.nullcontext() if device.type == "cpu" else kernel.by_reference():
        wanted = linear(codes.view(FP8[0]), scale=scale)
        assert same_bytes(converted(codes.view(FP8[1]), scale=twice), wanted)


# --- calibration ---


def true_maxima(model: torch.nn.Module, inputs) -> dict[str, float]:
    """Of every linear of the decoder layers, from the values themselves."""
    seen: dict[str, list[float]] = {}
    handles = [
        module.register_forward_pre_hook(
            lambda _, arguments, name=name: seen.setdefault(name, []).extend(arguments[0].abs().flatten().tolist())
        )
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and ".layers." in name
    ]
    for ids in inputs:
        logits(model, ids)
    for handle in handles:
        handle.remove()
    return {name: max(values) for name, values in seen.items()}


def test_calibration_finds_the_maxima(kernel, device, generator):
    model = llama(generator, device=device, **VARIANTS["biases"])
    inputs = [tokens(generator, 2, 20, device), tokens(generator, 1, 7, device), tokens(generator, 3, 11, device)]
    before = copied_state(model)
    model.train()
    found = kernel.quantization.calibrate(model, (ids.cpu() for ids in inputs))
    assert model.training
    model.eval()
    wanted = true_maxima(model, inputs)
    firsts = {f"model.layers.{i}.{group[0]}" for i in range(2) for group in JOINED}
    assert found == {name: value for name, value in wanted.items() if name in firsts} and len(found) == 8
    assert_same_state(model, before)
    assert not any(module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_activations_that_are_no_numbers_are_refused(kernel, generator, bad):
    model = llama(generator)
    model.model.embed_tokens.weight[7, 3] = bad
    # Only in the first of two inputs: a maximum must not lose it.
    with pytest.raises(ValueError, match=r"the input of model\.layers\.0\.self_attn\.q_proj becomes nan"):
        kernel.quantization.calibrate(model, [torch.tensor([[7, 8]]), torch.tensor([[1, 2]])])
    assert not any(module._forward_pre_hooks for module in model.modules())


# --- whole models ---


def fake_quantized(model, inputs, fp8_dtype: torch.dtype, granularity: str, activations: str):
    """A copy of the original whose linears round weights and inputs to FP8 and back, and add in float32."""
    largest, model = true_maxima(model, inputs), copy.deepcopy(model)
    limit = torch.finfo(fp8_dtype).max

    def rounded(values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return nearest_fp8((values.float() / scale).cpu(), fp8_dtype).float().to(values.device)

    def forward(linear: torch.nn.Linear, input_scale: torch.Tensor, scale: torch.Tensor):
        weight = rounded(linear.weight, scale)

        def call(x: torch.Tensor) -> torch.Tensor:
            by = input_scale if activations == "static" else x.float().abs().amax(-1, keepdim=True) / limit
            out = rounded(x, by) @ weight.t() * by * scale.reshape(1, -1)
            return (out if linear.bias is None else out + linear.bias.float()).to(x.dtype)

        return call

    for i, layer in enumerate(model.model.layers):
        for group in JOINED:
            linears = [layer.get_submodule(name) for name in group]
            input_scale = torch.tensor(largest[f"model.layers.{i}.{group[0]}"] / limit, device=model.device)
            joint = max(linear.weight.abs().max().float() for linear in linears) / limit
            for linear in linears:
                channels = linear.weight.abs().amax(dim=1, keepdim=True).float() / limit
                linear.forward = forward(linear, input_scale, channels if granularity == "channel" else joint)
    return model


@pytest.mark.parametrize("shapes", VARIANTS)
@every_format
@every_granularity
@every_activation
def test_a_quantised_model_computes_what_it_should(
    kernel, device, generator, formats, shapes, fp8_dtype, granularity, activations
):
    model = llama(generator, device=device, **VARIANTS[shapes])
    inputs = [tokens(generator, 2, 16, device), tokens(generator, 1, 9, device)]
    original = logits(model, inputs[0])
    wanted = logits(fake_quantized(model, inputs, fp8_dtype, granularity, activations), inputs[0])

    result = quantize(kernel, model, iter(inputs), activations, granularity=granularity, fp8_dtype=fp8_dtype)
    assert result is model
    linears = [module for module in model.modules() if isinstance(module, kernel.quantization.Fp8Linear)]
    assert len(linears) == 8 and all(linear.weight.dtype == fp8_dtype for linear in linears)
    assert not any(isinstance(m, torch.nn.Linear) and m is not model.lm_head for m in model.modules())
    # A row's maximum that another order of a sum moves by 2^-8 moves its computed scale, and with it one code in 16.
    limit = NEAR if activations == "static" else 2 * NEAR
    assert distance(reference_logits(kernel, model, inputs[0]), wanted) <= limit
    if fp8_dtype in formats:
        assert distance(logits(model, inputs[0]), wanted) <= limit
    # FP8 rounds to a 2^-5 of an operand's size, root mean square: about 0.1 after eight products of two. A scale
    # that is wrong by 2 in one linear alone is more.
    assert 0 < distance(wanted, original) < 0.2


def test_the_defaults_are_channels_and_the_devices_format(kernel, device, generator):
    model = llama(generator, device=device)
    kernel.quantization.quantize(model, [tokens(generator, 1, 16, device)])
    linear = model.model.layers[0].self_attn.qkv_proj
    assert linear.weight_scale.shape == (1, 192) and linear.weight.dtype == kernel.fp8_dtype(device)


@every_granularity
def test_headroom_is_a_factor_of_input_scales(kernel, device, generator, granularity):
    text = [tokens(generator, 1, 16, device)]
    near, far = (llama(torch.Generator().manual_seed(3), device=device) for _ in range(2))
    kernel.quantization.quantize(near, text, granularity=granularity)
    kernel.quantization.quantize(far, text, granularity=granularity, headroom=16)
    scales = 0
    for (name, ours), theirs in zip(near.state_dict().items(), far.state_dict().values(), strict=True):
        scales += name.endswith("input_scale")
        assert same_bytes(16 * ours if name.endswith("input_scale") else ours, theirs), name
    assert scales


@every_granularity
def test_dynamic_scales_need_no_text(kernel, device, generator, monkeypatch, granularity):
    model, same = (llama(torch.Generator().manual_seed(3), device=device) for _ in range(2))

    def called(*args, **kwargs):
        raise AssertionError("the model was run")

    with monkeypatch.context() as patched:
        patched.setattr(type(model), "forward", called)
        kernel.quantization.quantize(model, activations="dynamic", granularity=granularity)
    kernel.quantization.quantize(same, [tokens(generator, 1, 16, device)], granularity=granularity)
    for dynamic, static in zip(model.modules(), same.modules(), strict=True):
        if isinstance(dynamic, kernel.quantization.Fp8Linear):
            assert dynamic.input_scale is None and same_bytes(dynamic.weight, static.weight)
            # One for each channel in any case.
            scales = static.weight_scale.expand(1, static.out_features)
            assert same_bytes(dynamic.weight_scale, scales) and dynamic.weight_scale.is_contiguous()
    assert not any("input_scale" in name for name in model.state_dict())


def test_a_loud_row_leaves_the_others_their_precision(kernel, device, generator):
    """What scales of rows are for. By one scale the quiet rows are mostly zeros."""
    linear = torch.nn.Linear(64, 48, bias=False, dtype=torch.bfloat16, device=device)
    linear.weight.copy_(torch.randn(48, 64, generator=generator))
    loudness = torch.tensor([[1e-3], [1e-1], [1.0], [1e2], [1e4]])
    x = (torch.randn(5, 64, generator=generator) * loudness).bfloat16().to(device)
    wanted = x.float() @ linear.weight.float().t()
    worst = {}
    for activations in ACTIVATIONS:
        fp8 = kernel.fp8_dtype(device)
        given = None if activations == "dynamic" else (x.abs().max().float() / torch.finfo(fp8).max).reshape(1)
        layer = kernel.quantization.Fp8Linear.quantized([linear], given, "channel", fp8)
        q, scale = kernel.quantize_fp8(x, given)
        got = layer(q, scale=scale)
        worst[activations] = max(map(distance, got, wanted))
    assert worst["dynamic"] < 0.1 and worst["static"] > 0.9


def tiny_gpt2() -> torch.nn.Module:
    return GPT2LMHeadModel(GPT2Config(vocab_size=128, n_embd=32, n_layer=1, n_head=2, n_positions=32)).bfloat16()


def broken_weight(generator) -> torch.nn.Module:
    # Behind every linear's input, so that calibration does not meet it.
    model = llama(generator)
    model.model.layers[-1].mlp.down_proj.weight[3, 4] = float("nan")
    return model


def empty_rows(generator) -> torch.nn.Module:
    model = llama(generator)
    model.model.layers[-1].mlp.down_proj = torch.nn.Linear(0, 64, bias=False, dtype=torch.bfloat16)
    return model


# What is wrong -> (the model, arguments of quantize, the message).
ERRORS = {
    "GPT2": (lambda g: tiny_gpt2(), {}, "GPT2LMHeadModel holds no linear that can be quantised"),
    "a linear": (lambda g: torch.nn.Linear(4, 4), {}, "Linear holds no linear that can be quantised"),
    "float32": (lambda g: llama(g, torch.float32), {}, "dtype is torch.float32; needs float16 or bfloat16"),
    "granularity": (llama, dict(granularity="row"), "granularity: 'row'"),
    "static blocks": (llama, dict(granularity="block"), "activations: 'static'; granularity 'block' needs 'dynamic'"),
    "no input": (llama, dict(inputs=[]), "inputs: empty"),
    "no inputs": (llama, dict(inputs=None), "inputs: None; calibration needs text"),
    "inputs for nothing": (llama, dict(activations="dynamic"), "inputs: dynamic scales take none"),
    "activations": (llama, dict(activations="row"), "activations: 'row'; needs 'static' or 'dynamic'"),
    "no room": (llama, dict(headroom=0.5), "headroom: 0.5; needs a number from 1 to 64"),
    "room that is no number": (llama, dict(headroom=float("nan")), "headroom: nan; needs"),
    "room for nothing": (
        llama,
        dict(inputs=None, activations="dynamic", headroom=2),
        "headroom: 2; dynamic scales need none",
    ),
    "a NaN, without calibration": (broken_weight, dict(inputs=None, activations="dynamic"), "NaN or infinity"),
    "e5m2": (llama, dict(fp8_dtype=torch.float8_e5m2), "fp8_dtype"),
    "bfloat16": (llama, dict(fp8_dtype=torch.bfloat16), "fp8_dtype"),
    "a NaN in the last weight": (broken_weight, {}, "NaN or infinity"),
    "a linear of nothing": (empty_rows, {}, "model.layers.1.mlp.down_proj: in_features is 0; needs 1 at least"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors_come_before_the_model_is_changed(kernel, generator, case):
    make, arguments, message = ERRORS[case]
    model = make(generator)
    before = copied_state(model)
    classes = [type(module) for module in model.modules()]
    with pytest.raises(ValueError, match=message):
        kernel.quantization.quantize(model, **({"inputs": [torch.tensor([[1, 2, 3]])]} | arguments))
    assert [type(module) for module in model.modules()] == classes
    after = model.state_dict()
    assert after.keys() == before.keys() and all(same_bytes(after[name], value) for name, value in before.items())
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_quantising_twice_is_refused(kernel, generator):
    model, ids = llama(generator), [tokens(generator, 1, 8)]
    kernel.quantization.quantize(model, activations="dynamic")
    for function in (kernel.quantization.quantize, kernel.quantization.calibrate):
        with pytest.raises(ValueError, match="quantised already"):
            function(model, ids)


def test_the_old_weights_go_one_by_one(kernel, generator, monkeypatch):
    model, linear = llama(generator), kernel.quantization.Fp8Linear
    originals = [
        weakref.ref(m.weight) for n, m in model.named_modules() if type(m) is torch.nn.Linear and ".layers" in n
    ]
    original, alive = linear.quantized.__func__, []

    def counted(cls, linears, *arguments):
        alive.append(sum(weight() is not None for weight in originals))
        return original(cls, linears, *arguments)

    monkeypatch.setattr(linear, "quantized", classmethod(counted))
    kernel.quantization.quantize(model, [tokens(generator, 1, 8)])
    # Of Q, K, V; O; Gate, Up; Down.
    assert alive == [14, 11, 10, 8, 7, 4, 3, 1] and not any(weight() is not None for weight in originals)
