"""The ROCm variant's mla_decode and mla_append, simulated: every compiled form on both chips, with the checks of waits,
hazards, races and coherence; splits, schedules, 64-bit addresses.

`pytest --simulate gfx942 tests/operators/test_mla_decode.py` runs the operators' own tests there.
"""

import pytest
import torch

from benchmarks.harness.simulated_rocm import FORMATS, empty
from problems.buffers import Guarded, guarded, same_bytes
from problems.inputs import HALF, normal, positive, short
from problems.mla import LATENT, ROPE, SCALE, WIDTH, Mla, Operands, assert_attended, draw
from scripts.host_configs import configs
from tests.gpu.simulated_kernels import simulated
from tests.settings import SEED

kernel = simulated  # the package on each chip
CONFIG = "ROCM_FP8_KERNELS_CONFIG"
FORMS = {form["name"]: form for form in configs().tables["mla_forms"]}
DIRECT = {form["name"]: form for form in configs().tables["mla_direct"]}  # of gfx950
KINDS = ("wide", "fp8", "mixed")
APPENDS = ("mla_append", "mla_append_rope")  # all of a token, its rotated numbers alone
# (queries, heads) that leave a form's last wave rows without work.
ROWS = {"r16": (1, 11), "r32": (3, 9), "r64": (2, 25), "r128": (1, 100)}
ROWS |= {name.replace("r", "d"): rows for name, rows in ROWS.items()}


def attend(kernel, problem: Mla, o: Operands, **layout) -> tuple[torch.Tensor, torch.Tensor]:
    (_, _, lengths, scale), options = o.call()
    q, cache = guarded(o.q, "cpu", **layout), guarded(o.cache, "cpu", **layout)
    shape = problem.batch, problem.queries, problem.heads
    out, lse = Guarded((*shape, LATENT), problem.dtype, "cpu"), Guarded(shape, torch.float32, "cpu")
    kernel.mla_decode(q.t, cache.t, lengths, scale, causal=problem.causal, out=out.t, lse_out=lse.t, **options)
    out.assert_guards_intact()
    lse.assert_guards_intact()
    return out.t, lse.t


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", HALF, ids=short)
def test_every_kernel(kernel, launched, arch, environment, generator, form, kind, dtype):
    """Tails of tokens, rows and splits; pages of odd sizes, odd distances of rows; empty sequences."""
    queries, heads = ROWS[form]
    for splits, page, lengths, layout in ((1, 7, [53, 0], {}), (3, 16, [90, 17], dict(pad=8))):
        environment(CONFIG, f"mla_decode:{form},split={splits}")
        problem = Mla(2, queries, heads, page, max(lengths), dtype, kind, True, "dense")
        o = draw(problem, generator, FORMATS[arch], lengths)
        out, lse = attend(kernel, problem, o, **layout)
        assert_attended(problem, o, out, lse, f"{form}, {splits} splits")
    index = list(FORMS).index(form)
    names = launched.names()
    assert names[0] == names[1] == f"mla_decode<{index}, {short(dtype)}, {kind}>"
    assert names[2:] == [f"mla_merge<{short(dtype)}, 512>"]


@pytest.mark.parametrize("arch", ["gfx950"], indirect=True)
@pytest.mark.parametrize("form", DIRECT)
@pytest.mark.parametrize("dtype", HALF, ids=short)
def test_every_direct_kernel(kernel, launched, environment, generator, form, dtype):
    """Fewer tiles than a ring has, and more; groups without a tile; without a table, too."""
    queries, heads = ROWS[form]
    cases = ((1, 7, [53, 0], {}), (3, 16, [290, 17], dict(pad=8)), (1, 64, [389, 31], {}))
    for splits, page, lengths, layout in cases:
        environment(CONFIG, f"mla_decode:{form},split={splits}")
        problem = Mla(2, queries, heads, page, max(lengths), dtype, "wide", True, "dense")
        o = draw(problem, generator, FORMATS["gfx950"], lengths)
        out, lse = attend(kernel, problem, o, **layout)
        assert_attended(problem, o, out, lse, f"{form}, {splits} splits")
    index = list(DIRECT).index(form)
    assert [name for name in launched.names() if "direct" in name] == [
        f"mla_decode_direct<{index}, {short(dtype)}>"
    ] * 3


def test_every_kernel_is_tried(kernels, arch):
    tried = {f"mla_decode<{i}, {short(dtype)}, {kind}>" for i in range(len(FORMS)) for dtype in HALF for kind in KINDS}
    if arch == "gfx950":
        tried |= {f"mla_decode_direct<{i}, {short(dtype)}>" for i in range(len(DIRECT)) for dtype in HALF}
    merges = {f"mla_merge<{short(dtype)}, {columns}>" for dtype in HALF for columns in (512, 64)}
    appends = {f"{name}<{short(d)}, {aligned}>" for name in APPENDS for d in HALF for aligned in ("true", "false")}
    assert kernels.names(arch, "mla_decode", "mla_decode_direct", "mla_merge", *APPENDS) == tried | merges | appends


@pytest.mark.parametrize("dtype", HALF, ids=short)
@pytest.mark.parametrize("splits", [2, 8, 9, 40])
def test_merged_splits(kernel, environment, arch, generator, dtype, splits):
    """More splits than tiles, too; rows that see no token of a split."""
    environment(CONFIG, f"mla_decode:r16,split={splits}")
    problem = Mla(3, 2, 3, 16, 330, dtype, "wide", True, "dense")
    o = draw(problem, generator, FORMATS[arch], [330, 49, 1])
    assert_attended(problem, o, *attend(kernel, problem, o), f"{splits} splits")


def test_all_forms_and_row_tiles(kernel, environment, arch, generator):
    """More rows than a form's take several tiles of rows."""
    direct = ("d32", "d64") if arch == "gfx950" else ()
    problem = Mla(1, 4, 35, 64, 70, torch.bfloat16, "wide", True, "dense")
    o = draw(problem, generator, FORMATS[arch], [67])
    for form in ("r64", "r128", *direct):
        environment(CONFIG, f"mla_decode:{form},split=2")
        assert_attended(problem, o, *attend(kernel, problem, o), form)


def test_the_largest_scores_come_last(kernel, environment, arch, generator):
    """Each tile's are larger than all before: sums are scaled again and again. And they fall: they never are."""
    direct = [("d16", torch.bfloat16), ("d64", torch.float16)] if arch == "gfx950" else []
    for form, dtype in (("r16", torch.float16), ("r128", torch.bfloat16), *direct):
        environment(CONFIG, f"mla_decode:{form},split=1")
        problem = Mla(2, 1, 16, 16, 144, dtype, "wide", True, "dense")
        o = draw(problem, generator, FORMATS[arch], [144, 144])
        o.q[..., LATENT] = 40.0
        for b, sign in ((0, 1.0), (1, -1.0)):
            rising = (torch.arange(144) // 5 * 2.0 * sign).to(dtype)
            o.values[b][:, LATENT] = rising.double()
            for n in range(144):
                o.cache[int(o.table[b, n // 16]), n % 16, LATENT] = rising[n]
        assert_attended(problem, o, *attend(kernel, problem, o), form)


@pytest.mark.parametrize("form", [*FORMS, *DIRECT])
def test_the_schedule_does_not_change_bytes(simulated_rocm, arch, environment, generator, form):
    if form in DIRECT and arch != "gfx950":
        pytest.skip("of gfx950")
    environment(CONFIG, f"mla_decode:{form},split=1")
    queries, heads = ROWS[form]
    problem = Mla(2, queries, heads, 16, 100, torch.bfloat16, "wide", True, "dense")
    o = draw(problem, generator, FORMATS[arch], [100, 35])
    found = []
    for seed, resident in ((SEED, 1), (SEED + 1, 2), (SEED + 2, 16)):
        with simulated_rocm.on(arch, seed=seed, resident=resident) as kernel:
            found.append(attend(kernel, problem, o))
    assert all(same_bytes(*pair) for other in found[1:] for pair in zip(found[0], other))


def test_launches_depend_on_shapes_alone(kernel, launched, simulated_rocm, arch, generator):
    """So one captured graph serves all lengths."""
    problem, seen = Mla(2, 1, 16, 64, 2048, torch.bfloat16, "wide", True, "dense"), set()
    for lengths in ([0, 0], [300, 2], [1, 33]):
        before = len(simulated_rocm.runtime.launches)
        o = draw(problem, generator, FORMATS[arch], lengths)
        assert_attended(problem, o, *attend(kernel, problem, o), str(lengths))
        seen.add(tuple(each[:3] for each in simulated_rocm.runtime.launches[before:]))
    assert len(seen) == 1 and len(*seen) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_rows_at_any_byte(kernel, launched, arch, environment, generator, kind):
    """Tokens that begin at odd places, of codes at odd bytes. No direct form takes them, nor where it is forced."""
    problem = Mla(1, 1, 5, 16, 40, torch.bfloat16, kind, True, "dense")
    o = draw(problem, generator, FORMATS[arch], [37])
    environment(CONFIG, "mla_decode:r16")
    wanted = attend(kernel, problem, o)
    environment(CONFIG, "")
    wide = torch.zeros(*o.cache.shape[:2], o.cache.shape[2] + 5, dtype=o.cache.dtype)
    wide.view(torch.uint8)[...] = 0xFF
    shifted = wide[..., 3:-2]
    shifted.copy_(o.cache) if o.cache.dtype != FORMATS[arch] else shifted.view(torch.uint8).copy_(
        o.cache.view(torch.uint8)
    )
    o.cache = shifted
    args, options = o.call()
    assert same_bytes(kernel.mla_decode(*args, **options), wanted[0])
    assert set(launched.names()) == {f"mla_decode<0, bf16, {kind}>"}
    environment(CONFIG, "mla_decode:d16")
    with pytest.raises(RuntimeError, match="ROCM_FP8_KERNELS_CONFIG"):
        kernel.mla_decode(*args, **options)


def test_a_cache_beyond_4_gib(kernel, arch, generator):
    """Pages behind 2^31 elements and 2^32 bytes; a dense cache as large; and append there."""
    problem = Mla(1, 1, 2, 64, 192, torch.bfloat16, "wide", True, "dense")
    o = draw(problem, generator, FORMATS[arch], [130])
    (q, cache, lengths, scale), options = o.call()
    wanted = kernel.mla_decode(q, cache, lengths, scale, **options)
    pages = (2**31 + 2**27) // (64 * WIDTH)
    large = empty((pages, 64, WIDTH), torch.bfloat16)  # pages that nothing touches are never taken from the system
    places = torch.tensor([[pages - 1, pages - 700, 3]], dtype=torch.int32)
    for n in range(3):
        large[int(places[0, n])] = cache[int(o.table[0, n])]
    assert same_bytes(kernel.mla_decode(q, large, lengths, scale, block_table=places), wanted)
    dense = large.view(-1)[: pages // 2 * 2 * 64 * WIDTH].view(2, -1, WIDTH)
    dense[1, :192] = cache[o.table[0, :3].long()].view(192, WIDTH)
    both = torch.tensor([0, 130], dtype=torch.int32)
    got = kernel.mla_decode(q.expand(2, -1, -1, -1), dense, both, scale)
    assert (got[0] == 0).all()
    assert_attended(problem, o, got[1:], None, "dense")
    kv = normal((1, LATENT), torch.bfloat16, generator)
    kernel.mla_append(kv, kv[:, :ROPE], large, torch.tensor([pages * 64 - 63]))
    assert same_bytes(large[-1, 1, :LATENT], kv[0])


@pytest.mark.parametrize("dtype", HALF, ids=short)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("padded", [False, True], ids=("aligned", "odd"))
@pytest.mark.parametrize("name", APPENDS)
def test_append(kernel, launched, arch, generator, dtype, kind, padded, name):
    """To the byte, as the reference; some slots outside of the cache; angles of all, a third, one or none."""
    width, count = 656 if kind == "mixed" else WIDTH, 9 if name == "mla_append" else 69 if padded else 270
    stored = {"wide": dtype, "fp8": FORMATS[arch], "mixed": torch.uint8}[kind]
    layout = dict(pad=3) if padded else {}
    kv, rope = normal((count, LATENT), dtype, generator, 3.0), normal((count, ROPE), dtype, generator, 3.0)
    slots = torch.randperm(304, generator=generator)[:count]
    slots[4:5], slots[60:] = -1, slots[60:].where(slots[60:] % 2 == 0, 2**40)
    scale = dict(cache_scale=positive((1,), generator)) if kind == "fp8" else {}
    for angle, interleaved, share in ((torch.float32, False, 1), (dtype, True, count), (dtype, False, 3), (None, 0, 0)):
        options = dict(scale)
        if angle:
            turn = normal((count // share, ROPE // 2), torch.float32, generator, 2.0)
            turn = turn.repeat(1, 2)
            options |= dict(cos=turn.cos().to(angle), sin=turn.sin().to(angle), interleaved=interleaved)
        before = torch.full((19, 16, width * stored.itemsize), 0x55, dtype=torch.uint8).view(stored)
        written, wanted = guarded(before, "cpu", **layout), before.clone()
        latent = kv if name == "mla_append" else None
        padded_rope = guarded(rope, "cpu", **layout).t
        kernel.mla_append(latent, padded_rope, written.t, slots, **options)
        kernel.reference.mla_append(latent, rope, wanted, slots, **options)
        written.assert_guards_intact()
        assert same_bytes(written.t, wanted)
    assert set(launched.names()) == {f"{name}<{short(dtype)}, {str(not padded).lower()}>"}


def test_what_is_refused(kernel, environment, arch):
    """The other chip's FP8 format, by name."""
    (other,) = set(FORMATS.values()) - {FORMATS[arch]}
    q = torch.ones(1, 1, 2, WIDTH, dtype=torch.bfloat16)
    cache = torch.zeros(1, 16, WIDTH, dtype=torch.uint8).view(other)
    with pytest.raises(RuntimeError, match=r"^mla_decode: cache: dtype float8"):
        kernel.mla_decode(q, cache, torch.ones(1, dtype=torch.int32), SCALE, cache_scale=torch.ones(1))
    environment(CONFIG, "mla_decode:r17" if arch == "gfx950" else "mla_decode:d16")
    with pytest.raises(RuntimeError, match="ROCM_FP8_KERNELS_CONFIG"):
        kernel.mla_decode(q, torch.ones(1, 16, WIDTH).bfloat16(), torch.ones(1, dtype=torch.int32), SCALE)


@pytest.mark.parametrize("arch", FORMATS, indirect=True)
def test_choices(library, arch):
    """Forms hold all rows, or the most; splits are at most the tiles; few sequences are split, many are not far. Direct
    forms may have several tiles of rows instead of splits."""
    which = list(FORMATS).index(arch)
    for rows in (1, 16, 17, 32, 33, 64, 65, 128, 129, 1024):
        for batch, most in ((1, 16), (1, 100), (1, 32768), (7, 4096), (128, 4096), (4096, 512)):
            form, splits = library.mla_config(batch, rows, most, 1152, which)
            shape = list(FORMS.values())[form]
            assert shape["rows"] >= rows or shape["rows"] == 128
            assert 1 <= splits <= max(1, -(-most // 16))
            if arch == "gfx950":
                form, splits = library.mla_direct_config(batch, rows, most)
                assert 0 <= form < len(DIRECT) and 1 <= splits <= max(1, -(-most // 32))
    assert library.mla_config(1, 16, 32768, 1152, which)[1] > 100
    assert library.mla_config(4096, 16, 512, 1152, which)[1] == 1
