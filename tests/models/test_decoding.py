"""The demo's decoding on a GPU, as far as a CPU can tell: a step that always reads and writes the same memory. And on a
GPU: the same, recorded and replayed."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from examples.llama_fp8 import decoding, operator_times, text
from problems.tiny_llama import (
    ACTIVATIONS,
    LLAMA3_ROPE,
    NEAR,
    VARIANTS,
    assert_likeliest,
    kernelized,
    llama,
    quantize,
    tokens,
)

pytestmark = pytest.mark.usefixtures("without_gradients")

every_activation = pytest.mark.parametrize("activations", ACTIVATIONS)
MODELS = VARIANTS | {"llama3 rope": dict(rope_parameters=LLAMA3_ROPE)}


def eagerly(step: decoding.StaticStep):
    """In the place of a graph: rehearsed as one is, called as one is replayed."""
    for _ in range(3):
        step.rehearse()
    return step


def assert_goes_on(model: torch.nn.Module, prompt: list[int], ids: list[int], near: float) -> None:
    assert_likeliest(model, torch.tensor([[*prompt, *ids]], device=model.device), len(prompt), near)


@pytest.mark.parametrize("shapes", MODELS)
@pytest.mark.parametrize("length", [1, 40])
def test_a_static_step_finds_the_tokens_that_a_growing_cache_does(device, generator, shapes, length):
    model = llama(generator, torch.float32, device, **MODELS[shapes])
    prompt = tokens(generator, 1, length)[0].tolist()
    growing = decoding.growing_tokens(model, prompt)
    wanted = [next(growing) for _ in range(30)]
    found = list(decoding.static_tokens(model, prompt, 30, eagerly))
    # The texts part for good where two logits lie so near that the order of a sum decides.
    for ids in (found, wanted):
        assert len(ids) == 30
        assert_goes_on(model, prompt, ids, 1e-3)


@every_activation
def test_a_step_on_the_kernels(kernel, device, generator, activations):
    model = llama(generator, device=device, **VARIANTS["grouped"])
    quantize(kernel, model, [tokens(generator, 2, 48, device)], activations)
    model, prompt = kernelized(kernel, model), tokens(generator, 1, 20)[0].tolist()
    ids = list(decoding.static_tokens(model, prompt, 12, eagerly))
    assert len(ids) == 12
    assert_goes_on(model, prompt, ids, 16 * NEAR)


def test_a_step_moves_nothing_and_a_rehearsal_leaves_no_trace(device, generator):
    model = llama(generator, torch.float32, device)
    step = decoding.StaticStep(model, tokens(generator, 1, 5)[0].tolist(), 4)
    held = [step.token, *(part for layer in step.cache.layers for part in (layer.keys, layer.values))]
    places, first = [part.data_ptr() for part in held], step.token.clone()
    step.rehearse()
    assert torch.equal(step.token, first) and all(int(layer.cumulative_length) == 5 for layer in step.cache.layers)
    for _ in range(3):
        step()
    now = [step.token, *(part for layer in step.cache.layers for part in (layer.keys, layer.values))]
    assert [part.data_ptr() for part in now] == places
    assert all(int(layer.cumulative_length) == 8 for layer in step.cache.layers)


class Seen(TorchDispatchMode):
    """Names of the operators that are called."""

    def __init__(self):
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.__name__.split(".")[0])
        return func(*args, **(kwargs or {}))


# What reads a number back to the host, has a size that numbers decide, or brings numbers of the host's to the device:
# none of it can be recorded.
NEVER_RECORDED = {"_local_scalar_dense", "nonzero", "equal", "is_nonzero", "masked_select", "_unique2", "lift_fresh"}


@pytest.mark.parametrize("shapes", MODELS)
@every_activation
def test_a_step_is_all_the_devices_own(kernel, device, generator, shapes, activations):
    model = llama(generator, device=device, **MODELS[shapes])
    quantize(kernel, model, [tokens(generator, 2, 48, device)], activations)
    for one in (llama(generator, device=device, **MODELS[shapes]), kernelized(kernel, model)):
        step = decoding.StaticStep(one, tokens(generator, 1, 20)[0].tolist(), 4)
        with Seen() as seen:
            step.rehearse()
        assert "index_copy_" in seen.names and NEVER_RECORDED.isdisjoint(seen.names)
    assert "skinny_gemm" in seen.names
    with Seen() as seen:  # the check is alive
        int(step.token)
        torch.tensor([1], device=device)
    assert {"_local_scalar_dense", "lift_fresh"} <= set(seen.names)


def test_there_is_room_for_one_token_alone(device, generator):
    model = llama(generator, torch.float32, device)
    prompt = tokens(generator, 1, 5)[0].tolist()
    (only,) = decoding.static_tokens(model, prompt, 1, eagerly)
    assert_goes_on(model, prompt, [only], 1e-3)


def test_a_gpu_decodes_with_graphs_and_stops_at_the_end(generator, monkeypatch):
    class OnGpu(torch.nn.Module):
        device = torch.device("cuda")

    asked = []

    def static_tokens(model, prompt, count, caches):
        asked.append((prompt, count, caches))
        yield from range(10, 10 + count)

    monkeypatch.setattr(decoding, "static_tokens", static_tokens)
    loaded = text.LoadedModel("toy", llama(generator), None)
    loaded.model.generation_config.eos_token_id = 13
    result = decoding.continue_text(loaded, OnGpu(), [1, 2], 8, lambda _: None)
    assert asked == [([1, 2], 8, None)] and result.ids == [10, 11, 12, 13] and result.tokens_per_second > 0


@every_activation
def test_a_graphs_tokens_are_the_steps(kernel, device, generator, activations):
    if device.type == "cpu":
        pytest.skip("needs a GPU: a graph's capture and replay")
    model = llama(generator, device=device, **VARIANTS["grouped"])
    quantize(kernel, model, [tokens(generator, 2, 48, device)], activations)
    prompt = tokens(generator, 1, 20)[0].tolist()
    for one in (llama(generator, device=device), kernelized(kernel, model)):
        wanted = list(decoding.static_tokens(one, prompt, 40, eagerly))
        # The same kernels on the same numbers, whoever launches them.
        assert list(decoding.static_tokens(one, prompt, 40)) == wanted


def test_operators_are_timed_in_graphs_on_a_gpu(gpu):
    case = operator_times._Case("a", "1x1", gpu.launch("kernel", 2.0), gpu.launch("torch", 5.0), 7)
    samples = operator_times._samples(case, "cuda", 1, {})
    assert samples == {"kernel": pytest.approx([2e-6] * 20), "torch": pytest.approx([5e-6] * 20)}
    # All operands, in rotation.
    assert {entry[1] for entry in gpu.log if entry[0] == "kernel"} == set(range(7))
