"""A linear layer on FP8 weights and FP8 activations; and what it has in common with one on MX weights."""

import torch

from ... import reference
from ...layers.watching import ours
from ...operators import operators
from ...ops import fp8_dtype as _device_fp8_dtype
from ...ops.arguments import FP8, SCALES, check_tensors, refuse
from ..codes import Codes, in_rows

__all__ = [
    "BLOCK",
    "GRANULARITIES",
    "Fp8Linear",
    "QuantizedLinear",
    "SeenTensor",
    "input_dtype_of",
    "join_block_scales",
    "quantize_weight",
    "to_fnuz",
]

BLOCK = 128  # rows and columns of a weight that share a scale; elements of an input's group
GRANULARITIES = ("tensor", "channel", "block")


def quantize_weight(weight: torch.Tensor, dtype: torch.dtype, granularity: str) -> tuple[torch.Tensor, torch.Tensor]:
    """(FP8 weight, float32 scale) of a weight [N, K].

    The scale is [1] for "tensor", [1, N] for "channel", [ceil(N / 128), ceil(K / 128)] for "block". It puts the largest
    magnitude of its part on the format's largest number.
    """
    if granularity not in GRANULARITIES:
        raise ValueError(f"granularity: {granularity!r}; needs one of {', '.join(GRANULARITIES)}")
    wide = weight.float()
    n, k = wide.shape
    if granularity == "block":
        filled = torch.nn.functional.pad(wide, (0, -k % BLOCK, 0, -n % BLOCK))
        largest = filled.abs().unflatten(0, (-1, BLOCK)).unflatten(2, (-1, BLOCK)).amax((1, 3))
    else:
        largest = wide.abs().amax(dim=1, keepdim=True) if granularity == "channel" else wide.abs().amax().reshape(1, 1)
    if not bool(torch.isfinite(largest).all()):
        raise ValueError("weight: holds NaN or infinity")
    scale = largest / torch.finfo(dtype).max
    scale[scale == 0] = 1.0  # of zeros
    if granularity == "block":
        each = scale.repeat_interleave(BLOCK, 0)[:n].repeat_interleave(BLOCK, 1)[:, :k]
        return reference.encode_fp8(wide / each, dtype), scale
    quantized = reference.encode_fp8(wide / scale, dtype)
    return quantized, (scale.reshape(1, -1) if granularity == "channel" else scale.reshape(1))


def join_block_scales(scales: list[torch.Tensor], rows: list[int]) -> torch.Tensor:
    """Of weights that are put one below the other, with these numbers of rows: the scales of their blocks of 128x128.
    Where a block would hold rows of two weights, each row gets its own: [N, ceil(K / 128)]."""
    if all(count % BLOCK == 0 for count in rows[:-1]):
        return torch.cat(scales)
    return torch.cat([scale.repeat_interleave(BLOCK, 0)[:count] for scale, count in zip(scales, rows)])


def to_fnuz(q: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A float8_e4m3fn tensor and its scale as float8_e4m3fnuz, exactly: for checkpoints on gfx942.

    The same byte means half as much in float8_e4m3fnuz, so the scale doubles. -0, whose byte is NaN there, becomes 0;
    NaN becomes that NaN.

    Args:
        q: float8_e4m3fn, any shape and strides.
        scale: float32, or float8_e8m0fnu below its largest number, 2^127; any shape.

    Returns: (float8_e4m3fnuz of q's shape, scales of scale's shape and dtype), new tensors.
    Raises: RuntimeError naming the argument.
    """
    check_tensors("to_fnuz", q=q, scale=scale)
    if q.dtype != torch.float8_e4m3fn:
        refuse("to_fnuz", "q", f"dtype {q.dtype}; allowed: torch.float8_e4m3fn")
    if scale.dtype not in SCALES:
        refuse("to_fnuz", "scale", f"dtype {scale.dtype}; allowed: {', '.join(map(str, SCALES))}")
    codes = q.view(torch.uint8)
    nan, minus_zero = (codes & 0x7F) == 0x7F, codes == 0x80
    converted = codes.masked_fill(minus_zero, 0).masked_fill(nan, 0x80).view(torch.float8_e4m3fnuz)
    return converted, scale * 2 if scale.dtype == torch.float32 else (scale.float() * 2).to(scale.dtype)


def input_dtype_of(weight: torch.Tensor) -> torch.dtype:
    """FP8 format of an input beside this weight: the weight's, or the device's beside MXFP4."""
    return _device_fp8_dtype(weight.device) if weight.dtype == torch.uint8 else weight.dtype


class SeenTensor:
    """Which tensor was here last, and how often it had been written. A copy has seen nothing: its tensors are new."""

    def __init__(self):
        self._tensor: torch.Tensor | None = None
        self._version = 0

    def again(self, tensor: torch.Tensor) -> bool:
        """Whether it is the last one, unchanged; now it is the last one."""
        same = tensor is self._tensor and tensor._version == self._version
        self._tensor, self._version = tensor, tensor._version
        return same

    def __reduce__(self):  # of copy.deepcopy and pickle
        return SeenTensor, ()


class QuantizedLinear(Codes):
    """Fp8Linear or MxLinear. What comes before it may quantise its input, by input_scale or as input_scaling() says.

    Attributes:
        dtype: of results: float16 or bfloat16.
        inputs: how an input is quantised.
        input_scale: the input's static scale, or None.
    """

    FOLLOWS = ("bias",)

    @property
    def in_features(self) -> int:
        return self.weight.shape[1]

    @property
    def out_features(self) -> int:
        return self.weight.shape[0]

    @property
    def input_dtype(self) -> torch.dtype:
        """Of an input that is quantised to FP8."""
        return input_dtype_of(self.weight)

    def input_scaling(self) -> dict | None:
        """What the dynamic operators, and quantize_fp8, are told about this linear's input. None: it is not FP8."""
        raise NotImplementedError

    def _apply(self, fn, recurse: bool = True) -> "QuantizedLinear":
        dtype = fn(torch.empty(0, dtype=self.dtype, device=self.weight.device)).dtype
        if dtype not in (torch.float16, torch.bfloat16):
            raise TypeError(f"a cast to {dtype}: quantised linears take and give float16 or bfloat16; load anew")
        super()._apply(fn, recurse)
        self.dtype = dtype
        return self


class Fp8Linear(QuantizedLinear):
    """`x -> x @ weight.T * input_scale * weight_scale + bias` for x in FP8.

    Attributes:
        weights: what has a weight scale: "tensor", "channel" or "block" (128x128).
        inputs: what of an input has a scale: "tensor", which is stored; "row" or "group" (of 128), which the operator
            before computes, and `forward` is given.
        power_of_two: whether those of groups are powers of two.

    Buffers:
        weight: FP8 [out_features, in_features].
        weight_scale: float32 [1]; [1, out_features] for channels; [ceil(out_features / 128), ceil(in_features / 128)]
            for blocks, or [out_features, ceil(in_features / 128)] where joined weights meet within a block.
        input_scale: float32 [1]: by what the operator before divides (the dequantisation scale of x). None where the
            scales are computed.
        scale_ub: float32 [1]: upper bound of a row's largest magnitude, for computed scales; None: no bound.
        bias: dtype [out_features], or None.
    """

    format = "fp8"  # of experts and MxLinear an MX one

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool,
        channel_scales: bool,
        dtype,
        fp8_dtype,
        device=None,
        dynamic: bool = False,
        block_scales: bool = False,
        power_of_two: bool = False,
    ):
        """channel_scales, dynamic: whether `weights` is "channel" and `inputs` "row"; block_scales: "block" and
        "group"."""
        super().__init__()
        self.dtype = dtype
        self.weights = "block" if block_scales else "channel" if channel_scales else "tensor"
        self.inputs = "group" if block_scales else "row" if dynamic else "tensor"
        self.power_of_two = power_of_two
        self._seen = SeenTensor()

        def empty(*shape: int, kind: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.empty(shape, dtype=kind, device=device)

        blocks = -(-out_features // BLOCK), -(-in_features // BLOCK)
        scales = {"tensor": (1,), "channel": (1, out_features), "block": blocks}[self.weights]
        self.register_buffer("weight", empty(out_features, in_features, kind=fp8_dtype))
        self.register_buffer("weight_scale", empty(*scales))
        self.register_buffer("input_scale", empty(1) if self.inputs == "tensor" else None)
        self.register_buffer("scale_ub", None)
        self.register_buffer("bias", empty(out_features, kind=dtype) if bias else None)

    @classmethod
    def quantized(
        cls, linears: list[torch.nn.Linear], input_scale: torch.Tensor | None, granularity: str, fp8_dtype: torch.dtype
    ) -> "Fp8Linear":
        """Linears of one input, as one: their outputs lie one after the other.

        With granularity "tensor" the joined weight has one scale, the largest of the parts'. Without an input_scale it
        is repeated for each channel: that is how torch._scaled_mm takes it beside scales of rows. Blocks are those of
        each part.
        """
        weight = torch.cat([linear.weight.detach() for linear in linears])
        biases = [linear.bias for linear in linears]
        if any(bias is None for bias in biases) != all(bias is None for bias in biases):
            raise ValueError("some, but not all of the linears to be joined have a bias")
        has_bias = biases[0] is not None
        dynamic, by_block = input_scale is None, granularity == "block"
        result = cls(
            *(weight.shape[1], weight.shape[0]),
            bias=has_bias,
            channel_scales=dynamic or granularity == "channel",
            dtype=weight.dtype,
            fp8_dtype=fp8_dtype,
            device="meta",
            dynamic=dynamic,
            block_scales=by_block,
        )
        if by_block:
            parts = [quantize_weight(linear.weight.detach(), fp8_dtype, granularity) for linear in linears]
            result.weight = torch.cat([values for values, _ in parts])
            result.weight_scale = join_block_scales(
                [scale for _, scale in parts], [linear.out_features for linear in linears]
            )
        else:
            result.weight, result.weight_scale = quantize_weight(weight, fp8_dtype, granularity)
        if not dynamic:
            result.input_scale = input_scale.to(device=weight.device, dtype=torch.float32).reshape(1)
        elif not by_block:
            result.weight_scale = result.weight_scale.expand(1, result.out_features).contiguous()
        if has_bias:
            result.bias = torch.cat([bias.detach() for bias in biases])
        return result

    def kind(self) -> str:
        power = " as powers of two" if self.power_of_two else ""
        return f"{self.weight.dtype} by {self.weights}, inputs by {self.inputs}{power}"

    def input_scaling(self) -> dict:
        if self.inputs != "group":
            return dict(scaling="row", scale_ub=self.scale_ub)
        # NVIDIA's GPUs read scales in columns faster, by up to 1.18 times of a linear; gfx950 reads them slower.
        columns = self.weight.is_cuda and torch.version.hip is None
        return dict(scaling="group", group_size=BLOCK, power_of_two=self.power_of_two, column_major_scales=columns)

    def scales_of_rows(self, rows: slice) -> torch.Tensor:
        """Of a part of the weight as a linear of its own: [1], [rows, 1] or [ceil(rows / 128), ceil(in_features /
        128)]. Blocks begin with the part."""
        scale = self.weight_scale
        if self.weights == "tensor":
            return scale
        if self.weights == "channel":
            return scale[0, rows].reshape(-1, 1)
        if scale.shape[0] == self.out_features:
            return scale[rows][::BLOCK]
        return scale[rows.start // BLOCK : -(-rows.stop // BLOCK)]

    def dequantized(self) -> torch.Tensor:
        """The weight in `dtype`."""
        scale = self.weight_scale
        if self.weights == "channel":
            scale = scale.reshape(-1, 1)
        elif self.weights == "block":
            scale = scale if scale.shape[0] == self.out_features else scale.repeat_interleave(BLOCK, 0)
            scale = scale[: self.out_features].repeat_interleave(BLOCK, 1)[:, : self.in_features]
        return (self.weight.float() * scale).to(self.dtype)

    def to_fnuz_(self) -> "Fp8Linear":
        """For gfx942: the same numbers in float8_e4m3fnuz, in place."""
        self.weight, self.weight_scale = to_fnuz(self.weight, self.weight_scale)
        # The largest number is 240 there: with twice the scale an activation saturates at 240 / 224 of before.
        if self.input_scale is not None:
            self.input_scale = self.input_scale * 2
        return self

    @ours
    def forward(self, x: torch.Tensor, *, scale: torch.Tensor | None = None) -> torch.Tensor:
        """Of x quantised by `scale`, or by input_scale.

        Args:
            x: FP8 [..., in_features], contiguous; or float16 or bfloat16, which is quantised here.
            scale: float32 [1]; [..., 1] for a scale a row; [..., ceil(in_features / 128)] for groups. None:
                input_scale.

        Returns: `dtype` [..., out_features].
        Raises: ValueError where there is no scale.
        """
        ops = operators()
        if x.dtype not in FP8:
            x = in_rows(x)
            x, scale = ops.quantize_fp8(x, self.input_scale, **self.input_scaling(), out_dtype=self.weight.dtype)
        scale = self.input_scale if scale is None else scale
        if scale is None:
            raise ValueError("scale: None; this linear has no input_scale")
        rows = x.reshape(-1, self.in_features)
        if scale.dim() > 1:
            scale = scale.reshape(rows.shape[0], scale.shape[-1])
        gemm = ops.block_scaled_gemm if self.weights == "block" else ops.fp8_linear
        operands = rows, self.weight, scale, self.weight_scale, self.bias
        result = gemm(*operands, out_dtype=self.dtype, constant_b=self._weight_is_constant())
        return result.reshape(*x.shape[:-1], self.out_features)

    def _weight_is_constant(self) -> bool:
        """Whether to promise constant_b: that the kernel which wrote the weight has ended (docs/numerics.md).

        It is promised where an earlier call had the same weight, unchanged since. A compiled step cannot read the
        weight's version; it always promises.
        """
        if torch.compiler.is_compiling():
            return True
        if self.weight.is_inference():  # it does not count its changes
            return False
        return self._seen.again(self.weight)

    def extra_repr(self) -> str:
        sizes = f"{self.in_features}, {self.out_features}, bias={self.bias is not None}"
        kinds = {"tensor": "", "row": ", dynamic input scales", "group": ", dynamic input scales of groups"}
        return f"{sizes}, {self.weight.dtype}, scales per {self.weights}{kinds[self.inputs]}"
