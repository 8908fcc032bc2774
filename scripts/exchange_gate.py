"""The gate of kernels that exchange values with other GPUs (common/comm/gpu/exchange.h)."""

import copy

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


def is_sent(instruction) -> bool:
    return instruction.name.startswith("global_store_") and SYSTEM in instruction.operands


def exchange(kernel, figures, most_ranks: int, held: int) -> list[tuple[str, bool]]:
    """`held`: vectors a thread. Two ranks wait for all of these at once, more ranks for one vector of each."""
    sent = [each for each in kernel.code if is_sent(each)]
    wanted = held if most_ranks == 2 else most_ranks
    return [
        ("loads of a turn wait for each other", together(kernel) >= wanted),
        # Headers and reports have 64 bits.
        ("values sent by less than 128 bits", sum(each.name.endswith("dwordx4") for each in sent) >= most_ranks - 1),
        ("fewer than half of the waves that a unit can hold", figures["waves_per_simd"] >= 4),
    ]


def sending(kernel) -> list[tuple[str, bool]]:
    """Of a GEMM (common/comm/gpu/send.h): to seven other ranks at most headers of 64 bits, and words of either way to
    store the result, as 32 and as 16 bits a number."""
    stores = [each for each in kernel.code if is_sent(each)]
    narrow = {each.name for each in stores} - {f"global_store_dword{n}" for n in ("", "x2", "x4")}
    return [
        ("other ranks get less than whole words", not narrow),
        ("stores with sc0 sc1 are not those of every word to every other rank", len(stores) == 7 * 3),
        ("a load of system scope", not any(each.is_load and SYSTEM in each.operands for each in kernel.code)),
    ]


def within_the_device(kernel):
    """The kernel without what it sends."""
    found = copy.copy(kernel)
    found.code = [each for each in kernel.code if not is_sent(each)]
    return found
