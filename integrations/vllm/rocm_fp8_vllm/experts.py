"""vLLM's mixtures of FP8 experts on fused_moe: any number of rows.

vLLM asks one function which experts serve a layer. Ours answers first. Weights stay as they were loaded, which is what
vLLM does for its Triton experts: their name is what the choice returns.

On CUDA those whose weights have scales of blocks, and on Hopper all: beside vLLM's Triton and its CUTLASS fused_moe was
timed on an H200 alone (docs/journal/vllm.md). ROCM_FP8_KERNELS_VLLM_EXPERTS=1 takes all everywhere.
"""

import functools
import os

import torch
import vllm.model_executor.layers.fused_moe.modular_kernel as mk
from vllm import envs
from vllm.config import get_current_vllm_config_or_none
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.config import FusedMoEConfig, FusedMoEParallelConfig
from vllm.model_executor.layers.fused_moe.oracle import fp8 as _choice
from vllm.model_executor.layers.fused_moe.topk_weight_and_reduce import TopKWeightAndReduceNoOP
from vllm.model_executor.layers.quantization.utils import fp8_utils
from vllm.model_executor.layers.quantization.utils.quant_utils import (
    QuantKey,
    kFp8Dynamic128Sym,
    kFp8DynamicTensorSym,
    kFp8DynamicTokenSym,
    kFp8Static128BlockSym,
    kFp8StaticChannelSym,
    kFp8StaticTensorSym,
)
from vllm.platforms import current_platform

from . import EXPERTS, is_on
from .block_linear import BLOCK, powers_of_two
from .kernel import kernel
from .patching import replace

__all__ = ["FusedMoeExperts", "experts_of", "install", "is_left_to_vllm", "none_serves"]

# Weights -> the inputs that a checkpoint may ask for beside them. Dynamic inputs a tensor get a scale a row, as in
# linears.
_SCHEMES = {
    kFp8Static128BlockSym: (kFp8Dynamic128Sym,),
    kFp8StaticChannelSym: (kFp8DynamicTokenSym, kFp8DynamicTensorSym),
    kFp8StaticTensorSym: (kFp8StaticTensorSym, kFp8DynamicTokenSym, kFp8DynamicTensorSym),
}


class FusedMoeExperts(mk.FusedMoEExpertsModular):
    """FP8 weights with a scale a tensor, an output channel or a block of 128x128. Inputs with a scale a tensor
    (static), a row or 128 numbers of a row."""

    kind = "FP8"  # of weights, in words
    power_of_two = False  # whether scales of 128 numbers are

    @property
    def expects_unquantized_inputs(self) -> bool:
        return True

    @staticmethod
    def activation_format() -> mk.FusedMoEActivationFormat:
        return mk.FusedMoEActivationFormat.Standard

    # --- what vLLM asks before it takes them ---

    @staticmethod
    def is_supported_config(
        cls: type[mk.FusedMoEExperts],
        moe_config: FusedMoEConfig,
        weight_key: QuantKey | None,
        activation_key: QuantKey | None,
        activation_format: mk.FusedMoEActivationFormat,
    ) -> tuple[bool, str | None]:
        if moe_config.in_dtype not in (torch.bfloat16, torch.float16):
            return False, f"fused_moe has no {moe_config.in_dtype}"
        if moe_config.is_lora_enabled and not cls.supports_lora():
            return False, "fused_moe has no LoRA: let --lora-target-modules name other modules than the experts"
        if reason := cls._why_not(moe_config, weight_key):
            return False, reason
        return mk.FusedMoEExperts.is_supported_config(cls, moe_config, weight_key, activation_key, activation_format)

    @staticmethod
    def _why_not(config: FusedMoEConfig, weight_key: QuantKey | None) -> str | None:
        if config.has_bias:
            return "fused_moe has no bias beside FP8"
        if config.swiglu_alpha is not None or config.swiglu_beta is not None:
            return "fused_moe has no swiglu_alpha and no swiglu_beta beside FP8"
        block = weight_key.scale.group_shape if weight_key is not None else (1, 1)
        if min(block) > 1 and weight_key != kFp8Static128BlockSym:
            given = "x".join(map(str, block))
            return f"fused_moe has blocks of 128x128, not of {given}{_why_blocks_are_cut(config)}"
        return None

    @staticmethod
    def supports_lora() -> bool:
        """Of adapters that leave the experts as they are."""
        config = get_current_vllm_config_or_none()
        lora = None if config is None else config.lora_config
        targets = None if lora is None else lora.target_modules
        return targets is not None and not any("experts" in each.split(".") for each in targets)

    @staticmethod
    def _supports_current_device() -> bool:
        return True  # `register` has asked

    @staticmethod
    def _supports_no_act_and_mul() -> bool:
        return False

    @staticmethod
    def _supports_activation(activation: MoEActivation) -> bool:
        return activation == MoEActivation.SILU

    @staticmethod
    def _supports_quant_scheme(weight_key: QuantKey | None, activation_key: QuantKey | None) -> bool:
        return activation_key in _SCHEMES.get(weight_key, ())

    @staticmethod
    def _supports_parallel_config(moe_parallel_config: FusedMoEParallelConfig) -> bool:
        """Ranks that hold parts of all experts, or whole ones. Tokens stay where they are."""
        return moe_parallel_config.dp_size == 1 and not (
            moe_parallel_config.use_all2all_kernels or moe_parallel_config.enable_eplb
        )

    # --- what they compute ---

    def workspace_shapes(
        self, M, N, K, topk, global_num_experts, local_num_experts, expert_tokens_meta, activation
    ) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        return (0,), (0,), (M, K)  # fused_moe allocates what it needs

    def finalize_weight_and_reduce_impl(self) -> mk.TopKWeightAndReduce:
        return TopKWeightAndReduceNoOP()  # moe_combine has done it

    def apply(
        self,
        output: torch.Tensor,
        hidden_states: torch.Tensor,
        w1: torch.Tensor,
        w2: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        activation: MoEActivation,
        global_num_experts: int,
        expert_map: torch.Tensor | None,
        a1q_scale: torch.Tensor | None,
        a2_scale: torch.Tensor | None,
        workspace13: torch.Tensor,
        workspace2: torch.Tensor,
        expert_tokens_meta: mk.ExpertTokensMetadata | None,
        apply_router_weight_on_input: bool,
    ) -> None:
        """output: hidden_states' dtype [T, D], written. w1, w2: as fused_moe's w13 and w2; topk_weights [T, k];
        topk_ids: int32 or int64 [T, k]; expert_map: int32 [global experts] or None. The others are not read."""
        if apply_router_weight_on_input:  # vLLM has multiplied the inputs
            topk_weights = torch.ones_like(topk_weights)
        torch.ops.rocm_fp8_vllm.experts(
            output,
            hidden_states,
            w1,
            w2,
            topk_weights,
            topk_ids,
            self.w1_scale,
            self.w2_scale,
            expert_map=expert_map,
            **self._how(),
        )

    def _how(self) -> dict:
        """What else the operator is told."""
        inputs = "group" if self.block_shape else "row" if self.a1_scale is None else "static"
        scales = dict(input_scale=self.a1_scale, hidden_scale=self.a2_scale)
        return scales | dict(inputs=inputs, limit=self.quant_config.gemm1_clamp_limit, power_of_two=self.power_of_two)


def _why_blocks_are_cut(config: FusedMoEConfig) -> str:
    share, workers = config.intermediate_size_per_partition, config.moe_parallel_config.tp_size
    if share % BLOCK == 0:
        return ""  # the checkpoint has them
    size = "intermediate size" if workers == 1 else f"intermediate size on each of {workers} workers"
    return f". vLLM cuts blocks where an expert's {size} does not divide by {BLOCK}: it is {share}"


class PowersOfTwoExperts(FusedMoeExperts):
    """vLLM makes the experts of a class, and has the checkpoint's settings when it asks for that."""

    power_of_two = True


def experts_of(module: torch.nn.Module) -> FusedMoeExperts | None:
    """Those that a mixture's module (RoutedExperts) runs on, where they are ours."""
    made = getattr(getattr(module, "quant_method", None), "moe_kernel", None)
    return made.fused_experts if made is not None and isinstance(made.fused_experts, FusedMoeExperts) else None


# One operator, so that no compiled graph depends on the number of rows.
_library = torch.library.Library("rocm_fp8_vllm", "FRAGMENT")
_library.define(
    "experts(Tensor(a!) out, Tensor x, Tensor w13, Tensor w2, Tensor weights, Tensor experts, Tensor scale_w13,"
    " Tensor scale_w2, str inputs, Tensor? input_scale, Tensor? hidden_scale, Tensor? expert_map, float? limit,"
    " bool power_of_two, *, Tensor? bias13=None, Tensor? bias2=None, str gate='silu', float alpha=1.702,"
    " float? beta=None, float? linear_beta=None, bool interleaved=False) -> ()"
)


def _experts(
    out,
    x,
    w13,
    w2,
    weights,
    experts,
    scale_w13,
    scale_w2,
    inputs,
    input_scale,
    hidden_scale,
    expert_map,
    limit,
    power_of_two,
    **gate_and_biases,
):
    """As fused_moe's, but for scales: those of weights may be float32 [E] or bytes, too; static ones have any shape."""
    kernel.fused_moe(
        x,
        w13,
        w2,
        weights.float().contiguous(),
        experts.contiguous(),
        scale_w13=_of_experts(scale_w13),
        scale_w2=_of_experts(scale_w2),
        inputs=inputs,
        input_scale=None if input_scale is None else input_scale.reshape(1),
        hidden_scale=None if hidden_scale is None else hidden_scale.reshape(1),
        expert_map=expert_map,
        limit=limit,
        out=out,
        power_of_two=power_of_two,
        **gate_and_biases,
    )


def _of_experts(scale: torch.Tensor) -> torch.Tensor:
    if scale.dtype == torch.uint8:  # bytes beside FP8 say nothing
        return scale.view(torch.float8_e8m0fnu)
    return scale.view(-1, 1, 1) if scale.dim() == 1 else scale


def _experts_fake(*arguments, **gate_and_biases) -> None:
    return None


_library.impl("experts", _experts, "CompositeExplicitAutograd")
torch.library.register_fake("rocm_fp8_vllm::experts", _experts_fake, lib=_library)


# --- in vLLM's place ---


def is_left_to_vllm(config: FusedMoEConfig) -> bool:
    """Whether its own variables name other experts than ours."""
    return FusedMoeExperts.__name__ in envs.VLLM_DISABLED_KERNELS or config.moe_backend != "auto"


def none_serves(kind: str, reason: str | None) -> NotImplementedError:
    return NotImplementedError(f"{kind} experts: vLLM has none for this platform, and ours: {reason}")


def _is_asked_for(weight_key: QuantKey | None) -> bool:
    if EXPERTS in os.environ or not current_platform.is_cuda():
        return is_on(EXPERTS)
    return weight_key == kFp8Static128BlockSym or current_platform.is_device_capability(90)


def _ours_first(theirs):
    """select_fp8_moe_backend, which asks FusedMoeExperts first."""

    @functools.wraps(theirs)
    def select(
        config: FusedMoEConfig,
        weight_key: QuantKey | None,
        activation_key: QuantKey | None,
        allow_vllm_cutlass: bool = False,
    ):
        if is_left_to_vllm(config) or not _is_asked_for(weight_key):
            return theirs(config, weight_key, activation_key, allow_vllm_cutlass)
        standard = mk.FusedMoEActivationFormat.Standard
        supported, reason = FusedMoeExperts.is_supported_config(
            FusedMoeExperts, config, weight_key, activation_key, standard
        )
        if supported:
            return _choice.Fp8MoeBackend.TRITON, PowersOfTwoExperts if powers_of_two() else FusedMoeExperts
        chosen = theirs(config, weight_key, activation_key, allow_vllm_cutlass)
        if chosen[1] is None:  # vLLM would go on, to an assertion that says nothing
            raise none_serves(FusedMoeExperts.kind, reason)
        return chosen

    select.rocm_fp8_first = True
    return select


def keep_scales(
    weight: torch.Tensor,
    weight_scales: torch.Tensor,
    shard_size: int,
    num_experts: int,
    is_act_and_mul: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """In the place of `fp8_utils.process_fp8_weight_tensor_strategy_moe`, as `cpu.keep_scales` for linears.

    Args:
        weight: FP8 [E, 2 I, D]: gates, then ups; without is_act_and_mul [E, I, D].
        weight_scales: float32 [E, 2], of gates and of ups; without is_act_and_mul [E, 1].
        shard_size: I. num_experts: E.

    Returns: (weight, float32 [E] or, where gates and ups differ, [E, 2 I, 1])
    """
    first = weight_scales[:, 0]
    if bool((weight_scales == first.unsqueeze(1)).all()):
        return weight, first.contiguous()
    return weight, weight_scales.repeat_interleave(shard_size, dim=1).unsqueeze(2)


def install() -> None:
    """Before vLLM's own experts."""
    if hasattr(_choice.select_fp8_moe_backend, "rocm_fp8_first"):
        return
    replace(_choice, "select_fp8_moe_backend", _ours_first(_choice.select_fp8_moe_backend))
    if current_platform.is_cpu():
        replace(fp8_utils, "process_fp8_weight_tensor_strategy_moe", keep_scales)
