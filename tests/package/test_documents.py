"""What the documents say as code works: README's first snippet, the card that kernel-builder fills, the links."""

import re

import pytest
from builder import read_config
from publishing import render_card

from problems.operators import function_of
from problems.registry import OPERATORS
from tests.package.public_api import with_lists
from tests.settings import ROOT

REPO_ID = "rocm-fp8-kernels/rocm-fp8-kernels"
DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").glob("*/README.md")),
]


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture
def printed(forked):
    return lambda code: forked(code, LOCAL_KERNELS=f"{REPO_ID}={ROOT}")


def test_the_readmes_first_snippet_prints_what_it_says(printed, backend):
    if backend != "cpu":
        pytest.skip("the snippet is for the CPU's variant")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"export LOCAL_KERNELS={REPO_ID}=$PWD" in blocks(text, "bash")[0]
    assert printed(blocks(text, "python")[0]) == blocks(text, "text")[0]


def test_the_readme_is_short():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 130 and max(map(len, lines)) <= 200


@pytest.fixture
def card(kernel) -> str:
    """As `kernel-builder fill-card` renders it; its lists are wrong on purpose, since the card must not need them."""
    wrong = dict(functions=["SOME_CONSTANT"], layers=["LoadedLayer"])
    return render_card(read_config(ROOT), **wrong, source="https://example.org/source")


def listed(card: str, heading: str) -> list[str]:
    section = card.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"^- `(\w+)`", section, re.MULTILINE)


def test_the_card_lists_functions_and_layers(card, kernel):
    text = (ROOT / "CARD.md").read_text(encoding="utf-8")
    assert with_lists(text, kernel) == text, "python -m tests.package.public_api --update"
    assert {"skinny_gemm", "fp8_dtype"} <= set(listed(card, "Available functions"))
    assert listed(card, "Available layers") == ["LatentAttention", "RMSNorm"]


@pytest.mark.parametrize("document", ["README.md", "docs/numerics.md"])
def test_every_operator_is_described(document):
    words = set(re.findall(r"\w+", (ROOT / document).read_text(encoding="utf-8")))
    assert not {function_of(name) for name in OPERATORS} - words


def test_the_card_is_whole(card):
    assert card.startswith("---\nlibrary_name: kernels\nlicense: apache-2.0\ntags:\n- kernels\n")
    assert not re.search(r"\{\{|\{%|\n\n\n|LoadedLayer|SOME_CONSTANT", card)
    assert f"kernels benchmark {REPO_ID} --version 1" in card and "https://example.org/source" in card
    assert "trust_remote_code" in card


def test_the_cards_snippet_runs(printed, card):
    printed(blocks(card, "python")[0])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document):
    links = re.findall(r"\]\(([^)\s]+)\)", document.read_text(encoding="utf-8"))
    local = [link.split("#")[0] for link in links if not link.startswith(("https://", "http://", "#"))]
    missing = [link for link in local if not (document.parent / link).exists()]
    assert not missing
