"""Decoder layers with a mixture of experts, fused: one norm for router and experts, moe_route, shared experts within
fused_moe's sum."""

import contextlib
import copy

import pytest
import torch

from problems.buffers import same_bytes
from problems.tiny_llama import NEAR, distance, kernelized, logits, on_reference, tokens
from problems.tiny_moe import MODELS, expert_modules, logits_with_one_routing, moe

pytestmark = pytest.mark.usefixtures("without_gradients")

GRANULARITIES = ("tensor", "channel", "block")
every_model = pytest.mark.parametrize("name", MODELS)


@pytest.fixture
def made(kernel, device, e4m3fn, generator):
    """made(name, granularity) -> (the quantised model on the reference, a copy on the kernels, token ids)."""

    def make(name: str, granularity: str = "block", **changes):
        model = moe(name, generator, device=device, **changes)
        kernel.quantization.quantize(model, activations="dynamic", granularity=granularity)
        fast = kernelized(kernel, copy.deepcopy(model))
        return on_reference(kernel, model), fast, tokens(generator, 2, 11, device)

    return make


@every_model
def test_a_router_is_transformers(kernel, made, name):
    """Logits byte for byte, the same experts, and weights but for the exponential's last digits."""
    reference, fast, ids = made(name)
    x = fast.model.embed_tokens(ids)
    for context, model in ((kernel.by_reference, reference), (contextlib.nullcontext, fast)):
        for name in expert_modules(model):
            gate = model.get_submodule(name.replace(".experts", ".gate"))
            with context():
                got = gate(x)
            own = type(gate).__bases__[1].forward(gate, x)
            assert same_bytes(got[0], own[0]) and got[1].dtype == own[1].dtype
            # By their logits: of equal ones transformers takes any.
            chosen, wanted = (each[0].gather(1, each[2].long()).sort(-1).values for each in (got, own))
            assert torch.equal(chosen, wanted)
            # A rounded weight may be the next one.
            allowed = 2.0**-7 if got[1].dtype == torch.bfloat16 else 1e-5
            torch.testing.assert_close(got[1].sort(-1).values, own[1].sort(-1).values, rtol=allowed, atol=0)


@pytest.mark.parametrize("granularity", GRANULARITIES)
@every_model
def test_the_norm_quantises_for_experts(kernel, made, name, granularity):
    """Of a layer of experts: one norm, no operator that quantises the experts' input."""
    _, fast, ids = made(name, granularity)
    before = kernel.call_counts()
    logits(fast, ids)
    calls = {operator: count - before[operator] for operator, count in kernel.call_counts().items()}
    layers, experts = len(fast.model.layers), len(expert_modules(fast))
    latent = layers if name == "deepseek_v3" else 0
    assert calls["add_rms_norm_dynamic_fp8"] == 2 * layers - 1
    assert calls["rms_norm_dynamic_fp8"] == 1 + latent  # q_a's norm
    assert calls["quantize_fp8"] == layers + latent  # O's input, and kv_b's
    assert calls["grouped_gemm_swiglu_fp8"] == calls["moe_route"] == experts


@every_model
def test_scales_in_columns_change_nothing(kernel, made, monkeypatch, name):
    """Linears ask for them on NVIDIA's GPUs; experts keep rows, and shared ones take what the norm made for experts."""
    _, fast, ids = made(name)
    (linear,) = {type(module) for module in fast.modules() if type(module).__name__ == "Fp8Linear"}
    asked = linear.input_scaling

    def run(columns: bool) -> tuple[torch.Tensor, dict[str, int]]:
        monkeypatch.setattr(linear, "input_scaling", lambda self: asked(self) | dict(column_major_scales=columns))
        before = kernel.call_counts()
        result = logits(fast, ids)
        return result, {operator: count - before[operator] for operator, count in kernel.call_counts().items()}

    (rows, of_rows), (columns, of_columns) = run(False), run(True)
    assert same_bytes(rows, columns) and of_rows == of_columns


@pytest.mark.parametrize("part", ["post_attention_layernorm", "mlp.experts", "mlp.shared_experts", "mlp.gate", "mlp"])
@pytest.mark.parametrize("granularity", GRANULARITIES)
@every_model
def test_a_hook_changes_nothing(made, name, granularity, part):
    """Whoever watches sees what transformers gives: then modules are called one by one."""
    _, fast, ids = made(name, granularity)
    layer = fast.model.layers[1]  # the last; DeepSeek's first has no experts
    if part == "mlp.shared_experts" and name != "deepseek_v3":
        part = "mlp.experts"
    wanted, seen = logits(fast, ids), []
    layer.get_submodule(part).register_forward_pre_hook(lambda module, given: seen.append(given[0].clone()))
    got = logits(fast, ids)
    assert len(seen) == 1 and seen[0].dtype == torch.bfloat16 and seen[0].shape[-1] == 128
    if name == "deepseek_v3" and part == "mlp.experts":  # the sum with shared experts is rounded once more
        assert distance(got, wanted) <= NEAR
    else:
        assert same_bytes(got, wanted)


@every_model
def test_router_logits_are_recorded(made, name):
    if name == "deepseek_v3" and not hasattr(made(name)[0](made(name)[2]), "router_logits"):
        return  # transformers before 5.18 records none
    reference, fast, ids = made(name)
    results = [model(input_ids=ids, use_cache=False, output_router_logits=True) for model in (reference, fast)]
    for result in results:
        assert len(result.router_logits) == len(expert_modules(fast))
        assert all(each.shape == (22, 8 if name != "mixtral" else 4) for each in result.router_logits)
    first, second = (result.router_logits[0] for result in results)
    assert distance(second, first) <= NEAR


@every_model
def test_experts_that_stay_leave_the_layer_as_it_was(kernel, device, generator, name):
    """Only what is quantised as a whole is fused."""
    model, ids = moe(name, generator, device=device, hidden_act="gelu"), tokens(generator, 2, 11, device)
    wanted = copy.deepcopy(model)
    with pytest.warns(UserWarning, match="their activation is GELU"):
        kernel.quantization.quantize(model, activations="dynamic", granularity="channel")
    layer = model.model.layers[1]
    assert type(layer.mlp) is type(wanted.model.layers[1].mlp)
    assert type(layer.self_attn).__name__.startswith("Fp8")
    want, got = logits_with_one_routing([wanted, model], ids)
    assert 0 < distance(got, want) <= 0.25
