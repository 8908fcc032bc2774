"""Real engines on mixtures of MXFP4 experts: what they compute, by which inputs, on which operators."""

import pytest
import torch
from rocm_fp8_vllm import EXPERTS
from rocm_fp8_vllm.kernel import kernel

from tests.settings import full

from . import mx_mixtures
from .conftest import CASES, by_reference, generate, likely, teacher_forced, text
from .settings import ON_CPU
from .steps import a_step, of_mx_mixtures, step_is

# Weights are the same numbers in transformers, which rounds to bfloat16 in other places: a byte's information moves by
# 0.06 to 0.1 bits, of the random gpt-oss by up to 0.2, and with inputs in MXFP4 by 0.7. Another choice of experts moves
# the text's by 1.7; a gpt-oss without sinks is 0.47 off, without its limit 0.54.
SPREAD, SPREAD_GPT_OSS, SPREAD_W4A4 = 0.2, 0.35, 1.1
SAME, SAME_GPT_OSS, SAME_W4A4 = 0.93, 0.88, 0.75
# As of FP8's experts: two roundings to bfloat16, and of MXFP4 inputs the few codes that the order of sums changes. By
# 16-bit inputs in the place of MXFP4 ones the distance is 0.14.
NEAR = 2.0**-7
RIGHT, RIGHT_W4A4 = 0.95, 0.8


@pytest.fixture(
    scope="module",
    params=[
        *(("Qwen3-MoE mxfp4", True), full(("Qwen3-MoE mxfp4", False))),
        *(("Qwen3-MoE mxfp4 W4A4", True), full(("Qwen3-MoE mxfp4 quark", True))),
        *(("Qwen3-MoE mxfp4 quark W4A4", True), full(("Qwen3-MoE mxfp4 quark W4A4", False))),
        *(("gpt-oss", True), ("gpt-oss", False)),
    ],
    ids=lambda each: f"{each[0]}, {'eager' if each[1] else 'compiled'}",
)
def served(request, engine):
    """(case's name, engine)"""
    name, eager = request.param
    return name, engine(name, enforce_eager=eager)


def listen(llm, layer: int) -> dict[str, torch.Tensor]:
    """Will hold what a mixture's experts were last given, and what they wrote: the engine is of this process."""
    heard = {}

    def wrap(model: torch.nn.Module) -> None:
        experts = model.model.layers[layer].mlp.experts.routed_experts.quant_method.moe_kernel.fused_experts
        apply = experts.apply

        def listening(**given) -> None:
            apply(**given)
            names = ("hidden_states", "topk_weights", "topk_ids", "output")
            heard.update({name: given[name].cpu().clone() for name in names})

        experts.apply = listening

    llm.apply_model(wrap)
    return heard


def test_a_text_has_the_likelihood_that_transformers_gives_it(served, reference):
    name, llm = served
    ids = text(8, 400)
    best, bits = teacher_forced(llm, ids)
    expected, expected_bits = by_reference(reference(name), ids)
    spread, same = SPREAD, SAME
    if name == "gpt-oss":
        spread, same = SPREAD_GPT_OSS, SAME_GPT_OSS
    elif name.endswith("W4A4"):
        spread, same = SPREAD_W4A4, SAME_W4A4
    assert (bits - expected_bits).square().mean().sqrt() <= spread
    # Four deviations of a mean of so many bytes.
    assert abs((bits - expected_bits).mean()) <= 4 * spread / bits.numel() ** 0.5
    assert (best == expected).float().mean() >= same


@pytest.mark.parametrize("name", [each for each in CASES if "mxfp4" in each and "changed" not in each] + ["gpt-oss"])
def test_a_mixture_computes_its_definition(name, engine, reference):
    """From the engine's own inputs: what was loaded, and how inputs are rounded. FP8 inputs stay in 16 bits, as in vLLM
    where it has no kernel for them. Eager: a graph calls no Python."""
    llm, model, form = engine(name, enforce_eager=True), reference(name), CASES[name].format
    for layer in (0, 2):
        heard = listen(llm, layer)
        generate(llm, text(1, 100).tolist(), 1)
        given = [heard[each] for each in ("hidden_states", "topk_weights", "topk_ids")]
        expected = mx_mixtures.defined(kernel, form, model, layer, *given)
        assert len(expected) == 100
        assert (heard["output"].double() - expected).norm() <= NEAR * expected.norm()


def test_requests_of_many_lengths_at_once_decode_the_likeliest_tokens(served, reference):
    name, llm = served
    code = text(1, 2048)[0].tolist()
    prompts = [code[:300], code[500:501], code[600:640], code[700:733]]
    right = []
    for prompt, tokens in zip(prompts, generate(llm, prompts, 32)):
        assert len(tokens) == 32
        right += likely(reference(name), prompt, tokens)
    assert sum(right) / len(right) >= (RIGHT_W4A4 if name.endswith("W4A4") else RIGHT)


def test_a_decode_step_launches_what_the_layers_need(served):
    """Nothing else is ours, as nothing else is quantised."""
    name, llm = served
    for requests in (1, 3):
        step_is(llm, of_mx_mixtures(3 if name == "gpt-oss" else 7, name.endswith("W4A4")), requests=requests)


@pytest.mark.parametrize("name", ["Qwen3-MoE mxfp4", full("Qwen3-MoE mxfp4 quark W4A4"), "gpt-oss"])
def test_weights_that_are_made_up_are_served(name, engine):
    llm = engine(name, enforce_eager=True, load_format="dummy")
    step = a_step(llm)
    assert step["grouped_gemm"] == 2 * step["moe_combine"] > 0


@pytest.mark.skipif(not ON_CPU, reason="on a GPU vLLM's own serve")
def test_what_nothing_serves_is_one_line(engine):
    reason = "MXFP4 experts: vLLM has none for this platform, and ours: fused_moe has no torch.float32"
    with pytest.raises(NotImplementedError, match=reason):
        engine("Qwen3-MoE mxfp4", enforce_eager=True, dtype="float32")


@pytest.mark.skipif(not (ON_CPU and torch.cpu._is_amx_tile_supported()), reason="vLLM has its own by AMX alone")
def test_the_users_switch_leaves_them_to_vllm(engine, monkeypatch):
    monkeypatch.setenv(EXPERTS, "0")
    assert not a_step(engine("gpt-oss", enforce_eager=True, max_num_seqs=7))
