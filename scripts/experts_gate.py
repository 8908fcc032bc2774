"""The gates of mixtures of experts: grouped GEMMs, routing, sorting, combining."""

from gate_parts import LDS_OF_A_UNIT, SIMDS, matrix_instruction, named


def multiplied_by(arch: str, matrix: int, dtype: str) -> str:
    if dtype in ("f16", "bf16"):
        return f"v_mfma_f32_{matrix}x{matrix}x{8 if matrix == 32 else 16}_{dtype}"
    return matrix_instruction(arch, matrix, "fp8")[0]


def of_grouped(arch: str, kernel, f, shape, waves: int, matrix: int, dtype: str) -> list[tuple[str, bool]]:
    found = {i.name.removesuffix("_1k") for i in kernel.code if "mfma" in i.name}
    return [
        ("other matrix instructions", found == {multiplied_by(arch, matrix, dtype)}),
        ("per_unit workgroups do not fit by registers", -(-waves * shape["per_unit"] // SIMDS) <= f["waves_per_simd"]),
        ("per_unit workgroups do not fit by LDS", f["lds"] * shape["per_unit"] <= LDS_OF_A_UNIT[arch]),
    ]


def grouped_tiles(arch: str, kernel, f, shape, dtype: str, any_alignment: bool) -> list[tuple[str, bool]]:
    loads = {i.name for i in kernel.code if i.name.startswith("buffer_load")}
    scales = set() if dtype in ("f16", "bf16") else {"buffer_load_dword", "buffer_load_ubyte"}
    return [
        *of_grouped(arch, kernel, f, shape, shape["waves_m"] * shape["waves_n"], shape["matrix"], dtype),
        ("stages loaded by less than 128 bits", any_alignment or loads == {"buffer_load_dwordx4", *scales}),
        ("stages stored by less than 128 bits", named(kernel, "ds_write_b128") >= 2),
    ]


def grouped_stream(arch: str, kernel, f, shape, dtype: str, any_alignment: bool) -> list[tuple[str, bool]]:
    loops = [loop for loop in f["loops"] if loop["mfma"]]
    of_block = 2 * (shape["columns"] // 16 + shape["rows"] // 16)
    if any_alignment:
        return of_grouped(arch, kernel, f, shape | {"per_unit": 1}, shape["waves"], 16, dtype)
    return [
        *of_grouped(arch, kernel, f, shape, shape["waves"], 16, dtype),
        ("not one loop", len(loops) == 1),
        # While the oldest block is waited for, the others stay in flight.
        ("drained in the loop", all(loop["least_vmcnt"] >= (shape["depth"] - 1) * of_block for loop in loops)),
    ]


def grouped_short(arch: str, kernel, f, shape, kind: str) -> list[tuple[str, bool]]:
    rules = of_grouped(arch, kernel, f, shape | ({} if kind == "plain" else {"per_unit": 1}), shape["waves"], 16, "fp8")
    if kind == "any":
        return rules
    of_turn = 2 * 2 * 2  # subtiles, blocks, halves
    products = [i for i, each in enumerate(kernel.code) if "mfma" in each.name]
    turns = kernel.code[products[0] : products[-1]]
    waits = [count for each in turns if (count := each.count("vmcnt")) is not None]
    return [
        *rules,
        ("weights loaded by less than 128 bits", named(kernel, "buffer_load_dwordx4") >= shape["depth"] * of_turn),
        (
            "results of 16 bits stored by less than 128",
            named(kernel, "buffer_store_dwordx4") >= 2 * shape["rows"] // 16,
        ),
        # While a turn's first load is waited for, the next turn's stay in flight. Factors of columns drain all.
        ("drained between turns", kind != "plain" or (bool(waits) and min(waits) >= of_turn)),
    ]


def moe_route(kernel, f, held: int) -> list[tuple[str, bool]]:
    return [
        ("logits are not asked for at once", f["loads_before_wait"] >= held),
        ("fewer than half of the waves that a unit can hold", f["waves_per_simd"] >= 4),
    ]


def moe_combine(kernel, f, dtype, out, by_vector) -> list[tuple[str, bool]]:
    """Beside the rows there are a token's positions and weights, single words."""
    loads = [i.name for i in kernel.code if i.is_load]
    stores = {i.name for i in kernel.code if i.is_store}
    rows = 8 * (2 if dtype == "f32" else 1)
    return [
        ("fewer than half of the waves that a unit can hold", f["waves_per_simd"] >= 4),
        ("rows loaded by less than 128 bits", by_vector != "true" or loads.count("global_load_dwordx4") >= rows),
        ("other loads", by_vector != "true" or set(loads) == {"global_load_dwordx4", "global_load_dword"}),
        ("stores of less than 128 bits", by_vector != "true" or stores == {"global_store_dwordx4"}),
    ]


def moe_sort(arch: str, kernel, f) -> list[tuple[str, bool]]:
    names = [i.name for i in kernel.code]
    return [
        # The order of atomics would decide where a slot goes.
        ("atomics", not any("atomic" in n or n.startswith("ds_add") for n in names)),
        ("two workgroups do not fit by LDS", 2 * f["lds"] <= LDS_OF_A_UNIT[arch]),
        ("two workgroups do not fit by registers", f["waves_per_simd"] >= 4),
    ]
