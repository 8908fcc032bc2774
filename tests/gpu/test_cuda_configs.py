"""How the CUDA launchers cut their work: pure functions, tested without a GPU."""

import itertools
import re
import tomllib

import pytest

from benchmarks import cuda_pieces
from tests.gpu.host_configs import Configs, more_rows_may_have_other_bits
from tests.settings import ROOT

WARP, BLOCK, CLUSTER, ANY = range(4)
PLAIN = -1
H200, L40S = 132, 142  # multiprocessors


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Configs:
    return Configs.compiled(tmp_path_factory.mktemp("host"))


WIDTHS = (8, 128, 256, 264, 1024, 1032, 1152, 2048, 2880, 4096, 5120, 8192, 14336, 16384, 28672, 32768, 53248, 65536)
ROWS = (1, 2, 8, 16, 17, 32, 128, 264, 265, 2048, 10**6)


@pytest.mark.parametrize("d", WIDTHS)
@pytest.mark.parametrize("clusters", [0, 1])
def test_rms_norm_holds_the_whole_row(library, d, clusters):
    for rows in ROWS:
        owner, vectors, threads, per_block, cluster = library.cuda_rms_norm_config(rows, d, H200, clusters, 1)
        if owner == ANY:  # without clusters a row may be too long for a block
            assert not clusters and d > 32768
            continue
        lanes = 32 if owner == WARP else threads * cluster
        assert threads % 32 == 0 and 32 <= threads <= 1024 and lanes * vectors * 8 >= d
        # What is compiled, and what a chip takes.
        assert vectors in {WARP: (1, 2, 4), BLOCK: (2, 4), CLUSTER: (1, 4)}[owner]
        assert cluster in ((2, 4, 8) if owner == CLUSTER else (1,)) and (clusters or owner != CLUSTER)
        assert per_block == (threads // 32 if owner == WARP else 1)
        # The sums of 32 vectors each have 256 places; fewer than a warp of each block is idle.
        assert owner == WARP or (vectors * lanes // 32 <= 256 and vectors * lanes - d // 8 < 32 * vectors * cluster)


def test_rms_norm_spreads_few_rows_and_stacks_many(library):
    assert library.cuda_rms_norm_config(1, 16384, H200, 1, 1) == (CLUSTER, 1, 256, 1, 8)
    # Two blocks a multiprocessor, and no more.
    assert library.cuda_rms_norm_config(33, 16384, H200, 1, 1) == (CLUSTER, 1, 256, 1, 8)
    assert library.cuda_rms_norm_config(34, 16384, H200, 1, 1) == (BLOCK, 2, 1024, 1, 1)
    assert library.cuda_rms_norm_config(66, 4096, H200, 1, 1) == (CLUSTER, 1, 128, 1, 4)
    assert library.cuda_rms_norm_config(67, 4096, H200, 1, 1) == (BLOCK, 2, 256, 1, 1)
    assert library.cuda_rms_norm_config(132, 2048, H200, 1, 1) == (CLUSTER, 1, 128, 1, 2)
    assert library.cuda_rms_norm_config(2048, 16384, H200, 1, 1) == (BLOCK, 4, 512, 1, 1)
    assert library.cuda_rms_norm_config(132, 16384, H200, 1, 1) == (BLOCK, 2, 1024, 1, 1)
    assert library.cuda_rms_norm_config(133, 16384, H200, 1, 1) == (BLOCK, 4, 512, 1, 1)
    assert library.cuda_rms_norm_config(2048, 8192, H200, 1, 1) == (BLOCK, 2, 512, 1, 1)
    assert library.cuda_rms_norm_config(1, 16384, L40S, 0, 1) == (BLOCK, 2, 1024, 1, 1)


def test_rms_norm_lets_the_next_kernel_start(library):
    """At once, of so few that skinny_gemm may follow, of more than have room at once, of four vectors a thread; else
    after the wait."""
    for d, (at_once, later) in {4096: (64, 264), 8192: (32, 264), 16384: (16, 132)}.items():
        for rows, expected in {1: 1, at_once: 1, at_once + 1: 0, later: 0, later + 1: 1}.items():
            assert library.cuda_next_at_once(rows, d, H200, 1, 1) == expected, (rows, d)


def test_rms_norm_fetches_all_of_few_rows_and_the_first_of_many(library):
    expected = {
        (1, 65536): 1,
        (132, 65536): 132,
        (133, 65536): 132,
        (300, 20480): 300,
        (1024, 20480): 132,
        (2048, 8192): 528,
    }
    for (rows, row_bytes), fetched in expected.items():
        assert library.cuda_rows_to_fetch(rows, row_bytes, H200) == fetched


def test_rms_norm_fetches_rows_ahead_of_many(library):
    """7/8 of the rows that an H200 has under way at once; none where that would be half of them or more."""
    expected = {
        (2048, 16384): 231,  # two blocks of 512 threads a multiprocessor
        (462, 16384): 231,
        (461, 16384): 0,
        (2048, 24576): 115,
        (4096, 4096): 577,  # five of 256, of 48 registers a thread
        (1024, 4096): 0,
        (2048, 5120): 462,
        (10**6, 1024): 0,  # a row a warp
        (2048, 65536): 0,  # a row a cluster
        (2048, 65544): 0,
    }
    for (rows, d), ahead in expected.items():
        assert library.cuda_rows_ahead(rows, d, H200, 1, 1) == ahead, (rows, d)


def test_rms_norm_falls_back(library):
    for rows in ROWS:
        for d, aligned in ((16384, 0), (65544, 1), (131072, 1), (1, 0)):
            assert library.cuda_rms_norm_config(rows, d, H200, 1, aligned) == (ANY, 0, 256, 1, 1)


@pytest.mark.parametrize("d", WIDTHS)
def test_swiglu_covers_every_vector_once(library, d):
    for rows in (1, 3, 32, 128, 512, 2048, 10**5):
        fast, vectors, threads, blocks, fetching = library.cuda_swiglu_config(rows, d, H200, 1)
        needed = rows * d // 8
        assert fast and vectors in (1, 2) and threads in (32, 128, 256)
        assert blocks * threads * vectors >= needed > (blocks - 1) * threads * vectors
        assert fetching * threads * vectors == 1024 * H200


def test_swiglu_blocks_by_the_amount_of_work(library):
    """Rows of 16384: the fastest of those tried on an H200."""
    for rows, expected in {
        32: (1, 32),
        128: (1, 128),
        480: (1, 256),
        512: (2, 256),
        576: (2, 256),
        640: (2, 128),
    }.items():
        _, vectors, threads, _, _ = library.cuda_swiglu_config(rows, 8192, H200, 1)
        assert (vectors, threads) == expected, rows


def test_swiglu_falls_back(library):
    assert library.cuda_swiglu_config(3, 33, H200, 0) == (0, 1, 128, 1, 0)
    # 2^31 vectors: indices are 32 bits.
    assert library.cuda_swiglu_config(2**20, 2**14, H200, 1)[0] == 0


SIZES = [
    (2304, 16384),
    (13312, 16384),
    (16384, 6656),
    (4096, 4096),
    (28672, 4096),
    (128256, 4096),
    (16, 1024),
    (1, 65536),
]
# On both sides of every limit for an H200.
COLUMNS = (
    *(
        1,
        70,
        480,
        481,
        528,
        529,
        2112,
        2113,
        2304,
        2400,
        2401,
        3168,
        3169,
        4096,
        4224,
        4225,
        5280,
        5281,
        7603,
        8448,
        8449,
    ),
    *(13312, 15206, 16896, 16897, 17951, 17952, 22016, 25132, 25133, 29568, 29569, 128256),
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
                    if library.cuda_gemm_slots(i, m) and (splits == 1 or library.cuda_gemm_can_split(i, m))
                ]
                fitting = [i for i in able if columns <= SHAPES[i]]
                assert shape == fitting[0], "there is none, or a narrower one would do"


@pytest.mark.parametrize("n", [1, 70, 4100, 13312, 28673])
def test_pieces_are_all_columns_once(library, n):
    for pieces in {1, min(n, 66), min(n, 132), min(n, 264), n}:
        cuts = [library.cuda_gemm_first_column(n, pieces, piece) for piece in range(pieces + 1)]
        sizes = {b - a for a, b in itertools.pairwise(cuts)}
        assert cuts[0] == 0 and cuts[-1] == n and max(sizes) - min(sizes) <= 1
        assert max(sizes) == library.cuda_gemm_most_columns(n, pieces)


def test_multiprocessors_have_the_same_to_do(library):
    """On an H200, the fastest of those tried: see pick_cuda_config."""
    expected = {  # n, k: columns of a block, splits, pieces of what up to 8 rows take, more, and more than 16
        (1024, 8192): [(32, 2, 66), (24, 2, 66)],
        (512, 2048): [(32, 4, 16)],
        (512, 4096): [(32, 4, 16)],  # of 512 k no more than four
        (512, 16384): [(32, 6, 16)],  # of seven or eight parts 15 clusters find room
        (480, 16384): [(32, 8, 15)],
        (2304, 16384): [(48, 2, 66), (40, 2, 66), (80, 4, 30)],
        (2400, 16384): [(48, 2, 66), (40, 2, 66), (80, 4, 30)],
        (2401, 16384): [(48, 2, 66), (40, 2, 66)],
        (2904, 16384): [(48, 2, 66)] * 2,
        (2905, 6144): [(32, 2, 132), (24, 2, 132)],
        (2304, 8192): [(48, 2, 66), (40, 2, 66)],
        (2304, 6128): [(32, 1, 132), (24, 1, 132)],
        (4096, 4096): [(32, 1, 132)] * 2,
        (4096, 6128): [(32, 1, 132)] * 2,
        (4096, 14336): [(32, 2, 132)] * 2,
        (5120, 6128): [(48, 1, 132), (40, 1, 132)],
        (5120, 8176): [(32, 1, 264), (40, 1, 132)],
        (5120, 8192): [(48, 2, 132), (40, 2, 132)],
        (5281, 6144): [(32, 1, 264), (24, 1, 264)],
        (6144, 4096): [(48, 1, 132), (32, 1, 192)],
        (6144, 8192): [(48, 2, 132)] * 2,
        (6337, 8192): [(32, 1, 264)] * 2,
        (8192, 3584): [(64, 1, 132), (32, 1, 256)],
        (8192, 8192): [(32, 1, 256)] * 2,
        (10240, 8192): [(48, 1, 264), (40, 1, 264)],
        (12288, 4096): [(48, 1, 264)] * 2,
        (13312, 16384): [(64, 1, 264), (56, 1, 264), (112, 1, 132)],
        (16384, 6656): [(64, 1, 256)] * 2,
        (53248, 16384): [(64, 1, 1056), (56, 1, 1056), (112, 1, 528)],
        (57344, 8192): [(64, 1, 1056), (56, 1, 1056), (112, 1, 528)],
        (34816, 4096): [(48, 1, 792)] * 2,  # 80 columns would be 82 % full
        (128256, 4096): [(64, 1, 2004), (64, 1, 2004), (112, 1, 1320)],
    }
    for (n, k), wanted in expected.items():
        for m in (1, 8, 9, 16, 17, 32):
            shape, splits, pieces = library.cuda_gemm_config(m, n, k, H200, 1)
            assert (SHAPES[shape], splits, pieces) == wanted[min((m > 8) + (m > 16), len(wanted) - 1)], (m, n, k)


def test_one_round_instead_of_two(library):
    """By 8, 16 and 32 rows, the fastest of those tried on an H200."""
    for n, wanted in {
        17951: [(48, 528), (40, 528), (40, 528)],  # 80 columns would be 85 % full
        17952: [(80, 264)] * 3,
        22016: [(96, 264), (48, 528), (96, 264)],
        28672: [(112, 264)] * 3,
        29569: [(64, 528), (64, 528), (64, 528)],
    }.items():
        for m, expected in zip((8, 16, 32), wanted):
            shape, splits, pieces = library.cuda_gemm_config(m, n, 4096, H200, 1)
            assert ((SHAPES[shape], pieces), splits) == (expected, 1), (m, n)


def test_a_large_block_a_multiprocessor(library):
    """By 16 and 32 rows, the fastest of those tried on an H200."""
    for (n, k), wanted in {
        (11087, 16384): [(48, 264), (48, 264)],  # 96 columns would be 87 % full
        (11088, 16384): [(48, 264), (96, 132)],
        (13312, 16368): [(56, 264), (56, 264)],
        (13312, 16384): [(56, 264), (112, 132)],
        (16384, 16384): [(64, 256), (128, 132)],
        (16896, 53248): [(64, 264), (128, 132)],
        (16897, 16384): [(40, 528), (40, 528)],
        (8192, 28672): [(32, 256), (32, 256)],
    }.items():
        for m, expected in zip((16, 32), wanted):
            shape, splits, pieces = library.cuda_gemm_config(m, n, k, H200, 1)
            assert ((SHAPES[shape], pieces), splits) == (expected, 1), (m, n, k)
            assert library.cuda_gemm_warps(shape) == (16 if pieces == H200 else 8)


def test_when_the_next_kernel_may_start(library):
    """Not paced, by 8, 16 and 32 rows: -1 at once, else with so many steps before the end."""
    for (n, k), wanted in {
        (512, 8192): (-1, -1, 1),  # 16 tiles by 6, fewer than multiprocessors; a quarter of three steps
        (4000, 2048): (-1, -1, 3),  # few bytes
        (4096, 4096): (-1, 4, 3),
        (2048, 8192): (-1, 4, 3),  # two parts of K
        (1024, 16384): (-1, -1, 3),
        (4608, 4096): (-1, 7, 4),
        (5120, 5120): (-1, 5, 5),  # a quarter of the steps
        (2560, 5120): (-1, -1, -1),
        (2560, 8064): (-1, 7, 4),  # two parts of K
        (4096, 8064): (-1, -1, -1),  # every place is taken
        (2304, 16384): (-1, -1, 7),  # as many blocks as multiprocessors; or fewer
        (13312, 16384): (-1, -1, -1),
    }.items():
        for m, expected in zip((8, 16, 32), wanted):
            assert library.cuda_gemm_overlap(m, n, k, H200, 0) == (expected, 0, 2), (m, n, k)  # weights that may change


def test_what_is_paced(library):
    """By 8, 16 and 32 rows: steps before the end, slots under way (or before the wait), slots ahead.

    Among the fastest of those tried on an H200.
    """
    for (n, k), wanted in {
        (2048, 8192): [(6, 3, 2), (4, 3, 4), (4, 3, 6)],  # K in two parts
        (2048, 4096): [(-1, 0, 2), (-1, 0, 2), (3, 0, 2)],  # not where the ring holds all of a part, or nearly
        (2048, 7168): [(5, 3, 2), (4, 3, 4), (3, 0, 2)],
        (512, 16384): [(-1, 0, 2), (-1, 0, 2), (2, 0, 2)],  # nor with more parts
        (4096, 2048): [(-1, 0, 2), (-1, 0, 2), (4, 2, 6)],
        (4096, 3072): [(4, 3, 2), (4, 3, 4), (4, 2, 6)],
        (4096, 4096): [(6, 3, 2), (6, 3, 4), (4, 3, 6)],
        (2560, 8192): [(8, 3, 2), (6, 3, 4), (5, 3, 2)],  # 32 rows by 39 columns cannot; three slots before the wait
        (3072, 8192): [(-1, 2, 2)] * 3,  # two blocks a multiprocessor
        (4096, 6144): [(-1, 2, 2), (-1, 2, 2), (-1, 0, 2)],  # the parts are short for 32 rows
        (4096, 28672): [(-1, 2, 2)] * 3,
        (5120, 5120): [(9, 3, 2), (9, 3, 4), (5, 0, 2)],
        (5120, 8192): [(-1, 2, 2), (-1, 2, 2), (-1, 4, 2)],  # 32 rows by 40 columns: four slots of five before the wait
        (6144, 4096): [(7, 3, 2), (6, 3, 2), (4, 3, 2)],  # some multiprocessors have two blocks, with 16 and 32 rows
        (8192, 3584): [(6, 3, 2), (-1, 2, 2), (-1, 2, 2)],  # every place is taken with 16 and 32
        (8192, 1024): [(-1, 0, 2)] * 3,
        (16384, 2048): [(-1, 0, 2), (-1, 0, 2), (-1, 3, 2)],  # a short k; 32 rows cannot be paced
        (16384, 3072): [(-1, 2, 2), (-1, 2, 2), (-1, 3, 2)],
        (12288, 4096): [(-1, 2, 2), (-1, 2, 2), (-1, 4, 2)],  # with 8, too
        (13312, 16384): [(-1, 2, 2), (-1, 2, 2), (-1, 5, 2)],  # one large block: six slots
        (28672, 4096): [(-1, 2, 2), (-1, 2, 2), (-1, 5, 2)],  # one block of 112 columns
        (2304, 16384): [(10, 3, 2), (8, 3, 4), (7, 4, 2)],  # in four parts: four slots of seven before the wait
        (2400, 24576): [(11, 3, 2), (9, 3, 4), (7, 4, 2)],
        (57344, 8192): [(-1, 0, 2)] * 3,  # not two rounds of blocks
    }.items():
        for m, expected in zip((8, 16, 32), wanted):
            assert library.cuda_gemm_overlap(m, n, k, H200, 1) == expected, (m, n, k)


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
                    slots = library.cuda_gemm_slots(shape, m)
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


def test_rows_within_which_bits_do_not_depend_on_their_number(library):
    """Up to 16, and more; mostly all of them where eight warps share K: a block has no more than 64 columns, or is a
    large one."""
    for multiprocessors in (H200, 78, 16):
        apart, may_be = set(), set()
        for n, k in itertools.product(COLUMNS, (1024, 4096, 6144, 8192, 12304, 16384)):
            turns = {}
            for m in (1, 8, 9, 16, 17, 32):
                shape, splits, _ = library.cuda_gemm_config(m, n, k, multiprocessors, 1)
                sharing = library.cuda_gemm_warps(shape) // library.cuda_gemm_groups(shape, m)
                assert sharing == (4 if m > 16 and SHAPES[shape] > 64 and shape not in LARGE else 8)
                turns.setdefault(m > 16, set()).add((splits, sharing))
            assert len(turns[False]) == len(turns[True]) == 1
            if n > 2 * multiprocessors * 64:
                continue
            if turns[False] != turns[True]:
                apart.add((n, k))
            if more_rows_may_have_other_bits(n, k, multiprocessors):
                may_be.add((n, k))
        assert apart == may_be


def test_the_benchmark_knows_which_forms_there_are(library):
    for m, splits in itertools.product((1, 8, 9, 16, 17, 32), (1, 2, 8)):
        able = [
            i
            for i in range(len(SHAPES))
            if library.cuda_gemm_slots(i, m) and (splits == 1 or library.cuda_gemm_can_split(i, m))
        ]
        assert list(cuda_pieces.all_shapes_for(m, splits)) == able


def test_unaligned_and_small_go_to_the_plain_kernel(library):
    for n, k in SIZES:
        assert library.cuda_gemm_config(8, n, k, H200, 0) == (PLAIN, 1, 0)
    assert library.cuda_gemm_config(8, 4096, 1008, H200, 1) == (PLAIN, 1, 0)


def test_the_launcher_names_the_architectures_that_are_built():
    listed = tomllib.loads((ROOT / "build.toml").read_text())["kernel"]["cuda"]["cuda-capabilities"]
    source = (ROOT / "common" / "cuda" / "device.cu").read_text()
    (known,) = re.findall(r"kCapabilities\[\] = \{(.*)\}", source)
    assert known.split(", ") == [capability.rstrip("a").replace(".", "") for capability in listed]
