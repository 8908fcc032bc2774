"""MX weights (MXFP4, MXFP8): products with them, quantisation to MXFP4, and the gates of experts that have them."""

import math

import torch

from .activation import check_limit
from .arguments import WIDE, check_dims, check_tensors, refuse, result, rows
from .calls import ops

MX_BLOCK = 32
GATES = ("silu", "oai", "situ")
_E8M0, _HALF = torch.float8_e8m0fnu, WIDE[:2]


def holds_mx(b: torch.Tensor, scale_b: torch.Tensor | None, a: torch.Tensor | None = None) -> bool:
    """Whether b is MXFP4 (uint8) or MXFP8: FP8 whose exponents' shape says that 32 k have one. Where K is 32 that is a
    scale a column as well, which is the same product: then a of another type says it."""
    if b.dtype == torch.uint8:
        return True
    if scale_b is None or scale_b.dtype != _E8M0 or scale_b.dim() != b.dim() or b.dim() < 2:
        return False
    n, k = b.shape[-2:]
    told = k > MX_BLOCK or (a is not None and a.dtype != b.dtype)
    return told and scale_b.shape[-2] == n and scale_b.shape[-1] * MX_BLOCK == k


def mx_scales(operator: str, a: torch.Tensor, scale_a: torch.Tensor | None, scale_b: torch.Tensor | None) -> tuple:
    """The scales as the operators take them: exponents as bytes."""
    if scale_b is None:
        refuse(operator, "scale_b", "None; MX weights need scales of 32 k")
    given = dict(scale_b=scale_b) if scale_a is None else dict(scale_a=scale_a, scale_b=scale_b)
    check_tensors(operator, **given)
    found = []
    for name, scale in given.items():
        exponents = scale.dtype == torch.uint8 and (name == "scale_b" or a.dtype == torch.uint8)
        if scale.dtype != _E8M0 and not exponents and not (name == "scale_a" and scale.dtype == torch.float32):
            needs = f"{_E8M0}, or its bytes as uint8" + ("; or float32 of rows" if name == "scale_a" else "")
            refuse(operator, name, f"dtype {scale.dtype}; needs {needs}")
        found.append(scale.view(torch.uint8) if scale.dtype == _E8M0 else scale)
    return (None, *found) if scale_a is None else tuple(found)


def quantize_mxfp4(
    x: torch.Tensor,
    *,
    rounding: str = "up",
    out: torch.Tensor | None = None,
    scale_out: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantises to MXFP4: blocks of 32 numbers of a row share a power of two.

        "up"    scale = the least power of two with amax / scale <= 6
        "even"  scale = 2^(exponent of amax - 2), amax first rounded to one bit of mantissa, to even
        code    = x / scale to the nearest of 0, .5, 1, 1.5, 2, 3, 4, 6, ties to the even code, beyond 6 to 6

    Args:
        x: float16, bfloat16 or float32 [..., K], K a multiple of 32; last dimension contiguous.
        rounding: "up" or "even": of the scale.
        out: uint8 [..., K / 2], contiguous, overlapping no input: codes, the even number in the low four bits.
        scale_out: float8_e8m0fnu or uint8 [..., K / 32], contiguous, the same.

    Returns: (out, scale_out). A block with NaN or infinity has the scale NaN (byte 255) and codes 0. -0, and what
        rounds to zero from below, has code 8.
    Raises: RuntimeError naming the operator and the argument, before anything is written.

    Source: OCP Microscaling Formats 1.0; "even" is Quark's.
    """
    operator = "quantize_mxfp4"
    check_tensors(operator, x=x)
    check_dims(operator, "x", x, 1, "[..., K]")
    if rounding not in ("up", "even"):
        refuse(operator, "rounding", f"{rounding!r}; allowed: 'up', 'even'")
    if x.shape[-1] % MX_BLOCK:
        refuse(operator, "x", f"shape {list(x.shape)}; needs a last dimension that is a multiple of {MX_BLOCK}")

    def allocate(width: int):
        return lambda _: torch.empty((*x.shape[:-1], x.shape[-1] // width), dtype=torch.uint8, device=x.device)

    out = result(operator, out, None, (), allocate(2))
    found = result(operator, scale_out, None, (), allocate(MX_BLOCK), name="scale_out")
    written = found.view(torch.uint8) if found.dtype == _E8M0 else found
    ops.quantize_mxfp4(out, written, rows(operator, "x", x, out=out, scale_out=written), rounding == "even")
    return out, found.view(_E8M0) if scale_out is None else found


def moe_gate(
    x: torch.Tensor,
    offsets: torch.Tensor | None = None,
    *,
    gate: str = "silu",
    limit: float | None = None,
    alpha: float = 1.702,
    beta: float | None = None,
    linear_beta: float | None = None,
    interleaved: bool = False,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Gates hidden values, in float32 with one rounding at the end.

        with a limit   g = min(g, limit), u = clamp(u, -limit, limit)
        "silu"         g sigmoid(g) u
        "oai"          (u + 1) g sigmoid(alpha g)
        "situ"         beta tanh(g / beta) sigmoid(g) * linear_beta tanh(u / linear_beta); without linear_beta, * u

    Args:
        x: float32, float16 or bfloat16 [R, 2 I], rows strided freely: gates, then ups.
        offsets: int32 [E + 1], of moe_sort: rows from offsets[-1] on are neither read nor written. None: all are.
        gate: "silu", "oai" (gpt-oss, MiniMax-M3) or "situ" (Kimi-K3).
        limit: a positive number, or None.
        alpha: of "oai", a finite number.
        beta: of "situ", a positive number; linear_beta: the same, or None.
        interleaved: gate i is column 2 i of x, up i column 2 i + 1.
        out: float16 or bfloat16 [R, I], overlapping no input; allocated if None.
        out_dtype: out's if None, bfloat16 if out is None too.

    Returns: out.
    Raises: RuntimeError naming the operator and the argument, before anything is written.

    Source: transformers' GptOssExperts and FP8Experts; ATOM's Kimi-K3.
    """
    operator = "moe_gate"
    check_tensors(operator, x=x)
    check_dims(operator, "x", x, 2, "[R, 2 I]")
    if offsets is not None:
        check_tensors(operator, offsets=offsets)
    numbers = gate_numbers(operator, gate, limit, alpha, beta, linear_beta, interleaved)

    def allocate(dtype: torch.dtype | None) -> torch.Tensor:
        return x.new_empty((x.shape[0], x.shape[1] // 2), dtype=dtype or torch.bfloat16)

    out = result(operator, out, out_dtype, _HALF, allocate)
    ops.moe_gate(out, x, offsets, *numbers)
    return out


def gate_numbers(operator: str, gate, limit, alpha, beta, linear_beta, interleaved) -> tuple:
    """A gate as the operator takes it; refuses what does not go together."""
    if gate not in GATES:
        refuse(operator, "gate", f"{gate!r}; allowed: {', '.join(map(repr, GATES))}")
    if not isinstance(interleaved, bool):
        refuse(operator, "interleaved", f"{interleaved!r}; needs True or False")
    if not _is_number(alpha):
        refuse(operator, "alpha", f"{alpha!r}; needs a finite number")
    for name, value, needed in (("beta", beta, gate == "situ"), ("linear_beta", linear_beta, False)):
        if value is None and not needed:
            continue
        if gate != "situ":
            refuse(operator, name, f"{value!r}; needs None, but with gate='situ'")
        if not (_is_number(value) and value > 0):
            refuse(operator, name, f"{value!r}; needs a positive number")
    check_limit(operator, limit)
    return GATES.index(gate), interleaved, math.inf if limit is None else limit, alpha, beta or 1.0, linear_beta or 0.0


def _is_number(value) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -math.inf < value < math.inf
