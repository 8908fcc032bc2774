"""The configurations of the GEMMs by their names: what there is to try at a size, on each backend."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from scripts.host_configs import configs

Size = tuple[int, int, int]
ARCHS = ("gfx942", "gfx950")  # by their numbers in host_configs.cpp
# (operator, backend) -> the tables of scripts/host_configs.py that hold its forms, in the order of their places.
TABLES = {
    ("skinny_gemm", "rocm"): ("skinny",),
    ("skinny_gemm", "cuda"): ("bulk",),
    ("block_scaled_gemm", "rocm"): ("tiles", "streams", "direct"),
    ("block_scaled_gemm", "cuda"): ("forms",),
    ("int8_gemm", "rocm"): ("int8_tiles",),
    ("int8_gemm", "cuda"): ("int8_forms",),
    ("grouped_gemm", "cuda"): ("grouped_forms",),
}
UNFIT = "names a configuration that cannot take these arguments"  # of common/forced.h
MOST_SPLITS = {"rocm": 16, "cuda": 8}
K_BLOCK = 128  # the least k of a part
FAR = 1.3  # times the fastest's time: nothing near it is worth a try, nor a second timing
# Of few rows on CUDA: also pieces of fewer columns than a form has room for, ascending.
FEW_ROWS, COLUMNS = 128, (16, 24, 32, 40, 48, 56, 64, 72, 80, 96, 112)
# Of skinny_gemm on CUDA. Columns of full tiles: the widest of each kind of shapes.
TILES = (32, 64, 112)
LEAST_K_OF_A_SPLIT = 512
LEAST_COLUMNS = 7  # of a piece


@dataclass(frozen=True)
class Config:
    """As ROCM_FP8_KERNELS_CONFIG has it behind the operator."""

    form: str
    split: int = 1
    pieces: int = 0  # of the columns, on CUDA; 0: as few as the form has room for

    def __str__(self) -> str:
        split, pieces = f",split={self.split}" * (self.split > 1), f",pieces={self.pieces}" * bool(self.pieces)
        return f"{self.form}{split}{pieces}"

    @classmethod
    def parse(cls, text: str) -> "Config":
        """ValueError where the text is none."""
        form, *fields = text.split(",")
        numbers = {name: int(value) for name, value in (field.split("=") for field in fields)}
        if not form or not numbers.keys() <= {"split", "pieces"}:
            raise ValueError
        return cls(form, **numbers)


def table(operator: str, backend: str) -> list[dict]:
    return [form for name in TABLES[operator, backend] for form in configs().tables[name]]


def form_names(operator: str, backend: str) -> list[str]:
    return [form["name"] for form in table(operator, backend)]


def entry(operator: str, backend: str, place: int, split: int = 1, pieces: int = 0) -> str:
    """Of ROCM_FP8_KERNELS_CONFIG, for a form by its place in the table; -1: the fallback."""
    form = "fallback" if place < 0 else form_names(operator, backend)[place]
    return f"{operator}:{Config(form, split, pieces)}"


def picked(operator: str, size: Size, arch: str) -> Config:
    """The ROCm launcher's choice, of aligned operands."""
    place = ARCHS.index(arch)
    choose = {
        "skinny_gemm": lambda: configs().gemm_config(*size, place, True),
        "block_scaled_gemm": lambda: configs().block_scaled_config(*size, place),
        "int8_gemm": lambda: configs().int8_config(1, *size, place, False),
    }[operator]
    form, parts = choose()
    return Config(form_names(operator, "rocm")[form], parts)


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
    """Of skinny_gemm on CUDA: full tiles, and a block, two or four a multiprocessor, for each number of splits that
    could pay; and a large block a multiprocessor. Each in the narrowest shape that holds a piece."""
    names = form_names("skinny_gemm", "cuda")
    large = [
        shape for shape, most in shapes_for(rows, large=True).items() if multiprocessors <= n <= most * multiprocessors
    ]
    found = [Config(names[shape], 1, multiprocessors) for shape in large[:1]]
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
                found.append(Config(names[fitting[0]], splits, pieces))
    return found


def streams(rows: int, n: int, k: int) -> list[Config]:
    """Of skinny_gemm on ROCm: all of a class of rows, by the rules of pick_config on either chip."""
    return [
        Config(form["name"], parts)
        for place, form in enumerate(table("skinny_gemm", "rocm"))
        for parts in range(1, 1 + max(configs().gemm_most_parts(0, arch, place, rows, n, k) for arch in (0, 1)))
    ]


def explored(operator: str, backend: str, size: Size, us: dict) -> Iterator[Config]:
    """Of block_scaled_gemm and int8_gemm: every form in every number of parts. What has been tried is in `us`; what is
    not in it then was refused, and so would more parts or wider pieces be."""
    m, n, k = size
    if backend == "cuda":
        yield Config("fallback")
    for form in form_names(operator, backend):
        for split in range(1, min(MOST_SPLITS[backend], -(-k // K_BLOCK)) + 1):
            yield (config := Config(form, split))
            if config not in us:
                break
            if backend == "rocm" or m > FEW_ROWS or us[config] > FAR * min(us.values()):
                continue
            for columns in COLUMNS:
                yield (cut := Config(form, split, -(-n // columns)))
                if cut not in us:
                    break


def candidates(operator: str, backend: str, size: Size, multiprocessors: int) -> Callable[[dict], Iterator[Config]]:
    """us -> what to try at this size; `us` has the microseconds of what has been tried."""
    if operator != "skinny_gemm":
        return lambda us: explored(operator, backend, size, us)
    if backend == "cuda":
        return lambda us: iter(ways(*size, multiprocessors))
    return lambda us: iter(streams(*size))
