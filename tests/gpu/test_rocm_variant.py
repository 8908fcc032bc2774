"""The ROCm variant as a file and as a package: what it holds, what it needs, where `kernels` takes it, and that the
host side launches what the configurations say. Without a GPU: HIP's runtime is the simulator's test double."""

import ctypes
import itertools
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from problems.inputs import normal
from scripts import machine_code
from tests.settings import ROCM_HEADERS, ROOT

ARCHS = ["gfx942", "gfx950"]
FOREIGN_DEVICE = 2  # of the double: a gfx1100


def dynamic(library: Path, *arguments: str) -> str:
    return subprocess.run(
        ["llvm-readelf-22", *arguments, str(library)], check=True, capture_output=True, text=True
    ).stdout


# --- the file ---


def test_it_holds_both_architectures(rocm_variant, rocm_library):
    assert sorted(machine_code.code_objects(rocm_library)) == ARCHS
    metadata = json.loads((rocm_variant / "metadata.json").read_text())
    assert metadata["backend"] == {"type": "rocm", "archs": ARCHS}
    assert re.fullmatch(r"torch-stable-abi211-rocm7\d-x86_64-linux", rocm_variant.name)


def test_the_sources_name_the_architectures_that_are_built():
    import tomllib

    built = tomllib.loads((ROOT / "build.toml").read_text())["kernel"]["rocm"]["rocm-archs"]
    names = re.search(r"kArchNames\[\] = \{(.*)\}", (ROOT / "common/hip/device.hip").read_text())[1]
    assert re.findall(r'"(\w+)"', names) == built == ARCHS


def test_what_it_needs_of_the_system(rocm_library):
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", dynamic(rocm_library, "-d")))
    assert {"libamdhip64.so.7", "libtorch.so"} <= needed
    assert needed <= {
        "libamdhip64.so.7",
        "libtorch.so",
        "libm.so.6",
        "libc.so.6",
        "libgcc_s.so.1",
        "ld-linux-x86-64.so.2",
    }
    assert not re.search(r"RPATH|RUNPATH", dynamic(rocm_library, "-d"))


def test_undefined_symbols_are_of_hip_torch_and_the_system(rocm_library):
    lines = dynamic(rocm_library, "--dyn-syms", "-W").splitlines()
    undefined = [line.split()[-1].split("@")[0] for line in lines if " UND " in line]
    names = [name for name in undefined if name and not name.isdigit()]
    hip = {name for name in names if re.match(r"hip|__hip", name)}
    torchs = {name for name in names if re.search(r"torch|aoti|c10", name)}
    assert {"hipLaunchKernel", "hipStreamGetCaptureInfo", "hipGetDevicePropertiesR0600"} <= hip
    assert torchs and all(name.startswith(("aoti_torch_", "torch_")) for name in torchs), torchs
    # The rest is libc's, libm's and the unwinder's: nothing of Python that the ABI check below does not know, no C++
    # library.
    rest = set(names) - hip - torchs
    assert not any(name.startswith("_ZNSt") or name.startswith("_ZSt") for name in rest), rest


def test_it_loads_on_older_systems_and_with_any_python(rocm_library):
    from kernel_abi_check import ObjectFile

    file = ObjectFile(str(rocm_library))
    assert file.check_manylinux("manylinux_2_28") == []
    assert file.check_python_abi("3.9") == []


# --- the loading rule of `kernels` ---


def resolve(variants: list[str], torch_version: str, rocm: str | None):
    from kernels import backends
    from kernels import variants as rules
    from packaging.version import Version

    backend = backends.ROCm(version=Version(rocm)) if rocm else backends.CPU()
    accepted, _ = rules._resolve_variant_for_system(
        variants=[rules.parse_variant(v) for v in variants],
        selected_backend=backend,
        cpu="x86_64",
        os="linux",
        torch_version=Version(torch_version),
        torch_cxx11_abi=True,
        tvm_ffi_version=None,
    )
    return [v.variant_str for v in accepted]


def test_where_kernels_takes_it(rocm_variant):
    name, cpu = rocm_variant.name, "torch-stable-abi211-cpu-x86_64-linux"
    version = re.search(r"rocm(\d)(\d)", name)
    here, other = f"{version[1]}.{version[2]}", f"{version[1]}.{(int(version[2]) + 1) % 10}"
    for torch_version in ("2.11", "2.13"):
        assert resolve([name, cpu], torch_version, here)[0] == name
    assert name not in resolve([name, cpu], "2.10", here), "older than the stable ABI that it is built for"
    assert name not in resolve([name, cpu], "2.13", other), "kernels wants ROCm's minor version to be the variant's"
    assert resolve([name, cpu], "2.13", None) == [cpu]


# A torch that says it is ROCm's, without a GPU; HIP's runtime is the double.
LOADING = """
import sys
import torch
from pathlib import Path
from simulator.host.library import Runtime

Runtime.shared(Path({headers!r}))
torch.version.cuda, torch.version.hip = None, {hip!r}
from kernels import get_kernel

kernel = get_kernel("rocm-fp8-kernels/rocm-fp8-kernels", version=1)
print(kernel.ops.backend(), kernel.__file__)
x = torch.empty(2, 8, dtype=torch.bfloat16, device="meta")
print(kernel._ops.ops.rms_norm.default(x, x, x[0], 1e-6))
"""


def test_get_kernel_loads_it_where_torch_is_rocm(rocm_variant, tmp_path):
    version = re.search(r"rocm(\d)(\d)", rocm_variant.name)
    code = LOADING.format(headers=str(ROCM_HEADERS), hip=f"{version[1]}.{version[2]}.1-abcdef")
    environment = os.environ | {
        "LOCAL_KERNELS": f"rocm-fp8-kernels/rocm-fp8-kernels={rocm_variant.parents[1]}",
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(tmp_path),
    }
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    backend, path, fake = run.stdout.split()
    assert backend == "rocm" and Path(path).resolve().parent == rocm_variant.resolve() and fake == "None"


# --- the host side ---


@pytest.fixture(params=ARCHS)
def kernel(simulated_rocm, request):
    with simulated_rocm.on(request.param) as module:
        yield module


def launches(simulated_rocm, function, *arguments) -> list[tuple]:
    """(kernel, grid, block, dynamic LDS) of a call."""
    before = len(simulated_rocm.runtime.launches)
    function(*arguments)
    return [launch[:4] for launch in simulated_rocm.runtime.launches[before:]]


def test_launch_geometry(simulated_rocm, kernel, generator):
    scale, weight = torch.tensor(0.02), torch.ones(4096).half()
    x = normal((3, 4096), torch.float16, generator)
    ((name, grid, block, lds),) = launches(simulated_rocm, kernel.rms_norm_fp8, x, weight, scale)
    assert "rms_norm_fast" in name and (grid, block, lds) == ((3, 1, 1), (512, 1, 1), 0)
    ((name, grid, block, lds),) = launches(simulated_rocm, kernel.swiglu_fp8, x, scale)
    assert "swiglu_fast" in name and (grid, block, lds) == ((12, 1, 1), (64, 1, 1), 0)
    a, b = (torch.ones(rows, 2048).to(kernel.fp8_dtype("cpu")) for rows in (2, 40))
    ((name, grid, block, lds),) = launches(simulated_rocm, kernel.skinny_gemm, a, b, scale, scale)
    assert "skinny_gemm_stream" in name and grid[0] % 3 == 0 and grid[1:] == (1, 1) and block[0] % 64 == 0 and lds == 0


def test_nothing_is_launched_for_nothing(simulated_rocm, kernel):
    scale, weight = torch.tensor(0.02), torch.ones(64).half()
    fp8 = kernel.fp8_dtype("cpu")
    empty = torch.empty(0, 64).half()
    assert launches(simulated_rocm, kernel.rms_norm_fp8, empty, weight, scale) == []
    assert launches(simulated_rocm, kernel.swiglu_fp8, empty, scale) == []
    a, b = torch.empty(0, 64).to(fp8), torch.empty(5, 64).to(fp8)
    assert launches(simulated_rocm, kernel.skinny_gemm, a, b, scale, scale) == []


def test_bad_arguments_are_refused_before_a_launch(simulated_rocm, kernel):
    before = len(simulated_rocm.runtime.launches)
    scale, x = torch.tensor(0.02), torch.ones(3, 64).half()
    fp8 = kernel.fp8_dtype("cpu")
    bad = [
        (r"weight: shape \[63\]", lambda: kernel.rms_norm_fp8(x, torch.ones(63).half(), scale)),
        (r"x: dtype float32", lambda: kernel.swiglu_fp8(x.float(), scale)),
        (r"scale: 2 elements", lambda: kernel.swiglu_fp8(x, torch.ones(2))),
        (
            r"a: 33 rows",
            lambda: kernel.skinny_gemm(torch.ones(33, 64).to(fp8), torch.ones(5, 64).to(fp8), scale, scale),
        ),
        (r"overlaps", lambda: kernel.rms_norm(x, torch.ones(64).half(), out=x)),
    ]
    for message, call in bad:
        with pytest.raises(RuntimeError, match=message):
            call()
    assert len(simulated_rocm.runtime.launches) == before


def by_the_gpus_registration(kernel):
    """swiglu_fp8 as CUDA tensors would call it, on CPU tensors, whatever the device is."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
    x, out = torch.ones(1, 32).half(), torch.empty(1, 16).to(kernel.fp8_dtype("cpu"))
    kernel._ops.ops.swiglu_fp8.default.redispatch(keys, out, x, torch.tensor(1.0))


def test_what_hip_says_becomes_an_exception(simulated_rocm, kernel, monkeypatch):
    def fail(*arguments):
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(simulated_rocm.runtime, "_launch", fail)
    with pytest.raises(RuntimeError, match="swiglu_fp8: HIP error 719"):
        by_the_gpus_registration(kernel)


def test_an_unsupported_gpu_is_told_what_there_is(simulated_rocm, kernel):
    double = simulated_rocm.runtime.double
    double.hipSetDevice(FOREIGN_DEVICE)
    with pytest.raises(RuntimeError, match="this GPU is a gfx1100; the binary holds kernels for gfx942 gfx950"):
        by_the_gpus_registration(kernel)


PER_THREAD = 2  # hipStreamPerThread


def test_counters_are_shared_only_by_launches_in_order(simulated_rocm, host_arguments, kernel, rocm_library):
    """A stream has its own, also one with the handle of another that was destroyed; a capture on it, and a thread of
    hipStreamPerThread, too. All are zero, and none overlap."""
    counters_for = ctypes.CDLL(str(rocm_library))["_ZN8rocm_fp812counters_forEPv"]
    set_capture = simulated_rocm.runtime.double.simulator_set_capture
    set_capture.argtypes = [ctypes.c_uint64]
    set_epoch = simulated_rocm.runtime.double.simulator_set_stream_epoch
    set_epoch.argtypes = [ctypes.c_uint64]
    found: dict[tuple, int] = {}

    def ask(stream: int, capture: int = 0, key: tuple = ()) -> None:
        set_capture(capture)
        address, error = host_arguments.counters(counters_for, stream)
        set_capture(0)
        assert error is None
        assert found.setdefault((stream, capture, *key), address) == address

    for _ in range(2):
        for stream in (0x1000, 0x2000, *range(0x3000, 0x3000 + 80)):  # more than one allocation holds
            for capture in (0, 7, 8):
                ask(stream, capture)
        # The same handle for another stream, made when the first one was destroyed.
        set_epoch(1)
        ask(0x1000, 0, ("again",))
        set_epoch(0)
        ask(PER_THREAD)
    # One handle for all threads, a stream for each.
    for name in ("first", "second"):
        worker = threading.Thread(target=ask, args=(PER_THREAD, 0, (name,)))
        worker.start()
        worker.join()
    assert len(found) == 82 * 3 + 1 + 3
    addresses = sorted(found.values())
    size = host_arguments.counters_bytes
    assert all(b - a >= size for a, b in itertools.pairwise(addresses))
    assert all(ctypes.string_at(address, size) == bytes(size) for address in addresses)
