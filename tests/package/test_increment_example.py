"""The worked example in examples/increment: its README's commands work as they stand, its excerpts are the code, and
its three variants compute what they should, ROCm's in the simulator."""

import json
import mmap
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.harness.simulated_rocm import FORMATS, SimulatedRocm
from tests.settings import CUDA_TOOLKIT, ROCM_HEADERS, ROOT, needs_cuda_toolchain, needs_rocm_toolchain

EXAMPLE = ROOT / "examples" / "increment"
ARCHS = tuple(FORMATS)

# Not of a checkout: what builds and runs leave behind.
LEFT_OVERS = ("build", "__pycache__", ".git", ".venv", ".pytest_cache")


def blocks(language: str) -> list[str]:
    """The README's fenced blocks of one language, in order."""
    text = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def checkout_files() -> list[Path]:
    """What a commit of the working tree would hold; without git, every file that is no left-over."""
    try:
        listed = subprocess.run(
            ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        paths = [Path(name) for name in listed.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        paths = [path.relative_to(ROOT) for path in ROOT.rglob("*")]
        paths = [path for path in paths if not set(path.parts) & set(LEFT_OVERS)]
    return [path for path in paths if (ROOT / path).is_file()]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the repository without anything built: the commands must not lean on an earlier build."""
    copy = tmp_path / "repository"
    for path in checkout_files():
        target = copy / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, target)
    return copy


def environment(tmp_path: Path) -> dict[str, str]:
    """The reader's: `python` is the interpreter of this test, and no variable of this run shines through."""
    programs = tmp_path / "bin"
    programs.mkdir(exist_ok=True)
    # A script and not a link: an interpreter started through a link outside its virtual environment leaves it.
    python = programs / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    kept = {
        name: value
        for name, value in os.environ.items()
        if name != "LOCAL_KERNELS" and not name.startswith(("PYTEST_", "GIT_"))
    }
    # Where the scripts unpack the toolchains, which a copy of the checkout does not have.
    kept |= {"ROCM_PATH": str(ROCM_HEADERS.parent), "CUDA_HOME": str(CUDA_TOOLKIT), "INCREMENT_BACKEND": "cpu"}
    return kept | {"PATH": f"{programs}{os.pathsep}{kept.get('PATH', os.defpath)}"}


def run_in(checkout: Path, tmp_path: Path, script: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        ["bash", "-c", "set -euo pipefail\n" + script],
        cwd=checkout,
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1200,
    )


needs_bash = pytest.mark.skipif(
    not sys.platform.startswith("linux") or shutil.which("bash") is None, reason="needs Linux and bash"
)


@needs_bash
def test_the_commands_of_the_readme(checkout: Path, tmp_path: Path):
    """But those of the GPU variants, which other tests run where their toolchains are."""
    commands = [block for block in blocks("bash") if "--backend rocm" not in block]
    assert len(commands) == 4
    # One shell, as the reader has: an export in one block is seen by the next ones.
    run = run_in(checkout, tmp_path, "".join(f"echo '== block {i}'\n{block}" for i, block in enumerate(commands)))
    print(run.stdout)
    assert run.returncode == 0, run.stdout[-3000:]
    _, build, use, test, benchmark = re.split(r"^== block \d\n", run.stdout, flags=re.MULTILINE)

    # The compiler may warn before it, on the same stream.
    variant = Path(build.splitlines()[-1])
    assert variant.parent == (checkout / "examples/increment/build").resolve()
    assert (variant / "metadata.json").is_file()
    assert use.splitlines()[-1] == "tensor([1., 2., 3., 4.])"
    summary = test.splitlines()[-1]
    passed = re.search(r"(\d+) passed", summary)
    assert passed and int(passed[1]) >= 40, summary
    assert not re.search("failed|error", summary), summary
    assert re.findall(r"(\d+) skipped", summary) == ["1"], "a GPU's stream alone"
    rows = [line.split()[:2] for line in benchmark.splitlines()]
    assert ["small", "increment"] in rows and ["large", "increment"] in rows


def gpu_variant(backend: str, checkout: Path, tmp_path: Path) -> Path:
    """Built by the README's own command."""
    (block,) = (block for block in blocks("bash") if f"--backend {backend}" in block)
    (command,) = (line for line in block.splitlines() if f"--backend {backend}" in line)
    run = run_in(checkout, tmp_path, command)
    assert run.returncode == 0, run.stdout[-3000:]
    return Path(run.stdout.splitlines()[-1])


@needs_bash
@needs_rocm_toolchain
def test_the_rocm_variant_in_the_simulator(checkout: Path, tmp_path: Path):
    """Every byte, both kernels, both chips; the simulator faults any access outside of x and out."""
    variant = gpu_variant("rocm", checkout, tmp_path)
    assert json.loads((variant / "metadata.json").read_text())["backend"] == {"type": "rocm", "archs": list(ARCHS)}
    simulated = SimulatedRocm.shared(variant, ROCM_HEADERS)
    simulated.runtime.configure()
    kernel, launches = simulated.kernel, simulated.runtime.launches
    for arch in ARCHS:
        with simulated.runtime.on(arch):
            # (count, where x and out start, the kernel that takes it, its blocks)
            for count, x_at, out_at, name, blocks_ in [
                (1, 0, 0, "increment_vectors", 1),
                (3, 0, 4, "increment_vectors", 1),
                (1024, 0, 0, "increment_vectors", 1),
                (2055, 8, 0, "increment_vectors", 3),
                (1, 1, 0, "increment_elements", 1),
                (515, 0, 3, "increment_elements", 3),
            ]:
                x = torch.randn(x_at + count)[x_at:]
                x[0] = -1.0  # gives +0, not -0
                buffer = torch.full((out_at + count + 9,), torch.nan)
                before = buffer.view(torch.int32).clone()
                kernel.increment(x, out=buffer[out_at : out_at + count])
                before[out_at : out_at + count] = (x + 1).view(torch.int32)
                assert torch.equal(buffer.view(torch.int32), before), (arch, count, x_at, out_at)
                assert name in launches[-1][0] and launches[-1][1:3] == ((blocks_, 1, 1), (256, 1, 1))
            launched = len(launches)
            kernel.increment(torch.empty(3, 0))
            assert len(launches) == launched, "nothing to do, nothing launched"

            # More threads than HIP counts. Nobody touches the memory, so no machine has to have it.
            size, private = 4 * (1 << 32) + 8, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE
            x, out = (torch.frombuffer(mmap.mmap(-1, size, flags=private), dtype=torch.float32)[1:] for _ in range(2))
            with pytest.raises(RuntimeError, match="increment: x has more elements than one launch takes"):
                kernel.increment(x, out=out)
            assert len(launches) == launched


@needs_bash
@needs_cuda_toolchain
def test_the_cuda_variant(checkout: Path, tmp_path: Path):
    """Machine code for every chip, with accesses of 128 bits; where there is such a GPU, the example's tests run."""
    variant = gpu_variant("cuda", checkout, tmp_path)
    archs = json.loads((variant / "metadata.json").read_text())["backend"]["archs"]
    (library,) = variant.glob("*.so")
    for arch in archs:
        command = [CUDA_TOOLKIT / "bin" / "cuobjdump", "-sass", "-arch", f"sm_{arch.replace('.', '')}", library]
        sass = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert "LDG.E.128" in sass and "STG.E.128" in sass, arch
    if torch.cuda.is_available() and torch.version.cuda:
        local = f"export LOCAL_KERNELS=rocm-fp8-kernels/increment={variant.parents[1]} INCREMENT_BACKEND=cuda"
        run = run_in(checkout, tmp_path, f"{local}\npython -m pytest examples/increment/tests")
        assert run.returncode == 0, run.stdout[-3000:]


@pytest.mark.parametrize(
    "language, endings", [("cpp", (".h", ".cpp", ".hip", ".cu")), ("python", (".py",)), ("toml", (".toml",))]
)
def test_the_excerpts_of_the_readme(language: str, endings: tuple[str, ...]):
    sources = [
        path.read_text(encoding="utf-8")
        for path in sorted(EXAMPLE.rglob("*"))
        if path.suffix in endings and not set(path.relative_to(EXAMPLE).parts) & set(LEFT_OVERS)
    ]
    excerpts = blocks(language)
    assert excerpts
    for excerpt in excerpts:
        assert any(excerpt in source for source in sources), f"no file of the example holds:\n{excerpt}"


def test_build_toml_lists_every_source():
    import tomllib

    table = tomllib.loads((EXAMPLE / "build.toml").read_text(encoding="utf-8"))
    listed = {name for section in [table["torch"], *table["kernel"].values()] for name in section["src"]}
    present = {
        path.relative_to(EXAMPLE).as_posix()
        for folder in ("increment", "torch-ext")
        for path in (EXAMPLE / folder).rglob("*")
        if path.suffix in (".h", ".cpp", ".hip", ".cu")
    }
    assert listed == present
