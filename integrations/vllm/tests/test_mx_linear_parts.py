"""MXFP4 and MXFP8 linears beside an engine: what vLLM's schemes load, against the definition in float64, and which
kernels are taken."""

import pytest
import torch
from compressed_tensors.quantization import QuantizationArgs
from rocm_fp8_vllm import EXPERTS, mx_linear
from rocm_fp8_vllm.kernel import kernel
from rocm_fp8_vllm.mx_inputs import asking_for
from rocm_fp8_vllm.mx_linear import Mxfp4GemmLinear, Mxfp8GemmLinear
from vllm.model_executor.kernels import linear as choice
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors import CompressedTensorsConfig
from vllm.model_executor.layers.quantization.quark.quark import QuarkConfig
from vllm.model_executor.layers.quantization.utils.quant_utils import kFp8StaticTensorSym, kMxfp4Dynamic, kMxfp8Dynamic
from vllm.platforms import PlatformEnum, current_platform

from problems import mx, mx_checkpoints
from problems.comparisons import assert_mx_close
from problems.mx_checkpoints import FORMS

from .conftest import compiles
from .settings import of_cpus_alone

pytestmark = [of_cpus_alone, pytest.mark.usefixtures("one_worker")]

K, WIDTHS, ROWS = 96, {"one": [64], "joined": [40, 24]}, 9


@pytest.fixture(autouse=True)
def installed(monkeypatch) -> None:
    mx_linear.install()
    monkeypatch.delenv(EXPERTS, raising=False)


def scheme_of(form: str):
    """What vLLM makes of a checkpoint's settings."""
    settings = FORMS[form].settings(())
    if settings["quant_method"] == "quark":
        config = QuarkConfig.from_config(settings)
        weight_key, inputs, kind = config.get_scheme_cls(LinearBase, "model.layers.0.mlp.down_proj")
        return config.init_scheme(kind, weight_key, inputs)
    scheme = CompressedTensorsConfig.from_config(settings).target_scheme_map["Linear"]
    return compressed(scheme["weights"], scheme["input_activations"])


def compressed(weights: QuantizationArgs, inputs: QuantizationArgs | None):
    config = CompressedTensorsConfig.from_config(FORMS["compressed-tensors, MXFP4"].settings(()))
    return config._get_scheme_from_parts(weights, inputs)


def made(form: str, widths: list[int], dtype: torch.dtype) -> tuple:
    scheme, layer = scheme_of(form), torch.nn.Module()
    scheme.create_weights(layer, widths, K, dtype, weight_loader=lambda *_: None)
    return scheme, layer


def loaded(form: str, widths: list[int], dtype: torch.dtype, generator: torch.Generator) -> tuple:
    """(scheme, layer as after a checkpoint has been read, its weight in float64)"""
    scheme, layer = made(form, widths, dtype)
    sizes = torch.logspace(-4, 2, sum(widths)).unsqueeze(1)  # float16 holds their products
    codes_of = mx_checkpoints.CODES[f"mxfp{FORMS[form].bits}"]
    codes, scale = codes_of(kernel, torch.randn(sum(widths), K, generator=generator) * sizes)
    getattr(layer, FORMS[form].name).data.copy_(codes)
    layer.weight_scale.data.copy_(scale.view(torch.uint8))
    scheme.process_weights_after_loading(layer)
    return scheme, layer, mx.values(codes, scale)


def linear_of(scheme) -> Mxfp4GemmLinear | Mxfp8GemmLinear:
    return scheme.ocp_mx_linear if hasattr(scheme, "ocp_mx_linear") else scheme.kernel


@pytest.mark.parametrize("biased", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize(("widths", "dtype"), [("one", torch.bfloat16), ("joined", torch.float16)])
@pytest.mark.parametrize("form", FORMS)
def test_a_linear_is_its_definition(form, widths, dtype, biased, generator):
    scheme, layer, weight = loaded(form, WIDTHS[widths], dtype, generator)
    assert type(linear_of(scheme)) is {4: Mxfp4GemmLinear, 8: Mxfp8GemmLinear}[FORMS[form].bits]
    x = (torch.randn(ROWS, K, generator=generator) * torch.logspace(-2, 0, ROWS).unsqueeze(1)).to(dtype)
    bias = torch.randn(64, generator=generator).to(dtype) if biased else None
    given = x.view(3, 3, K)
    out = scheme.apply_weights(layer, given, bias)
    assert out.shape == (3, 3, 64) and out.dtype == dtype
    assert torch.equal(out.view(ROWS, 64), scheme.apply_weights(layer, x, bias))
    entering = mx_checkpoints.entering(kernel, FORMS[form].inputs, x)
    assert_mx_close(out.view(ROWS, 64), entering, weight, bias, form)


@pytest.mark.parametrize("form", FORMS)
def test_it_compiles_for_any_number_of_rows(form, generator):
    scheme, layer, _ = loaded(form, [64], torch.bfloat16, generator)
    bias = torch.randn(64, generator=generator).bfloat16()
    x = torch.randn(12, K, generator=generator).bfloat16()
    compiles(lambda x: scheme.apply_weights(layer, x * 2, bias) + 1, x)
    arguments = (layer.weight, layer.weight_scale, bias, FORMS[form].inputs)
    # What looks for writes to arguments compares them, which torch does not do with FP8.
    parts = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    parts += ("test_schema",) if FORMS[form].bits == 4 else ()
    for given in (x, x.view(3, 4, K), x[:0], x[::2]):
        torch.library.opcheck(torch.ops.rocm_fp8_vllm.mx_linear.default, (given, *arguments), test_utils=parts)


@pytest.mark.parametrize("form", ["compressed-tensors, MXFP8", "quark, MXFP8A16", "compressed-tensors, W4A8"])
def test_mxfp8_in_the_chips_own_format(form, generator, monkeypatch):
    """The same numbers; of inputs the codes differ, as the format ends at 240."""
    monkeypatch.setattr(type(current_platform), "fp8_dtype", lambda *_: torch.float8_e4m3fnuz)
    scheme, layer, weight = loaded(form, [64], torch.bfloat16, generator)
    if FORMS[form].bits == 8:
        assert layer.weight.dtype == torch.float8_e4m3fnuz
    assert torch.equal(mx.values(layer.weight.data, layer.weight_scale.data.view(torch.float8_e8m0fnu)), weight)
    x = torch.randn(ROWS, K, generator=generator).bfloat16()
    entering = x.double()
    if FORMS[form].inputs == "mxfp8":
        options = dict(scaling="group", group_size=mx.BLOCK, scale_dtype=torch.float8_e8m0fnu)
        entering = mx.values(*kernel.reference.quantize_fp8(x, **options, out_dtype=torch.float8_e4m3fnuz))
    assert_mx_close(scheme.apply_weights(layer, x), entering, weight, None, form)


# --- which are taken ---

UNKNOWN = {  # of a checkpoint's inputs -> changes
    "static": dict(dynamic=False),
    "asymmetric": dict(num_bits=8, strategy="token", group_size=None, scale_dtype=None, symmetric=False),
    "groups of 128": dict(num_bits=8, group_size=128, scale_dtype=None),
    "float32 scales": dict(num_bits=8, scale_dtype=None),
    "e4m3 scales": dict(scale_dtype="torch.float8_e4m3fn"),
}


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("case", [*UNKNOWN, "MXFP4 beside MXFP8"])
def test_inputs_that_no_gemm_has_are_refused_with_their_reason(case, bits):
    """Also where vLLM would go on with inputs in MXFP4."""
    scheme = CompressedTensorsConfig.from_config(FORMS[f"compressed-tensors, MXFP{bits}"].settings(()))
    scheme = scheme.target_scheme_map["Linear"]
    settings = mx_checkpoints.compressed(4, dict(dynamic=True) | UNKNOWN.get(case, {}), ())
    inputs = QuantizationArgs(**settings["config_groups"]["group_0"]["input_activations"])

    def make() -> None:
        made = compressed(scheme["weights"], inputs)
        made.create_weights(torch.nn.Module(), [64], K, torch.bfloat16, weight_loader=lambda *_: None)

    if case == "MXFP4 beside MXFP8" and bits == 4:
        make()
    else:
        with pytest.raises(ValueError, match=rf"(?s)Reasons:.*Mxfp{bits}GemmLinear: has no inputs quantised by"):
            make()


def test_quarks_inputs_that_no_gemm_has_are_refused():
    settings = mx_checkpoints.quark("fp8_e4m3", "fp4", ())
    config = QuarkConfig.from_config(settings)
    weight_key, inputs, kind = config.get_scheme_cls(LinearBase, "model.layers.0.mlp.down_proj")
    assert inputs == kMxfp4Dynamic
    scheme = config.init_scheme(kind, weight_key, inputs)
    with pytest.raises(ValueError, match="Mxfp8GemmLinear: has no inputs quantised by"):
        scheme.create_weights(torch.nn.Module(), [64], K, torch.bfloat16, weight_loader=lambda *_: None)


def test_what_vllm_hands_on_is_asked_without_a_checkpoints_settings():
    assert choice.init_mxfp4_linear_kernel(None).inputs == "16bit"
    assert choice.init_mxfp4_linear_kernel(kMxfp4Dynamic).inputs == "mxfp4"
    assert choice.init_mxfp4_linear_kernel(kMxfp8Dynamic).inputs == "mxfp8"
    assert choice.init_mxfp8_linear_kernel(weight_shape=(64, K)).inputs == "mxfp8"
    with pytest.raises(ValueError, match="Mxfp4GemmLinear: has no inputs quantised by"):
        choice.init_mxfp4_linear_kernel(kFp8StaticTensorSym)
    with pytest.raises(ValueError, match="MXFP8 linear layer"):  # vLLM asks none of a CPU's for batches
        choice.init_mxfp8_linear_kernel(weight_shape=(64, K), bmm_batch_size=2)
    config = choice.Mxfp8LinearLayerConfig((64, K), 2)
    assert Mxfp8GemmLinear.can_implement(config) == (False, "multiplies no batches")


def test_what_the_user_asks_for_replaces_what_the_checkpoint_says(monkeypatch):
    """vLLM 0.33's quantization_config.linear.activation."""

    def inputs(key):
        monkeypatch.setattr(choice, "_user_linear_activation_override", lambda: key, raising=False)
        with asking_for(kMxfp4Dynamic):
            return choice.init_mxfp4_linear_kernel(kMxfp4Dynamic if key is None else key).inputs

    assert [inputs(key) for key in (kMxfp8Dynamic, None, kMxfp4Dynamic)] == ["mxfp8", "mxfp4", "mxfp4"]
    with pytest.raises(ValueError, match="Mxfp4GemmLinear: has no inputs quantised by"):
        inputs(kFp8StaticTensorSym)


def test_blocks_that_a_worker_would_cut_are_refused():
    scheme, layer = scheme_of("compressed-tensors, MXFP8"), torch.nn.Module()
    layer.prefix = "model.layers.0.mlp.down_proj"
    scheme.create_weights(layer, [64], 48, torch.bfloat16, weight_loader=lambda *_: None)
    with pytest.raises(ValueError, match="48 inputs of model.layers.0.mlp.down_proj; they must divide by 32"):
        scheme.process_weights_after_loading(layer)


BITS = {
    4: (choice._POSSIBLE_MXFP4_KERNELS, Mxfp4GemmLinear, lambda: choice.init_mxfp4_linear_kernel(None)),
    8: (choice._POSSIBLE_MXFP8_KERNELS, Mxfp8GemmLinear, lambda: choice.init_mxfp8_linear_kernel(weight_shape=(64, K))),
}


@pytest.mark.parametrize("bits", BITS)
def test_it_is_first_once_and_left_out_on_request(bits, monkeypatch):
    kernels, ours, choose = BITS[bits]
    mx_linear.install()
    assert kernels[PlatformEnum.CPU][0] is ours and kernels[PlatformEnum.CPU].count(ours) == 1
    wrapped = CompressedTensorsConfig._get_scheme_from_parts
    assert not hasattr(wrapped.__wrapped__, "rocm_fp8_asks")
    monkeypatch.setenv("VLLM_DISABLED_KERNELS", ours.__name__)
    with pytest.raises(ValueError, match=f"{ours.__name__} *disabled by environment variable"):
        choose()


@pytest.mark.parametrize("bits", BITS)
def test_on_gpus_it_stands_before_emulations_or_asks_for_the_users_switch(bits, monkeypatch):
    kernels, ours, _ = BITS[bits]
    for platform in (PlatformEnum.ROCM, PlatformEnum.CUDA):
        for every, *_ in BITS.values():
            monkeypatch.setitem(every, platform, list(every[platform]))
        monkeypatch.setattr(type(current_platform), "_enum", platform)
        for each in ("cpu", "cuda", "rocm"):
            is_it = platform.name.lower() == each
            monkeypatch.setattr(type(current_platform), f"is_{each}", lambda self, is_it=is_it: is_it)
        before = list(kernels[platform])
        mx_linear.install()
        place = kernels[platform].index(ours)
        assert [each for each in kernels[platform] if each is not ours] == before
        if platform == PlatformEnum.CUDA:
            assert place == 0
            for switch in (None, "0", "1"):
                if switch is not None:
                    monkeypatch.setenv(EXPERTS, switch)
                supported, reason = ours.is_supported()
                assert supported == (switch == "1") and (supported or f"{EXPERTS}=1" in reason)
        else:
            assert [each.__name__.startswith("Emulation") for each in before].index(True) == place > 0
            assert ours.is_supported() == (True, None)


@pytest.mark.parametrize("targets", [["re:.*down_proj"], ["re:.*up_proj"], ["re:.*gate_proj", "re:.*up_proj"]], ids=str)
def test_parts_with_inputs_of_their_own_are_not_joined(targets):
    """vLLM would give all of them one part's."""
    settings = FORMS["compressed-tensors, MXFP4"].settings(())
    first = settings["config_groups"]["group_0"]
    settings["config_groups"] = {
        "others": first | dict(targets=targets, input_activations=None),
        "group_0": first | dict(targets=["re:.*_proj"]),
    }
    config = CompressedTensorsConfig.from_config(settings)
    config.packed_modules_mapping = {"gate_up_proj": ["gate_proj", "up_proj"]}
    name = "model.layers.0.mlp.gate_up_proj"
    if len(targets) == 1 and "up" in targets[0]:
        with pytest.raises(ValueError, match=f"^{name}: input_activations of its parts are quantised in"):
            config.get_scheme_dict(torch.nn.Module(), name)
    else:
        inputs = config.get_scheme_dict(torch.nn.Module(), name)["input_activations"]
        assert (inputs is None) == (len(targets) == 2)


FP8 = dict(num_bits=8, type="float", symmetric=True)
OTHERS = {
    "input_activations": (dict(strategy="channel"), dict(strategy="token", dynamic=True)),
    "weights": (dict(strategy="tensor"), dict(strategy="tensor", dynamic=False)),
}


@pytest.mark.parametrize("what", OTHERS)
def test_parts_in_fp8_are_joined_where_they_are_quantised_alike(what):
    """vLLM takes q's scheme. An observer is nothing that is left in a file."""

    def group(weights: dict, inputs: dict, *targets: str, **more) -> dict:
        return dict(targets=list(targets), weights=FP8 | weights | more, input_activations=FP8 | inputs)

    static = dict(strategy="channel"), dict(strategy="tensor", dynamic=False)
    settings = dict(quant_method="compressed-tensors", format="float-quantized", ignore=[])
    for groups, refused in (
        (dict(a=group(*OTHERS[what], "re:.*q_proj"), b=group(*static, "Linear")), True),
        (dict(a=group(*static, "re:.*q_proj", observer="mse"), b=group(*static, "Linear")), False),
    ):
        config = CompressedTensorsConfig.from_config(settings | dict(config_groups=groups))
        config.packed_modules_mapping = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}
        name, layer = "model.layers.0.self_attn.qkv_proj", LinearBase.__new__(LinearBase)
        if refused:
            with pytest.raises(ValueError, match=f"^{name}: {what} of its parts are quantised in different ways"):
                config.get_scheme_dict(layer, name)
        else:
            assert config.get_scheme_dict(layer, name)["weights"].strategy == "channel"
