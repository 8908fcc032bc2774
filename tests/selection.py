"""Which tests a run takes: always the same ones. --full takes all.

Marked `covering`, of a test with many cases those are taken that have every value of every parameter: one after the
other, each time the one with the most values that no case before it had, then with the most new pairs of values. So
every form, mode and size is met in every run. Marked `covering(pairs=True)`, every pair of values is.

A group of tests (GROUPS) is unchanged while the files that it depends on are those with which it passed: what its tests
import, and what the group names. Comments and the docstrings of functions and classes are no change. A test is left
where all its groups are unchanged. green.json has their digests: `make test-full` writes them where all passed. On a
GPU, and where its file is named, a test runs. What a CPU's instructions compute is compared by tests of no group.
"""

import functools
import hashlib
import itertools
import json
import re
import subprocess
import sys
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GREEN = ROOT / "tests" / "green.json"


IMPORT = re.compile(r"^([ \t]*)(?:from (\S+) import (\([^)]*\)|.*)|import (.*))", re.MULTILINE)


@functools.cache
def imports(file: Path) -> frozenset[Path]:
    """The files of this repository that a file imports. What a fixture imports only tests with that fixture need: of a
    conftest.py it is left out, and their group names it."""
    found, folder = set(), file.relative_to(ROOT).parts[:-1]
    for space, base, names, modules in IMPORT.findall(file.read_text()):
        if space and file.name == "conftest.py":
            continue
        if base.startswith("."):
            up = len(base) - len(base.lstrip("."))
            base = ".".join(filter(None, (*folder[: len(folder) + 1 - up], base[up:])))
        names = re.findall(r"[\w.]+", re.sub(r"\bas \w+", "", names or modules))
        names = [base, *(f"{base}.{each}" for each in names)] if base else names
        for name in names:
            for root in (ROOT, ROOT / "scripts"):  # as pytest.toml has them
                path = root.joinpath(*name.split("."))
                found |= {each for each in (path.with_suffix(".py"), path / "__init__.py") if each.is_file()}
    return frozenset(found)


def tracked(*patterns: str) -> set[Path]:
    """Files that git knows or would add."""
    globs = (f":(glob){each}" for each in patterns)
    command = ["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard", "-z", "--", *globs]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {path for each in found.split("\0") if each and (path := ROOT / each).is_file()}


# Strings, which are kept, or comments with the space before them, or empty lines. In C++ a quote between digits is no
# string.
STRING, CHARACTERS = r'"(?:[^"\\\n]|\\.)*"', r"'(?:[^'\\\n]|\\.)*'"
EMPTY = r"(?:[ \t]*\n)+"
IN_CPP = re.compile(rf"({STRING}|(?<!\w){CHARACTERS})|\s*//[^\n]*|/\*.*?\*/|(\n){EMPTY}", re.DOTALL)
# A docstring stands behind a colon, on lines of its own.
LONG, LONGER = r'"""(?:[^\\]|\\.)*?"""', r"'''(?:[^\\]|\\.)*?'''"
DOCSTRING = rf":(?:\s*#[^\n]*)?(\n\s+)r?{LONG}(?=\n|$)"
IN_PYTHON = re.compile(rf"{DOCSTRING}|({LONG}|{LONGER}|{STRING}|{CHARACTERS})|\s*#[^\n]*|(\n){EMPTY}", re.DOTALL)


@functools.cache
def code(content: bytes, suffix: str) -> bytes:
    """A file without what no compiler reads: comments, docstrings of functions and classes. A module's docstring stays,
    which commands print."""
    if suffix in (".cpp", ".h", ".cu", ".hip"):
        return IN_CPP.sub(r"\1\2", content.decode()).encode()
    if suffix != ".py":
        return content
    kept = lambda found: f":{found[1]}pass" if found[1] else found[2] or found[3] or ""
    return IN_PYTHON.sub(kept, content.decode()).encode()


@dataclass(frozen=True)
class Group:
    tests: tuple[str, ...]  # files, or folders
    inputs: tuple[str, ...]  # git's patterns of what they depend on, beside what they import. "!": of what they do not
    comments: bool = False  # they read comments

    def has(self, path: Path) -> bool:
        return any(path.is_relative_to(ROOT / each) for each in self.tests)

    def files(self) -> set[Path]:
        own = tracked(*self.tests, *(f"{each}/**" for each in self.tests))
        beside = {parent / "conftest.py" for file in own for parent in file.parents if parent.is_relative_to(ROOT)}
        left = tracked(*(each[1:] for each in self.inputs if each[0] == "!"), "nothing") - own
        met = tracked("pytest.toml", *(each for each in self.inputs if each[0] != "!")) - left
        met |= own | {each for each in beside if each.is_file()}
        todo = [each for each in met if each.suffix == ".py"]
        while todo:
            new = imports(todo.pop()) - met - left
            met |= new
            todo += new
        return met

    def digest(self) -> str:
        files = sorted((str(each.relative_to(ROOT)), each) for each in self.files())
        read = (each.read_bytes() if self.comments else code(each.read_bytes(), each.suffix) for _, each in files)
        sums = (f"{name} {hashlib.sha256(each).hexdigest()}" for (name, _), each in zip(files, read))
        return hashlib.sha256("\n".join(sums).encode()).hexdigest()


OPERATORS = tuple(sorted(each.parent.name for each in ROOT.glob("*/hip") if each.parent.name != "common"))
VERSIONS = ("requirements*.txt", "scripts/build.py", "scripts/*_toolchain.py")


def sources(vendor: str, operators: Sequence[str] = OPERATORS) -> tuple[str, ...]:
    """What the kernels of operators for one vendor are made of."""
    others = (f"!**/{each}/**" for each in ("cpu", "cuda", "hip") if each != vendor)
    return (*VERSIONS, "build.toml", *(f"{each}/**" for each in ("common", *operators)), *others)


# A ROCm library as the simulator runs it: its bindings, the operators' Python.
SIMULATED = (
    *("torch-ext/*", "torch-ext/rocm_fp8_kernels/**"),
    *(f"!torch-ext/rocm_fp8_kernels/{each}/**" for each in ("layers", "models")),
    *("benchmarks/harness/simulated_rocm.py", "benchmarks/harness/torch_double.cpp", "tests/gpu/simulated_*.py"),
    *("tests/gpu/host/arguments.cpp", "scripts/host_configs.cpp", "simulator/**", "!simulator/tests/test_*"),
)


def simulated(tests: Sequence[str], operators: Sequence[str]) -> Group:
    return Group(tuple(f"tests/gpu/test_rocm_{each}.py" for each in tests), (*sources("hip", operators), *SIMULATED))


def emulated(test: str, *operators: str) -> Group:
    inputs = (*sources("cuda", operators), "tests/gpu/host/*", "!benchmarks/**", "!simulator/**")
    return Group((f"tests/gpu/test_{test}_emulated.py",), inputs)


def faults(tests: Sequence[str], operators: Sequence[str]) -> Group:
    """Each case is a library of its own: whether the simulator finds what is planted in the kernels."""
    inputs = (*sources("hip", operators), "simulator/**", "!simulator/tests/test_*")
    return Group(tuple(f"tests/gpu/test_rocm_{each}_faults.py" for each in tests), inputs, comments=True)


ROWS, RANKS = (
    ("quantize_fp8", "rmsnorm_fp8", "swiglu_fp8"),
    ("all_reduce", "quantize_fp8", "rmsnorm_fp8", "skinny_gemm"),
)
INT8_ROWS = ("layer_norm_int8", "quantize_int8", "softmax_int8")
EXPERTS = ("grouped_gemm", "quantize_fp8", "swiglu_fp8")
# The package as a CPU has it: kernels of GPUs change most, and what reads their machine code.
ON_CPU = (*sources("cpu"), "torch-ext/**", "!common/**/gpu/**", "!*/gpu/**", "!*/gpu.h")
PUBLISHED = ("scripts/release.py", "benchmarks/**", "examples/consumer/**", "CARD.md", "flake.*")
GROUPS = {
    "CUDA's machine code": Group(("tests/codegen/test_cuda_machine_code.py",), (*sources("cuda"), "torch-ext/*")),
    "the ROCm library": Group(
        (
            *(f"tests/codegen/test_{each}.py" for each in ("machine_code", "split_k_gate")),
            *(f"tests/gpu/test_rocm_{each}.py" for each in ("forced_configs", "gemm_limits", "reach", "variant")),
            "tests/gpu/test_simulator_library.py",
        ),
        (*sources("hip"), *SIMULATED, "simulator/tests/**", "tests/gpu/host/**"),
    ),
    "rows, simulated": simulated(("dynamic", "long_rows", "quantize"), ROWS),
    "skinny_gemm, simulated": simulated(("operators",), ("skinny_gemm", *ROWS)),
    "block_scaled_gemm, simulated": simulated(("block_scaled_gemm", "gemm_parts"), ("block_scaled_gemm",)),
    "INT8, simulated": simulated(("int8",), ("int8_gemm", *INT8_ROWS)),
    "grouped_gemm, simulated": simulated(("grouped_gemm",), EXPERTS),
    "MX, simulated": simulated(("mx_gemm",), ("moe_gate", "mx_gemm", "quantize_mxfp4", *EXPERTS)),
    "moe_routing, simulated": simulated(("moe_routing",), ("moe_routing",)),
    "mla, simulated": simulated(("mla_decode",), ("mla_append", "mla_decode")),
    "ranks, simulated": simulated(("all_reduce", "send"), RANKS),
    "planted faults in mla": faults(("mla",), ("mla_decode",)),
    "planted faults between ranks": faults(("exchange", "send"), RANKS),
    "block_scaled_gemm, emulated": emulated("cuda", "block_scaled_gemm"),
    "INT8, emulated": emulated("int8", "int8_gemm"),
    "grouped_gemm, emulated": emulated("grouped", "block_scaled_gemm", *EXPERTS),
    "moe_routing, emulated": emulated("moe", "moe_routing"),
    "mx_gemm, emulated": emulated("mx", "mx_gemm", "moe_gate", "grouped_gemm", "swiglu_fp8"),
    # Torch's graphs, whose nodes are operators: what these compute, tests of no group compare.
    "operators in graphs": Group(
        ("tests/operators/test_compile.py", "tests/operators/test_contract_compile.py"),
        ON_CPU,
    ),
    "models in graphs": Group(("tests/models/graphs",), ON_CPU),
    "models over ranks": Group(("tests/models/test_parallel.py",), (*ON_CPU, "tests/models/parallel_worker.py")),
    # In processes of its own, and its parts: what is printed, what interrupts leave.
    "the demo": Group(
        ("tests/models/test_demo.py", "tests/models/test_demo_parts.py"),
        (*ON_CPU, "examples/**"),
    ),
    # Whose tests run beside, in the checkout.
    "the tree of a Nix build": Group(("tests/package/test_kernels_ci_tree.py",), (*ON_CPU, "tests/*.py")),
    # Of packages of one kernel, by the scripts.
    "builds": Group(
        tuple(f"tests/package/test_{each}.py" for each in ("build", "cuda_build", "rocm_build")),
        (*VERSIONS, "build.toml"),
    ),
    "the worked example": Group(
        ("tests/package/test_increment_example.py",),
        (*VERSIONS, "examples/increment/**", "benchmarks/harness/torch_double.cpp"),
    ),
    # They need nothing of this package.
    "the simulator": Group(("simulator/tests",), ("requirements*.txt", "simulator/**")),
    "the Hub": Group(("tests/hub",), (*ON_CPU, *PUBLISHED)),
    "which tests run": Group(("tests/package/test_selection.py",), ("**/*.py",)),
    "tools": Group(
        ("tests/tools",),
        (*ON_CPU, *SIMULATED, "scripts/**", "benchmarks/**", "docs/performance.md", "examples/**"),
    ),
    # Of these tools, besides.
    "simulated tools": Group(
        tuple(f"tests/tools/test_{each}.py" for each in ("simulate_command", "simulated_gemms", "tune")),
        (*sources("hip"), *SIMULATED, "benchmarks/**"),
    ),
    "vLLM": Group(("integrations/vllm/tests",), (*ON_CPU, "integrations/vllm/**", "examples/byte_*/**")),
}


def covering(cases: Sequence[Mapping[str, Hashable]], pairs: bool = False) -> list[int]:
    """Indices of the cases that are taken, in their order. A case: parameter -> value."""
    values = [set(case.items()) for case in cases]
    of_two = [set(itertools.combinations(sorted(case.items(), key=repr), 2)) for case in cases]
    needed = [each | two for each, two in zip(values, of_two)] if pairs else values
    missing, met, taken = set().union(*needed), set(), set()
    while missing:
        left = (index for index in range(len(cases)) if index not in taken)
        best = max(left, key=lambda i: (len(needed[i] & missing), len(of_two[i] - met), -i))
        taken.add(best)
        missing -= needed[best]
        met |= of_two[best]
    return sorted(taken)


def leaves(file: Path, unchanged: Collection[str], named: Sequence[str]) -> bool:
    """Whether a run leaves a file: all its groups are unchanged. named: pytest's arguments."""
    of_groups = {name for name, group in GROUPS.items() if group.has(file)}
    return 0 < len(of_groups) == len(of_groups & {*unchanged}) and not any(
        file == Path(each.partition("::")[0]).resolve() for each in named
    )


def split(items: list) -> tuple[list, list]:
    """Of the tests that pytest has collected (those that a run takes, those that it leaves)."""
    tests: dict[str, list] = {}
    left = set()
    for item in items:
        if item.get_closest_marker("full"):
            left.add(item.nodeid)
        elif item.get_closest_marker("covering") and hasattr(item, "callspec"):
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in tests.values():
        mark = cases[0].get_closest_marker("covering")
        taken = covering([_values(case) for case in cases], **mark.kwargs)
        left.update(case.nodeid for index, case in enumerate(cases) if index not in taken)
    return [item for item in items if item.nodeid not in left], [item for item in items if item.nodeid in left]


def green() -> list[str]:
    """The groups that have passed with the files that there are."""
    if any(Path(each).exists() for each in ("/dev/nvidiactl", "/dev/kfd")) or not GREEN.exists():
        return []  # on a GPU they are other tests
    known = json.loads(GREEN.read_text())
    try:
        return [name for name, group in GROUPS.items() if known.get(name) == group.digest()]
    except (OSError, subprocess.CalledProcessError):
        return []  # a copy that git does not know


def _values(item) -> dict[str, Hashable]:
    """Parameter -> its value's text, or which object it is where its text does not tell."""
    found = {name: item.callspec.params[name] for name in item.callspec.indices}
    return {name: id(value) if " at 0x" in repr(value) else repr(value) for name, value in found.items()}


if __name__ == "__main__" and sys.argv[1:2] == ["--left"]:  # python -m tests.selection --left GROUP: is it?
    sys.exit(sys.argv[2] not in green())
if __name__ == "__main__":  # python -m tests.selection GROUP ...: they have passed, or all of `make test`
    passed = sys.argv[1:] or [name for name in GROUPS if name != "vLLM"]
    known = json.loads(GREEN.read_text()) if GREEN.exists() else {}
    known = {name: known[name] for name in GROUPS if name in known} | {name: GROUPS[name].digest() for name in passed}
    GREEN.write_text(json.dumps(dict(sorted(known.items())), indent=2) + "\n")
