"""Mixtures of experts with two workers: each has half of every expert, or half of the experts."""

import pytest

from .conftest import by_reference, counts, generate, teacher_forced, text

# As in test_experts.py, a byte moves by 0.2 bits; scales of half rows (O's inputs, and what experts hide) move
# it, too. Where each worker takes the other's experts for its own, the random DeepSeek's moves by 0.7.
SPREAD, BITS = 0.4, 0.025
LAYERS = 7


def a_step(llm) -> dict[str, float]:
    """Operator -> its calls in a decode step of each worker, of experts, sums and norms."""
    prompt, launched = text(1, 8)[0].tolist(), []
    for tokens in (5, 15):
        before = counts(llm)
        generate(llm, [prompt], tokens)
        launched.append({each: count - before.get(each, 0) for each, count in counts(llm).items()})
    few, many = launched
    parts = ("moe", "grouped", "norm", "all", "mla")
    return {
        each: (many[each] - few[each]) / 10
        for each in many
        if many[each] > few[each] and any(part in each for part in parts)
    }


def mixtures(count: int) -> dict[str, int]:
    parts = ("moe_route", "moe_sort", "grouped_gemm_swiglu_fp8", "grouped_gemm", "moe_combine")
    return dict.fromkeys(parts, count)


# The sums of mixtures, and of O before a norm that is vLLM's, are vLLM's where no norm of a model is before linears
# alone and behind one. In DeepSeek those of the dense layer are: it is the first of three.
OF_QWEN = mixtures(LAYERS) | {"rms_norm_dynamic_fp8": 1, "add_rms_norm_dynamic_fp8": LAYERS - 1}
OF_DEEPSEEK = mixtures(2) | {
    "rms_norm_dynamic_fp8": 1 + 3,
    "add_rms_norm_dynamic_fp8": 1,
    "all_reduce_add_rms_norm_dynamic_fp8": 2,
    "all_reduce": 2,
    "mla_append": 3,
    "mla_decode": 3,
}


@pytest.mark.drawn(3)
@pytest.mark.parametrize(
    ("name", "eager", "expert_parallel", "step"),
    [
        ("DeepSeek-V3 blocks", True, True, OF_DEEPSEEK),
        ("Qwen3-MoE channels", True, False, OF_QWEN),
        ("Qwen3-MoE channels", False, True, OF_QWEN),
    ],
)
def test_two_workers_give_a_text_its_likelihood(name, eager, expert_parallel, step, engine, reference):
    llm = engine(name, enforce_eager=eager, tensor_parallel_size=2, enable_expert_parallel=expert_parallel)
    ids = text(8, 400)
    _, bits = teacher_forced(llm, ids)
    _, expected = by_reference(reference(name), ids)
    assert (bits - expected).square().mean().sqrt() <= SPREAD
    assert abs((bits - expected).mean()) <= BITS
    assert a_step(llm) == step
