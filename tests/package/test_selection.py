"""Which tests a run takes: the same ones each time, every value of every parameter; groups that have not changed."""

import ast
import itertools
import json
import re
import subprocess
from pathlib import Path

import pytest

from tests import selection
from tests.selection import GROUPS, covering
from tests.settings import ROOT, SEED_VARIABLE

pytest_plugins = "pytester"

SUITE = """
import pytest

@pytest.mark.covering
@pytest.mark.parametrize("chip", range(2))
@pytest.mark.parametrize("form", range(5))
def test_form(form, chip): pass

@pytest.mark.covering(pairs=True)
@pytest.mark.parametrize("a", range(3))
@pytest.mark.parametrize("b", range(4))
@pytest.mark.parametrize("c", range(2))
def test_pairs(a, b, c): pass

@pytest.mark.covering
def test_without_cases(): pass

@pytest.mark.covering
@pytest.mark.parametrize("size", [1, 2, pytest.param(3, marks=pytest.mark.full)])
def test_a_large_one(size): pass
"""


@pytest.mark.parametrize("sizes", [(5, 2), (3, 4, 2), (1,), (7, 7, 7)])
@pytest.mark.parametrize("pairs", [False, True])
def test_every_value_and_every_pair_is_met(sizes, pairs):
    cases = [dict(enumerate(case)) for case in itertools.product(*map(range, sizes))]
    taken = [cases[index] for index in covering(cases, pairs)]
    for axis, size in enumerate(sizes):
        assert {case[axis] for case in taken} == set(range(size))
    for i, j in itertools.combinations(range(len(sizes)), 2) if pairs else ():
        assert {(case[i], case[j]) for case in taken} == set(itertools.product(range(sizes[i]), range(sizes[j])))
    largest = sorted(sizes)[-2:]
    assert len(taken) <= (1.5 * largest[0] * largest[-1] if pairs and len(sizes) > 1 else max(sizes))


def taken(pytester, *options: str) -> dict[str, int]:
    """Test -> how many of its cases this repository's own hook takes."""
    pytester.makeconftest((ROOT / "conftest.py").read_text())
    pytester.makefile(".toml", pytest='[pytest]\nmarkers = ["covering", "full"]\n')
    run = pytester.runpytest_inprocess("--collect-only", "-q", *options)
    assert run.ret == 0, run.stdout.str()
    names = [line.partition("::")[2].partition("[")[0] for line in run.outlines if "::" in line]
    return {name: names.count(name) for name in names}


def test_a_run_takes_some_and_full_takes_all(pytester):
    path = pytester.makepyfile(test_suite=SUITE)
    some = taken(pytester)
    assert some == taken(pytester) == dict(test_form=5, test_pairs=12, test_without_cases=1, test_a_large_one=2)
    assert taken(pytester, "--full") == dict(test_form=10, test_pairs=24, test_without_cases=1, test_a_large_one=3)
    assert taken(pytester, f"{path}::test_form[4-1]") == dict(test_form=1)


def test_a_group_is_left_while_nothing_has_changed(pytester, monkeypatch):
    path = pytester.makepyfile(test_suite=SUITE)
    pytester.makepyfile(test_other="def test_other(): pass")
    changed = []
    group = selection.Group(("test_suite.py",), ())
    monkeypatch.setattr(selection, "ROOT", Path(pytester.path))
    monkeypatch.setattr(selection, "GREEN", Path(pytester.path, "green.json"))
    monkeypatch.setattr(selection, "GROUPS", {"suite": group, "files": group})
    monkeypatch.setattr(selection.Group, "digest", lambda self: f"now{changed}")
    selection.GREEN.write_text(json.dumps(dict(suite="now[]")))
    assert len(taken(pytester)) == 5, "another group of its has not passed"
    selection.GREEN.write_text(json.dumps(dict(suite="now[]", files="now[]")))
    monkeypatch.setattr(Path, "exists", lambda self, exists=Path.exists: "/dev/" not in str(self) and exists(self))
    assert taken(pytester) == dict(test_other=1)
    assert len(taken(pytester, str(path))) == 4 and len(taken(pytester, "--full")) == 5
    changed.append(1)
    assert len(taken(pytester)) == 5


def test_without_git_no_group_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(selection, "ROOT", tmp_path)
    monkeypatch.setattr(selection, "GREEN", tmp_path / "green.json")
    selection.GREEN.write_text("{}")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(subprocess.CalledProcessError):
        selection.GROUPS["tools"].digest()
    assert selection.green() == []


def test_another_seed_takes_the_same_tests(forked):
    """Cases that stand for a product are no draw (SAMPLE in problems/pairwise.py)."""
    options = ["--collect-only", "-q", "--assert=plain", "-p", "no:cacheprovider"]
    program = f"import pytest\nraise SystemExit(pytest.main([*{options}, 'tests/operators']))"
    runs = [forked(program, **{SEED_VARIABLE: seed}) for seed in ("1", "2")]
    one, other = ([line for line in run.splitlines() if "::" in line] for run in runs)
    assert one == other and len(one) > 1000


def test_a_group_depends_on_what_its_tests_import(tmp_path, monkeypatch):
    texts = {
        "tests/conftest.py": "import top\ndef fixture(): import lazy",
        "tests/one/test_one.py": "from . import near",
        "tests/one/near.py": "def late():\n    from package.inner import name",
        "package/__init__.py": "from package import left",
        **dict.fromkeys(("package/inner.py", "package/left.py", "scripts/top.py", "lazy.py", "data/a", "data/b"), ""),
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    monkeypatch.setattr(selection, "ROOT", tmp_path)
    group = selection.Group(("tests/one",), ("data/*", "!data/b", "!package/left.py"))
    found = {str(each.relative_to(tmp_path)) for each in group.files()}
    assert found == texts.keys() - {"package/left.py", "lazy.py", "data/b"} - {"package/__init__.py"}


ROCM = re.compile(r"simulated_rocm\b(?! import)|simulated_kernels|\b(rocm_library|rocm_variant)\b|needs_rocm")


def test_no_test_outside_a_group_needs_the_rocm_library():
    """Who changes no kernel need not build it."""
    others = set((ROOT / "tests").rglob("test_*.py")) - {Path(__file__)}  # which names what is searched for
    asking = [path for path in others if ROCM.search(path.read_text())]
    assert len(asking) > 20
    assert not [path for path in asking if not any(group.has(path) for group in GROUPS.values())]


@pytest.fixture(scope="module")
def inputs() -> dict[str, set[Path]]:
    """Name of a group -> its files."""
    return {name: group.files() for name, group in GROUPS.items()}


@pytest.mark.parametrize("operator", selection.OPERATORS)
def test_a_change_of_a_kernel_brings_back_few_groups(operator, inputs):
    """The library as a whole, tools, and where the kernel is simulated, emulated or spoilt: with what is made of it."""
    for vendor, most in (("hip", 5), ("cuda", 3)):
        folder = ROOT / operator / vendor
        back = [name for name, files in inputs.items() if any(each.is_relative_to(folder) for each in files)]
        assert 1 <= len(back) <= most + 3 * (operator in selection.ROWS), (vendor, back)


@pytest.mark.parametrize("name", GROUPS)
def test_each_pattern_of_a_group_finds_files(name):
    for pattern in (*GROUPS[name].tests, *GROUPS[name].inputs):
        assert selection.tracked(pattern.lstrip("!"), f"{pattern.lstrip('!')}/**"), pattern


def test_a_change_of_an_input_is_seen(tmp_path, monkeypatch):
    group = GROUPS["vLLM"]
    before = group.digest()
    changed = ROOT / "integrations" / "vllm" / "rocm_fp8_vllm" / "linear.py"
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda self: read(self) + b"\nx = 1" * (self == changed))
    assert group.digest() != before


def test_a_comment_is_no_change_but_where_comments_are_read(monkeypatch):
    groups = [GROUPS[name] for name in ("mla, simulated", "planted faults in mla")]
    before = [group.digest() for group in groups]
    changed = ROOT / "mla_decode" / "hip" / "decode.h"
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda self: read(self) + b"// Closes: nothing.\n" * (self == changed))
    after = [group.digest() for group in groups]
    assert after[0] == before[0] and after[1] != before[1]


CPP = r"""
int a = 1'000; // a comment's "
const char* b = "// no \" comment", c = '"', d = '\'';
/* one
   of two lines */ int e;
"""
PYTHON = '''"""A module's."""
class A:  # a comment's "
    """A class's."""

    # alone
    def f(self, text="# no \\" comment", *, of="""\n# none
:
    \"""no\""" """):
        """A function's,

        of several lines: "# x"."""
        return {"a":
            """a value"""}
'''


def test_what_is_no_code():
    assert selection.code(CPP.encode(), ".h").decode() == CPP.replace(" // a comment's \"", "").replace(
        "/* one\n   of two lines */", ""
    )
    bare = re.sub(r"\s+# (alone|a comment.*)", "", PYTHON)
    bare = bare.replace('"""A class\'s."""', "pass")
    bare = re.sub(r'"""A function.*?"""', "pass", bare, flags=re.DOTALL)
    assert selection.code(PYTHON.encode(), ".py").decode() == bare
    assert selection.code(b"# a heading", ".md") == b"# a heading"


class WithoutDocstrings(ast.NodeTransformer):
    def generic_visit(self, node):
        super().generic_visit(node)
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and ast.get_docstring(node):
            node.body[0] = ast.Pass()
        return node


def test_python_is_the_same_code_without_comments():
    for path in selection.tracked("**/*.py"):
        bare = selection.code(path.read_bytes(), ".py")
        whole = WithoutDocstrings().visit(ast.parse(path.read_text()))
        assert ast.dump(WithoutDocstrings().visit(ast.parse(bare))) == ast.dump(whole), path
