"""Compiles the simulator's own C++ into a shared library, where it is needed."""

import shutil
import subprocess
from pathlib import Path

from .faults import UnsupportedError


def compile_library(source: Path, library: Path, *flags: str) -> Path:
    """With g++ or clang++. Raises UnsupportedError where there is none, or with what it says."""
    compiler = next((path for name in ("g++", "clang++", "clang++-22") if (path := shutil.which(name))), None)
    if compiler is None:
        raise UnsupportedError(f"no C++ compiler for the simulator's {source.name}")
    command = [compiler, "-std=c++20", "-fPIC", "-shared", *flags, str(source), "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise UnsupportedError(f"{source.name} does not compile:\n{done.stderr}")
    return library
