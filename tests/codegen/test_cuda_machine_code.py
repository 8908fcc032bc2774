"""What the machine code of the CUDA variant has to hold, read out of the built library: no GPU needed."""

import re
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.builds import built, read_once
from tests.settings import CUDA_TOOLKIT, needs_cuda_toolchain

pytestmark = needs_cuda_toolchain
# Only the first has run. The others' builds take minutes.
ARCHS = {"sm_90a": "9.0a", "sm_89": "8.9", "sm_100": "10.0"}
BULK_ROW_TILES = (1, 2, 4)
F32, FP8 = 0, 3  # of rocm_fp8::DType
VALUES, COMPUTED = 0, 2  # of Output
ROW_OF_A_WARP, ROW_OF_A_CLUSTER = 0, 2  # of Holder
OF_ROWS = ("grouped_swiglu_rows", "quantize_rows", "swiglu_rows")
# Kernels of Hopper's tiles: the forms that may split K.
NONE = range(0)
HOPPER_TILES = {
    "block_scaled_gemm_tiles": range(5, 99),
    "grouped_gemm_tiles": range(1),
    "mla_decode_tiles": NONE,
    "mla_decode_fp8": NONE,
    "int8_gemm_forms": range(3, 99),
}


@dataclass(frozen=True)
class Kernel:
    name: str  # of the function, without namespaces and parameters
    template: tuple[int, ...]  # the values of its template's parameters
    registers: int
    stack: int  # bytes a thread
    instructions: Counter
    main_loops: list[Counter]  # over steps of k, with multiplications of warpgroups

    def count(self, pattern: str) -> int:
        """Instructions whose name begins so."""
        return sum(count for name, count in self.instructions.items() if re.match(pattern, name))


def dump(library: Path, arch: str, what: str) -> str:
    command = [CUDA_TOOLKIT / "bin" / "cuobjdump", "-arch", arch, what, library]
    # It looks for nvdisasm in the PATH.
    environment = {"PATH": f"{CUDA_TOOLKIT / 'bin'}:/usr/bin:/bin"}
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout


def main_loops(code: str) -> list[Counter]:
    found = re.findall(r"^\s+/\*([0-9a-f]{4,5})\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9_.]+)([^;]*);", code, re.M)
    lines = [(int(at, 16), name, re.search(r"0x([0-9a-f]+)\s*$", rest)) for at, name, rest in found]
    ends = {(int(to[1], 16), at) for at, name, to in lines if name == "BRA" and to and int(to[1], 16) < at}
    bodies = {
        (first, last): Counter(name.split(".")[0] for at, name, _ in lines if first <= at <= last)
        for first, last in ends
    }
    # Loops over tiles have thousands of instructions.
    return [names for names in bodies.values() if names.total() < 600 and any(n.endswith("GMMA") for n in names)]


def kernels_of(library: Path, arch: str) -> list[Kernel]:
    resources = {
        name: (int(registers), int(stack))
        for name, registers, stack in re.findall(
            r"Function (\S+):\s+REG:(\d+) STACK:(\d+)", dump(library, arch, "-res-usage")
        )
    }
    found = []
    for part in re.split(r"\n\s*Function : ", dump(library, arch, "-sass"))[1:]:
        mangled, code = part.split("\n", 1)
        name, values = re.search(r"_cu_[0-9a-f]{8}\d+([a-z_][a-z0-9_]*)(?:I(.*)EEv|E)", mangled).groups(default="")
        # 7fb96aac3 13 rms_norm_fast: the hash of the file before it ends in digits of the name's length.
        operations = re.findall(r"^\s+/\*[0-9a-f]{4,5}\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9_.]+)", code, re.M)
        template = tuple(int(value) for value in re.findall(r"L(?:[ib]|NS\d*_\w+?E|S\d*_)(\d+)E", values + "E"))
        found.append(Kernel(name, template, *resources[mangled.strip()], Counter(operations), main_loops(code)))
    return found


@pytest.fixture(scope="module")
def library(request) -> Path:
    archs = ARCHS if request.config.getoption("--full") else ("sm_90a",)
    (path,) = built("cuda", [ARCHS[each] for each in archs]).glob("*.so")
    return path


@pytest.fixture(
    scope="module", params=["sm_90a", *(pytest.param(each, marks=pytest.mark.full) for each in ("sm_89", "sm_100"))]
)
def kernels(request, library) -> tuple[str, list[Kernel]]:
    return request.param, read_once(f"cuda-{request.param}", library, lambda: kernels_of(library, request.param))


def named(kernels: list[Kernel], name: str) -> list[Kernel]:
    return [kernel for kernel in kernels if kernel.name == name]


def test_every_form_is_there(kernels):
    _, found = kernels
    counts = Counter(kernel.name for kernel in found)
    # 2 types, of the weight as well: to values in 7 forms, to FP8 in 8, by given scales with and without a residual, by
    # computed ones with either.
    assert counts == {
        "rms_norm_fast": 2 * 2 * (7 + 3 * 8),
        # Of 2 ranks and of 8: 2 types, given scales and computed ones, 6 forms. Sums and parts of 3 types, gathers of
        # 4, by vectors or elements.
        "norm_of_sum": 2 * 2 * 2 * 6,
        "rows_of_ranks": 2 * (3 + 3 + 4) * 2,
        "rms_norm_fallback": 2,
        "swiglu_fast": 2 * 2,
        "swiglu_fallback": 2,
        # 2 types; groups of 3 sizes by one and two vectors a thread; 8 forms of rows; maxima of vectors or elements.
        "swiglu_groups": 2 * 3 * 2,
        "swiglu_rows": 2 * 8,
        "swiglu_fallback_computed": 2,
        "swiglu_largest": 2 * 2,
        # 3 types; a given scale, a tensor's, groups of 3 sizes; 8 forms but one of float32; and so on.
        "quantize_flat": 3 * 5 * 2,
        "quantize_rows": 3 * 8 - 1,
        "quantize_fallback": 3 * 3,
        "quantize_largest": 3 * 2,
        # 24 to 64 columns by rows: without 24, 40 and 56 for up to 8; of more columns three, two, three for up to 8,
        # 16, 32; three of sixteen warps and one for clusters.
        "skinny_gemm_bulk": (6 - 3 + 3) + (6 + 2) + (6 + 3 + 3 + 1),
        "skinny_gemm_fallback": 2 * len(BULK_ROW_TILES),
        "skinny_gemm_send": (6 - 3 + 3) + (6 + 2) + (6 + 3 + 3 + 1),
        "skinny_gemm_send_any": 2 * len(BULK_ROW_TILES),
        "block_scaled_gemm_tiles": 18,
        "block_scaled_gemm_fallback": 2,
        "block_scaled_gemm_pack": 2,
        # 3 kinds of operands; the fallback with vectors or bytes.
        "grouped_gemm_tiles": 3 * 4,
        "grouped_gemm_fallback": 3 * 2,
        "grouped_gemm_gather": 2,
        # 2 types, as swiglu's: a given scale, groups of 3 sizes, by one and two vectors a thread; 8 forms of rows.
        "grouped_swiglu_flat": 2 * 4 * 2,
        "grouped_swiglu_rows": 2 * 8,
        "grouped_swiglu_fallback": 2 * 2,
        # 2 types of 16 bits, 2 tiles, any alignment; 4 types of A by 2 of B, 3 tiles and one for any alignment.
        "mx_gemm_plain": 2 * 2 * 2,
        "mx_gemm_stream": 4 * 2 * (3 + 1),
        # 4 heights of tiles for 2 types of weights; rows in 4 types, any alignment.
        "mx_gemm_tiles": 4 * 2,
        "mx_gemm_order": 4 * 2,
        "moe_gate_values": 1,
        "quantize_mxfp4_blocks": 1,
        "int8_gemm_tiles": 4 * 2,
        "int8_gemm_forms": 14,
        # 3 types, or 5 pairs of types; a warp a row, or a CTA with one or four vectors a thread.
        "quantize_int8_rows": 3 * 3,
        "quantize_int8_fallback": 3,
        "layer_norm_int8_rows": 5 * 3,
        "layer_norm_int8_fallback": 5,
        "softmax_int8_rows": 5 * 3,
        "softmax_int8_fallback": 5,
        # 3 types; up to 64, 256, 1024 experts. int32 and int64. 3 types by 3, vectors or elements.
        "moe_route": 3 * 3,
        **{f"moe_sort_{kernel}": 2 for kernel in ("tile", "count", "place")},
        "moe_sort_prefix": 1,
        "moe_combine": 3 * 3 * 2,
        # 2 types of queries; 2 formats of codes, 3 tiles of rows; the fallback for 3 formats, with vectors or without.
        "mla_decode_tiles": 2,
        # FP8 and DeepSeek's layout, 2 types, 3 tiles of rows; but of FP8 and bfloat16 the largest is by terms.
        "mla_decode_fp8": 2 * 2 * 3 - 1,
        "mla_decode_terms": 1,
        "mla_decode_fallback": 3 * 2 * 2,
        "mla_merge": 2 * 2,
        "mla_append": 2 * 2,
        "mla_append_rope": 2 * 2,
    }


def test_every_kernel_waits_for_the_one_before_it(kernels):
    """ACQBULK is griddepcontrol.wait, PREEXIT launch_dependents; chips before Hopper have neither."""
    arch, found = kernels
    for kernel in found:
        if kernel.name in (*HOPPER_TILES, "mx_gemm_tiles", "mla_decode_terms") and arch != "sm_90a":
            assert kernel.count("EXIT") >= 1 and kernel.instructions.total() < 50, kernel  # never launched there
            continue
        assert bool(kernel.count("ACQBULK")) == bool(kernel.count("PREEXIT")) == (arch != "sm_89"), kernel


def test_no_load_promises_that_nobody_writes(kernels):
    """A kernel may start before the one that writes what it reads has ended: not through the path for constants."""
    _, found = kernels
    for kernel in found:
        assert kernel.count(r"LDG\S*\.CONSTANT") == 0, kernel


# Forms of block_scaled_gemm in which a thread has up to 128 sums and 96 numbers of a block, or 160 registers: what it
# computes once a tile goes to memory, nothing in the loop over blocks.
LARGE_TILES = {(0,): 64, (1,): 64, (2,): 64, (3,): 112, (17,): 64}


def test_rows_stay_in_registers(kernels):
    _, found = kernels
    for kernel in found:
        # Rows of more than 32768 elements by a cluster have no register to spare, nor has a CTA of two on sm_100.
        longest = kernel.name == "rms_norm_fast" and kernel.template[4:6] == (ROW_OF_A_CLUSTER, 4)
        limit = 16 if longest else 8
        if kernel.name == "block_scaled_gemm_tiles":
            limit = LARGE_TILES.get(kernel.template, limit)
        # As LARGE_TILES: grouped_gemm's largest form of FP8.
        if kernel.name == "grouped_gemm_tiles" and kernel.template == (3, 0):
            limit = 80
        if kernel.name in ("block_scaled_gemm_fallback", "grouped_gemm_fallback"):
            limit = 24
        if kernel.name == "mx_gemm_stream" and kernel.template[2] == 16:
            limit = 24  # 128 registers: two CTAs a multiprocessor
        if kernel.name == "mx_gemm_tiles" and kernel.template == (64, 2, FP8):
            limit = 24  # of FP8: once a tile
        if kernel.name == "mla_decode_terms":
            limit = 24  # sums, scores and two panels' products are 224 registers; three words once a tile of tokens
        # Four vectors of float32 and what they are multiplied by, in CTAs of 1024 threads: not tuned yet.
        if kernel.name in ("layer_norm_int8_rows", "softmax_int8_rows") and kernel.template[2:] == (1, 4):
            limit = 96
        assert kernel.stack <= limit, kernel
        holder = {"rms_norm_fast": 4, "quantize_rows": 1, "swiglu_rows": 1}.get(kernel.name)
        if holder is not None and kernel.template[holder] != ROW_OF_A_WARP:
            assert kernel.registers <= 64, kernel  # blocks of 1024 threads


def test_accesses_are_wide(kernels):
    """All that a row's elements are read with, and FP8 in eights."""
    _, found = kernels
    for kernel in [*named(found, "swiglu_fast"), *named(found, "rms_norm_fast")]:
        if kernel.name == "swiglu_fast":
            held, loads, in_eights, scales = kernel.template[1], 2, True, 0
        else:
            *_, output, residual, _, held, _ = kernel.template
            loads, in_eights = 2 + residual, output != VALUES  # x and the weight
            # Of a group, for each vector, and of a row, either as a float32 or as a byte; a row's maximum.
            scales = 2 * (held + 1) + 1 if output == COMPUTED else 0
        assert kernel.count(r"LDG\.E\.128") >= held * loads, kernel
        assert kernel.count(r"LDG\.E(?!\.128)") <= 1, kernel  # the scale, or its bound
        assert kernel.count(r"STG\.E\.64") >= held * in_eights, kernel
        assert kernel.count(r"STG\.E(?!\.(64|128))") <= scales, kernel


def test_rows_and_groups_are_read_and_written_in_vectors(kernels):
    """16 bytes of x, 8 of the result, 16 of two neighbours'; beside them scales, and a tensor's maxima."""
    _, found = kernels
    of_groups = ("quantize_flat", "swiglu_groups")
    for kernel in [kernel for kernel in found if kernel.name in (*of_groups, *OF_ROWS)]:
        dtype, _, held = kernel.template
        loads = 2 if dtype == F32 or "swiglu" in kernel.name else 1
        assert kernel.count(r"LDG\.E\.128") >= held * loads, kernel
        if kernel.name in of_groups and held == 2:
            assert kernel.count(r"STG\.E\.128") >= 1 and kernel.count(r"STG\.E\.64") == 0, kernel
        else:
            assert kernel.count(r"STG\.E\.64") >= held, kernel
        assert kernel.count(r"STG\.E(?!\.(64|128))") <= 2, kernel


def test_what_rms_norm_fetches_into_l2(kernels):
    """x, the residual and the weight before the wait; of a row ahead x and the residual. UBLKPF is the bulk fetch."""
    arch, found = kernels
    for kernel in named(found, "rms_norm_fast"):
        *_, residual, holder, _, ahead = kernel.template
        first = 0 if holder == ROW_OF_A_WARP else 2 + residual
        expected = 0 if arch == "sm_89" else first + ahead * (1 + residual)
        assert kernel.count("UBLKPF") == expected, kernel


def test_nobody_waits_for_what_it_has_written(kernels):
    """Clusters exchange their sums and maxima by STAS, which a barrier of the receiver counts: no fence, and none where
    there is no cluster."""
    arch, found = kernels
    for kernel in found:
        # What its threads write to shared memory is published to wgmma: p, and codes that were decoded.
        of_mla = {"mla_decode_tiles": 6, "mla_decode_fp8": 2, "mla_decode_terms": 3}
        most = of_mla.get(kernel.name, 0) if arch == "sm_90a" else 0
        assert kernel.count("MEMBAR") <= most and kernel.count(r"MEMBAR\S*\.(GPU|SYS)") == 0, kernel
        if kernel.name == "rms_norm_fast":
            clusters = kernel.template[4] == ROW_OF_A_CLUSTER
        elif kernel.name in OF_ROWS:
            clusters = kernel.template[1] == ROW_OF_A_CLUSTER
        elif kernel.name == "norm_of_sum":
            clusters = kernel.template[2] == ROW_OF_A_CLUSTER
        elif kernel.name in ("skinny_gemm_bulk", "skinny_gemm_send"):
            columns, rows, *_, for_clusters = kernel.template
            clusters = rows < 4 or columns <= 48 or for_clusters
        elif kernel.name == "mx_gemm_tiles":  # forms of few rows
            clusters = arch == "sm_90a" and kernel.template[1] <= 2
        elif kernel.name in HOPPER_TILES:  # elsewhere they are empty
            clusters = arch == "sm_90a" and kernel.template[0] in HOPPER_TILES[kernel.name]
        else:
            clusters = False
        assert bool(kernel.count("STAS")) == (clusters and arch != "sm_89"), kernel


def test_int8_multiplications_follow_each_other(kernels):
    """One loop with a step of 128 k: four multiplications a tile, begun once and waited for once. Where the compiler
    cannot keep sums in registers it waits for each."""
    arch, found = kernels
    for kernel in named(found, "int8_gemm_forms"):
        tiles = 2 if kernel.template == (1,) else 1
        counts = [kernel.count(name) for name in ("IGMMA", r"WARPGROUP\.ARRIVE", r"WARPGROUP\.DEPBAR")]
        assert counts == ([4 * tiles, 1, 2] if arch == "sm_90a" else [0, 0, 0]), kernel


def test_main_loops_keep_descriptors_in_uniform_registers(kernels):
    """Where the compiler does not know that all lanes share them, each multiplication waits for four R2UR."""
    arch, found = kernels
    for kernel in [each for name in HOPPER_TILES if "gemm" in name for each in named(found, name)]:
        assert bool(kernel.main_loops) == (arch == "sm_90a"), kernel
        for loop in kernel.main_loops:
            assert loop["R2UR"] <= 4, (kernel.name, kernel.template, loop)


def test_decoded_weights_are_multiplied_together(kernels):
    """Two halves of a step, or one of FP8, in a loop for a quarter, half and all of a tile's rows, not of 8:
    eight multiplications each, begun once and waited for once. Where codes are decoded beside multiplications the
    compiler waits for each."""
    arch, found = kernels
    for kernel in named(found, "mx_gemm_tiles"):
        height, _, weights = kernel.template
        halves = (1 if height == 8 else 3) * (1 if weights == FP8 else 2)
        counts = [kernel.count(name) for name in ("HGMMA", r"WARPGROUP\.ARRIVE", r"WARPGROUP\.DEPBAR")]
        assert counts == ([8 * halves, halves, halves] if arch == "sm_90a" else [0, 0, 0]), kernel


def test_the_gemm_feeds_its_matrix_instructions(kernels):
    """A warp's turn: 2 words of 8 columns or rows, multiplied 16 by 8; each word widened once, by two instructions.

    A copy is one instruction, not a loop over lanes, which ends in BRA.U.ANY, but for those that had better come slowly
    and, with two groups of warps, a slot's first ones: see skinny_gemm_bulk.h.
    """
    arch, found = kernels
    if arch == "sm_89":
        return
    for kernel in [*named(found, "skinny_gemm_bulk"), *named(found, "skinny_gemm_send")]:
        columns, rows, slots, warps, clusters = kernel.template
        assert clusters == ((columns, rows, slots) == (80, 4, 7)), kernel
        assert warps == 8 or (warps == 16 and rows == 4 and columns > 64), kernel
        two_groups = columns > 64 and rows == 4
        copies = (512 if columns <= 32 else 32 * warps // (1 + two_groups)) // 128  # of the weights, a slot
        assert kernel.count(r"BRA\.U\.ANY") == copies * (5 if two_groups else 1), kernel
        if two_groups:
            columns //= 2  # of each
        products, turns = columns // 8 * rows // 2, slots * (2 if columns <= 32 else 1)
        assert kernel.count("UTMALDG") >= 2, kernel
        assert kernel.count(r"HMMA\.16816\.F32") == turns * 2 * products, kernel
        assert kernel.count(r"F2FP\.F16\.E4M3\.UNPACK") == turns * 2 * 2 * (columns // 8 + rows), kernel
        # Two blocks of eight or ten warps a multiprocessor, or one of sixteen: four or five warps on each quarter of
        # it, with 512 registers of 32 lanes.
        on_a_quarter = 4 if products >= 10 else 5
        assert kernel.registers <= 512 // on_a_quarter // 8 * 8, kernel
