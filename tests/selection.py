"""Which tests a run takes: always the same ones. --full takes all.

Marked `covering`, of a test with many cases those are taken that have every value of every parameter: one after the
other, each time the one with the most values that no case before it had, then with the most new pairs of values. So
every form, mode and size is met in every run. Marked `covering(pairs=True)`, every pair of values is.

A group of tests (GROUPS) is left while the files that it depends on are those with which it passed. green.json has
their digest: `make test-full` writes it where all passed. On a GPU, and where one of its files is named, a group runs.
"""

import hashlib
import itertools
import json
import subprocess
import sys
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GREEN = ROOT / "tests" / "green.json"


@dataclass(frozen=True)
class Group:
    tests: tuple[str, ...]  # files, or folders
    inputs: tuple[str, ...]  # git's patterns of what they depend on; of what they do not behind "!"

    def has(self, path: Path) -> bool:
        return any(path.is_relative_to(ROOT / each) for each in self.tests)

    def files(self) -> list[str]:
        """From the root: of what git knows or would add."""
        patterns = [f":(exclude,glob){each[1:]}" if each[0] == "!" else f":(glob){each}" for each in self.inputs]
        command = ["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard", "-z", "--", *self.tests, *patterns]
        found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return sorted({each for each in found.split("\0") if (ROOT / each).is_file()})

    def digest(self) -> str:
        sums = (f"{each} {hashlib.sha256((ROOT / each).read_bytes()).hexdigest()}" for each in self.files())
        return hashlib.sha256("\n".join(sums).encode()).hexdigest()


TESTS = ("*.toml", "requirements*.txt", "**/conftest.py", "tests/*.py", "problems/**", "scripts/**/*.py")
SOURCES = ("torch-ext/*", "common/**", "*/*.h")
PACKAGE = (*TESTS, *SOURCES, "torch-ext/**", "*/cpu/**")
# As a test on a CPU has it: kernels of GPUs change most, and what reads their machine code.
ON_CPU = (*PACKAGE, "!**/hip/**", "!**/cuda/**", "!**/gpu/**", "!*/gpu.h", "!scripts/*gate*.py")
GROUPS = {
    "CUDA's machine code": Group(
        ("tests/codegen/test_cuda_machine_code.py",), (*TESTS, *SOURCES, "*/cuda/**", "*/gpu/**")
    ),
    # Each is a library of its own. They tell whether the simulator finds what is planted in the kernels.
    "planted faults": Group(
        tuple(f"tests/gpu/test_rocm_{name}_faults.py" for name in ("mla", "send", "exchange")),
        (*TESTS, *SOURCES, "*/hip/**", "*/gpu/**", "simulator/**"),
    ),
    # They need nothing of this package.
    "the simulator": Group(
        ("simulator/tests",),
        ("pytest.toml", "requirements*.txt", "**/conftest.py", "tests/*.py", "problems/**", "simulator/**"),
    ),
    "the Hub": Group(("tests/hub",), (*ON_CPU, "CARD.md", "flake.*")),
    "tools": Group(("tests/tools",), (*PACKAGE, "benchmarks/**", "docs/performance.md", "examples/**", "simulator/**")),
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


def split(items: list, named: Sequence[str] = ()) -> tuple[list, list]:
    """Of the tests that pytest has collected (those that a run takes, those that it leaves). named: its arguments."""
    tests: dict[str, list] = {}
    left = set()
    files = {Path(each.partition("::")[0]).resolve() for each in named}
    unchanged = [GROUPS[name] for name in green()]
    for item in items:
        if item.get_closest_marker("full") or (
            item.path not in files and any(each.has(item.path) for each in unchanged)
        ):
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
if __name__ == "__main__":  # python -m tests.selection GROUP ...: they have passed
    known = json.loads(GREEN.read_text()) if GREEN.exists() else {}
    known |= {name: GROUPS[name].digest() for name in sys.argv[1:]}
    GREEN.write_text(json.dumps(dict(sorted(known.items())), indent=2) + "\n")
