"""What `kernels.kernelize` puts in place of a Llama's forwards: that it is there, and that it computes the same."""

import contextlib
import copy

import kernels
import pytest
import torch
from kernels.layer.layer import _validate_layer
from transformers import DynamicCache
from transformers.models.llama import modeling_llama

from examples.llama_fp8.decoding import with_cache
from problems.buffers import same_bytes
from problems.comparisons import assert_rounded_alike
from problems.inputs import FP8, HALF, normal, positive, short, weights
from problems.tiny_llama import (
    ACTIVATIONS,
    LAYER,
    NEAR,
    SCHEMES,
    VARIANTS,
    assert_likeliest,
    decided,
    distance,
    kernelized,
    llama,
    logits,
    near,
    quantize,
    quantized,
    reference_logits,
    tokens,
)

pytestmark = pytest.mark.usefixtures("without_gradients", "open_norms")

INFERENCE, COMPILED, TRAINING = kernels.Mode.INFERENCE, kernels.Mode.TORCH_COMPILE, kernels.Mode.TRAINING
every_shape = pytest.mark.parametrize("shapes", VARIANTS)
every_activation = pytest.mark.parametrize("activations", ACTIVATIONS)


# transformers makes its RMSNorm open to kernelize only where it accepts the installed version of kernels.
OPEN = hasattr(modeling_llama.LlamaRMSNorm, "kernel_layer_name")


def forward_of(module: torch.nn.Module):
    """The function that a call of the module runs."""
    return module.forward.__func__


def norms(model: torch.nn.Module) -> list[torch.nn.Module]:
    return [module for module in model.modules() if isinstance(module, modeling_llama.LlamaRMSNorm)]


# --- RMSNorm ---


@pytest.mark.parametrize("dtype", HALF, ids=short)
def test_rms_norm_computes_what_the_models_own_does(kernel, device, generator, calls, dtype):
    model = kernelized(kernel, llama(generator, dtype, device))
    assert len(norms(model)) == 5
    pairs = []

    def record(module, arguments, output):
        pairs.append((output, modeling_llama.LlamaRMSNorm.forward(module, *arguments)))

    for module in norms(model):
        assert forward_of(module) is kernel.layers.RMSNorm.forward
        module.register_forward_hook(record)
    logits(model, tokens(generator, 4, 64, device))
    assert calls == ["rms_norm"] * 5
    for got, wanted in pairs:
        assert_rounded_alike(got, wanted, "RMSNorm")


@pytest.mark.skipif(not OPEN, reason="this transformers does not take this version of kernels: no RMSNorm to replace")
def test_transformers_names_its_rms_norm_as_the_mapping_does(kernel):
    assert modeling_llama.LlamaRMSNorm.kernel_layer_name in kernel.layers.mapping()


@pytest.mark.parametrize(
    "weight, x",
    [
        (torch.float32, torch.bfloat16),
        (torch.float32, torch.float16),
        (torch.float32, torch.float32),
        (torch.float16, torch.bfloat16),
    ],
    ids=lambda dtype: short(dtype),
)
def test_rms_norm_of_other_dtypes_is_the_models_own(kernel, device, generator, calls, weight, x):
    # The operator's result has x's dtype; these give float32.
    module = modeling_llama.LlamaRMSNorm(96, eps=1e-5).to(device=device, dtype=weight)
    module.weight.copy_(weights((96,), weight, generator))
    hidden = normal((4, 9, 96), x, generator).to(device)
    wanted = module(hidden)
    got = kernelized(kernel, module)(hidden)
    assert forward_of(module) is kernel.layers.RMSNorm.forward
    assert got.dtype == torch.float32 and same_bytes(got, wanted)
    assert calls == []


def test_a_float32_model_keeps_its_results(kernel, device, generator, calls):
    model = llama(generator, torch.float32, device)
    ids = tokens(generator, 2, 16, device)
    wanted = logits(model, ids)
    assert same_bytes(logits(kernelized(kernel, model), ids), wanted)
    assert calls == []


def test_epsilon_is_the_modules(kernel, device):
    # So small a row that epsilon alone decides: 2^-12 / sqrt(2^-24 + 3 * 2^-24) = 1/2.
    module = modeling_llama.LlamaRMSNorm(64, eps=3 * 2.0**-24).to(device=device, dtype=torch.bfloat16)
    x = torch.full((2, 64), 2.0**-12, dtype=torch.bfloat16, device=device)
    assert (kernelized(kernel, module)(x) == 0.5).all()


# --- the mapping ---


def test_the_mapping_names_all_layers(kernel):
    own = kernel.layers._backend()
    assert own in ("cpu", "cuda", "rocm")
    for asked, device in ((None, own), ("cuda", "cuda")):
        mapping = kernel.layers.mapping(asked)
        assert {name: list(repositories) for name, repositories in mapping.items()} == {"RMSNorm": [device]}
        for name, repositories in mapping.items():
            assert repositories[device].load() is getattr(kernel.layers, name)
            assert repositories[device].layer_name == name


def test_a_repository_is_what_kernels_needs_it_to_be(kernel):
    one, again = (kernel.layers.LoadedLayer(kernel.layers.RMSNorm) for _ in range(2))
    other = kernel.layers.LoadedLayer(type("Other", (torch.nn.Module,), {}))
    # kernels keeps loaded layers in a dictionary and copies mappings deeply.
    assert one == again and hash(one) == hash(again) and {one: 1}[again] == 1
    assert one != other and one != kernel.layers.RMSNorm and other not in {one: 1}
    assert copy.deepcopy({"RMSNorm": one})["RMSNorm"].load() is kernel.layers.RMSNorm
    assert "RMSNorm" in str(one)


def test_the_layer_passes_kernels_own_checks(kernel):
    (repository,) = kernel.layers.mapping()["RMSNorm"].values()
    replaced = modeling_llama.LlamaRMSNorm
    _validate_layer(check_cls=replaced, cls=repository.load(), repo=repository)
    # The check is alive: a layer with a member more is refused.
    other = type("Other", (repository.load(),), {"state": 1})
    with pytest.raises(TypeError, match="additional members"):
        _validate_layer(check_cls=replaced, cls=other, repo=repository)


@every_activation
@pytest.mark.parametrize("mode", [INFERENCE, INFERENCE | COMPILED], ids=["inference", "compiled"])
def test_both_inference_modes_take_the_kernels(kernel, device, generator, calls, mode, activations):
    model = quantize(kernel, llama(generator, device=device), [tokens(generator, 2, 48, device)], activations)
    kernelized(kernel, model, mode)
    assert all(forward_of(m) is kernel.layers.RMSNorm.forward for m in norms(model))
    calls.clear()
    logits(model, tokens(generator, 1, 5, device))
    gemm, (norm, add_norm, swiglu) = "skinny_gemm", LAYER[activations]
    layer = [gemm, "quantize_fp8", gemm, add_norm, gemm, swiglu, gemm]
    assert calls == [norm, *layer, add_norm, *layer, "rms_norm"]


@pytest.mark.parametrize("mode", [TRAINING, TRAINING | COMPILED], ids=["training", "compiled"])
def test_training_keeps_the_modules_own_forward(kernel, device, generator, calls, mode):
    model = llama(generator, device=device)
    kernelized(kernel, model)
    with pytest.raises(ValueError, match="does not support mode"):
        kernelized(kernel, model, mode)
    with kernels.use_kernel_mapping(kernel.layers.mapping(), inherit_mapping=False):
        kernels.kernelize(model, mode=mode)
    assert all(forward_of(m) is modeling_llama.LlamaRMSNorm.forward for m in norms(model))
    with torch.enable_grad():
        logits(model, tokens(generator, 1, 8, device)).float().square().sum().backward()
    assert calls == [] and all(m.weight.grad.abs().sum() > 0 for m in norms(model))


# --- the FP8 decoder layer ---


@every_shape
@every_activation
def test_kernels_and_reference_agree(kernel, device, generator, calls, shapes, activations):
    reference, fast = quantized(kernel, generator, device, shapes, activations)
    ids = tokens(generator, 3, 48, device)
    calls.clear()
    wanted = logits(reference, ids)
    assert calls == []
    got = logits(fast, ids)
    assert len(calls) > 0
    assert distance(got, wanted) <= near(device)
    # A lead of a quarter of a standard deviation is eight times what NEAR leaves for an average logit.
    clear = decided(wanted, 8 * NEAR)
    assert clear.float().mean() > 0.25
    assert torch.equal(got.argmax(-1)[clear], wanted.argmax(-1)[clear])


@pytest.mark.parametrize("dtype", HALF, ids=short)
@pytest.mark.parametrize("fp8_dtype", FP8, ids=short)
@pytest.mark.parametrize("activations, granularity", SCHEMES)
def test_dtypes_and_granularities_agree_too(
    kernel, device, generator, formats, dtype, granularity, fp8_dtype, activations
):
    if fp8_dtype not in formats:
        pytest.skip("not this GPU's format")
    model = llama(generator, dtype, device, **VARIANTS["biases"])
    ids = tokens(generator, 2, 24, device)
    quantize(kernel, model, [ids], activations, granularity=granularity, fp8_dtype=fp8_dtype)
    got, wanted = logits(model, ids), reference_logits(kernel, model, ids)
    assert got.dtype == dtype and distance(got, wanted) <= near(device)


def layer_arguments(model: torch.nn.Module, length: int, generator, device) -> tuple[torch.Tensor, dict]:
    hidden = normal((1, length, model.config.hidden_size), model.dtype, generator).to(device)
    positions = model.model.rotary_emb(hidden, torch.arange(length, device=device)[None])
    return hidden, {"position_embeddings": positions}


@pytest.mark.parametrize("context", ["by_reference", None])
def test_a_decoder_layer_does_not_write_its_input(kernel, device, generator, context):
    model = quantized(kernel, generator, device)[1]
    hidden, arguments = layer_arguments(model, 20, generator, device)
    before = hidden.clone()
    for _ in range(2):
        with getattr(kernel, context)() if context else contextlib.nullcontext():
            result = model.model.layers[0](hidden, **arguments)
        assert same_bytes(hidden, before) and result.data_ptr() != hidden.data_ptr()
        assert not torch.equal(result, hidden)


@pytest.mark.parametrize("which", [0, 1], ids=["reference", "kernels"])
def test_hidden_states_and_attentions_are_recorded(kernel, device, generator, which):
    model = quantized(kernel, generator, device, attn_implementation="eager")[which]
    ids = tokens(generator, 2, 12, device)
    result = model(input_ids=ids, output_hidden_states=True, output_attentions=True, use_cache=False)
    assert len(result.hidden_states) == 3 and len(result.attentions) == 2
    # Written by no later layer, although the residual is added in place.
    assert same_bytes(result.hidden_states[0], model.model.embed_tokens(ids))
    assert same_bytes(model.lm_head(result.hidden_states[-1]), result.logits)
    for weights_ in result.attentions:
        assert weights_.shape == (2, 4, 12, 12)
        assert (weights_.float().triu(1) == 0).all()
        # Probabilities in bfloat16: 12 roundings of at most 2^-9 of each.
        torch.testing.assert_close(weights_.float().sum(-1), torch.ones(2, 4, 12, device=device), atol=2**-8, rtol=0)
    plain = model(input_ids=ids, use_cache=False)
    assert same_bytes(plain.logits, result.logits)


@every_shape
@every_activation
def test_decoding_with_a_cache_equals_the_full_pass(kernel, device, generator, shapes, activations):
    model = quantized(kernel, generator, device, shapes, activations)[1]
    ids, begin = tokens(generator, 2, 48, device), 20
    full = logits(model, ids)[:, begin:]
    given, parts = with_cache(model, DynamicCache(config=model.config)), []
    model(input_ids=ids[:, :begin], **given)
    for i in range(begin, ids.shape[1]):
        step = model(input_ids=ids[:, i : i + 1], **given)
        parts.append(step.logits)
    cached = torch.cat(parts, dim=1)
    # Attention sums in another order for one query than for many, and rounds to bfloat16 in between: more codes
    # change than between operators. Without what the cache holds the result is another one altogether.
    assert distance(cached, full) <= 2 * NEAR
    assert distance(logits(model, ids[:, -1:]), full[:, -1:]) > 0.3
    clear = decided(full, 16 * NEAR)
    assert clear.any()
    assert torch.equal(cached.argmax(-1)[clear], full.argmax(-1)[clear])


@every_activation
def test_generate(kernel, device, generator, activations):
    model = quantized(kernel, generator, device, activations=activations)[1]
    ids = tokens(generator, 1, 8, device)
    mask = torch.ones_like(ids)
    written = model.generate(ids, attention_mask=mask, max_new_tokens=12, do_sample=False)
    assert torch.equal(written[:, :8], ids) and written.shape == (1, 20)
    assert_likeliest(model, written, 8, 16 * NEAR)


@every_activation
def test_a_batchs_sequences_do_not_depend_on_each_other(kernel, device, generator, activations):
    if device.type != "cpu":
        pytest.skip("more rows than skinny_gemm takes go to the GPU's library")
    model = quantized(kernel, generator, device, activations=activations)[1]
    # Of one token: attention then passes its value on, whatever the number of sequences.
    ids = tokens(generator, 80, 1, device)

    def hidden(sequences: torch.Tensor) -> torch.Tensor:
        return model.model(input_ids=sequences, use_cache=False).last_hidden_state

    # skinny_gemm multiplies up to 32 rows; block_scaled_gemm more of them, adding in another order.
    for count, each in ((32, 1), (80, 40)):
        together = hidden(ids[:count])
        assert same_bytes(together, torch.cat([hidden(some) for some in ids[:count].split(each)]))


# --- autograd ---


@pytest.mark.parametrize("training", [False, True])
def test_gradients_through_a_kernelized_norm_are_the_models(kernel, device, generator, calls, training):
    own = modeling_llama.LlamaRMSNorm(64, eps=0.25).to(device, torch.bfloat16)
    own.weight.copy_(weights((64,), torch.bfloat16, generator))
    kernelized_ = kernelized(kernel, copy.deepcopy(own)).train(training)
    x, up = (normal((5, 64), torch.bfloat16, generator).to(device) for _ in range(2))
    gradients = []
    for norm in (own, kernelized_):
        with torch.enable_grad():
            given = x.clone().requires_grad_()
            norm(given).backward(up)
        gradients.append((given.grad, norm.weight.grad))
    assert all(same_bytes(*pair) for pair in zip(*gradients)) and calls == []
    kernelized_.requires_grad_(False)
    with torch.enable_grad():
        kernelized_(x)
    assert calls == ["rms_norm"]


def test_a_call_that_forgets_no_grad(kernel, device, generator):
    model = quantized(kernel, generator, device)[1]
    ids = tokens(generator, 2, 20, device)
    wanted = logits(model, ids)
    with torch.enable_grad():
        assert same_bytes(logits(model, ids), wanted)
    hidden = model.model.embed_tokens(ids)
    scale = positive((1,), generator).to(device)
    assert not kernel.rms_norm_fp8(hidden, model.model.norm.weight, scale).requires_grad
