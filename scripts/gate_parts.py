"""What gates of several families use."""

LDS_OF_A_UNIT = {"gfx942": 64 << 10, "gfx950": 160 << 10}
SIMDS = 4


def loop_loads(kernel) -> list:
    return [i for body in kernel.loops if any("mf" in i.name for i in body) for i in body if i.is_load]


def named(kernel, name: str) -> int:
    return sum(i.name == name for i in kernel.code)


def matrix_instruction(arch: str, matrix: int, kind: str) -> tuple[str, int]:
    """(name, k) of what a GEMM multiplies `kind`, "fp8" or "i8", with: gfx950's own ones have twice the rate."""
    k = 16 if matrix == 32 else 32
    if arch == "gfx942":
        types = "fp8_fp8" if kind == "fp8" else "i8"
    else:
        k, types = (4 * k, "f8f6f4") if kind == "fp8" else (2 * k, "i8")
    return f"v_mfma_{'f32' if kind == 'fp8' else 'i32'}_{matrix}x{matrix}x{k}_{types}", k
