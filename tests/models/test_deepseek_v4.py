"""DeepSeek-V4's own files: FP8 in blocks with exponents, experts in MXFP4, its names."""

import pytest
import torch
import transformers
from packaging.version import Version

from problems import checkpoints, deepseek_v4
from problems.tiny_llama import NEAR, distance, tokens
from problems.tiny_moe import expert_modules, logits_with_one_routing, routed

pytestmark = [
    pytest.mark.usefixtures("without_gradients"),
    pytest.mark.filterwarnings("ignore:.*has no decoder layer that can be fused"),
    pytest.mark.filterwarnings("ignore:.*tensors that nothing here uses. mtp.0.norm.weight"),
]
LINEARS = 3 * (4 + 3) + 1  # four of attention, three of a shared expert; an indexer's


@pytest.fixture
def made(kernel, generator):
    """The model that the files are of."""
    return deepseek_v4.model(generator)


@pytest.mark.parametrize("exponents", [torch.float8_e8m0fnu, torch.float32], ids=str)
def test_it_is_read(kernel, device, e4m3fn, generator, tmp_path, made, exponents):
    deepseek_v4.write(kernel, made, tmp_path / "made", exponents)
    loaded = kernel.quantization.load_quantized(tmp_path / "made", device)
    linears = {name: module for name, module in loaded.named_modules() if type(module).__name__ == "Fp8Linear"}
    assert len(linears) == LINEARS and all(each.power_of_two for each in linears.values())
    experts = expert_modules(loaded)
    assert {(each.format, each.inputs) for each in experts.values()} == {("mxfp4", "mxfp8")} and len(experts) == 3
    for name, value in made.named_parameters():  # of float32 what from_pretrained keeps so
        if deepseek_v4.WIDE.search(name):
            assert torch.equal(loaded.get_parameter(name).cpu(), value) and value.dtype == torch.float32
    table = "model.layers.0.mlp.gate.tid2eid"
    assert torch.equal(loaded.get_buffer(table).cpu(), made.get_buffer(table))
    defined = deepseek_v4.computing(kernel, made, tmp_path / "made").to(device)
    if Version(transformers.__version__) >= Version("5.24"):  # before, its own norms' results are no linear's inputs
        theirs, got = logits_with_one_routing([defined, loaded], tokens(generator, 2, 40, device) % 64)
        assert distance(got, theirs) <= 2 * NEAR  # by weights in 16 bits 3.3 NEAR
    for name, module in linears.items():
        x = torch.randn(9, module.in_features, generator=generator).bfloat16().to(device)
        assert distance(module(x), defined.get_submodule(name)(x)) <= NEAR
    for name, module in experts.items():
        given = routed(generator, device, 4, d=256)
        assert distance(module(*given), defined.get_submodule(name)(*given)) <= 2 * NEAR


@pytest.mark.parametrize(
    "change, message",
    [
        (dict(expert_dtype="nvfp4"), "expert_dtype 'nvfp4' with activation_scheme 'dynamic'; known: fp8, fp4"),
        (dict(expert_dtype="fp8"), "layers.0.ffn.experts.0.w1.weight: dtype I8; needs F8_E4M3"),
    ],
    ids=lambda each: str(each)[:30],
)
def test_other_types_of_experts_are_refused(kernel, tmp_path, made, change, message):
    deepseek_v4.write(kernel, made, tmp_path / "made", torch.float8_e8m0fnu)
    checkpoints.configure(tmp_path / "made", deepseek_v4.SETTINGS, **change)
    with pytest.raises(ValueError, match=message):
        kernel.quantization.load_quantized(tmp_path / "made")


def test_scales_are_powers_of_two(kernel, tmp_path, made):
    deepseek_v4.write(kernel, made, tmp_path / "made", torch.float32)

    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors["layers.1.ffn.experts.2.w2.scale"][3, 1] *= 1.5

    checkpoints.edit(tmp_path / "made", change, lambda config: None)
    with pytest.raises(ValueError, match=r"experts\.2\.down_proj\.scale: holds other numbers than powers of two"):
        kernel.quantization.load_quantized(tmp_path / "made")
