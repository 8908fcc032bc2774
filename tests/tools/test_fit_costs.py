"""The fit of the GEMMs' models: it reads and writes their headers, asks the C++ models, finds costs again."""

import itertools
import json
import math
import re

import pytest

from benchmarks import fit_costs as command
from scripts.host_configs import configs

ARCHS = pytest.mark.parametrize("arch", range(len(command.ARCHS)))
OWN = {
    "skinny_gemm": lambda arch, place, parts, m, n, k: configs().gemm_estimate(arch, place, parts, n, k),
    "block_scaled_gemm": lambda *arguments: configs().block_scaled_estimate(*arguments),
    "int8_gemm": lambda arch, place, parts, *size: configs().int8_estimate(arch, place, parts, 1, *size),
}


@ARCHS
@pytest.mark.parametrize("section", command.SECTIONS)
def test_the_header_s_costs_are_those_of_the_choices(section, arch):
    costs, points = command.read(section, arch), command.wanted(section, arch, command.SIZES[section])
    assert {point[0] for point in points} == set(command.SECTIONS[section])
    for point in points:
        operator, *size, form, parts = point
        place = command.form_names(operator, "rocm").index(form)
        assert command.model(point, arch, costs) == OWN[operator](arch, place, parts, *size)


@ARCHS
@pytest.mark.parametrize("section", command.SECTIONS)
def test_what_is_written_is_read_and_other_sections_stay(monkeypatch, tmp_path, section, arch):
    whole, others = command.HEADER.read_text(), [each for each in command.SECTIONS if each != section]
    before = [command.text_of(each) for each in others]
    header = tmp_path / command.HEADER.name
    header.write_text(whole)
    monkeypatch.setattr(command, "HEADER", header)
    costs = {name: 1.25 * value for name, value in command.read(section, arch).items()}
    other = command.read(section, 1 - arch)
    command.write(section, arch, costs, "`a command`, 0123456, 2026-01-02:\n// words.")
    assert command.read(section, arch) == pytest.approx(costs, rel=1e-3)
    cycles = [name for name in costs if re.search(rf"BlockCycles {name}\b", whole)]
    assert {name: command.read(section, 1 - arch)[name] for name in cycles} == {name: other[name] for name in cycles}
    assert [command.text_of(each) for each in others] == before
    assert f"// {section}: `a command`, 0123456" in header.read_text()


def test_the_fit_finds_the_costs_that_points_were_made_with():
    costs = command.read("streams", 0)
    points = command.wanted("streams", 0, command.SIZES["streams"][::5])
    us = {point: command.model(point, 0, costs) for point in points}
    away = costs | {"fixed_us": 1.5 * costs["fixed_us"], "split_us": 0.6 * costs["split_us"]}
    found = command.fit(us, 0, away)
    assert max(abs(math.log(command.model(point, 0, found) / us[point])) for point in points) < 0.01
    assert max(abs(math.log(command.model(point, 0, away) / us[point])) for point in points) > 0.1


def test_a_cost_that_is_zero_stays_so():
    costs = command.read("streams", 0) | {"power": 0}
    points = command.wanted("streams", 0, [(32, 4096, 7168)])
    assert command.fit({point: 10.0 for point in points}, 0, costs)["power"] == 0


MEASURED = pytest.mark.parametrize("section", command.MEASURED)


def made_up(section: str, costs: dict) -> dict:
    """Times of all forms, as these costs have them."""
    operator = command.MEASURED[section]
    sizes = (
        (4, 128, 3744),
        (13, 3888, 336),
        (64, 4096, 7168),
        (300, 1152, 1040),
        (2604, 6512, 2224),
        (6144, 7168, 2048),
    )
    points = [
        (operator, *size, form, parts, pieces)
        for size, form, parts in itertools.product(sizes, command.form_names(operator, "cuda"), (1, 2, 5))
        for pieces in (0, 40)
    ]
    return dict(zip(points, command.models(points, 0, costs)))


@MEASURED
def test_costs_are_found_again_from_times_of_forms(section, tmp_path):
    costs = command.read(section, 0)
    us = made_up(section, costs)
    results = {}
    for (operator, *size, form, parts, pieces), time in us.items():
        results.setdefault((operator, *size), {"fallback": 9999.0})[str(command.Config(form, parts, pieces))] = time
    kept = [{"operator": operator, "size": size, "times": times} for (operator, *size), times in results.items()]
    (tmp_path / "forms.json").write_text(json.dumps({"results": [*kept, kept[0] | {"operator": "another"}]}))
    found = command.measured(tmp_path / "forms.json", command.MEASURED[section])
    assert found == us
    away = costs | {"start_us": 1.4 * costs["start_us"], "read_rate": 0.7 * costs["read_rate"]}
    fitted = command.fit(found, 0, away)
    error = lambda costs: max(
        abs(math.log(one / two)) for one, two in zip(command.models(list(us), 0, costs), us.values())
    )
    assert error(fitted) < 0.06 < 0.1 < error(away)


@pytest.mark.parametrize("more", ["--arch gfx950", "--data points", "--size 1x16x128", "--points 0"])
def test_what_times_do_not_use_is_refused(monkeypatch, capsys, more):
    monkeypatch.setattr("sys.argv", ["costs", "h200", "--times", "forms.json", *more.split()])
    with pytest.raises(SystemExit):
        command.main()
    assert "do not go with --times" in capsys.readouterr().err


@MEASURED
def test_what_is_written_of_measured_costs_is_read(monkeypatch, tmp_path, section):
    header = tmp_path / command.MEASURED_HEADER.name
    header.write_text(command.MEASURED_HEADER.read_text())
    monkeypatch.setattr(command, "MEASURED_HEADER", header)
    others = [command.text_of(each) for each in command.MEASURED if each != section]
    costs = {name: 1.25 * value for name, value in command.read(section, 0).items()}
    command.write(section, 0, costs, "`a command`, 0123456, 2026-01-02:\n// words.")
    assert command.read(section, 0) == pytest.approx(costs, rel=1e-3)
    assert [command.text_of(each) for each in command.MEASURED if each != section] == others
