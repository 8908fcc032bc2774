"""Comparisons of results whose tolerances are derived, not measured."""

import torch

from problems.inputs import FP8

U32 = 2.0**-24  # unit roundoff of float32


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


def assert_near(got: torch.Tensor, wanted: torch.Tensor, computed_from: torch.dtype | None = None) -> None:
    """Beside sums in another order: within a few of the type's roundings of the largest number; NaN in the same places.

    computed_from: the type that values were rounded to before, as those of which a scale is computed. A check that two
    ways of computing are the same function; how exact each is, tests of its own say."""
    assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
    of_sums = 2.0**-12 if on_hopper(got) else 2.0**-16  # its tensor cores keep fewer bits
    rounding = {torch.float32: of_sums, torch.float16: 2.0**-9, torch.bfloat16: 2.0**-6}.get(
        computed_from or got.dtype, 2.0**-3
    )
    g, w = got.float(), wanted.float()
    if got.dtype in (torch.int8, torch.int32):
        assert ((g - w).abs() <= 1).all() and (g != w).sum() <= max(2, g.numel() // 50)
        return
    near = rounding * w.nan_to_num(0, 0, 0).abs()
    if got.dtype not in FP8:
        near = near + rounding * w.nan_to_num(0, 0, 0).abs().max() if w.numel() else near
    torch.testing.assert_close(g.isfinite(), w.isfinite())
    assert ((g - w).abs() <= near + 2.0**-9)[w.isfinite()].all()


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
    _assert_sums_close(got, exact, size, a.shape[1] + 1, 1, bias, what)


def assert_block_scaled_gemm_close(got, a, b, scale_a, scale_b, bias, what: str) -> None:
    """The same with (K + J + 2) 2^-24 sum|scale_a scale_b a b|; J: blocks of 128 k. scale_a [M, J], scale_b [N, J].

    K - J additions within blocks, one product of scales, at most J products with it and J additions of blocks. A
    number that was scaled can be subnormal: rounding it moves it by 2^-150. (Scales themselves are normal here.)
    On Hopper what its tensor cores drop comes on top (docs/numerics.md, "How exact").
    """
    k, blocks = a.shape[1], scale_a.shape[1]
    a, b = (t.double() * s.repeat_interleave(128, 1)[:, :k] for t, s in ((a, scale_a), (b, scale_b)))
    roundings = k + blocks + 2
    dropped = _dropped_by_hopper(a, b) if on_hopper(got) else 0
    _assert_sums_close(got, a @ b.t(), a.abs() @ b.abs().t(), roundings, roundings, bias, what, dropped)


def assert_half_close(got, a, b, bias, what: str) -> None:
    """As assert_gemm_close without scales. Matrix units may cut sums off where others round: twice the error."""
    a, b = a.double(), b.double()
    _assert_sums_close(got, a @ b.t(), a.abs() @ b.abs().t(), 2 * (a.shape[1] + 1), 0, bias, what)


def assert_mx_close(got, a, b, bias, what: str) -> None:
    """a [M, K], b [N, K]: float64, scales included. K additions, and for each block of 32 a product of scales, one with
    it and an addition; a scale of rows; matrix units that cut off where others round: twice that."""
    roundings = 2 * (a.shape[1] + 3 * a.shape[1] // 32 + 1)
    _assert_sums_close(got, a @ b.t(), a.abs() @ b.abs().t(), roundings, roundings, bias, what)


def on_hopper(tensor: torch.Tensor) -> bool:
    return tensor.is_cuda and bool(torch.version.cuda) and torch.cuda.get_device_capability(tensor.device)[0] == 9


def _dropped_by_hopper(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """34 * 2^-13 of the largest addend, for each 32 k: of 32 products and the block's sum so far, and of their sum."""
    dropped = 0
    for block in range(0, a.shape[1], 128):
        so_far = 0
        for k in range(block, min(block + 128, a.shape[1]), 32):
            part_a, part_b = (t[:, k : min(k + 32, block + 128)] for t in (a, b))
            largest = part_a.abs().amax(1, keepdim=True) * part_b.abs().amax(1)
            so_far = so_far + part_a @ part_b.t()
            dropped = dropped + 34 * 2.0**-13 * torch.maximum(largest, so_far.abs())
    return dropped


def _assert_sums_close(got, exact, size, roundings: int, of_subnormals: int, bias, what: str, more=0) -> None:
    """`roundings` of a sum relative to `size`, `more`, the bias's, and the result's."""
    error = roundings * U32 * size + more
    if bias is not None:
        exact = exact + bias.double()
        error = error + U32 * exact.abs()
    assert got.shape == exact.shape, f"{what}: shape {got.shape}"
    error = error * (1 + 1e-6) + of_subnormals * 2.0**-149  # second-order terms; the smallest subnormal
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
