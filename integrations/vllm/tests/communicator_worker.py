"""A worker of test_communicator.py, in a process of its own:

python -m integrations.vllm.tests.communicator_worker CASE RANK RANKS PORT SEED
"""

import os
import sys

import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import parallel_state

from .settings import DEVICE, ON_CPU


def begin(rank: int, ranks: int, port: str) -> None:
    """What vLLM's workers do before they load a model."""
    os.environ["VLLM_DIST_IDENT"] = port
    if not ON_CPU:
        torch.cuda.set_device(rank)
    backend = "gloo" if ON_CPU else "nccl"
    with set_current_vllm_config(VllmConfig()):
        parallel_state.init_distributed_environment(ranks, rank, f"tcp://127.0.0.1:{port}", rank, backend)
        parallel_state.initialize_model_parallel(ranks)


def end() -> None:
    """And in the end."""
    parallel_state.destroy_model_parallel()
    parallel_state.destroy_distributed_environment()


def total(rank: int) -> float:
    from rocm_fp8_vllm.tensor_parallel import operators

    return operators.all_reduce(torch.full((3, 64), rank + 1.0, device=DEVICE)).mean().item()


def raised(function) -> str:
    try:
        function()
    except RuntimeError as error:
        return str(error)
    raise AssertionError("nothing was raised")


def lives(rank: int, ranks: int, tensor_parallel) -> None:
    """As long as its group: one for all models, closed before the group ends; the next group has another."""
    made = tensor_parallel.communicator()
    assert made is tensor_parallel.communicator() and (made.rank, made.ranks) == (rank, ranks)
    assert total(rank) == 3
    parallel_state.destroy_model_parallel()
    assert "closed" in raised(made.check)
    assert "after their communicator was closed" in raised(lambda: total(rank))
    with set_current_vllm_config(VllmConfig()):
        parallel_state.initialize_model_parallel(ranks)
    assert tensor_parallel.communicator() is not made
    assert total(rank) == 3
    end()


def refused(rank: int, ranks: int, tensor_parallel) -> None:
    """All workers leave the sums to vLLM and say why, once."""
    tries, lines = [], []

    def refuse(*arguments, **keywords):
        tries.append(keywords)
        raise RuntimeError("Communicator: group: rank 1 is on\nanother host")

    tensor_parallel.kernel.comm.Communicator = refuse
    tensor_parallel._log.warning = lambda line, *values: lines.append(line % values)
    for _ in range(2):
        assert tensor_parallel.communicator() is None
    said = "sums over workers stay vLLM's: RuntimeError: Communicator: group: rank 1 is on another host"
    assert len(tries) == 1 and lines == [f"rocm-fp8-kernels: {said}"], lines
    end()


def death(rank: int, ranks: int, tensor_parallel) -> None:
    """The last worker ends without a word: the other's sum fails, and its end waits for nobody."""
    tensor_parallel.communicator()
    assert total(rank) == 3
    if rank == ranks - 1:
        os._exit(0)
    assert raised(lambda: total(rank)).startswith("all_reduce: rank 1 of 2 has ended")
    tensor_parallel.close()


def main() -> None:
    case, rank, ranks, port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    torch.set_num_threads(1)
    begin(rank, ranks, port)
    from rocm_fp8_vllm import linear, tensor_parallel  # noqa: F401  (linear: the operators' namespace)

    globals()[case](rank, ranks, tensor_parallel)
    print(f"{case}: done", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
