"""benchmarks/plot_performance.py: its pictures have the numbers of docs/performance.md."""

import pytest

from benchmarks import plot_performance
from benchmarks.harness.sections import PERFORMANCE, SectionError, section


@pytest.fixture(scope="module")
def text() -> str:
    return PERFORMANCE.read_text(encoding="utf-8")


def test_every_family_is_drawn(text):
    names = [family.name.split(",")[0] for family in plot_performance.families(text)]
    assert dict.fromkeys(names) == dict.fromkeys(
        ["add_rms_norm_fp8", "swiglu_fp8", "quantize_fp8", "add_rms_norm_dynamic_fp8", "swiglu_dynamic_fp8"]
        + ["skinny_gemm", "block_scaled_gemm", "int8_gemm", "fused_moe", "mla_decode", "all_reduce_add_rms_norm_fp8"]
        + ["a decoder layer's step", "a decode step in vLLM"]
    )
    for run in ("operators", "scales", "gemms"):
        commit = section(text, f"cuda-{run}").split("- commit: ")[1].split()[0]
        assert commit in plot_performance.title(text)


def test_bars_are_the_tables_ratios(text):
    body = section(text, "cuda-operators") + section(text, "cuda-gemms")
    stored = [float(row["ratio"]) for rows in plot_performance.tables(body).values() for row in rows]
    families = [family for family in plot_performance.families(text)[:9] if "rows and columns" not in family.across]
    drawn = [h for family in families for bars in family.times().bars for h in bars.heights if h is not None]
    assert sorted(drawn) == sorted(stored)


def test_computed_scales_are_torchs_time_by_ours():
    row = {
        "rows x d": "32 x 4096",
        "floor": "0.50",
        "row": "1.00 (1.25)",
        "1x128": "2.00 (2.50)",
        "tensor": "4.00 (5.00)",
    }
    row |= {"torch row": "3.00", "torch 1x128": "5.00", "torch tensor": "2.00"}
    family = plot_performance.by_scales("quantize_fp8", [row, row | {"torch row": ""}])
    assert [bars.heights for bars in family.times().bars] == [[3.0], [2.5], [0.5]]
    assert [bars.heights for bars in family.shares().bars] == [[0.5], [0.25], [0.125]]
    assert [bars.marks for bars in family.shares().bars] == [[pytest.approx(0.5 / theirs)] for theirs in (3, 5, 2)]


def test_a_file_without_the_sections_is_refused():
    with pytest.raises(SectionError, match="cuda-operators"):
        plot_performance.families("# Performance\n")


def test_both_pictures_are_written(text, monkeypatch, tmp_path):
    drawn = {}
    monkeypatch.setattr(
        plot_performance.bars, "draw", lambda panels, title, path, row_height: drawn.update({path.name: panels})
    )
    assert plot_performance.main(["--times", str(tmp_path / "a.png"), "--shares", str(tmp_path / "b.png")]) == 0
    # Experts and MLA have no ratio; exchange, layers and engines no floor.
    count = len(plot_performance.families(text))
    assert (len(drawn["a.png"]), len(drawn["b.png"])) == (count - 2, count - 3)
    assert all(panel.line == 1 for panel in drawn["a.png"])
