#!/usr/bin/env python3
"""skinny_gemm's own choice on this NVIDIA GPU beside other ways to cut the columns and K, as markdown.

    python -m benchmarks.cuda_pieces                                # sizes of current models' layers
    python -m benchmarks.cuda_pieces --size 5120x8192 --rows 1 --rows 16

What skinny_gemm/cuda/config.h (pick_config) says was found so, on an H200: another GPU may want other
rules. A way is SHAPE,SPLITS,PIECES, as ROCM_FP8_KERNELS_GEMM takes it; each is verified before it is timed, and all of
a table row are timed in turn. Weights are constant, as in decoding.
"""

import sys

import torch

from benchmarks.harness.gpu_cases import GEMM_ROWS, GemmCase
from benchmarks.harness.gpu_environment import Gpu, Missing, find_gpu, random_numbers
from benchmarks.harness.gpu_report import cell, heading, note, table_header, table_row
from benchmarks.tune_skinny_gemm import Config, shown, sweep, sweep_parser
from scripts.host_configs import configs

OWN: Config = ()
SIZES = (
    *((1024, 4096), (1024, 8192), (2048, 4096), (2048, 8192), (2304, 16384), (3072, 4096), (3072, 8192), (4096, 4096)),
    *(
        (4096, 14336),
        (5120, 5120),
        (5120, 8192),
        (5120, 13824),
        (6144, 4096),
        (6144, 16384),
        (7168, 8192),
        (8192, 8192),
    ),
    *((10240, 8192), (12288, 4096), (13312, 16384), (14336, 4096), (16384, 6656), (28672, 4096)),
)
TILES = (32, 64, 112)  # columns: the widest of each kind of shapes
LEAST_K_OF_A_SPLIT = 512
LEAST_COLUMNS = 7  # of a piece


def shapes_for(rows: int, splits: int = 1, large: bool = False) -> dict[int, int]:
    """Index in kBulkShapes: columns, of the forms for so many rows that can split K so: of those of two CTAs a
    multiprocessor, narrowest first but for that for clusters, or of the large ones."""
    library = configs()
    return {
        index: shape["columns"]
        for index, shape in enumerate(library.tables["bulk"])
        if library.cuda_gemm_stages(index, rows)
        and (shape["warps"] == library.tables["large_warps"]) == large
        and (splits == 1 or library.cuda_gemm_can_split(index, rows))
    }


def all_shapes_for(rows: int, splits: int = 1) -> dict[int, int]:
    """Those of both kinds, as the table has them."""
    return dict(sorted((shapes_for(rows, splits) | shapes_for(rows, splits, large=True)).items()))


def ways(rows: int, n: int, k: int, multiprocessors: int) -> list[Config]:
    """Full tiles, and a block, two or four a multiprocessor, for each number of splits that could pay; and a large
    block a multiprocessor.

    Each in the narrowest shape that holds a piece.
    """
    large = [
        shape for shape, most in shapes_for(rows, large=True).items() if multiprocessors <= n <= most * multiprocessors
    ]
    found: list[Config] = [(shape, 1, multiprocessors) for shape in large[:1]]
    full = {-(-n // columns) for columns in TILES}
    for splits in (1, 2, 3, 4, 6, 8):
        if splits > 1 and k // splits < LEAST_K_OF_A_SPLIT:
            continue
        shapes = shapes_for(rows, splits)
        # Of clusters there are fewer: in each part of the chip some multiprocessors are left over.
        places = multiprocessors if splits == 1 else 10 * multiprocessors // 11
        even = {blocks * count // splits for blocks in (1, 2, 4) for count in (multiprocessors, places)}
        for pieces in sorted(full | even):
            fills = pieces in full or n >= LEAST_COLUMNS * pieces
            fitting = [shape for shape, columns in shapes.items() if pieces * columns >= n]
            if fills and fitting and (splits == 1 or pieces * splits <= 4 * multiprocessors):
                found.append((fitting[0], splits, pieces))
    return found


def compare(gpu: Gpu, multiprocessors: int, args) -> bool:
    """The table, a row as it comes; whether every way was right."""
    generator = random_numbers(gpu.device, args.seed)
    print(f"{heading(gpu, generator)}\n")
    print(table_header(["rows", "N x K", "own choice, us", "±", "best", "us", "gain"]))
    all_right = True
    for n, k in args.size or SIZES:
        for rows in args.rows or GEMM_ROWS:
            tried = [OWN, *ways(rows, n, k, multiprocessors)]
            times = sweep(GemmCase(gpu.kernel, rows, n, k, generator), tried, args.effort)
            all_right &= len(times) == len(tried)
            if OWN not in times:
                continue
            own, best = times[OWN], min(times, key=lambda way: times[way].median_us)
            gain = own.median_us / times[best].median_us - 1
            cells = [str(rows), f"{n} x {k}", cell(own.median_us), cell(own.spread_us)]
            print(table_row([*cells, shown(best) or "own", cell(times[best].median_us), f"{gain:.1%}"]), flush=True)
    return all_right


def main(argv: list[str] | None = None) -> int:
    parser = sweep_parser(__doc__)
    parser.add_argument(
        "--rows", type=int, choices=range(1, 33), action="append", metavar="M", help="1 to 32; may be repeated"
    )
    args = parser.parse_args(argv)
    try:
        gpu = find_gpu()
        if gpu.backend != "cuda":
            raise Missing(f"no CUDA variant: this is {gpu.backend} on {gpu.arch}")
        multiprocessors = torch.cuda.get_device_properties(gpu.device).multi_processor_count
        return 0 if compare(gpu, multiprocessors, args) else 1
    except Missing as error:
        note(f"cuda_pieces.py: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
