"""From sources to one shared library, incrementally."""

import shlex
import subprocess
import sys
from pathlib import Path

from .config import BuildConfig, BuildError
from .toolchains import python_include_dir, torch_dir

# kernel-builder generates a header of this name with these macros; the binding includes it.
REGISTRATION_H = """\
#pragma once
#include <Python.h>
#define RFK_CONCAT_(a, b) a##b
#define RFK_CONCAT(a, b) RFK_CONCAT_(a, b)
#define RFK_STRING_(a) #a
#define RFK_STRING(a) RFK_STRING_(a)
#define STABLE_TORCH_LIBRARY_EXPAND(name, module) STABLE_TORCH_LIBRARY(name, module)
#define STABLE_TORCH_LIBRARY_IMPL_EXPAND(name, key, module) STABLE_TORCH_LIBRARY_IMPL(name, key, module)
#define REGISTER_EXTENSION(name)                                                                   \\
    PyMODINIT_FUNC RFK_CONCAT(PyInit_, name)() {                                                    \\
        static PyModuleDef module = {PyModuleDef_HEAD_INIT, RFK_STRING(name), nullptr, 0, nullptr,   \\
                                     nullptr, nullptr, nullptr, nullptr};                            \\
        return PyModule_Create(&module);                                                             \\
    }
"""

# The library must load with glibc 2.28 (manylinux_2_28), also where a newer one is at hand. What a newer one
# gives under a newer version is asked for under the old one, which every glibc for x86-64 has. Each of these is
# hidden: nobody else's calls come here.
OLD_GLIBC_CPP = """\
// Read by libstdc++ to skip atomic operations in programs with one thread; in glibc since 2.32. "Not
// single-threaded" is always right.
extern "C" __attribute__((visibility("hidden"))) char __libc_single_threaded;
char __libc_single_threaded = 0;

#define OLD(result, name, parameters, arguments)                                   \\
    extern "C" result old_##name parameters;                                       \\
    __asm__(".symver old_" #name ", " #name "@GLIBC_2.2.5");                       \\
    extern "C" __attribute__((visibility("hidden"))) result name parameters { return old_##name arguments; }

OLD(int, pthread_once, (int* control, void (*body)()), (control, body))
OLD(double, exp, (double x), (x))
"""

HEADER_ENDINGS = (".h", ".hpp", ".cuh")


def work_dir(config: BuildConfig, backend: str) -> Path:
    """Objects and the library, kept between builds."""
    return config.root / "build" / ".work" / backend


def write_if_changed(path: Path, text: str) -> None:
    if not path.is_file() or path.read_text() != text:
        path.write_text(text)


def compile_library(config: BuildConfig, backend: str, toolchain, *, jobs: int | None, verbose: bool) -> Path:
    """Compiles what changed; returns the library. A compiler's failure is shown in its own words."""
    try:
        from ninja import BIN_DIR, ninja_syntax
    except ImportError:
        raise BuildError("the Python package `ninja` is missing: pip install -r requirements.txt") from None
    sections = config.sections(backend)
    if not sections:
        raise BuildError(f"build.toml: no [kernel.*] section for backend {backend!r}")

    work = work_dir(config, backend)
    work.mkdir(parents=True, exist_ok=True)
    write_if_changed(work / "registration.h", REGISTRATION_H)
    write_if_changed(work / "old_glibc.cpp", OLD_GLIBC_CPP)
    library = work / f"{config.ops_name(backend)}.abi3.so"

    def sources(names: list[str]) -> list[str]:
        return [name for name in names if not name.endswith(HEADER_ENDINGS)]

    with open(work / "build.ninja", "w") as file:
        ninja = ninja_syntax.Writer(file, width=4096)
        ninja.variable("ninja_required_version", "1.8")
        ninja.variable("builddir", str(work))
        ninja.rule(
            "compile",
            command="$tool -MMD -MF $out.d -c $in -o $out",
            depfile="$out.d",
            deps="gcc",
            description="compile $name",
        )
        ninja.rule("link", command="$tool $in -o $out", description="link $name")
        objects: list[str] = []

        def add(source: str, command: list[str], folder: Path = config.root) -> None:
            target = str(work / "objects" / f"{source}.o")
            ninja.build(
                target,
                "compile",
                str(folder / source),
                variables={"tool": ninja_syntax.escape(shlex.join(command)), "name": source},
            )
            objects.append(target)

        for section in sections:
            for source in sources(section.src):
                add(source, toolchain.compile_command(section, source))
        for source in sources(config.torch_sources):
            add(source, toolchain.compile_command(None, source) + binding_flags(config, backend, work))
        # -fno-builtin: of a function that the compiler knows it would ignore the visibility.
        add("old_glibc.cpp", toolchain.compile_command(None, "old_glibc.cpp") + ["-fno-builtin"], work)
        ninja.build(
            str(library),
            "link",
            objects,
            variables={"tool": ninja_syntax.escape(shlex.join(toolchain.link_command())), "name": library.name},
        )
        ninja.default(str(library))

    command = [str(Path(BIN_DIR) / "ninja"), "-C", str(work), "--quiet"]
    if jobs:
        command += ["-j", str(jobs)]
    if verbose:
        command = [c for c in command if c != "--quiet"] + ["-v"]
    run = subprocess.Popen(command, stdout=sys.stderr)
    try:
        code = run.wait()
    except KeyboardInterrupt:
        run.wait()  # ninja stops its compilers and removes half-written objects
        raise
    if code != 0:
        raise BuildError("compilation failed; the compiler's words are above")
    for stale in work.glob("*.abi3.so"):
        if stale != library:
            stale.unlink()
    return library


def binding_flags(config: BuildConfig, backend: str, work: Path) -> list[str]:
    """For the torch binding alone: the kernels' sources know nothing of torch or Python."""
    major, minor = config.stable_abi(backend)
    return [
        f"-DTORCH_EXTENSION_NAME={config.ops_name(backend)}",
        f"-DTORCH_TARGET_VERSION=0x{major << 56 | minor << 48:016x}",
        "-DPy_LIMITED_API=0x03090000",
        f"-I{work}",
        *(f"-isystem{path}" for path in [torch_dir() / "include", python_include_dir()]),
    ]
