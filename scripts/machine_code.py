#!/usr/bin/env python3
"""What the compiler made of the ROCm kernels: figures of the shipped library's own code objects, and gates on them.

    python scripts/machine_code.py               # the figures, a line a kernel, and the gates' verdict
    python scripts/machine_code.py --check       # the verdict alone

The exit code is 1 where a gate is missed. Two builds' figures are compared by diff, their code by same_code.py.

No GPU is needed. What is counted is code as it lies in the file: of a kernel's hot path (see Kernel.hot_path) and of
its loops.
"""

import argparse
import collections
import json
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUNDLE_MAGIC = b"__CLANG_OFFLOAD_BUNDLE__"
WAVE_BYTES = 64 * 16  # of a 128-bit access by all lanes


def tool(name: str, *arguments: str, text: str | None = None) -> str:
    run = subprocess.run([f"{name}-22", *arguments], input=text, capture_output=True, text=True)
    if run.returncode != 0:
        raise SystemExit(f"machine_code.py: {name}-22 failed: {run.stderr.strip()}")
    return run.stdout


def code_objects(library: Path) -> dict[str, list[bytes]]:
    """Architecture -> the code objects of a shared library, one a .hip source."""
    found: dict[str, list[bytes]] = {}
    data = library.read_bytes()
    for match in re.finditer(re.escape(BUNDLE_MAGIC), data):
        start = match.start()
        count, at = int.from_bytes(data[start + 24 : start + 32], "little"), start + 32
        for _ in range(count):
            offset, size, length = (int.from_bytes(data[at + 8 * i : at + 8 * i + 8], "little") for i in range(3))
            target = data[at + 24 : at + 24 + length].decode()
            at += 24 + length
            if arch := re.search(r"--(gfx\w+)", target):
                found.setdefault(arch[1], []).append(data[start + offset : start + offset + size])
    return found


@dataclass
class Instruction:
    address: int
    name: str
    operands: str
    target: int | None = None  # of a branch

    def count(self, counter: str) -> int | None:
        """N of an s_waitcnt's counter(N)."""
        match = re.search(rf"{counter}\((\d+)\)", self.operands) if self.name == "s_waitcnt" else None
        return int(match[1]) if match else None

    @property
    def is_load(self) -> bool:
        return re.match(r"(global|buffer)_load", self.name) is not None

    @property
    def is_store(self) -> bool:
        return re.match(r"(global|buffer)_store", self.name) is not None

    @property
    def is_conversion(self) -> bool:
        return self.name == "v_cvt_pk_fp8_f32"


@dataclass
class Kernel:
    name: str
    metadata: dict[str, int]
    code: list[Instruction] = field(default_factory=list)

    @property
    def edges(self) -> list[list[int]]:
        """What can follow each instruction, as indices into the code."""
        at = {instruction.address: i for i, instruction in enumerate(self.code)}
        following = []
        for i, instruction in enumerate(self.code):
            after = [at[instruction.target]] if instruction.target is not None else []
            if instruction.name not in ("s_branch", "s_endpgm") and i + 1 < len(self.code):
                after.append(i + 1)
            following.append(after)
        return following

    @property
    def hot_path(self) -> list[Instruction]:
        """What runs when nothing is rare: the shortest way from the entry over a conversion to FP8, if there are any,
        and a store behind it to the end. Rare code is longer than what it stands in for. Only branches on all lanes
        alike are choices: code under a lane mask is never passed by."""
        edges = self.edges
        for i, instruction in enumerate(self.code):
            if instruction.name == "s_cbranch_execz":
                edges[i] = [i + 1]
            elif instruction.name == "s_cbranch_execnz":
                edges[i] = edges[i][:1]
        converts = any(i.is_conversion for i in self.code)
        # Breadth first over (instruction, whether a conversion lies behind it, whether a store does).
        start = (0, not converts, False)
        came_from, queue = {start: None}, collections.deque([start])
        while queue:
            i, converted, stored = state = queue.popleft()
            if stored and self.code[i].name == "s_endpgm":
                path = []
                while state is not None:
                    path.append(self.code[state[0]])
                    state = came_from[state]
                return path[::-1]
            converted = converted or self.code[i].is_conversion
            for j in edges[i]:
                following = (j, converted, stored or (converted and self.code[j].is_store))
                if following not in came_from:
                    came_from[following] = state
                    queue.append(following)
        return []

    @property
    def loops(self) -> list[list[Instruction]]:
        """Outermost loops that load or multiply: the strongly connected parts of the code."""
        edges = self.edges
        backwards: list[list[int]] = [[] for _ in edges]
        for i, after in enumerate(edges):
            for j in after:
                backwards[j].append(i)
        # Kosaraju: in reverse order of leaving, whatever reaches back is of the same part.
        order, seen = [], set()
        for root in range(len(edges)):
            stack = [(root, iter(edges[root]))] if root not in seen else []
            seen.add(root)
            while stack:
                i, after = stack[-1]
                j = next((j for j in after if j not in seen), None)
                if j is None:
                    order.append(i)
                    stack.pop()
                else:
                    seen.add(j)
                    stack.append((j, iter(edges[j])))
        bodies, placed = [], set()
        for root in reversed(order):
            part, stack = [], [root] if root not in placed else []
            placed.add(root)
            while stack:
                i = stack.pop()
                part.append(i)
                fresh = [j for j in backwards[i] if j not in placed]
                placed.update(fresh)
                stack += fresh
            body = [self.code[i] for i in sorted(part)]
            if len(body) > 1 and any(i.is_load or "mf" in i.name for i in body):
                bodies.append(body)
        return sorted(bodies, key=lambda body: body[0].address)


# Of templates' enumerations, by value.
ENUMERATIONS = {
    "DType": ["f32", "f16", "bf16", "e4m3fn", "e4m3fnuz", "e8m0", "i8", "i32", "e2m1"],
    "Holder": ["wave", "workgroup", "cluster", "quarter_wave"],
    "Short": ["plain", "columns", "any"],
    "Output": ["values", "fp8", "computed"],
    "Format": ["wide", "fp8", "mixed"],
    "Operation": ["", "all_reduce", "norm", "reduce_scatter", "all_gather", "gemm", "gemm_norm"],
}


def readable(name: str) -> str:
    """rms_norm_fast<f16, f16, fp8, true, workgroup, 4>: a demangled name without namespaces and parameters."""
    name = re.sub(r"\(anonymous namespace\)::|\b[a-z]\w*::|^void ", "", name)
    for enumeration, values in ENUMERATIONS.items():
        name = re.sub(rf"\({enumeration}\)(\d)", lambda m: values[int(m[1])], name)
    return re.sub(r"(?<=>)\([^()]*\)$", "", name)


PRELOAD = 256  # bytes


def preloaded(code: list[Instruction]) -> list[Instruction]:
    """Without the beginning that loads the first arguments where the firmware has not: others enter behind it."""
    entry = code[0].address + PRELOAD
    beginning = {re.sub("s_load.*", "s_load", each.name) for each in code if each.address < entry}
    loads = beginning == {"s_load", "s_waitcnt", "s_branch", "s_nop"}
    return [each for each in code if each.address >= entry] if loads else code


def kernels_of(code_object: bytes) -> list[Kernel]:
    with tempfile.NamedTemporaryFile(suffix=".co") as file:
        file.write(code_object)
        file.flush()
        notes = tool("llvm-readelf", "--notes", file.name)
        listing = tool("llvm-objdump", "-d", "--no-show-raw-insn", file.name)
    metadata = {}
    for block in re.split(r"\n  - (?=\.agpr_count)", notes)[1:]:
        symbol = re.search(r"\.name:\s+(\S+)", block)[1]
        metadata[symbol] = {key: int(value) for key, value in re.findall(r"\.(\w+):\s+(\d+)\n", block)}
    kernels = {}
    current = None
    for line in listing.splitlines():
        if header := re.match(r"([0-9a-f]+) <(\S+)>:", line):
            entry = int(header[1], 16)
            current = kernels[header[2]] = Kernel(header[2], metadata[header[2]]) if header[2] in metadata else None
        elif current and (match := re.match(r"\s+(\S+)\s*(.*?)\s*// ([0-9A-F]+):(.*)", line)):
            name, operands, address, rest = match[1], match[2], int(match[3], 16), match[4]
            target = re.search(r"<\S+?\+?(0x[0-9a-f]+)?>", rest) if "branch" in name else None
            offset = int(target[1], 16) if target and target[1] else 0
            current.code.append(Instruction(address, name, operands, entry + offset if target else None))
    found = [kernel for kernel in kernels.values() if kernel]
    for kernel in found:
        while kernel.code[-1].name in ("s_nop", "s_code_end"):  # up to the next kernel's alignment
            kernel.code.pop()
        kernel.code = preloaded(kernel.code)
    names = tool("llvm-cxxfilt", text="\n".join(kernel.name for kernel in found)).splitlines()
    for kernel, name in zip(found, names):
        kernel.name = readable(name)
    return found


def allocated_vgprs(metadata: dict[str, int]) -> int:
    return max(8, -(-metadata["vgpr_count"] // 8) * 8)


def waves_per_simd(metadata: dict[str, int]) -> int:
    """By registers alone; a SIMD has 512 a lane and room for 8 waves."""
    return min(8, 512 // allocated_vgprs(metadata))


def loads_before_a_wait(code: list[Instruction]) -> int:
    """Vector loads issued before the first wait for one of them."""
    loads = 0
    for instruction in code:
        loads += instruction.is_load
        waited = instruction.count("vmcnt")
        if waited is not None and loads and waited < loads:
            return loads
    return loads


def count(code: list[Instruction], pattern: str) -> int:
    return sum(re.match(pattern, instruction.name) is not None for instruction in code)


def loop_figures(body: list[Instruction]) -> dict:
    loads, mfma = count(body, "(global|buffer)_load"), count(body, r"v_s?mf")
    waits = [n for i in body if (n := i.count("vmcnt")) is not None]
    # A consumer's weights are what it reads and multiplies; a loader's what it loads.
    moved = loads or count(body, "ds_read_b128")
    return {
        "instructions": len(body),
        "loads": loads,
        "nt": sum(i.is_load and " nt" in i.operands for i in body),
        "ds_read": count(body, "ds_read"),
        "ds_write": count(body, "ds_write"),
        "mfma": mfma,
        "least_vmcnt": min(waits, default=None),
        "per_KiB": round(len(body) * 1024 / (moved * WAVE_BYTES), 1) if moved else None,
    }


def figures(kernel: Kernel) -> dict:
    found = {
        "vgprs": kernel.metadata["vgpr_count"],
        "agprs": kernel.metadata["agpr_count"],
        "sgprs": kernel.metadata["sgpr_count"],
        "lds": kernel.metadata["group_segment_fixed_size"],
        "waves_per_simd": waves_per_simd(kernel.metadata),
        "instructions": len(kernel.code),
    }
    if loops := kernel.loops:
        return found | {"loops": [loop_figures(body) for body in loops]}
    hot = kernel.hot_path
    memory = [i for i in hot if i.is_load or i.is_store]
    moved = sum({"x4": 16, "x3": 12, "x2": 8}.get(i.name[-2:], 4) * 64 for i in memory)
    return found | {
        "hot": len(hot),
        "hot_per_KiB": round(len(hot) * 1024 / moved, 1) if moved else None,
        "loads_before_wait": loads_before_a_wait(hot),
        "loads": count(hot, "(global|buffer)_load"),
        "stores": count(hot, "(global|buffer)_store"),
        "cvt_pk_fp8": count(hot, "v_cvt_pk_fp8_f32"),
        "pk": count(hot, "v_pk_"),
        "exp": count(hot, "v_exp_f32"),
        "rcp": count(hot, "v_rcp_f32"),
    }


def all_kernels(library: Path) -> dict[str, dict[str, Kernel]]:
    found = {
        arch: {kernel.name: kernel for code in objects for kernel in kernels_of(code)}
        for arch, objects in code_objects(library).items()
    }
    return {arch: dict(sorted(kernels.items())) for arch, kernels in sorted(found.items())}


def all_figures(kernels: dict[str, dict[str, Kernel]]) -> dict[str, dict[str, dict]]:
    return {arch: {name: figures(kernel) for name, kernel in found.items()} for arch, found in kernels.items()}


def main() -> int:
    from machine_code_gates import missed_gates

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=Path, default=None, help="default: the one in build/torch-*-rocm*")
    parser.add_argument("--check", action="store_true", help="print no figures")
    args = parser.parse_args()
    library = args.library or next(ROOT.glob("build/torch-*-rocm*/*.so"), None)
    if library is None:
        print("machine_code.py: no ROCm variant; run: python scripts/build.py --backend rocm", file=sys.stderr)
        return 1
    kernels = all_kernels(library)
    found = all_figures(kernels)
    if not args.check:
        for arch, of_arch in found.items():
            for name, values in of_arch.items():
                print(f"{arch} {name}: {json.dumps(values)}")
    missed = missed_gates(kernels, found)
    for line in missed:
        print(line, file=sys.stderr)
    print(f"{sum(map(len, kernels.values()))} kernels, {len(missed)} gates missed", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
