"""Weights in blocks of 128x128 whose parts, joined in one linear, do not all end with a block."""

import itertools
import math

import pytest
import torch
from rocm_fp8_vllm import block_linear, block_parts
from vllm.config import ModelConfig, VllmConfig, set_current_vllm_config
from vllm.model_executor import parameter
from vllm.model_executor.kernels.linear import _POSSIBLE_FP8_BLOCK_KERNELS as LINEARS
from vllm.model_executor.layers import linear
from vllm.model_executor.layers.quantization.fp8 import Fp8Config
from vllm.platforms import PlatformEnum

from tests.settings import full

from .cases import BYTE_LLAMA, CASES, cut_llama, text
from .conftest import moved
from .settings import DEVICE, SUM, of_cpus_alone

# How far one byte's information moves where sums are in another order, in bits (standard deviation): this part of a
# model hardly knows the text.
BYTE = 0.3


@pytest.mark.parametrize("name", ["cut blocks", full("cut blocks, compressed-tensors")])
def test_a_text_has_the_likelihood_of_the_definition(name, engine, checkpoint):
    from problems import checkpoints

    model = checkpoints.by_definition(cut_llama(), checkpoint(name), checkpoints.FORMATS[CASES[name].format])
    different, _ = moved(engine(name, enforce_eager=True), model, text(8, 400))
    assert abs(different.mean()) <= 4 * BYTE / math.sqrt(different.numel())
    assert different.square().mean().sqrt() <= 1.5 * BYTE


@pytest.fixture
def made(monkeypatch):
    """made(class of vLLM's, workers, ...) -> a linear with weights in blocks, as a model makes it."""
    block_linear.install()
    block_parts.install()

    def make(kind, workers: int = 1, **sizes) -> torch.nn.Module:
        for module in (parameter, linear):  # an engine alone has set them up
            monkeypatch.setattr(module, "get_tensor_model_parallel_rank", lambda: 0)
            monkeypatch.setattr(module, "get_tensor_model_parallel_world_size", lambda: workers)
        settings = Fp8Config(True, "dynamic", weight_block_size=[128, 128])
        model = ModelConfig(str(BYTE_LLAMA), dtype="bfloat16", skip_tokenizer_init=True)
        with set_current_vllm_config(VllmConfig(model_config=model)), DEVICE:
            return kind(**sizes, params_dtype=torch.bfloat16, quant_config=settings, prefix="layers.3.joined")

    monkeypatch.setattr(torch, "get_default_dtype", lambda: torch.bfloat16)  # as in vLLM's loader
    return make


K = 256
QKV = (linear.QKVParallelLinear, dict(hidden_size=K, head_size=64, total_num_kv_heads=1))
MERGED = (linear.MergedColumnParallelLinear, dict(input_size=K))


@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize(
    ("kind", "parts"),
    [(QKV, (256, 64, 64)), (QKV, (192, 64, 64)), (MERGED, (320, 320)), (MERGED, (128, 200, 72)), (MERGED, (128, 320))],
    ids=lambda each: "+".join(map(str, each)) if isinstance(each[0], int) else each[0].__name__,
)
def test_each_part_has_its_own_scales(kind, parts, bias, made, generator):
    cls, sizes = kind
    more = dict(total_num_heads=parts[0] // 64) if kind is QKV else dict(output_sizes=list(parts))
    layer = made(cls, bias=bias, **sizes, **more)
    names = ("q", "k", "v") if kind is QKV else range(len(parts))
    wide = []
    for shard, rows in zip(names, parts):
        weight = torch.randn(rows, K, generator=generator).to(torch.float8_e4m3fn)
        scale = torch.exp2(torch.randint(-3, 4, (-(-rows // 128), 2), generator=generator).float())
        layer.weight.weight_loader(layer.weight, weight, shard)
        layer.weight_scale_inv.weight_loader(layer.weight_scale_inv, scale, shard)
        wide.append(weight.double() * scale.repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1).double())
    wide = torch.cat(wide)
    if bias:
        layer.bias.data.copy_(bias_values := torch.randn(sum(parts), generator=generator).bfloat16())
    layer.quant_method.process_weights_after_loading(layer)
    for count, columns in itertools.product((1, 40), (False, True)):
        layer.rocm_fp8_linear.input_scaling(layer)[1]["column_major_scales"] = columns
        # Codes of 0 to 448 at a scale of 1, which each group of 128 has.
        x = torch.randint(-8, 9, (count, K), generator=generator).bfloat16()
        x[:, ::128] = 448.0
        expected = x.double() @ wide.t()
        size = x.double().abs() @ wide.abs().t()
        if bias:
            expected, size = expected + bias_values.double(), size + bias_values.double().abs()
        got = layer.quant_method.apply(layer, x.to(DEVICE), layer.bias).cpu()
        # One rounding to bfloat16, and sums of K products.
        bound = expected.abs() * 2.0**-8 + K * SUM * size
        assert ((got.double() - expected).abs() <= bound).all()


def test_what_cannot_be_loaded_is_one_line(made):
    kind, sizes = MERGED
    with pytest.raises(
        ValueError, match=r"each of 2 workers has \[160, 160\] rows .* layers.3.joined; .* divide by 128"
    ):
        made(kind, workers=2, bias=False, **sizes, output_sizes=[320, 320])
    layer = made(kind, bias=False, **sizes, output_sizes=[320, 320])
    scales = layer.weight_scale_inv
    with pytest.raises(ValueError, match=r"the checkpoint joins parts of \[320, 320\] rows; .* divide by 128"):
        scales.weight_loader(scales, torch.ones(5, 2))
    with pytest.raises(ValueError, match=r"scales \[2, 2\] for a part that has \[3, 2\]"):
        scales.weight_loader(scales, torch.ones(2, 2), 1)


@of_cpus_alone
def test_other_linears_are_left_to_vllm(made, monkeypatch):
    kind, sizes = MERGED
    layer = made(kind, bias=False, **sizes, output_sizes=[256, 64])  # the last part may end anywhere
    assert type(layer.weight_scale_inv) is not block_parts.PartScales and not hasattr(layer, "rocm_fp8_parts")
    once = [scheme.create_weights for scheme in block_parts.SCHEMES]
    block_parts.install()
    assert once == [scheme.create_weights for scheme in block_parts.SCHEMES]
    others = [each for each in LINEARS[PlatformEnum.CPU] if each is not block_linear.BlockScaledFp8Linear]
    monkeypatch.setitem(LINEARS, PlatformEnum.CPU, others)
    if not torch.cpu._is_amx_tile_supported():  # vLLM's own have nothing for blocks then
        with pytest.raises(ValueError, match="requires AMX tile support"):
            made(kind, bias=False, **sizes, output_sizes=[320, 320])
        return
    layer = made(kind, bias=False, **sizes, output_sizes=[320, 320])
    assert type(layer.weight_scale_inv) is not block_parts.PartScales and not hasattr(layer, "rocm_fp8_parts")
