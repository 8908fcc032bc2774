"""The worked example in examples/increment: its README's commands work as they stand, its excerpts are the code."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.settings import ROOT

EXAMPLE = ROOT / "examples" / "increment"

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
    programs.mkdir()
    # A script and not a link: an interpreter started through a link outside its virtual environment leaves it.
    python = programs / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    kept = {
        name: value
        for name, value in os.environ.items()
        if name != "LOCAL_KERNELS" and not name.startswith(("PYTEST_", "GIT_"))
    }
    return kept | {"PATH": f"{programs}{os.pathsep}{kept.get('PATH', os.defpath)}"}


@pytest.mark.skipif(not sys.platform.startswith("linux") or shutil.which("bash") is None, reason="needs Linux and bash")
def test_the_commands_of_the_readme(checkout: Path, tmp_path: Path):
    commands = blocks("bash")
    assert len(commands) == 4
    # One shell, as the reader has: an export in one block is seen by the next ones.
    script = "set -euo pipefail\n" + "".join(f"echo '== block {i}'\n{block}" for i, block in enumerate(commands))
    run = subprocess.run(
        ["bash", "-c", script],
        cwd=checkout,
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
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
    assert passed and int(passed[1]) >= 10, summary
    assert not re.search("failed|skipped|error", summary), summary
    rows = [line.split()[:2] for line in benchmark.splitlines()]
    assert ["small", "increment"] in rows and ["large", "increment"] in rows


@pytest.mark.parametrize("language, endings", [("cpp", (".h", ".cpp")), ("python", (".py",)), ("toml", (".toml",))])
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
        if path.suffix in (".h", ".cpp")
    }
    assert listed == present
