"""What the built package promises to the `kernels` library, to torch and to older systems."""

import ast
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

from problems.operators import comm_operators, functions, operators, registered
from tests.settings import ROOT

REPO_ID = "rocm-fp8-kernels/rocm-fp8-kernels"


@pytest.fixture(scope="module")
def metadata(variant) -> dict:
    return json.loads((variant / "metadata.json").read_text())


@pytest.fixture(scope="module")
def library(variant) -> Path:
    found = list(variant.glob("*.so"))
    assert len(found) == 1, "a variant holds one library"
    return found[0]


def run(*command, env=None) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout


# --- build.toml and metadata.json ---


def test_build_toml_is_what_kernels_parses():
    from kernels._rust import Build

    table = tomllib.loads((ROOT / "build.toml").read_text())
    parsed = Build.open(str(ROOT))
    assert [str(b).split(".")[-1].lower() for b in parsed.general.backends] == table["general"]["backends"]
    assert table["general"]["hub"]["repo-id"] == REPO_ID
    # `git clone` takes it; the card and metadata.json show it.
    assert re.fullmatch(r"https://github\.com/[\w-]+/rocm-fp8-kernels", table["general"]["source"])


@pytest.mark.skipif(shutil.which("nix-instantiate") is None, reason="needs nix-instantiate (Debian: nix-bin)")
def test_nix_builds_the_cpu_variant_on_x86_64_alone():
    """flake.nix on a stand-in for kernel-builder, whose sets of versions look like these."""
    both, x86 = ["x86_64-linux", "aarch64-linux"], ["x86_64-linux"]
    cpu, metal = {"torchVersion": "2.13", "cpu": True}, {"metal": True, "systems": ["aarch64-darwin"]}
    cuda = {"cudaVersion": "13.0", "systems": both, "bundleBuild": True}
    versions = [cpu | {"systems": [*both, "aarch64-darwin"]}, cuda, {"rocmVersion": "7.2", "systems": x86}, metal]
    expression = f"""
        let outputs = (import {ROOT}/flake.nix).outputs {{
          self = null;
          kernel-builder.lib.genKernelFlakeOutputs = arguments: arguments;
        }}; in outputs.torchVersions (builtins.fromJSON {json.dumps(json.dumps(versions))})"""
    command = ["nix-instantiate", "--eval", "--strict", "--json", "-E", expression]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert found == [cpu | {"systems": x86}, *versions[1:]]


PACKAGES = pytest.mark.parametrize("package", [ROOT, ROOT / "examples" / "increment"], ids=["package", "increment"])
# In which folders a backend's own code lies.
FOLDERS = {"cpu": "cpu", "cuda": "cuda", "rocm": "hip"}


def sources(package: Path, *backends: str) -> list[list[str]]:
    """Of [torch], and of each section of the backends."""
    table = tomllib.loads((package / "build.toml").read_text())
    assert set(table["general"]["backends"]) == set(FOLDERS)
    return [table["torch"]["src"], *(s["src"] for s in table["kernel"].values() if s["backend"] in backends)]


@PACKAGES
def test_build_toml_lists_every_header(package):
    # A Nix build sees the listed files only; what a file includes must be listed beside it.
    assert missing_headers(package, {name for names in sources(package, *FOLDERS) for name in names}) == []


@PACKAGES
@pytest.mark.parametrize("backend", FOLDERS)
def test_the_sections_of_a_backend_list_its_headers_and_no_others(package, backend):
    parts = sources(package, backend)
    listed = {name for names in parts for name in names}
    assert all(len(names) == len(set(names)) for names in parts)
    foreign = set(FOLDERS.values()) - {FOLDERS[backend]}
    assert [name for name in listed if foreign & set(Path(name).parts)] == []
    # Under #if a shared header includes other vendors' (common/vendor.h).
    missing = [text for text in missing_headers(package, listed) if not foreign & set(text.split(" ")[-1].split("/"))]
    assert missing == []


def missing_headers(package: Path, listed: set[str]) -> list[str]:
    """What a listed file includes by its path, without being listed itself."""
    found = []
    for name in sorted(listed):
        text = (package / name).read_text()
        for included in re.findall(r'^\s*#\s*include\s*"([^"]+)"', text, re.MULTILINE):
            path = ((package / name).parent / included).resolve()
            # The build generates registration.h.
            if included != "registration.h" and (
                not path.is_file() or str(path.relative_to(package.resolve())) not in listed
            ):
                found.append(f"{name} includes {included}")
    return found


def test_a_header_that_is_not_listed_is_found(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.cpp").write_text('#include "registration.h"\n#include "b.h"\n  # include "../c.h"\n')
    (tmp_path / "src" / "b.h").write_text("")
    (tmp_path / "c.h").write_text("#include <vector>\n")
    assert missing_headers(tmp_path, {"src/a.cpp", "src/b.h", "c.h"}) == []
    assert missing_headers(tmp_path, {"src/a.cpp", "c.h"}) == ["src/a.cpp includes b.h"]
    (tmp_path / "c.h").unlink()
    assert missing_headers(tmp_path, {"src/a.cpp", "src/b.h"}) == ["src/a.cpp includes ../c.h"]


def test_metadata_is_what_kernels_parses(variant, metadata):
    from kernels._rust import Digest, DigestAlgorithm, Metadata

    parsed = Metadata.read_from_file(str(variant / "metadata.json"))
    table = tomllib.loads((ROOT / "build.toml").read_text())
    assert str(parsed.name) == table["general"]["name"]
    assert (parsed.version, parsed.license) == (table["general"]["version"], table["general"]["license"])
    # Raises where a file is missing, unknown or different.
    assert metadata["source"] == parsed.source == table["general"]["source"]
    parsed.digest.validate(Digest.hash_variant(DigestAlgorithm.SHA256, variant))
    assert set(metadata["digest"]["files"]) == {
        str(path.relative_to(variant))
        for path in variant.rglob("*")
        if path.is_file() and path.name != "metadata.json" and "__pycache__" not in path.parts
    }


def test_the_digest_notices_a_changed_file(variant, tmp_path):
    from kernels._rust import Digest, DigestAlgorithm, DigestValidationError, Metadata

    copy = shutil.copytree(variant, tmp_path / variant.name, ignore=shutil.ignore_patterns("__pycache__"))
    with open(copy / "ops" / "gemm.py", "a") as file:
        file.write("\n")
    digest = Metadata.read_from_file(str(copy / "metadata.json")).digest
    with pytest.raises(DigestValidationError, match="ops/gemm.py"):
        digest.validate(Digest.hash_variant(DigestAlgorithm.SHA256, copy))


def test_the_variants_name_says_what_it_is(variant, metadata):
    backend = metadata["backend"]["type"]
    stable_abi = tomllib.loads((ROOT / "build.toml").read_text())["torch"]["stable-abi"][backend]
    start, end = f"torch-stable-abi{stable_abi.replace('.', '')}-{backend[:2]}", "-x86_64-linux"
    assert variant.name.startswith(start) and variant.name.endswith(end)


# --- one name for the library, its module and its operators ---


def test_the_namespace_is_unique_and_one_everywhere(kernel, metadata, library):
    name = metadata["id"]
    assert re.fullmatch(rf"_rocm_fp8_kernels_{metadata['backend']['type']}_[0-9a-f]{{7}}(_dirty)?", name)
    assert library.name == f"{name}.abi3.so"
    assert kernel._ops.ops is getattr(torch.ops, name)
    assert kernel._ops.add_op_namespace_prefix("x") == f"{name}::x"
    of_python = {"fp8_linear", "fused_moe", "weight_sum"}  # for programs that are exported or compiled
    others = {"reread_environment", "call_count", "comm_open", "comm_close", "comm_check"}
    assert registered(kernel).keys() - operators(kernel).keys() == others | of_python


# --- the Python side ---


def test_every_operator_has_its_function_its_count_and_its_reference(kernel):
    names = functions(kernel)
    assert len(names) > 10
    assert names <= set(kernel.__all__) and names <= set(kernel.reference.__all__) and names <= set(kernel.ops.__all__)
    counts = kernel.call_counts()
    assert counts.keys() == names | comm_operators(kernel)
    assert all(hasattr(kernel.comm.Communicator, name) for name in comm_operators(kernel))
    assert min(counts.values()) >= 0, "-1: torch_binding.cpp's call_count does not know it"


def test_all_lists_what_there_is(kernel):
    for module in (kernel, kernel.ops, kernel.reference):
        assert len(set(module.__all__)) == len(module.__all__)
        assert all(hasattr(module, name) for name in module.__all__)
    assert set(kernel.ops.__all__) - set(kernel.__all__) == {"backend"}


def test_public_functions_say_what_they_do(kernel):
    assert kernel.__doc__
    for name in kernel.__all__:
        member = getattr(kernel, name)
        if not inspect.isfunction(member):
            continue
        assert member.__doc__, name
        for parameter in inspect.signature(member).parameters:
            elsewhere = any(words in member.__doc__ for words in ("as in rms_norm_fp8", "as linear_abde_i8"))
            assert parameter in member.__doc__ or elsewhere, f"{name}: {parameter}"


def test_the_reference_takes_the_same_arguments(kernel):
    for name in functions(kernel):
        own, reference = (inspect.signature(getattr(module, name)).parameters for module in (kernel, kernel.reference))
        assert [(p.name, p.kind, p.default) for p in own.values()] == [
            (p.name, p.kind, p.default) for p in reference.values()
        ]


# --- the library: what it needs of the system, of Python and of torch ---


def test_it_loads_on_older_systems_and_with_any_python(library):
    from kernel_abi_check import BinaryFormat, ObjectFile

    file = ObjectFile(str(library))
    assert file.format() == BinaryFormat.ELF
    assert file.check_manylinux("manylinux_2_28") == []
    assert file.check_python_abi("3.9") == []


def test_it_needs_the_systems_libraries_and_one_of_torchs(library, metadata):
    if shutil.which("readelf") is None:
        pytest.fail("readelf is missing: install binutils")
    dynamic = run("readelf", "-dW", str(library))
    needed = set(re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic))
    system = {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "libstdc++.so.6", "libpthread.so.0", "ld-linux-x86-64.so.2"}
    # An entry that `import torch` has satisfied: without it Python, which opens modules with RTLD_LOCAL, finds none
    # of the stable ABI's functions. Any other library of torch or Python would tie the build to one version.
    runtime = {"cpu": set(), "rocm": {"libamdhip64.so.7"}, "cuda": {"libcudart.so.13"}}
    backend = metadata["backend"]["type"]
    # libtorch.so brings libtorch_hip.so or libtorch_cuda.so, and with it the stream functions.
    torchs = {"libtorch_cpu.so"} if backend == "cpu" else {"libtorch.so"}
    assert torchs <= needed
    assert needed <= system | torchs | runtime[backend]
    assert not re.search(r"\((RPATH|RUNPATH)\)", dynamic), "a path of the machine that built it"


def test_only_the_stable_abi_of_torch_is_used(library):
    undefined = run("nm", "-D", "--undefined-only", str(library)).split("\n")
    names = [line.split()[-1].split("@")[0] for line in undefined if line]
    torchs = [name for name in names if re.search(r"torch|aoti|c10|^_ZN2at", name)]
    assert torchs and all(name.startswith(("aoti_torch_", "torch_")) for name in torchs), torchs


def test_no_function_is_shared_between_instruction_sets(variant, device):
    """A weak function (a template's or inline function's) of two objects becomes one, whichever the linker takes: the
    AVX-512 one, and every processor without it stops. So objects with flags of their own may hold none."""
    if device.type != "cpu":
        pytest.skip("the loaded variant has no CPU paths")
    if shutil.which("nm") is None:
        pytest.fail("nm is missing: install binutils")
    table = tomllib.loads((ROOT / "build.toml").read_text())
    objects = variant.parent / ".work" / "cpu" / "objects"
    seen = 0
    for section in table["kernel"].values():
        if not any(flag.startswith("-mavx") for flag in section.get("cxx-flags", [])):
            continue
        for source in section["src"]:
            if source.endswith(".h"):
                continue
            file = objects / f"{source}.o"
            assert file.is_file(), f"{file} is missing: python scripts/build.py keeps its objects"
            symbols = run("nm", "-C", "--defined-only", str(file))
            weak = re.findall(r"^\S+ [Wu] (.+)$", symbols, re.MULTILINE)
            assert not weak, f"{source}: {weak[:4]}"
            seen += 1
    assert seen >= 2 * 3, "each operator has an AVX2 and an AVX-512 object"


# --- loading ---

LOAD = """
import socket, sys

def refuse(*args, **kwargs):
    raise AssertionError("the network was asked for")

socket.socket.connect = socket.getaddrinfo = socket.create_connection = refuse
import torch
from kernels import get_kernel

kernel = get_kernel({repo_id!r}, version=1, backend={backend!r})
x = torch.ones(2, 8, dtype=torch.bfloat16, device={device!r})
print(kernel.rms_norm(x, x[0])[0, 0].item(), kernel.__file__, "transformers" in sys.modules)
"""


def test_get_kernel_loads_it_without_a_network(variant, metadata, device, tmp_path):
    """And without transformers, which takes longer than all the rest."""
    backend = metadata["backend"]["type"]
    code = LOAD.format(repo_id=REPO_ID, backend="cpu" if backend == "cpu" else None, device=str(device))
    env = os.environ | {
        "LOCAL_KERNELS": f"{REPO_ID}={variant.parents[1]}",
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(tmp_path),  # nothing in a cache either
    }
    value, path, with_transformers = run(sys.executable, "-c", code, env=env).split()
    assert float(value) == 1.0 and with_transformers == "False"
    assert Path(path).resolve() == (variant / "__init__.py").resolve()


# Room -> the rooms that it may import from, as it is imported. At its call an exported program asks `operators`, too.
ARROWS = {
    "_ops": "",
    "intact": "",
    "ops": "_ops",
    "reference": "ops",
    "operators": "ops reference",
    "comm": "ops",
    "layers": "ops reference operators",
    "models": "_ops ops reference operators comm layers",
    "__init__": "intact ops reference operators comm layers models",
}


def test_arrows_between_the_packages_rooms_point_one_way():
    root = ROOT / "torch-ext" / "rocm_fp8_kernels"
    for path in root.rglob("*.py"):
        *folders, file = path.relative_to(root).with_suffix("").parts
        room = [*folders, file][0]
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ImportFrom) and node.level:
                module = folders[: len(folders) + 1 - node.level] + (node.module or "").split(".")
                first = [part for part in module if part][:1]
                known = set(first or (each.name for each in node.names)) - {room}
                assert known <= set(ARROWS[room].split()), (path, known)
