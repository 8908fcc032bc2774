"""The gates of mla_decode: every token's numbers are multiplied once, and come as wide as they can."""

from gate_parts import LDS_OF_A_UNIT, SIMDS, named


def mla_decode(arch: str, kernel, f, shape, dtype: str, format: str) -> list[tuple[str, bool]]:
    """A tile of 16 tokens and 16 rows of a wave: 36 instructions of keys, 32 of values. Of 32 and 32: 72 and 64, and
    one that clears each of the 16 sums. On gfx950 half as many of keys, of twice the k."""
    found = [i.name.removesuffix("_1k") for i in kernel.code if "mfma" in i.name]
    names = {i.name for i in kernel.code}
    tokens = 16 // shape["waves"]
    latent = named(kernel, "global_load_dwordx4" if format == "wide" else "global_load_dwordx2")
    per_simd = -(-shape["waves"] * shape["groups"] * shape["per_unit"] // SIMDS)
    size, gfx950 = shape["matrix"], arch == "gfx950"
    k, of_values = 256 // size, 2 * size
    of_keys = (18 if gfx950 else 36) * size // 16
    shortest = {f"v_mfma_f32_{size}x{size}x{k}_{dtype}"}
    longest = {f"v_mfma_f32_{size}x{size}x{2 * k}_{dtype}"} if gfx950 else shortest
    clearing = 16 if size == 32 else 0
    clears = {"v_mfma_f32_32x32x8_f16"} if clearing else set()
    return [
        ("other matrix instructions", set(found) == shortest | longest | clears),
        ("matrix instructions of a tile", len(found) == of_keys + of_values + clearing),
        ("keys read by less than 128 bits", named(kernel, "ds_read_b128") >= 18 * size // 16),
        (
            "values read by less than 64 bits",
            named(kernel, "ds_read_b64") + 2 * named(kernel, "ds_read2_b64") >= of_values,
        ),
        ("values not transposed by v_perm", named(kernel, "v_perm_b32") >= 2 * of_values),
        # Before the loop and in it, a tile ahead.
        ("tokens are not asked for a tile ahead", latent >= 2 * tokens),
        ("codes one by one", format == "wide" or any(i.name.startswith("v_cvt_pk_f32_fp8") for i in kernel.code)),
        ("sums leave the registers", not any("accvgpr" in n for n in names) or per_simd == 1),
        ("per_unit workgroups do not fit by registers", per_simd <= f["waves_per_simd"]),
        ("per_unit workgroups do not fit by LDS", f["lds"] * shape["per_unit"] <= LDS_OF_A_UNIT[arch]),
    ]


def mla_direct(arch: str, kernel, f, shape, dtype: str) -> list[tuple[str, bool]]:
    """A tile of 32 tokens and a wave's 16 or 32 rows: 36 instructions of keys, 32 of values, all of twice the k. Of 32
    rows one more clears each of the 16 sums."""
    found = [i.name for i in kernel.code if "mfma" in i.name]
    size, tokens, of_keys, of_values = shape["matrix"], 32 // shape["waves"], 36, 32
    clearing = 16 if size == 32 else 0
    clears = {"v_mfma_f32_32x32x8_f16"} if clearing else set()
    queries = 18 * size // 16
    return [
        ("other matrix instructions", set(found) == {f"v_mfma_f32_{size}x{size}x{512 // size}_{dtype}"} | clears),
        ("matrix instructions of a tile", len(found) == of_keys + of_values + clearing),
        ("keys read by less than 128 bits", named(kernel, "ds_read_b128") >= of_keys),
        ("values not read turned", named(kernel, "ds_read_b64_tr_b16") == 2 * of_values),
        ("values turned by v_perm", named(kernel, "v_perm_b32") == 0),
        # Before the loop and in it.
        ("tokens do not go to LDS directly", named(kernel, "global_load_lds_dwordx4") >= 2 * (tokens + tokens // 8)),
        ("tokens in registers", named(kernel, "global_load_dwordx4") == queries),
        ("one wave a SIMD does not fit", f["waves_per_simd"] >= 1),
        ("a workgroup does not fit by LDS", f["lds"] <= LDS_OF_A_UNIT[arch]),
    ]


def mla_merge(kernel, f) -> list[tuple[str, bool]]:
    return [
        ("sums read by less than 128 bits", named(kernel, "global_load_dwordx4") >= 4),
        ("fewer than half of the waves that a unit can hold", f["waves_per_simd"] >= 4),
    ]
