"""Real engines: what they compute, and on which operators."""

import math

from tests.settings import full

from .cases import CASES, text
from .conftest import decodes, moved, served_by
from .settings import ON_CPU, OUR_INT8
from .steps import step_is

# The likeliest token may change where two are nearly as likely: vLLM's attention adds in another order, which changes
# some codes. A byte's information then moves by 0.15 bits (standard deviation; INT8: 0.08), and the mean of n by a root
# of n less: four of it.
# On a GPU vLLM brings parts of a joined linear to one scale, where tensors have scales: 0.006 more.
SAME, BYTE, BYTE_OF_INT8, MORE = 0.95, 0.15, 0.08, 0 if ON_CPU else 0.006
# Of tokens that are chosen, those that are likely: few moves exceed four deviations.
RIGHT = 0.98


# Each FP8 case once, both ways of running for each kind of scales.
SERVED = served_by(
    *(("static", True), full(("Qwen3 static", False))),
    *(("dynamic", False), full(("Qwen3 dynamic", True))),
    *(full(("blocks", True)), ("Qwen3 blocks", False)),
    *(full(("blocks, ue8m0", True)), full(("Qwen3 blocks, e8m0", False))),
    *(("int8", True), full(("int8", False))),
)


@SERVED
def test_a_text_has_the_likelihood_that_transformers_gives_it(served, reference):
    name, llm = served
    different, same = moved(llm, reference(name), text(16, 400))
    byte = BYTE_OF_INT8 if CASES[name].int8 else BYTE
    assert same >= SAME
    assert different.square().mean().sqrt() <= (1.5 if ON_CPU else 2) * byte
    assert abs(different.mean()) <= 4 * byte / math.sqrt(different.numel()) + MORE


@SERVED
def test_requests_of_many_lengths_at_once_decode_the_likeliest_tokens(served, reference):
    name, llm = served
    decodes(llm, reference(name), 48, RIGHT)


@SERVED
def test_a_decode_step_launches_what_the_layers_need(served, reference):
    name, llm = served
    layers = reference(name).config.num_hidden_layers
    blocks = "blocks" in CASES[name].format
    dynamic = "_dynamic" if "dynamic" in CASES[name].format or blocks else ""
    if CASES[name].int8:
        # Norms and SwiGLU are vLLM's.
        expected = {"int8_gemm": 4 * layers, "quantize_int8": 4 * layers} if OUR_INT8 else {}
    else:
        expected = {
            "block_scaled_gemm" if blocks else "skinny_gemm": 4 * layers,
            "quantize_fp8": layers,  # what attention gives
            f"rms_norm{dynamic}_fp8": 1,
            f"add_rms_norm{dynamic}_fp8": 2 * layers - 1,
            f"swiglu{dynamic}_fp8": layers,
        }
    for requests in (1, 3):
        step_is(llm, expected, requests=requests)
