"""rms_norm, rms_norm_fp8 and add_rms_norm_fp8 against the reference and transformers' LlamaRMSNorm."""

from dataclasses import dataclass

import pytest
import torch
from helpers import (
    FP8,
    HALF,
    LAYOUTS,
    U32,
    Guarded,
    assert_between,
    assert_rounded_alike,
    guarded,
    normal,
    positive,
    same_bytes,
    short,
    threads,
    weights,
)

OPERATORS = ("rms_norm", "rms_norm_fp8", "add_rms_norm_fp8")


@dataclass(frozen=True)
class Problem:
    rows: int
    d: int
    dtype: torch.dtype
    weight_dtype: torch.dtype

    @property
    def id(self) -> str:
        return f"{self.rows}x{self.d}-{short(self.dtype)}-w{short(self.weight_dtype)}"


WIDTHS = (
    *(1, 2, 3, 7, 8),  # less than any vector
    *(15, 16, 17, 31, 32, 33, 63, 64, 65),  # a vector or two of any instruction set, and one element around
    *(576, 1152, 2880),  # hidden sizes of small models
    *(4095, 4096, 16384),  # Llama's, and one that leaves the longest tail
)
# None; one; a few; more than a part of the work for one thread.
ROWS = (0, 1, 3, 33)
PROBLEMS = [
    Problem(rows, d, dtype, weight_dtype)
    for d in WIDTHS
    for rows in ROWS
    for dtype in HALF
    for weight_dtype in (dtype, torch.float32)
]
every_problem = pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.id)


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
    exact = (h.double().pow(2).mean(-1, keepdim=True) + epsilon).rsqrt()
    for factor in (1 - error, 1 + error):
        y = ((wide * (exact * factor).float()).to(h.dtype) * inputs.weight).to(h.dtype)
        yield y if fp8 is None else (y.float() / inputs.scale).clamp(*limits(fp8)).to(fp8)


def limits(fp8: torch.dtype) -> tuple[float, float]:
    return torch.finfo(fp8).min, torch.finfo(fp8).max


def assert_right(got, wanted, h, inputs: Inputs, what: str) -> None:
    """As the reference where there are enough rows to count, and within the bounds of rounding in any case."""
    if h.shape[0] >= 32 or h.numel() < 100:
        assert_rounded_alike(got, wanted, what)
    assert_between(got, *bounds(h, inputs, got.dtype if got.dtype in FP8 else None), what)


@every_problem
def test_rms_norm(kernel, device, generator, problem):
    inputs = draw((problem.rows, problem.d), problem.dtype, generator, problem.weight_dtype)
    wanted, _ = inputs.call(kernel.reference, "rms_norm", device, None)
    for name, layout in LAYOUTS.items():
        x = guarded(inputs.x, device, **layout)
        weight = guarded(inputs.weight, device, shift=layout.get("shift", 0))
        out = Guarded(inputs.x.shape, problem.dtype, device, **layout)
        assert kernel.rms_norm(x.t, weight.t, out=out.t) is out.t
        assert_right(out.t, wanted, inputs.x, inputs, name)
        out.assert_guards_intact(name)
        for tensor in (x, weight):
            tensor.assert_unchanged(name)


@every_problem
@pytest.mark.parametrize("fp8", FP8, ids=short)
def test_rms_norm_fp8(kernel, device, generator, problem, fp8):
    inputs = draw((problem.rows, problem.d), problem.dtype, generator, problem.weight_dtype)
    wanted, _ = inputs.call(kernel.reference, "rms_norm_fp8", device, fp8)
    for name, layout in LAYOUTS.items():
        x, out = guarded(inputs.x, device, **layout), Guarded(inputs.x.shape, fp8, device, **layout)
        kernel.rms_norm_fp8(x.t, inputs.weight.to(device), inputs.scale.to(device), out=out.t)
        assert_right(out.t, wanted, inputs.x, inputs, name)
        out.assert_guards_intact(name)
        x.assert_unchanged(name)


@every_problem
@pytest.mark.parametrize("fp8", FP8, ids=short)
def test_add_rms_norm_fp8(kernel, device, generator, problem, fp8):
    inputs = draw((problem.rows, problem.d), problem.dtype, generator, problem.weight_dtype)
    wanted, wanted_residual = inputs.call(kernel.reference, "add_rms_norm_fp8", device, fp8)
    # Strides differ between the three: x dense beside a padded residual, and the other way round.
    for name, other in (("dense", "padded"), ("padded", "dense")):
        x, residual = guarded(inputs.x, device, **LAYOUTS[name]), guarded(inputs.residual, device, **LAYOUTS[other])
        out = Guarded(inputs.x.shape, fp8, device, **LAYOUTS[name])
        kernel.add_rms_norm_fp8(x.t, residual.t, inputs.weight.to(device), inputs.scale.to(device), out=out.t)
        assert same_bytes(residual.t, wanted_residual), name
        assert_right(out.t, wanted, wanted_residual.cpu(), inputs, name)
        for written in (out, residual):
            written.assert_guards_intact(name)
        x.assert_unchanged(name)


@pytest.mark.parametrize("dtype", HALF, ids=short)
@pytest.mark.parametrize("d", [17, 1152, 4096])
def test_the_modules_of_transformers_give_the_same(kernel, device, generator, d, dtype):
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    inputs = draw((64, d), dtype, generator)
    module = llama.LlamaRMSNorm(d, eps=1e-5).to(device, dtype)
    module.weight.data.copy_(inputs.weight)
    with torch.no_grad():
        normal_wanted = module(inputs.x.to(device))
        summed = inputs.x.to(device) + inputs.residual.to(device)
        fused_wanted = module(summed)
    got, _ = inputs.call(kernel, "rms_norm", device, None, 1e-5)
    assert_rounded_alike(got, normal_wanted, "rms_norm")
    for fp8 in FP8:
        quantised = kernel.reference.quantize_fp8(fused_wanted.float() / inputs.scale.to(device), fp8)
        got, residual = inputs.call(kernel, "add_rms_norm_fp8", device, fp8, 1e-5)
        assert_rounded_alike(got, quantised, short(fp8))
        assert same_bytes(residual, summed)


# Tensors that are rows only after some thought: a single row; leading ones; a batch; a transposed batch, whose
# leading dimensions have no common stride; one row seen many times.
SHAPES = {
    "row": lambda x: x[0, 0],
    "one": lambda x: x[:1, :1],
    "batch": lambda x: x,
    "four-dims": lambda x: x.unflatten(1, (5, 1)),
    "transposed": lambda x: x.transpose(0, 1),
    "sliced": lambda x: x[:, 1::2],
    "columns": lambda x: x[..., 8:40],
    "expanded": lambda x: x[1:2, 2:3].expand(4, 6, -1),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("operator", OPERATORS)
def test_leading_dimensions(kernel, device, generator, operator, shape):
    view = SHAPES[shape]
    inputs = draw((3, 5, 48), torch.bfloat16, generator)
    x, base = view(inputs.x.to(device)), inputs.residual.to(device)
    weight, scale = inputs.weight.to(device)[: x.shape[-1]], inputs.scale.to(device)
    # A residual that is expanded cannot be written; it is dense then.
    residual = view(base) if shape != "expanded" else normal(x.shape, x.dtype, generator).to(device)
    dense = Inputs(x.contiguous(), residual.contiguous(), weight, scale)
    for fp8 in FP8:
        wanted, wanted_residual = dense.call(kernel.reference, operator, device, fp8)
        before = residual.clone()
        if operator == "rms_norm":
            got = kernel.rms_norm(x, weight)
        elif operator == "rms_norm_fp8":
            got = kernel.rms_norm_fp8(x, weight, scale, out_dtype=fp8)
        else:
            got = kernel.add_rms_norm_fp8(x, residual, weight, scale, out_dtype=fp8)
            assert same_bytes(residual, wanted_residual)
            residual.copy_(before)
        assert_rounded_alike(got, wanted, operator)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("dtype", HALF, ids=short)
def test_nan_and_infinity_stay_in_their_row(kernel, device, generator, operator, dtype):
    inputs = draw((7, 333), dtype, generator)
    clean = inputs.call(kernel, operator, device, FP8[0])[0]
    inputs.x[1, 5], inputs.x[3, 332], inputs.x[5, 0] = torch.nan, torch.inf, -torch.inf
    for fp8 in FP8:
        got = inputs.call(kernel, operator, device, fp8)[0].float()
        wanted = inputs.call(kernel.reference, operator, device, fp8)[0].float()
        assert got[1].isnan().all()
        # An infinity makes 1 / rms zero: NaN in its place, (signed) zeros in the rest of its row.
        torch.testing.assert_close(got[[3, 5]], wanted[[3, 5]], rtol=0, atol=0, equal_nan=True)
        assert got[3].isnan().sum() == got[5].isnan().sum() == 1
    got = inputs.call(kernel, operator, device, FP8[0])[0]
    for row in (0, 2, 6):
        assert same_bytes(got[row], clean[row])


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("fp8", FP8, ids=short)
def test_large_numbers(kernel, device, generator, operator, fp8):
    # Squares beyond float16's range (and, in bfloat16, beyond float32's); sums x + residual that overflow
    # float16; products with the weight that do.
    for dtype, size in ((torch.float16, 60000.0), (torch.bfloat16, 1e15), (torch.bfloat16, 1e30)):
        inputs = draw((16, 1152), dtype, generator)
        inputs.x = (torch.sign(inputs.x.float()) * size * torch.rand(16, 1152, generator=generator)).to(dtype)
        inputs.residual = inputs.x.flip(0).contiguous()
        inputs.weight = (inputs.weight.float() * size).to(dtype)
        inputs.scale = inputs.scale * size
        got, residual = inputs.call(kernel, operator, device, fp8)
        wanted, wanted_residual = inputs.call(kernel.reference, operator, device, fp8)
        assert_rounded_alike(got, wanted, f"{dtype} {size}")
        assert residual is None or same_bytes(residual, wanted_residual)
        if operator == "add_rms_norm_fp8" and dtype == torch.float16:
            assert residual.isinf().any() and got.float().isnan().any()


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("epsilon", [0.0, 1e-12, 1e-6, 1e-2, 3.0])
def test_epsilon_and_small_numbers(kernel, device, generator, operator, epsilon):
    # Mean squares far below and near epsilon; a row of zeros is 0 / sqrt(epsilon), NaN where that is 0.
    for dtype in HALF:
        inputs = draw((24, 256), dtype, generator)
        rows = torch.logspace(-7, 0, 24)[:, None]
        inputs.x, inputs.residual = (inputs.x * rows).to(dtype), (inputs.residual * rows).to(dtype)
        inputs.x[0] = inputs.residual[0] = 0
        got = inputs.call(kernel, operator, device, FP8[0], epsilon)[0]
        assert_rounded_alike(got, inputs.call(kernel.reference, operator, device, FP8[0], epsilon)[0], str(dtype))
        assert got[0].float().isnan().all() == (epsilon == 0)


@pytest.mark.parametrize("operator", OPERATORS)
def test_same_bytes_whatever_the_threads(kernel, device, generator, operator):
    for shape in ((67, 1152), (33, 4096), (5, 16384)):
        inputs = draw(shape, torch.bfloat16, generator)
        results = []
        for count in (1, 2, 3):
            with threads(count):
                results.append(inputs.call(kernel, operator, device, FP8[0]))
        for out, residual in results[1:]:
            assert same_bytes(out, results[0][0])
            assert residual is None or same_bytes(residual, results[0][1])


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("d", [31, 1152, 4095])
def test_a_row_does_not_depend_on_its_batch(kernel, device, generator, operator, d):
    inputs = draw((33, d), torch.float16, generator)
    whole = inputs.call(kernel, operator, device, FP8[0])[0]
    for row in range(33):
        alone = Inputs(inputs.x[row], inputs.residual[row], inputs.weight, inputs.scale)
        assert same_bytes(alone.call(kernel, operator, device, FP8[0])[0], whole[row]), row


def test_the_default_format_is_the_devices(kernel, device, generator):
    inputs = draw((2, 16), torch.bfloat16, generator)
    for module in (kernel, kernel.reference):
        for operator in OPERATORS[1:]:
            assert inputs.call(module, operator, device, None)[0].dtype == kernel.fp8_dtype(device)
