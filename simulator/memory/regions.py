"""Global memory: the host buffers that were registered, and nothing else. Every access is checked to the byte."""

import bisect
import ctypes

import numpy as np

from simulator.faults import MemoryFault


def byte_views(data: np.ndarray) -> dict[int, np.ndarray]:
    """Views of a byte array that are indexed by byte offset: element i is the `size` bytes from offset i on."""
    views = {}
    for size in (1, 2, 4, 8, 12, 16):
        dtype = np.dtype(f"<u{size}") if size in (1, 2, 4, 8) else np.dtype(f"V{size}")
        count = max(0, data.size - size + 1)
        views[size] = np.ndarray((count,), dtype, data, 0, (1,)) if count else np.zeros(0, dtype)
    return views


def bytes_at(address: int, size: int) -> np.ndarray:
    return np.frombuffer((ctypes.c_uint8 * size).from_address(address), np.uint8)


class Region:
    """One registered buffer. `device`: the only one that may touch it, or None."""

    fine_grained = False

    def __init__(self, address: int, data: np.ndarray, name: str, writable: bool, device: int | None = None):
        self.address, self.size, self.name, self.writable = address, data.size, name, writable
        self.device = device
        self.end = address + data.size
        self.data = data
        self.views = byte_views(data)


class Memory:
    """Host memory by address. Registered arrays are kept alive."""

    def __init__(self):
        self._starts: list[int] = []
        self._regions: list[Region] = []
        self._last: Region | None = None

    def register(
        self, array: np.ndarray, name: str = "buffer", writable: bool = True, device: int | None = None
    ) -> int:
        """Makes a C-contiguous array (or anything with its bytes) reachable; returns its address."""
        data = array.reshape(-1).view(np.uint8)
        if not np.shares_memory(data, array) and array.size:
            raise ValueError("only contiguous arrays can be registered")
        return self.add(Region(data.ctypes.data, data, name, writable, device))

    def register_address(
        self, address: int, size: int, name: str = "allocation", writable: bool = True, device: int | None = None
    ) -> int:
        """The same for `size` bytes at a host address, which the caller keeps valid."""
        return self.add(Region(address, bytes_at(address, size), name, writable, device))

    def as_seen_by(self, device: int | None) -> "Memory":
        """What is registered now, of that device or of all; what is registered there later stays there."""
        seen = Memory()
        seen._regions = [each for each in self._regions if device is None or each.device in (None, device)]
        seen._starts = [each.address for each in seen._regions]
        return seen

    def add(self, region: Region) -> int:
        at = bisect.bisect(self._starts, region.address)
        neighbours = self._regions[max(0, at - 1) : at + 1]
        if region.size and any(each.address < region.end and region.address < each.end for each in neighbours):
            raise ValueError(f"{region.name} at {region.address:#x} overlaps another registered buffer")
        self._starts.insert(at, region.address)
        self._regions.insert(at, region)
        return region.address

    def unregister(self, address: int) -> None:
        at = bisect.bisect_left(self._starts, address)
        if at == len(self._starts) or self._starts[at] != address:
            raise ValueError(f"nothing is registered at {address:#x}")
        del self._starts[at], self._regions[at]
        self._last = None

    @property
    def regions(self) -> list[Region]:
        """By address."""
        return self._regions

    def find(self, address: int) -> Region | None:
        """The buffer that an address lies in."""
        last = self._last
        if last is not None and last.address <= address < last.end:
            return last
        at = bisect.bisect(self._starts, address) - 1
        if at >= 0 and address < self._regions[at].end:
            self._last = self._regions[at]
            return self._last
        return None

    def describe(self, address: int) -> str:
        """Where an address lies relative to the nearest buffers, for a fault's text."""
        at = bisect.bisect(self._starts, address)
        parts = []
        for region in self._regions[max(0, at - 1) : at + 1]:
            if address >= region.end:
                parts.append(f"{address - region.end} bytes behind the end of {region.name} ({region.size} bytes)")
            elif address < region.address:
                parts.append(f"{region.address - address} bytes before {region.name} ({region.size} bytes)")
            else:
                parts.append(f"{address - region.address} bytes into {region.name} ({region.size} bytes)")
        return "; ".join(parts) or "nothing is registered"

    def read_scalar(self, address: int, size: int) -> bytes:
        region = self.find(address)
        if region is None or address + size > region.end:
            raise MemoryFault(f"scalar load of {size} bytes at {address:#x}: {self.describe(address)}")
        at = address - region.address
        return region.data[at : at + size].tobytes()

    def groups(self, addresses: np.ndarray, size: int, lanes: np.ndarray, write: bool):
        """[(region, positions into `lanes`, byte offsets into the region)] of an access by the given lanes.

        Nearly always one group. `addresses` belongs to the lanes, in order."""
        if not addresses.size:
            return []
        region = self.find(int(addresses[0]))
        if region is not None:
            offsets = addresses - np.uint64(region.address)
            # Addresses below the region wrap around to huge offsets.
            if int(offsets.max()) + size <= region.size:
                self._check_writable(region, write, lanes, 0)
                return [(region, slice(None), offsets.astype(np.int64))]
        by_region: dict[int, list[int]] = {}
        for position, address in enumerate(addresses.tolist()):
            region = self.find(address)
            if region is None or address + size > region.end:
                verb = "store" if write else "load"
                raise MemoryFault(
                    f"lane {lanes[position]}: {verb} of {size} bytes at {address:#x}: {self.describe(address)}"
                )
            self._check_writable(region, write, lanes, position)
            by_region.setdefault(region.address, []).append(position)
        found = []
        for start, positions in by_region.items():
            index = np.array(positions)
            found.append((self.find(start), index, (addresses[index] - np.uint64(start)).astype(np.int64)))
        return found

    @staticmethod
    def _check_writable(region: Region, write: bool, lanes, position: int) -> None:
        if write and not region.writable:
            raise MemoryFault(f"lane {lanes[position]}: store to {region.name}, which is read-only")
