"""HipKittens' bf16 GEMM: its authors' times on an MI325X, a gfx942 as the MI300X is, with faster memory.

A time is the mean of 100 launches after 500, each between two events with nothing else in the queue and the same
matrices. Caches are as warm as they get, and what the events and an idle queue cost is part of it: some microseconds,
of which the smallest sizes show most. The kernels and times are of October 2025; the headers that they compile with are
those of the branch cdna3, made in November.

The headers ask for swizzled buffers, of whose addresses AMD's manual says other than what these kernels count on. The
simulator has none, so buffers are plain here. The kernels multiply a tile (cluster 5) whose loads from LDS (cluster 4)
nothing waits for: they run with Checks(waits=False).
"""

import functools
import json
import posixpath
import re

from benchmarks.calibration.pairs import Checkouts, Library, Pair

DATE = "2025-10-28"
FOLDER = "analysis/bf16_gemm/mi325x"
HEADERS = "cdna3"
SIZES = (1024, 2048, 4096, 8192)
INCLUDE = re.compile(r'^\s*#include "([^"]+)".*$', re.M)
BINDING = re.compile(r"^PYBIND11_MODULE", re.M)
SWIZZLE = "row_stride_bytes &= 0x3FFF;"
WRAPPER = """
// Pointers: a[size, size], b[size, size], transposed, c[size, size]. Sizes: none, the kernel is made for one.
extern "C" int run(void* const* pointers, const int*) {
    const auto matrix = [&](int i) { return _gl_A(static_cast<bf16*>(pointers[i]), 1, 1, M, N); };
    dispatch_micro(micro_globals{matrix(0), matrix(1), matrix(2), nullptr});
    return 0;
}
"""


def flatten(checkouts: Checkouts, code: str, folder: str, known: set[str], seen: set[str]) -> str:
    """`code`, which lies in `folder`, with the `known` headers in the place of what includes them, each once."""

    def replace(found: re.Match) -> str:
        if found[1] == "pyutils/pyutils.cuh":  # the Python binding
            return ""
        paths = [posixpath.normpath(posixpath.join(each, found[1])) for each in (folder, "include")]
        path = next(each for each in paths if each in known)
        if path in seen:
            return ""
        seen.add(path)
        header = checkouts.text("hipkittens", path, HEADERS)
        return flatten(checkouts, header, posixpath.dirname(path), known, seen) + "\n"

    return INCLUDE.sub(replace, code.replace("#pragma once", ""))


def source(size: int, checkouts: Checkouts) -> str:
    kernel = checkouts.text("hipkittens", f"{FOLDER}/kernel_{size}.cpp")
    (end,) = BINDING.finditer(kernel)
    headers = set(checkouts.git("hipkittens", "ls-tree", "-r", "--name-only", HEADERS, "include").split())
    made = flatten(checkouts, kernel[: end.start()], FOLDER, headers, set()) + WRAPPER
    before, after = made.split(SWIZZLE)
    made = f"{before}row_stride_bytes = 0;{after}"
    return re.sub("<(hip_[a-z0-9]+.h)>", r"<hip/\1>", made)  # their Makefile has HIP's inner folder on the path


def pairs(checkouts: Checkouts) -> list[Pair]:
    measured = json.loads(checkouts.text("hipkittens", f"{FOLDER}/mi325x_bf16_gemm.json"))
    found = []
    for size in SIZES:
        library = Library(
            name=f"hipkittens_bf16_{size}", source=functools.partial(source, size), flags=("-DKITTENS_CDNA3",)
        )
        found.append(
            Pair(
                source="HipKittens, MI325X",
                kind="GEMM, bf16",
                name=f"{library.name} {size}x{size}x{size}",
                microseconds=1000 * measured[str(size)]["avg_time"],
                date=DATE,
                library=library,
                buffers=(2 * size * size,) * 3,
                sizes=(),
            )
        )
    return found
