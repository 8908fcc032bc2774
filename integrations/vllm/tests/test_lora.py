"""vLLM's LoRA: a quantised base, and an adapter on inputs that are not quantised."""

import contextlib
import json
import math
from dataclasses import dataclass
from pathlib import Path

import pytest
import safetensors.torch
import torch

from problems.mx_checkpoints import FORMS
from tests.settings import SEED, full

from .cases import CASES, text
from .conftest import by_reference, teacher_forced
from .settings import OUR_INT8
from .steps import of_latent, of_mixtures, of_mx, step_is

RANK, ALPHA = 4, 8.0
EACH = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
# With LoRA's modules around these alone, two of a layer's three norms and activations still quantise.
SOME = ("o_proj", "gate_proj", "up_proj")
ATTENTION = EACH[:4]  # of a mixture, whose experts stay as they are
LATENT = ("q_a_proj", "kv_a_proj_with_mqa", "q_b_proj", "o_proj")  # kv_b_proj is a part of what decodes
# How far one byte's information moves where sums are in another order and some codes change, in bits (standard
# deviation), as in test_engine.py. The byte-level DeepSeek's move by 0.05.
BYTE, BYTE_OF_EXPERTS = 0.15, 0.25
LAYERS = 7
# The byte-level DeepSeek: the first of four layers is dense, three have shared experts. Quantised are the inputs of
# three linears with adapters a layer, of experts and of shared experts; a norm and activations do it for others.
OF_LATENT = {
    "skinny_gemm": 4 * 3 + 2 + 3 * 2,
    "quantize_fp8": 4 * 3 + 3 + 3,
    "add_rms_norm_dynamic_fp8": 1,
    "swiglu_dynamic_fp8": 1 + 3,
}
IDS = text(6, 400)


@dataclass(frozen=True)
class Adapter:
    """For each linear of the decoder layers: (A [RANK, K], B [N, RANK]), both bfloat16."""

    parts: dict[str, tuple[torch.Tensor, torch.Tensor]]

    def write(self, folder: Path) -> None:
        """As PEFT does."""
        folder.mkdir()
        targets = sorted({name.rpartition(".")[2] for name in self.parts})
        config = dict(peft_type="LORA", r=RANK, lora_alpha=ALPHA, target_modules=targets, bias="none")
        (folder / "adapter_config.json").write_text(json.dumps(config))
        tensors = {
            f"base_model.model.{name}.lora_{'AB'[index]}.weight": matrix
            for name, pair in self.parts.items()
            for index, matrix in enumerate(pair)
        }
        safetensors.torch.save_file(tensors, folder / "adapter_model.safetensors")

    @contextlib.contextmanager
    def on(self, model: torch.nn.Module):
        """Adds (alpha / r) B A x to each linear's output, x as it is before the linear quantises it."""

        def hook(a: torch.Tensor, b: torch.Tensor):
            def add(module, inputs, output):
                x = inputs[0].float()
                added = x @ a.to(x).t() @ b.to(x).t() * (ALPHA / RANK)
                return (output.float() + added).to(output.dtype)

            return add

        handles = [model.get_submodule(name).register_forward_hook(hook(*pair)) for name, pair in self.parts.items()]
        try:
            yield model
        finally:
            for handle in handles:
                handle.remove()


@pytest.fixture(scope="module")
def adapters(served, tmp_path_factory) -> dict[str, tuple]:
    """Name -> (Adapter, what an engine is told), of random numbers; "none" -> (None, None)."""
    from vllm.lora.request import LoRARequest

    generator = torch.Generator().manual_seed(SEED)
    modules = CASES[served[0]].model().model.named_modules(prefix="model")
    linears = {name: module.weight for name, module in modules if name.endswith(served[1])}
    made = {"none": (None, None)}
    for number, name in enumerate(("first", "second"), 1):
        parts = {}
        for linear, weight in linears.items():
            n, k = weight.shape
            a, b = torch.randn(RANK, k, generator=generator), torch.randn(n, RANK, generator=generator)
            # (alpha / r) B A has a fifth of the weight's size.
            size = 0.2 * weight.float().std() * RANK / ALPHA / math.sqrt(RANK)
            parts[linear] = (a.bfloat16(), (b * size).bfloat16())
        adapter, folder = Adapter(parts), tmp_path_factory.mktemp("adapters") / name
        adapter.write(folder)
        made[name] = (adapter, LoRARequest(name, number, str(folder)))
    return made


@pytest.fixture(
    scope="module",
    params=[
        *(full(("static", EACH, True)), ("dynamic", EACH, False), full(("blocks", SOME, True))),
        *(full(("int8, not smoothed", EACH, True)), full(("Qwen3-MoE channels", ATTENTION, True))),
        ("byte DeepSeek channels", LATENT, True),
        *(("Qwen3 compressed-tensors, MXFP4A16", EACH, True), full(("Qwen3 quark, MXFP8A16", EACH, False))),
        full(("Qwen3 compressed-tensors, MXFP8", EACH, True)),
    ],
    ids=lambda each: f"{each[0]}, {len(each[1])} modules, {'eager' if each[2] else 'compiled'}",
)
def served(request, engine):
    """(case's name, linears that adapters may change, engine). On a CPU vLLM's logits of a prompt fail where the head
    is among them, and requests without an adapter get that of the last place: it stays empty."""
    name, targets, eager = request.param
    arguments = dict(enable_lora=True, max_lora_rank=8, max_loras=3, lora_target_modules=list(targets))
    return name, targets, engine(name, enforce_eager=eager, **arguments)


@pytest.fixture(scope="module")
def expected(served, adapters, checkpoint, reference) -> dict[str, torch.Tensor]:
    """Adapter's name -> the bits of IDS, by linears as they are defined and an adapter by hand."""
    from problems import checkpoints, tiny_moe

    name, _, _ = served
    case = CASES[name]
    if case.int8 or case.format in FORMS:
        model = reference(name)  # its linears take numbers that are not quantised
    else:
        by_definition = (tiny_moe if case.experts else checkpoints).by_definition
        with torch.no_grad():
            model = by_definition(case.model(), checkpoint(name), checkpoints.FORMATS[case.format])
    results = {}
    for each, (adapter, _) in adapters.items():
        with contextlib.nullcontext() if adapter is None else adapter.on(model):
            _, results[each] = by_reference(model, IDS)
    return results


@pytest.mark.parametrize("given", [["none"], ["first"], ["none", "first", "second"]], ids="+".join)
def test_a_text_has_the_likelihood_of_base_and_adapter(given, served, adapters, expected):
    name, _, llm = served
    moves = BYTE_OF_EXPERTS if name.startswith("Qwen3-MoE") else BYTE
    of_row = [given[row % len(given)] for row in range(len(IDS))]
    _, bits = teacher_forced(llm, IDS, lora_request=[adapters[each][1] for each in of_row])
    for adapter in given:
        rows = torch.tensor([each == adapter for each in of_row])
        different = {each: bits[rows] - found[rows] for each, found in expected.items()}
        assert abs(different[adapter].mean()) <= 4 * moves / math.sqrt(different[adapter].numel())
        for each, distance in different.items():  # and the other adapters' is far away
            assert (distance.square().mean().sqrt() <= 2 * moves) == (each == adapter), each


def test_a_decode_step_launches_the_bases_linears(served, adapters):
    name, targets, llm = served
    expected = {"skinny_gemm": 4 * LAYERS, "quantize_fp8": 4 * LAYERS}  # norms and SwiGLU are vLLM's
    if CASES[name].int8:
        expected = {"int8_gemm": 4 * LAYERS, "quantize_int8": 4 * LAYERS} if OUR_INT8 else {}
    if CASES[name].format in FORMS:
        expected = of_mx(4 * LAYERS, 0, FORMS[CASES[name].format].inputs)
    if targets == SOME:
        expected = {"block_scaled_gemm": 4 * LAYERS, "quantize_fp8": 2 * LAYERS, "swiglu_dynamic_fp8": LAYERS}
        expected |= {"rms_norm_dynamic_fp8": 1, "add_rms_norm_dynamic_fp8": LAYERS - 1}
    if targets == ATTENTION:
        linears = {"skinny_gemm": 2 * LAYERS, "quantize_fp8": 3 * LAYERS}
        expected = of_mixtures(LAYERS) | linears
    if targets == LATENT:
        expected = of_mixtures(3) | of_latent(4) | OF_LATENT
    for adapter in ("none", "first"):
        step_is(llm, expected, lora_request=adapters[adapter][1])
