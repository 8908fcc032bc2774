"""mla_decode by float64: caches of every kind, lengths, pages, heads and query tokens."""

from dataclasses import replace

import pytest
import torch

from problems.buffers import Guarded, guarded, same_bytes, threads
from problems.inputs import HALF, normal, short
from problems.mla import LATENT, SCALE, WIDTH, Mla, assert_attended, draw, problems
from problems.pairwise import SAMPLE


def run(kernel, device, problem: Mla, o, what: str = "") -> tuple[torch.Tensor, torch.Tensor]:
    """Guarded operands; rows of q and of the cache apart with the layout "padded"."""
    padded = dict(pad=8) if problem.layout == "padded" else {}
    (_, _, lengths, scale), options = o.call(device)
    q, cache = guarded(o.q, device, **padded), guarded(o.cache, device, **padded)
    shape = problem.batch, problem.queries, problem.heads
    out, lse = Guarded((*shape, LATENT), problem.dtype, device), Guarded(shape, torch.float32, device)
    got = kernel.mla_decode(q.t, cache.t, lengths, scale, causal=problem.causal, out=out.t, lse_out=lse.t, **options)
    assert got is out.t
    for buffer in (out, lse):
        buffer.assert_guards_intact(what)
    for buffer in (q, cache):
        buffer.assert_unchanged(what)
    return out.t, lse.t


@pytest.mark.parametrize("problem", problems(SAMPLE), ids=lambda p: p.id)
def test_decode(kernel, device, generator, problem):
    o = draw(problem, generator, kernel.fp8_dtype(device))
    out, lse = run(kernel, device, problem, o, problem.id)
    assert_attended(problem, o, out, lse, problem.id)
    again = run(kernel, device, problem, o, problem.id)
    assert same_bytes(again[0], out) and same_bytes(again[1], lse)


@pytest.mark.parametrize("dtype", HALF, ids=short)
@pytest.mark.parametrize("form", ["fp8", "mixed"])
def test_codes_of_many_sequences_and_rows(kernel, device, generator, form, dtype):
    """On an H200 the tile of 64 rows: batches that fill the chip more than once by 32."""
    problem = Mla(132, 1, 40, 64, 128, dtype, form, False, "dense")
    o = draw(problem, generator, kernel.fp8_dtype(device))
    assert_attended(problem, o, *run(kernel, device, problem, o), problem.id)


def test_special_queries_of_codes(kernel, device, generator):
    """Beside others in each tile of rows: NaN, infinities, zeros, subnormal numbers, a large number by small ones."""
    p = Mla(132, 1, 40, 64, 128, torch.bfloat16, "fp8", False, "dense")
    o = draw(p, generator, kernel.fp8_dtype(device), [128] * 132)
    clean, _ = run(kernel, device, p, o)
    o.q[:, 0, 3, 100], o.q[:, 0, 17, 570], o.q[:, 0, 22, 0] = torch.nan, torch.inf, -torch.inf
    special = [3, 17, 22]
    o.q[:, 0, 5], o.q[:, 0, 30] = -0.0, o.q[:, 0, 30] * 2.0**-125
    o.q[:, 0, 38, 1:] *= 2.0**-12
    out, lse = run(kernel, device, p, o)
    assert out[:, 0, special].isnan().all()
    others = [head for head in range(40) if head not in (*special, 5, 30, 38)]
    assert same_bytes(out[:, :, others].contiguous(), clean[:, :, others].contiguous())
    ordinary = [head for head in range(40) if head not in special]
    kept = replace(o, q=o.q[:, :, ordinary])
    numbers = replace(p, heads=len(ordinary))
    assert_attended(numbers, kept, out[:, :, ordinary], lse[:, :, ordinary], p.id)


def test_every_fp8_format(kernel, device, generator, formats):
    """Both on a CPU, a GPU's own; every code that is a number, NaN in the rows that see it alone."""
    for fp8 in formats:
        p = Mla(2, 1, 5, 16, 48, torch.bfloat16, "fp8", True, "dense")
        o = draw(p, generator, fp8, [48, 20])
        codes = torch.arange(256, dtype=torch.uint8)
        codes[codes.view(fp8).float().isnan()] = 0
        page = int(o.table[0, 1])
        o.cache.view(torch.uint8)[page, 3, :256] = codes
        o.values[0][19, :256] = codes.view(fp8).double() * o.scale.double()
        out, lse = run(kernel, device, p, o)
        assert_attended(p, o, out, lse, short(fp8))
        nan = 0x80 if fp8 == torch.float8_e4m3fnuz else 0x7F
        o.cache.view(torch.uint8)[page, 3, 100] = nan
        with_nan, _ = run(kernel, device, p, o)
        assert with_nan[0].isnan().all() and same_bytes(with_nan[1], out[1])


def test_nan_codes_of_deepseeks_layout(kernel, device, generator):
    """0x7F and 0xFF are NaN and 0x80 is -0, whatever the chip's own format is."""
    p = Mla(3, 1, 4, 0, 20, torch.bfloat16, "mixed", True, "dense")
    o = draw(p, generator, kernel.fp8_dtype(device), [20, 20, 20])
    clean, _ = run(kernel, device, p, o)
    o.cache[0, 7, 300], o.cache[1, 7, 300] = 0x7F, 0xFF
    before = o.cache[2].clone()
    o.cache[2, :, :512] = torch.where(o.cache[2, :, :512] & 0x7F == 0, 0x80, o.cache[2, :, :512])
    got, _ = run(kernel, device, p, o)
    assert got[:2].isnan().all() and same_bytes(got[2], clean[2]), (before != o.cache[2]).sum()


@pytest.mark.parametrize("dtype", HALF, ids=short)
@pytest.mark.parametrize("page", [0, 16])
def test_special_values(kernel, device, generator, dtype, page):
    """NaN and infinities in one sequence stay there; -infinity as a score counts for nothing."""
    p = Mla(4, 2, 3, page, 64, dtype, "wide", False, "dense")
    o = draw(p, generator, kernel.fp8_dtype(device), [40, 40, 40, 40])
    clean, clean_lse = run(kernel, device, p, o)

    def token(b: int, n: int) -> torch.Tensor:
        return o.cache[b, n] if page == 0 else o.cache[int(o.table[b, n // page]), n % page]

    token(0, 17)[5] = torch.nan
    token(1, 33)[550] = torch.inf  # of the keys alone: a score of +-infinity
    o.q[1, :, :, 550] = 1.0
    o.q[1, 1, :, 550] = -1.0
    o.q[2, 0, 1, 3] = torch.nan
    got, lse = run(kernel, device, p, o)
    assert got[0].isnan().all() and lse[0].isnan().all()
    assert got[1, 0].isnan().all()  # as torch's softmax of an infinity
    assert not got[1, 1].isnan().any()
    assert got[2, 0, 1].isnan().all() and not got[2, 0, [0, 2]].isnan().any() and not got[2, 1].isnan().any()
    assert same_bytes(got[3], clean[3]) and same_bytes(lse[3], clean_lse[3])
    o.q[3] = 0
    o.q[3, :, :, 570] = 1.0
    for n in range(40):
        token(3, n)[570] = -torch.inf
    got, lse = run(kernel, device, p, o)
    assert (got[3] == 0).all() and (lse[3] == -torch.inf).all()


@pytest.mark.parametrize("dtype", HALF, ids=short)
def test_large_scores(kernel, device, generator, dtype):
    """Scores in the thousands: one token takes it all. Of float16, sums beyond its largest number."""
    p = Mla(2, 1, 16, 64, 320, dtype, "wide", True, "dense")
    o = draw(p, generator, kernel.fp8_dtype(device), [320, 77])
    o.q *= 400
    out, lse = run(kernel, device, p, o)
    assert_attended(p, o, out, lse, "large")
    assert lse.amax() > 1000


@pytest.mark.parametrize("page", [0, 1, 16, 64, 100])
def test_tiles_that_are_not_full(kernel, device, generator, page):
    """Lengths and rows beside multiples of 16 and 64: tiles over two pages, NaN in a tile behind its last token."""
    lengths = [1, 15, 17, 31, 33, 63, 65, 100, 129]
    for queries, heads in ((1, 15), (1, 17), (3, 11), (7, 9), (5, 13)):
        p = Mla(len(lengths), queries, heads, page, 130, torch.bfloat16, "wide", True, "padded")
        o = draw(p, generator, kernel.fp8_dtype(device), lengths)
        assert_attended(p, o, *run(kernel, device, p, o), p.id)


def test_shared_pages(kernel, device, generator):
    """Sequences with one prefix: the same pages in both tables."""
    p = Mla(2, 1, 8, 16, 96, torch.bfloat16, "wide", True, "dense")
    o = draw(p, generator, kernel.fp8_dtype(device), [90, 70])
    o.table[1, :3] = o.table[0, :3]
    o.values[1][:48] = o.values[0][:48]
    out, lse = run(kernel, device, p, o)
    assert_attended(p, o, out, lse, "shared")


def test_lengths_beyond_the_cache(kernel, device, generator):
    """Counted as the least or the most that there is."""
    p = Mla(2, 1, 4, 16, 64, torch.bfloat16, "wide", True, "dense")
    o = draw(p, generator, kernel.fp8_dtype(device), [64, 0])
    wanted = run(kernel, device, p, o)
    o.lengths = torch.tensor([2**31 - 1, -5], dtype=torch.int32)
    got = run(kernel, device, p, o)
    assert all(same_bytes(a, b) for a, b in zip(got, wanted))


def test_pages_that_there_are_not(kernel, device, generator):
    """Within a length: the first or the last page is read in their place, and nothing outside."""
    p = Mla(1, 1, 4, 16, 48, torch.bfloat16, "wide", True, "dense")
    o = draw(p, generator, kernel.fp8_dtype(device), [48])
    o.cache.copy_(normal(o.cache.shape, torch.bfloat16, generator))
    o.table[0] = torch.tensor([-7, 2**31 - 1, 2])
    got = run(kernel, device, p, o)
    o.table[0] = torch.tensor([0, len(o.cache) - 1, 2])
    assert all(same_bytes(a, b) for a, b in zip(got, run(kernel, device, p, o)))


def test_bits_do_not_depend_on_other_sequences(kernel, device, generator):
    """Other lengths and tokens; other numbers of threads."""
    p = Mla(4, 2, 16, 64, 1024, torch.bfloat16, "wide", True, "dense")
    o = draw(p, generator, kernel.fp8_dtype(device), [700, 1, 1024, 64])
    wanted = run(kernel, device, p, o)
    other = draw(p, generator, kernel.fp8_dtype(device), [1024, 900, 0, 300])
    o.lengths[1:], o.q[1:] = other.lengths[1:], other.q[1:]
    pages = o.table[0, :11].long()
    other.cache[pages] = o.cache[pages]
    o.cache, o.table[1:] = other.cache, 0
    for count in (1, 2):
        with threads(count):
            got = run(kernel, device, p, o)
        assert all(same_bytes(a[0], b[0]) for a, b in zip(got, wanted))


def test_strided_queries(kernel, device, generator):
    """Heads before tokens; odd distances."""
    p = Mla(2, 3, 5, 0, 50, torch.bfloat16, "wide", True, "dense")
    o = draw(p, generator, kernel.fp8_dtype(device), [50, 31])
    args, options = o.call(device)
    wanted = kernel.mla_decode(*args, **options)
    q = o.q.transpose(1, 2).contiguous().to(device).transpose(1, 2)
    assert same_bytes(kernel.mla_decode(q, *args[1:], **options), wanted)
    wide = torch.full((2, 3, 5, WIDTH + 3), torch.nan, dtype=torch.bfloat16, device=device)
    wide[..., 1:-2] = q
    got = kernel.mla_decode(wide[..., 1:-2], *args[1:], **options)
    assert_attended(p, o, got, None, "odd distances")


def test_no_sequences_and_no_tokens(kernel, device):
    q = torch.ones(0, 1, 4, WIDTH, dtype=torch.bfloat16, device=device)
    none = torch.ones(0, dtype=torch.int32, device=device)
    cache = torch.ones(0, 8, WIDTH, dtype=torch.bfloat16, device=device)
    assert kernel.mla_decode(q, cache, none, SCALE).shape == (0, 1, 4, LATENT)
    q, cache = q.new_ones(2, 1, 4, WIDTH), cache.new_ones(2, 0, WIDTH)
    lengths, lse = none.new_zeros(2), torch.ones(2, 1, 4, device=device)
    assert (kernel.mla_decode(q, cache, lengths, SCALE, lse_out=lse) == 0).all() and (lse == -torch.inf).all()
    pages, table = cache.new_ones(1, 16, WIDTH), none.new_zeros(2, 0)
    assert (kernel.mla_decode(q, pages, lengths, SCALE, block_table=table) == 0).all()


@pytest.mark.full
def test_long_sequences(kernel, device, generator):
    """Many splits, of one sequence and of several whose lengths differ much."""
    for batch, lengths in ((1, [20000]), (3, [20011, 3, 9000])):
        p = Mla(batch, 1, 16, 64, 20032, torch.bfloat16, "wide", True, "dense")
        o = draw(p, generator, kernel.fp8_dtype(device), lengths)
        out, lse = run(kernel, device, p, o)
        assert_attended(p, o, out, lse, "long")


@pytest.mark.full
def test_a_cache_beyond_4_gib(kernel, device, generator):
    """Pages behind 2^31 elements and 2^32 bytes, and a dense cache as large: 64-bit offsets."""
    p = Mla(1, 1, 2, 64, 192, torch.bfloat16, "wide", True, "dense")
    o = draw(p, generator, kernel.fp8_dtype(device), [130])
    args, options = o.call(device)
    wanted = kernel.mla_decode(*args, **options)
    pages = (2**31 + 2**27) // (64 * WIDTH)  # 4.5 GiB
    large = torch.empty(pages, 64, WIDTH, dtype=torch.bfloat16, device=device)
    places = torch.tensor([[pages - 1, pages - 700, 3]], dtype=torch.int32)
    for n in range(3):
        large[int(places[0, n])] = o.cache[int(o.table[0, n])].to(device) if n * 64 < 130 else 0
    got = kernel.mla_decode(args[0], large, *args[2:], block_table=places.to(device))
    assert same_bytes(got, wanted)
    slots = torch.tensor([pages * 64 - 63], device=device)
    kv = normal((1, LATENT), torch.bfloat16, generator).to(device)
    kernel.mla_append(kv, kv[:, :64], large, slots)
    assert same_bytes(large[-1, 1, :LATENT], kv[0])
    dense = large.view(-1)[: 2 * (pages // 2) * 64 * WIDTH].view(2, -1, WIDTH)
    for n in range(3):
        part = o.cache[int(o.table[0, n])] if n * 64 < 130 else torch.zeros(64, WIDTH)
        dense[1, n * 64 : n * 64 + 64] = part.to(device)
    lengths = torch.tensor([0, 130], dtype=torch.int32, device=device)
    got = kernel.mla_decode(args[0].expand(2, -1, -1, -1), dense, lengths, SCALE)
    exact = kernel.reference.mla_decode(args[0], dense[1:], lengths[1:], SCALE)
    assert (got[1:].float() - exact.float()).abs().max() <= 2.0**-7 * dense[1, :130].abs().max().float()
