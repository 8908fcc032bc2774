"""The gates of machine_code.py: what must hold of every kernel's code, and why."""

from collections.abc import Set

from exchange_gate import exchange, sending, within_the_device
from experts_gate import grouped_short, grouped_stream, grouped_tiles, moe_combine, moe_route, moe_sort
from gate_parts import LDS_OF_A_UNIT, SIMDS, loop_loads, matrix_instruction, named
from host_configs import configs
from mla_gate import mla_decode, mla_direct, mla_merge
from mx_gate import mx_plain, mx_stream, mx_tiles
from split_k_gate import parts_of_a_tile, split_k


def skinny_shapes() -> list[dict[str, int]]:
    """kStreamShapes of skinny_gemm/hip/config.h."""
    return configs().tables["skinny"]


def skinny_fallback_shapes() -> list[dict[str, int]]:
    """kFallbackShapes of skinny_gemm/hip/config.h."""
    return configs().tables["skinny_fallback"]


def tile_shapes() -> list[dict[str, int]]:
    """kTileShapes of block_scaled_gemm/hip/config.h."""
    return configs().tables["tiles"]


def direct_shapes() -> list[dict[str, int]]:
    """kDirectShapes of block_scaled_gemm/hip/config.h."""
    return configs().tables["direct"]


def stream_shapes() -> list[dict[str, int]]:
    """kStreamShapes of block_scaled_gemm/hip/config.h."""
    return configs().tables["streams"]


def int8_tile_shapes() -> list[dict[str, int]]:
    """kTileShapes of int8_gemm/hip/config.h."""
    return configs().tables["int8_tiles"]


def grouped_tile_shapes() -> list[dict[str, int]]:
    """kTileShapes of grouped_gemm/hip/config.h."""
    return configs().tables["grouped_tiles"]


def mla_forms() -> list[dict[str, int]]:
    """kForms of mla_decode/hip/config.h."""
    return configs().tables["mla_forms"]


def mla_direct_forms() -> list[dict[str, int]]:
    """kDirectForms of mla_decode/hip/config.h."""
    return configs().tables["mla_direct"]


def missed_gates(kernels: dict, figures: dict) -> list[str]:
    """One line for each gate that a kernel misses."""
    missed = []
    for arch, found in kernels.items():
        for name, kernel in found.items():
            f = figures[arch][name]
            rules = [*always(name, kernel, f), *of_family(arch, name, kernel, f), *of_split_k(name, kernel)]
            missed += [f"{arch} {name}: {what}" for what, holds in rules if not holds]
    return missed


def always(name: str, kernel, figures) -> list[tuple[str, bool]]:
    meta = kernel.metadata
    # One wave a SIMD: more than 256 registers are accumulation registers or none.
    alone = name.startswith(("mla_decode<", "mla_decode_direct<")) and figures["waves_per_simd"] == 1
    names = {i.name for i in kernel.code}
    return [
        ("scratch memory", meta["private_segment_fixed_size"] == 0),
        ("spilled registers", meta["vgpr_spill_count"] == meta["sgpr_spill_count"] == 0),
        # Flat instructions count as LDS accesses too, and drain loads in flight.
        ("flat or scratch accesses", not any(n.startswith(("flat_", "scratch_")) for n in names)),
        ("accumulation registers without need", figures["agprs"] == 0 or alone),
        # A workgroup must fit: 4 SIMDs.
        ("a workgroup's waves do not fit", meta["max_flat_workgroup_size"] <= 64 * SIMDS * figures["waves_per_simd"]),
    ]


def of_family(arch: str, name: str, kernel, figures) -> list[tuple[str, bool]]:
    family, _, parameters = name.partition("<")
    values = parameters.rstrip(">").split(", ")
    if family == "rms_norm_fast":
        return rms_norm(kernel, figures, *values)
    if family == "swiglu_fast":
        return swiglu(kernel, figures, *values)
    if family in ("quantize_flat", "swiglu_groups"):
        return flat(kernel, figures, family.startswith("swiglu"), values[0], int(values[1]))
    if family in ("quantize_rows", "swiglu_rows"):
        return rows(kernel, figures, family.startswith("swiglu"), values[0], int(values[2]))
    if family == "block_scaled_gemm_tiles":
        return tiles(arch, kernel, figures, tile_shapes()[int(values[0])], *(v == "true" for v in values[1:]))
    if family == "block_scaled_gemm_direct":
        return direct_tiles(arch, kernel, figures, direct_shapes()[int(values[0])])
    if family == "block_scaled_gemm_stream":
        shape, (per_column, any_layout) = stream_shapes()[int(values[0])], (v == "true" for v in values[1:])
        if any_layout:
            shape = shape | {"depth": 32 // shape["rows"]}
        return stream(arch, kernel, figures, shape, "columns" if per_column else "blocks", any_layout)
    if family == "int8_gemm_tiles":
        return int8_tiles(arch, kernel, figures, int8_tile_shapes()[int(values[0])], values[1] == "true")
    if family in ("quantize_int8_rows", "layer_norm_int8_rows", "softmax_int8_rows"):
        return int8_rows(kernel, figures, values[0], int(values[-1]))
    if family == "moe_route":
        return moe_route(kernel, figures, int(values[1]))
    if family == "moe_combine":
        return moe_combine(kernel, figures, *values)
    if family.startswith(("moe_sort_tile", "moe_sort_count", "moe_sort_place")):
        return moe_sort(arch, kernel, figures)
    if family == "mla_decode":
        return mla_decode(arch, kernel, figures, mla_forms()[int(values[0])], *values[1:])
    if family == "mla_decode_direct":
        return mla_direct(arch, kernel, figures, mla_direct_forms()[int(values[0])], values[1])
    if family in ("rows_of_ranks", "norm_of_sum"):
        norm = family == "norm_of_sum"
        return exchange(kernel, figures, int(values[4] if norm else values[2]), int(values[3]) if norm else 1)
    if family == "mla_merge":
        return mla_merge(kernel, figures)
    if family == "grouped_gemm_tiles":
        return grouped_tiles(
            arch, kernel, figures, grouped_tile_shapes()[int(values[0])], values[1], values[2] == "true"
        )
    if family == "grouped_gemm_gated":
        return grouped_tiles(
            arch, kernel, figures, configs().tables["grouped_gated"][int(values[0])], "e4m3fnuz", False
        )
    if family == "grouped_gemm_stream":
        shape = configs().tables["grouped_streams"][int(values[0])]
        return grouped_stream(arch, kernel, figures, shape, values[1], values[2] == "true")
    if family == "grouped_gemm_short":
        return grouped_short(arch, kernel, figures, configs().tables["grouped_short"][int(values[0])], values[1])
    if family in ("mx_gemm_stream", "mx_gemm_tiles"):
        gate, table = (mx_stream, "mx_streams") if family == "mx_gemm_stream" else (mx_tiles, "mx_tiles")
        return gate(arch, kernel, figures, configs().tables[table][int(values[0])], *values[1:])
    if family == "mx_gemm_plain":
        return mx_plain(arch, figures)
    if family in ("skinny_gemm_stream", "skinny_gemm_send"):
        rules = stream(arch, kernel, figures, skinny_shapes()[int(values[0])], "none", careful=False)
        return rules + (sending(kernel) if family == "skinny_gemm_send" else [])
    if family in ("skinny_gemm_fallback", "skinny_gemm_send_any"):
        rules = stream(arch, kernel, figures, skinny_fallback_shapes()[int(values[0])], "none", careful=True)
        return rules + (sending(kernel) if family == "skinny_gemm_send_any" else [])
    # The others wait for memory: waves hide that. mla_append_rope has a token's numbers of a layout in registers.
    least = 3 if family == "mla_append_rope" else 4
    return [("fewer waves than hide the wait for memory", figures["waves_per_simd"] >= least)]


def of_split_k(name: str, kernel) -> list[tuple[str, bool]]:
    family, _, parameters = name.partition("<")
    if family in ("skinny_gemm_stream", "skinny_gemm_fallback", "block_scaled_gemm_stream"):  # batches of 4 or 8 parts
        return split_k(kernel, 1, 4 + 8)
    if family in ("skinny_gemm_send", "skinny_gemm_send_any"):
        return split_k(within_the_device(kernel), 1, 4 + 8)
    shapes = {
        "block_scaled_gemm_tiles": tile_shapes,
        "block_scaled_gemm_direct": direct_shapes,
        "int8_gemm_tiles": int8_tile_shapes,
    }
    if family not in shapes:
        return []
    fours = parts_of_a_tile(shapes[family]()[int(parameters.rstrip(">").split(", ")[0])])
    return split_k(kernel, fours, fours)


def wide(kernel, held: int, to_fp8: bool, others: Set[str] = frozenset()) -> list[tuple[str, bool]]:
    """All vector accesses 128 bits, but the FP8 bytes of a single vector, which are 64, and `others`."""
    loads = {i.name for i in kernel.hot_path if i.is_load}
    stores = {i.name for i in kernel.hot_path if i.is_store}
    allowed = {"global_store_dwordx4"} | ({"global_store_dwordx2"} if held == 1 and to_fp8 else set()) | others
    return [("loads of less than 128 bits", loads == {"global_load_dwordx4"}), ("narrow stores", stores <= allowed)]


SCALE_STORES = {"global_store_dword", "global_store_byte"}  # a float32, or an exponent


def rms_norm(kernel, f, dtype, weight, output, residual, holder, held) -> list[tuple[str, bool]]:
    held, row = int(held), int(held) * (2 if residual == "true" else 1)
    computed, to_fp8 = output == "computed", output != "values"
    # Of the ways through scales of rows and of groups hot_path takes parts of both.
    conversions = (named(kernel, "v_cvt_pk_fp8_f32") if computed else f["cvt_pk_fp8"]) >= 4 * held
    return [
        *wide(kernel, held, to_fp8, SCALE_STORES if computed else set()),
        ("the row is not asked for at once", f["loads_before_wait"] >= row),
        ("FP8 conversions one by one", conversions == to_fp8),
        ("no packed float32", f["pk"] >= (4 if computed or not to_fp8 else 8) * held),
        ("float16 added in float32", dtype != "f16" or residual != "true" or named(kernel, "v_pk_add_f16") >= 4 * held),
        (
            "float16 multiplied in float32",
            (dtype, weight) != ("f16", "f16") or named(kernel, "v_pk_mul_f16") >= 4 * held,
        ),
        ("a division a number", f["rcp"] <= 4),
        ("more than half of the waves that a unit can hold do not fit", held == 8 or f["waves_per_simd"] >= 5),
    ]


def swiglu(kernel, f, dtype, held) -> list[tuple[str, bool]]:
    held = int(held)
    return [
        *wide(kernel, held, True),
        ("gate and up are not asked for at once", f["loads_before_wait"] == 2 * held),
        ("FP8 conversions one by one", f["cvt_pk_fp8"] == 4 * held),
        ("other than one exponential a number", f["exp"] == 8 * held),
        ("other than one reciprocal a number and one of the scale", f["rcp"] == 8 * held + 1),
        ("no packed float32", f["pk"] >= 40 * held),
        ("float16 multiplied in float32", dtype != "f16" or named(kernel, "v_pk_mul_f16") >= 4 * held),
        ("fewer than 7 waves a SIMD", f["waves_per_simd"] >= 7),
    ]


GIVEN, FROM_MAXIMA = 0, 1  # scales of quantize_flat's template; else of groups of that size


def flat(kernel, f, gated: bool, dtype, scale: int) -> list[tuple[str, bool]]:
    """A vector a thread."""
    if scale == FROM_MAXIMA:  # its loop over the maxima is what hot_path ends at
        stores = {i.name for i in kernel.code if i.is_store}
        return [
            ("narrow stores", stores <= {"global_store_dwordx2"} | SCALE_STORES),
            ("fewer than 8 waves a SIMD", f["waves_per_simd"] >= 8),
        ]
    return [
        *wide(kernel, 1, True, SCALE_STORES if scale != GIVEN else set()),
        ("FP8 conversions one by one", f["cvt_pk_fp8"] == 4),
        *quantized(f, gated, dtype, 1),
        ("fewer than 8 waves a SIMD", f["waves_per_simd"] >= 8),
    ]


def rows(kernel, f, gated: bool, dtype, held: int) -> list[tuple[str, bool]]:
    """Vectors far from each other: d may be an odd number of them, so that each has a store of its own."""
    return [
        *wide(kernel, 1, True, SCALE_STORES),
        ("FP8 conversions one by one", f["cvt_pk_fp8"] == 4 * held),
        *quantized(f, gated, dtype, held),
        ("more than half of the waves that a unit can hold do not fit", held == 8 or f["waves_per_simd"] >= 5),
    ]


def quantized(f, gated: bool, dtype, held: int) -> list[tuple[str, bool]]:
    """What is common to kernels of common/rows/gpu/quantize.h."""
    of_silu = 8 * held if gated else 0
    return [
        (
            "the values are not asked for at once",
            f["loads_before_wait"] == held * (2 if gated or dtype == "f32" else 1),
        ),
        ("no packed float32", f["pk"] >= 8 * held + (40 * held if gated else 0)),
        ("other than one exponential a number", f["exp"] == of_silu),
        ("a division a number, or a rare scale's computed with the others", f["rcp"] <= of_silu + 2),
    ]


def tiles(
    arch: str, kernel, f, shape, per_column: bool, careful: bool, turned_a: bool, turned_b: bool
) -> list[tuple[str, bool]]:
    waves, stages = shape["waves_m"] * shape["waves_n"], 128 // shape["stage"]
    per_simd = -(-waves * shape["per_unit"] // SIMDS)
    mfma, size = matrix_instruction(arch, shape["matrix"], "fp8")
    deep = shape["deep"] or size == shape["stage"]
    ahead = 1 if careful and deep else shape["ahead"]
    rounds = max(1, max(ahead, 2 * deep) // stages)  # blocks that the main loop has unrolled
    subtiles = shape["rows"] * shape["columns"] // (waves * shape["matrix"] ** 2)
    instructions = [i.name for i in kernel.code if i.name.startswith("v_mfma")]
    loads = {i.name for i in kernel.code if i.name.startswith("buffer_load")}
    scales = {"buffer_load_dword", "buffer_load_ubyte"}
    both = turned_a and turned_b
    fragments = rounds * stages * (shape["stage"] * shape["matrix"] // 1024)
    reads = fragments * (shape["rows"] // shape["waves_m"] + shape["columns"] // shape["waves_n"]) // shape["matrix"]
    return [
        ("other matrix instructions", set(instructions) == {mfma}),
        ("matrix instructions of a round", len(instructions) == rounds * subtiles * 128 // size),
        ("stages loaded by less than 128 bits", careful or loads == {"buffer_load_dwordx4", *scales}),
        ("fragments read by less than 128 bits", named(kernel, "ds_read_b128") >= reads),
        ("stages stored by less than 128 bits", both or named(kernel, "ds_write_b128") >= rounds * stages),
        ("bytes not transposed by v_perm", named(kernel, "v_perm_b32") >= 8 * rounds * stages * (turned_a + turned_b)),
        ("per_unit workgroups do not fit by registers", per_simd <= f["waves_per_simd"]),
        ("per_unit workgroups do not fit by LDS", f["lds"] * shape["per_unit"] <= LDS_OF_A_UNIT[arch]),
    ]


def direct_tiles(arch: str, kernel, f, shape) -> list[tuple[str, bool]]:
    """Two subtiles of rows a wave, whose sums are held; of its columns' subtiles two at a time."""
    waves = shape["waves_m"] * shape["waves_n"]
    mfma, k = matrix_instruction(arch, shape["matrix"], "fp8")
    subtiles = shape["rows"] * shape["columns"] // (waves * shape["matrix"] ** 2)
    instructions = [i.name for i in kernel.code if i.name.startswith("v_mfma")]
    loads = (shape["rows"] + shape["columns"]) * 128 // (64 * waves * 16)  # of a block, a lane's
    reads = 4 * (shape["rows"] // shape["waves_m"] + shape["columns"] // shape["waves_n"]) // shape["matrix"]
    to_lds = {i.name for i in kernel.code if i.name.startswith("global_load_lds")}
    return [
        ("other matrix instructions", set(instructions) == {mfma}),
        ("matrix instructions of a block", len(instructions) == subtiles * 128 // k),
        # In the loop, and before it.
        ("blocks do not go to LDS directly", named(kernel, "global_load_lds_dwordx4") >= 2 * loads),
        ("other loads to LDS", to_lds == {"global_load_lds_dwordx4", "global_load_lds_dword"}),
        ("fragments read by less than 128 bits", named(kernel, "ds_read_b128") >= reads),
        ("a workgroup does not fit by registers", -(-waves * shape["per_unit"] // SIMDS) <= f["waves_per_simd"]),
        ("a workgroup does not fit by LDS", f["lds"] * shape["per_unit"] <= LDS_OF_A_UNIT[arch]),
    ]


def stream(arch: str, kernel, f, shape, scales: str, careful: bool) -> list[tuple[str, bool]]:
    """scales: "none" in the loop, of "blocks", or any of "columns". careful: of any layout."""
    sparse, depth, column_tiles = shape["rows"] == 8, shape["depth"], shape["columns"] // 16
    row_tiles = max(1, shape["rows"] // 16)
    mfma, k = ("v_smfmac_f32_16x16x64_fp8_fp8", 64) if sparse else matrix_instruction(arch, 16, "fp8")
    per_simd = -(-shape["waves"] * shape["per_unit"] // SIMDS)
    loops = [loop for loop in f["loops"] if loop["mfma"]]
    loads = {i.name for i in loop_loads(kernel)}
    # Of a block of 128 k: two loads of 16 columns, and of 16 rows. With scales the loop loads those, too.
    of_block = 2 * (column_tiles + row_tiles)
    of_scales = {"none": set(), "blocks": {"buffer_load_dword"}, "columns": {"buffer_load_dword", "buffer_load_ubyte"}}
    fast = [
        ("weights or rows loaded by less than 128 bits", loads == {"buffer_load_dwordx4", *of_scales[scales]}),
        ("loads of the loop", sum(i.name.endswith("x4") for i in loop_loads(kernel)) == depth * of_block),
        ("weights without the non-temporal hint", all(loop["nt"] == depth * 2 * column_tiles for loop in loops)),
        # While the oldest block is waited for, the others stay in flight.
        ("drained in the loop", all(loop["least_vmcnt"] >= (depth - 1) * of_block for loop in loops)),
    ]
    most = {"none": 16, "blocks": 28, "columns": 96}[scales]
    lean = (
        "too many instructions a KiB of weights",
        all(loop["instructions"] <= most * depth * 2 * column_tiles for loop in loops),
    )
    return [
        ("not one loop", len(loops) == 1),
        *([] if careful else [*fast, lean]),
        (
            "multiplications of the loop",
            all(loop["mfma"] == depth * row_tiles * column_tiles * 128 // k for loop in loops),
        ),
        ("wrong matrix instruction", {i.name for i in kernel.code if "mfma" in i.name or "smfmac" in i.name} == {mfma}),
        ("per_unit workgroups do not fit by registers", per_simd <= f["waves_per_simd"]),
        ("per_unit workgroups do not fit by LDS", f["lds"] * shape["per_unit"] <= LDS_OF_A_UNIT[arch]),
    ]


def int8_tiles(arch: str, kernel, f, shape, careful: bool) -> list[tuple[str, bool]]:
    grid, shares = shape["waves_m"] * shape["waves_n"], shape["waves_k"]
    per_simd = -(-grid * shares * shape["per_unit"] // SIMDS)
    rounds = shape["ahead"] * (1 + shape["ahead"] % 2)  # stages that the main loop has unrolled
    subtiles = shape["rows"] * shape["columns"] // (grid * shape["matrix"] ** 2)
    mfma, size = matrix_instruction(arch, shape["matrix"], "i8")
    instructions = [i.name for i in kernel.code if i.name.startswith("v_mfma")]
    loads = {i.name for i in kernel.code if i.name.startswith("buffer_load")}
    fragments = rounds * (shape["stage"] * shape["matrix"] // 1024) // shares
    reads = fragments * (shape["rows"] // shape["waves_m"] + shape["columns"] // shape["waves_n"]) // shape["matrix"]
    return [
        ("other matrix instructions", set(instructions) == {mfma}),
        ("matrix instructions of a round", len(instructions) == rounds * subtiles * shape["stage"] // size // shares),
        ("stages loaded by less than 128 bits", loads == {"buffer_load_dwordx4"}),
        ("stages of any rows by single bytes alone", not careful or named(kernel, "global_load_dwordx4") >= 2),
        ("fragments read by less than 128 bits", named(kernel, "ds_read_b128") >= reads),
        ("stages stored by less than 128 bits", named(kernel, "ds_write_b128") >= rounds),
        ("per_unit workgroups do not fit by registers", per_simd <= f["waves_per_simd"]),
        ("per_unit workgroups do not fit by LDS", f["lds"] * shape["per_unit"] <= LDS_OF_A_UNIT[arch]),
    ]


def int8_rows(kernel, f, dtype, held: int) -> list[tuple[str, bool]]:
    """Of the rows themselves: scales and zero points are single words."""
    loads = {i.name for i in kernel.code if i.is_load}
    stores = {i.name for i in kernel.code if i.is_store}
    return [
        ("values loaded by less than 128 bits", loads <= {"global_load_dwordx4", "global_load_dword"}),
        ("codes stored by less than 64 bits", stores <= {*(f"global_store_dword{x}" for x in ("x4", "x2", ""))}),
        ("a row is not asked for at once", f["loads_before_wait"] >= held * (2 if dtype == "f32" else 1)),
        ("fewer than half of the waves that a unit can hold", f["waves_per_simd"] >= 4),
    ]
