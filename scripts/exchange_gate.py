"""The gate of kernels that exchange values with other GPUs (common/comm/gpu/exchange.h)."""

SYSTEM = "sc0 sc1"  # the scope of an access that other GPUs see


def together(kernel) -> int:
    """The most loads of system scope that are issued with neither a wait nor a branch between them."""
    most = run = 0
    for each in kernel.code:
        if each.is_load and SYSTEM in each.operands and each.name.endswith("dwordx4"):
            run += 1
            most = max(most, run)
        elif each.count("vmcnt") is not None or each.target is not None:
            run = 0
    return most


def exchange(kernel, figures, most_ranks: int, held: int) -> list[tuple[str, bool]]:
    """`held`: vectors a thread. Two ranks wait for all of these at once, more ranks for one vector of each."""
    sent = [each for each in kernel.code if each.name.startswith("global_store_") and SYSTEM in each.operands]
    wanted = held if most_ranks == 2 else most_ranks
    return [
        ("loads of a turn wait for each other", together(kernel) >= wanted),
        # Headers and reports have 64 bits.
        ("values sent by less than 128 bits", sum(each.name.endswith("dwordx4") for each in sent) >= most_ranks - 1),
        ("fewer than half of the waves that a unit can hold", figures["waves_per_simd"] >= 4),
    ]
