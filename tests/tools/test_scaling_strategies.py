"""The comparison of scaling strategies: what its figures must show on any machine."""

import pytest
import torch

from benchmarks import scaling_strategies
from benchmarks.scaling_strategies import OUTLIERS, Linear, by_blocks, errors, parse, strategies
from problems.inputs import FP8
from tests.tools.tables import tables


@pytest.fixture
def found(kernel):
    return {each.name: each for each in strategies(kernel, FP8[0])}


def test_local_scales_keep_outliers_to_themselves(kernel, found, generator):
    args = parse(["--m", "192", "--n", "128", "--k", "1024"])
    error = errors(kernel, list(found.values()), args, "cpu", generator)
    # 2^-9 and 2^-4 / sqrt(3) of a number, root mean square, of two operands.
    assert all(0.001 < value < 0.004 for value in error["bfloat16"])
    for name in ("global", "128x128", "1x128"):
        assert 0.03 < error[name][0] < 0.045
    assert error["global"][-1] > 2 * error["global"][0]
    # Of two blocks of rows one has no outlier; of 192 rows all but 3, whose error is at most 2.5 times the others':
    # sqrt(1 + 3 / 192 * (2.5^2 - 1)) = 1.04.
    assert error["1x128"][-1] < 1.05 * error["1x128"][0] < error["128x128"][-1] < error["global"][-1]
    assert len(error["global"]) == len(OUTLIERS)


def test_square_blocks_are_quantised_each_by_its_largest(generator):
    x = torch.randn(130, 300, generator=generator).bfloat16()
    q, scale = by_blocks(x, FP8[0])
    assert q.shape == x.shape and scale.shape == (2, 3)
    for i, rows in enumerate(x.float().split(128, 0)):
        for j, block in enumerate(rows.split(128, 1)):
            assert scale[i, j] == block.abs().max() / 448
            assert torch.equal(
                q[i * 128 :, j * 128 :][: block.shape[0], : block.shape[1]].float().abs().max(), torch.tensor(448.0)
            )


@pytest.mark.parametrize("name", ["global", "128x128", "1x128"])
def test_a_linear_is_near_the_original(kernel, found, generator, name):
    linear = torch.nn.Linear(256, 140).bfloat16()
    with torch.no_grad():
        linear.weight.normal_(generator=generator)
        x = torch.randn(2, 70, 256, generator=generator).bfloat16()
        wanted, got = linear(x), Linear(kernel, found[name], linear)(x)
    assert got.shape == wanted.shape and got.dtype == wanted.dtype
    assert 0 < (got - wanted).float().norm() / wanted.float().norm() < 0.06


def test_the_whole_of_it(kernel, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(scaling_strategies.torch.cuda, "is_available", lambda: False)
    small = ["--m", "8", "--n", "64", "--k", "256", "--windows", "1", "--seed", "3", "--plot", str(tmp_path / "png")]
    assert scaling_strategies.main(small) == 0
    (_, _, *rows) = tables(capsys.readouterr().out)
    assert [row[0] for row in rows] == ["bfloat16", "global", "128x128", "1x128"]
    assert [row[1] for row in rows] == ["16.000", "8.002", "8.004", "8.250"]
    bits = [float(row[-3]) for row in rows]
    assert all(0.5 < value < 2 for value in bits) and len(set(bits)) > 2  # two may agree in four digits
    assert (tmp_path / "png").stat().st_size > 10_000
