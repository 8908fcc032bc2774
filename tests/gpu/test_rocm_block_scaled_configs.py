"""Which form of the ROCm variant's block_scaled_gemm a size takes, with how many parts of K: of the model alone."""

import itertools

import pytest

from benchmarks.harness.simulated_rocm import FORMATS, UNITS
from scripts.host_configs import configs

ARCHS = tuple(FORMATS)
TABLES = configs().tables
TILES, STREAMS, DIRECT = TABLES["tiles"], TABLES["streams"], TABLES["direct"]
FORMS_OF = TILES + STREAMS + DIRECT  # by the number that a configuration names
FIRST_DIRECT = len(TILES + STREAMS)
GENERAL = sorted({configs().block_scaled_fallback_shape(shape) for shape in range(len(FORMS_OF))})
SIZES = [
    (1536, 7168),
    (576, 7168),
    (7168, 256),
    (4608, 7168),
    (512, 7168),
    (4096, 512),
    (16, 128),
    (1, 65536),
    (37, 1040),
]
ROWS = (1, 16, 17, 32, 33, 64, 65, 128, 129, 1024, 1025, 6144)


@pytest.mark.parametrize("chip", range(len(ARCHS)), ids=ARCHS)
@pytest.mark.parametrize("n, k", SIZES)
def test_every_choice_can_run_and_none_is_better_by_the_model(n, k, chip):
    host, units = configs(), UNITS[ARCHS[chip]]
    for m in ROWS:
        shape, parts = host.block_scaled_config(m, n, k, chip)
        rows = host.block_scaled_row_class(m)
        # A class of rows has one configuration: the order of a row's sum is the configuration's.
        assert host.block_scaled_config(rows, n, k, chip) == (shape, parts)
        assert (len(TILES) <= shape < FIRST_DIRECT) == (m <= 32)
        best = host.block_scaled_estimate(chip, shape, parts, rows, n, k)
        for each, form in enumerate(FORMS_OF):
            direct, stream = each >= FIRST_DIRECT, len(TILES) <= each < FIRST_DIRECT
            fits = form["rows"] == rows if stream else rows > 32 and form["rows"] // 2 < rows and each != GENERAL[0]
            fits = fits and (not direct or (ARCHS[chip] == "gfx950" and k % 128 == 0))
            tiles = -(-rows // form["rows"]) * -(-n // form["columns"])
            general = FORMS_OF[host.block_scaled_fallback_shape(each)]
            most = max(tiles, -(-rows // general["rows"]) * -(-n // general["columns"]))
            least = form["waves"] if stream else 4
            for count in range(1, 17):
                split = (
                    most <= 1024 and tiles * count <= 2 * units * form["per_unit"] and -(-k // 128) // count >= least
                )
                allowed = fits and (count == 1 or (split and not direct))
                if (each, count) == (shape, parts):
                    assert allowed
                if allowed:
                    assert best <= host.block_scaled_estimate(chip, each, count, rows, n, k)


def test_every_shape_and_many_parts_are_chosen_for_some_size():
    sizes = itertools.product(ROWS, (256, 512, 1536, 4096, 7168, 16384), (128, 512, 2048, 7168), range(len(ARCHS)))
    chosen = {configs().block_scaled_config(*size) for size in sizes}
    assert {shape for shape, _ in chosen} >= set(range(len(FORMS_OF))) - set(GENERAL)
    assert {parts for _, parts in chosen} >= {1, 2, 3, 4, 8}
