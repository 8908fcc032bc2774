"""A rank of test_communicator.py, in a process of its own."""

import copy
import os
import pickle
import threading

import pytest
import torch
import torch.distributed as dist

from problems.buffers import same_bytes
from problems.inputs import normal, positive, random_fp8, weights
from problems.ranks import raised, sum_of
from tests.processes import run_cases

TIMEOUT = 600.0  # no rank is waited for so long, however busy the machine; a rank that has ended is named at once


def parts(shape, ranks: int, generator) -> list[torch.Tensor]:
    return [normal(shape, torch.bfloat16, generator) for _ in range(ranks)]


def sums(kernel, rank: int, ranks: int) -> None:
    """Every collective, several lives of a communicator, two at the same time; between two ranks a compiled layer."""
    g = torch.Generator().manual_seed(torch.initial_seed())
    for max_bytes in (1 << 20, 4096):
        with (
            kernel.comm.Communicator(max_bytes=max_bytes, timeout=TIMEOUT) as c,
            kernel.comm.Communicator(timeout=TIMEOUT) as other,
        ):
            assert (c.rank, c.ranks) == (rank, ranks)
            for shape in ((ranks, 64), (ranks * 3, 1000), (ranks, 5000)):
                given = parts(shape, ranks, g)
                wanted = sum_of(given)
                assert same_bytes(c.all_reduce(given[rank]), wanted)
                assert same_bytes(other.all_reduce(given[rank]), wanted)
                assert same_bytes(c.reduce_scatter(given[rank]), wanted.chunk(ranks)[rank])
                assert same_bytes(other.all_gather(given[rank]), torch.cat(given))
                weight, scale = weights(shape[1:], torch.bfloat16, g), positive((1,), g)
                residual, after = torch.zeros(shape).bfloat16(), torch.zeros(shape).bfloat16()
                q = c.all_reduce_add_rms_norm_fp8(given[rank], residual, weight, scale)
                assert same_bytes(q, kernel.add_rms_norm_fp8(wanted, after, weight, scale))
                assert same_bytes(residual, after)
    if ranks > 2:
        return
    with kernel.comm.Communicator(timeout=TIMEOUT) as c:
        a, b = random_fp8((4, 64), torch.float8_e4m3fn, g), random_fp8((96, 64), torch.float8_e4m3fn, g)
        weight, residual, one = weights((96,), torch.bfloat16, g), torch.zeros(4, 96).bfloat16(), torch.ones(1)

        def layer(a, b, residual):
            y = c.skinny_gemm_all_reduce(a, b, one, one)
            q, scales = c.all_reduce_add_rms_norm_dynamic_fp8(y, residual, weight, scaling="group", group_size=32)
            return q.float() + residual, scales

        eager, compiled = (residual.clone() for _ in range(2))
        wanted = layer(a, b, eager)
        got = torch.compile(layer, fullgraph=True, backend="aot_eager")(a, b, compiled)
        assert all(same_bytes(x, y) for x, y in zip((*got, compiled), (*wanted, eager)))


def death(kernel, rank: int, ranks: int) -> None:
    """The last rank ends in the middle, without a word."""
    c = kernel.comm.Communicator(timeout=TIMEOUT)
    x = torch.ones(2, 64)
    c.all_reduce(x)
    if rank == ranks - 1:
        os._exit(0)
    first = raised(lambda: c.all_reduce(x))  # one that is only missed would be named otherwise, after TIMEOUT
    assert first == f"all_reduce: rank {ranks - 1} of {ranks} has ended; this communicator can only be closed", first
    assert raised(lambda: c.all_gather(x)).startswith(f"all_gather: rank {ranks - 1} of {ranks} has ended")
    c.close()


def disagreement(kernel, rank: int, ranks: int) -> None:
    for name, value in (("max_bytes", 8192 + 4096 * rank), ("timeout", 5.0 + rank)):
        message = raised(lambda: kernel.comm.Communicator(**{name: value}))
        assert message.startswith(f"Communicator: {name}: ") and "on rank" in message, message
    # Ranks that are no part of a group have nothing to do with its communicator.
    pair = dist.new_group([0, 1])
    if rank < 2:
        with kernel.comm.Communicator(pair, timeout=TIMEOUT) as c:
            assert c.ranks == 2 and c.all_reduce(torch.full((1, 8), rank + 1.0)).eq(3).all()


def leaves_nothing(kernel, rank: int, ranks: int) -> None:
    def held() -> tuple[int, int]:
        with open("/proc/self/maps") as maps:
            return len(os.listdir("/proc/self/fd")), sum("rocm_fp8_kernels (deleted)" in line for line in maps)

    kernel.comm.Communicator(max_bytes=4096, timeout=TIMEOUT).close()
    before, shared = held(), sorted(os.listdir("/dev/shm"))
    for turn in range(5):
        c = kernel.comm.Communicator(max_bytes=1 << 20, timeout=TIMEOUT)
        assert c.all_reduce(torch.ones(3, 8)).eq(ranks).all()
        c.close() if turn % 2 else c.__exit__(None, None, None)
    del c
    assert held() == before, (held(), before)
    dist.barrier()
    assert sorted(os.listdir("/dev/shm")) == shared


def lives(kernel, rank: int, ranks: int) -> None:
    """What copies, other threads, a forked process and an early end of the process group do."""
    c = kernel.comm.Communicator(timeout=TIMEOUT)
    assert copy.deepcopy(c) is c and copy.copy([c])[0] is c
    with pytest.raises(TypeError, match="^a Communicator is not pickled"):
        pickle.dumps(c)

    child = os.fork()
    if child == 0:
        message = raised(lambda: c.all_reduce(torch.ones(2, 64)))
        c.close()
        c.__del__()
        os._exit(0 if "opened by the process that this one was forked from" in message else 3)
    assert os.waitpid(child, 0)[1] == 0
    assert c.all_reduce(torch.ones(2, 64)).eq(ranks).all()  # the parent's is whole

    dist.barrier()
    if rank == 0:  # one thread waits for the other ranks: a second one is not let in
        waiting = threading.Thread(target=lambda: c.all_reduce(torch.ones(2, 64)))
        waiting.start()
        message = ""
        while not message:
            message = busy(c)
        assert "another thread is in a call of it" in message, message
    dist.barrier()
    if rank:
        c.all_reduce(torch.ones(2, 64))
    else:
        waiting.join()

    dist.barrier()
    group = dist.new_group(list(range(ranks)))
    other = kernel.comm.Communicator(group, timeout=TIMEOUT)
    dist.destroy_process_group(group)
    assert "close: the process group was destroyed before" in raised(other.close)
    c.close()
    c.close()
    assert "closed" in raised(lambda: c.all_reduce(torch.ones(2, 64)))


def busy(c) -> str:
    """What a call on no rows says: it would not wait for other ranks."""
    try:
        c.all_reduce(torch.ones(0, 64))
    except RuntimeError as error:
        return str(error)
    return ""


def main() -> None:
    run_cases(globals(), ends=("death",))
