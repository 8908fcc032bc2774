"""The int8 operators' Python functions: allocate what was not given, call the kernel.

SmoothQuant's five wrappers, int8_gemm that serves W8A8 checkpoints, and what makes int8 of activations."""

import torch

from .arguments import WIDE, check_dims, check_no_self_overlap, check_tensors, refuse, result, rows
from .calls import ops

__all__ = [
    "bmm_ab_i8_e_f32",
    "bmm_abe_i8",
    "int8_gemm",
    "layer_norm_int8",
    "linear_ab_i8_de_f32",
    "linear_abde_i8",
    "linear_relu_abde_i8",
    "quantize_int8",
    "softmax_int8",
]

_ACTIVATIONS = {None: 0, "relu": 1, "gelu": 2, "gelu_tanh": 3}
_INT8 = (torch.int8,)


def int8_gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    zero_a: torch.Tensor | None = None,
    sum_b: torch.Tensor | None = None,
    activation: str | None = None,
    scale_out: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    constant_b: bool = False,
) -> torch.Tensor:
    """`out = activation(scale_a * scale_b * (a @ b.T - zero_a * sum_b) + bias)` of int8, with exact int32 sums.

    Without GELU every backend gives the same bytes, whatever the number of rows is.

    Args:
        a: int8 [M, K] or [B, M, K], M >= 0, 1 <= K <= 131071 (more products may not fit into int32); last dimension
            contiguous, the others strided freely.
        b: int8 [N, K] (torch.nn.Linear's weight) or [B, N, K], likewise. `b.expand(B, -1, -1)` serves all batches.
        scale_a: float32, one element, [M] or [M, 1]; of batches also [B, M, 1]. Any strides, any sign.
        scale_b: float32, one element, [N] or [1, N]; of batches also [B, 1, N].
        bias: float16, bfloat16 or float32 [N], or None.
        zero_a: int32, as scale_a: the zero points of asymmetric activations, a ~ scale_a * (a - zero_a).
        sum_b: int32, as scale_b: `b.sum(-1, dtype=torch.int32)`. Needed with zero_a, and only there.
        activation: None, "relu", "gelu" (with erf) or "gelu_tanh".
        scale_out: float32, one element: the dequantisation scale of an int8 result; None: 1.
        out: bfloat16, float16, float32 or int8 [M, N] or [B, M, N], last dimension contiguous, overlapping no input;
            allocated if None, need not be zeroed.
        out_dtype: dtype of the result: out's if None, bfloat16 if out is None too.
        constant_b: promises that whatever wrote b, scale_b and sum_b has ended, as in skinny_gemm.

    Returns: out. int8 results round to nearest even and saturate; NaN gives 0.
    Raises: RuntimeError naming the operator and the argument, before anything is written.
    """
    operator = "int8_gemm"
    check_tensors(operator, a=a, b=b, scale_a=scale_a, scale_b=scale_b)
    optional = dict(bias=bias, zero_a=zero_a, sum_b=sum_b, scale_out=scale_out)
    check_tensors(operator, **{name: t for name, t in optional.items() if t is not None})
    if not isinstance(activation, str | None) or activation not in _ACTIVATIONS:
        refuse(operator, "activation", f"{activation!r}; allowed: None, 'relu', 'gelu', 'gelu_tanh'")
    out = _product(operator, a, b, out, out_dtype, (*WIDE, torch.int8), torch.bfloat16)
    ops.int8_gemm(out, a, b, scale_a, scale_b, bias, zero_a, sum_b, scale_out, _ACTIVATIONS[activation], constant_b)
    return out


def linear_abde_i8(
    a: torch.Tensor,
    b: torch.Tensor,
    d: torch.Tensor,
    alpha: torch.Tensor | float = 1.0,
    beta: torch.Tensor | float = 1.0,
    *,
    out: torch.Tensor | None = None,
    constant_b: bool = False,
) -> torch.Tensor:
    """SmoothQuant's linear: `out = int8(alpha * (a @ b.T) + beta * d)`.

    Args:
        a: int8 [M, K], 1 <= K <= 131071; last dimension contiguous, rows strided freely.
        b: int8 [N, K], likewise.
        d: int8 [N], a bias, or [M, N]; last dimension contiguous.
        alpha, beta: float32, one element, on a's device; or numbers. A tensor is read by the kernel: nothing waits.
        out: int8 [M, N], overlapping no input; allocated if None.
        constant_b: promises that whatever wrote b has ended, as in skinny_gemm.

    Returns: out, rounded to nearest even, saturated to [-128, 127]; NaN gives 0.
    Raises: RuntimeError naming the operator and the argument, before anything is written.

    Source: Linear_ABDE_I8 of "Optimizing with Composable Kernel" (AMD), which truncates; torch-int's
    linear_a8_w8_b8_o8. docs/numerics.md compares them.
    """
    return _linear("linear_abde_i8", torch.int8, a, b, d, alpha, beta, out, constant_b)


def linear_relu_abde_i8(
    a: torch.Tensor,
    b: torch.Tensor,
    d: torch.Tensor,
    alpha: torch.Tensor | float = 1.0,
    beta: torch.Tensor | float = 1.0,
    *,
    out: torch.Tensor | None = None,
    constant_b: bool = False,
) -> torch.Tensor:
    """`out = int8(relu(alpha * (a @ b.T) + beta * d))`: linear_abde_i8 with ReLU.

    Args, Returns, Raises: as linear_abde_i8.
    """
    return _linear("linear_relu_abde_i8", torch.int8, a, b, d, alpha, beta, out, constant_b)


def linear_ab_i8_de_f32(
    a: torch.Tensor,
    b: torch.Tensor,
    d: torch.Tensor,
    alpha: torch.Tensor | float = 1.0,
    beta: torch.Tensor | float = 1.0,
    *,
    out: torch.Tensor | None = None,
    constant_b: bool = False,
) -> torch.Tensor:
    """`out = alpha * (a @ b.T) + beta * d` in float32: linear_abde_i8 with d and out of float32.

    Args, Returns, Raises: as linear_abde_i8, but d and out are float32, and nothing is rounded further.
    """
    return _linear("linear_ab_i8_de_f32", torch.float32, a, b, d, alpha, beta, out, constant_b)


def bmm_abe_i8(
    a: torch.Tensor, b: torch.Tensor, alpha: torch.Tensor | float = 1.0, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """SmoothQuant's batched product: `out[i] = int8(alpha * (a[i] @ b[i].T))`.

    Args:
        a: int8 [B, M, K], 1 <= K <= 131071; last dimension contiguous, batches and rows strided freely.
        b: int8 [B, N, K], likewise.
        alpha: float32, one element, on a's device; or a number.
        out: int8 [B, M, N], last dimension contiguous, overlapping no input; allocated if None.

    Returns: out, rounded to nearest even, saturated to [-128, 127]; NaN gives 0.
    Raises: RuntimeError naming the operator and the argument, before anything is written.

    Source: BMM_ABE_I8 of "Optimizing with Composable Kernel" (AMD); torch-int's bmm_s8t_s8n_s8t.
    """
    return _bmm("bmm_abe_i8", torch.int8, a, b, alpha, out)


def bmm_ab_i8_e_f32(
    a: torch.Tensor, b: torch.Tensor, alpha: torch.Tensor | float = 1.0, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """`out[i] = alpha * (a[i] @ b[i].T)` in float32: bmm_abe_i8 with out of float32.

    Args, Returns, Raises: as bmm_abe_i8, but out is float32, and nothing is rounded further.
    """
    return _bmm("bmm_ab_i8_e_f32", torch.float32, a, b, alpha, out)


def _product(operator, a, b, out, out_dtype, allowed, default) -> torch.Tensor:
    def allocate(dtype: torch.dtype | None) -> torch.Tensor:
        check_dims(operator, "a", a, 2, "[M, K] or [B, M, K]")
        check_dims(operator, "b", b, 2, "[N, K] or [B, N, K]")
        return a.new_empty((*a.shape[:-1], b.shape[-2]), dtype=dtype or default)

    return result(operator, out, out_dtype, allowed, allocate)


def _number(operator: str, name: str, value: torch.Tensor | float) -> tuple[torch.Tensor | None, float]:
    if isinstance(value, torch.Tensor):
        return value, 0.0
    if isinstance(value, (int, float)):
        return None, float(value)
    refuse(operator, name, f"{type(value).__name__}; needs a tensor of one element, or a number")


def _linear(operator, dtype, a, b, d, alpha, beta, out, constant_b) -> torch.Tensor:
    check_tensors(operator, a=a, b=b, d=d)
    (alpha, alpha_value), (beta, beta_value) = (
        _number(operator, name, value) for name, value in (("alpha", alpha), ("beta", beta))
    )
    out = _product(operator, a, b, out, None, (), dtype)
    getattr(ops, operator)(out, a, b, d, alpha, beta, alpha_value, beta_value, constant_b)
    return out


def _bmm(operator, dtype, a, b, alpha, out) -> torch.Tensor:
    check_tensors(operator, a=a, b=b)
    alpha, alpha_value = _number(operator, "alpha", alpha)
    out = _product(operator, a, b, out, None, (), dtype)
    getattr(ops, operator)(out, a, b, alpha, alpha_value)
    return out


def quantize_int8(
    x: torch.Tensor,
    scale: torch.Tensor | None = None,
    zero_point: torch.Tensor | None = None,
    *,
    symmetric: bool = True,
    out: torch.Tensor | None = None,
    scale_out: torch.Tensor | None = None,
    zero_point_out: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Quantises to int8, by `scale` or by a scale that it computes of each row.

        symmetric    scale = max |x| / 127                              q = int8(x / scale)
        asymmetric   low = min(0, min x), high = max(0, max x)
                     scale = (high - low) / 255
                     zero_point = round(-128 - low / scale)             q = int8(round(x / scale) + zero_point)

    Args:
        x: float16, bfloat16 or float32 [..., d], last dimension contiguous, rows strided freely.
        scale: float32, one element, on x's device: x is quantised by it. None: a scale is computed of each row.
        zero_point: int32, one element, on x's device; only with scale. None: symmetric.
        symmetric: of computed scales, whether the zero point is 0. No effect with scale.
        out: int8 [..., d], overlapping no input; allocated if None.
        scale_out: float32 [..., 1], any strides without overlap: takes computed scales; allocated if None.
        zero_point_out: int32 [..., 1], likewise, of symmetric=False.

    Returns: (out, scales, zero points or None): `x ~ scale * (q - zero_point)`. Those given come back as they are.
    int8_gemm takes them as scale_a and zero_a. Infinities saturate, NaN counts as 0; neither counts in a scale.
    Raises: RuntimeError naming the operator and the argument, before anything is written.
    """
    operator = "quantize_int8"
    check_tensors(operator, x=x)
    check_dims(operator, "x", x, 1, "[..., d]")
    out = _int8_like(operator, x, out)
    scales = _Scales(operator, x, scale, zero_point, symmetric, scale_out, zero_point_out)
    kept = rows(operator, "x", x, out=out, **scales.written())
    ops.quantize_int8(out, *scales.outputs(), kept, scale, zero_point)
    scales.of_zeros(x)
    return out, *scales.returned()


def layer_norm_int8(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    scale: torch.Tensor | None = None,
    zero_point: torch.Tensor | None = None,
    epsilon: float = 1e-5,
    *,
    residual: torch.Tensor | None = None,
    symmetric: bool = True,
    out: torch.Tensor | None = None,
    scale_out: torch.Tensor | None = None,
    zero_point_out: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """LayerNorm quantised to int8: `quantize_int8(layer_norm(x, weight, bias, epsilon), scale, zero_point)`.

    With a residual, `residual += x` comes first, in place, and the residual is normalised.

    Args:
        x: float16, bfloat16 or float32 [..., d], last dimension contiguous, rows strided freely.
        weight: x's dtype or float32 [d].
        bias: weight's dtype [d], or None.
        scale, zero_point, symmetric, out, scale_out, zero_point_out: as in quantize_int8. SmoothQuant's LayerNormQ,
            which has divided weight and bias by its scale, is scale = 1.
        epsilon: added to the variance.
        residual: x's dtype and shape, strides of its own; holds round(x + residual) afterwards. None: x is normalised.

    Returns: (out, scales, zero points or None), as quantize_int8.
    Raises: RuntimeError naming the operator and the argument, before anything is written.
    """
    operator = "layer_norm_int8"
    check_tensors(operator, x=x, weight=weight)
    check_tensors(operator, **{n: t for n, t in dict(bias=bias, residual=residual).items() if t is not None})
    check_dims(operator, "x", x, 1, "[..., d]")
    out = _int8_like(operator, x, out)
    scales = _Scales(operator, x, scale, zero_point, symmetric, scale_out, zero_point_out)
    written, updated = dict(out=out, **scales.written()), residual
    if residual is not None:
        updated = rows(operator, "residual", residual, **written)
        if updated is not residual:
            check_no_self_overlap(operator, "residual", residual)
        written["residual"] = residual
    kept = rows(operator, "x", x, **written)
    ops.layer_norm_int8(out, *scales.outputs(), kept, updated, weight, bias, scale, zero_point, epsilon)
    if updated is not residual:
        residual.copy_(updated)
    scales.of_zeros(x)
    return out, *scales.returned()


def softmax_int8(x: torch.Tensor, mask: torch.Tensor | None = None, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """Attention probabilities in int8: `round(127 * softmax(x + mask, -1))`. Their dequantisation scale is 1 / 127.

    Args:
        x: float16, bfloat16 or float32 [..., d] of 1 to 4 dimensions, last dimension contiguous, others strided freely.
        mask: x's dtype or float32, broadcastable to x, last dimension d and contiguous; added. -infinity masks out.
        out: int8 of x's shape, last dimension contiguous, overlapping no input; allocated if None.

    Returns: out, 0 to 127. A row with NaN or +infinity, or of -infinity alone, becomes 0. Probabilities below 1 / 254
    round to 0, so a row spread evenly over 254 keys or more becomes zeros.
    Raises: RuntimeError naming the operator and the argument, before anything is written.
    """
    operator = "softmax_int8"
    check_tensors(operator, x=x)
    check_dims(operator, "x", x, 1, "[..., d]")
    if mask is not None:
        check_tensors(operator, mask=mask)
        if (
            mask.dim() < 1
            or mask.dim() > x.dim()
            or any(size not in (1, wanted) for size, wanted in zip(mask.shape[:-1], x.shape[x.dim() - mask.dim() : -1]))
        ):
            refuse(operator, "mask", f"shape {list(mask.shape)}; needs one that broadcasts to x's {list(x.shape)}")
        if mask.shape[-1] != x.shape[-1]:
            refuse(operator, "mask", f"shape {list(mask.shape)}; needs x's last dimension {x.shape[-1]}")
        mask = mask.expand(x.shape)
    out = _int8_like(operator, x, out)
    ops.softmax_int8(out, x, mask)
    return out


def _int8_like(operator: str, x: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    def allocate(_: torch.dtype | None) -> torch.Tensor:
        return torch.empty_like(x, dtype=torch.int8, memory_format=torch.contiguous_format)

    return result(operator, out, None, _INT8, allocate)


class _Scales:
    """The scales and zero points of a call: given, or tensors that take what is computed of x's rows."""

    def __init__(self, operator, x, scale, zero_point, symmetric, scale_out, zero_point_out):
        tensors = dict(scale=scale, zero_point=zero_point, scale_out=scale_out, zero_point_out=zero_point_out)
        check_tensors(operator, **{name: t for name, t in tensors.items() if t is not None})
        if zero_point is not None and scale is None:
            refuse(operator, "zero_point", "given without scale")
        for name, t in (("scale_out", scale_out), ("zero_point_out", zero_point_out)):
            if t is not None and scale is not None:
                refuse(operator, name, "given together with scale, so nothing is computed")
        if zero_point_out is not None and symmetric:
            refuse(operator, "zero_point_out", "given, but symmetric quantisation has no zero points")
        self.given = scale, zero_point
        self.scale, self.zero = scale_out, zero_point_out
        if scale is None:
            shape = (*x.shape[:-1], 1)
            if scale_out is None:
                self.scale = torch.empty(shape, dtype=torch.float32, device=x.device)
            if zero_point_out is None and not symmetric:
                self.zero = torch.empty(shape, dtype=torch.int32, device=x.device)

    def outputs(self) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        return self.scale, self.zero

    def written(self) -> dict[str, torch.Tensor]:
        return {n: t for n, t in dict(scale_out=self.scale, zero_point_out=self.zero).items() if t is not None}

    def returned(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        return self.given if self.given[0] is not None else (self.scale, self.zero)

    def of_zeros(self, x: torch.Tensor) -> None:
        """Writes those of rows without values, for which nothing is launched."""
        if x.numel() == 0 and self.scale is not None:
            smallest = torch.full_like(self.scale, 1e-10)
            self.scale.copy_(smallest / torch.full_like(smallest, 127 if self.zero is None else 255))
            if self.zero is not None:
                self.zero.fill_(-128)
