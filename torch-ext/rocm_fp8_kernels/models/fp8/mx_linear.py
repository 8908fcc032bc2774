"""A linear layer on MXFP4 or MXFP8 weights, whose input is in 16 bits or quantised, here or before."""

import torch

from ...layers.watching import ours
from ...operators import operators
from ...ops.arguments import FP8
from ...ops.mx import MX_BLOCK
from ...reference.mx import numbers
from ..codes import in_rows
from .linear import QuantizedLinear, to_fnuz

__all__ = ["MX", "MxLinear", "mx_format", "mx_scaling"]

MX = ("mxfp4", "mxfp8")
_INPUTS = ("16bit", "fp8", *MX)


def mx_format(weight: torch.Tensor) -> str:
    return "mxfp4" if weight.dtype == torch.uint8 else "mxfp8"


def mx_scaling(inputs: str) -> dict | None:
    """What operators that quantise to FP8 are told about an input; None where it does not become FP8."""
    if inputs == "mxfp8":
        return dict(scaling="group", group_size=MX_BLOCK, scale_dtype=torch.float8_e8m0fnu)
    return dict(scaling="row", scale_ub=None) if inputs == "fp8" else None


class MxLinear(QuantizedLinear):
    """`x -> x @ weight.T + bias` on MX weights.

    Attributes:
        inputs: how x enters the product, as in fused_moe: "16bit", "fp8", "mxfp8" or "mxfp4".

    Buffers:
        weight: uint8 [out_features, in_features / 2] (MXFP4), or FP8 [out_features, in_features] (MXFP8).
        weight_scale: float8_e8m0fnu [out_features, in_features / 32].
        bias: dtype [out_features], or None.
    """

    input_scale = None

    def __init__(
        self,
        weight: torch.Tensor,
        weight_scale: torch.Tensor,
        bias: torch.Tensor | None,
        *,
        inputs: str,
        dtype: torch.dtype,
    ):
        super().__init__()
        self.inputs, self.dtype = inputs, dtype
        self.register_buffer("weight", weight)
        self.register_buffer("weight_scale", weight_scale)
        self.register_buffer("bias", bias)

    @property
    def in_features(self) -> int:
        return self.weight_scale.shape[1] * MX_BLOCK

    @property
    def format(self) -> str:
        return mx_format(self.weight)

    @property
    def weights(self) -> str:
        """What has a weight scale, in the words of checkpoints: the format says it."""
        return self.format

    def kind(self) -> str:
        return f"{self.format}, inputs by {self.inputs}"

    def input_scaling(self) -> dict | None:
        return mx_scaling(self.inputs)

    def dequantized(self) -> torch.Tensor:
        """The weight in `dtype`."""
        wide = numbers(self.weight).unflatten(1, (-1, MX_BLOCK)) * self.weight_scale.float()[..., None]
        return wide.flatten(1).to(self.dtype)

    def to_fnuz_(self) -> "MxLinear":
        """For gfx942: the same numbers in float8_e4m3fnuz, in place. MXFP4 is the same everywhere."""
        if self.format == "mxfp8":
            self.weight, self.weight_scale = to_fnuz(self.weight, self.weight_scale)
        return self

    @ours
    def forward(self, x: torch.Tensor, *, scale: torch.Tensor | None = None) -> torch.Tensor:
        """Of x, or of what FP8 stands for by `scale`.

        Args:
            x: float16 or bfloat16 [..., in_features], which is quantised here; or FP8, contiguous, quantised as
                input_scaling() says.
            scale: of FP8: float32 [..., 1], or float8_e8m0fnu [..., in_features / 32]. Else None.

        Returns: `dtype` [..., out_features].
        Raises: ValueError where FP8 has no scale, or `inputs` is another word.
        """
        if self.inputs not in _INPUTS:
            raise ValueError(f"inputs: {self.inputs!r}; needs one of {', '.join(_INPUTS)}")
        ops, rows = operators(), in_rows(x).reshape(-1, self.in_features)
        if x.dtype in FP8:
            if scale is None:
                raise ValueError("scale: None; this linear has no input_scale")
            scale = scale.reshape(rows.shape[0], scale.shape[-1])
        elif self.inputs == "mxfp4":
            rows, scale = ops.quantize_mxfp4(rows, rounding="even")
        elif (scaling := self.input_scaling()) is not None:
            rows, scale = ops.quantize_fp8(rows, **scaling, out_dtype=self.input_dtype)
        result = ops.block_scaled_gemm(rows, self.weight, scale, self.weight_scale, self.bias, out_dtype=self.dtype)
        return result.reshape(*x.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        sizes = f"{self.in_features}, {self.out_features}, bias={self.bias is not None}"
        return f"{sizes}, {self.format}, inputs in {self.inputs}"
