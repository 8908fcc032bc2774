"""Problems of the fused operators with computed scales: rms_norm_dynamic_fp8, add_rms_norm_dynamic_fp8 and
swiglu_dynamic_fp8. Their inputs, and the checks of a right result."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from problems import buffers, quantize, rms_norm
from problems import fp8_by_definition as definition
from problems.buffers import Guarded, guarded, raw, same_bytes
from problems.inputs import FP8, HALF, normal, short, weights
from problems.pairwise import pairwise
from problems.swiglu import silu_bounds

NORMS = ("rms_norm_dynamic_fp8", "add_rms_norm_dynamic_fp8")
SWIGLU = "swiglu_dynamic_fp8"
OPERATORS = (*NORMS, SWIGLU)

WIDTHS = (1, 7, 8, 96, 128, 136, 1032, 2880, 4096, 5120, 16384, 32776)
ROWS = (0, 1, 2, 5, 33, 300)
LIMITS = (None, 1.0, 7.0)
LAYOUTS = buffers.LAYOUTS | {"unaligned": dict(shift=1), "strided": dict(pad=48)}


@dataclass(frozen=True)
class NormProblem(quantize.Problem):
    operator: str
    wide_weight: bool  # float32, else x's dtype
    normalized: str  # the layout of normalized_out
    residual: str  # the layout of the residual

    @property
    def id(self) -> str:
        weight = "wf32" if self.wide_weight else f"w{short(self.dtype)}"
        return f"{self.operator.split('_rms')[0]}-{super().id}-{weight}-{self.normalized}-{self.residual}"


@dataclass(frozen=True)
class SwigluProblem(quantize.Problem):
    limit: float | None

    @property
    def id(self) -> str:
        return f"{super().id}-limit-{self.limit}"


_AXES = (HALF, FP8, ROWS, WIDTHS, quantize.SCALINGS, quantize.KINDS, quantize.PLACES, tuple(LAYOUTS))
_FLAGS = ((False, True), (False, True))


def _affordable(problem: quantize.Problem) -> quantize.Problem:
    """Many rows only where they are not too wide: a test takes less than a second on a CPU."""
    return replace(problem, rows=33) if problem.rows * problem.d > 2**20 else problem


def norm_sample(seed: int) -> list[NormProblem]:
    layouts = tuple(LAYOUTS)
    axes = (*_AXES, *_FLAGS, NORMS, (False, True), layouts, layouts)
    return [_affordable(NormProblem(*case)) for case in pairwise(*axes, seed=seed)]


def swiglu_sample(seed: int) -> list[SwigluProblem]:
    return [_affordable(SwigluProblem(*case)) for case in pairwise(*_AXES, *_FLAGS, LIMITS, seed=seed)]


# --- definition of the scales ---


def scale_of(amax: torch.Tensor, problem: quantize.Problem) -> torch.Tensor:
    """float32 scales of float32 maxima on the CPU, apart from the reference: powers of two by frexp."""
    if problem.bound:
        amax = amax.clamp(max=quantize.UPPER_BOUND)
    scale = amax.clamp(min=1e-10) / torch.tensor(problem.fp8_max or torch.finfo(problem.fp8).max)
    if problem.kind[1] or problem.kind[0] == torch.float8_e8m0fnu:
        mantissa, exponent = torch.frexp(scale)
        scale = torch.ldexp(torch.ones_like(scale), exponent - (mantissa == 0.5).int())
    return scale


def in_groups(values: torch.Tensor, problem: quantize.Problem) -> torch.Tensor:
    """[rows, d] -> [..., n]: what shares a scale is the last dimension, padded with zeros."""
    name, size = problem.scaling
    if name == "tensor":
        return values.reshape(1, -1)
    if name == "row":
        return values[:, None]
    missing = problem.groups() * size - values.shape[1]
    return torch.nn.functional.pad(values, (0, missing)).unflatten(-1, (problem.groups(), size))


def assert_quantised_from(got, one: torch.Tensor, other: torch.Tensor, problem: quantize.Problem) -> None:
    """(q, scale) is that of some y [rows, d] whose every element is one of two numbers of x's dtype (mostly the same).

    Exact: a scale is that of one of the elements, which can be its group's largest; a code is that of one of the two
    numbers by the returned scale.
    """
    q, scale = got[0].cpu(), got[1].float().cpu()
    assert q.shape == one.shape and q.dtype == problem.fp8, f"{problem.id}: q: {q.shape} {q.dtype}"
    wanted = (1,) if problem.scaling[0] == "tensor" else (problem.rows, problem.groups())
    assert scale.shape == wanted and got[1].dtype == problem.kind[0], f"{problem.id}: {got[1].shape} {got[1].dtype}"
    pair = [y.float().cpu() for y in (one, other)]
    if q.numel():
        sizes = [in_groups(torch.where(y.isfinite(), y.abs(), 0.0), problem) for y in pair]
        low, high = (f(*sizes).amax(-1, keepdim=True) for f in (torch.minimum, torch.maximum))
        right = torch.zeros(low.shape[:-1], dtype=torch.bool)
        for size in sizes:
            right |= ((low <= size) & (size <= high) & (scale_of(size, problem) == scale[..., None])).any(-1)
        assert right.all(), (
            f"{problem.id}: scales {scale[~right][:4]} for maxima {low[~right][:4]} to {high[~right][:4]}"
        )
    else:
        assert torch.equal(scale, scale_of(torch.zeros(wanted), problem)), f"{problem.id}: scales of no values"
    name, size = problem.scaling
    each = scale.repeat_interleave(size, -1)[:, : problem.d] if name == "group" else scale
    codes = raw(q).reshape(q.shape)
    nan = q.float().isnan()
    # Of a NaN the sign is nobody's contract.
    right = torch.zeros(q.shape, dtype=torch.bool)
    for y in pair:
        right |= (definition.encode(y / each, problem.fp8) == codes) | (y.isnan() & nan)
    if not right.all():
        at = tuple((~right).nonzero()[0].tolist())
        values = [y[at].item() for y in pair]
        raise AssertionError(
            f"{problem.id}: {int((~right).sum())} of {q.numel()} codes; at {at} {q[at].item()} for {values}"
        )


# --- a call's operands ---


@dataclass(frozen=True)
class Operands:
    """One call's tensors: a residual and a weight where the operator has them."""

    operator: str
    x: torch.Tensor
    residual: torch.Tensor | None
    weight: torch.Tensor | None

    def map(self, change: Callable[[torch.Tensor], torch.Tensor]) -> "Operands":
        return Operands(self.operator, *(t if t is None else change(t) for t in (self.x, self.residual, self.weight)))

    def to(self, device) -> "Operands":
        return self.map(lambda t: t.to(device))

    def rows(self, view: Callable[[torch.Tensor], torch.Tensor]) -> "Operands":
        """Other rows; the weight is cut to their width."""
        x = view(self.x)
        weight = None if self.weight is None else self.weight[: x.shape[-1]]
        return Operands(self.operator, x, None if self.residual is None else view(self.residual), weight)

    def normalised(self) -> torch.Tensor:
        """What a norm normalises: x, or round(x + residual)."""
        return self.x if self.residual is None else self.x + self.residual

    def call(self, module, **keywords) -> tuple[torch.Tensor, torch.Tensor]:
        """(q, scale), on a copy of the residual, with its strides."""
        residual = None if self.residual is None else self.residual.clone()
        given = [t for t in (self.x, residual, self.weight) if t is not None]
        return getattr(module, self.operator)(*given, **keywords)


def draw(operator: str, shape, dtype: torch.dtype, generator: torch.Generator, weight_dtype=None) -> Operands:
    """Of a result of this shape."""
    if operator == SWIGLU:
        return Operands(operator, normal((*shape[:-1], 2 * shape[-1]), dtype, generator, 2.0), None, None)
    x, residual = normal(shape, dtype, generator, 2.0), normal(shape, dtype, generator, 3.0)
    weight = weights(shape[-1:], weight_dtype or dtype, generator)
    return Operands(operator, x, residual if operator == NORMS[1] else None, weight)


# --- the norms ---


def assert_same_without_y(kernel, operands: Operands, what: str, epsilon: float = 1e-6, **keywords) -> None:
    """normalized_out is right; (q, scale) are quantize_fp8's of it, whether it is asked for or not."""
    h = operands.normalised()
    y = torch.empty_like(h)
    got = operands.call(kernel, epsilon=epsilon, normalized_out=y, **keywords)
    rms_norm.assert_normalised(y, h, operands.weight, epsilon, f"{what}: y")
    quantize.assert_as_defined(got, kernel.reference.quantize_fp8(y, **keywords), what)
    for with_y, without in zip(got, operands.call(kernel, epsilon=epsilon, **keywords)):
        assert same_bytes(with_y, without), f"{what}: depends on normalized_out"


def assert_norm_as_defined(kernel, device, problem: NormProblem, generator: torch.Generator) -> None:
    """y, as the operator writes it, is right; (q, scale) are exactly those of that y, whether it is asked for or not;
    the residual is the rounded sum; nothing else is written."""
    layout, shape, fused = LAYOUTS[problem.layout], (problem.rows, problem.d), problem.operator == NORMS[1]
    values = [quantize.values(problem, generator) for _ in range(1 + fused)]
    values.append(weights((problem.d,), torch.float32 if problem.wide_weight else problem.dtype, generator))
    read = guarded(values[0], device, **layout), guarded(values[-1], device, shift=layout.get("shift", 0))
    h = Operands(problem.operator, *(t.to(device) for t in values[:-1]), *[None] * (2 - fused)).normalised()
    arguments, epsilon, results = problem.arguments(device), 1e-5, []
    for y in (Guarded(shape, problem.dtype, device, **LAYOUTS[problem.normalized]), None):
        updated = [guarded(values[1], device, **LAYOUTS[problem.residual])] * fused
        out, scales = Guarded(shape, problem.fp8, device, **layout), quantize.scales_for(problem, device)
        got = getattr(kernel, problem.operator)(
            *(buffer.t for buffer in (read[0], *updated, read[1])),
            epsilon,
            **arguments,
            column_major_scales=problem.place == "columns",
            normalized_out=None if y is None else y.t,
            out=out.t,
            scale_out=None if scales is None else scales.t,
        )
        assert got[0] is out.t and (scales is None or got[1] is scales.t)
        for buffer in (out, scales, y, *updated):
            if buffer is not None:
                buffer.assert_guards_intact(problem.id)
        for buffer in read:
            buffer.assert_unchanged(problem.id)
        for buffer in updated:
            assert same_bytes(buffer.t, h), f"{problem.id}: residual"
        if y is not None:
            rms_norm.assert_normalised(y.t, h, values[-1], epsilon, f"{problem.id}: y")
            quantize.assert_as_defined(got, kernel.reference.quantize_fp8(y.t, **arguments), problem.id)
            assert_quantised_from(got, y.t, y.t, problem)
        results.append(got)
    for with_y, without in zip(*results):
        assert same_bytes(with_y, without), f"{problem.id}: depends on normalized_out"


# --- swiglu ---


def gated(problem: quantize.Problem, generator: torch.Generator) -> torch.Tensor:
    """x [rows, 2 d]: gates around 3, `up` with a spread of its own in each row and each part of 32."""
    gates = normal((problem.rows, problem.d), problem.dtype, generator, 3.0)
    return torch.cat([gates, quantize.values(problem, generator)], dim=-1)


def both_products(x: torch.Tensor, limit: float | None) -> tuple[torch.Tensor, torch.Tensor]:
    """The two y that a silu within 2 ulp of float32 may give: it crosses one tie of the 16-bit type at most."""
    gate, up = x.cpu().chunk(2, dim=-1)
    if limit is not None:
        gate, up = gate.double().clamp(max=limit).to(x.dtype), up.double().clamp(-limit, limit).to(x.dtype)
    low, high = silu_bounds(gate)
    return tuple(g.to(x.dtype) * up for g in (low, high))


def assert_swiglu_as_defined(kernel, device, problem: SwigluProblem, x: torch.Tensor) -> None:
    layout = LAYOUTS[problem.layout]
    values, out = guarded(x, device, **layout), Guarded((problem.rows, problem.d), problem.fp8, device, **layout)
    scales = quantize.scales_for(problem, device)
    got = kernel.swiglu_dynamic_fp8(
        values.t,
        limit=problem.limit,
        **problem.arguments(device),
        column_major_scales=problem.place == "columns",
        out=out.t,
        scale_out=None if scales is None else scales.t,
    )
    assert got[0] is out.t and (scales is None or got[1] is scales.t)
    for buffer in (out, scales):
        if buffer is not None:
            buffer.assert_guards_intact(problem.id)
    values.assert_unchanged(problem.id)
    assert_quantised_from(got, *both_products(x, problem.limit), problem)
