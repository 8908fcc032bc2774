"""The gates of GEMMs with MX weights."""

from gate_parts import LDS_OF_A_UNIT, SIMDS, loop_loads


def mx_stream(arch: str, kernel, f, shape, fp8_a: bool, fp8_b: bool) -> list[tuple[str, bool]]:
    columns, rows = shape["columns"] // 16, shape["rows"] // 16  # tiles of 16
    weights = columns * (2 if fp8_b else 1)
    depth, of_step = shape["depth"] // (2 if fp8_b else 1), weights + rows * (2 if fp8_a else 4)
    loops, loads = [loop for loop in f["loops"] if loop["mfma"]], loop_loads(kernel)
    # Of a lane and a step: 32 codes of each tile. v_perm looks up four, v_cvt_scalef32 converts two.
    name, codes = ("v_perm_b32", 4) if arch == "gfx942" else ("v_cvt_scalef32_pk", 2)
    decodes = sum(i.name.startswith(name) for i in kernel.code)
    return [
        ("per_unit workgroups do not fit by registers", -(-shape["per_unit"] // SIMDS) <= f["waves_per_simd"]),
        ("per_unit workgroups do not fit by LDS", f["lds"] * shape["per_unit"] <= LDS_OF_A_UNIT[arch]),
        ("not one loop", len(loops) == 1),
        ("weights or rows loaded by less than 128 bits", {i.name for i in loads} == {"buffer_load_dwordx4"}),
        ("loads of the loop", len(loads) == depth * of_step),
        # While the oldest step is waited for, the others stay in flight.
        ("drained in the loop", all((loop["least_vmcnt"] or 0) >= (depth - 1) * of_step for loop in loops)),
        ("codes decoded one by one", fp8_b or decodes >= depth * columns * 32 // codes),
    ]


def mx_plain(arch: str, f) -> list[tuple[str, bool]]:
    return [("a workgroup does not fit by LDS", f["lds"] <= LDS_OF_A_UNIT[arch])]
