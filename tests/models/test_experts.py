"""Mixtures of experts: in transformers' interface for experts, quantised, on the kernels; and against a definition that
computes one expert after the other from the stored codes and scales."""

import copy
import json
import warnings

import pytest
import torch
from transformers import AutoModelForCausalLM, Llama4TextConfig
from transformers.integrations.finegrained_fp8 import ALL_FP8_EXPERTS_FUNCTIONS, FP8Experts

from problems import checkpoints
from problems.buffers import same_bytes
from problems.checkpoints import assert_same_state, saved_and_loaded
from problems.inputs import FP8, HALF, short
from problems.tiny_llama import NEAR, distance, kernelized, logits, near, on_reference, tokens
from problems.tiny_moe import (
    MODELS,
    NEAR_MODULES,
    SIZES,
    apart,
    by_definition,
    expert_modules,
    furthest,
    logits_with_one_routing,
    moe,
    near_modules,
    routed,
)

pytestmark = [
    pytest.mark.usefixtures("without_gradients"),
    pytest.mark.filterwarnings("ignore:.*has no decoder layer that can be fused"),
]

GRANULARITIES = {
    "tensor": checkpoints.Format(None, dynamic=True),
    "channel": checkpoints.Format(None, channel=True, dynamic=True),
    "block": checkpoints.Format(None, block=True, dynamic=True),
}


def grouped(kernel) -> int:
    return kernel.call_counts()["grouped_gemm"]


def quantized(kernel, model: torch.nn.Module, granularity: str) -> torch.nn.Module:
    model = copy.deepcopy(model)
    return kernel.quantization.quantize(model, activations="dynamic", granularity=granularity, fp8_dtype=FP8[0])


# --- transformers' interface ---


@pytest.mark.parametrize("dtype", HALF, ids=short)
@pytest.mark.parametrize("name", MODELS)
def test_experts_of_16_bits_through_the_interface(kernel, device, generator, name, dtype):
    model, ids = moe(name, generator, dtype, device), tokens(generator, 2, 11, device)
    ours = copy.deepcopy(model)
    ours.set_experts_implementation(kernel.layers.register_experts())
    before = grouped(kernel)
    wanted, got = logits_with_one_routing([apart(model), ours], ids)
    assert grouped(kernel) == before + 2 * len(expert_modules(model))
    assert distance(got, wanted) <= NEAR


def stacked_by_transformers(model: torch.nn.Module, made: torch.nn.Module) -> torch.nn.Module:
    """FP8Experts of transformers with these codes. from_pretrained makes them on a GPU alone."""
    from transformers import FineGrainedFP8Config
    from transformers.integrations.finegrained_fp8 import replace_with_fp8_linear

    settings = FineGrainedFP8Config(weight_block_size=(128, 128))
    model = replace_with_fp8_linear(copy.deepcopy(model), quantization_config=settings)
    for name, module in expert_modules(model).items():
        ours = made.get_submodule(name)
        for stack, scale in (("gate_up_proj", ours.gate_up_scale), ("down_proj", ours.down_scale)):
            for last, values in ((stack, getattr(ours, stack)), (f"{stack}_scale_inv", scale)):
                assert getattr(module, last).shape == values.shape
                setattr(module, last, torch.nn.Parameter(values, requires_grad=False))
    return model


@pytest.mark.parametrize("name", MODELS)
def test_experts_that_transformers_has_in_fp8(kernel, device, e4m3fn, generator, name):
    model = moe(name, generator, device=device)
    made = kernelized(kernel, quantized(kernel, model, "block"))
    theirs = stacked_by_transformers(model, made)
    theirs.set_experts_implementation(kernel.layers.register_experts())
    x, index, weights = routed(generator, device, 4)
    for each, module in expert_modules(theirs).items():
        before = grouped(kernel)
        assert same_bytes(module(x, index, weights), made.get_submodule(each)(x, index, weights))
        assert grouped(kernel) == before + 2


# --- quantised ---


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("name", MODELS)
def test_a_quantised_model_computes_what_it_stores(kernel, device, formats, generator, tmp_path, name, granularity):
    """And its checkpoint brings it back."""
    model, ids = moe(name, generator, device=device), tokens(generator, 2, 11, device)
    made = quantized(kernel, model, granularity)
    loaded = saved_and_loaded(kernel.quantization, made, tmp_path / "fp8", device)
    assert same_bytes(logits(loaded, ids), logits(made, ids))
    defined = by_definition(model, tmp_path / "fp8", GRANULARITIES[granularity])
    with kernel.by_reference():
        wanted, got = logits_with_one_routing([defined, made], ids)
    assert distance(got, wanted) <= near(device) and furthest(made, defined, generator) <= near_modules(device)
    with kernel.by_reference():
        wanted, without = logits_with_one_routing([model, made], ids)
    assert distance(without, wanted) <= 0.25  # eight numbers' digits a value, one linear after the other
    if FP8[0] in formats:
        before = grouped(kernel)
        wanted, got = logits_with_one_routing([on_reference(kernel, copy.deepcopy(made)), made], ids)
        assert grouped(kernel) == before + len(expert_modules(model))
        assert distance(got, wanted) <= near(device)


@pytest.mark.parametrize("granularity", ["tensor", "channel"])
def test_static_linears_and_dynamic_experts_come_back(kernel, device, generator, tmp_path, granularity):
    """Two groups in what is written: a calibration's few tokens say nothing of an expert."""
    model, ids = moe("deepseek_v3", generator, device=device), tokens(generator, 2, 48, device)
    made = kernel.quantization.quantize(model, [ids], granularity=granularity, fp8_dtype=FP8[0])
    kernel.quantization.save_quantized(made, tmp_path / "fp8")
    loaded = kernel.quantization.load_quantized(tmp_path / "fp8", device)
    assert {module.inputs for module in expert_modules(loaded).values()} == {"row"}
    assert_same_state(loaded, made)


@pytest.mark.parametrize("granularity", ["tensor", "channel"])
def test_transformers_reads_it(kernel, generator, tmp_path, granularity):
    """It decompresses experts to bfloat16."""
    model = moe("qwen3_moe", generator)
    made = quantized(kernel, model, granularity)
    kernel.quantization.save_quantized(made, tmp_path / "fp8")
    read = AutoModelForCausalLM.from_pretrained(tmp_path / "fp8", dtype=torch.bfloat16)
    for name, module in expert_modules(read).items():
        ours = made.get_submodule(name)
        for stack, scale in (("gate_up_proj", ours.gate_up_scale), ("down_proj", ours.down_scale)):
            assert torch.equal(getattr(module, stack), (getattr(ours, stack).float() * scale).bfloat16())


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("name", MODELS)
def test_vllm_finds_what_it_asks_for(kernel, generator, tmp_path, name, granularity):
    """The architecture, which a model that was not loaded does not say itself. Routers among what is left out: vLLM's
    are linears. What transformers takes for granted of DeepSeek-V3. No experts with a scale a tensor beside inputs
    with one a row."""
    model = moe(name, generator)
    assert not model.config.architectures
    made = quantized(kernel, model, granularity)
    kernel.quantization.save_quantized(made, tmp_path / "fp8")
    config = json.loads((tmp_path / "fp8" / "config.json").read_text())
    assert config["architectures"] == [type(model).__name__]
    routers = {name.replace(".experts", ".gate") for name in expert_modules(model)}
    if name == "mixtral":  # by both names: transformers looks for its own, engines for what is published
        routers |= {each.replace("mlp", "block_sparse_moe") for each in routers}
    settings = config["quantization_config"]
    left_out = settings["modules_to_not_convert" if granularity == "block" else "ignore"]
    assert routers and routers | {"lm_head"} == set(left_out)
    if name == "deepseek_v3":
        assert (config["topk_method"], config["scoring_func"]) == ("noaux_tc", "sigmoid")
    if granularity != "block":
        stored = checkpoints.stored(tmp_path / "fp8")
        scales = {name: value.shape for name, value in stored.items() if ".experts." in name and "scale" in name}
        assert scales and all(shape == (len(stored[name.replace("_scale", "")]), 1) for name, shape in scales.items())


def test_what_blocks_cannot_say(kernel, generator, tmp_path):
    """Gate and up have 64 rows each: one block holds both, which is no matter until they are written apart."""
    made = quantized(kernel, moe("qwen3_moe", generator, moe_intermediate_size=64), "block")
    with pytest.raises(ValueError, match=r"mlp\.experts: 64 is no multiple of 128: blocks hold rows of gate_proj and"):
        kernel.quantization.save_quantized(made, tmp_path / "fp8")
    assert list(tmp_path.iterdir()) == []


# --- the module ---


def drawn_module(kernel, generator, device, granularity: str):
    model = moe("qwen3_moe", generator, device=device)
    module = next(iter(expert_modules(quantized(kernel, model, granularity)).values()))
    return module, routed(generator, device, 8)


def test_an_expert_of_another_rank_is_left_out(kernel, device, generator):
    module, (x, index, weights) = drawn_module(kernel, generator, device, "channel")
    one = module(x, index[:, :1], weights[:, :1])
    index[:, 1] = 8
    assert same_bytes(module(x, index, weights), one)


def test_casts_and_states_leave_the_codes(kernel, device, generator):
    module, arguments = drawn_module(kernel, generator, device, "channel")
    wanted = module(*arguments)
    module.to(torch.bfloat16)
    assert module.gate_up_scale.dtype == torch.float32 and module.down_proj.dtype == FP8[0]
    assert same_bytes(module(*arguments), wanted)
    other, _ = drawn_module(kernel, generator, device, "block")
    with pytest.raises(RuntimeError, match="holds experts of torch.float8_e4m3fn, inputs by row; needs"):
        other.load_state_dict(module.state_dict())


# --- what stays ---


def test_unsupported_experts_stay_and_are_named(kernel, generator):
    model = moe("mixtral", generator, hidden_act="gelu")
    with pytest.warns(UserWarning, match=r"layers\.0\.mlp\.experts \(and 1 more\) .* their activation is GELU"):
        made = quantized(kernel, model, "channel")
    for name, module in expert_modules(made).items():
        own = model.get_submodule(name)
        assert type(module) is type(own) and same_bytes(module.down_proj, own.down_proj)
    assert any(isinstance(module, kernel.quantization.Fp8Linear) for module in made.modules())


def test_biases_through_the_interface(kernel, device, generator):
    """Added where transformers adds them; refused where it would not."""
    why_not = kernel.models.fp8.experts.why_not
    module = next(iter(expert_modules(moe("mixtral", generator, device=device)).values()))
    name = kernel.layers.register_experts()
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    assert why_not(module) is None
    for stack, size in (("gate_up_proj", 2 * SIZES["intermediate_size"]), ("down_proj", SIZES["hidden_size"])):
        bias = torch.randn(4, size, generator=generator).bfloat16().to(device)
        setattr(module, f"{stack}_bias", torch.nn.Parameter(bias))
    given = routed(generator, device, 4)
    with pytest.raises(ValueError, match="MixtralExperts: they have biases that their has_bias denies; another"):
        ALL_EXPERTS_FUNCTIONS[name](module, *given)
    module.has_bias = True
    module.config._experts_implementation = "grouped_mm"
    assert distance(ALL_EXPERTS_FUNCTIONS[name](module, *given), module(*given)) <= NEAR_MODULES


def test_transposed_weights_through_the_interface(kernel, generator):
    from transformers import GptOssConfig

    config = GptOssConfig(**(SIZES | dict(num_local_experts=4, num_experts_per_tok=2, head_dim=32)))
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.set_experts_implementation(kernel.layers.register_experts())
    with pytest.raises(ValueError, match="GptOssExperts: their weights are transposed, and each call would copy them"):
        model(input_ids=torch.zeros(1, 3, dtype=torch.long))


def test_experts_with_a_forward_of_their_own_stay(kernel, generator):
    """Llama 4's are transposed, and given sorted rows."""
    sizes = dict(intermediate_size=32, intermediate_size_mlp=48, num_local_experts=2, head_dim=16)
    config = Llama4TextConfig(**(SIZES | sizes | dict(hidden_size=64)))
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    for parameter in model.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator) / 8)
    with pytest.warns(
        UserWarning, match=r"experts \(and 1 more\) .* transformers' interface for experts does not reach"
    ):
        made = quantized(kernel, model, "channel")
    assert all(same_bytes(made.get_submodule(n).down_proj, m.down_proj) for n, m in expert_modules(model).items())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_none_change_nothing(kernel, generator, value):
    model = moe("mixtral", generator)
    model.model.layers[1].mlp.experts.down_proj[2, 3, 4] = value
    with pytest.raises(ValueError, match=r"layers\.1\.mlp\.experts\.down_proj holds NaN or infinity"):
        kernel.quantization.quantize(model, activations="dynamic")
    assert not any(isinstance(module, kernel.quantization.Fp8Linear) for module in model.modules())


def test_no_warning_of_numbers_that_stay(kernel, generator):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        quantized(kernel, moe("deepseek_v3", generator), "channel")
    assert not any("experts" in str(each.message) for each in found)


@pytest.mark.parametrize("activation", ["gelu_pytorch_tanh", "relu", "relu2"])
def test_another_activation_is_refused(kernel, generator, activation):
    """Of 16-bit experts and of transformers' FP8Experts, by name: SwiGLU would be computed."""
    name = kernel.layers.register_experts()
    model = moe("qwen3_moe", generator, hidden_act=activation)
    model.set_experts_implementation(name)
    with pytest.raises(ValueError, match="Qwen3MoeExperts: their activation is .*, and swiglu needs SiLU"):
        logits(model, tokens(generator, 1, 5))
    module = FP8Experts(model.config, block_size=(128, 128))
    given = routed(generator, "cpu", 4)
    with pytest.raises(ValueError, match="FP8Experts: their activation is .*, and swiglu needs SiLU"):
        ALL_FP8_EXPERTS_FUNCTIONS[name](module, *given)
