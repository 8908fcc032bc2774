"""Real engines on the byte-level DeepSeek of this repository, and on what kernel.quantization writes of mixtures."""

from tests.settings import full

from .cases import CASES, STORED, text
from .conftest import RIGHT_OF_EXPERTS, assert_as_likely, by_reference, decodes, served_by, teacher_forced
from .settings import ON_CPU
from .steps import of_latent, of_mixtures, step_is

# As in test_experts.py a byte moves by 0.15 to 0.25 bits where sums are in another order, and other experts are chosen
# for it. In bfloat16 it moves by 0.03 eager, and by 0.1 where the compiler rounds a norm once. With another router, or
# a head that was not filled, it moves by bits.
SPREAD, OF_BFLOAT16, SAME = 0.4, 0.15, 0.93
# Layers with experts, and with latent attention.
LAYERS = {"byte DeepSeek": (3, 4), "DeepSeek-V3": (2, 3), "Qwen3-MoE": (7, 0), "Mixtral": (7, 0)}


SERVED = served_by(
    *(("byte DeepSeek", True), full(("byte DeepSeek", False)), ("byte DeepSeek saved, channel", True)),
    *(full(("byte DeepSeek saved, channel", False)), full(("byte DeepSeek saved, static", True))),
    *(full((f"Qwen3-MoE saved, {each}", each != "channel")) for each in ("static", "tensor", "channel")),
    *(("Qwen3-MoE saved, block", True), ("Mixtral saved, static", True)),
    *(full(("DeepSeek-V3 saved, block", True)), full(("DeepSeek-V3 saved, block", False))),
    *(full((f"Mixtral saved, {each}", each != "tensor")) for each in ("tensor", "channel", "block")),
)


@SERVED
def test_a_text_has_the_likelihood_that_transformers_gives_it(served, reference):
    name, llm = served
    ids = text(8, 400)
    best, bits = teacher_forced(llm, ids)
    expected, expected_bits = by_reference(reference(name), ids)
    random = name.startswith("DeepSeek-V3")
    assert random or expected_bits.mean() < 4  # of 8: the model knows text
    spread = OF_BFLOAT16 if CASES[name].format == STORED else SPREAD
    assert_as_likely(bits - expected_bits, spread)
    assert (best == expected).float().mean() >= (0.8 if random else SAME)


@SERVED
def test_it_decodes_the_likeliest_tokens(served, reference):
    name, llm = served
    code = text(1, 1024)[0].tolist()
    enough = 0.9 if name.startswith("DeepSeek-V3") else RIGHT_OF_EXPERTS
    decodes(llm, reference(name), 32, enough, [code[:200], code[300:301], code[400:440]])


@SERVED
def test_a_decode_step_runs_on_our_experts_and_latent_attention(served):
    name, llm = served
    mixtures, latent = LAYERS[name.partition(" saved")[0]]
    if CASES[name].format == STORED:  # in bfloat16, experts are vLLM's, and on a CPU latent attention
        mixtures, latent = 0, 0 if ON_CPU else latent
    expected = of_mixtures(mixtures) | of_latent(latent)
    step_is(llm, {each: count for each, count in expected.items() if count}, ("moe", "grouped", "mla"))
