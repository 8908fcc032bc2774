"""scripts/build.py --backend rocm on a package of one small kernel: a fat binary, cross-built without a GPU."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from scripts import machine_code, rocm_toolchain
from tests.package.small_package import build_package, build_toml
from tests.settings import needs_rocm_toolchain

ARCHS = ["gfx942", "gfx950"]

SOURCES = {
    "build.toml": build_toml("rocm", 'rocm-archs = ["gfx950", "gfx942"]\nsrc = ["twice.hip"]\n'),
    "twice.hip": """\
#include <hip/hip_runtime.h>
__global__ void twice(float* x) { x[blockIdx.x * blockDim.x + threadIdx.x] *= 2; }
extern "C" int launch_twice(float* x, int blocks, void* stream) {
    twice<<<blocks, 256, 0, static_cast<hipStream_t>(stream)>>>(x);
    return int(hipGetLastError());
}
""",
    "torch-ext/binding.cpp": '#include "registration.h"\nREGISTER_EXTENSION(TORCH_EXTENSION_NAME)\n',
}


def build(package: Path, **environment: str) -> subprocess.CompletedProcess:
    return build_package(package, "rocm", "ROCM_PATH", **environment)


@needs_rocm_toolchain
def test_a_variant_with_a_fat_binary(first_build, library):
    run = first_build
    assert run.returncode == 0, run.stderr
    variant = Path(run.stdout.strip())
    assert re.fullmatch(r"torch-stable-abi211-rocm7\d-x86_64-linux", variant.name)
    metadata = json.loads((variant / "metadata.json").read_text())
    assert metadata["backend"] == {"type": "rocm", "archs": ARCHS}
    assert library.stem.removesuffix(".abi3") == metadata["id"]
    assert sorted(machine_code.code_objects(library)) == ARCHS

    dynamic = subprocess.run(["llvm-readelf-22", "-d", str(library)], capture_output=True, text=True, check=True).stdout
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", dynamic))
    assert {"libamdhip64.so.7", "libtorch.so"} <= needed
    assert not any(name.startswith(("libpython", "libstdc++", "libtorch_")) for name in needed)


@needs_rocm_toolchain
def test_the_library_loads_with_an_old_glibc(library):
    from kernel_abi_check import ObjectFile

    assert ObjectFile(str(library)).check_manylinux("manylinux_2_28") == []


@needs_rocm_toolchain
def test_a_failing_kernel_shows_the_compilers_words(package):
    (package / "twice.hip").write_text('#error "no such luck"\n')
    run = build(package)
    assert run.returncode == 1 and "no such luck" in run.stderr
    assert not list((package / "build").glob("torch-*"))


def test_without_rocm_one_line_says_what_brings_it(package, tmp_path):
    run = build(package, ROCM_PATH=str(tmp_path / "nowhere"))
    assert run.returncode == 1
    assert run.stderr.count("\n") == 1 and "scripts/rocm_toolchain.py" in run.stderr


@pytest.fixture
def script(monkeypatch):
    monkeypatch.delenv("ROCM_PATH", raising=False)
    return rocm_toolchain


def test_a_broken_download_leaves_nothing(script, monkeypatch, tmp_path, capsys):
    def run(command, **kwargs):
        if "download" in command:
            raise script.ToolchainError("apt-get failed: no network")
        return "http://mirror.invalid/debian|bookworm\n"

    monkeypatch.setattr(script, "run", run)
    monkeypatch.setattr(script, "install_compiler", lambda: None)
    monkeypatch.setattr(script, "PREFIX", tmp_path / "build" / ".rocm")
    assert script.main() == 1
    assert capsys.readouterr().err == "rocm_toolchain.py: apt-get failed: no network\n"
    assert list((tmp_path / "build").iterdir()) == []


def test_an_installed_rocm_is_taken_as_it_is(script, monkeypatch, capsys):
    monkeypatch.setenv("ROCM_PATH", "/opt/rocm")
    monkeypatch.setattr(script, "run", lambda *args, **kwargs: pytest.fail("nothing is to be fetched"))
    assert script.main() == 0 and "/opt/rocm" in capsys.readouterr().out
