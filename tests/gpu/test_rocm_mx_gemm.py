"""MX weights in the ROCm variant, simulated: both kernels on both chips, with the checks of waits, hazards, races and
coherence."""

import pytest
import torch

from benchmarks.harness.simulated_rocm import FORMATS
from problems.buffers import Guarded, same_bytes
from problems.gemm import placed
from problems.grouped_gemm import offsets_of
from problems.inputs import HALF
from problems.mx import GATES, KINDS, assert_gates_the_product, draw, plain, values
from scripts.load import load_kernel
from tests.settings import SEED, needs_rocm_toolchain

pytestmark = needs_rocm_toolchain
CPU, F32, U8, E8M0 = torch.device("cpu"), torch.float32, torch.uint8, torch.float8_e8m0fnu
EXPECTED = (1, 20, 100)  # rows of a group, as the launcher is told: streams, tiles of 32 and of 64 rows
each_arch = pytest.mark.parametrize("arch", FORMATS, indirect=True)
each_kind = pytest.mark.parametrize("kinds", KINDS, ids="-".join)


def fast(kinds: tuple[str, str]) -> bool:
    """Whether another kernel than the plain one has them, where loads of 16 bytes take the operands."""
    return kinds != ("f16", "mxfp8")


def kernel_of(expected: int, k: int = 0) -> str:
    if expected <= 16 and k <= 8192:
        return f"mx_gemm_stream<{int(k > 4096)}, "
    return f"mx_gemm_tiles<{int(expected > 32)}, "


def shifted(codes: torch.Tensor, by: int) -> torch.Tensor:
    """That many bytes behind a multiple of 16."""
    buffer = torch.zeros(codes.numel() + 64, dtype=U8)
    start = -buffer.data_ptr() % 16 + by
    return buffer[start : start + codes.numel()].view(codes.shape).copy_(codes)


@pytest.fixture
def kernel(simulated_rocm, arch):
    with simulated_rocm.on(arch, seed=SEED) as module:
        yield module


@each_arch
@each_kind
@pytest.mark.parametrize("expected", EXPECTED)
@pytest.mark.parametrize(
    "n, k, slots, layout", [(144, 288, 2, "dense"), (37, 32, 0, "near"), (137, 160, 3, "odd"), (48, 416, 1, "dense")]
)
def test_sums(kernel, arch, generator, kinds, expected, n, k, slots, layout):
    """Tails of rows, columns and k; a group of two tiles, one without rows; gathers."""
    biased, dtype = (torch.bfloat16, F32) if slots else (None, torch.bfloat16)
    problem = plain(30, n, k, kinds, slots=slots, biased=biased, dtype=dtype, experts=4)
    inputs, held = draw(problem, FORMATS[arch], generator).placed(CPU, layout)
    inputs.offsets = offsets_of([3, 0, 18, 7])
    if inputs.rows is not None:
        inputs.rows = torch.arange(30, dtype=torch.int32).flip(0)
    out = Guarded((inputs.count, n), dtype, CPU)
    inputs.call(kernel, out=out.t, expected_rows=expected)
    out.assert_guards_intact()
    for each in held:
        each.assert_unchanged()
    inputs.assert_right(out.t[:28], "mx")
    assert out.t[28:].isnan().all(), "rows beyond the last were written"


@each_arch
@pytest.mark.parametrize("experts", [1, 2, 3, 4, 64, 255, 256, 257, 511, 896, 1023, 1024])
def test_a_wave_finds_its_tile_among_any_number_of_groups(kernel, arch, generator, launched, experts):
    """Most have no rows; the first, the last and those beside multiples of 256 have some. Offsets begin anywhere."""
    inputs = draw(plain(90, 40, 32, ("bf16", "mxfp4"), experts=experts), FORMATS[arch], generator)
    near = {each for border in range(0, 1025, 256) for each in (border - 1, border, border + 1) if 0 <= each < experts}
    chosen = torch.tensor(sorted({0, experts - 1, *near}))
    sizes = chosen[torch.randint(len(chosen), (80,), generator=generator)].bincount(minlength=experts)
    for shift in range(4):
        around = torch.full((experts + 12,), 1 << 30, dtype=torch.int32)
        inputs.offsets = around[4 + shift : 5 + shift + experts].copy_(offsets_of(sizes.tolist()))
        out = Guarded((90, 40), torch.bfloat16, CPU)
        inputs.call(kernel, out=out.t, expected_rows=1)
        out.assert_guards_intact()
        inputs.assert_right(out.t[:80], "mx")
        assert out.t[80:].isnan().all(), "rows beyond the last were written"
    assert all(name.startswith(kernel_of(1)) for name in launched.names())


@each_arch
@pytest.mark.parametrize(
    "rows, shift",
    ((16, 0), (32, 0), (64, 0), (16, 8), (64, 8)),
    ids=("stream", "tiles of 32", "tiles of 64", "plain", "plain of many rows"),
)
@pytest.mark.parametrize("dtype", (*HALF, None), ids=str)
def test_every_code_in_every_place_with_every_exponent(kernel, arch, launched, rows, shift, dtype):
    """One number of a row of A is 1: the row is B's numbers there, exactly. Column 255 alone is NaN."""
    k, columns = 64, torch.arange(256)
    codes = (torch.arange(k)[None] + columns[:, None] % 16) % 16
    b = shifted((codes[:, ::2] | codes[:, 1::2] << 4).to(U8), shift)
    scales = columns.to(U8)[:, None].expand(-1, 2).contiguous().view(E8M0)
    for first in range(0, k, rows):
        places = torch.arange(first, first + rows)
        a = torch.zeros(rows, k)
        a[torch.arange(rows), places] = 1
        operands = a.to(dtype or FORMATS[arch]), b, None if dtype else torch.ones(1), scales
        got = kernel.block_scaled_gemm(*operands, out_dtype=F32)
        wanted = values(b, scales)[:, places].t().float()
        assert torch.equal(got.isnan(), wanted.isnan()) and bool(got[:, 255].isnan().all())
        assert torch.equal(got[:, :255], wanted[:, :255])
    assert all(name.startswith("mx_gemm_plain" if shift else kernel_of(rows)) for name in launched.names())


@each_arch
@each_kind
@pytest.mark.parametrize("expected", EXPECTED)
def test_nan_stays_in_its_row_or_column(kernel, arch, generator, kinds, expected):
    inputs = draw(plain(20, 24, 96, kinds, experts=4), FORMATS[arch], generator)
    inputs.offsets = offsets_of([0, 20, 0, 0])
    inputs.scale_b.view(U8)[1, 5, 1] = 255
    nan = 0x80 if arch == "gfx942" else 0x7F
    if kinds[1] == "mxfp8":
        inputs.b.view(U8)[1, 9, 40] = nan
    if inputs.a.dtype in HALF:
        inputs.a[3, 70], inputs.a[4, 1] = float("nan"), float("inf")
    elif inputs.a.dtype != U8:
        inputs.a.view(U8)[3, 70] = nan
    if kinds[0].startswith("mx"):
        inputs.scale_a.view(U8)[11, 2] = 255
    got = inputs.call(kernel, out_dtype=F32, expected_rows=expected)
    exact = values(inputs.a, inputs.scale_a) @ values(inputs.b[1], inputs.scale_b[1]).t()
    assert torch.equal(got.isnan(), exact.isnan()) and torch.equal(got.isinf(), exact.isinf())
    assert exact.isnan().any() and not exact.isnan().all()


@each_arch
@each_kind
@pytest.mark.parametrize("expected, k", [(1, 4096), (1, 4128), (20, 4128), (40, 2080), (1, 8224)])
def test_long_k_with_any_exponents(kernel, arch, generator, launched, kinds, expected, k):
    """Exponents beyond a 16-bit type's range lie among others; those of K come in one piece or in windows."""
    inputs = draw(plain(5, 40, k, kinds, experts=4), FORMATS[arch], generator)
    inputs.offsets = offsets_of([0, 1, 0, 4])
    near = inputs.scale_b.view(U8)
    beyond = torch.rand(near.shape, generator=generator) < 0.02
    near[beyond] = torch.randint(0, 140, near.shape, dtype=U8, generator=generator)[beyond]
    inputs.assert_right(inputs.call(kernel, out_dtype=F32, expected_rows=expected), "long k")
    (name,) = launched.names()
    assert name.startswith(kernel_of(expected, k) if fast(kinds) else "mx_gemm_plain")


def wide_rows(codes: torch.Tensor) -> torch.Tensor:
    """A view whose rows begin at multiples of 16 bytes, with poison between."""
    buffer = torch.full((*codes.shape[:-1], codes.shape[-1] + 16), 255, dtype=U8)
    return buffer[..., : codes.shape[-1]].copy_(codes.view(U8)).view(codes.dtype)


@each_arch
@pytest.mark.parametrize("shape", [(64, 40), (32, 1), (32, 16), (480, 1), (512, 1), (544, 3)], ids=str)
@pytest.mark.parametrize("expected", EXPECTED)
def test_exponents_end_where_their_tensor_does(kernel, arch, generator, launched, expected, shape):
    """No load reaches beyond: with few blocks it is moved back. Nor between rows, where there is poison."""
    k, n = shape
    blocks = k // 32
    inputs = draw(plain(5, n, k, ("row", "mxfp4"), experts=2), FORMATS[arch], generator)
    inputs.offsets = offsets_of([2, 3])
    wanted = inputs.call(kernel, out_dtype=F32, expected_rows=expected)
    inputs.assert_right(wanted, "dense")
    assert launched.names()[0].startswith(kernel_of(expected) if expected == 1 or n * blocks >= 16 else "mx_gemm_plain")
    inputs.scale_b = wide_rows(inputs.scale_b)
    inputs.assert_right(inputs.call(kernel, out_dtype=F32, expected_rows=expected), "strided")
    tiles = kernel_of(max(expected, 20)) if blocks >= 16 else "mx_gemm_plain"
    assert launched.names()[-1].startswith(kernel_of(1) if expected == n == 1 else tiles)


@each_arch
@pytest.mark.parametrize("kinds", [("bf16", "mxfp4"), ("mxfp8", "mxfp8"), ("mxfp4", "mxfp4")], ids="-".join)
def test_who_takes_what(kernel, arch, generator, launched, kinds):
    """Operands at multiples of 16 bytes: streams or tiles by the rows that are expected, else the plain kernel."""
    for expected, shift in ((1, 0), (17, 0), (33, 0), (1000, 0), (1, 8), (1000, 8)):
        inputs = draw(plain(5, 40, 512, kinds, experts=4), FORMATS[arch], generator)
        inputs.b = shifted(inputs.b.view(U8), shift).view(inputs.b.dtype)
        inputs.a = placed(inputs.a, CPU, "dense").t
        inputs.assert_right(inputs.call(kernel, out_dtype=F32, expected_rows=expected)[: inputs.live()], str(expected))
        (name,) = launched.names()
        assert name.startswith(kernel_of(expected) if fast(kinds) and not shift else "mx_gemm_plain")


@each_arch
@each_kind
def test_a_rows_bits_are_its_own(kernel, arch, generator, kinds):
    """Whatever rows are beside it, in a tile or in others, and whichever kernel makes it."""
    inputs = draw(plain(40, 40, 288, kinds, experts=4), FORMATS[arch], generator)
    inputs.rows, inputs.slots = torch.arange(40, dtype=torch.int32), 1
    first = None
    for expected in EXPECTED:
        inputs.offsets = offsets_of([40, 0, 0, 0])
        whole = inputs.call(kernel, out_dtype=F32, expected_rows=expected)
        first = whole if first is None else first
        assert same_bytes(whole, first)
        order = torch.randperm(40, generator=generator).int()
        inputs.rows, inputs.offsets = order, offsets_of([7, 0, 0, 0])
        part = inputs.call(kernel, out_dtype=F32, expected_rows=expected)
        assert same_bytes(part[:7].contiguous(), whole[order[:7].long()])
        inputs.rows = torch.arange(40, dtype=torch.int32)


@each_arch
@pytest.mark.parametrize("dtype", (F32, *HALF))
def test_quantisation_gives_the_references_bytes(kernel, arch, generator, dtype):
    """Both roundings; zeros, NaN and infinities beside numbers of all sizes."""
    x = torch.randn(7, 96, generator=generator) * torch.logspace(-40, 38, 7, dtype=torch.float64).float()[:, None]
    x[0, :32], x[1, 40], x[2, 70], x[3, 5] = 0, torch.nan, -torch.inf, -0.0
    x = x.to(dtype)
    for rounding in ("up", "even"):
        got, wanted = (module.quantize_mxfp4(x, rounding=rounding) for module in (kernel, kernel.reference))
        assert all(same_bytes(g, w) for g, w in zip(got, wanted))


each_gate = pytest.mark.parametrize("gate", GATES, ids=lambda gate: "-".join(map(str, gate.values())))


@each_arch
@each_kind
@each_gate
@pytest.mark.parametrize("expected", EXPECTED)
@pytest.mark.parametrize("hidden, k, slots, layout", [(72, 288, 2, "dense"), (17, 32, 0, "near"), (101, 160, 3, "odd")])
@pytest.mark.covering(pairs=True)
def test_gated_products(kernel, arch, generator, launched, kinds, gate, expected, hidden, k, slots, layout):
    """In one launch: tails of rows, hidden values and k; a group of two tiles, one without rows; gathers and biases."""
    case = plain(30, 2 * hidden, k, kinds, slots=slots, biased=torch.bfloat16 if slots else None, experts=4)
    inputs, _ = draw(case, FORMATS[arch], generator).placed(CPU, layout)
    inputs.offsets = offsets_of([3, 0, 18, 7])
    if inputs.rows is not None:
        inputs.rows = torch.arange(30, dtype=torch.int32).flip(0)
    assert_gates_the_product(kernel, inputs, gate, HALF[expected % 2], CPU, expected)
    names = launched.names()
    if layout == "dense" and fast(kinds):
        assert len(names) == 3 and names[0].startswith(kernel_of(expected)) and names[2].startswith("moe_gate")
    elif layout == "odd" or not fast(kinds):
        assert len(names) == 4


@each_arch
@pytest.mark.parametrize("dtype", (F32, *HALF))
@each_gate
def test_gates_give_the_cpus_bytes(kernel, arch, generator, gate, dtype):
    """Those are held to float64 in tests/operators/test_mx.py."""
    x = torch.randn(9, 2 * 37, generator=generator) * torch.logspace(-3, 3, 9)[:, None]
    x, offsets = x.to(dtype), torch.tensor([0, 2, 7], dtype=torch.int32)
    for out_dtype in HALF:
        out = Guarded((9, 37), out_dtype, CPU)
        kernel.moe_gate(x, offsets, **gate, out=out.t)
        out.assert_guards_intact()
        assert same_bytes(out.t[:7], load_kernel("cpu").moe_gate(x, **gate, out_dtype=out_dtype)[:7])
        assert out.t[7:].isnan().all()


@each_arch
def test_threads_step_from_row_to_row(simulated_rocm, arch, generator):
    """More cells than the grid has threads, on the first and the last of its workgroups."""
    rows, cells = 3, 230000
    x, threads = torch.randn(rows, 2 * cells, generator=generator).half(), []

    def sample(grid):
        last = grid[0] * grid[1] * grid[2] - 1
        at = torch.cat([torch.arange(256) + 256 * group for group in (0, last)])
        at = torch.cat([at, at + 256 * (last + 1)])
        threads.append(at[at < rows * cells])
        return [0, last]

    out = torch.full((rows, cells), torch.nan).half()
    blocks = torch.randn(rows * cells, generator=generator).half()[:, None].expand(-1, 32).reshape(rows, -1)
    codes, scales = (torch.zeros(rows, cells * each, dtype=U8) for each in (16, 1))
    with simulated_rocm.on(arch, seed=SEED, sample=sample) as kernel:
        kernel.moe_gate(x, out=out)
        kernel.quantize_mxfp4(blocks, out=codes, scale_out=scales)
        gate, up = (each.flatten()[threads[0]] for each in x.chunk(2, 1))
        wanted = kernel.reference.moe_gate(torch.cat([gate, up])[None], out_dtype=out.dtype)
        torch.testing.assert_close(out.flatten()[threads[0]][None], wanted, rtol=2.0**-9, atol=2.0**-20)
        wanted = kernel.reference.quantize_mxfp4(blocks.view(-1, 32)[threads[1]])
    got = codes.view(-1, 16)[threads[1]], scales.view(-1, 1)[threads[1]].view(E8M0)
    assert all(map(same_bytes, got, wanted)) and out.isnan().sum() == out.numel() - len(threads[0])
