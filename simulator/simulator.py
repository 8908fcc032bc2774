"""The entry point: a code object, memory, and `launch`."""

import struct
from pathlib import Path

import numpy as np

from simulator.binary.code_object import CodeObject, Kernel, load
from simulator.counting.counters import Counters
from simulator.memory.regions import Memory
from simulator.schedule.engine import Checks, Launch

from .faults import UnsupportedError

ARCHITECTURES = ("gfx942", "gfx950")
# Pointers that our launches never give: they stay null, and using one is a memory fault.
NULL_ARGUMENTS = {"hidden_printf_buffer", "hidden_hostcall_buffer", "hidden_heap_v1", "hidden_queue_ptr"}
NULL_ARGUMENTS |= {"hidden_default_queue", "hidden_completion_action", "hidden_multigrid_sync_arg", "hidden_none"}


def triple(size) -> tuple[int, int, int]:
    values = (size,) if isinstance(size, int) else tuple(size)
    return (*values, 1, 1)[:3]


class Simulator:
    """Runs kernels of one code object (a path or bytes of a shared library, a bundle, or the object itself).

    `seed` decides the schedule and what uninitialised registers and LDS hold, `resident` how many workgroups are in
    flight at a time. `max_idle` is how many instructions may pass with no store, atomic, barrier or wave's end before
    the launch counts as hung.
    """

    def __init__(
        self, source: str | Path | bytes | CodeObject, arch: str, *, memory: Memory | None = None, seed: int = 0,
        resident: int = 4, checks: Checks | None = None, max_idle: int = 4_000_000,
    ):  # fmt: skip
        if arch not in ARCHITECTURES:
            raise UnsupportedError(f"architecture {arch}; there are {', '.join(ARCHITECTURES)}")
        self.code = source if isinstance(source, CodeObject) else load(source, arch)
        self.memory = memory or Memory()
        self.seed, self.resident, self.checks = seed, resident, checks or Checks()
        self.max_idle = max_idle
        self._image = np.frombuffer(bytes(self.code.image), np.uint8).copy()
        self.image_base = self.memory.register(self._image, f"{arch} code object")

    @property
    def kernels(self) -> dict[str, Kernel]:
        return self.code.kernels

    def launch(
        self, kernel: str, grid, block, args=(), lds: int = 0, seed: int | None = None, groups=None, profile=None
    ) -> Counters:
        """Runs `kernel` on `grid` workgroups of `block` threads (integers or up to three of them).

        `args`: the explicit arguments' bytes in the kernarg layout, or one value an argument: an integer, a float
        (float32 or float64 by size), bytes (a struct), or a NumPy array (its address; registered if it is not yet).
        `groups`: the workgroups to run, by index; all by default. `profile`: a Profile that watches the launch.
        """
        return self.prepare(kernel, grid, block, args, lds, seed, groups, profile).run()

    def prepare(
        self, kernel: str, grid, block, args=(), lds: int = 0, seed: int | None = None, groups=None, profile=None,
        device: int | None = None,
    ) -> Launch:  # fmt: skip
        """The same, to be run later. Its memory is what is registered now, of that device alone or of all."""
        entry = self.kernels[kernel]
        grid, block = triple(grid), triple(block)
        kernarg = np.zeros(max(8, entry.kernarg_size), np.uint8)
        memory = self.memory.as_seen_by(device)
        self._fill_explicit(entry, kernarg, args, memory)
        self._fill_hidden(entry, kernarg, grid, block, lds)
        address = memory.register(kernarg, f"{kernel}'s arguments", writable=False)
        return Launch(
            self.code, entry, memory, self.image_base, kernarg.tobytes(), address, grid, block, lds,
            self.seed if seed is None else seed, self.resident, self.checks, self.max_idle,
            groups, profile,
        )  # fmt: skip

    @staticmethod
    def _fill_explicit(kernel: Kernel, kernarg: np.ndarray, args, memory: Memory) -> None:
        """Writes the arguments; registers arrays that are not yet."""
        if isinstance(args, (bytes, bytearray)):
            kernarg[: len(args)] = np.frombuffer(args, np.uint8)
            return
        explicit = [each for each in kernel.arguments if not each[".value_kind"].startswith("hidden_")]
        if len(explicit) != len(args):
            raise ValueError(f"{kernel.name} takes {len(explicit)} arguments, {len(args)} were given")
        for slot, value in zip(explicit, args):
            offset, size = slot[".offset"], slot[".size"]
            if isinstance(value, np.ndarray):
                if memory.find(value.ctypes.data) is None and value.size:
                    memory.register(value, f"argument {explicit.index(slot)}")
                value = value.ctypes.data
            if isinstance(value, float):
                data = struct.pack("<f" if size == 4 else "<d", value)
            elif isinstance(value, (bytes, np.generic)):
                data = value if isinstance(value, bytes) else value.tobytes()
            else:
                data = int(value).to_bytes(size, "little", signed=value < 0)
            if len(data) != size:
                raise ValueError(f"{kernel.name}: argument {explicit.index(slot)} has {size} bytes, not {len(data)}")
            kernarg[offset : offset + size] = np.frombuffer(data, np.uint8)

    def _fill_hidden(self, kernel: Kernel, kernarg: np.ndarray, grid, block, lds: int) -> None:
        values = {
            "hidden_dynamic_lds_size": lds,
            "hidden_grid_dims": max(i + 1 for i in range(3) if i == 0 or grid[i] > 1 or block[i] > 1),
        }
        for index, axis in enumerate("xyz"):
            values[f"hidden_block_count_{axis}"] = grid[index]
            values[f"hidden_group_size_{axis}"] = block[index]
            values[f"hidden_remainder_{axis}"] = 0
            values[f"hidden_global_offset_{axis}"] = 0
        for slot in kernel.arguments:
            kind, offset, size = slot[".value_kind"], slot[".offset"], slot[".size"]
            if not kind.startswith("hidden_") or kind in NULL_ARGUMENTS:
                continue
            if kind not in values:
                raise UnsupportedError(f"{kernel.name}: argument {kind}")
            kernarg[offset : offset + size] = np.frombuffer(int(values[kind]).to_bytes(size, "little"), np.uint8)
