"""Ranks in processes of their own: forks of one that has imported torch (forked.py)."""

import os
import socket
import sys

from tests.forked import start
from tests.settings import SEED


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def run_cases(functions: dict[str, object], ends: tuple[str, ...] = ()) -> None:
    """A rank's main(): cases by their names, each a function of (kernel, rank, ranks). ends: those without an end of
    the process group."""
    import torch
    import torch.distributed as dist

    from scripts.load import load_kernel

    cases, (rank, ranks, port, seed) = sys.argv[1], map(int, sys.argv[2:6])
    torch.set_num_threads(1)
    kernel = load_kernel("cpu")
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    for case in cases.split(","):
        torch.manual_seed(seed)
        with torch.no_grad():
            functions[case](kernel, rank, ranks)
    print(f"{cases}: done")
    if cases not in ends:
        dist.destroy_process_group()


def run_ranks(module: str, case: str, ranks: int, *, quiet: int = 0) -> None:
    """Runs main() of `module` with CASE RANK RANKS PORT SEED for each rank. All end well, and say so, but for `quiet`
    of them."""
    program = f"from {module} import main\nmain()"
    environment = {name: value for name, value in os.environ.items() if name != "ROCM_FP8_KERNELS_CPU"}
    rest = [str(ranks), str(free_port()), str(SEED)]
    running = [start(program, environment, arguments=[case, str(rank), *rest]) for rank in range(ranks)]
    done = [each.wait() for each in running]
    failed = [
        f"rank {rank}: {each.returncode}\n{each.err[-1500:]}" for rank, each in enumerate(done) if each.returncode
    ]
    assert not failed, "\n".join(failed)
    assert sum(f"{case}: done" in each.out for each in done) == ranks - quiet
