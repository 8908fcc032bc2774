"""The memory through which ranks compute together: shared between processes on a CPU, symmetric between GPUs.

A rank's memory is a page of words, then two halves (common/comm/peers.h). Both classes have the same attributes:
addresses, of each rank's memory as this rank sees it; locks; staging, from which copy engines send (overlap.py);
free().
"""

import fcntl
import mmap
import os

import torch
import torch.distributed as dist

CONTROL_BYTES = 4096
_ABSENT = 0xFF  # on a GPU halves begin with ones: nothing has come


class SharedMemory:
    """Of processes on a CPU. A file without a name: it goes with the last process, however that ends. No staging."""

    staging: list[torch.Tensor] = []

    def __init__(self, group: dist.ProcessGroup | None, rank: int, ranks: int, half: int):
        each = CONTROL_BYTES + 2 * half
        file = None
        if rank == 0:
            file = os.memfd_create("rocm_fp8_kernels", os.MFD_CLOEXEC)
            os.ftruncate(file, each * ranks)
        if ranks > 1:
            path = [f"/proc/{os.getpid()}/fd/{file}" if rank == 0 else None]
            dist.broadcast_object_list(path, group=group, group_src=0)
            # Rank 0, too, has a file of its own: locks belong to a process and go when it closes any of its files.
            file = file if rank == 0 else os.open(path[0], os.O_RDWR | os.O_CLOEXEC)
        self.locks = file
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, rank)
        self._bytes = torch.frombuffer(mmap.mmap(file, each * ranks), dtype=torch.uint8)
        self.addresses = [self._bytes.data_ptr() + each * r for r in range(ranks)]
        if ranks > 1:
            dist.barrier(group=group)

    def free(self) -> None:
        self._bytes = None  # the mapping goes with its last view
        if self.locks is not None:
            os.close(self.locks)
            self.locks = None


class SymmetricMemory:
    """Of GPUs: torch's symmetric memory, on CUDA and ROCm."""

    locks = -1

    def __init__(self, group: dist.ProcessGroup | None, device: torch.device, ranks: int, half: int, staging: int):
        begin = CONTROL_BYTES + 2 * half
        size = begin + staging
        if ranks == 1:
            self._memory, self._handle = torch.empty(size, dtype=torch.uint8, device=device), None
            self.addresses, self.staging = [self._memory.data_ptr()], [self._memory[begin:]]
        else:
            import torch.distributed._symmetric_memory as symmetric

            self._memory = symmetric.empty(size, dtype=torch.uint8, device=device)
            self._handle = symmetric.rendezvous(self._memory, group or dist.group.WORLD)
            self.addresses = list(self._handle.buffer_ptrs)
            self.staging = [self._handle.get_buffer(rank, (staging,), torch.uint8, begin) for rank in range(ranks)]
        self._memory[:CONTROL_BYTES].zero_()
        self._memory[CONTROL_BYTES:].fill_(_ABSENT)
        torch.cuda.synchronize(device)
        if ranks > 1:
            dist.barrier(group=group)

    def free(self) -> None:
        self._memory = self._handle = None
        self.staging = []
