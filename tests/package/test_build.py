"""scripts/build.py on a package of two small sources: what it compiles, what it says, what it leaves behind."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.package.small_package import BUILD, build_toml, write_package

VARIANT = f"torch-stable-abi211-cpu-{os.uname().machine}-linux"

BUILD_TOML = build_toml("cpu", 'cxx-flags = ["-O1"]\nsrc = ["answer.cpp", "answer.h"]\n')

SOURCES = {
    "build.toml": BUILD_TOML,
    "answer.h": "#pragma once\nint answer();\n",
    "answer.cpp": '#include "answer.h"\nint answer() { return 42; }\n',
    # A Python module, so that no torch header slows the test down.
    "torch-ext/binding.cpp": '#include "registration.h"\n#include "../answer.h"\n'
    "REGISTER_EXTENSION(TORCH_EXTENSION_NAME)\nint used() { return answer(); }\n",
}

# Passes everything on to the real compiler. Notes what it compiles, and waits where the test asks for it.
COMPILER = """\
#!/bin/sh
for word; do
    case "$word" in
        -c) compiles=1 ;;
        */answer.cpp | */binding.cpp) source="$word" ;;
    esac
done
if [ -n "$compiles" ] && [ -n "$source" ]; then
    echo "$(basename "$source")" >> "{log}"
    if [ -e "{wait}" ]; then
        # No child process: a shell that waits for one may miss a SIGINT that comes as the child ends.
        : > "{wait}.reached"
        exec sleep 60
    fi
fi
exec {compiler} "$@"
"""


class Package:
    """A source tree, and build.py run on it with a compiler that can be watched."""

    def __init__(self, root: Path, compiler: str):
        self.root, self.source = root, root / "package"
        self.log, self.wait = root / "compiled", root / "wait"
        write_package(SOURCES, self.source)
        self.cxx = root / "cxx"
        self.cxx.write_text(COMPILER.format(log=self.log, wait=self.wait, compiler=compiler))
        self.cxx.chmod(0o755)

    def write(self, name: str, text: str) -> None:
        (self.source / name).write_text(text)

    def start(self, *arguments: str, **env: str) -> subprocess.Popen:
        # Nothing above the temporary folder is taken for the package's repository.
        env = os.environ | {"CXX": str(self.cxx), "GIT_CEILING_DIRECTORIES": str(self.root)} | env
        command = [sys.executable, str(BUILD), "--source", str(self.source), *arguments]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=env, stdout=pipe, stderr=pipe, text=True, start_new_session=True)

    def build(self, *arguments: str, **env: str) -> subprocess.CompletedProcess:
        self.log.unlink(missing_ok=True)
        process = self.start(*arguments, **env)
        out, err = process.communicate(timeout=900)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def good_build(self) -> None:
        done = self.build()
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == str(self.variant)

    @property
    def compiled(self) -> list[str]:
        return sorted(self.log.read_text().split()) if self.log.exists() else []

    @property
    def variant(self) -> Path:
        return self.source / "build" / VARIANT

    def contents(self) -> dict[str, bytes]:
        return {str(p.relative_to(self.variant)): p.read_bytes() for p in self.variant.rglob("*") if p.is_file()}

    def assert_whole(self) -> None:
        from kernels._rust import Digest, DigestAlgorithm, Metadata

        digest = Metadata.read_from_file(str(self.variant / "metadata.json")).digest
        digest.validate(Digest.hash_variant(DigestAlgorithm.SHA256, self.variant))


@pytest.fixture
def package(tmp_path) -> Package:
    compiler = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")
    if compiler is None:
        pytest.fail("no C++ compiler: install g++")
    return Package(tmp_path, compiler)


def assert_one_line(done: subprocess.CompletedProcess, *words: str) -> None:
    assert done.returncode == 1
    lines = done.stderr.strip().split("\n")
    assert len(lines) == 1 and lines[0].startswith("build.py: "), done.stderr
    for word in words:
        assert word in lines[0]


def test_a_build_is_laid_out_as_kernels_loads_it(package):
    package.good_build()
    package.assert_whole()
    name = json.loads((package.variant / "metadata.json").read_text())["id"]
    assert name.startswith("_one_kernel_cpu_")
    assert set(package.contents()) == {"__init__.py", "_ops.py", "metadata.json", f"{name}.abi3.so"}
    assert package.compiled == ["answer.cpp", "binding.cpp"]


def test_a_second_build_compiles_nothing(package):
    package.good_build()
    before = package.contents()
    package.good_build()
    assert package.compiled == []
    assert package.contents() == before


def test_what_a_header_reaches_is_compiled_again(package):
    package.good_build()
    package.write("answer.h", "#pragma once\nint answer();\nint unused();\n")
    package.good_build()
    assert package.compiled == ["answer.cpp", "binding.cpp"]
    # Flags count as well: the section's, not the binding's.
    package.write("build.toml", BUILD_TOML.replace("-O1", "-O2"))
    package.good_build()
    assert package.compiled == ["answer.cpp"]


def test_a_changed_source_makes_a_new_library(package):
    package.good_build()
    before = package.contents()
    package.write("answer.cpp", SOURCES["answer.cpp"].replace("42", "43"))
    package.good_build()
    package.assert_whole()
    after = package.contents()
    assert "answer.cpp" in package.compiled
    # Outside git the name follows the sources: both libraries can be loaded in one process.
    assert len([name for name in after if name.endswith(".so")]) == 1
    assert not {name for name in before if name.endswith(".so")} & set(after)


def test_python_files_that_are_gone_leave_the_variant(package):
    package.write("torch-ext/one_kernel/extra.py", "")
    package.good_build()
    assert "extra.py" in package.contents()
    (package.source / "torch-ext/one_kernel/extra.py").unlink()
    package.good_build()
    assert "extra.py" not in package.contents()
    assert package.compiled == []


def test_in_git_the_name_is_the_trees(package):
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
        command = ["git", "-C", str(package.source), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "--quiet")
    (package.source / ".gitignore").write_text("/build/\n")
    git("add", ".")
    git("commit", "--quiet", "-m", "all")
    package.good_build()
    tree = git("rev-parse", "HEAD^{tree}")[:7]
    assert f"_one_kernel_cpu_{tree}.abi3.so" in package.contents()
    package.write("answer.cpp", SOURCES["answer.cpp"] + "\n")
    package.good_build()
    assert f"_one_kernel_cpu_{tree}_dirty.abi3.so" in package.contents()


def test_a_failing_compile_shows_the_compilers_words(package):
    package.good_build()
    before = package.contents()
    package.write("answer.cpp", "int answer() { return fourty_two; }\n")
    done = package.build()
    assert done.returncode == 1 and done.stdout == ""
    assert "fourty_two" in done.stderr and "answer.cpp:1:" in done.stderr
    assert done.stderr.strip().split("\n")[-1].startswith("build.py: ")
    assert "Traceback" not in done.stderr
    assert package.contents() == before


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda s: s.name)
def test_an_interrupted_build_leaves_the_old_variant_whole(package, how):
    package.good_build()
    before = package.contents()
    package.write("answer.cpp", SOURCES["answer.cpp"].replace("42", "43"))
    package.wait.touch()
    process = package.start()
    reached, deadline = Path(f"{package.wait}.reached"), time.monotonic() + 600
    while not reached.exists():
        assert process.poll() is None and time.monotonic() < deadline, "the compiler was not reached"
        time.sleep(0.02)
    # As a terminal does: to all processes of the build.
    os.killpg(process.pid, how)
    err = process.communicate(timeout=900)[1]
    assert process.returncode != 0
    if how == signal.SIGINT:
        assert process.returncode == 130
        assert "Traceback" not in err and "interrupted" in err
    assert package.contents() == before
    package.assert_whole()

    package.wait.unlink()
    package.good_build()
    package.assert_whole()
    assert package.contents() != before
    leftovers = [path.name for path in (package.source / "build").iterdir()]
    assert sorted(leftovers) == sorted([".work", VARIANT])


def test_a_missing_compiler_names_the_package_to_install(package):
    assert_one_line(package.build(CXX="/nonexistent/g++"), "no C++ compiler", "/nonexistent/g++", "install g++")
    (package.root / "empty").mkdir()
    assert_one_line(package.build(CXX="", PATH=str(package.root / "empty")), "no C++ compiler", "install g++")


def test_a_compiler_that_is_too_old_is_named(package):
    old = package.root / "old"
    old.write_text("#!/bin/sh\necho 'unrecognized option -std=c++20' >&2\nexit 1\n")
    old.chmod(0o755)
    done = package.build(CXX=str(old))
    assert done.returncode == 1
    assert str(old) in done.stderr and "C++20" in done.stderr and "unrecognized option" in done.stderr


def test_an_unknown_architecture_is_one_line(package):
    assert_one_line(package.build("--archs", "10.0"), "names no architecture 10.0")


@pytest.mark.parametrize("backend", ["rocm", "cuda", "vulkan", ""])
def test_an_unknown_backend_is_one_line(package, backend):
    assert_one_line(package.build("--backend", backend), repr(backend), "cpu")


@pytest.mark.parametrize(
    "name, text, words",
    [
        ("build.toml", None, ["build.toml", "no such file"]),
        ("build.toml", BUILD_TOML.replace("edition = 5", "edition = 999"), ["build.toml"]),
        ("build.toml", BUILD_TOML.replace("\ncpu =", "\ncuda ="), ["stable-abi", "cpu"]),
        ("answer.cpp", None, ["build.toml", "answer.cpp"]),
        ("torch-ext/one_kernel/__init__.py", None, ["__init__.py"]),
    ],
    ids=["no-build-toml", "bad-build-toml", "no-stable-abi", "missing-source", "no-python-package"],
)
def test_a_broken_package_is_one_line(package, name, text, words):
    if text is None:
        (package.source / name).unlink()
    else:
        package.write(name, text)
    assert_one_line(package.build(), *words)
    assert not package.variant.exists()
