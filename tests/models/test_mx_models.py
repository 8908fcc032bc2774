"""Models with MXFP4 experts and MX linears: quantised, stored, read from others' checkpoints, against transformers' own
modules on the numbers that the codes stand for."""

import copy
import importlib
import warnings
from functools import partial

import pytest
import torch
from transformers import AutoModelForCausalLM, GptOssConfig

from problems import mx
from problems.buffers import same_bytes
from problems.checkpoints import assert_same_state, copied_state
from problems.mx import BLOCK
from problems.tiny_llama import NEAR, distance, drawn, tokens
from problems.tiny_moe import MODELS, NEAR_MODULES, SIZES, expert_modules, logits_with_one_routing, moe, routed

MARKS = [
    pytest.mark.usefixtures("without_gradients"),
    pytest.mark.filterwarnings("ignore:.*has no decoder layer that can be fused"),
]
pytestmark = MARKS
ALL = ("gpt_oss", *MODELS)


def model_of(name: str, generator, device="cpu"):
    if name != "gpt_oss":
        return moe(name, generator, device=device)
    sizes = dict(num_local_experts=4, num_experts_per_tok=2, head_dim=32, intermediate_size=96)
    return drawn(GptOssConfig(**(SIZES | sizes)), generator, device=device)


def quantised(kernel, model: torch.nn.Module, **options) -> torch.nn.Module:
    options = dict(granularity=None) | options
    return kernel.quantization.quantize(copy.deepcopy(model), experts="mxfp4", **options)


def numbers(codes: torch.Tensor, exponents: torch.Tensor) -> torch.Tensor:
    """What MXFP4 codes [..., K / 2] or MXFP8 ones [..., K] stand for, by the formats' definition: float64, on a CPU."""
    return mx.values(codes.cpu(), exponents.view(torch.float8_e8m0fnu).cpu())


def by_definition(model: torch.nn.Module, made: torch.nn.Module) -> torch.nn.Module:
    """`model` with transformers' experts on the numbers that `made` holds."""
    model = copy.deepcopy(model)
    for name, module in expert_modules(model).items():
        ours = made.get_submodule(name)
        for stack, scale in (("gate_up_proj", ours.gate_up_scale), ("down_proj", ours.down_scale)):
            values = numbers(getattr(ours, stack), scale)
            own = getattr(module, stack)
            own.copy_(values.transpose(1, 2) if getattr(module, "is_transposed", False) else values)
    model.set_experts_implementation("eager")
    return model


def assert_as_reference(kernel, model: torch.nn.Module, generator, device) -> None:
    """Of each module on MX weights. Codes of 4 bits have steps of a half of their size, four times FP8's."""
    for module in model.modules():
        kind = type(module).__name__
        if kind == "MxLinear":
            given = (torch.randn(7, module.in_features, generator=generator).bfloat16().to(device),)
        elif kind == "Fp8Experts":
            given = routed(generator, device, 4)
        else:
            continue
        with kernel.by_reference():
            wanted = module(*given)
        assert distance(module(*given), wanted) <= NEAR_MODULES * (4 if module.inputs == "mxfp4" else 1)


# --- quantised here ---


@pytest.mark.parametrize("name", ALL)
def test_a_quantised_model_computes_what_it_holds(kernel, device, generator, name):
    model, ids = model_of(name, generator, device), tokens(generator, 2, 11, device)
    made = quantised(kernel, model)

    def counts() -> list[int]:
        return [kernel.call_counts()[name] for name in ("grouped_gemm_gate", "grouped_gemm")]

    before = counts()
    wanted, got = logits_with_one_routing([by_definition(model, made), made], ids)
    assert counts() == [count + len(expert_modules(model)) for count in before]
    assert distance(got, wanted) <= NEAR
    wanted, got = logits_with_one_routing([model, made], ids)
    assert 0.01 < distance(got, wanted) <= 0.25  # it is another model, and not far


def normalized(kernel, weight: torch.Tensor, eps: float, x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    kernel.rms_norm_dynamic_fp8(x, weight, eps, scaling="row", normalized_out=out)
    return out


@pytest.mark.parametrize("inputs", ["fp8", "mxfp8", "mxfp4"])
@pytest.mark.parametrize("name", ["gpt_oss", "qwen3_moe"])
def test_quantised_inputs(kernel, device, generator, name, inputs):
    """The kernels compute what the reference does; and the norms hand on what the experts would compute themselves."""
    model, ids = model_of(name, generator, device), tokens(generator, 2, 11, device)
    made = quantised(kernel, model)
    for module in expert_modules(made).values():
        module.inputs = inputs
    plain = copy.deepcopy(made)
    for layer in plain.model.layers:
        layer.mlp.register_forward_pre_hook(lambda *_: None)  # watched: norms give 16 bits
        if name == "qwen3_moe":  # fused. torch's norm adds in another order, and rounds some numbers elsewhere
            norm = layer.post_attention_layernorm
            norm.forward = partial(normalized, kernel, norm.weight, norm.variance_epsilon)
    assert_as_reference(kernel, made, generator, device)
    wanted, got, apart = logits_with_one_routing([by_definition(model, made), made, plain], ids)
    assert same_bytes(got, apart)
    assert 0 < distance(got, wanted) <= {"fp8": 0.125, "mxfp8": 0.125, "mxfp4": 0.5}[inputs]


def test_linears_in_fp8_beside_experts_in_mxfp4(kernel, device, formats, generator):
    model, ids = model_of("qwen3_moe", generator, device), tokens(generator, 2, 11, device)
    made = quantised(kernel, model, granularity="channel", activations="dynamic", fp8_dtype=formats[0])
    alone = kernel.quantization.quantize(copy.deepcopy(model), activations="dynamic", fp8_dtype=formats[0])
    state, other = made.state_dict(), alone.state_dict()
    linears = [key for key in other if "_proj.weight" in key and "experts" not in key]
    assert linears and all(same_bytes(state[key], other[key]) for key in linears)
    assert {module.format for module in expert_modules(made).values()} == {"mxfp4"}
    wanted, got = logits_with_one_routing([model, made], ids)
    assert distance(got, wanted) <= 0.25


def test_experts_of_gpt_oss_in_fp8(kernel, device, formats, generator):
    """Transposed, with biases, interleaved, with a gate of their own."""
    model, ids = model_of("gpt_oss", generator, device), tokens(generator, 2, 11, device)
    made = kernel.quantization.quantize(copy.deepcopy(model), activations="dynamic", fp8_dtype=formats[0])
    defined = copy.deepcopy(model)
    defined.set_experts_implementation("eager")
    for name, module in expert_modules(made).items():
        assert module.format == "fp8" and module.gate["gate"] == "oai" and module.gate["interleaved"]
        for stack, scale in (("gate_up_proj", module.gate_up_scale), ("down_proj", module.down_scale)):
            wide = getattr(module, stack).float() * scale
            getattr(defined.get_submodule(name), stack).copy_(wide.transpose(1, 2))
    for name, module in expert_modules(defined).items():
        given = routed(generator, device, 4, 9)
        got = made.get_submodule(name)(*given)
        assert distance(got, module(*given)) <= 2.0**-4  # the inputs are rounded to FP8
    wanted, got = logits_with_one_routing([model, made], ids)
    assert distance(got, wanted) <= 0.25


@pytest.mark.parametrize("name", ALL)
def test_the_numbers_of_mxfp4_come_back(kernel, device, generator, name):
    """Quantised again, what codes stand for stays: codes may differ where a block's largest number became smaller."""
    model = model_of(name, generator, device)
    made = quantised(kernel, model)
    again = quantised(kernel, by_definition(model, made))
    for each, module in expert_modules(made).items():
        other = again.get_submodule(each)
        assert torch.equal(
            numbers(module.gate_up_proj, module.gate_up_scale), numbers(other.gate_up_proj, other.gate_up_scale)
        )
        assert torch.equal(numbers(module.down_proj, module.down_scale), numbers(other.down_proj, other.down_scale))


@pytest.mark.parametrize(
    "options, why",
    [
        (dict(experts="mxfp6"), "experts: 'mxfp6'; needs 'mxfp4' or None"),
        (dict(granularity=None, experts=None), "granularity: None; needs one of tensor, channel, block"),
        (dict(granularity=None, inputs=[]), "inputs: dynamic scales take none"),
        (dict(granularity=None, fp8_dtype=torch.float8_e4m3fn), "fp8_dtype: torch.float8_e4m3fn; granularity None"),
        (dict(granularity="row"), "granularity: 'row'; needs one of"),
    ],
)
def test_bad_options(kernel, generator, options, why):
    model = model_of("mixtral", generator)
    before = copied_state(model)
    with pytest.raises(ValueError, match=why):
        kernel.quantization.quantize(model, **(dict(experts="mxfp4") | options))
    assert_same_state(model, before)


def test_models_that_cannot_have_mxfp4(kernel, device, generator):
    with pytest.raises(ValueError, match=r"experts\.down_proj: 48 inputs; MXFP4 needs a multiple of 32"):
        quantised(kernel, moe("mixtral", generator, intermediate_size=48))
    with pytest.raises(ValueError, match="MixtralForCausalLM has none for 'mxfp4': their activation is GELU"):
        quantised(kernel, moe("mixtral", generator, hidden_act="gelu"))
    made = quantised(kernel, moe("mixtral", generator, device=device))
    with pytest.raises(ValueError, match="quantised already"):
        quantised(kernel, made)


def test_a_state_dictionary_says_what_it_holds(kernel, device, generator):
    model = model_of("qwen3_moe", generator, device)
    made, other = quantised(kernel, model), quantised(kernel, model)
    with pytest.raises(RuntimeError, match=r"holds experts of mxfp4, inputs by 16bit; needs"):
        kernel.quantization.quantize(copy.deepcopy(model), activations="dynamic").load_state_dict(made.state_dict())
    other.load_state_dict(made.to(torch.float16).state_dict())
    module = next(iter(expert_modules(made).values()))
    assert module.gate_up_scale.dtype == torch.float8_e8m0fnu and module.gate_up_proj.dtype == torch.uint8


@pytest.mark.parametrize("name", ["gpt_oss", "deepseek_v3"])
def test_shares_of_ranks_add_up(kernel, device, generator, name):
    """With interleaved rows and biases, and without. The second bias counts once."""
    model = model_of(name, generator, device)
    for module in expert_modules(quantised(kernel, model)).values():
        ranks, given = module.intermediate_size // BLOCK, routed(generator, device, 4)
        total = 0.0
        for rank in range(ranks):
            share = copy.deepcopy(module)
            importlib.import_module(f"{kernel.quantization.__name__}.parallel").keep_inner_of_experts(
                share, rank, ranks
            )
            assert share.intermediate_size == BLOCK and share.gate_up_proj.is_contiguous()
            total = total + share(*given).float()
        assert ranks > 1 and distance(total, module(*given)) <= NEAR_MODULES


# --- gates ---

GATES = {
    "gpt_oss": ("GptOss", dict(alpha=1.5, limit=6.0), dict(gate="oai", alpha=1.5, limit=6.0, interleaved=True)),
    "minimax_m3_vl": (
        "MiniMaxM3VL",
        dict(swiglu_alpha=1.702, swiglu_limit=7.0, limit=7.0),
        dict(gate="oai", alpha=1.702, limit=7.0, interleaved=False),
    ),
    "deepseek_v4": ("DeepseekV4", dict(limit=10.0), dict(gate="silu", limit=10.0, interleaved=False)),
    "hy_v4": ("HYV4", dict(swiglu_limit=10.0), dict(gate="silu", limit=10.0, interleaved=False)),
    "step3p7": ("Step3p7", dict(limit=5.0), None),  # cut behind SiLU
}


@pytest.mark.parametrize("name", GATES)
def test_gates_are_found_by_their_numbers(kernel, name):
    modeling = pytest.importorskip(f"transformers.models.{name}.modeling_{name}", reason="transformers lacks it")
    prefix, numbers, wanted = GATES[name]
    kind = next(value for key, value in vars(modeling).items() if key.startswith(prefix) and key.endswith("Experts"))
    module = kind.__new__(kind)
    torch.nn.Module.__init__(module)
    vars(module).update(numbers, is_concatenated=True)
    module.act_fn = torch.nn.SiLU()
    module.gate_up_proj = torch.nn.Parameter(torch.zeros(1, 4, 2))
    found = kernel.layers.experts.gate_of(module)
    assert found == wanted
    assert (kernel.layers.experts.why_not(module) is None) == (wanted is not None)


# --- stored ---


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("granularity", [None, "channel"])
def test_a_stored_model_comes_back(kernel, device, generator, tmp_path, name, granularity):
    if name == "gpt_oss" and granularity is not None:
        made = quantised(kernel, model_of(name, generator, device), granularity=granularity, activations="dynamic")
        with pytest.raises(ValueError, match="checkpoints of gpt-oss have experts in MXFP4 alone"):
            kernel.quantization.save_quantized(made, tmp_path / "made")
        return
    model, ids = model_of(name, generator, device), tokens(generator, 2, 11, device)
    options = {} if granularity is None else dict(activations="dynamic", fp8_dtype=torch.float8_e4m3fn)
    made = quantised(kernel, model, granularity=granularity, **options)
    kernel.quantization.save_quantized(made, tmp_path / "made")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        loaded = kernel.quantization.load_quantized(tmp_path / "made", device)
    state, other = made.state_dict(), loaded.state_dict()
    assert state.keys() == other.keys()
    on_device = {key: value for key, value in other.items() if value.dtype != torch.float8_e4m3fnuz}
    assert all(same_bytes(value, state[key]) for key, value in on_device.items() if "_scale" not in key)
    assert [module.kind() for module in expert_modules(made).values()] == [
        module.kind() for module in expert_modules(loaded).values()
    ]
    wanted, got = logits_with_one_routing([made, loaded], ids)
    assert distance(got, wanted) <= NEAR
    # transformers' reading of the same files.
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "made", dtype=torch.bfloat16).to(device)
    if granularity is None:
        wanted, got = logits_with_one_routing([theirs, loaded], ids)
        assert distance(got, wanted) <= NEAR
        for each, module in expert_modules(loaded).items():
            if name == "gpt_oss":
                values = numbers(module.gate_up_proj, module.gate_up_scale).transpose(1, 2)
                assert torch.equal(theirs.get_submodule(each).gate_up_proj.double().cpu(), values)


def test_modules_agree_with_one_another(kernel, device, generator):
    """One module of experts in each format, of one weight: the finer the codes, the nearer."""
    model = model_of("mixtral", generator, device)
    name, own = next(iter(expert_modules(model).items()))
    given, made = routed(generator, device, 4, 33), quantised(kernel, model)
    defined = by_definition(model, made).get_submodule(name)
    got = made.get_submodule(name)(*given)
    assert distance(got, defined(*given)) <= NEAR_MODULES
    assert NEAR_MODULES < distance(got, own(*given)) < 0.25
