"""vLLM's FP8 linears with weight scales of 128x128 blocks (DeepSeek, Qwen3-FP8) on block_scaled_gemm.

For prompts DeepGEMM, where vLLM has it, is faster (docs/journal/vllm.md). It is given the checkpoint's own scales; vLLM
itself rounds them to powers of two for it, and quantises the weights anew.
"""

import functools

import torch
from vllm.config import get_current_vllm_config_or_none
from vllm.model_executor.kernels import linear as _choice
from vllm.model_executor.kernels.linear.scaled_mm.BlockScaledMMLinearKernel import Fp8BlockScaledMMLinearKernel
from vllm.model_executor.kernels.linear.scaled_mm.deep_gemm import DeepGemmFp8BlockScaledMMKernel
from vllm.model_executor.kernels.linear.scaled_mm.ScaledMMLinearKernel import FP8ScaledMMLinearLayerConfig
from vllm.model_executor.layers.fusion.quant_activation import QuantizedActivation, as_quantized_activation
from vllm.model_executor.layers.quantization.utils.quant_utils import QuantKey
from vllm.platforms import current_platform
from vllm.utils import deep_gemm

from .activation import Activation
from .kernel import kernel

__all__ = ["BLOCK", "BlockScaledFp8Linear", "blocks_of", "install", "powers_of_two"]

BLOCK = 128
_OURS_UP_TO = 128  # rows: DeepGEMM, where there is one, takes more


def blocks_of(parts: list[int]) -> list[int]:
    """Rows of scales that each part of a joined linear has, of the part's rows."""
    return [-(-rows // BLOCK) for rows in parts]


def powers_of_two() -> bool:
    """Whether the checkpoint of the model that is being made asks for computed scales that are powers of two, as
    DeepSeek-V3.1 does. vLLM reads this for DeepGEMM alone."""
    config = get_current_vllm_config_or_none()
    model = None if config is None else config.model_config
    settings = None if model is None else getattr(model.hf_config, "quantization_config", None)
    kind = (settings or {}).get("scale_fmt")
    if kind not in (None, "float", "ue8m0"):
        raise ValueError(f"FP8 blocks: scale_fmt {kind!r}; known: float, ue8m0")
    return kind == "ue8m0"


class BlockScaledFp8Linear(Fp8BlockScaledMMLinearKernel):
    """FP8 weights with a scale for 128x128; inputs with a computed scale for 128 numbers of a row."""

    apply_input_quant = False  # `apply_weights` does it

    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str | None]:
        return True, None  # `register` has asked

    @classmethod
    def can_implement(cls, config: FP8ScaledMMLinearLayerConfig) -> tuple[bool, str | None]:
        inputs, weight = config.activation_quant_key.scale, config.weight_quant_key.scale
        if inputs.static or tuple(inputs.group_shape) != (1, BLOCK):
            return False, f"has no inputs quantised by {config.activation_quant_key}"
        if tuple(weight.group_shape) != (BLOCK, BLOCK):
            return False, f"has no weights quantised by {config.weight_quant_key}"
        for dtype in (config.input_dtype, config.out_dtype):
            if dtype not in (torch.bfloat16, torch.float16):
                return False, f"has no {dtype}"
        return True, None

    def __init__(self, config: FP8ScaledMMLinearLayerConfig):
        super().__init__(config)
        # In columns an H200 reads them faster (docs/journal/block_scaled_gemm-cuda.md). DeepGEMM would transpose rows.
        self._scaling = dict(
            scaling="group",
            group_size=BLOCK,
            power_of_two=powers_of_two(),
            column_major_scales=current_platform.is_cuda(),
        )
        self._gemm = _ours

    def input_quant_key(self) -> QuantKey:
        return self.config.activation_quant_key

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        super().process_weights_after_loading(layer)  # float8_e4m3fnuz where the chip has that
        layer.rocm_fp8_linear = self  # tells `fusion` that this linear takes FP8
        params = self._get_layer_params(layer)
        if _deep_gemm_takes(*params.weight.shape, self.config.out_dtype) and params.block_scale.dtype == torch.float32:
            # vLLM has DeepGEMM compile its kernels before it serves, for layers that name this class.
            layer.deep_gemm_warmup_provider = DeepGemmFp8BlockScaledMMKernel(self.config)
            # One operator, so that no compiled graph depends on the number of rows. It costs the host a call in Python.
            self._gemm = torch.ops.rocm_fp8_vllm.block_linear

    def input_scaling(self, layer: torch.nn.Module) -> tuple[None, dict]:
        return None, self._scaling

    def activation(self, q: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> QuantizedActivation:
        return Activation(q, scale, dtype, q.shape, self.input_quant_key())

    @property
    def fp8_dtype(self) -> torch.dtype:
        return current_platform.fp8_dtype()

    def apply_weights(
        self, layer: torch.nn.Module, x: torch.Tensor | QuantizedActivation, bias: torch.Tensor | None = None, **_
    ) -> torch.Tensor:
        given = as_quantized_activation(x, self.input_quant_key())
        if given is None:
            given = self.activation(*kernel.quantize_fp8(x, **self._scaling, out_dtype=self.fp8_dtype), x.dtype)
        params = self._get_layer_params(layer)
        rows = given.data.view(-1, given.data.shape[-1])
        scale = given.scale.reshape(rows.shape[0], -1)
        dtype = self.config.out_dtype or given.orig_dtype
        linear, weight, of_weight = self._gemm, params.weight, params.block_scale
        if parts := getattr(layer, "rocm_fp8_parts", None):  # each begins a block of its own: `block_parts`
            biases = [None] * len(parts) if bias is None else bias.split(parts)
            each = zip(weight.split(parts), of_weight.split(blocks_of(parts)), biases)
            out = torch.cat([linear(rows, scale, w, s, b, dtype) for w, s, b in each], 1)
        else:
            out = linear(rows, scale, weight, of_weight, bias, dtype)
        return out.view(*given.orig_shape[:-1], weight.shape[0])

    def apply_block_scaled_mm(self, A, B, As, Bs):
        return self._gemm(A, As, B, Bs, None, self.config.out_dtype)


_library = torch.library.Library("rocm_fp8_vllm", "FRAGMENT")
_library.define(
    "block_linear(Tensor a, Tensor scale_a, Tensor weight, Tensor scale_b, Tensor? bias, ScalarType dtype) -> Tensor"
)


def _ours(a, scale_a, weight, scale_b, bias, dtype):
    """a: FP8 [M, K]; weight: FP8 [N, K]; scales as block_scaled_gemm's."""
    # The promise holds: what writes weights are kernels without PDL, and each step begins with some of vLLM's.
    return kernel.block_scaled_gemm(a, weight, scale_a, scale_b, bias, out_dtype=dtype, constant_b=True)


def _linear(a, scale_a, weight, scale_b, bias, dtype):
    # Of many rows by DeepGEMM; else as _ours.
    if a.shape[0] > _OURS_UP_TO and scale_b.dtype == torch.float32 and _deep_gemm_takes(*weight.shape, dtype):
        out = a.new_empty((a.shape[0], weight.shape[0]), dtype=dtype)
        deep_gemm.fp8_gemm_nt((a, scale_a), (weight, scale_b), out, is_deep_gemm_e8m0_used=False)
        return out if bias is None else out + bias
    return _ours(a, scale_a, weight, scale_b, bias, dtype)


@functools.cache
def _deep_gemm_takes(columns: int, k: int, dtype: torch.dtype) -> bool:
    return (
        current_platform.is_cuda()
        and current_platform.is_device_capability(90)  # Blackwell's takes scales that are powers of two alone
        and deep_gemm.should_use_deepgemm_for_fp8_linear(dtype, (columns, k))
    )


def _linear_fake(a, scale_a, weight, scale_b, bias, dtype):
    return a.new_empty((a.shape[0], weight.shape[0]), dtype=dtype)


_library.impl("block_linear", _linear, "CompositeExplicitAutograd")
torch.library.register_fake("rocm_fp8_vllm::block_linear", _linear_fake, lib=_library)


def install() -> None:
    """Before vLLM's own linears."""
    linears = _choice._POSSIBLE_FP8_BLOCK_KERNELS[current_platform._enum]
    if BlockScaledFp8Linear not in linears:
        linears.insert(0, BlockScaledFp8Linear)
