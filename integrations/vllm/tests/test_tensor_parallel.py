"""Two workers compute what one does, but for the scales of half rows. Their norms form the sums."""

import math

import pytest
import rocm_fp8_vllm
import torch

from tests.settings import full

from . import steps
from .cases import CASES, text
from .conftest import by_reference, generate, likely, teacher_forced
from .settings import ON_CPU, two_devices
from .steps import counts

pytestmark = two_devices
# The linears whose input is in halves, one a worker.
HALVED = ("self_attn.o_proj", "mlp.down_proj")


def vllm_rounds() -> bool:
    """Whether vLLM's sums over workers are rounded to bfloat16. With AVX-512 they are its kernels', which cut digits
    off where a processor has none of AVX-512's bfloat16. Else they are torch's."""
    if not ON_CPU or not hasattr(torch.ops._C, "shm_allreduce"):
        return True
    x, out = torch.linspace(-3, 3, 1024).bfloat16().view(8, 128), torch.empty(8, 64, dtype=torch.bfloat16)
    torch.ops._C.silu_and_mul(out, x)
    gate, up = x.double().chunk(2, 1)
    exact = torch.nn.functional.silu(gate) * up
    return bool((out.double().abs() > exact.abs()).any())


def assert_same(bits: list, bits_of_vllm: list) -> None:
    """A sum of vLLM's that is cut off is another one: then within 0.3 bits a byte (root mean square)."""
    if vllm_rounds():
        assert bits == bits_of_vllm
    else:
        assert 0 < rms(torch.tensor(bits) - torch.tensor(bits_of_vllm)) <= 0.3


def in_halves(model: torch.nn.Module, linear: str, layers: range) -> None:
    """Gives a linear of some layers two workers' arithmetic: each half of a row is quantised by a scale of its own,
    where scales are dynamic, and the halves' products are rounded before they are added."""
    for layer in layers:
        module = model.model.layers[layer].get_submodule(linear)
        whole = module.forward

        def forward(x: torch.Tensor, whole=whole) -> torch.Tensor:
            middle = x.shape[-1] // 2
            # Zeros change no scale and add nothing.
            first, second = x.clone(), x.clone()
            first[..., middle:], second[..., :middle] = 0, 0
            return whole(first) + whole(second)

        module.forward = forward


def rms(different: torch.Tensor) -> float:
    return different.square().mean().sqrt().item()


@pytest.mark.parametrize("name", [full("static"), "dynamic", full("blocks, 4 heads")])
def test_two_workers_give_a_text_the_likelihood_that_one_gives_it(name, engine, checkpoint):
    """Teacher-forced, so that near ties between tokens decide nothing.

    A byte's bits differ between two workers and one by

        two - one = (two - half rows by definition) + (half rows - whole rows, both by definition) + (whole rows - one)

    The last term is the sums' order alone, and is measured here; so is the one in the middle, which is what scales of
    half rows do. The first has the last one's causes. By Minkowski's inequality the root of the mean square is at most
    the three terms' sum. The mean is 0 but for its deviation, the root over that of the number of bytes: four of it.
    """
    from problems import checkpoints

    ids = text(8, 400)
    form = checkpoints.FORMATS[CASES[name].format]
    model = checkpoints.by_definition(CASES[name].model(), checkpoint(name), form)
    _, whole_rows = by_reference(model, ids)
    for linear in HALVED:
        in_halves(model, linear, range(len(model.model.layers)))
    _, half_rows = by_reference(model, ids)
    _, one = teacher_forced(engine(name, enforce_eager=True), ids)
    _, two = teacher_forced(engine(name, enforce_eager=True, tensor_parallel_size=2), ids)
    assert rms(two - one) <= rms(half_rows - whole_rows) + 2 * rms(one - whole_rows)
    assert abs((two - one).mean()) <= 4 * rms(two - one) / math.sqrt(two.numel())
    # Two workers are as near to their definition as one is to its own, but for four deviations of such a root, which
    # the fourth powers tell, of both.
    order = one - whole_rows
    deviation = math.sqrt((order.pow(4).mean() / order.square().mean() ** 2 - 1) / order.numel()) / 2
    assert rms(two - half_rows) <= rms(order) * (1 + 4 * math.sqrt(2) * deviation)


LAYERS = 7
MEDDLED = dict(tensor_parallel_size=2, worker_extension_cls="integrations.vllm.tests.workers.Meddling")


def a_step(llm) -> dict[str, float]:
    """Operator -> its calls in a decode step, of those that add, and norms."""
    return {name: count for name, count in steps.a_step(llm).items() if "norm" in name or "all" in name}


@pytest.mark.parametrize(
    ("name", "eager", "kind"),
    [
        ("one layer", False, "_dynamic"),
        full("dynamic", False, "_dynamic"),
        full("blocks, 4 heads", True, "_dynamic"),
        full("blocks, ue8m0, 4 heads", False, "_dynamic"),
        full("Qwen3 static", False, ""),
        ("static", True, ""),  # the last one: its engine goes on to the next tests
    ],
)
def test_norms_that_form_the_sums_change_no_bit(name, eager, kind, engine, reference, monkeypatch):
    code = text(1, 400)[0].tolist()
    prompts = [code[:100], code[150:170], code[200:201]]
    results, launched = [], []
    for switch in ("0", "1"):
        monkeypatch.setenv(rocm_fp8_vllm.SUMS, switch)
        llm = engine(name, enforce_eager=eager, **MEDDLED)
        _, bits = teacher_forced(llm, text(3, 400))
        results.append((bits.tolist(), generate(llm, prompts, 16)))
        launched.append(a_step(llm))
    (bits_of_vllm, tokens_of_vllm), (bits, tokens) = results
    assert_same(bits, bits_of_vllm)
    assert tokens == tokens_of_vllm or not vllm_rounds()
    right = [each for prompt, chosen in zip(prompts, tokens) for each in likely(reference(name), prompt, chosen)]
    assert sum(right) / len(right) >= 0.9
    if not ON_CPU and not eager:
        return  # a graph's replays do not count
    norms = 2 * len(reference(name).model.layers) - 1
    # The last layer's Down has vLLM's norm behind it.
    assert launched[1] == {f"rms_norm{kind}_fp8": 1, f"all_reduce_add_rms_norm{kind}_fp8": norms, "all_reduce": 1}
    assert launched[0] == {f"rms_norm{kind}_fp8": 1, f"add_rms_norm{kind}_fp8": norms}


@pytest.fixture(scope="module")
def static_bits(engine) -> torch.Tensor:
    """Before anything meddles with the engine."""
    return teacher_forced(engine("static", enforce_eager=True, **MEDDLED), text(2, 200))[1]


def test_a_sum_is_formed_where_something_else_computes_with_it(engine, static_bits):
    ids, expected = text(2, 200), static_bits
    llm = engine("static", enforce_eager=True, **MEDDLED)
    expected_step = {"rms_norm_fp8": 1, "all_reduce_add_rms_norm_fp8": 2 * LAYERS - 1, "all_reduce": 1}
    assert a_step(llm) == expected_step
    meddlings = [
        *(("watch", (1, name)) for name in ("self_attn.o_proj", "self_attn", "post_attention_layernorm")),
        *(("watch", (2, name)) for name in ("mlp.down_proj", "mlp")),
        ("watch", (4, "")),  # the layer: what it returns, and what the next one takes
        *(("double", (5, name)) for name in ("self_attn", "mlp")),
    ]
    formed = 0
    places = set()
    for method, (layer, name) in meddlings:
        llm.collective_rpc(method, args=(layer, name))
        place = (layer, "mlp" if name.startswith("mlp") else "self_attn" if name else "layer")
        formed += place not in places
        places.add(place)
        if place == (4, "layer"):
            formed += 1  # the sum that it is called with
        _, bits = teacher_forced(llm, ids)
        assert torch.equal(bits, expected), (method, layer, name)
        if method == "watch":
            seen = llm.collective_rpc("tensors_seen")
            assert seen[0] == seen[1]
            # What a norm returns is quantised, and no tensor.
            assert (seen[0] > 0) == (name != "post_attention_layernorm")
        step = a_step(llm)
        assert step["all_reduce"] == 1 + formed
        assert step["all_reduce_add_rms_norm_fp8"] + step["add_rms_norm_fp8"] == 2 * LAYERS - 1
        assert step["add_rms_norm_fp8"] == formed


def test_workers_that_disagree_raise_the_communicators_error(engine):
    """The engine of the test before, whose hooks do not matter here."""
    llm = engine("static", enforce_eager=True, **MEDDLED)
    assert llm.collective_rpc("sum_of_rows", args=(3, 0)) == [2.0, 2.0]
    with pytest.raises(Exception, match="rank . of 2"):
        llm.collective_rpc("sum_of_rows", args=(3, 1))


def test_norms_that_are_not_fused_are_given_the_sum(engine, checkpoint, monkeypatch):
    """The MLP of one layer is not quantised: its norm is vLLM's, and its Down's sum too."""
    name, results = "an MLP not quantised", []
    for switch in ("1", "0"):
        monkeypatch.setenv(rocm_fp8_vllm.SUMS, switch)
        llm = engine(name, enforce_eager=True, tensor_parallel_size=2)
        results.append(teacher_forced(llm, text(2, 200))[1].tolist())
        step = a_step(llm)
        sums = {"all_reduce_add_rms_norm_fp8": 2 * LAYERS - 3, "add_rms_norm_fp8": 1, "all_reduce": 2}
        assert step == {"rms_norm_fp8": 1} | (sums if switch == "1" else {"add_rms_norm_fp8": 2 * LAYERS - 2})
    assert_same(*results)


def test_linears_with_adapters_form_their_own_sums(engine, static_bits):
    targets = dict(enable_lora=True, max_lora_rank=8, lora_target_modules=["o_proj", "gate_proj", "up_proj"])
    llm = engine("static", enforce_eager=True, tensor_parallel_size=2, **targets)
    _, bits = teacher_forced(llm, text(2, 200))
    assert a_step(llm) == {"rms_norm_fp8": 1, "all_reduce_add_rms_norm_fp8": LAYERS - 1, "all_reduce": 1}
    # O's sum is vLLM's. The norm behind it feeds a linear with an adapter and is vLLM's, too: it rounds once more.
    assert rms(bits - static_bits) <= 0.3


@pytest.mark.parametrize("name", ["bfloat16", full("int8")])
def test_a_model_of_which_nothing_is_fused_has_no_communicator(name, engine):
    llm = engine(name, enforce_eager=True, **MEDDLED)
    teacher_forced(llm, text(1, 50))
    assert not any("all" in each for each in counts(llm))
