"""Real engines on MXFP4 and MXFP8 linears and experts: what they compute, by which inputs, on which operators."""

import pytest
import torch
from rocm_fp8_vllm import EXPERTS
from rocm_fp8_vllm.kernel import kernel

from problems import mx_checkpoints
from problems.comparisons import assert_mx_close
from problems.mx_checkpoints import FORMS
from tests.settings import full

from . import mx_mixtures
from .cases import CASES, text
from .conftest import assert_as_likely, decodes, generate, many_lengths, moved, served_by
from .settings import ON_CPU
from .steps import a_step, of_mx, step_is

# Weights are the same numbers in transformers, and inputs are rounded alike. It rounds to bfloat16 in other places: a
# byte's information moves by 0.03 to 0.1 bits, of the random gpt-oss by up to 0.2. Some codes of inputs move with it:
# in MXFP8 0.16 to 0.23 bits, in MXFP4 0.7 to 0.9. Another choice of experts moves the text's by 1.7; a gpt-oss without
# sinks is 0.47 off, without its limit 0.54.
SPREAD = {"16bit": 0.2, "gpt-oss": 0.35, "mxfp8": 0.4, "fp8": 0.4, "mxfp4": 1.1}
SAME = {"16bit": 0.93, "gpt-oss": 0.88, "mxfp8": 0.93, "fp8": 0.93, "mxfp4": 0.75}
# As of FP8's experts: two roundings to bfloat16, and of quantised inputs the few codes that the order of sums changes.
# By 16-bit inputs in the place of MXFP4 ones the distance is 0.14.
NEAR = 2.0**-7
RIGHT, RIGHT_W4A4 = 0.95, 0.8

SERVED = served_by(
    *(("Qwen3-MoE mxfp4", True), full(("Qwen3-MoE mxfp4", False))),
    *(full(("Qwen3-MoE mxfp4 W4A4", True)), full(("Qwen3-MoE mxfp4 quark", True))),
    *(("Qwen3-MoE mxfp4 quark W4A4", True), full(("Qwen3-MoE mxfp4 quark W4A4", False))),
    *(("gpt-oss", True), full(("gpt-oss", False)), ("byte gpt-oss", False)),
    *(full(("Qwen3 compressed-tensors, MXFP4A16", True)), ("Qwen3 compressed-tensors, MXFP4A16", False)),
    *(full(("Qwen3 compressed-tensors, MXFP4", True)), full(("Qwen3 compressed-tensors, W4A8, rows", True))),
    *(full(("Qwen3 quark, W4A8", False)), ("Qwen3 quark, MXFP8", True)),
    *(("Qwen3-MoE compressed-tensors, MXFP8", True), full(("Qwen3-MoE compressed-tensors, MXFP8", False))),
    *(full(("Qwen3-MoE compressed-tensors, MXFP8A16", True)), full(("Qwen3-MoE compressed-tensors, MXFP4", False))),
)
# Of Quark's vLLM refuses experts in MXFP8, and beside inputs in MXFP8.
MIXTURES = (
    *("Qwen3-MoE mxfp4", full("Qwen3-MoE mxfp4 W4A4"), "Qwen3-MoE mxfp4 W4A8"),
    *(full("Qwen3-MoE mxfp4 quark"), "Qwen3-MoE mxfp4 quark W4A4", "gpt-oss"),
    *("Qwen3-MoE compressed-tensors, MXFP8", "Qwen3-MoE compressed-tensors, MXFP8A16"),
)
OFTEN = ("compressed-tensors, MXFP4A16", "compressed-tensors, MXFP8", "quark, MXFP4", "quark, MXFP8A16")


def inputs_of(name: str) -> str:
    form = CASES[name].format
    return FORMS[form].inputs if form in FORMS else "16bit"


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


@SERVED
def test_a_text_has_the_likelihood_that_transformers_gives_it(served, reference):
    name, llm = served
    different, same = moved(llm, reference(name), text(8, 400))
    kind = name if name in SPREAD else inputs_of(name)
    assert_as_likely(different, SPREAD[kind])
    assert same >= SAME[kind]


@pytest.mark.parametrize("name", MIXTURES)
def test_a_mixture_computes_its_definition(name, engine, reference):
    """From the engine's own inputs: what was loaded, and how inputs are rounded. FP8 inputs beside MXFP4 stay in 16
    bits, as in vLLM where it has no kernel for them. Eager: a graph calls no Python."""
    llm, case, inputs = engine(name, enforce_eager=True), CASES[name], inputs_of(name)
    if case.format in FORMS:
        model, _ = mx_checkpoints.quantised(kernel, case.format, case.model(), case.experts_alone)
    else:
        model = reference(name)
    inputs = "16bit" if "W4A8" in name else inputs
    for layer in (0, 2):
        heard = listen(llm, layer)
        generate(llm, text(1, 100).tolist(), 1)
        given = [heard[each] for each in ("hidden_states", "topk_weights", "topk_ids")]
        expected = mx_mixtures.defined(kernel, inputs, model, layer, *given)
        assert len(expected) == 100
        assert (heard["output"].double() - expected).norm() <= NEAR * expected.norm()


@pytest.mark.parametrize("form", [form if form in OFTEN else full(form) for form in FORMS])
def test_linears_compute_their_definition(form, engine):
    """From the engine's own inputs: what was loaded, and how inputs are rounded, of each linear of two layers."""
    llm, name = engine(f"Qwen3 {form}", enforce_eager=True), "model.layers.{}.{}"
    model, _ = mx_checkpoints.quantised(kernel, form, CASES[f"Qwen3 {form}"].model())
    parts = {
        "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "self_attn.o_proj": ("self_attn.o_proj",),
        "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
        "mlp.down_proj": ("mlp.down_proj",),
    }
    heard = {}

    def hear(module, inputs, output) -> None:
        heard[module.prefix] = inputs[0].cpu().clone(), output[0].cpu().clone()

    def wrap(model: torch.nn.Module) -> None:
        for layer in (0, 2):
            for part in parts:
                model.get_submodule(name.format(layer, part)).register_forward_hook(hear)

    llm.apply_model(wrap)
    generate(llm, text(1, 100).tolist(), 1)
    assert len(heard) == 2 * len(parts)
    for linear, (x, out) in heard.items():
        layer, part = linear.split(".")[2], linear.split(".", 3)[3]
        weights = [model.get_submodule(name.format(layer, each)).weight.detach().double() for each in parts[part]]
        assert len(x) == 100
        assert_mx_close(out, mx_checkpoints.entering(kernel, FORMS[form].inputs, x), torch.cat(weights), None, linear)


@SERVED
def test_requests_of_many_lengths_at_once_decode_the_likeliest_tokens(served, reference):
    name, llm = served
    decodes(llm, reference(name), 32, RIGHT_W4A4 if inputs_of(name) == "mxfp4" else RIGHT, many_lengths()[:4])


@SERVED
def test_a_decode_step_launches_what_the_layers_need(served):
    """Nothing else is ours, as nothing else is quantised."""
    name, llm = served
    mixtures = 0 if name.startswith("Qwen3 ") else {"gpt-oss": 3, "byte gpt-oss": 4}.get(name, 7)
    linears = 0 if "gpt-oss" in name or CASES[name].experts_alone else 14 if mixtures else 28
    for requests in (1, 3):
        step_is(llm, of_mx(linears, mixtures, inputs_of(name)), requests=requests)


@pytest.mark.parametrize(("name", "step"), [("bfloat16", (28, 0)), full("Mixtral bfloat16", (14, 7))])
def test_weights_that_become_mxfp8_as_they_are_loaded(name, step, engine, monkeypatch):
    if not ON_CPU:
        monkeypatch.setenv(EXPERTS, "1")
    llm = engine(name, enforce_eager=True, quantization="mxfp8")
    model = mx_checkpoints.computing(kernel, "compressed-tensors, MXFP8", CASES[name].model())
    assert_as_likely(moved(llm, model, text(8, 400))[0], SPREAD["mxfp8"])
    step_is(llm, of_mx(*step, "mxfp8"))


@pytest.mark.skipif(not ON_CPU, reason="on a GPU vLLM's own serve")
def test_what_nothing_serves_is_one_line(engine):
    reason = "MXFP4 experts: vLLM has none for this platform, and ours: fused_moe has no torch.float32"
    with pytest.raises(NotImplementedError, match=reason):
        engine("Qwen3-MoE mxfp4", enforce_eager=True, dtype="float32")
    for bits in (4, 8):
        with pytest.raises(ValueError, match=f"Mxfp{bits}GemmLinear: has no torch.float32"):
            engine(f"Qwen3 compressed-tensors, MXFP{bits}A16", enforce_eager=True, dtype="float32")


@pytest.mark.skipif(not (ON_CPU and torch.cpu._is_amx_tile_supported()), reason="vLLM has its own by AMX alone")
def test_the_users_switch_leaves_them_to_vllm(engine, monkeypatch):
    monkeypatch.setenv(EXPERTS, "0")
    assert not a_step(engine("gpt-oss", enforce_eager=True, max_num_seqs=7))
