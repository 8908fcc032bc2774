"""The fit of the ROCm GEMMs' models: it reads and writes the header, asks the C++ models, finds costs again."""

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
