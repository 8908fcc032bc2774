"""What every GEMM promises: results within a derived bound of float64 (of integers: the reference's bytes), operands in
any place, special values where they belong, the same bits whatever is beside a row.

What one operator alone promises is in its own file. A new one joins GEMMS with its description."""

import itertools
from dataclasses import replace

import pytest
import torch

from problems import block_scaled_gemm, int8, skinny_gemm
from problems.buffers import Guarded, same_bytes, threads
from problems.gemm import ROWS, Gemm, Problem, assert_nan_stays_in_its_row_or_column, bias_of, no_bias
from problems.inputs import FLOATS, FP8, short

GEMMS = (skinny_gemm.GEMM, block_scaled_gemm.GEMM, int8.GEMM)
OF_FP8 = tuple(gemm for gemm in GEMMS if gemm.own_format is None)
F32 = torch.float32


def name_of(value) -> str:
    if isinstance(value, Gemm):
        return value.name
    if isinstance(value, torch.dtype):
        return short(value)
    return getattr(value, "id", None) or ("x".join(map(str, value)) if type(value) is tuple else str(value))


def each(*, of: tuple[Gemm, ...] = GEMMS, **names: str):
    """A test for each GEMM and each of its values of these fields: name of the argument = name of the field."""
    values = [(gemm, *rest) for gemm in of for rest in itertools.product(*(getattr(gemm, f) for f in names.values()))]
    return pytest.mark.parametrize(["gemm", *names], values, ids=name_of)


@each(case="cases")
def test_results(kernel, device, generator, formats, gemm, case):
    drawn = gemm.draw_case(case, gemm.formats(formats), generator)
    inputs, buffers = drawn.placed(device, *case.layouts)
    out = Guarded((case.m, case.n), case.dtype, device, **ROWS[case.layout])
    assert gemm.run(kernel, inputs, out=out.t) is out.t
    gemm.assert_right(kernel, inputs, out.t, case.id)
    out.assert_guards_intact("out")
    for read in buffers:
        read.assert_unchanged(case.id)


@each(dtype="results")
def test_a_result_of_its_own(kernel, device, generator, formats, gemm, dtype):
    problem = Problem(3, 13, 300, gemm.formats(formats)[0])
    inputs = gemm.draw(problem, generator, bias=bias_of(F32)).to(device)
    out = gemm.run(kernel, inputs, out_dtype=dtype)
    assert out.dtype == dtype
    gemm.assert_right(kernel, inputs, out, short(dtype))


@each()
def test_the_default_result_is_bfloat16(kernel, device, generator, formats, gemm):
    inputs = gemm.draw(Problem(3, 5, 160, gemm.formats(formats)[0]), generator).to(device)
    out = gemm.run(kernel, inputs)
    assert out.dtype == torch.bfloat16
    assert same_bytes(out, gemm.run(kernel, inputs, out_dtype=torch.bfloat16))


@each(layout="operands")
def test_without_rows_or_columns(kernel, device, generator, formats, gemm, layout):
    for m, n in ((0, 5), (5, 0), (0, 0)):
        drawn = gemm.draw(Problem(m, n, 200, gemm.formats(formats)[0]), generator)
        assert gemm.run(kernel, drawn.placed(device, layout, layout)[0]).shape == (m, n)


# --- special values ---


@each(m="rows", k="inner", layout="orders", of=OF_FP8)
def test_nan_stays_in_its_row_or_column(kernel, device, generator, format, gemm, m, k, layout):
    inputs, _ = gemm.draw(Problem(m, 37, k, format), generator).placed(device, layout, layout)
    assert_nan_stays_in_its_row_or_column(lambda inputs: gemm.run(kernel, inputs, out_dtype=F32), inputs, generator)


@each(m="rows", of=OF_FP8)
def test_nan_times_zero_is_nan(kernel, device, generator, format, gemm, m):
    drawn = gemm.draw(Problem(m, 3, 200, format), generator, gemm.one, gemm.one).to(device)
    one = torch.ones_like(drawn.scale_a)
    zeros, many = torch.zeros(3, 200).to(format).to(device), torch.zeros(m, 200).to(format).to(device)
    for k in (0, 150):
        nan = torch.zeros(1, 200)
        nan[0, k] = torch.nan
        nan = nan.to(format).to(device)
        for a, b, scale_b in ((nan, zeros, one), (many, nan, one), (many, nan, 0 * one)):
            inputs = replace(drawn, a=a, b=b, scale_a=one, scale_b=scale_b)
            assert gemm.run(kernel, inputs).isnan().all(), k
    assert gemm.run(kernel, replace(drawn, a=many, b=zeros, scale_a=one, scale_b=one * torch.nan)).isnan().all()


@each()
def test_nan_and_infinity_in_scales_and_bias(kernel, device, generator, formats, gemm):
    """Beside ordinary values, which they do not touch."""
    problem = Problem(5, 13, 100, gemm.formats(formats)[0])
    inputs = gemm.draw(problem, generator, gemm.vector, gemm.vector, bias=bias_of(F32)).to(device)
    clean = gemm.run(kernel, inputs, out_dtype=F32)
    zero = gemm.run(kernel, replace(inputs, bias=None), out_dtype=F32) == 0  # times infinity it is NaN
    inputs.scale_a[2], inputs.scale_a[3], inputs.scale_b[0, 7] = torch.nan, -torch.inf, torch.inf
    inputs.bias[4], inputs.bias[9] = torch.nan, torch.inf
    got = gemm.run(kernel, inputs, out_dtype=F32)
    special = torch.zeros_like(zero)
    special[2:4] = special[:, 7] = special[:, 4] = special[:, 9] = True
    assert torch.equal(got.isfinite(), ~special)
    assert same_bytes(got[~special], clean[~special])
    assert got[2].isnan().all() and got[:, 4].isnan().all()
    assert (got[[0, 1, 4], 9] == torch.inf).all()
    if not gemm.scales_parts:  # infinity of infinity, but where it meets another
        infinite = got.isinf() | zero
        assert infinite[[0, 1, 3, 4], 7].all() and infinite[3, [0, 1, 2, 3, 5, 6, 8]].all()


@each(m="rows", of=OF_FP8)
def test_large_sums(kernel, device, generator, format, gemm, m):
    inputs = gemm.draw(Problem(m, 9, 16384, format), generator, gemm.one, gemm.one).to(device)
    one, largest = torch.ones_like(inputs.scale_a), torch.finfo(format).max
    a, b = (torch.full_like(t.float(), largest).to(format) for t in (inputs.a, inputs.b))
    inputs = replace(inputs, a=a, b=b, scale_a=one, scale_b=one)
    for dtype in FLOATS:
        got = gemm.run(kernel, inputs, out_dtype=dtype)
        assert got.isinf().all() if dtype == torch.float16 else got.isfinite().all()
        gemm.assert_right(kernel, inputs, got, short(dtype))
    # Sums that cancel: only the order of the additions is left, within the bound.
    signs = torch.where(torch.rand(9, 16384, generator=generator) < 0.5, -1.0, 1.0).to(device)
    cancelling = replace(inputs, b=(b.float() * signs).to(format))
    gemm.assert_right(kernel, cancelling, gemm.run(kernel, cancelling, out_dtype=F32), "cancelling")
    # A scale brings a sum beyond float16 back into its range before it is rounded.
    scaled = replace(inputs, scale_b=one * 2.0**-20)
    got = gemm.run(kernel, scaled, out_dtype=torch.float16)
    assert got.isfinite().all()
    gemm.assert_right(kernel, scaled, got, "scaled")


@pytest.mark.parametrize("scale", [2.0**-16, 2.0**-24, 2.0**-120, 2.0**-140])
@each(dtype="results")
def test_small_results(kernel, device, generator, formats, gemm, dtype, scale):
    # Subnormal in the result's type, and in float32 itself.
    problem = Problem(3, 13, 300, gemm.formats(formats)[0])
    inputs = gemm.draw(problem, generator, gemm.one, gemm.one).to(device)
    inputs.scale_a = torch.full_like(inputs.scale_a, scale)
    if gemm.scales_parts:
        inputs.scale_b = torch.ones_like(inputs.scale_b)
    gemm.assert_right(kernel, inputs, gemm.run(kernel, inputs, out_dtype=dtype), f"{scale} {short(dtype)}")


# --- the same bits ---


@each(size="uneven")
def test_same_bytes_whatever_the_threads(kernel, device, generator, formats, gemm, size):
    formats = gemm.formats(formats)
    problem = Problem(*size, formats[size[1] % len(formats)])
    inputs = gemm.draw(problem, generator, bias=bias_of(torch.float16)).to(device)
    results = []
    for count in (1, 2, 3, 2):
        with threads(count):
            results.append(gemm.run(kernel, inputs, out_dtype=F32))
    gemm.assert_right(kernel, inputs, results[0], "one thread")
    assert all(same_bytes(results[0], other) for other in results[1:])


@each(scale_a="of_rows", size="of_a_row")
def test_a_row_does_not_depend_on_its_batch(kernel, device, backend, generator, formats, gemm, scale_a, size):
    classes = gemm.row_classes(backend)
    total = max(m for sizes in classes for m in sizes)
    looked_at = {i for i in (*range(32), 64, 127, total - 17, total - 16, total - 1) if i < total}
    for format in gemm.formats(formats):
        drawn = gemm.draw(Problem(total, *size, format), generator, scale_a, bias=bias_of(torch.bfloat16))
        inputs = drawn.to(device)
        for sizes in classes:
            # Each as the first of as few rows as the class has: the row itself and the ones after it, around the end.
            alone = {
                i: gemm.run(kernel, inputs.rows([(i + r) % total for r in range(sizes[0])]), out_dtype=F32)[0]
                for i in looked_at
            }
            # The first m rows, and the last: as those rows of the most, whose rows are those that were alone.
            for part in (lambda m: slice(0, m), lambda m: slice(total - m, total)):
                most = gemm.run(kernel, inputs.rows(part(max(sizes))), out_dtype=F32)
                begin = part(max(sizes)).start
                for i in looked_at & set(range(begin, begin + len(most))):
                    assert same_bytes(most[i - begin], alone[i]), f"row {i} of {len(most)} from {begin}"
                for m in sizes:
                    got = gemm.run(kernel, inputs.rows(part(m)), out_dtype=F32)
                    assert same_bytes(got, most[:m] if begin == part(m).start else most[-m:]), f"{part(m)}"


@each(m="rows")
def test_other_rows_do_not_matter(kernel, device, generator, formats, gemm, m):
    """The same row among others, whose numbers and scales differ; among codes of NaN where there are some."""
    format, row = gemm.formats(formats)[0], m // 2
    one, other = (gemm.draw(Problem(m, 40, 300, format), generator).to(device) for _ in range(2))
    other.a.view(torch.uint8)[:] = 0x80 if format != torch.float8_e4m3fn else 0x7F
    other.a.view(torch.uint8)[row] = one.a.view(torch.uint8)[row]
    other.scale_a[row] = one.scale_a[row]
    other.b, other.scale_b = one.b, one.scale_b
    got, wanted = (gemm.run(kernel, inputs, out_dtype=F32)[row] for inputs in (other, one))
    assert same_bytes(got, wanted)


@each(size="moved")
def test_layout_does_not_change_bits(kernel, device, backend, generator, formats, gemm, size):
    # Alignment and order decide between fast and careful loads, never the order of the sum.
    formats = gemm.formats(formats)
    inputs = gemm.draw(Problem(*size, formats[size[0] % len(formats)]), generator)
    wanted = gemm.run(kernel, inputs.to(device), out_dtype=F32)
    gemm.assert_right(kernel, inputs.to(device), wanted, "dense")
    by_kernel = {False: wanted}
    for how in gemm.operands:
        # Where unaligned operands have a kernel of their own, its bits are the same among themselves.
        other = backend in gemm.alignment_counts and size[2] % 16 == 0 and how not in ("dense", "near")
        for layouts in ((how, how), (how, "dense"), ("dense", how)):
            moved, _ = inputs.placed(device, *layouts)
            got = gemm.run(kernel, moved, out_dtype=F32)
            assert same_bytes(got, by_kernel.setdefault(other, got)), layouts
            gemm.assert_right(kernel, moved, got, str(layouts))
    for how in gemm.places:
        moved, _ = inputs.placed(device, "dense", "dense", how, how)
        assert same_bytes(gemm.run(kernel, moved, out_dtype=F32), wanted), how


@each(dtype="results")
def test_the_results_layout_does_not_change_bits(kernel, device, generator, formats, gemm, dtype):
    problem = Problem(21, 37, 300, gemm.formats(formats)[0])
    inputs = gemm.draw(problem, generator, bias=bias_of(F32)).to(device)
    wanted = gemm.run(kernel, inputs, out_dtype=dtype)
    for layout in ROWS:
        out = Guarded((21, 37), dtype, device, **ROWS[layout])
        assert same_bytes(gemm.run(kernel, inputs, out=out.t), wanted), layout


@each()
def test_expanded_operands(kernel, device, generator, formats, gemm):
    # A stride of zero is a layout like any other for what is only read.
    problem = Problem(8, 16, 160, gemm.formats(formats)[0])
    for scales in ((), (gemm.one, gemm.one)):
        inputs = gemm.draw(problem, generator, *scales, bias=no_bias).to(device)
        inputs.a, inputs.b = inputs.a[:1].expand(8, -1), inputs.b[:1].expand(16, -1)
        if not scales:
            inputs.scale_a = inputs.scale_a[:1].expand_as(inputs.scale_a)
            inputs.scale_b = inputs.scale_b[:1, :1].expand_as(inputs.scale_b)
        got = gemm.run(kernel, inputs, out_dtype=F32)
        gemm.assert_right(kernel, inputs, got, "expanded")
        assert (got == got[0, 0]).all()


@each(of=OF_FP8)
def test_a_format_that_the_device_does_not_multiply(kernel, device, generator, formats, gemm):
    for format in FP8:
        inputs = gemm.draw(Problem(3, 5, 64, format), generator).to(device)
        if format in formats:
            gemm.run(kernel, inputs)
            continue
        with pytest.raises(RuntimeError, match=f"a: dtype {short(format)}|a: dtype float8_{short(format)}"):
            gemm.run(kernel, inputs)
