"""The shipped ROCm variant on a machine without a GPU: the package's Python, its binding and its launchers run as they
are, on CPU tensors; HIP's runtime is a test double, and the kernels run in the simulator.

The operators are registered for CUDA tensors alone. Here a CPU implementation hands the same arguments to that very
registration; what it asks of a GPU (a device guard, a stream) comes from torch_double.cpp. While it runs, the simulator
knows the elements of the operator's tensors and nothing around them, so that any other access is a fault.

    with simulated_rocm.on("gfx942", seed=1) as kernel:           # tests have it as a fixture
        out = kernel.swiglu_fp8(torch.randn(3, 2048).half(), torch.tensor([0.05]))
    name, grid, block, lds, counters = simulated_rocm.runtime.launches[-1]

    with simulated_rocm.devices("gfx942", 2, seed=1) as devices:  # several at once (simulator/devices.py)
        devices.share(tensor)
        for device in range(2):
            with devices.on(device):
                devices.kernel.all_reduce(...)                    # queued; its results are there after `run`
        devices.run()

`on` is for this package alone. Another library starts from simulator/host/library.py.
"""

import contextlib
import ctypes
import functools
import importlib.util
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from scripts.builder.prefixes import ROCM_PREFIX
from simulator.devices import Devices
from simulator.host.library import Runtime

ROOT = Path(__file__).resolve().parents[2]
ALIGNMENT = 512  # of what a GPU's allocator gives
FORMATS = {"gfx942": torch.float8_e4m3fnuz, "gfx950": torch.float8_e4m3fn}
UNITS = {"gfx942": 304, "gfx950": 256}  # compute units


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Zeros that begin where a GPU's allocation may. Memory that nothing touches is never taken from the system."""
    size = torch.Size(shape).numel() * dtype.itemsize
    buffer = torch.zeros(size + ALIGNMENT, dtype=torch.uint8)
    start = -buffer.data_ptr() % ALIGNMENT
    return buffer[start : start + size].view(dtype).view(shape)


def intervals(tensor: torch.Tensor) -> list[tuple[int, int]]:
    """[begin, end) of the bytes of a tensor's elements."""
    if tensor.numel() == 0:
        return []
    size, begin = tensor.element_size(), tensor.data_ptr()
    if tensor.is_contiguous():
        return [(begin, begin + tensor.numel() * size)]
    if tensor.dim() == 2 and tensor.stride(0) == 1 < tensor.stride(1):  # column-major
        tensor = tensor.t()
        if tensor.is_contiguous():
            return [(begin, begin + tensor.numel() * size)]
    # Rows in one piece, or elements one by one.
    dense = tensor.stride(-1) == 1
    width = tensor.shape[-1] if dense else 1
    offsets = torch.zeros((), dtype=torch.int64)
    for length, stride in list(zip(tensor.shape, tensor.stride()))[: -1 if dense else None]:
        offsets = offsets[..., None] + torch.arange(length) * stride
    return [(begin + o * size, begin + (o + width) * size) for o in set(offsets.reshape(-1).tolist())]


class Scratch(TorchDispatchMode):
    """Makes what an operator allocates known to the simulator."""

    def __init__(self, register):
        super().__init__()
        self._register = register
        self.made: list[torch.Tensor] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function.overloadpacket in (torch.ops.aten.new_empty, torch.ops.aten.empty):
            result.view(torch.uint8).fill_(0xFF)  # NaN in every type: nothing may be read before it is written
            self._register(intervals(result), True)
            self.made.append(result)
        return result


class Together:
    """The package on several devices at the same time. Operators that are called on them begin at `run`."""

    def __init__(self, kernel: ModuleType, arch: str, runtime: Runtime, devices: Devices):
        self.kernel, self._arch, self._runtime, self._devices = kernel, arch, runtime, devices

    def on(self, device: int):
        """Makes a device the current one."""
        return self._runtime.on(self._arch, device)

    def share(self, tensor: torch.Tensor, name: str = "shared tensor") -> None:
        """Makes a contiguous tensor fine-grained memory of all devices."""
        self._devices.share_address(tensor.data_ptr(), tensor.numel() * tensor.element_size(), name)

    def own(self, device: int, tensor: torch.Tensor) -> None:
        """Makes a contiguous tensor ordinary memory of a device, for operators that have its address alone."""
        self._devices.own_address(device, tensor.data_ptr(), tensor.numel() * tensor.element_size())

    def run(self) -> None:
        self._devices.run()


class SimulatedRocm:
    """One a process and variant, which `shared` returns: the double, the loaded variant, and its module."""

    def __init__(self, variant: Path, hip_include: Path):
        self.runtime = Runtime.shared(hip_include)
        self._kept: list | None = None  # what launches that are queued need
        with tempfile.TemporaryDirectory() as folder:
            library = Path(folder) / "torch_double.so"
            compiler = next(filter(None, map(shutil.which, ("g++", "clang++"))))
            source = Path(__file__).with_name("torch_double.cpp")
            subprocess.run([compiler, "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
            self._double = ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
        self.kernel = self._load(variant)
        self.namespace = self.kernel._ops.ops
        self._implementations = torch.library.Library(self.namespace.name, "IMPL")
        for name in self._operators():
            self._implementations.impl(name, self._on_cpu(getattr(self.namespace, name).default), "CPU")

    @classmethod
    @functools.cache
    def shared(cls, variant: Path, hip_include: Path) -> "SimulatedRocm":
        return cls(variant, hip_include)

    @classmethod
    def built(cls) -> "SimulatedRocm":
        """This repository's newest variant; one line where there is none."""
        variants = sorted(ROOT.glob("build/torch-stable-abi*-rocm*-x86_64-linux"))
        if not variants:
            raise SystemExit("no ROCm variant is built; run: python scripts/build.py --backend rocm")
        return cls.shared(variants[-1], ROCM_PREFIX / "usr" / "include")

    @staticmethod
    def _load(variant: Path) -> ModuleType:
        # Not by `kernels`, which takes the variant for the torch at hand.
        (library,) = variant.glob("*.so")
        name = f"simulated{library.name.partition('.')[0]}"  # another package's modules have other names
        spec = importlib.util.spec_from_file_location(
            name, variant / "__init__.py", submodule_search_locations=[str(variant)]
        )
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module

    def _operators(self) -> list[str]:
        prefix = f"{self.namespace.name}::"
        names = (schema.name for schema in torch._C._jit_get_all_schemas())
        return [name.removeprefix(prefix) for name in names if name.startswith(prefix)]

    def _on_cpu(self, operator):
        keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
        writes = [a.alias_info is not None and a.alias_info.is_write for a in operator._schema.arguments]

        def implementation(*arguments):
            registered: list[int] = []

            def register(parts: list[tuple[int, int]], writable: bool) -> None:
                for begin, end in parts:
                    if (known := self.runtime.memory.find(begin)) and known.fine_grained:
                        continue
                    registered.append(self.runtime.memory.register_address(begin, end - begin, "tensor", writable))

            try:
                for begin, end, writable in self._merged(zip(arguments, writes)):
                    register([(begin, end)], writable)
                with Scratch(register) as scratch:
                    result = self.runtime.call(operator.redispatch, keys, *arguments)
                if self._kept is not None:
                    self._kept += [*arguments, result, *scratch.made]
                return result
            finally:
                for address in registered:
                    self.runtime.memory.unregister(address)

        return implementation

    @staticmethod
    def _merged(arguments) -> list[tuple[int, int, bool]]:
        """The tensors' bytes, each once; writable if any argument that has it may be written."""
        parts = [
            (begin, end, writable)
            for value, writable in arguments
            if isinstance(value, torch.Tensor)
            for begin, end in intervals(value)
        ]
        merged: list[tuple[int, int, bool]] = []
        for begin, end, writable in sorted(parts):
            if merged and begin < merged[-1][1]:
                last = merged.pop()
                merged.append((last[0], max(last[1], end), last[2] or writable))
            else:
                merged.append((begin, end, writable))
        return merged

    @contextlib.contextmanager
    def on(self, arch: str, **options) -> Iterator[ModuleType]:
        """The package's module, on a device of that architecture. `options`: those of Runtime.configure."""
        with self._as(arch, options), self.runtime.on(arch):
            yield self.kernel

    @contextlib.contextmanager
    def devices(self, arch: str, count: int, **options) -> Iterator[Together]:
        """Several devices of that architecture, which run together. `options`: as `on`'s."""
        with self._as(arch, options), self.runtime.devices(arch, count) as devices:
            self._kept = []
            try:
                yield Together(self.kernel, arch, self.runtime, devices)
            finally:
                self._kept = None

    @contextlib.contextmanager
    def _as(self, arch: str, options: dict) -> Iterator[None]:
        """Whoever asks for the chip's FP8 format gets that architecture's."""
        self.runtime.configure(**options)
        device = self.kernel.ops.device
        own = device._fp8_dtype_of
        device._fp8_dtype_of = lambda device_type, index: FORMATS[arch]
        try:
            yield
        finally:
            device._fp8_dtype_of = own
