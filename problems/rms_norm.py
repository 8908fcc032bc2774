"""Problems of rms_norm, rms_norm_fp8 and add_rms_norm_fp8: inputs, and the bounds of a right result."""

from dataclasses import dataclass

import torch

from problems.comparisons import U32, assert_between, assert_rounded_alike
from problems.inputs import FP8, HALF, normal, positive, short, weights

OPERATORS = ("rms_norm", "rms_norm_fp8", "add_rms_norm_fp8")


# What is compiled for itself: operator, dtype, dtype of the weights, dtype of a quantised result.
Form = tuple[str, torch.dtype, torch.dtype, torch.dtype | None]
FORMS: list[Form] = [
    (operator, dtype, weight_dtype, fp8)
    for operator in OPERATORS
    for dtype in HALF
    for weight_dtype in (dtype, torch.float32)
    for fp8 in ((None,) if operator == "rms_norm" else FP8)
]
WIDTHS = (
    *(1, 2, 3, 7, 8),  # less than any vector
    *(15, 16, 17, 31, 32, 33, 63, 64, 65),  # a vector or two of any instruction set, and one element around
    *(576, 1152, 2880),  # hidden sizes of small models
    *(4095, 4096, 16384),  # Llama's, and one that leaves the longest tail
)
# None; one; a few; more than a part of the work for one thread.
ROWS = (0, 1, 3, 33)


@dataclass(frozen=True)
class Problem:
    form: Form
    rows: int
    d: int
    layout: str  # of x and the result
    residual_layout: str

    @property
    def id(self) -> str:
        operator, dtype, weight_dtype, fp8 = self.form
        types = f"{short(dtype)}-w{short(weight_dtype)}" + (f"-{short(fp8)}" if fp8 else "")
        layouts = f"{self.layout}-{self.residual_layout}" if operator == "add_rms_norm_fp8" else self.layout
        return f"{operator}-{self.rows}x{self.d}-{types}-{layouts}"


@dataclass
class Inputs:
    """One call's tensors on the CPU."""

    x: torch.Tensor
    residual: torch.Tensor
    weight: torch.Tensor
    scale: torch.Tensor

    def call(self, module, operator: str, device, fp8: torch.dtype, epsilon: float = 1e-6):
        """(result, residual afterwards), on copies of the inputs."""
        x, weight, scale = self.x.to(device), self.weight.to(device), self.scale.to(device)
        if operator == "rms_norm":
            return module.rms_norm(x, weight, epsilon), None
        if operator == "rms_norm_fp8":
            return module.rms_norm_fp8(x, weight, scale, epsilon, out_dtype=fp8), None
        residual = self.residual.to(device, copy=True)
        return module.add_rms_norm_fp8(x, residual, weight, scale, epsilon, out_dtype=fp8), residual


def draw(shape, dtype, generator, weight_dtype=None) -> Inputs:
    return Inputs(
        x=normal(shape, dtype, generator, 2.0),
        residual=normal(shape, dtype, generator, 3.0),
        weight=weights(shape[-1:], weight_dtype or dtype, generator),
        scale=positive((1,), generator),
    )


def bounds(h: torch.Tensor, inputs: Inputs, fp8: torch.dtype | None, epsilon: float = 1e-6):
    """Two results between which rms_norm's of `h` lies, and rms_norm_fp8's where `fp8` is given.

    A sum of d squares in 16 or more partial sums rounds at most d / 16 + log2(d) times in a row, all upwards or all
    downwards at worst; the root halves that error; the mean, the root and its reciprocal round once each. All
    steps after 1 / rms are monotonic in it.
    """
    d, wide = h.shape[-1], h.float()
    error = ((d / 16 + 14) / 2 + 4) * U32
    squares = h.double().pow(2).sum(-1, keepdim=True)
    # Their sum may leave float32.
    exact = (squares.masked_fill(squares > torch.finfo(torch.float32).max, torch.inf) / d + epsilon).rsqrt()
    for factor in (1 - error, 1 + error):
        y = ((wide * (exact * factor).float()).to(h.dtype) * inputs.weight).to(h.dtype)
        yield y if fp8 is None else (y.float() / inputs.scale).clamp(*limits(fp8)).to(fp8)


def limits(fp8: torch.dtype) -> tuple[float, float]:
    return torch.finfo(fp8).min, torch.finfo(fp8).max


def assert_normalised(y: torch.Tensor, h: torch.Tensor, weight: torch.Tensor, epsilon: float, what: str) -> None:
    """y, of a 16-bit type, is within the bounds of rounding: of any h and weights, NaN and infinities included."""
    h, weight = h.cpu(), weight.cpu()
    low, high = bounds(h, Inputs(h, h, weight, torch.ones(1)), None, epsilon)
    nan = low.isnan()
    assert torch.equal(y.cpu().isnan(), nan), f"{what}: NaN"
    assert_between(y.cpu()[~nan], low[~nan], high[~nan], what)


def assert_right(got, wanted, h, inputs: Inputs, what: str) -> None:
    """As the reference where there are enough rows to count, and within the bounds of rounding in any case."""
    if h.shape[0] >= 32 or h.numel() < 100:
        assert_rounded_alike(got, wanted, what)
    assert_between(got, *bounds(h, inputs, got.dtype if got.dtype in FP8 else None), what)
