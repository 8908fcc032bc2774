"""Communicator: the ranks of one host, over torch.distributed. Its operators: collectives.py."""

import os
import socket
import weakref

import torch
import torch.distributed as dist

from ..ops.arguments import refuse
from ..ops.calls import ops
from ..ops.device import backend
from .collectives import Collectives
from .memory import SharedMemory, SymmetricMemory

MOST_RANKS = 8


class Communicator(Collectives):
    """All-reduce between the ranks of one host, alone and with what follows it in a decoder layer.

        sum = round(x of rank 0 + x of rank 1 + ...)        in float32, in that order, rounded once to x's dtype

    All ranks get the same bits. They are, byte for byte, those of a gather, that sum, and the package's operator
    without communication. A GEMM's partial product is rounded to the result's dtype before it is summed.

    Creating one, its operators and close() are collective: all ranks call them in the same order, with the same shapes,
    dtypes and keywords, on one stream each. Operators may be captured in graphs (CUDA, HIP). Graphs may be replayed
    from cold, in any order that all ranks share, between eager calls.

    It belongs to its process: copies are itself (a model that is copied has it, too), it is not pickled, and a process
    that is forked cannot call it. It serves one thread at a time.

    A rank that ends, does not come within `timeout`, or calls something else, makes the others fail: RuntimeError names
    it. On a GPU the call that waits ends on the device, and the next call, or check(), raises; results of the failed
    call are undefined. The communicator can only be closed then.

    Args:
        group: a process group of 1 to 8 ranks on one host; torch.distributed's own if None. Without torch.distributed a
            communicator of one rank.
        max_bytes: of a message that one launch takes; larger ones take several. Memory: about 6 times that a rank.
        timeout: seconds that a rank waits for another.
        device: of the tensors; on a GPU the current one if None.

    Raises: RuntimeError, if the ranks are too many, not on one host, or differ in max_bytes, timeout or backend.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        *,
        max_bytes: int = 8 << 20,
        timeout: float = 30.0,
        device: torch.device | str | None = None,
    ):
        if not isinstance(max_bytes, int) or not 4096 <= max_bytes <= 1 << 30:
            refuse("Communicator", "max_bytes", f"{max_bytes!r}; needs an integer from 4096 to 2^30")
        if not isinstance(timeout, (int, float)) or not 0 < timeout <= 3600:
            refuse("Communicator", "timeout", f"{timeout!r}; needs seconds, more than 0, at most 3600")
        connected = dist.is_available() and dist.is_initialized()
        if group is not None and not connected:
            refuse("Communicator", "group", "given, but torch.distributed is not initialized")
        rank = dist.get_rank(group) if connected else 0
        ranks = dist.get_world_size(group) if connected else 1
        if ranks > MOST_RANKS:
            refuse("Communicator", "group", f"{ranks} ranks; allowed: 1 to {MOST_RANKS}")
        device = _device(device)
        if ranks > 1:
            _agree(group, rank, socket.gethostname(), backend(), max_bytes, float(timeout))
        half = half_of(max_bytes, ranks)
        if device.type == "cpu":
            memory = SharedMemory(group, rank, ranks, half)
        else:
            memory = SymmetricMemory(group, device, ranks, half, staging_of(max_bytes))
        self._open(memory, rank, ranks, half, float(timeout), device, dist.barrier if ranks > 1 else None, group)
        self._meet()

    def _open(self, memory, rank, ranks, half, timeout, device, barrier=None, group=None) -> None:
        """memory: as in memory.py. barrier(group=group): of the ranks, at the beginning and the end."""
        self.rank, self.ranks, self.timeout, self.device = rank, ranks, timeout, device
        self._memory, self._barrier, self._group = memory, barrier, group
        self._state = torch.zeros(4, dtype=torch.int32, device=self.device)
        self._report = torch.zeros(2, dtype=torch.int32, pin_memory=self.device.type != "cpu")
        # What torch's compiler keeps the launches in order by.
        self._order = torch.zeros(1, dtype=torch.int32, device=self.device)
        if self.device.type != "cpu":
            self._side = torch.cuda.Stream(self.device, priority=-1)  # barriers take the place that a GEMM leaves
            self._meeting = torch.zeros(16, 512, dtype=torch.bfloat16, device=self.device)
            torch.cuda.synchronize(self.device)
        _open.add(self)
        self._number = ops.comm_open(
            self.rank,
            self._memory.addresses,
            half,
            self._state.data_ptr(),
            self._report.data_ptr(),
            self.timeout,
            self._memory.locks,
        )

    _number = _memory = None
    _gone = "closed"  # why there is no number

    def _meet(self) -> None:
        if self._barrier is not None:
            self._barrier(group=self._group)

    def check(self) -> None:
        """Waits for what was launched, then raises if another rank was missed."""
        if self.device.type != "cpu":
            torch.cuda.synchronize(self.device)
        ops.comm_check(self._handle()[1])

    def close(self) -> None:
        """Frees the memory, once all ranks are here. Collective, but for a communicator that has failed. A second call
        does nothing. Raises: RuntimeError where the process group is gone, through which the ranks would meet."""
        if self._number is None:
            return
        failed = bool(self._report[0])
        if self.device.type != "cpu":
            torch.cuda.synchronize(self.device)
        if not failed:
            if self._barrier is not None and not _is_there(self._group):
                refuse("Communicator", "close", "the process group was destroyed before; close() comes first")
            self._meet()
        self._drop()

    def _drop(self) -> None:
        number, self._number = self._number, None
        if number is not None:
            ops.comm_close(number)
        if self._memory is not None and self._gone == "closed":
            self._memory.free()
            self._memory = None

    def __enter__(self) -> "Communicator":
        return self

    def __exit__(self, kind, value, traceback) -> None:
        if kind is None:
            self.close()
        else:  # the other ranks may never come
            self._drop()

    def __del__(self):
        self._drop()

    def __copy__(self) -> "Communicator":
        return self

    def __deepcopy__(self, memo) -> "Communicator":
        return self

    def __reduce__(self):
        raise TypeError("a Communicator is not pickled: it belongs to its process; each makes its own")

    def _handle(self) -> tuple[torch.Tensor, int]:
        if self._number is None:
            refuse("Communicator", "communicator", self._gone)
        return self._order, self._number


_open: weakref.WeakSet[Communicator] = weakref.WeakSet()


def _forked() -> None:
    """The memory is the parent's, and so is its place among the ranks."""
    for communicator in _open:
        communicator._number, communicator._gone = None, "opened by the process that this one was forked from"


os.register_at_fork(after_in_child=_forked)


def _is_there(group: dist.ProcessGroup | None) -> bool:
    if not dist.is_initialized():
        return False
    try:
        return dist.get_rank(group) >= 0
    except (ValueError, RuntimeError):
        return False


def staging_of(max_bytes: int) -> int:
    """Bytes of a rank's memory from which copy engines send."""
    return -(-2 * max_bytes // 4096) * 4096


def half_of(max_bytes: int, ranks: int) -> int:
    """Bytes of a half of a rank's memory (common/comm/peers.h)."""
    return -(-2 * max_bytes // 4096) * 4096 + 4096 * ranks


def _agree(group: dist.ProcessGroup | None, rank: int, host: str, *same: object) -> None:
    everyone: list = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, (host, *same), group=group)
    for other, (their_host, *theirs) in enumerate(everyone):
        if their_host != host:
            refuse("Communicator", "group", f"rank {other} is on host {their_host}, rank {rank} on {host}")
        for name, there, here in zip(("backend", "max_bytes", "timeout"), theirs, same):
            if there != here:
                refuse("Communicator", name, f"{there} on rank {other}, {here} on rank {rank}")


def _device(wanted: torch.device | str | None) -> torch.device:
    if backend() == "cpu":
        device = torch.device(wanted or "cpu")
        if device.type != "cpu":
            refuse("Communicator", "device", f"{device}; this build is for cpu")
        return device
    device = torch.device(wanted or "cuda")
    if device.type != "cuda":
        refuse("Communicator", "device", f"{device}; this build is for {backend()}")
    return device if device.index is not None else torch.device("cuda", torch.cuda.current_device())
