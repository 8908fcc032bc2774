"""Mixtures of experts with two workers: each has half of every expert, or half of the experts. Linears in MX formats,
whose sums stay vLLM's."""

import pytest

from tests.settings import full

from .cases import text
from .conftest import moved
from .settings import two_devices
from .steps import of_latent, of_mixtures, of_mx, step_is

# As in test_experts.py, a byte moves by 0.2 bits; scales of half rows (O's inputs, and what experts hide) move
# it, too. Where each worker takes the other's experts for its own, the random DeepSeek's moves by 0.7.
SPREAD, BITS = 0.4, 0.025
LAYERS = 7
PARTS = ("moe", "grouped", "norm", "all", "mla")  # of operators: experts, sums, norms

# The sums of mixtures, and of O before a norm that is vLLM's, are vLLM's where no norm of a model is before linears
# alone and behind one. In DeepSeek those of the dense layer are: it is the first of three.
OF_QWEN = of_mixtures(LAYERS) | {"rms_norm_dynamic_fp8": 1, "add_rms_norm_dynamic_fp8": LAYERS - 1}
OF_DEEPSEEK = (
    of_mixtures(2)
    | of_latent(3)
    | {
        "rms_norm_dynamic_fp8": 1 + 3,
        "add_rms_norm_dynamic_fp8": 1,
        "all_reduce_add_rms_norm_dynamic_fp8": 2,
        "all_reduce": 2,
    }
)


@two_devices
@pytest.mark.parametrize(
    ("name", "eager", "expert_parallel", "step"),
    [
        ("DeepSeek-V3 blocks", True, True, OF_DEEPSEEK),
        full("Qwen3-MoE channels", True, False, OF_QWEN),
        ("Qwen3-MoE channels", True, True, OF_QWEN),
        full("Qwen3-MoE channels", False, True, OF_QWEN),
        ("gpt-oss", True, False, of_mx(0, 3, "16bit")),  # half of an expert's 352 rows is padded to 192
        full("gpt-oss", False, True, of_mx(0, 3, "16bit")),
        full("Qwen3-MoE mxfp4", True, False, of_mx(0, LAYERS, "16bit")),
        full("Qwen3-MoE compressed-tensors, MXFP8", True, False, of_mx(0, LAYERS, "16bit")),
        full("Qwen3 quark, MXFP8", False, False, {}),
    ],
)
def test_two_workers_give_a_text_its_likelihood(name, eager, expert_parallel, step, engine, reference):
    llm = engine(name, enforce_eager=eager, tensor_parallel_size=2, enable_expert_parallel=expert_parallel)
    different, _ = moved(llm, reference(name), text(8, 400))
    assert different.square().mean().sqrt() <= SPREAD
    assert abs(different.mean()) <= BITS
    step_is(llm, step, PARTS)
