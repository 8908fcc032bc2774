"""What the operator tests share: guarded buffers, random inputs, and comparisons whose tolerances are derived."""

import contextlib
import math
from collections.abc import Iterator, Sequence

import torch

FP8 = (torch.float8_e4m3fn, torch.float8_e4m3fnuz)
HALF = (torch.float16, torch.bfloat16)
FLOATS = (torch.float32, torch.float16, torch.bfloat16)

# Leading poison of a guarded buffer, in bytes; the same follows the tensor.
GUARD_BYTES = 256
U32 = 2.0**-24  # unit roundoff of float32


def short(dtype: torch.dtype) -> str:
    return {torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32"}.get(dtype, str(dtype).split("_")[-1])


def raw(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's bytes, row after row, on the CPU."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(raw(a), raw(b))


def poison_byte(dtype: torch.dtype) -> int:
    """Repeated, a NaN of `dtype`: an element that is read by mistake, or never written, shows in the result."""
    return 0x80 if dtype == torch.float8_e4m3fnuz else 0xFF


class Guarded:
    """A tensor (`.t`) inside a larger buffer of poison: before it, after it and, with `pad`, between its rows.

    `pad` elements follow each row; `shift` elements move the start off any alignment but the element's own.
    """

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, device, *, pad: int = 0, shift: int = 0):
        size = dtype.itemsize
        strides = [1]
        for i, length in enumerate(reversed(shape[1:])):
            strides.append(max(length, 1) * strides[-1] + (pad if i == 0 else 0))
        self._shape, self._strides = tuple(shape), tuple(reversed(strides))[-len(shape) :]
        self._offset = GUARD_BYTES // size + shift
        span = sum((length - 1) * s for length, s in zip(shape, self._strides)) + 1 if math.prod(shape) else 0
        self._poison = poison_byte(dtype)
        count = (self._offset + span + pad) * size + GUARD_BYTES
        self._bytes = torch.full((count,), self._poison, dtype=torch.uint8, device=device)
        self.t = self._inside(self._bytes, dtype)
        self._before = None

    def _inside(self, buffer: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return buffer.view(dtype).as_strided(self._shape, self._strides, self._offset)

    def holding(self, values: torch.Tensor) -> "Guarded":
        self.t.copy_(values)
        self._before = self._bytes.clone()
        return self

    def assert_guards_intact(self, what: str = "") -> None:
        integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[self.t.element_size()]
        inside = torch.zeros_like(self._bytes)
        self._inside(inside, integers).fill_(255 if integers == torch.uint8 else -1)
        touched = (self._bytes != self._poison) & (inside == 0)
        assert not touched.any(), f"{what}: bytes around the tensor were written, at {touched.nonzero()[:8].flatten()}"

    def assert_unchanged(self, what: str = "") -> None:
        """Not one byte differs from what `holding` put there (or from the poison)."""
        before = torch.full_like(self._bytes, self._poison) if self._before is None else self._before
        changed = (self._bytes != before).nonzero().flatten()
        assert len(changed) == 0, f"{what}: written, at {changed[:8]}"


def guarded(values: torch.Tensor, device, *, pad: int = 0, shift: int = 0) -> Guarded:
    return Guarded(values.shape, values.dtype, device, pad=pad, shift=shift).holding(values)


# name -> how a tensor of rows lies in memory. The odd numbers take every row off 16-byte alignment.
LAYOUTS = {"dense": {}, "padded": dict(pad=37, shift=3)}


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# --- random inputs, made on the CPU so that every device gets the same ---


def normal(shape, dtype: torch.dtype, generator: torch.Generator, spread: float = 1.0) -> torch.Tensor:
    return (torch.randn(shape, generator=generator) * spread).to(dtype)


def weights(shape, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Around 1, both signs, as norm weights are."""
    return (1 + 0.5 * torch.randn(shape, generator=generator)).to(dtype)


def positive(shape, generator: torch.Generator, low: float = 0.01, high: float = 0.1) -> torch.Tensor:
    """float32 scales with full mantissas."""
    return low + (high - low) * torch.rand(shape, generator=generator)


def random_fp8(shape, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Normal numbers with a spread that reaches the format's largest and its subnormals."""
    return normal(shape, torch.float32, generator, 20.0).clamp(-240, 240).to(dtype)


def random_codes(shape, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Any codes but NaN, all equally likely."""
    codes = torch.randint(0, 256, tuple(shape), generator=generator).to(torch.uint8)
    codes[codes.view(dtype).float().isnan()] = 0x01
    return codes.view(dtype)


# --- comparisons ---


def value_order(tensor: torch.Tensor) -> torch.Tensor:
    """Integers that count representable values: neighbours differ by 1, -0 and +0 are both 0. Not for NaN."""
    bits = tensor.detach().cpu().contiguous()
    bits = bits.view(torch.uint8).int() if bits.element_size() == 1 else bits.view(torch.int16).int() & 0xFFFF
    sign = 1 << (8 * tensor.element_size() - 1)
    magnitude = bits & (sign - 1)
    return torch.where(bits >= sign, -magnitude, magnitude)


def assert_rounded_alike(got: torch.Tensor, wanted: torch.Tensor, what: str) -> None:
    """At least 99.9 % of the elements have the reference's bytes; NaN and zero always have; the rest is near.

    Only the order of a row's sum may differ, which moves 1 / rms by an ulp or two of float32, and so the
    normalised number by at most one value of the 16-bit type. Times the weight that is a change of at most 2^-7,
    less than the spacing of FP8: one value. In the 16-bit type itself it is at most two values (the number may
    lie just above a power of two, the product just below one).

    For tensors of many rows (or of fewer than 100 elements): when 1 / rms moves across a tie, all elements of a
    row with the same mantissa go with it, and bfloat16 has 128 mantissas, so that a single row may differ in 1 %
    of its elements. `assert_between` holds for any tensor.
    """
    assert got.shape == wanted.shape and got.dtype == wanted.dtype, f"{what}: {got.shape} {got.dtype}"
    near = 1 if got.dtype in FP8 else 2
    g, w = got.float().cpu(), wanted.float().cpu()
    # The payload of a 16-bit NaN is nobody's contract; an FP8 NaN has at most a sign, which is not either.
    assert torch.equal(g.isnan(), w.isnan()), f"{what}: {(g.isnan() != w.isnan()).sum()} NaN in one only"
    both = ~w.isnan()
    bits = torch.uint8 if got.dtype in FP8 else torch.int16
    differs = both & (got.cpu().contiguous().view(bits) != wanted.cpu().contiguous().view(bits))
    zeros = differs & ((g == 0) | (w == 0))
    assert not zeros.any(), f"{what}: {zeros.sum()} zeros differ, {g[zeros][:4]} for {w[zeros][:4]}"
    steps = (value_order(got) - value_order(wanted)).abs()[differs]
    assert (steps <= near).all(), f"{what}: {(steps > near).sum()} elements are up to {steps.max()} values away"
    count = int(differs.sum())
    assert count <= max(2, got.numel() // 1000), f"{what}: {count} of {got.numel()} elements differ"


def assert_between(got: torch.Tensor, one: torch.Tensor, other: torch.Tensor, what: str) -> None:
    """Each element lies between two results (in either order) that bound what rounding may give."""
    assert got.shape == one.shape and got.dtype == one.dtype, f"{what}: {got.shape} {got.dtype}"
    assert not any(t.float().isnan().any() for t in (got, one, other)), f"{what}: NaN"
    order, a, b = value_order(got), value_order(one), value_order(other)
    outside = (order < torch.minimum(a, b)) | (order > torch.maximum(a, b))
    if outside.any():
        first = tuple(outside.nonzero()[0].tolist())
        values = [t[first].item() for t in (got, one, other)]
        raise AssertionError(f"{what}: {int(outside.sum())} of {got.numel()} elements; at {first} {values}")


def half_ulp(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Half the spacing of `dtype` at float64 values."""
    mantissa, smallest = {torch.float16: (10, -14), torch.bfloat16: (7, -126), torch.float32: (23, -126)}[dtype]
    exponent = (torch.frexp(values.abs()).exponent - 1).clamp(min=smallest)
    return torch.ldexp(torch.ones_like(values), exponent - mantissa - 1)


def assert_gemm_close(got, a, b, scale_a, scale_b, bias, what: str) -> None:
    """|out - exact| <= (K + 1) 2^-24 sum|a b| scales + 2^-24 |exact| (with a bias) + half an ulp of the result.

    Products of two FP8 numbers are exact in float32. K - 1 additions and two multiplications by scales round
    once each, relative to at most sum|a b| scales; the bias's addition rounds once more, relative to the
    result; then the result is rounded to its type. Overflow is allowed where the bound reaches it.
    """
    a, b = a.double(), b.double()
    sa, sb = scale_a.double().reshape(-1, 1), scale_b.double().reshape(1, -1)
    exact, size = a @ b.t() * sa * sb, a.abs() @ b.abs().t() * sa.abs() * sb.abs()
    error = (a.shape[1] + 1) * U32 * size
    if bias is not None:
        exact = exact + bias.double()
        error = error + U32 * exact.abs()
    assert got.shape == exact.shape, f"{what}: shape {got.shape}"
    error = error * (1 + 1e-6) + 2.0**-149  # second-order terms; the smallest subnormal
    bound = error + half_ulp(exact.abs() + error, got.dtype)
    limit = torch.finfo(got.dtype).max
    overflow = got.isinf() & (exact.abs() + bound > limit) & (got.sign() == exact.sign())
    excess = (got.double() - exact).abs() - bound
    bad = ~((excess <= 0) | overflow)
    if bad.any():
        m, n = bad.nonzero()[0].tolist()
        raise AssertionError(
            f"{what}: {int(bad.sum())} of {bad.numel()} elements; at [{m}, {n}] {got[m, n].item()} "
            f"for {exact[m, n].item()} +- {bound[m, n].item()}"
        )
