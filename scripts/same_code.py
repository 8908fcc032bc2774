#!/usr/bin/env python3
"""Which GPU kernels of two builds have other machine code: for changes that move code and mean to change none.

    python scripts/same_code.py ../before . --backend cuda
    python scripts/same_code.py before.so after.so --backend rocm

A build is a library, or a checkout whose build/ holds the variant. Kernels are matched by their demangled names without
namespaces; compared are their instructions, operands included, without addresses. Exit code 1 where one differs, or
exists on one side alone.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import machine_code
from builder.toolchains import CudaToolchain


def library_of(build: Path, backend: str) -> Path:
    if build.is_file():
        return build
    pattern = {"cuda": "build/torch-*-cu[0-9]*/*.so", "rocm": "build/torch-*-rocm*/*.so"}[backend]
    found = list(build.glob(pattern))
    if len(found) != 1:
        raise SystemExit(f"same_code.py: {build} holds {len(found)} {backend} variants; needs one")
    return found[0]


def plain_name(demangled: str) -> str:
    """Without namespaces, return type and parameters, which a change that only moves code may change."""
    name = re.sub(r"\(anonymous namespace\)::|_GLOBAL__N__\w+::|^void ", "", demangled)
    name = re.sub(r"\b[a-z_]\w*::", "", name)
    depth, end = 0, len(name)
    for i, character in enumerate(name):  # the parameters begin at the first bracket outside of < >
        depth += (character == "<") - (character == ">")
        if character == "(" and depth == 0:
            end = i
            break
    return re.sub(r"\((?:\w+)\)(-?\w+)", r"\1", name[:end])


def rocm_code(library: Path) -> dict[str, list[str]]:
    found = {}
    for arch, objects in machine_code.code_objects(library).items():
        for code in objects:
            for kernel in machine_code.kernels_of(code):
                at = {instruction.address: i for i, instruction in enumerate(kernel.code)}
                lines = [
                    f"{i.name} {'' if i.target is not None else i.operands} {at.get(i.target, '')}" for i in kernel.code
                ]
                found[f"{arch} {plain_name(kernel.name)}"] = lines
    return found


def cuda_code(library: Path) -> dict[str, list[str]]:
    tools = CudaToolchain.toolkit() / "bin"
    found: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [tools / "cuobjdump", "-xelf", "all", library.resolve()], cwd=folder, check=True, capture_output=True
        )
        for cubin in sorted(Path(folder).glob("*.cubin")):
            arch = re.search(r"sm_\w+", cubin.name)[0]
            environment = os.environ | {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
            listing = subprocess.run(
                [tools / "nvdisasm", "-c", "-novliw", cubin],
                check=True,
                capture_output=True,
                text=True,
                env=environment,
            ).stdout
            current: list[str] | None = None
            for line in listing.splitlines():
                if section := re.match(r"\s*\.section\s+\.text\.(\w+)", line):
                    current = found.setdefault(f"{arch} {section[1]}", [])
                elif current is not None and (code := re.match(r"\s+/\*[0-9a-f]+\*/\s+(.*?)\s*;", line)):
                    # Labels are numbered through the file.
                    current.append(re.sub(r"`?\(?\.L_\w+\)?", "label", re.sub(r"\$\w+|_Z\w+", "symbol", code[1])))
    names = sorted({key.split(" ", 1)[1] for key in found})
    demangled = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
    plain = dict(zip(names, map(plain_name, demangled.stdout.splitlines()), strict=True))
    return {f"{arch} {plain[name]}": code for key, code in found.items() for arch, name in [key.split(" ", 1)]}


def differences(before: dict[str, list[str]], after: dict[str, list[str]]) -> list[str]:
    found = []
    for name in sorted(before.keys() | after.keys()):
        a, b = before.get(name), after.get(name)
        if a is None or b is None:
            found.append(f"{name}: {'new' if a is None else 'gone'}")
        elif a != b:
            first = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
            shown = " | ".join(side[first] if first < len(side) else "(end)" for side in (a, b))
            found.append(f"{name}: {len(a)} -> {len(b)} instructions; at {first}: {shown}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--backend", choices=["cuda", "rocm"], required=True)
    args = parser.parse_args()
    code = {"cuda": cuda_code, "rocm": rocm_code}[args.backend]
    before, after = (code(library_of(build, args.backend)) for build in (args.before, args.after))
    found = differences(before, after)
    for line in found:
        print(line)
    print(f"{len(before)} kernels before, {len(after)} after; {len(found)} differ", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
