"""The parts beside an engine: the operator of experts, which experts are taken, their scales."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from rocm_fp8_vllm import EXPERTS, experts
from rocm_fp8_vllm.kernel import kernel
from vllm import envs
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.oracle import fp8 as choice
from vllm.model_executor.layers.quantization.utils import fp8_utils, quant_utils

from .conftest import asks_for
from .moe_config import Routed, moe_config
from .settings import of_cpus_alone

pytestmark = of_cpus_alone

E, D, HIDDEN, TOP = 6, 256, 128, 2
FP8_MAX = 448.0


# --- the operator ---


def codes(generator, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=generator).to(torch.float8_e4m3fn)


def scales(generator, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    shapes = {
        "tensor": ((E,), (E,)),
        "channel": ((E, 2 * HIDDEN, 1), (E, D, 1)),
        "block": ((E, 2 * HIDDEN // 128, D // 128), (E, D // 128, HIDDEN // 128)),
    }
    return tuple((torch.rand(shape, generator=generator) + 0.5) / 8 for shape in shapes[kind])


def wide(weight: torch.Tensor, scale: torch.Tensor, kind: str) -> torch.Tensor:
    if kind == "block":
        scale = scale.repeat_interleave(128, 1).repeat_interleave(128, 2)
    return weight.double() * (scale.view(-1, 1, 1) if kind == "tensor" else scale).double()


def quantised(x: torch.Tensor, inputs: str, given: torch.Tensor | None, power_of_two: bool) -> torch.Tensor:
    """What FP8 makes of x [..., n], as float64."""
    parts = x.float().unflatten(-1, (-1, 128)) if inputs == "group" else x.float().unsqueeze(-2)
    scale = given if inputs == "static" else parts.abs().amax(-1, keepdim=True) / FP8_MAX
    if power_of_two:
        scale = torch.exp2(torch.ceil(torch.log2(scale)))
    q = (parts / scale).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
    return (q.double() * scale.double()).flatten(-2)


@pytest.mark.parametrize("mapped", [False, True], ids=["all experts", "experts of a rank"])
@pytest.mark.parametrize(
    "kind, inputs, made_by",
    [
        *((*each, experts.FusedMoeExperts) for each in (("tensor", "static"), ("tensor", "row"), ("channel", "row"))),
        *(("block", "group", each) for each in (experts.FusedMoeExperts, experts.PowersOfTwoExperts)),
    ],
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_experts_are_their_definition(kind, inputs, made_by, mapped, dtype, generator):
    power_of_two = made_by.power_of_two
    rows = 9
    x = torch.randn(rows, D, generator=generator).to(dtype)
    w13, w2 = codes(generator, E, 2 * HIDDEN, D), codes(generator, E, D, HIDDEN)
    scale_w13, scale_w2 = scales(generator, kind)
    of_input = torch.tensor(0.01) if inputs == "static" else None
    of_hidden = torch.tensor([0.05]) if inputs == "static" else None
    routed = Routed(generator, rows, E, TOP, mapped)
    wide13, wide2 = wide(w13, scale_w13, kind), wide(w2, scale_w2, kind)
    q = quantised(x, inputs, of_input, power_of_two)

    def y(expert: int, row: int) -> torch.Tensor:
        gate, up = (wide13[expert] @ q[row]).to(dtype).double().chunk(2)
        hidden = (gate / (1 + torch.exp(-gate))).to(dtype) * up.to(dtype)
        return wide2[expert] @ quantised(hidden, inputs, of_hidden, power_of_two)

    expected = routed.added_up(y)
    out = torch.empty_like(x)
    of_weights, of_inputs = (scale_w13, scale_w2), (inputs, of_input, of_hidden)
    parts = (routed.weights, routed.chosen, *of_weights, *of_inputs, routed.expert_map)
    arguments = (out, x, w13, w2, *parts, None, power_of_two)
    torch.ops.rocm_fp8_vllm.experts(*arguments)
    # Few codes of the hidden values differ, by the order of sums: 2^-7 of the norm, as of the operator itself.
    assert (out.double() - expected).norm() <= 2.0**-7 * expected.norm()
    # Through FusedMoeExperts, as vLLM calls it.
    config = SimpleNamespace(gemm1_clamp_limit=None)
    made = SimpleNamespace(
        w1_scale=scale_w13, w2_scale=scale_w2, a1_scale=of_input, a2_scale=of_hidden, quant_config=config
    )
    made.block_shape, made.power_of_two = [128, 128] if kind == "block" else None, power_of_two
    made._how = partial(experts.FusedMoeExperts._how, made)
    for on_input in (False, True):
        call = routed.call(x, w13, w2, MoEActivation.SILU)
        experts.FusedMoeExperts.apply(made, **call, apply_router_weight_on_input=on_input)
        if on_input:
            torch.ops.rocm_fp8_vllm.experts(*arguments[:4], torch.ones_like(routed.weights), *arguments[5:])
        assert torch.equal(call["output"], out)


def test_it_compiles_for_any_number_of_rows(generator):
    w13, w2 = codes(generator, E, 2 * HIDDEN, D), codes(generator, E, D, HIDDEN)
    of_weights = scales(generator, "block")

    def mixture(x: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        weights, chosen = kernel.moe_route(logits, TOP)
        out = torch.empty_like(x)
        torch.ops.rocm_fp8_vllm.experts(
            out, x * 2, w13, w2, weights, chosen, *of_weights, "group", None, None, None, None, False
        )
        return out + 1

    compiled = torch.compile(mixture, fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (2, 3, 40):
        x = torch.randn(rows, D, generator=generator).bfloat16()
        logits = torch.randn(rows, E, generator=generator)
        assert torch.equal(compiled(x, logits), mixture(x, logits))


# --- which experts are taken ---

BLOCKS = dict(weight_key=quant_utils.kFp8Static128BlockSym, activation_key=quant_utils.kFp8Dynamic128Sym)


def select(theirs=None, **changes):
    """What is chosen where vLLM would choose `theirs`."""
    keys = {name: changes.pop(name, key) for name, key in BLOCKS.items()}
    ours = experts._ours_first(lambda *_: (choice.Fp8MoeBackend.NONE, theirs))
    return ours(moe_config(**changes), **keys)


@pytest.mark.parametrize("scale_fmt, made_by", [("float", "FusedMoeExperts"), ("ue8m0", "PowersOfTwoExperts")])
def test_the_checkpoint_says_how_scales_are_computed(scale_fmt, made_by, monkeypatch):
    asks_for(scale_fmt, monkeypatch)
    assert select() == (choice.Fp8MoeBackend.TRITON, getattr(experts, made_by))


def test_ours_come_first():
    assert select() == (choice.Fp8MoeBackend.TRITON, experts.FusedMoeExperts)
    for weights, inputs in experts._SCHEMES.items():
        for each in inputs:
            assert select(weight_key=weights, activation_key=each)[1] is experts.FusedMoeExperts
    experts.install()
    first = choice.select_fp8_moe_backend
    experts.install()
    assert choice.select_fp8_moe_backend is first and hasattr(first, "rocm_fp8_first")
    assert fp8_utils.process_fp8_weight_tensor_strategy_moe is experts.keep_scales


BLOCKS_OF_64 = quant_utils.create_fp8_quant_key(static=True, group_shape=quant_utils.GroupShape(64, 64))
OTHERS = {
    "kernel does not support quantization scheme": dict(activation_key=quant_utils.kFp8DynamicTokenSym),
    "fused_moe has no LoRA: let --lora-target-modules name other modules": dict(is_lora_enabled=True),
    "kernel does not support .* activation": dict(activation=MoEActivation.GELU),
    "kernel does not support parallel config": dict(parallel=dict(dp_size=2)),
    "fused_moe has blocks of 128x128, not of 64x64. vLLM .* an expert's intermediate size does not .*: it is 192": dict(
        weight_key=BLOCKS_OF_64
    ),
    "fused_moe has .* an expert's intermediate size on each of 2 workers does not divide by 128: it is 192": dict(
        weight_key=BLOCKS_OF_64, parallel=dict(tp_size=2)
    ),
    "fused_moe has blocks of 128x128, not of 64x64$": dict(
        weight_key=BLOCKS_OF_64, intermediate_size_per_partition=256
    ),
    "fused_moe has no torch.float32": dict(in_dtype=torch.float32),
    "fused_moe has no bias": dict(has_bias=True),
    "fused_moe has no swiglu_alpha": dict(swiglu_alpha=1.7),
}


@pytest.mark.parametrize("reason", OTHERS)
def test_others_are_vllms_or_one_line(reason):
    theirs = object()
    assert select(theirs, **OTHERS[reason])[1] is theirs
    with pytest.raises(NotImplementedError, match=f"FP8 experts: vLLM has none for this platform, and ours: {reason}"):
        select(**OTHERS[reason])


@pytest.mark.parametrize(
    "targets, taken",
    [(["qkv_proj", "o_proj"], True), (None, False), (["o_proj", "experts"], False), (["mlp.experts.0.up_proj"], False)],
    ids=str,
)
def test_adapters_of_other_modules_are_taken(targets, taken, monkeypatch):
    given = SimpleNamespace(lora_config=SimpleNamespace(target_modules=targets), model_config=None)
    monkeypatch.setattr(experts, "get_current_vllm_config_or_none", lambda: given)
    theirs = object()
    assert select(theirs, is_lora_enabled=True)[1] is (experts.FusedMoeExperts if taken else theirs)


def test_vllms_own_variables_leave_them_to_vllm(monkeypatch):
    theirs = object()
    assert select(theirs, moe_backend="triton")[1] is theirs
    monkeypatch.setenv("VLLM_DISABLED_KERNELS", "FusedMoeExperts")
    assert envs.VLLM_DISABLED_KERNELS == ["FusedMoeExperts"] and select(theirs)[1] is theirs


@pytest.mark.parametrize("capability", [None, 89, 90, 100])
def test_the_users_switch_and_what_is_taken_without_it(capability, monkeypatch):
    theirs, cuda = object(), capability is not None
    platform = type(experts.current_platform)
    monkeypatch.setattr(platform, "is_cuda", lambda self: cuda)
    monkeypatch.setattr(platform, "is_device_capability", lambda self, asked: asked == capability)
    blocks = {}
    channels = dict(weight_key=quant_utils.kFp8StaticChannelSym, activation_key=quant_utils.kFp8DynamicTokenSym)
    for switch, taken in ((None, (True, capability in (None, 90))), ("1", (True, True)), ("0", (False, False))):
        if switch is None:
            monkeypatch.delenv(EXPERTS, raising=False)
        else:
            monkeypatch.setenv(EXPERTS, switch)
        for changes, ours in zip((blocks, channels), taken):
            assert select(theirs, **changes)[1] is (experts.FusedMoeExperts if ours else theirs)


def test_gates_and_ups_keep_their_scales(generator):
    weight = codes(generator, 2, 6, 4)
    kept, scale = experts.keep_scales(weight, torch.tensor([[0.5, 0.25], [2.0, 2.0]]), 3, 2)
    assert kept is weight and scale.tolist() == [[[0.5]] * 3 + [[0.25]] * 3, [[2.0]] * 6]
    for same in (torch.tensor([[0.5, 0.5], [2.0, 2.0]]), torch.tensor([[0.5], [2.0]])):
        kept, scale = experts.keep_scales(weight, same, 3, 2, is_act_and_mul=same.shape[1] == 2)
        assert kept is weight and scale.tolist() == [0.5, 2.0]
