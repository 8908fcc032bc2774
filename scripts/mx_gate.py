"""The gates of GEMMs with MX weights."""

import itertools

from gate_parts import LDS_OF_A_UNIT, SIMDS, loop_loads, named

STEP_BYTES = {"f16": 256, "bf16": 256, "e4m3fnuz": 128, "e2m1": 64}  # of 128 k of a row
COLUMNS, TILE_WAVES = 32, 4  # of a wave; of a workgroup


def pieces(kind: str) -> int:
    """Loads of a lane, of a step of 16 rows."""
    return STEP_BYTES[kind] // 64


def decoded(arch: str, kernel, a: str, b: str, steps: int, subtiles: int) -> list[tuple[str, bool]]:
    """How the kernel multiplies: steps times 32 columns by subtiles of 16 rows."""
    columns = COLUMNS // 16
    if arch == "gfx950" and a in ("e4m3fnuz", "e2m1"):
        used = named(kernel, "v_mfma_scale_f32_16x16x128_f8f6f4") + named(kernel, "v_mfma_f32_16x16x128_f8f6f4")
        others = sum(i.name.startswith(("v_mfma", "v_cvt_scalef32")) for i in kernel.code) - used
        return [("matrix instructions", used == steps * columns * subtiles), ("codes are decoded", others == 0)]
    # Of a lane and a step: 32 codes of each tile. v_perm looks up four, v_cvt_scalef32 converts two.
    name, codes = ("v_perm_b32", 4) if arch == "gfx942" else ("v_cvt_scalef32_pk", 2)
    decodes = sum(i.name.startswith(name) for i in kernel.code)
    return [("codes decoded one by one", b != "e2m1" or decodes >= steps * columns * 32 // codes)]


def waits_of_steps(kernel) -> list[int]:
    """vmcnt of the loop's waits, from its first barrier on: those of a window's exponents lie before."""
    loops = [body for body in kernel.loops if any("mfma" in i.name for i in body)]
    behind = itertools.dropwhile(lambda i: i.name != "s_barrier", itertools.chain(*loops))
    counts = [i.count("vmcnt") for i in behind]
    return [count for count in counts if count is not None]


def mx_stream(arch: str, kernel, f, shape, a: str, blocks_a: str, b: str, gated: str) -> list[tuple[str, bool]]:
    depth, of_step = shape["depth"] // (2 if b != "e2m1" else 1), COLUMNS // 16 * pieces(b) + pieces(a)
    loops, loads = [loop for loop in f["loops"] if loop["mfma"]], loop_loads(kernel)
    weights_and_rows = [i for i in loads if i.name.startswith("buffer_load")]
    exponents = 1 if blocks_a == "true" else 0  # of a window
    # Those of A take the LDS of one workgroup on gfx942.
    fitting = shape["per_unit"] - (exponents if arch == "gfx942" else 0)
    return [
        ("per_unit workgroups do not fit by registers", -(-shape["per_unit"] // SIMDS) <= f["waves_per_simd"]),
        ("per_unit workgroups do not fit by LDS", f["lds"] * fitting <= LDS_OF_A_UNIT[arch]),
        ("not one loop", len(loops) == 1),
        ("weights or rows loaded by less than 128 bits", {i.name for i in weights_and_rows} == {"buffer_load_dwordx4"}),
        ("loads of the loop", len(weights_and_rows) == depth * of_step and len(loads) - exponents == depth * of_step),
        # While the oldest step is waited for, the others stay in flight.
        ("drained in the loop", all((loop["least_vmcnt"] or 0) >= (depth - 1) * of_step for loop in loops)),
        *decoded(arch, kernel, a, b, depth, shape["rows"] // 16),
    ]


def mx_tiles(arch: str, kernel, f, shape, a: str, blocks_a: str, b: str, gated: str) -> list[tuple[str, bool]]:
    steps, subtiles = 2, shape["rows"] // 16
    weights = COLUMNS // 16 * pieces(b)
    of_rows = -(-shape["rows"] * STEP_BYTES[a] // 16 // (TILE_WAVES * 64))
    loops, loads = [loop for loop in f["loops"] if loop["mfma"]], loop_loads(kernel)
    brought = [i for i in loads if i.name.startswith("buffer_load")]
    # On gfx942 FP8 with exponents lies in LDS as it is, eight codes a read, and is scaled in registers.
    folded = arch == "gfx942" and blocks_a == "true" and a != "e2m1"
    fitting = 2 if folded and b != "e2m1" else shape["per_unit"]
    read, not_read = ("ds_read_b64", "ds_read_b32") if folded else ("ds_read_b128", "ds_read_b64")
    return [
        ("per_unit workgroups do not fit by registers", fitting <= f["waves_per_simd"]),
        ("per_unit workgroups do not fit by LDS", f["lds"] * shape["per_unit"] <= LDS_OF_A_UNIT[arch]),
        ("not one loop", len(loops) == 1),
        ("weights or rows loaded by less than 128 bits", {i.name for i in brought} == {"buffer_load_dwordx4"}),
        ("loads of the loop", len(brought) == steps * (weights + of_rows)),
        # Weights stay in flight while rows are waited for.
        ("drained in the loop", min(waits_of_steps(kernel), default=0) >= 1),
        ("rows not read at once", named(kernel, read) > 0 and named(kernel, not_read) == 0),
        *decoded(arch, kernel, a, b, steps, subtiles),
    ]


def mx_plain(arch: str, f) -> list[tuple[str, bool]]:
    return [("a workgroup does not fit by LDS", f["lds"] <= LDS_OF_A_UNIT[arch])]
