"""How the CUDA launchers cut their work: pure functions, tested without a GPU."""

import itertools
import re
import tomllib

import pytest

from benchmarks.harness import forms
from tests.settings import ROOT

WARP, BLOCK, CLUSTER = range(3)  # of Holder
FALLBACK = PLAIN = -1
H200 = 132  # multiprocessors
MEMORIES = {"H200": 6144, "H100": 5120}  # bits
by_memory = pytest.mark.parametrize("memory_bits", MEMORIES.values(), ids=MEMORIES)


WIDTHS = (8, 128, 256, 264, 1024, 1032, 1152, 2048, 2880, 4096, 5120, 8192, 14336, 16384, 28672, 32768, 53248, 65536)
ROWS = (1, 2, 8, 16, 17, 32, 128, 264, 265, 2048, 10**6)


@pytest.mark.parametrize("d", WIDTHS)
@pytest.mark.parametrize("clusters", [0, 1])
def test_rms_norm_holds_the_whole_row(library, d, clusters):
    for rows in ROWS:
        holder, vectors, threads, per_block, cluster = library.cuda_rms_norm_config(rows, d, H200, clusters, 1)
        if holder == FALLBACK:  # without clusters a row may be too long for a block
            assert not clusters and d > 32768
            continue
        lanes = 32 if holder == WARP else threads * cluster
        assert threads % 32 == 0 and 32 <= threads <= 1024 and lanes * vectors * 8 >= d
        # What is compiled, and what a chip takes.
        assert vectors in {WARP: (1, 2, 4), BLOCK: (2, 4), CLUSTER: (1, 4)}[holder]
        assert cluster in ((2, 4, 8) if holder == CLUSTER else (1,)) and (clusters or holder != CLUSTER)
        assert per_block == (threads // 32 if holder == WARP else 1)
        # The sums of 32 vectors each have 256 places; fewer than a warp of each block is idle.
        assert holder == WARP or (vectors * lanes // 32 <= 256 and vectors * lanes - d // 8 < 32 * vectors * cluster)


MANY = (*range(1, 300), *range(300, 6000, 37))  # rows


@pytest.mark.parametrize("d", [d for d in WIDTHS if d >= 1024])
@pytest.mark.parametrize("clusters", [0, 1])
def test_rms_norm_spreads_few_rows_and_stacks_many(library, d, clusters):
    """A row's lanes never grow with the number of rows; clusters of short rows have room all at once."""
    chosen = [library.cuda_rms_norm_config(rows, d, H200, clusters, 1) for rows in MANY]
    lanes = [32 if c[0] == WARP else c[2] * c[4] for c in chosen if c[0] != FALLBACK]
    assert lanes == sorted(lanes, reverse=True)
    for rows, (holder, _, _, _, cluster) in zip(MANY, chosen):
        assert holder != CLUSTER or d > 32768 or rows * cluster <= 2 * H200


def test_rms_norm_reaches_every_form(library):
    chosen = {library.cuda_rms_norm_config(rows, d, H200, 1, 1) for rows in MANY for d in WIDTHS}
    assert {(holder, vectors) for holder, vectors, *_ in chosen} == {
        *((WARP, n) for n in (1, 2, 4)), *((BLOCK, n) for n in (2, 4)), *((CLUSTER, n) for n in (1, 4)),
    }  # fmt: skip
    assert {cluster for holder, *_, cluster in chosen if holder == CLUSTER} == {2, 4, 8}


@pytest.mark.parametrize("d", [1024, 4096, 8192, 16384])
def test_rms_norm_lets_the_next_kernel_start(library, d):
    """At once where skinny_gemm may follow few rows; after the wait for some numbers of rows."""
    assert library.cuda_next_at_once(1, d, H200, 1, 1) == 1
    assert {library.cuda_next_at_once(rows, d, H200, 1, 1) for rows in MANY} == {0, 1}


@pytest.mark.parametrize("row_bytes", [4096, 8192, 20480, 65536])
def test_rms_norm_fetches_all_of_few_rows_and_the_first_of_many(library, row_bytes):
    for rows in MANY:
        fetched = library.cuda_rows_to_fetch(rows, row_bytes, H200)
        assert min(rows, H200) <= fetched <= rows


@pytest.mark.parametrize("d", WIDTHS)
def test_rms_norm_fetches_rows_ahead_of_many(library, d):
    """No more than half of the rows; of rows that a block has for itself alone."""
    found = {rows: library.cuda_rows_ahead(rows, d, H200, 1, 1) for rows in MANY}
    assert all(0 <= 2 * ahead <= rows for rows, ahead in found.items())
    holders = {library.cuda_rms_norm_config(rows, d, H200, 1, 1)[0] for rows, ahead in found.items() if ahead}
    assert holders <= {BLOCK} and (holders or d < 2048 or d > 32768)


@pytest.mark.parametrize("d", WIDTHS)
def test_swiglu_covers_every_vector_once(library, d):
    for rows in (1, 3, 32, 128, 512, 2048, 10**5):
        fast, vectors, threads, blocks, fetching = library.cuda_swiglu_config(rows, d, H200, 1)
        needed = rows * d // 8
        assert fast and vectors in (1, 2) and threads in (32, 128, 256)
        assert blocks * threads * vectors >= needed > (blocks - 1) * threads * vectors
        assert fetching * threads * vectors == 1024 * H200


def test_swiglu_reaches_every_form(library):
    chosen = {library.cuda_swiglu_config(rows, d, H200, 1)[1:3] for rows in MANY for d in WIDTHS}
    assert {vectors for vectors, _ in chosen} == {1, 2} and {threads for _, threads in chosen} == {32, 128, 256}


SIZES = [
    *((2304, 16384), (13312, 16384), (16384, 6656), (4096, 4096)),
    *((28672, 4096), (128256, 4096), (16, 1024), (1, 65536)),
]
# On both sides of every limit for an H200.
COLUMNS = (
    *(1, 70, 480, 481, 528, 529, 2112, 2113, 2304, 2400, 2401, 3168, 3169, 4096, 4224, 4225, 5280, 5281, 7603),
    *(8448, 8449, 13312, 15206, 16896, 16897, 17951, 17952, 22016, 25132, 25133, 29568, 29569, 128256),
)
SHAPES = (24, 32, 40, 48, 56, 64, 80, 96, 112, 96, 112, 128, 80)  # columns
LARGE = range(9, 12)  # of them: one block of sixteen warps a multiprocessor
FOR_CLUSTERS = 12  # with more than 16 rows


@pytest.mark.parametrize("k", [1024, 2048, 4096, 16368, 16384])
def test_every_gemm_choice_can_run(library, k):
    for multiprocessors in (H200, 78, 17, 16):
        for n in COLUMNS:
            for m in (1, 8, 9, 16, 17, 32):
                shape, splits, pieces = library.cuda_gemm_config(m, n, k, multiprocessors, 1)
                assert 0 <= shape < len(SHAPES) and 1 <= splits <= 8 and 1 <= pieces <= n
                assert splits == 1 or (
                    k // splits >= (512 if splits <= 4 else 1024) and library.cuda_gemm_can_split(shape, m)
                )
                # Clusters of two also where a multiprocessor has two blocks.
                places = multiprocessors if splits == 2 else library.cuda_gemm_clusters_alone(splits, multiprocessors)
                assert splits == 1 or pieces <= places
                columns = library.cuda_gemm_most_columns(n, pieces)
                assert columns <= library.cuda_gemm_columns(shape) == SHAPES[shape]
                kind = LARGE if shape in LARGE else [*range(LARGE.start), FOR_CLUSTERS]
                assert kind != LARGE or (m > 16 and k == 16384 and pieces == multiprocessors and splits == 1)
                able = [
                    i
                    for i in kind
                    if library.cuda_gemm_stages(i, m) and (splits == 1 or library.cuda_gemm_can_split(i, m))
                ]
                fitting = [i for i in able if columns <= SHAPES[i]]
                assert shape == fitting[0], "there is none, or a narrower one would do"


# Widths and depths of current models' layers, and what lies between.
MODELS_N = (*range(256, 24000, 256), 400, 2300, 28672, 29696, 34816, 53248, 57344, 128256)
MODELS_K = (1024, 2048, 4096, 6144, 8192, 14336, 16384, 28672)


def test_every_gemm_form_is_chosen_for_some_size(library):
    """On an H200: each shape, splits of K, one large block a multiprocessor, one and more blocks."""
    sizes = itertools.product((1, 8, 16, 32), MODELS_N, MODELS_K)
    chosen = [library.cuda_gemm_config(*size, H200, 1) for size in sizes]
    assert {shape for shape, _, _ in chosen} == set(range(len(SHAPES)))
    assert {splits for _, splits, _ in chosen} >= {1, 2, 4, 8}
    blocks = {-(-pieces * splits // H200) for _, splits, pieces in chosen}
    assert {1, 2, 4} <= blocks


def test_every_overlap_is_chosen_for_some_size(library):
    """On an H200: the next kernel at once or later, weights before the wait or not, paced with each distance."""
    sizes = list(itertools.product((1, 8, 16, 32), MODELS_N, MODELS_K))
    changing = {library.cuda_gemm_overlap(*size, H200, 0) for size in sizes}
    assert {window for _, window, _ in changing} == {0}, "weights that may change are not read before the wait"
    assert {before_next > 0 for before_next, _, _ in changing} == {False, True}
    constant = {library.cuda_gemm_overlap(*size, H200, 1) for size in sizes}
    assert {(before_next > 0, window > 0) for before_next, window, _ in constant} == {
        *((False, False), (False, True), (True, False), (True, True)),
    }
    assert {ahead for _, _, ahead in constant} == {2, 4, 6}


@pytest.mark.parametrize("constant_b", [0, 1])
def test_every_overlap_can_run(library, constant_b):
    for multiprocessors in (H200, 78, 17):
        for n in COLUMNS:
            for k in (1024, 1536, 2560, 4096, 16384, 65536):
                for m in (1, 9, 32):
                    before_next, window, ahead = library.cuda_gemm_overlap(m, n, k, multiprocessors, constant_b)
                    shape, splits, pieces = library.cuda_gemm_config(m, n, k, multiprocessors, 1)
                    assert before_next >= -1 and before_next != 0 and 1 <= ahead <= 6
                    if not window:
                        continue
                    slots = library.cuda_gemm_stages(shape, m)
                    assert (
                        constant_b and window >= 2 and pieces * splits <= (1 if shape in LARGE else 2) * multiprocessors
                    )
                    if library.cuda_gemm_can_pace(shape, m):  # what is longer than its ring
                        assert (
                            window <= 8 and splits <= 2 and -(-k // splits // library.cuda_gemm_step(shape, m)) > slots
                        )
                    else:
                        full = 20 * pieces * splits >= 17 * (1 if shape in LARGE else 2) * multiprocessors
                        assert window == (slots - 1 if full else 4 if shape == FOR_CLUSTERS else 3)


@pytest.mark.parametrize("k", [1024, 1040, 2064, 4096, 6656, 16384, 65552])
def test_the_parts_of_k_are_those_of_every_width(library, k):
    """Which k a sum takes, and so its bits, must not depend on how wide the blocks are, which the number of rows
    decides."""
    for splits in range(1, 9):
        cuts = []
        for shape, m in itertools.product(range(len(SHAPES)), (1, 16, 32)):
            step = library.cuda_gemm_step(shape, m)
            first = [library.cuda_gemm_first_step(shape, m, k, part, splits) for part in range(splits + 1)]
            assert first[0] == 0 and first[-1] == -(-k // step) and first == sorted(first)
            cuts.append([min(k, f * step) for f in first])
        assert all(cut == cuts[0] for cut in cuts)


@pytest.mark.parametrize("multiprocessors", [H200, 78, 16])
def test_a_row_class_has_one_order_of_sums(library, multiprocessors):
    """Within 1 to 16 and within 17 to 32 rows K is split alike, and as many warps share it."""
    for n, k in itertools.product(COLUMNS, (1024, 4096, 6144, 8192, 12304, 16384)):
        orders: dict[bool, set] = {}
        for m in (1, 8, 9, 16, 17, 32):
            shape, splits, _ = library.cuda_gemm_config(m, n, k, multiprocessors, 1)
            sharing = library.cuda_gemm_warps(shape) // library.cuda_gemm_groups(shape, m)
            assert sharing == (4 if m > 16 and SHAPES[shape] > 64 and shape not in LARGE else 8)
            orders.setdefault(m > 16, set()).add((splits, sharing))
        assert len(orders[False]) == len(orders[True]) == 1, (n, k)


def test_the_benchmark_knows_which_forms_there_are(library):
    for m, splits in itertools.product((1, 8, 9, 16, 17, 32), (1, 2, 8)):
        able = [
            i
            for i in range(len(SHAPES))
            if library.cuda_gemm_stages(i, m) and (splits == 1 or library.cuda_gemm_can_split(i, m))
        ]
        assert list(forms.all_shapes_for(m, splits)) == able


@by_memory
def test_beyond_the_coordinates_of_tma_is_the_fallback(library, memory_bits):
    """They are signed numbers of 32 bits. The last step of K ends there, too."""
    for beyond in (2**31 - 1, 2**31, 2**32):
        for n, k in ((beyond, 1024), (1024, beyond // 16 * 16)):
            assert library.cuda_gemm_config(1, n, k, H200, 1) == (-1, 1, 0)
            for m in (1, 33, 256):
                assert library.cuda_block_scaled_config(m, n, k, 0, H200, memory_bits)[0] == -1
    assert library.cuda_block_scaled_config(2**31, 1024, 1024, 0, H200, memory_bits)[0] == -1
    assert library.cuda_int8_config(1, 2**31, 1024, H200)[0] == -1
    # Far below it nothing changes.
    assert library.cuda_gemm_config(1, 2**13, 2**14, H200, 1)[0] != -1
    assert library.cuda_block_scaled_config(1, 2**13, 2**14, 0, H200, memory_bits)[0] != -1


MANY_M = (1, 16, 17, 32, 33, 64, 65, 128, 129, 300, 1024, 6144, 8192)
MANY_N = (1, 8, 9, 128, 130, 512, 576, 1536, 2112, 7168, 24576)
MANY_K = (1, 128, 129, 256, 1536, 7168, 16384)


@by_memory
@pytest.mark.parametrize("general_b", [0, 1])
@pytest.mark.parametrize("multiprocessors", [H200, 16])
def test_block_scaled_gemm_is_cut_into_what_its_forms_take(library, general_b, multiprocessors, memory_bits):
    """Every row in a piece, every piece within a form; parts of K by the row class."""
    forms, reached = library.tables["forms"], set()
    for m, n, k in itertools.product(MANY_M, MANY_N, MANY_K):
        index, splits, pieces = library.cuda_block_scaled_config(m, n, k, general_b, multiprocessors, memory_bits)
        form, wide_rows = forms[index], n if forms[index]["swapped"] else m
        reached.add(index)
        assert form["swapped"] or not general_b
        assert 1 <= splits <= min(8, -(-k // 128))
        eights = -(-wide_rows // 8)
        assert 1 <= pieces <= eights and -(-eights // pieces) * 8 <= form["wide"]
        rows = library.block_scaled_row_class(m)
        for other in {rows, max(1, rows - 15)}:
            if library.block_scaled_row_class(other) == rows:
                same = library.cuda_block_scaled_config(other, n, k, general_b, multiprocessors, memory_bits)
                assert same[:2] == (index, splits)
    # More than one size of tiles for few rows, and for many.
    assert len({i for i in reached if forms[i]["swapped"]}) >= 2 + general_b
    assert general_b or len({i for i in reached if not forms[i]["swapped"]}) >= 2


@pytest.mark.parametrize("multiprocessors", [H200, 78, 16])
def test_grouped_gemm_has_tiles_for_every_expert(library, multiprocessors):
    """Few expected rows fill a tile once; whatever the counts are, the bound of the tiles holds them."""
    forms, reached = library.tables["grouped_forms"], set()
    for m, n, groups in itertools.product((1, 8, 512, 8192, 65536), (64, 200, 4096, 28672), (1, 8, 256, 1024)):
        for expected in (1, 16, 17, 32, 64, 65, 100, 128, 256, 4096):
            index, rows, columns, most, _ = library.cuda_grouped_config(m, n, 4096, groups, expected, multiprocessors)
            reached.add(index)
            assert rows > expected or rows >= 128
            assert forms[index]["swapped"] == (rows < 128) and forms[index]["stages"] >= 4
            pieces = -(-n // columns)
            all_in_one, spread = -(-m // rows), sum(-(-count // rows) for count in _spread(m, groups))
            assert most >= max(all_in_one, spread) * pieces
    assert len(reached) >= 4


@pytest.mark.parametrize("multiprocessors", [H200, 78, 16])
def test_grouped_gemm_splits_k_by_the_class_of_rows(library, multiprocessors):
    """One number of parts for all rows of a class and of expected rows; parts of at least eight steps, whose CTAs have
    a multiprocessor each; more rows, or more of them expected, are not split."""
    classes, reached = ((1, 2), (3, 4), (5, 8), (9, 10), (11, 20)), set()

    def parts(m, n, k, groups, expected):
        form, *_, splits = library.cuda_grouped_config(m, n, k, groups, expected, multiprocessors)
        assert splits == 1 or library.tables["grouped_forms"][form]["name"] == "n16x64"
        return splits

    for n, k, groups in itertools.product((64, 512, 4096, 28672), (128, 1024, 7168, 14336), (1, 2, 8, 257)):
        for first, last in classes:
            found = {parts(m, n, k, groups, e) for m in range(first, last + 1) for e in range(1, 5)}
            assert len(found) == 1, (n, k, groups, first)
            splits = found.pop()
            reached.add(splits)
            assert splits == 1 or -(-k // 128) >= 8 * splits
            assert splits == 1 or min(last, groups) * -(-n // 64) * splits <= multiprocessors
            assert splits <= 8 and parts(last, n, k, groups, 5) == 1
        assert parts(21, n, k, groups, 1) == 1
    assert len(reached) >= 4
    # One token's eight experts, and with a shared one; Mixtral's two fill the chip.
    sizes = (8, 512, 7168, 256), (9, 512, 7168, 257), (2, 4096, 14336, 8)
    assert multiprocessors != H200 or [parts(*size, 1) for size in sizes] == [2, 1, 1]


def _spread(m, groups):
    """Every expert has one row, and one the rest: most tiles of few rows."""
    alone = min(groups, m) - 1
    return [1] * alone + [m - alone]


@pytest.mark.parametrize("multiprocessors", [H200, 78, 16])
def test_int8_gemm_is_cut_into_what_its_forms_take(library, multiprocessors):
    forms, reached = library.tables["int8_forms"], set()
    for m, n, k in itertools.product(MANY_M, MANY_N, MANY_K):
        index, splits, pieces = library.cuda_int8_config(m, n, k, multiprocessors)
        form, wide_rows = forms[index], n if forms[index]["swapped"] else m
        reached.add(index)
        assert 1 <= splits <= min(8, -(-k // 128))
        eights = -(-wide_rows // 8)
        assert 1 <= pieces <= eights and -(-eights // pieces) * 8 <= form["wide"]
    assert len({i for i in reached if forms[i]["swapped"]}) >= 3
    assert len({i for i in reached if not forms[i]["swapped"]}) >= 3


def test_choices_do_not_depend_on_those_before(library):
    """They are remembered, fewer than are made here."""
    sizes = list(itertools.product(MANY_M, MANY_N, MANY_K, [H200, 78], MEMORIES.values(), [0, 1]))
    assert len(sizes) > 1000

    def choices(sizes):
        return {
            size: (
                library.cuda_block_scaled_config(*size[:3], size[5], *size[3:5]),
                library.cuda_int8_config(*size[:4]),
            )
            for size in sizes
        }

    assert choices(sizes[::-1]) == choices(sizes)


@pytest.mark.parametrize("format", [0, 1, 2], ids=["wide", "fp8", "mixed"])
@pytest.mark.parametrize("multiprocessors", [H200, 78])
def test_mla_decode_reaches_every_tile_of_rows(library, multiprocessors, format):
    reached = set()
    for batch, rows, most in itertools.product((1, 8, 128, 1000), (1, 16, 17, 32, 40, 128, 1024), (1, 64, 4096, 2**20)):
        tile_rows, tokens, splits = library.cuda_mla_config(1, format, batch, rows, most, multiprocessors)
        reached.add(tile_rows)
        assert 1 <= splits <= max(1, -(-most // tokens))
    assert reached == ({16, 32, 64} if format else {64})
    # Batches that fill the chip twice by 32 rows: codes are decoded once for 64.
    assert not format or library.cuda_mla_config(1, format, 132, 40, 128, H200) == (64, 64, 1)
    assert library.cuda_mla_config(0, format, 128, 128, 4096, H200)[:2] == (16, 32)


@pytest.mark.parametrize("config", ["cuda_int8_config", "cuda_block_scaled_config"])
def test_few_rows_share_the_weights_evenly(library, config):
    """320 tiles of 64 columns would fill 264 slots one and a half times."""
    index, splits, pieces = getattr(library, config)(
        1, 20480, 5120, *((H200,) if "int8" in config else (0, H200, MEMORIES["H200"]))
    )
    form = library.tables["int8_forms" if "int8" in config else "forms"][index]
    slots = H200 * form["slots"]
    rounds = -(-pieces * splits // slots)
    assert form["swapped"] and pieces * splits > 0.9 * rounds * slots


# Of the H100's sizes: without split-K in many rounds, of which each pays for it.
@pytest.mark.parametrize("m, n, k, name", [(352, 8704, 11264, "t128x128"), (7557, 9408, 1792, "t256x128")])
def test_what_an_h100_takes(library, m, n, k, name):
    index, splits, _ = library.cuda_block_scaled_config(m, n, k, 0, H200, MEMORIES["H100"])
    assert (library.tables["forms"][index]["name"], splits) == (name, 1)


def test_the_launcher_names_the_architectures_that_are_built():
    listed = tomllib.loads((ROOT / "build.toml").read_text())["kernel"]["cuda"]["cuda-capabilities"]
    source = (ROOT / "common" / "cuda" / "device.cu").read_text()
    (known,) = re.findall(r"kCapabilities\[\] = \{(.*)\}", source)
    assert known.split(", ") == [capability.rstrip("a").replace(".", "") for capability in listed]
