"""What only a GPU shows: graphs, streams, and launches behind one another. Runs on any GPU that the variant at hand
serves."""

import itertools

import pytest
import torch

from benchmarks.harness.forms import all_shapes_for, entry, shapes_for
from benchmarks.harness.gpu_cases import CONFIG_VARIABLE
from problems import skinny_gemm as gemm
from problems.buffers import same_bytes
from problems.inputs import normal, random_fp8, weights


@pytest.fixture(autouse=True)
def gpu(device):
    if device.type == "cpu":
        pytest.skip("needs a GPU; the kernels' logic is tested in the simulator (test_rocm_operators.py)")
    return device


# Sizes with and without split K, aligned and not.
SIZES = [(1, 64, 16384), (4, 2304, 4096), (16, 100, 8192), (32, 512, 16384), (8, 33, 1001)]


def problem(kernel, device, generator, m, n, k) -> gemm.Inputs:
    return gemm.draw(gemm.Problem(m, n, k, kernel.fp8_dtype(device)), generator).to(device)


@pytest.mark.parametrize("m, n, k", SIZES)
def test_the_same_bits_again_and_again(kernel, device, generator, m, n, k):
    inputs = problem(kernel, device, generator, m, n, k)
    first = gemm.run(kernel, inputs, out_dtype=torch.float32)
    inputs.assert_right(first, f"{m}x{n}x{k}")
    for _ in range(50):
        assert same_bytes(gemm.run(kernel, inputs, out_dtype=torch.float32), first)


@pytest.mark.parametrize("rows, d", [(200, 8192), (300, 16384), (500, 16384), (700, 5120), (2100, 2048), (900, 8192)])
def test_many_rows_come_in_rounds(kernel, device, generator, rows, d):
    """More rows than the chip has room for: each is what it is among few, with launches behind one another."""
    x, residual = (normal((rows, d), torch.float16, generator).to(device) for _ in range(2))
    weight, scale = weights((d,), torch.float16, generator).to(device), torch.tensor(0.02, device=device)
    updated, few = residual.clone(), residual.clone()
    q = kernel.add_rms_norm_fp8(x, updated, weight, scale)
    gated = kernel.swiglu_fp8(updated, scale)
    wanted = [kernel.add_rms_norm_fp8(x[i : i + 50], few[i : i + 50], weight, scale) for i in range(0, rows, 50)]
    assert same_bytes(q, torch.cat(wanted)) and same_bytes(updated, few)
    assert same_bytes(gated, torch.cat([kernel.swiglu_fp8(part, scale) for part in few.split(3)]))


@pytest.mark.parametrize("operator, rows", [("skinny_gemm", 1), ("skinny_gemm", 16), ("block_scaled_gemm", 100)])
def test_a_gemm_without_the_promise_makes_it_true_for_the_next(kernel, device, generator, operator, rows):
    """The weight's writer is a kernel of this package, which lets the next launch start before it has ended; the first
    GEMM waits for it, and lets no launch start before."""
    n = k = 8192
    one, scale = torch.ones(1, device=device), torch.tensor(0.02, device=device)
    sources = [normal((n, k), torch.bfloat16, generator).to(device) for _ in range(2)]
    a = random_fp8((rows, k), kernel.fp8_dtype(device), generator).to(device)
    weight = torch.empty(n, k, dtype=kernel.fp8_dtype(device), device=device)
    gemm_of = getattr(kernel, operator)
    wanted = []
    for source in sources:
        kernel.quantize_fp8(source, scale, out=weight)
        torch.cuda.synchronize()
        wanted.append(gemm_of(a, weight, one, one))
    assert not same_bytes(*wanted)
    found = []
    for turn in range(40):
        kernel.quantize_fp8(sources[turn % 2], scale, out=weight)
        found.append([gemm_of(a, weight, one, one, constant_b=promised) for promised in (False, True)])
    for turn, results in enumerate(found):
        assert all(same_bytes(result, wanted[turn % 2]) for result in results), turn


def test_graphs_replay_with_new_inputs(kernel, device, generator):
    rows, d = 5, 4096
    x, residual = (normal((rows, d), torch.bfloat16, generator).to(device) for _ in range(2))
    weight, scale = weights((d,), torch.bfloat16, generator).to(device), torch.tensor(0.02, device=device)
    one = torch.ones((), device=device)
    matrix = random_fp8((2 * d, d), kernel.fp8_dtype(device), generator).to(device)

    def step(x, residual):
        q = kernel.add_rms_norm_fp8(x, residual, weight, scale)
        return kernel.swiglu_fp8(kernel.skinny_gemm(q, matrix, scale, one * 1e-3), scale)

    step(x, residual.clone())  # what a first launch loads may not happen during a capture
    static = [x.clone(), residual.clone()]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step(*static)
    for _ in range(3):
        fresh = [normal((rows, d), torch.bfloat16, generator).to(device) for _ in range(2)]
        for target, value in zip(static, fresh):
            target.copy_(value)
        result.view(torch.uint8).fill_(0x80)
        graph.replay()
        assert same_bytes(result, step(*fresh))


def test_streams_and_graphs_side_by_side(kernel, device, generator):
    """Launches with split K at the same time on two streams, and in two graphs captured on one stream and replayed on
    two."""
    problems = [problem(kernel, device, generator, 8, 64, 16384) for _ in range(2)]
    wanted = [gemm.run(kernel, p, out_dtype=torch.float32) for p in problems]
    streams = [torch.cuda.Stream() for _ in problems]
    graphs, results = [], []
    for p in problems:
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1]):
            results.append([gemm.run(kernel, p, out_dtype=torch.float32) for _ in range(20)])
    torch.cuda.synchronize()
    got: list[list[torch.Tensor]] = [[], []]
    for _ in range(20):
        for i, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                got[i].append(gemm.run(kernel, problems[i], out_dtype=torch.float32))
                graphs[i].replay()
    torch.cuda.synchronize()
    for i, alone in enumerate(wanted):
        assert all(same_bytes(one, alone) for one in itertools.chain(got[i], results[i]))


@pytest.fixture
def cuda(backend):
    if backend != "cuda":
        pytest.skip("of the CUDA variant alone")


def layers(kernel, device, generator, rows: int, d: int, count: int):
    """A function that runs `count` layers' operators behind one another on fresh copies of random inputs: its
    results."""
    fp8, bf16 = kernel.fp8_dtype(device), torch.bfloat16
    x, residual = (normal((rows, d), bf16, generator).to(device) for _ in range(2))
    weight, scale = weights((d,), bf16, generator).to(device), torch.tensor(0.02, device=device)
    small = torch.tensor(1e-3, device=device)
    up = [random_fp8((2 * d, d), fp8, generator).to(device) for _ in range(count)]
    down = [random_fp8((d, d), fp8, generator).to(device) for _ in range(count)]
    torch.cuda.synchronize()  # the weights are constants from here on

    def run() -> list[torch.Tensor]:
        h, results = x.clone(), [residual.clone()]
        for i in range(count):
            q = kernel.add_rms_norm_fp8(h, results[0], weight, scale)
            wide = kernel.skinny_gemm(q, up[i], scale, small, constant_b=True)
            q = kernel.swiglu_fp8(wide, scale)
            h = kernel.skinny_gemm(q, down[i], scale, small, constant_b=True)
            results += [wide, h]
        return results

    return run


# The last two with the GEMM's plain kernel.
@pytest.mark.parametrize("rows, d", [(1, 4096), (3, 2880), (32, 1536), (17, 8192), (5, 512), (2, 1001)])
def test_kernels_that_overlap_give_the_same_bits(kernel, device, generator, cuda, environment, rows, d):
    run = layers(kernel, device, generator, rows, d, count=6)
    environment("ROCM_FP8_KERNELS_PDL", "0")
    wanted = run()
    assert all(t.isfinite().all() for t in wanted)
    environment("ROCM_FP8_KERNELS_PDL", None)
    graph = torch.cuda.CUDAGraph()
    run()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        replayed = run()
    for _ in range(30):
        for got, want in zip(run(), wanted):
            assert same_bytes(got, want)
        graph.replay()
        for got, want in zip(replayed, wanted):
            assert same_bytes(got, want)


def forms(kind: str, m: int, n: int, splits: int) -> list[tuple]:
    """(place, splits, pieces): the plain kernel, or every bulk shape for those rows: with full tiles, with one more,
    with pieces of three columns."""
    if kind == "plain":
        return [(-1, splits)]
    fewest = {shape: -(-n // columns) for shape, columns in all_shapes_for(m, splits).items()}
    return [(shape, splits, pieces) for shape, least in fewest.items() for pieces in (least, least + 1, n // 3)]


@pytest.mark.parametrize("kind", ["plain", "bulk"])
@pytest.mark.parametrize("splits", [1, 2, 3, 5, 8])
def test_every_form_of_the_gemm(kernel, device, generator, cuda, environment, kind, splits):
    """Each compiled kernel, with full tiles and with pieces of columns, with splits that are longer and shorter than
    its ring.

    A row's bits do not depend on the number of rows, nor on the tiles and pieces, which that decides; but more than 16
    rows by more than 64 columns have their own, where the block is not a large one.
    """
    n = 201
    for k in (1040, 4112, 20000):
        whole = problem(kernel, device, generator, 32, n, k)
        bits: dict[bool, torch.Tensor] = {}
        for m in (32, 1, 8, 9, 16, 17):
            inputs, columns = whole.rows(slice(0, m)), shapes_for(m)
            for form in forms(kind, m, n, splits):
                own = m > 16 and columns.get(form[0], 0) > 64
                environment(CONFIG_VARIABLE, entry("skinny_gemm", "cuda", *form))
                what = f"{m}x{n}x{k}, {form}"
                got = gemm.run(kernel, inputs, out_dtype=torch.float32)
                inputs.assert_right(got, what)
                assert torch.equal(got, bits.setdefault(own, got)[:m]), what
                assert torch.equal(got, gemm.run(kernel, inputs, out_dtype=torch.float32, constant_b=True)), what


# A multiprocessor's share of columns in each regime of pick_config, for 132 of them, odd sizes.
SHARES = [
    *((527, 2064), (1001, 2064), (2305, 1040), (4227, 5136), (7601, 5136)),
    *((8449, 1040), (16901, 1040), (19001, 1040), (22101, 1040), (28681, 1040), (38001, 1040)),
    (13313, 6160),  # long enough to be fetched slot by slot where every place for a block is taken
    *((12301, 16400), (16801, 16384)),  # one large block
    (2301, 16400),  # clusters of wide blocks
    *((2501, 6160), (4001, 6160), (5001, 8208)),  # of two
    *((401, 16400), (501, 16400)),  # of eight and of six
]


@pytest.mark.parametrize("n, k", SHARES)
def test_own_choices_of_the_gemm(kernel, device, generator, cuda, n, k):
    """Every column comes from a piece; a row's bits depend on the number of rows no more than docs/numerics.md says."""
    whole = problem(kernel, device, generator, 32, n, k)
    bits = {m: gemm.run(kernel, whole.rows(slice(0, m)), out_dtype=torch.float32) for m in (16, 32)}
    for m in (32, 17, 16, 9, 8, 1):
        inputs = whole.rows(slice(0, m))
        got = gemm.run(kernel, inputs, out_dtype=torch.float32, constant_b=True)
        inputs.assert_right(got, f"{m}x{n}x{k}")
        assert torch.equal(got, bits[16 if m <= 16 else 32][:m]), (m, n, k)


def test_expanded_operands_of_the_copy_engines_size(kernel, device, generator, cuda):
    inputs = problem(kernel, device, generator, 8, 64, 2048)
    inputs.a, inputs.b = inputs.a[:1].expand(8, -1), inputs.b[:1].expand(64, -1)
    got = gemm.run(kernel, inputs, out_dtype=torch.float32)
    inputs.assert_right(got, "expanded")


def test_a_forced_form_that_does_not_fit(kernel, device, generator, cuda, environment):
    for m, n, k, text, why in (
        (2, 16, 1001, "b32", "cannot take"),
        (2, 16, 1001, "b33", "unknown"),
        (2, 16, 1001, "b32,split=9", "cannot take"),
        (2, 16, 1001, "b32,split", "is not OPERATOR"),
        (2, 100, 1024, "b24", "cannot take"),  # not for so few rows
        (2, 100, 1024, "b56,pieces=1", "cannot take"),
        (2, 100, 1024, "b32,pieces=3", "cannot take"),
        (2, 100, 1024, "b64,pieces=101", "cannot take"),
        (2, 100, 1024, "b64,pieces=0", "is not OPERATOR"),
        # No 96 columns by 16 rows, no large blocks of them; no split K for 112 by 32, nor for large ones.
        (16, 100, 1024, "b96", "cannot take"),
        (16, 100, 1024, "b96w16", "cannot take"),
        (17, 100, 1024, "b112,split=2", "cannot take"),
        (17, 100, 1024, "b112w16,split=2", "cannot take"),
    ):
        environment(CONFIG_VARIABLE, f"skinny_gemm:{text}")
        with pytest.raises(RuntimeError, match=why):
            gemm.run(kernel, problem(kernel, device, generator, m, n, k))
