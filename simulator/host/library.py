"""Runs a shipped library's host code as it is: its HIP calls go to a test double, its kernels to the simulator.

    runtime = Runtime.shared(Path("…/include of HIP"))
    library = runtime.open("…/_kernels_rocm.abi3.so")
    runtime.memory.register(array)
    with runtime.on("gfx942"):
        runtime.call(library._Z6launch…, arguments…)
    with runtime.devices("gfx942", 2) as devices:         # Devices that run together
        devices.share(buffer)
        for device in range(2):
            with runtime.on("gfx942", device):
                runtime.call(library._Z6launch…, arguments…)      # queued; arguments are taken now
        devices.run()

Launches come to the simulator with the grid, block, LDS size and arguments that a GPU would get. Kernels may touch the
bytes that are registered, and no others. Events and streams take no time; a question for occupancy is answered by the
simulator. `launches` has each launch and its counters.

One Runtime a process: the double is a shared library with the real one's name (libamdhip64.so.7), which libraries that
are opened later bind to.
"""

import contextlib
import ctypes
import math
import struct
import tempfile
from dataclasses import replace
from pathlib import Path

from simulator.binary.code_object import BUNDLE_MAGIC, COMPRESSED_MAGIC, load_all
from simulator.counting.counters import UNITS, Counters, occupancy
from simulator.counting.idle import FirstAccesses, Work, survey
from simulator.counting.sharing import Beginnings, in_flight
from simulator.devices import Devices
from simulator.faults import SimulationError, UnsupportedError
from simulator.memory.regions import Memory
from simulator.native import compile_library
from simulator.schedule.engine import Checks, Launch
from simulator.simulator import ARCHITECTURES, Simulator

SONAME = "libamdhip64.so.7"
# Symbol versions as the real library has them; what is not listed has hip_4.2.
VERSIONS = {
    "hip_4.3": ["hipStreamIsCapturing"],
    "hip_4.5": ["hipStreamGetCaptureInfo", "hipStreamGetCaptureInfo_v2"],
    "hip_5.0": ["hipThreadExchangeStreamCaptureMode"],
    "hip_6.0": ["hipGetDevicePropertiesR0600"],
    "hip_7.1": ["hipStreamGetId"],
}
DEFAULT_RESIDENT = 4
LAUNCH_FAILURE = 719  # hipErrorLaunchFailure

LAUNCH_CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.POINTER(ctypes.c_uint32),
    ctypes.POINTER(ctypes.c_uint32), ctypes.c_uint64, ctypes.POINTER(ctypes.c_void_p),
)  # fmt: skip
OCCUPANCY_CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_int, ctypes.c_uint64
)
MEMORY_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int)
SINGLE, TOGETHER = 3, 8  # devices of hip_double.cpp


def build_double(hip_include: Path, folder: Path) -> Path:
    """Compiles hip_double.cpp against HIP's headers."""
    listed = [f"{version} {{ global: {'; '.join(names)}; }};" for version, names in VERSIONS.items()]
    version_script = folder / "double.map"
    version_script.write_text("hip_4.2 { global: __hip*; hip[A-Z]*; simulator_*; local: *; };\n" + "\n".join(listed))
    flags = ["-O1", "-D__HIP_PLATFORM_AMD__=1", f"-isystem{hip_include}"]
    flags += [f"-Wl,-soname,{SONAME}", f"-Wl,--version-script={version_script}"]
    return compile_library(Path(__file__).with_name("hip_double.cpp"), folder / SONAME, *flags)


def bundle_at(address: int) -> bytes:
    """The offload bundle at an address of this process; its header tells its size."""
    magic = ctypes.string_at(address, len(BUNDLE_MAGIC))
    if magic.startswith(COMPRESSED_MAGIC):
        version, _ = struct.unpack("<HH", ctypes.string_at(address + 4, 4))
        if version < 2:
            raise UnsupportedError(f"compressed offload bundle of version {version}")
        code, width = ("<I", 4) if version == 2 else ("<Q", 8)
        return ctypes.string_at(address, struct.unpack(code, ctypes.string_at(address + 8, width))[0])
    if magic != BUNDLE_MAGIC:
        raise UnsupportedError(f"no offload bundle at {address:#x}")
    count = struct.unpack("<Q", ctypes.string_at(address + 24, 8))[0]
    at, size = address + 32, 32
    for _ in range(count):
        offset, length, name = struct.unpack("<QQQ", ctypes.string_at(at, 24))
        at += 24 + name
        size = max(size, offset + length, at - address)
    return ctypes.string_at(address, size)


class Runtime:
    """The double in this process, and the simulators of the code objects that libraries registered.

    `launches` lists (kernel, grid, block, dynamic LDS, counters) of what was run. There can be one only, as libraries
    bind to the first double and keep memory from it: `shared` makes it or gives it again.
    """

    _shared: "Runtime | None" = None

    @classmethod
    def shared(cls, hip_include: Path, **options) -> "Runtime":
        """The runtime of this process, with `configure`'s options."""
        if cls._shared is None:
            cls._shared = cls(hip_include)
        cls._shared.configure(**options)
        return cls._shared

    def configure(
        self,
        *,
        checks: Checks | None = None,
        seed: int = 0,
        resident: int = DEFAULT_RESIDENT,
        sample=None,
        profile=None,
        chiplets: int = 1,
    ) -> None:
        """Sets Simulator's options for the launches that follow. `sample`: grid -> the workgroups to run of it. With
        a profile, those that have no work are replaced by others, and what all that do share is measured, too, on
        so many `chiplets`, and kept in `beginnings`."""
        self.checks, self.seed, self.resident = checks or Checks(), seed, resident
        self.sample, self.profile, self.beginnings, self.chiplets = sample, profile, None, chiplets

    def __init__(self, hip_include: Path):
        if Runtime._shared is not None:
            raise RuntimeError("this process has its Runtime already: Runtime.shared")
        self.memory = Memory()
        self.configure()
        self.launches: list[tuple[str, tuple, tuple, int, Counters]] = []
        self.on_launched = None  # called after each launch with its counters and `beginnings`
        self._error: BaseException | None = None
        self._devices: Devices | None = None
        self._simulators: dict[tuple[int, str], list[Simulator]] = {}
        with tempfile.TemporaryDirectory() as folder:
            self.double = ctypes.CDLL(str(build_double(Path(hip_include), Path(folder))), ctypes.RTLD_GLOBAL)
        self._callbacks = (
            LAUNCH_CALLBACK(self._on_launch),
            OCCUPANCY_CALLBACK(self._on_occupancy),
            MEMORY_CALLBACK(self._on_memory),
        )
        self.double.simulator_set_callbacks(*self._callbacks)

    def open(self, path: str | Path) -> ctypes.CDLL:
        """Loads a library that was linked against HIP."""
        return ctypes.CDLL(str(path))

    @contextlib.contextmanager
    def on(self, arch: str, device: int | None = None):
        """Makes the device of that architecture the current one, or one of those that run together."""
        before, which = ctypes.c_int(), ARCHITECTURES.index(arch)
        self.double.hipGetDevice(ctypes.byref(before))
        self.double.hipSetDevice(which if device is None else self.double.simulator_first_device(which) + device)
        try:
            yield
        finally:
            self.double.hipSetDevice(before)

    @contextlib.contextmanager
    def devices(self, arch: str, count: int):
        """Devices of that architecture. Launches on them (`on`) are queued until its `run`. `configure`'s seed, checks
        and resident workgroups are theirs, too, but that by default all are resident that the device holds."""
        if not 0 < count <= TOGETHER or self._devices:
            raise ValueError(f"{count} devices; 1 to {TOGETHER} run together, once at a time")
        resident = None if self.resident == DEFAULT_RESIDENT else self.resident
        devices = Devices(count, memory=self.memory, seed=self.seed, resident=resident)
        devices.on_ended = self._on_ended
        self._devices = devices
        self.double.simulator_set_deferred(1)
        try:
            yield devices
        finally:
            self._devices = None
            self.double.simulator_set_deferred(0)
            devices.end()

    def call(self, function, *arguments):
        """Calls a C function; what went wrong in the simulation of its launches is raised here."""
        self._error = None
        try:
            return function(*arguments)
        finally:  # also where the function has made an error of its own of the failed launch
            error, self._error = self._error, None
            if error is not None:
                raise error

    def simulators(self, bundle: int, arch: str) -> list[Simulator]:
        """One simulator for each of the bundle's code objects of that architecture."""
        key = bundle, arch
        if key not in self._simulators:
            self._simulators[key] = [
                Simulator(code, arch, memory=self.memory) for code in load_all(bundle_at(bundle), arch)
            ]
        return self._simulators[key]

    def _on_launch(self, bundle, kernel, device, grid, block, lds, arguments) -> int:
        try:
            self._launch(bundle, kernel.decode(), device, tuple(grid[:3]), tuple(block[:3]), lds, arguments)
        except BaseException as error:  # nothing may pass through the C++ frames above
            self._error = self._error or error
            return LAUNCH_FAILURE
        return 0

    def _simulator_of(self, bundle: int, name: str, arch: str) -> Simulator:
        for each in self.simulators(bundle, arch):
            if name in each.kernels:
                return each
        raise SimulationError(f"the bundle has no kernel {name} for {arch}")

    def _on_occupancy(self, bundle, kernel, device, threads, lds) -> int:
        try:
            arch, name = self._architecture(device), kernel.decode()
            entry = self._simulator_of(bundle, name, arch).kernels[name]
            return occupancy(arch, entry.vgprs, threads, entry.lds_size + lds).workgroups
        except BaseException as error:
            self._error = self._error or error
            return 0

    @staticmethod
    def _architecture(device: int) -> str:
        return ARCHITECTURES[device if device < SINGLE else (device - SINGLE) // TOGETHER]

    def _launch(self, bundle: int, name: str, device: int, grid, block, lds: int, arguments) -> None:
        simulator = self._simulator_of(bundle, name, self._architecture(device))
        simulator.seed, simulator.resident, simulator.checks = self.seed, self.resident, self.checks
        explicit = [slot for slot in simulator.kernels[name].arguments if not slot[".value_kind"].startswith("hidden_")]
        values = [ctypes.string_at(arguments[i], slot[".size"]) for i, slot in enumerate(explicit)]
        if self._devices:
            if device < SINGLE:
                raise SimulationError(f"{name} on device {device}, which is not one of those that run together")
            self._devices.launch((device - SINGLE) % TOGETHER, simulator, name, grid, block, values, lds)
            return
        groups = self.sample(grid) if self.sample else None
        self.beginnings, idle = None, 0
        if self.sample and self.profile:
            work = survey(math.prod(grid), self._works(simulator, name, grid, block, values, lds), groups)
            groups, idle = work.instead(groups), work.idle
            self.beginnings = self._begin(simulator, name, grid, block, lds, values, work)
        counters = simulator.launch(name, grid, block, values, lds, groups=groups, profile=self.profile)
        counters.idle = idle
        self.launches.append((name, grid, block, lds, counters))
        if self.on_launched:
            self.on_launched(counters, self.beginnings)

    @staticmethod
    def _cut_short(simulator: Simulator, profile, *launch, groups) -> Counters:
        """A launch that `profile` ends early. So the checks of whole programs do not hold."""
        checks = simulator.checks
        simulator.checks = replace(checks, uninitialised_lds=False, races=False, coherence=False)
        try:
            return simulator.launch(*launch, groups=groups, profile=profile)
        finally:
            simulator.checks = checks

    def _works(self, simulator: Simulator, *launch):
        """What counting/idle.py asks for."""

        def run(groups: list[int]) -> set[int]:
            watched = FirstAccesses()
            self._cut_short(simulator, watched, *launch, groups=groups)
            return watched.busy

        return run

    def _begin(self, simulator: Simulator, name: str, grid, block, lds: int, values, work: Work) -> Counters:
        """What counting/sharing.py measures."""
        kernel = simulator.kernels[name]
        resident = occupancy(simulator.code.arch, kernel.vgprs, math.prod(block), kernel.lds_size + lds).workgroups
        groups = in_flight(math.prod(grid), UNITS[simulator.code.arch], resident, work.has, self.chiplets)
        return self._cut_short(simulator, Beginnings(), name, grid, block, values, lds, groups=groups)

    def _on_ended(self, launch: Launch, counters: Counters) -> None:
        self.launches.append((launch.kernel.name, launch.grid, launch.block, launch.dynamic_lds, counters))

    def _on_memory(self, address: int, size: int, device: int) -> None:
        if size:
            owner = None if device < SINGLE else (device - SINGLE) % TOGETHER
            self.memory.register_address(address, size, "hipMalloc", device=owner)
        else:
            self.memory.unregister(address)
