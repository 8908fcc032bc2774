"""MXFP4 and MXFP8 experts beside an engine: every gate by vLLM's configuration, which experts are taken, what vLLM does
to weights for them."""

from types import SimpleNamespace

import pytest
import torch
from compressed_tensors.quantization import QuantizationArgs
from rocm_fp8_vllm import EXPERTS, mx_experts
from rocm_fp8_vllm.kernel import kernel
from rocm_fp8_vllm.mx_experts import (
    Backend,
    MxExperts,
    MxExpertsOfMxInputs,
    Mxfp8Experts,
    Mxfp8ExpertsOfMxInputs,
)
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.activation import SituAndMul
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.oracle import fp8, mxfp8
from vllm.model_executor.layers.fused_moe.oracle import mxfp4 as choice
from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors_moe import (
    compressed_tensors_moe_w4a4_mxfp4 as compressed,
)
from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors_moe import (
    compressed_tensors_moe_w8a8_mxfp8 as compressed8,
)
from vllm.model_executor.layers.quantization.online import mxfp8 as online
from vllm.model_executor.layers.quantization.quark import quark_moe
from vllm.model_executor.layers.quantization.utils.quant_utils import kFp8StaticTensorSym, kMxfp4Dynamic, kMxfp8Dynamic

from problems import mx, mx_checkpoints

from .moe_config import Routed, moe_config
from .settings import of_cpus_alone

pytestmark = of_cpus_alone

E, D, HIDDEN, TOP, ROWS = 6, 96, 64, 2, 9
OURS, THEIRS = choice.Mxfp4MoeBackend.MARLIN, object()
MXFP4 = (Backend.W4A16, Backend.W4A4)
ACTIVATION = MoEActivation


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    mx_experts.install()


# --- what they compute ---


def oai(gate: torch.Tensor, up: torch.Tensor, alpha: float, limit: float) -> torch.Tensor:
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return (up + 1) * gate * torch.sigmoid(alpha * gate)


def silu(gate: torch.Tensor, up: torch.Tensor, limit: float = torch.inf) -> torch.Tensor:
    return torch.nn.functional.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)


def situ(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    with set_current_vllm_config(VllmConfig()):
        return SituAndMul(2.0, 3.0).forward_native(torch.cat([gate, up], -1))


# (vLLM's configuration of the model, of the method; the gate)
GATES = {
    "silu": (dict(), dict(), silu),
    "silu, the model's limit": (dict(swiglu_limit=0.5), dict(), lambda g, u: silu(g, u, 0.5)),
    "silu, the method's limit": (dict(swiglu_limit=9.0), dict(swiglu_limit=0.5), lambda g, u: silu(g, u, 0.5)),
    "gpt-oss": (dict(activation=ACTIVATION.SWIGLUOAI), dict(), lambda g, u: oai(g, u, 1.702, 7.0)),
    "gpt-oss, its method's numbers": (
        dict(activation=ACTIVATION.SWIGLUOAI, has_bias=True),
        dict(gemm1_alpha=1.2, gemm1_beta=1.0, swiglu_limit=0.7),
        lambda g, u: oai(g, u, 1.2, 0.7),
    ),
    "MiniMax-M3": (
        dict(activation=ACTIVATION.SWIGLUOAI_UNINTERLEAVE, swiglu_alpha=1.5, swiglu_beta=1.0, swiglu_limit=0.7),
        dict(),
        lambda g, u: oai(g, u, 1.5, 0.7),
    ),
    "Kimi-K3": (
        dict(activation=ACTIVATION.SITU, activation_situ_beta=2.0, activation_situ_linear_beta=3.0),
        dict(),
        situ,
    ),
}


@pytest.mark.parametrize("mapped", [False, True], ids=["all experts", "experts of a rank"])
@pytest.mark.parametrize("backend", Backend)
@pytest.mark.parametrize("case", GATES)
def test_experts_are_their_definition(case, backend, mapped, generator):
    model, method, gated = GATES[case]
    config = moe_config(**model)
    made = mx_experts._CLASSES[backend]
    weights_of = kernel.quantize_mxfp4 if backend in MXFP4 else lambda w: mx_checkpoints.mxfp8(kernel, w)
    x = torch.randn(ROWS, D, generator=generator).bfloat16()
    w13, scale13 = weights_of(torch.randn(E, 2 * HIDDEN, D, generator=generator) / D**0.5)
    w2, scale2 = weights_of(torch.randn(E, D, HIDDEN, generator=generator) / HIDDEN**0.5)
    biases = [torch.randn(E, n, generator=generator).bfloat16() if config.has_bias else None for n in (2 * HIDDEN, D)]
    routed = Routed(generator, ROWS, E, TOP, mapped)

    def entering(values: torch.Tensor) -> torch.Tensor:
        return mx_checkpoints.entering(kernel, made.inputs, values.bfloat16().unsqueeze(0)).squeeze(0)

    wide13, wide2 = mx.values(w13, scale13), mx.values(w2, scale2)

    def y(expert: int, row: int) -> torch.Tensor:
        product = wide13[expert] @ entering(x[row]) + (biases[0][expert].double() if config.has_bias else 0)
        alternate = config.activation == ACTIVATION.SWIGLUOAI
        hidden = gated(*((product[::2], product[1::2]) if alternate else product.chunk(2)))
        return wide2[expert] @ entering(hidden) + (biases[1][expert].double() if config.has_bias else 0)

    expected = routed.added_up(y)

    scales = dict(w1_scale=scale13.view(torch.uint8), w2_scale=scale2.view(torch.uint8))
    given = dict(zip(("w1_bias", "w2_bias"), biases)) | scales | method
    if backend in MXFP4:
        told = choice.make_mxfp4_moe_quant_config(mxfp4_backend=backend, **given)
    else:
        given |= dict(a1_scale=None, a2_scale=None, block_shape=[1, mx.BLOCK])
        told = fp8.make_fp8_moe_quant_config(fp8_backend=backend, **given)
    call = routed.call(x, w13, w2, config.activation)
    made(config, told).apply(**call, apply_router_weight_on_input=False)
    # As of FP8's experts: two roundings to bfloat16, and few codes of the hidden values.
    assert (call["output"].double() - expected).norm() <= 2.0**-7 * expected.norm()


# --- which are taken ---


@pytest.fixture(autouse=True)
def no_switch(monkeypatch) -> None:
    monkeypatch.delenv(EXPERTS, raising=False)
    # What a user's --quantization-config says of inputs: nothing.
    monkeypatch.setattr(choice, "_user_moe_activation_override", lambda: None)


def on(platform: str, monkeypatch) -> None:
    """platform: cpu, rocm, cuda (not Hopper), hopper."""
    kind, hopper = type(mx_experts.current_platform), platform == "hopper"
    for each in ("cpu", "cuda", "rocm"):
        is_it = each == ("cuda" if hopper else platform)
        monkeypatch.setattr(kind, f"is_{each}", lambda self, is_it=is_it: is_it)
    monkeypatch.setattr(kind, "is_device_capability", lambda self, capability: hopper and capability == 90)


def select(theirs=THEIRS, backend=OURS, key=None, **changes):
    """What is chosen where vLLM would choose `theirs`, or has none (None)."""

    def chosen(*_):
        if theirs is None:
            raise NotImplementedError("No MXFP4 MoE backend supports the deployment configuration.")
        return backend, theirs

    return mx_experts._ours_first(chosen)(moe_config(**changes), key)


def select_mxfp8(theirs=THEIRS, backend=fp8.Fp8MoeBackend.MARLIN, **changes):
    def chosen(_):
        if theirs is None:
            raise ValueError("No MXFP8 MoE backends available.")
        return backend, theirs

    return mx_experts._ours_first_of_mxfp8(chosen)(moe_config(**changes))


def test_ours_come_first_on_a_cpu_and_inputs_are_the_checkpoints():
    assert select() == (Backend.W4A16, MxExperts)
    assert select(key=kMxfp4Dynamic) == (Backend.W4A4, MxExpertsOfMxInputs)
    for name in ("select_mxfp4_moe_backend", "select_deepseek_v4_mxfp4_moe_backend"):
        assert getattr(choice, name).rocm_fp8_first
    assert select_mxfp8() == (Backend.W8A8, Mxfp8ExpertsOfMxInputs)
    of_mxfp8 = mxfp8.select_mxfp8_moe_backend
    assert of_mxfp8.__wrapped__ and of_mxfp8 is online.select_mxfp8_moe_backend
    assert of_mxfp8 is compressed8.select_mxfp8_moe_backend
    first = choice.select_mxfp4_moe_backend
    mx_experts.install()
    assert choice.select_mxfp4_moe_backend is first is quark_moe.select_mxfp4_moe_backend
    assert mxfp8.select_mxfp8_moe_backend is of_mxfp8


@pytest.mark.parametrize(
    ("choose", "made", "emulation"),
    [
        (select, MxExperts, choice.Mxfp4MoeBackend.EMULATION),
        (select_mxfp8, Mxfp8ExpertsOfMxInputs, fp8.Fp8MoeBackend.EMULATION),
    ],
    ids=["MXFP4", "MXFP8"],
)
@pytest.mark.parametrize(
    ("platform", "theirs", "taken"),
    [
        *(("cuda", "theirs", False), ("cuda", "emulation", True), ("cuda", "none", True)),
        *(("hopper", "theirs", "MXFP4"), ("hopper", "emulation", True)),
        *(("rocm", "theirs", False), ("rocm", "emulation", True), ("rocm", "none", True)),
        *(("cpu", "theirs", True), ("cpu", "none", True)),
    ],
)
def test_what_is_taken_on_each_platform_and_by_the_users_switch(
    platform, theirs, taken, choose, made, emulation, monkeypatch
):
    on(platform, monkeypatch)
    given = {"theirs": dict(), "emulation": dict(backend=emulation), "none": dict(theirs=None)}[theirs]
    taken = made is MxExperts if taken == "MXFP4" else taken
    for switch, ours in ((None, taken), ("1", True), ("0", False)):
        if switch is not None:
            monkeypatch.setenv(EXPERTS, switch)
        if not ours and theirs == "none":
            with pytest.raises((NotImplementedError, ValueError), match="^No MXFP. MoE backend"):
                choose(**given)
        else:
            assert choose(**given)[1] is (made if ours else THEIRS)


def test_on_hopper_bfloat16_beside_mxfp4_is_ours(monkeypatch):
    """What was measured in engines; float16 has another kernel."""
    on("hopper", monkeypatch)
    assert select()[1] is MxExperts
    assert select(in_dtype=torch.float16)[1] is select(key=kMxfp4Dynamic)[1] is THEIRS


OTHERS = {
    "fused_moe has no torch.float32": dict(in_dtype=torch.float32),
    "fused_moe has no LoRA: let --lora-target-modules name other modules": dict(is_lora_enabled=True),
    "kernel does not support quantization scheme": dict(key=kFp8StaticTensorSym),
    "kernel does not support .* activation": dict(activation=ACTIVATION.GELU),
    "kernel does not support parallel config": dict(parallel=dict(dp_size=2)),
    "fused_moe has blocks of 32: an expert's intermediate size on each worker is 48": dict(
        intermediate_size_per_partition=48
    ),
    "fused_moe has no swiglu_alpha and no swiglu_beta beside MoEActivation.SILU": dict(swiglu_alpha=1.7),
    "fused_moe adds 1 to what is gated: not swiglu_beta 0": dict(activation=ACTIVATION.SWIGLUOAI, swiglu_beta=0.0),
    "fused_moe adds 1 to what is gated: not swiglu_beta None": dict(activation=ACTIVATION.SWIGLUOAI_UNINTERLEAVE),
}


@pytest.mark.parametrize("reason", OTHERS)
def test_others_are_vllms_or_one_line(reason):
    for kind, choose in (("MXFP4", select), ("MXFP8", select_mxfp8)):
        if choose is select_mxfp8 and "key" in OTHERS[reason]:
            continue  # its methods hand on no inputs
        assert choose(**OTHERS[reason])[1] is THEIRS
        line = f"{kind} experts: vLLM has none for this platform, and ours: {reason}"
        with pytest.raises(NotImplementedError, match=line):
            choose(None, **OTHERS[reason])


def test_a_workers_share_of_gpt_oss_may_be_padded():
    assert select(activation=ACTIVATION.SWIGLUOAI, intermediate_size_per_partition=720)[1] is MxExperts


def test_vllms_own_variables_leave_them_to_vllm(monkeypatch):
    assert select(moe_backend="marlin")[1] is select_mxfp8(moe_backend="marlin")[1] is THEIRS
    # --quantization-config '{"moe": {"activation": "mxfp8"}}'
    monkeypatch.setattr(choice, "_user_moe_activation_override", lambda: kMxfp8Dynamic)
    assert select()[1] is THEIRS
    monkeypatch.undo()
    monkeypatch.setenv("VLLM_DISABLED_KERNELS", "FusedMoeExperts")
    monkeypatch.setattr(choice, "_user_moe_activation_override", lambda: None)
    assert select()[1] is select_mxfp8()[1] is THEIRS


# --- in vLLM's methods ---


@pytest.mark.parametrize("backend", MXFP4)
def test_weights_stay_as_they_are_loaded(backend):
    sizes = choice.mxfp4_round_up_hidden_size_and_intermediate_size
    assert sizes(backend, 2880, 2880 // 4) == (2880, 736)  # vLLM's own: 64, 128 or 256
    assert (
        choice.backend_to_kernel_cls(backend)
        == quark_moe.backend_to_kernel_cls(backend)
        == [mx_experts._CLASSES[backend]]
    )
    weights = [torch.zeros(E, 2, 2, dtype=torch.uint8) for _ in range(4)] + [torch.zeros(E, 2) for _ in range(2)]
    names = ("w13_weight", "w2_weight", "w13_weight_scale", "w2_weight_scale", "w13_bias", "w2_bias")
    for convert in (
        choice.convert_gpt_oss_weight_to_mxfp4_moe_kernel_format,
        choice.convert_weight_to_mxfp4_moe_kernel_format,
    ):
        kept = convert(mxfp4_backend=backend, layer=None, **dict(zip(names, weights)))
        assert all(one is other for one, other in zip(kept, weights, strict=True))
    assert choice.backend_to_kernel_cls(choice.Mxfp4MoeBackend.CPU)[0].__name__ == "CPUExpertsMxfp4"
    assert sizes(choice.Mxfp4MoeBackend.MARLIN, 2880, 720) == (3072, 768)


@pytest.mark.parametrize("backend", [Backend.W8A16, Backend.W8A8])
def test_weights_in_mxfp8_stay_as_they_are_loaded_or_get_the_chips_format(backend, generator, monkeypatch):
    w13, scale13 = mx_checkpoints.mxfp8(kernel, torch.randn(E, 2 * HIDDEN, D, generator=generator))
    w2, scale2 = mx_checkpoints.mxfp8(kernel, torch.randn(E, D, HIDDEN, generator=generator))
    weights = (w13, w2, scale13.view(torch.uint8), scale2.view(torch.uint8))
    given = dict(zip(("w13", "w2", "w13_scale", "w2_scale"), weights)) | dict(w13_input_scale=None, w2_input_scale=None)
    kept = fp8.convert_to_fp8_moe_kernel_format(fp8_backend=backend, layer=None, **given)
    assert all(one is other for one, other in zip(kept, weights, strict=True))
    monkeypatch.setattr(type(mx_experts.current_platform), "fp8_dtype", lambda *_: torch.float8_e4m3fnuz)
    made = fp8.convert_to_fp8_moe_kernel_format(fp8_backend=backend, layer=None, **given)
    for now, scale, before, of_before in ((made[0], made[2], w13, scale13), (made[1], made[3], w2, scale2)):
        assert now.dtype == torch.float8_e4m3fnuz and scale.dtype == torch.uint8
        assert torch.equal(mx.values(now, scale.view(torch.float8_e8m0fnu)), mx.values(before, of_before))
    other = fp8.convert_to_fp8_moe_kernel_format(fp8.Fp8MoeBackend.TRITON, torch.nn.Module(), *given.values())
    assert other[0] is w13


def inputs_named(form: str) -> QuantizationArgs | None:
    """A scheme's, of these settings."""
    named = mx_checkpoints.FORMS[form].settings(())["config_groups"]["group_0"]["input_activations"]
    return named and QuantizationArgs(**named)


@pytest.mark.parametrize(
    ("form", "made"),
    [
        *(("MXFP4A16", MxExperts), ("MXFP4", MxExpertsOfMxInputs), ("W4A8, rows", None)),
        *(("MXFP8A16", Mxfp8Experts), ("MXFP8", Mxfp8ExpertsOfMxInputs)),
        ("MXFP8 beside MXFP4", None),
    ],
)
@pytest.mark.parametrize("platform", ["cpu", "cuda", "hopper", "rocm"])
def test_compressed_tensors_inputs_are_the_checkpoints(platform, form, made, monkeypatch):
    """vLLM's methods do not look at them."""
    on(platform, monkeypatch)
    eight = form.startswith("MXFP8")
    inputs = inputs_named(f"compressed-tensors, {'MXFP4' if 'beside' in form else form}")
    has_marlin = platform in ("cuda", "hopper")
    theirs = SimpleNamespace(_supports_current_device=lambda: has_marlin, __name__="MarlinExperts")

    def vllms(*_):
        if not has_marlin:
            raise ValueError("No MXFP8 MoE backends available.")
        return fp8.Fp8MoeBackend.MARLIN, theirs

    if eight:
        method = object.__new__(compressed8.CompressedTensorsW8A8Mxfp8MoEMethod)
        method.moe = moe_config()
        monkeypatch.setattr(mxfp8, "select_mxfp8_moe_backend", mx_experts._ours_first_of_mxfp8(vllms))
    else:
        method = object.__new__(compressed.CompressedTensorsW4A4Mxfp4MoEMethod)
        method.mxfp4_backend, method.experts_cls, method.use_cutlass_mxfp4 = OURS, theirs, True
        method.moe = moe_config()

    def make(*_):
        if eight:
            method.fp8_backend, method.experts_cls = mxfp8.select_mxfp8_moe_backend(method.moe)
        return method

    scheme = dict(input_activations=inputs)
    config = SimpleNamespace(get_scheme_dict=lambda layer, name: scheme if name == "x.0.gate" else None)
    choose = mx_experts._of_compressed_tensors(make)
    layer = SimpleNamespace(ckpt_gate_proj_name="gate")
    if not has_marlin and made is None:
        with pytest.raises(NotImplementedError, match="MXFP. experts: .* does not support quantization scheme"):
            choose(config, layer, "x")
        return
    assert choose(config, layer, "x") is method
    if has_marlin and not (platform == "hopper" and made is MxExperts):
        assert method.experts_cls is theirs
        monkeypatch.setenv(EXPERTS, "1")
        choose(config, layer, "x")
    assert method.experts_cls is (theirs if made is None else made)
    if made is None:
        return
    if eight:
        assert isinstance(method.fp8_backend, Backend)
    else:
        assert not method.use_cutlass_mxfp4 and method.mxfp4_backend in compressed.B12X_BACKENDS


def test_other_methods_of_compressed_tensors_stay():
    other = object()
    assert mx_experts._of_compressed_tensors(lambda *_: other)(None, None, "x") is other
