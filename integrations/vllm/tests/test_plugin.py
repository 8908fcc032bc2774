"""On, off, refused; and what of a model is fused."""

import logging

import pytest
import rocm_fp8_vllm
import torch
import vllm
from rocm_fp8_vllm import block_linear, block_parts, cpu, experts, fusion, heads, int8_linear, latent_gpu, linear
from vllm import envs
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.config.utils import hash_factors
from vllm.lora.layers import BaseLayerWithLoRA
from vllm.model_executor.kernels import linear as choice
from vllm.model_executor.kernels.linear.scaled_mm import FP8ScaledMMLinearLayerConfig
from vllm.model_executor.layers.activation import SiluAndMul
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.quantization.compressed_tensors import compressed_tensors
from vllm.model_executor.layers.quantization.utils import quant_utils
from vllm.model_executor.layers.quantization.utils.w8a8_utils import requantize_with_max_scale
from vllm.platforms import current_platform

from .conftest import asks_for
from .settings import BACKEND, DEVICE, ON_CPU, ROOT, SUM, of_cpus_alone

LINEARS = choice._POSSIBLE_FP8_KERNELS[current_platform._enum]
PARTS = [cpu if ON_CPU else latent_gpu, linear, block_linear, block_parts, int8_linear, experts, fusion, heads]


@pytest.fixture
def unregistered(monkeypatch):
    """As if vLLM had not loaded the plugin; installed() says which parts `register` put in."""
    done = []
    for name in (rocm_fp8_vllm.SWITCH, rocm_fp8_vllm.EXPERTS, rocm_fp8_vllm.SUMS):
        monkeypatch.delenv(name, raising=False)
    for part in (cpu, latent_gpu, linear, block_linear, block_parts, int8_linear, experts, fusion, heads):
        monkeypatch.setattr(part, "install", lambda part=part: done.append(part))
    return done


def test_it_is_on_unless_the_variable_says_0(unregistered, monkeypatch):
    rocm_fp8_vllm.register()
    assert unregistered == PARTS
    monkeypatch.setenv(rocm_fp8_vllm.SWITCH, "0")
    rocm_fp8_vllm.register()
    assert unregistered == PARTS
    for name in (rocm_fp8_vllm.SWITCH, rocm_fp8_vllm.EXPERTS, rocm_fp8_vllm.SUMS):
        monkeypatch.setenv(rocm_fp8_vllm.SWITCH, "1")
        monkeypatch.setenv(name, "yes")
        with pytest.raises(ValueError, match=f"{name}='yes'; needs 0 or 1"):
            rocm_fp8_vllm.register()
        monkeypatch.setenv(name, "1")


def test_compiled_graphs_are_others_with_each_switch(unregistered, monkeypatch):
    """vLLM's key of a graph on disk."""
    monkeypatch.setattr(envs, "environment_variables", dict(envs.environment_variables))
    for name in (rocm_fp8_vllm.SWITCH, rocm_fp8_vllm.EXPERTS, rocm_fp8_vllm.SUMS):
        envs.environment_variables.pop(name, None)
    keys = [hash_factors(envs.compile_factors())]  # without the plugin
    rocm_fp8_vllm.register()
    keys.append(hash_factors(envs.compile_factors()))
    for name in (rocm_fp8_vllm.EXPERTS, rocm_fp8_vllm.SUMS):
        monkeypatch.setenv(name, "0")
        keys.append(hash_factors(envs.compile_factors()))
    assert len(set(keys)) == 4


def test_a_gpu_has_latent_attention_of_its_own(unregistered, monkeypatch):
    monkeypatch.setattr(type(current_platform), "is_cpu", lambda self: False)
    monkeypatch.setattr(type(current_platform), "is_cuda_alike", lambda self: True)
    rocm_fp8_vllm.register()
    assert unregistered == [latent_gpu, linear, block_linear, block_parts, int8_linear, experts, fusion, heads]


@pytest.mark.parametrize("version", [(0, 31, 2), (0, 34, 0), (1, 0, 0)])
def test_another_version_is_refused_with_one_line(version, unregistered, monkeypatch):
    monkeypatch.setattr(vllm, "__version_tuple__", version)
    monkeypatch.setattr(vllm, "__version__", ".".join(map(str, version)))
    assert one_line().endswith(f"vLLM {vllm.__version__} was not tested; 0.32 up to, not including, 0.34 was")
    assert not unregistered


def test_the_readme_names_the_versions_that_are_tested():
    (major, first), (same_major, end) = rocm_fp8_vllm.TESTED
    assert same_major == major and end - first == 2
    versions = [f"{major}.{minor}" for minor in range(first, end)]
    readme = (ROOT / "integrations" / "vllm" / "README.md").read_text()
    assert f"# beside vLLM {' or '.join(versions)}\n" in readme
    assert f"Other versions of vLLM than {' and '.join(versions)} are left as they are" in readme


def test_another_platform_is_refused_with_one_line(unregistered, monkeypatch):
    for name in ("is_cpu", "is_cuda_alike"):
        monkeypatch.setattr(type(current_platform), name, lambda self: False)
    monkeypatch.setattr(type(current_platform), "device_name", "tpu", raising=False)
    assert one_line().endswith("no kernels for the platform 'tpu'")
    assert not unregistered


def test_kernels_that_cannot_be_fetched_are_one_line(unregistered, monkeypatch, tmp_path):
    monkeypatch.setenv("LOCAL_KERNELS", f"{rocm_fp8_vllm.REPO_ID}={tmp_path}")
    monkeypatch.delitem(__import__("sys").modules, "rocm_fp8_vllm.kernel")
    monkeypatch.delattr(rocm_fp8_vllm, "kernel")
    assert "rocm-fp8-kernels is not used: " in one_line()
    assert not unregistered


def one_line() -> str:
    """What `register` logs: one line."""
    logger, records = logging.getLogger("vllm.rocm_fp8_kernels"), []
    handler = logging.Handler()
    handler.emit = records.append
    logger.addHandler(handler)
    try:
        rocm_fp8_vllm.register()
    finally:
        logger.removeHandler(handler)
    (record,) = records
    assert record.levelno == logging.ERROR
    message = record.getMessage()
    assert "\n" not in message
    return message


def test_install_is_repeatable_and_puts_the_linear_first():
    linear.install()
    first = list(LINEARS)
    linear.install()
    assert first == LINEARS and LINEARS[0] is linear.FewRowsFp8Linear and LINEARS.count(linear.FewRowsFp8Linear) == 1
    block_linear.install()
    block_linear.install()
    of_blocks = choice._POSSIBLE_FP8_BLOCK_KERNELS[current_platform._enum]
    assert of_blocks[0] is block_linear.BlockScaledFp8Linear and of_blocks.count(of_blocks[0]) == 1
    fusion.install()
    hook = fusion.base_loader.process_weights_after_loading
    fusion.install()
    assert fusion.base_loader.process_weights_after_loading is hook


def config(inputs, weights=quant_utils.kFp8StaticChannelSym, dtype=torch.bfloat16) -> FP8ScaledMMLinearLayerConfig:
    return FP8ScaledMMLinearLayerConfig(
        weight_quant_key=weights, activation_quant_key=inputs, weight_shape=(64, 96), input_dtype=dtype, out_dtype=dtype
    )


def few_rows(of: FP8ScaledMMLinearLayerConfig) -> linear.FewRowsFp8Linear:
    return linear.FewRowsFp8Linear(of, ["weight", "weight_scale", "input_scale", "input_scale_ub"])


@pytest.mark.parametrize("inputs", linear._INPUTS, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [1, 32, 33, 100])
def test_a_linear_is_its_definition(inputs, dtype, rows, generator):
    layer = torch.nn.Module()
    weight = torch.randn(64, 96, generator=generator).to(torch.float8_e4m3fn)
    of_channels = torch.rand(64, 1, generator=generator) + 0.5
    layer.weight, layer.weight_scale = weight.to(DEVICE).t(), of_channels.to(DEVICE)
    static = inputs == quant_utils.kFp8StaticTensorSym
    layer.input_scale = torch.tensor(0.02, device=DEVICE) if static else None
    with set_current_vllm_config(VllmConfig()):
        ours = few_rows(config(inputs, dtype=dtype))
    ours.process_weights_after_loading(layer)
    x = torch.randn(rows, 96, generator=generator).to(dtype)
    bias = torch.randn(64, generator=generator).to(dtype)
    scale = layer.input_scale.cpu() if static else x.float().abs().amax(1, keepdim=True) / 448
    q = (x.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
    expected = (q.double() @ weight.double().t()) * scale.double() * of_channels.double().t() + bias.double()
    given = ours.apply_weights(layer, x.to(DEVICE), bias.to(DEVICE)).cpu()
    assert given.dtype == dtype
    # One rounding to dtype, and sums of 96 products.
    bound = expected.abs() * torch.finfo(dtype).eps + 96 * SUM * (
        (q.double().abs() @ weight.double().abs().t()) * scale.double() * of_channels.double().t()
    )
    assert ((given.double() - expected).abs() <= bound).all()


BLOCKS = dict(inputs=quant_utils.kFp8Dynamic128Sym, weights=quant_utils.kFp8Static128BlockSym)


class Other:
    """A linear of vLLM's whose results are -1."""

    def apply_scaled_mm(self, *, A, B, out_dtype, As, Bs, bias, output_shape):
        assert B.shape == (A.shape[1], 48) and output_shape == [len(A), 48]
        return torch.full(output_shape, -1.0, dtype=out_dtype, device=A.device)


@pytest.mark.parametrize("chosen", ["skinny_gemm", "block_scaled_gemm", "library"])
@pytest.mark.parametrize("has_other", [False, True])
def test_the_package_chooses_by_rows(monkeypatch, chosen, has_other):
    """vLLM's own linear multiplies where the package would hand on to a library, and vLLM has one."""
    asked, kernel = [], linear.kernel
    count = 600 if chosen == "library" else 20
    a, weight = (torch.ones(rows, 32, device=DEVICE).to(torch.float8_e4m3fn) for rows in (count, 48))

    def choice_by_rows(*sizes, own_scales, device):
        asked.append((*sizes, own_scales, device.type))
        return chosen

    monkeypatch.setattr(kernel.quantization, "gemm_for", choice_by_rows)
    monkeypatch.setattr(linear, "_many_rows", [Other()])
    scales = torch.ones(count, 1, device=DEVICE), torch.ones(1, 48, device=DEVICE)
    got = linear._linear(a, scales[0], weight, scales[1], None, torch.bfloat16, 0 if has_other else -1)
    assert asked == [(count, 48, 32, BACKEND != "cuda", DEVICE.type)]
    assert (got == (-1.0 if chosen == "library" and has_other else 32.0)).all()


@pytest.mark.skipif(BACKEND != "cuda", reason="of NVIDIA's libraries")
@pytest.mark.parametrize(
    "rows, own, theirs", [(32, True, False), (33, True, True), (512, False, False), (513, False, True)]
)
def test_prompts_are_left_to_cutlass(monkeypatch, rows, own, theirs):
    """Beside CUTLASS: skinny_gemm for few rows, torch's GEMM where there is one scale."""
    monkeypatch.setattr(linear, "_many_rows", [Other()])
    a, weight = (torch.ones(each, 32, device=DEVICE).to(torch.float8_e4m3fn) for each in (rows, 48))
    scales = [torch.ones(shape, device=DEVICE) for shape in (((rows, 1), (1, 48)) if own else ((1,), (1,)))]
    got = linear._linear(a, scales[0], weight, scales[1], None, torch.bfloat16, 0)
    assert (got == (-1.0 if theirs else 32.0)).all()


@pytest.mark.parametrize("rows", [128, 129])
def test_prompts_are_left_to_deep_gemm(monkeypatch, rows):
    """With the checkpoint's own scales; a bias is added behind it."""
    asked = []

    def fp8_gemm_nt(a, b, out, *, is_deep_gemm_e8m0_used):
        asked.append([*(tuple(t.shape) for t in (*a, *b)), is_deep_gemm_e8m0_used])
        out.fill_(-1.0)

    monkeypatch.setattr(block_linear, "_deep_gemm_takes", lambda columns, k, dtype: (columns, k) == (64, 128))
    monkeypatch.setattr(block_linear.deep_gemm, "fp8_gemm_nt", fp8_gemm_nt)
    a, weight = (torch.ones(each, 128, device=DEVICE).to(torch.float8_e4m3fn) for each in (rows, 64))
    scale, of_weight = torch.ones(rows, 1, device=DEVICE), torch.ones(1, 1, device=DEVICE)
    bias = torch.ones(64, dtype=torch.bfloat16, device=DEVICE)
    got = block_linear._linear(a, scale, weight, of_weight, bias, torch.bfloat16)
    assert (got == (0.0 if rows > 128 else 129.0)).all()
    assert asked == ([[(rows, 128), (rows, 1), (64, 128), (1, 1), False]] if rows > 128 else [])


@pytest.mark.parametrize("given", ["bfloat16", "quantised"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [1, 33, 100])
@pytest.mark.parametrize("scale_fmt", [None, "ue8m0"])
def test_a_linear_of_blocks_is_its_definition(given, dtype, rows, scale_fmt, generator, monkeypatch):
    n, k = 200, 300
    layer = torch.nn.Module()
    layer.weight = torch.nn.Parameter(torch.randn(n, k, generator=generator).to(torch.float8_e4m3fn), False)
    layer.weight_scale_inv = torch.nn.Parameter(torch.rand(2, 3, generator=generator) + 0.5, False)
    with set_current_vllm_config(VllmConfig()):
        asks_for(scale_fmt, monkeypatch)
        ours = block_linear.BlockScaledFp8Linear(config(dtype=dtype, **BLOCKS))
    assert ours.can_implement(config(dtype=dtype, **BLOCKS))[0]
    weight, of_blocks = layer.weight.double(), layer.weight_scale_inv.data.clone()
    layer.to(DEVICE)
    ours.process_weights_after_loading(layer)
    x = torch.randn(rows, k, generator=generator).to(dtype)
    bias = torch.randn(n, generator=generator).to(dtype)
    scale = torch.stack([part.float().abs().amax(1) for part in x.split(128, 1)], 1) / 448
    if scale_fmt:
        scale = torch.exp2(torch.ceil(torch.log2(scale)))
    each = scale.repeat_interleave(128, 1)[:, :k]
    q = (x.float() / each).clamp(-448, 448).to(torch.float8_e4m3fn)
    of_weight = of_blocks.repeat_interleave(128, 0)[:n].repeat_interleave(128, 1)[:, :k]
    wide, weight = q.double() * each.double(), weight * of_weight.double()
    expected = wide @ weight.t() + bias.double()
    if given == "quantised":
        inputs = ours.activation(q.to(DEVICE), scale.to(DEVICE), dtype)
    else:
        inputs = x.to(DEVICE)
    got = ours.apply_weights(layer, inputs, bias.to(DEVICE)).cpu()
    assert got.dtype == dtype
    # One rounding to dtype, and sums of 300 products.
    bound = expected.abs() * torch.finfo(dtype).eps + 300 * SUM * (wide.abs() @ weight.abs().t())
    assert ((got.double() - expected).abs() <= bound).all()


def test_an_unknown_format_of_scales_is_one_line(monkeypatch):
    with set_current_vllm_config(VllmConfig()):
        asks_for("ue5m3", monkeypatch)
        with pytest.raises(ValueError, match="FP8 blocks: scale_fmt 'ue5m3'; known: float, ue8m0"):
            block_linear.BlockScaledFp8Linear(config(**BLOCKS))


def test_what_it_cannot_do_is_left_to_vllm():
    for changes in (
        dict(inputs=quant_utils.kFp8DynamicTokenSym),
        dict(inputs=quant_utils.kFp8Dynamic64Sym),
        dict(weights=quant_utils.kFp8StaticChannelSym),
        dict(dtype=torch.float32),
    ):
        assert not block_linear.BlockScaledFp8Linear.can_implement(config(**(BLOCKS | changes)))[0]
    for refused in (
        config(quant_utils.kFp8Dynamic128Sym),
        config(quant_utils.kFp8StaticTensorSym, quant_utils.kFp8Static128BlockSym),
        config(quant_utils.kFp8StaticTensorSym, dtype=torch.float32),
    ):
        assert not linear.FewRowsFp8Linear.can_implement(refused)[0]


@of_cpus_alone
def test_parts_keep_their_scales():
    weight = torch.randn(6, 4).to(torch.float8_e4m3fn)
    scales, kept = cpu.keep_scales(weight, torch.tensor([0.5, 0.25]), [4, 2])
    assert kept is weight and scales.tolist() == [0.5] * 4 + [0.25] * 2
    for one in (torch.tensor([0.5, 0.5]), torch.tensor([0.5, torch.finfo(torch.float32).min]), torch.tensor(0.5)):
        scales, kept = cpu.keep_scales(weight, one, [4, 2])
        assert kept is weight and scales.shape == () and scales == 0.5
    cpu.install()
    from vllm.model_executor.layers.quantization.utils import w8a8_utils

    assert w8a8_utils.requantize_with_max_scale is cpu.keep_scales
    assert requantize_with_max_scale is cpu.keep_scales  # this module had it by name


def layer_of(name: str, module: str) -> torch.nn.Module:
    """With the modules of a decoder layer, under a class of this name and module."""
    layer = type(name, (torch.nn.Module,), {"__module__": f"vllm.model_executor.models.{module}"})()
    layer.self_attn, layer.mlp = torch.nn.Module(), torch.nn.Module()
    layer.input_layernorm, layer.post_attention_layernorm = (RMSNorm(64, dtype=torch.bfloat16) for _ in range(2))
    layer.mlp.act_fn = SiluAndMul()
    for parent, linears in ((layer.self_attn, ("qkv_proj",)), (layer.mlp, ("gate_up_proj", "down_proj"))):
        for each in linears:
            setattr(parent, each, torch.nn.Module())
    return layer


def test_only_known_layers_before_our_linears_are_fused():
    with set_current_vllm_config(VllmConfig()):
        ours = few_rows(config(quant_utils.kFp8DynamicTokenSym))
        layers = [layer_of(*kind) for kind in (("LlamaDecoderLayer", "llama"), ("LlamaDecoderLayer", "other"))]
        layers += [layer_of("Qwen3DecoderLayer", "qwen3")]
    torch.nn.ModuleList(layers).to(DEVICE)
    for layer in layers:
        layer.self_attn.qkv_proj.rocm_fp8_linear = ours
        layer.mlp.gate_up_proj.rocm_fp8_linear = ours
    layers[0].mlp.down_proj.rocm_fp8_linear = ours
    layers[2].post_attention_layernorm.weight.data = torch.ones(64, device=DEVICE)  # float32
    fusion.fuse(torch.nn.ModuleList(layers))
    kinds = [
        [type(each) for each in (layer.input_layernorm, layer.post_attention_layernorm, layer.mlp.act_fn)]
        for layer in layers
    ]
    assert kinds == [
        [fusion.QuantizingRMSNorm, fusion.QuantizingRMSNorm, fusion.QuantizingSiluAndMul],
        [RMSNorm, RMSNorm, SiluAndMul],
        [fusion.QuantizingRMSNorm, RMSNorm, SiluAndMul],
    ]
    # The linear is known, not held: names and parameters of the model stay.
    assert [name for name, _ in layers[0].input_layernorm.named_parameters()] == ["weight"]

    # Whatever takes a linear's place, as a LoRA's module does, is given what vLLM's own modules give: also one that has
    # all attributes of the linear that it wraps.
    layers[0].self_attn.qkv_proj, wrapper = torch.nn.Module(), BaseLayerWithLoRA()
    wrapper.base_layer = layers[0].mlp.down_proj
    assert wrapper.rocm_fp8_linear is ours
    layers[0].mlp.down_proj = wrapper
    x = torch.randn(3, 64).bfloat16().to(DEVICE)
    assert torch.equal(layers[0].input_layernorm(x), layers[1].input_layernorm(x))
    assert torch.equal(layers[0].mlp.act_fn(x), layers[1].mlp.act_fn(x))


def test_what_feeds_a_linear_that_rotates_its_inputs_stays():
    """By compressed-tensors' transform_config: vLLM's method rotates numbers, not FP8."""
    with set_current_vllm_config(VllmConfig()):
        ours = few_rows(config(quant_utils.kFp8DynamicTokenSym))
        layer = layer_of("LlamaDecoderLayer", "llama").to(DEVICE)
    for each in (layer.self_attn.qkv_proj, layer.mlp.gate_up_proj, layer.mlp.down_proj):
        each.rocm_fp8_linear = ours
    layer.mlp.down_proj.quant_method = compressed_tensors.CompressedTensorsLinearTransformMethod(None, {0: None}, {})
    layer.mlp.gate_up_proj.quant_method = compressed_tensors.CompressedTensorsLinearTransformMethod(None, {}, {0: None})
    fusion.fuse(torch.nn.ModuleList([layer]))
    assert type(layer.mlp.act_fn) is SiluAndMul
    assert type(layer.input_layernorm) is type(layer.post_attention_layernorm) is fusion.QuantizingRMSNorm


def test_norms_whose_results_go_elsewhere_first_stay():
    """Voxtral's layers multiply one; with sequence-parallel mixtures DeepSeek's gather the other from all workers."""
    with set_current_vllm_config(VllmConfig()):
        ours = few_rows(config(quant_utils.kFp8DynamicTokenSym))
        layers = [layer_of("MistralDecoderLayer", "mistral") for _ in range(2)]
        layers += [layer_of("DeepseekV2DecoderLayer", "deepseek_v2") for _ in range(2)]
    for layer in layers[2:]:
        layer.self_attn.mla_attn = latent = torch.nn.Module()
        latent.indexer, latent.g_proj, latent.fuse_qkv_rmsnorm = None, None, False
        latent.fused_qkv_a_proj = torch.nn.Module()
        latent.fused_qkv_a_proj.rocm_fp8_linear = ours
    for layer in layers:
        layer.self_attn.qkv_proj.rocm_fp8_linear = layer.mlp.gate_up_proj.rocm_fp8_linear = ours
        layer.ada_rms_norm_t_cond, layer.use_sequence_parallel_moe = None, False
    layers[1].ada_rms_norm_t_cond = torch.nn.Linear(4, 64)
    layers[3].use_sequence_parallel_moe = True
    fusion.fuse(torch.nn.ModuleList(layers).to(DEVICE))
    kinds = [[type(layer.input_layernorm), type(layer.post_attention_layernorm)] for layer in layers]
    both = [fusion.QuantizingRMSNorm] * 2
    assert kinds == [both, [fusion.QuantizingRMSNorm, RMSNorm], both, [RMSNorm, fusion.QuantizingRMSNorm]]
