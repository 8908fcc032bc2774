"""What vLLM does on GPUs alone: engines that sleep, and layers in stages on several GPUs."""

import pytest
import torch

from .cases import text
from .conftest import generate, likely, moved, teacher_forced
from .settings import LATENT_BACKEND, ON_CPU, two_devices

pytestmark = pytest.mark.skipif(ON_CPU, reason="vLLM does it on GPUs alone")


@pytest.mark.parametrize(
    ("name", "eager"),
    [("dynamic", False), ("blocks", True), ("Qwen3-MoE blocks", True), ("byte DeepSeek saved, channel", False)],
)
def test_an_engine_that_wakes_up_has_its_bits(name, eager, engine, checkpoint):
    """In a process of its own: of a process one engine can sleep."""
    ids = text(2, 200)
    process = dict(distributed_executor_backend="mp", worker_extension_cls="integrations.vllm.tests.workers.Meddling")
    llm = engine(name, enforce_eager=eager, enable_sleep_mode=True, **process)
    _, bits = teacher_forced(llm, ids)
    llm.collective_rpc("alone")
    llm.sleep(level=1)
    llm.wake_up()
    assert torch.equal(teacher_forced(llm, ids)[1], bits)
    llm.sleep(level=2)  # weights are gone
    llm.wake_up(tags=["weights"])
    llm.collective_rpc("reload_weights", kwargs=dict(weights_path=str(checkpoint(name))))
    llm.wake_up(tags=["kv_cache", "scheduling"])
    assert torch.equal(teacher_forced(llm, ids)[1], bits)


@two_devices
@pytest.mark.parametrize(
    ("name", "eager", "spread", "latent"),
    # Bits of a byte, as in test_experts.py, and of dense models as in test_engine.py.
    [
        ("dynamic", True, 0.2, None),
        ("static", False, 0.2, None),
        ("Qwen3-MoE blocks", False, 0.4, None),
        ("byte DeepSeek", True, 0.4, None),
        ("byte DeepSeek", True, 0.4, LATENT_BACKEND),
    ],
)
def test_two_stages_give_a_text_its_likelihood(name, eager, spread, latent, engine, reference, monkeypatch):
    ids = text(8, 400)
    if "DeepSeek" in name:  # vLLM 0.32 decodes other tokens else, without the plugin, too
        monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    llm = engine(name, enforce_eager=eager, pipeline_parallel_size=2, attention_backend=latent)
    different, _ = moved(llm, reference(name), ids)
    assert different.square().mean().sqrt() <= spread
    assert abs(different.mean()) <= 0.025
    prompt = ids[0, :100].tolist()
    (tokens,) = generate(llm, [prompt], 16)
    assert sum(likely(reference(name), prompt, tokens)) >= 15
