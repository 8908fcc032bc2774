"""Ranks in processes of their own: forks of one that has imported torch (forked.py)."""

import os
import socket

from tests.forked import start
from tests.settings import SEED


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


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
