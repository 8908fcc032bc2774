"""scripts/build.py --backend cuda on a package of one small kernel: a fat binary, cross-built without a GPU."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from scripts import cuda_toolchain
from tests.package.small_package import build_package, build_toml
from tests.settings import CUDA_TOOLKIT, needs_cuda_toolchain

ARCHS = ["10.0", "8.9+PTX", "9.0a"]  # in the order of metadata.json: as text

SOURCES = {
    "build.toml": build_toml(
        "cuda",
        """\
cuda-capabilities = ["9.0a", "8.9+PTX", "10.0"]
cuda-flags = ["-O3", "-DFACTOR=2"]
src = ["twice.h", "twice.cu"]
""",
    ),
    "twice.h": "#pragma once\n#define FILE_OF_HEADER __FILE__\n",
    "twice.cu": """\
#include "twice.h"
#ifndef CUDA_KERNEL
#error "as kernel-builder defines it"
#endif
__global__ void twice(float* x) { x[blockIdx.x * blockDim.x + threadIdx.x] *= FACTOR; }
extern "C" int launch_twice(float* x, int blocks, void* stream) {
    twice<<<blocks, 256, 0, static_cast<cudaStream_t>(stream)>>>(x);
    return int(cudaGetLastError());
}
extern "C" const char* name_of_source() { return __FILE__; }
""",
    "torch-ext/binding.cpp": """\
#include "registration.h"
#if !defined(CUDA_KERNEL) || !defined(USE_CUDA)
#error "as kernel-builder defines them"
#endif
REGISTER_EXTENSION(TORCH_EXTENSION_NAME)
""",
}


def build(package: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    return build_package(package, "cuda", "CUDA_HOME", *arguments, **environment)


def output(tool: str, *arguments: str | Path) -> str:
    return subprocess.run([tool, *arguments], capture_output=True, text=True, check=True).stdout


@needs_cuda_toolchain
def test_a_variant_with_a_fat_binary(first_build, library):
    run = first_build
    assert run.returncode == 0, run.stderr
    assert run.stderr.strip() == "", "warnings"
    variant = Path(run.stdout.strip())
    assert variant.name == "torch-stable-abi211-cu130-x86_64-linux"
    metadata = json.loads((variant / "metadata.json").read_text())
    assert metadata["backend"] == {"type": "cuda", "archs": ARCHS}
    assert library.stem.removesuffix(".abi3") == metadata["id"]

    takes_apart = str(CUDA_TOOLKIT / "bin" / "cuobjdump")
    machine_code = re.findall(r"sm_(\w+)\.cubin", output(takes_apart, "--list-elf", library))
    assert sorted(machine_code) == ["100", "89", "90a"]
    assert re.findall(r"sm_(\w+)\.ptx", output(takes_apart, "--list-ptx", library)) == ["89"]

    dynamic = output("readelf", "--wide", "--dynamic", library)
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", dynamic))
    assert {"libcudart.so.13", "libtorch.so"} <= needed
    assert not any(name.startswith(("libpython", "libstdc++", "libtorch_", "libcuda.so")) for name in needed)
    assert "RPATH" not in dynamic and "RUNPATH" not in dynamic
    # Sources are named as build.toml names them.
    assert b"\0twice.cu\0" in library.read_bytes() and str(variant.parents[1]).encode() not in library.read_bytes()


@needs_cuda_toolchain
def test_the_library_loads_with_an_old_glibc(library):
    from kernel_abi_check import ObjectFile

    assert ObjectFile(str(library)).check_manylinux("manylinux_2_28") == []
    assert ObjectFile(str(library)).check_python_abi("3.9") == []


# Loaded as _ops.py does it; the launch is the GPU's, where there is one.
LOAD = """
import ctypes, sys, torch
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader

path = sys.argv[1]
name = path.rsplit("/", 1)[1].removesuffix(".abi3.so")
module = module_from_spec(spec_from_loader(name, ExtensionFileLoader(name, path)))
assert module.__name__ == name
runtimes = {line.split()[-1] for line in open("/proc/self/maps") if "libcudart" in line}
assert len(runtimes) == 1, runtimes
if torch.cuda.is_available():
    x = torch.arange(512, dtype=torch.float32, device="cuda")
    stream = torch.cuda.current_stream().cuda_stream
    assert ctypes.CDLL(path).launch_twice(ctypes.c_void_p(x.data_ptr()), 2, ctypes.c_void_p(stream)) == 0
    assert torch.equal(x.cpu(), 2 * torch.arange(512, dtype=torch.float32))
"""


@needs_cuda_toolchain
@pytest.mark.skipif(torch.version.cuda is None, reason="torch is no build for CUDA: it brings no runtime")
def test_it_loads_with_the_runtime_that_torch_brings(library):
    output(sys.executable, "-c", LOAD, str(library))


@needs_cuda_toolchain
def test_a_changed_header_compiles_its_sources_again(package):
    """For one of the chips."""
    run = build(package, "--archs", "9.0a")
    assert run.returncode == 0, run.stderr
    variant = Path(run.stdout.strip())
    assert json.loads((variant / "metadata.json").read_text())["backend"]["archs"] == ["9.0a"]
    (library,) = variant.glob("*.so")
    assert re.findall(r"sm_(\w+)\.cubin", output(CUDA_TOOLKIT / "bin" / "cuobjdump", "--list-elf", library)) == ["90a"]
    (package / "twice.h").write_text('#error "no such luck"\n')
    run = build(package, "--archs", "9.0a")
    assert run.returncode == 1 and "no such luck" in run.stderr


@needs_cuda_toolchain
def test_without_a_host_compiler_one_line_says_so(package):
    run = build(package, CXX="no-such-compiler")
    assert run.returncode == 1
    assert run.stderr == (
        "build.py: no C++ compiler (no-such-compiler): install g++ (Debian and Ubuntu: g++, Fedora: gcc-c++)\n"
    )


@needs_cuda_toolchain
@pytest.mark.parametrize(
    "change, words",
    [
        (('"twice.cu"]', '"twice.hip"]'), "twice.hip: the cuda backend compiles .cu and .cpp files"),
        (('cuda-capabilities = ["9.0a", "8.9+PTX", "10.0"]\n', ""), "[kernel.twice] needs cuda-capabilities"),
    ],
    ids=["ending", "no-capabilities"],
)
def test_what_cannot_be_built_is_said_in_one_line(package, change, words):
    (package / "twice.hip").write_text("")
    table = (package / "build.toml").read_text()
    assert change[0] in table
    (package / "build.toml").write_text(table.replace(*change))
    run = build(package)
    assert run.returncode == 1 and run.stderr == f"build.py: build.toml: {words}\n"


def test_without_cuda_one_line_says_what_brings_it(package, tmp_path):
    run = build(package, CUDA_HOME=str(tmp_path / "nowhere"))
    assert run.returncode == 1
    assert run.stderr.count("\n") == 1 and "scripts/cuda_toolchain.py" in run.stderr


@pytest.fixture
def script(monkeypatch, tmp_path):
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setattr(cuda_toolchain, "PREFIX", tmp_path / "build" / ".cuda")
    return cuda_toolchain


def test_a_broken_download_leaves_nothing(script, monkeypatch, tmp_path, capsys):
    def install(packages, target):
        (target / "nvidia").mkdir(parents=True)
        raise script.ToolchainError("pip failed: no network")

    monkeypatch.setattr(script, "install", install)
    assert script.main() == 1
    assert capsys.readouterr().err == "cuda_toolchain.py: pip failed: no network\n"
    assert list((tmp_path / "build").iterdir()) == []


def test_pips_last_line_says_what_failed(script, tmp_path):
    with pytest.raises(script.ToolchainError, match="^pip failed: .*no-such-wheel.*") as failure:
        script.install([str(tmp_path / "no-such-wheel.whl")], tmp_path / "target")
    assert "\n" not in str(failure.value)


def test_it_is_fetched_once_with_the_links_that_cmake_wants(script, monkeypatch, capsys):
    def install(packages, target):
        (target / "nvidia" / "cu13" / "lib").mkdir(parents=True)
        (target / "nvidia" / "cu13" / "lib" / "libcudart.so.13").write_text("the runtime")

    monkeypatch.setattr(script, "install", install)
    assert script.main() == 0
    toolkit = Path(capsys.readouterr().out.strip())
    assert (toolkit / "lib64" / "libcudart.so").read_text() == "the runtime"
    monkeypatch.setattr(script, "install", lambda *args: pytest.fail("it is there"))
    assert script.main() == 0 and capsys.readouterr().out.strip() == str(toolkit)


def test_an_installed_cuda_is_taken_as_it_is(script, monkeypatch, capsys):
    monkeypatch.setenv("CUDA_HOME", "/opt/cuda")
    monkeypatch.setattr(script, "install", lambda *args: pytest.fail("nothing is to be fetched"))
    assert script.main() == 0 and "/opt/cuda" in capsys.readouterr().out
