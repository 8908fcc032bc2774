"""The gate of split-K in machine code: how parts of a sum pass from workgroup to workgroup (common/gemm/hip/split_k.h).

The release of the counter's atomic writes back what the caches hold, but the compiler does not wait for it. So a part
is in memory before the counter tells of it for one reason alone: it is stored with sc1, and waited for before the
barrier that the atomic follows. It is loaded with sc1 for the same reason.
"""


def split_k(kernel, stores: int, loads: int) -> list[tuple[str, bool]]:
    """stores, loads: instructions that store and load a lane's share of a part."""
    code = kernel.code
    atomics = [at for at, i in enumerate(code) if i.name.startswith("global_atomic_add")]
    if len(atomics) != 1:
        return [("not one counter that tells which workgroup is last", False)]
    (atomic,) = atomics
    barriers = [at for at in range(atomic) if code[at].name == "s_barrier"]
    barrier = barriers[-1] if barriers else 0
    # In the order of the code: the parts' stores, the wait, the barrier, the atomic.
    parts = [at for at in range(atomic) if code[at].is_store][-stores:]
    waits = [at for at in range(barrier) if code[at].count("vmcnt") == 0]
    everywhere = [i for i in code if everywhere_visible(i)]
    before, after = code[barrier:atomic], code[atomic : atomic + 4]
    return [
        ("a part is stored without sc1", len(parts) == stores and all(everywhere_visible(code[at]) for at in parts)),
        # And the counter's reset.
        ("other stores with sc1 than of parts and of the counter", count_stores(everywhere) == stores + 1),
        ("a part is loaded without sc1", count_loads(everywhere) == loads),
        ("parts are not waited for before the barrier", bool(waits and parts) and parts[-1] < waits[-1] < barrier),
        ("a part is stored behind the wait", not any(i.is_store for i in code[waits[-1] if waits else 0 : atomic])),
        ("the counter's atomic does not release", any(is_named(i, "buffer_wbl2") for i in before)),
        (
            "the counter's atomic does not acquire",
            any(i.count("vmcnt") == 0 for i in after) and any(is_named(i, "buffer_inv") for i in after),
        ),
    ]


def parts_of_a_tile(shape) -> int:
    """Fours of sums that a lane of common/gemm/hip/tile.h has. Grids of waves that share K have parts of their own."""
    return shape["rows"] * shape["columns"] // (4 * 64 * shape["waves_m"] * shape["waves_n"])


def everywhere_visible(instruction) -> bool:
    return (instruction.is_store or instruction.is_load) and "sc1" in instruction.operands.split()


def is_named(instruction, name: str) -> bool:
    return instruction.name == name and "sc1" in instruction.operands.split()


def count_stores(instructions) -> int:
    return sum(i.is_store for i in instructions)


def count_loads(instructions) -> int:
    return sum(i.is_load for i in instructions)
