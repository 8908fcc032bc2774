"""The int8 modules: torch-int's names and buffers, so that its checkpoints load, and Int8Linear with dynamic scales.

All run on this package's operators. Scales are buffers that the kernels read: no forward waits for the device.
"""

import torch

from ...operators import operators
from ..codes import Codes, in_rows
from .sums import forget, weight_sum

__all__ = [
    "BMM",
    "Int8Linear",
    "LayerNormQ",
    "W8A8B8O8Linear",
    "W8A8B8O8LinearReLU",
    "W8A8BFP32OFP32Linear",
    "quantize_tensor",
]

_MOST = 127


def quantize_tensor(values: torch.Tensor, *, channels: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """(int8, float32 scale) by max |values| / 127: one scale [], or with channels one a row [N, 1].

    Where all values are 0 the scale is 1. Raises: ValueError where values hold NaN or infinity.
    """
    wide = values.detach().float()
    largest = wide.abs().amax(-1, keepdim=True) if channels else wide.abs().amax()
    if not bool(torch.isfinite(largest).all()):
        raise ValueError("holds NaN or infinity")
    scale = largest / torch.full_like(largest, _MOST)  # a tensor: a number's reciprocal would be multiplied by
    scale = torch.where(scale == 0, 1.0, scale)
    return (wide / scale).round().clamp(-_MOST, _MOST).to(torch.int8), scale


class _Static(Codes):
    """A linear on int8 inputs with a fixed scale. What the class says of its bias and of its result differs."""

    BIAS = torch.int8

    def __init__(self, in_features: int, out_features: int, device=None):
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.register_buffer("weight", torch.empty(out_features, in_features, dtype=torch.int8, device=device))
        self.register_buffer("bias", torch.empty(1, out_features, dtype=self.BIAS, device=device))
        self.register_buffer("a", torch.empty((), device=device))
        if torch.int8 == self.BIAS:
            self.register_buffer("b", torch.empty((), device=device))

    @classmethod
    def from_float(
        cls, linear: torch.nn.Linear, input_scale: float, output_scale: float | None = None, factor: float = 1.0
    ) -> "_Static":
        """Of a linear whose input is `input_scale * int8`, and whose result, times factor, `output_scale * int8`."""
        device = linear.weight.device
        made = cls(linear.in_features, linear.out_features, device="meta")
        made.weight, weight_scale = quantize_tensor(linear.weight.detach().float() * factor)
        bias = torch.zeros(made.out_features, device=device) if linear.bias is None else linear.bias.detach().float()
        made.a = input_scale * weight_scale
        if torch.int8 == cls.BIAS:
            made.bias, bias_scale = quantize_tensor((bias * factor).reshape(1, -1))
            made.a, made.b = made.a / output_scale, bias_scale / output_scale
        else:
            made.bias = (bias * factor).reshape(1, -1).clone()
        return made

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: int8 [..., in_features]. Returns: int8, or float32 of W8A8BFP32OFP32Linear, [..., out_features]."""
        rows = x.reshape(-1, self.in_features)
        return self._product(rows, self.bias.reshape(-1)).reshape(*x.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}"


class W8A8B8O8Linear(_Static):
    """`x -> int8(a * (x @ weight.T) + b * bias)`.

    Buffers: weight int8 [out_features, in_features]; bias int8 [1, out_features]; a, b float32 [].
    """

    def _product(self, rows: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return operators().linear_abde_i8(rows, self.weight, bias, self.a, self.b)


class W8A8B8O8LinearReLU(_Static):
    """W8A8B8O8Linear, followed by ReLU."""

    def _product(self, rows: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return operators().linear_relu_abde_i8(rows, self.weight, bias, self.a, self.b)


class W8A8BFP32OFP32Linear(_Static):
    """`x -> a * (x @ weight.T) + bias` in float32.

    Buffers: weight int8 [out_features, in_features]; bias float32 [1, out_features]; a float32 [].
    """

    BIAS = torch.float32

    def _product(self, rows: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return operators().linear_ab_i8_de_f32(rows, self.weight, bias, self.a)


class BMM(Codes):
    """`(x, y) -> a * (x @ y.mT)` of int8 [B, M, K] and [B, N, K]: to int8, or to float32. Buffer: a float32 []."""

    def __init__(self, a: torch.Tensor, *, to_int8: bool):
        super().__init__()
        self.to_int8 = to_int8
        self.register_buffer("a", a)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        ops = operators()
        return (ops.bmm_abe_i8 if self.to_int8 else ops.bmm_ab_i8_e_f32)(x, y, self.a)


class LayerNormQ(Codes):
    """LayerNorm to int8, its scale divided into weight and bias. Buffers: weight, bias float32 [d]."""

    def __init__(self, size: int, epsilon: float = 1e-5, device=None):
        super().__init__()
        self.epsilon = epsilon
        self.register_buffer("weight", torch.empty(size, device=device))
        self.register_buffer("bias", torch.empty(size, device=device))
        self.register_buffer("one", torch.ones(1, device=device), persistent=False)

    @classmethod
    def from_float(cls, norm: torch.nn.LayerNorm, scale: float) -> "LayerNormQ":
        """Of a norm whose result is `scale * int8`."""
        made = cls(norm.weight.numel(), norm.eps, device=norm.weight.device)
        made.weight, made.bias = norm.weight.detach().float() / scale, norm.bias.detach().float() / scale
        return made

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """x: float16, bfloat16 or float32 [..., d]; with a residual, `residual += x` in place, then its norm."""
        operands = x, self.weight, self.bias, self.one, None, self.epsilon
        return operators().layer_norm_int8(*operands, residual=residual)[0]


class Int8Linear(Codes):
    """`x -> x @ weight.T * weight_scale + bias`; each row of x is quantised to int8 by its own largest magnitude.

    symmetric=False: by its own range from the least to the largest number, 0 included, with a zero point.
    static=True: x is quantised by input_scale, and input_zero_point where not symmetric; what exceeds them saturates.

    Buffers:
        weight: int8 [out_features, in_features].
        weight_scale: float32 [1, out_features].
        bias: float16, bfloat16 or float32 [out_features], or None.
        input_scale: float32 [1], or None where not static.
        input_zero_point: int32 [1], where static and not symmetric; else None.
    """

    FOLLOWS = ("bias",)

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool,
        dtype=torch.bfloat16,
        device=None,
        symmetric: bool = True,
        static: bool = False,
    ):
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.symmetric, self.static = symmetric, static
        self.register_buffer("weight", torch.empty(out_features, in_features, dtype=torch.int8, device=device))
        self.register_buffer("weight_scale", torch.empty(1, out_features, device=device))
        self.register_buffer("bias", torch.empty(out_features, dtype=dtype, device=device) if bias else None)
        self.register_buffer("input_scale", torch.empty(1, device=device) if static else None)
        zero = torch.empty(1, dtype=torch.int32, device=device) if static and not symmetric else None
        self.register_buffer("input_zero_point", zero)

    @classmethod
    def from_float(cls, linear: torch.nn.Linear, *, symmetric: bool = True) -> "Int8Linear":
        has_bias = linear.bias is not None
        options = dict(bias=has_bias, symmetric=symmetric, dtype=linear.weight.dtype, device="meta")
        made = cls(linear.in_features, linear.out_features, **options)
        made.weight, scale = quantize_tensor(linear.weight, channels=True)
        made.weight_scale = scale.reshape(1, -1)
        if has_bias:
            made.bias = linear.bias.detach().clone()
        return made

    def kind(self) -> str:
        return f"int8 by channels, inputs {'static' if self.static else 'by rows'}{'' if self.symmetric else ', zeros'}"

    @property
    def weight_sum(self) -> torch.Tensor | None:
        """int32 [1, out_features]: the sums of weight's rows, where not symmetric. They follow weight."""
        return None if self.symmetric else weight_sum(self.weight)

    def sum_weights(self) -> None:
        """Needed after a write to weight that torch does not count: through `.data`."""
        forget(self.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: float16, bfloat16 or float32 [..., in_features]. Returns: x's dtype [..., out_features]."""
        ops, rows = operators(), in_rows(x).reshape(-1, self.in_features)
        q, scale, zero = ops.quantize_int8(rows, self.input_scale, self.input_zero_point, symmetric=self.symmetric)
        zeros = {} if self.symmetric else {"zero_a": zero, "sum_b": self.weight_sum}
        out = ops.int8_gemm(q, self.weight, scale, self.weight_scale, self.bias, **zeros, out_dtype=x.dtype)
        return out.reshape(*x.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        scales = "scales" if self.symmetric else "scales and zero points"
        kind = "static" if self.static else "dynamic"
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}, {kind} input {scales}"
