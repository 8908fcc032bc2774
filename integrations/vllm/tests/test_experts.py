"""Real engines on mixtures of experts: what they compute, on which operators, with one worker and two."""

import math
from types import SimpleNamespace

import pytest
import torch

from tests.settings import full

from .cases import CASES, text
from .conftest import RIGHT_OF_EXPERTS, assert_as_likely, decodes, moved
from .settings import ON_CPU, of_cpus_alone
from .steps import a_step, of_latent, of_mixtures, step_is

# How an engine's bytes differ from transformers'. As of dense models (test_engine.py) a changed rounding changes codes,
# and here, where two experts are nearly as good, the choice of one: a byte's information moves by 0.15 to 0.25 bits.
# The mean of n bytes moves by a root of n less: four of it. Other experts than those chosen would move a byte's by 1.7.
# On a GPU vLLM brings gates and ups, and parts of joined linears, to one scale, where tensors have scales.
SPREAD, BYTE, MORE, SAME = 0.4, 0.24, 0 if ON_CPU else 0.012, 0.93
# Of a random model no token is much likelier than others, and rounding decides more often which one is first.
SAME_OF_RANDOM, RIGHT_OF_RANDOM = 0.8, 0.9
LAYERS = 7


@pytest.fixture(scope="module")
def lines():
    """What is logged of models that were fused. An engine that starts sets vLLM's loggers up anew, by its own level."""
    from rocm_fp8_vllm import fusion

    found, log = [], fusion._log
    fusion._log = SimpleNamespace(info=lambda text, *values: found.append(text % values))
    yield found
    fusion._log = log


@pytest.fixture(
    scope="module",
    params=[
        *(("Qwen3-MoE static", True), full(("Mixtral static", False))),
        *(full(("Qwen3-MoE channels", False)), ("Mixtral dynamic", True)),
        *(("Qwen3-MoE blocks", True), full(("Mixtral quark", True))),
        *(full(("DeepSeek-V3 blocks", True)), ("DeepSeek-V3 blocks", False)),
        *(full(("DeepSeek-V3 ue8m0", True)), full(("Qwen3-MoE e8m0", False))),
    ],
    ids=lambda each: f"{each[0]}, {'eager' if each[1] else 'compiled'}",
)
def served(request, engine, lines):
    """(case's name, whether it is compiled, engine, what was logged as it was made)"""
    name, eager = request.param
    lines.clear()
    return name, not eager, engine(name, enforce_eager=eager), list(lines)


def rounded_once(model: torch.nn.Module) -> None:
    """The norm before latent keys and values as torch.compile makes it of vLLM's: its quotient is not rounded before
    it is multiplied. That alone moves a byte of the random DeepSeek by 0.1 bits."""
    for layer in model.model.layers:
        norm = layer.self_attn.kv_a_layernorm

        def forward(x: torch.Tensor, norm=norm) -> torch.Tensor:
            wide = x.float()
            wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + norm.variance_epsilon)
            return (wide * norm.weight.float()).to(x.dtype)

        norm.forward = forward


def test_a_text_has_the_likelihood_that_transformers_gives_it(served, reference):
    name, compiled, llm, _ = served
    model, random = reference(name), name.startswith("DeepSeek")
    if random and compiled:
        rounded_once(model)
    different, same = moved(llm, model, text(8, 400))
    assert different.square().mean().sqrt() <= SPREAD
    assert abs(different.mean()) <= 4 * BYTE / math.sqrt(different.numel()) + MORE
    assert same >= (SAME_OF_RANDOM if random else SAME)


def test_requests_of_many_lengths_at_once_decode_the_likeliest_tokens(served, reference):
    name, _, llm, _ = served
    decodes(llm, reference(name), 32, RIGHT_OF_RANDOM if name.startswith("DeepSeek") else RIGHT_OF_EXPERTS)


def of_a_llama(gemm: str, dynamic: str) -> dict[str, int]:
    """Of attention with QKV and O, and of mixtures between norms: the one behind attention is vLLM's."""
    norms = {f"rms_norm{dynamic}_fp8": 1, f"add_rms_norm{dynamic}_fp8": LAYERS - 1}
    # Before O, and in fused_moe.
    return of_mixtures(LAYERS) | norms | {gemm: 2 * LAYERS, "quantize_fp8": 2 * LAYERS}


# The first of three layers is dense; two have shared experts. Latent attention has 4 linears, of which vLLM takes
# kv_b_proj apart for decode steps, and a norm between two of them.
OF_DEEPSEEK = (
    of_mixtures(2)
    | of_latent(3)
    | {
        "block_scaled_gemm": 3 * 3 + 3 * 2,
        "quantize_fp8": 3 + 2 + 2,  # before O; in fused_moe; before shared experts
        "rms_norm_dynamic_fp8": 1 + 3,
        "add_rms_norm_dynamic_fp8": 2 + 1,
        "swiglu_dynamic_fp8": 3,
    }
)


def test_a_decode_step_launches_what_the_layers_need(served):
    name, _, llm, _ = served
    blocks, static = "blocks" in CASES[name].format, "static" in name or "quark" in name
    if name.startswith("DeepSeek"):
        expected = OF_DEEPSEEK
    else:
        expected = of_a_llama("block_scaled_gemm" if blocks else "skinny_gemm", "" if static else "_dynamic")
    for requests in (1, 3):
        step_is(llm, expected, requests=requests)


def test_one_line_says_what_was_found(served):
    name, _, _, logged = served
    linears, layers, norms = (18, 2, 10) if name.startswith("DeepSeek") else (14, 7, 7)
    found = f"{linears} FP8 linears, {layers} mixtures of FP8 experts, "
    assert logged == [f"rocm-fp8-kernels: {found}{norms} norms and activations that quantise for them"]


@pytest.mark.parametrize("to", [full("fp8_per_tensor"), "fp8_per_channel", full("fp8_per_block")])
def test_experts_are_quantised_as_they_are_loaded(to, engine, checkpoint):
    """A bfloat16 checkpoint. By FP8 a byte moves by 0.2 bits."""
    from transformers import AutoModelForCausalLM

    llm = engine("Mixtral bfloat16", enforce_eager=True, quantization=to)
    model = AutoModelForCausalLM.from_pretrained(checkpoint("Mixtral bfloat16"), dtype=torch.bfloat16)
    different, _ = moved(llm, model, text(4, 400))
    assert different.square().mean().sqrt() <= SPREAD
    step = a_step(llm)
    assert {name: step[name] for name in of_mixtures(0)} == of_mixtures(LAYERS)


@pytest.mark.parametrize(
    "name",
    # On a GPU vLLM refuses an n_group that is null.
    ["MiniMax-M2 channels", pytest.param("DeepSeek-V2 blocks", marks=of_cpus_alone)],
)
def test_routers_of_other_models(name, engine, checkpoint):
    """A sigmoid and a bias without groups, which vLLM's router refuses; without its bias a byte moves by a bit.
    And an n_group that is null. kernel.quantization has no row for these models: transformers computes in bfloat16."""
    llm = engine(name, enforce_eager=True)
    different, same = moved(llm, CASES[name].model(), text(4, 400))
    assert_as_likely(different, SPREAD)
    assert same >= (SAME_OF_RANDOM if name.startswith("DeepSeek") else SAME)
    step = a_step(llm)
    assert {each: step[each] for each in of_mixtures(0)} == of_mixtures(2 if name.startswith("DeepSeek") else LAYERS)
