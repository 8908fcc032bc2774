"""The public interface is that of the checked-in snapshot, and a change that breaks callers is told from one that does
not."""

import copy
import json

import pytest

from tests.package.public_api import breaks, interface, snapshot_file


@pytest.fixture(scope="module")
def snapshot() -> dict:
    return json.loads(snapshot_file().read_text())


def test_the_interface_is_the_snapshots(kernel, snapshot):
    assert interface(kernel) == snapshot, "python -m tests.package.public_api --update, where the change is meant"


ANY = [["args", "VAR_POSITIONAL", ""], ["more", "KEYWORD_ONLY", "None"], ["kwargs", "VAR_KEYWORD", ""]]
BREAKING = {
    "a function gone": lambda api: api["callables"].pop("swiglu_fp8"),
    "a method gone": lambda api: api["callables"].pop("layers.RMSNorm.forward"),
    "a constant gone": lambda api: api["constants"].pop("SKINNY_GEMM_MAX_ROWS"),
    "an operator gone": lambda api: api["schemas"].pop("skinny_gemm"),
    "a parameter gone": lambda api: api["callables"]["rms_norm"].pop(),
    "a parameter renamed": lambda api: api["callables"]["rms_norm"][0].__setitem__(0, "input"),
    "parameters swapped": lambda api: api["callables"]["rms_norm"].insert(0, api["callables"]["rms_norm"].pop(1)),
    "a default gone": lambda api: api["callables"]["skinny_gemm"][-1].__setitem__(2, ""),
    "a parameter added": lambda api: api["callables"]["rms_norm"].append(["more", "KEYWORD_ONLY", ""]),
    "a parameter without a default among any": lambda api: api["callables"].update(
        rms_norm=[ANY[0], ["more", "KEYWORD_ONLY", ""], ANY[2]]
    ),
    "a schema with more": lambda api: api["schemas"].update(
        rms_norm=api["schemas"]["rms_norm"].replace(") ->", ", int n) ->")
    ),
    "a schema with less": lambda api: api["schemas"].update(
        swiglu_fp8=api["schemas"]["swiglu_fp8"].replace(", Tensor scale", "")
    ),
}


@pytest.mark.parametrize("name", BREAKING)
def test_what_breaks_callers_is_found(snapshot, name):
    changed = copy.deepcopy(snapshot)
    BREAKING[name](changed)
    assert len(breaks(snapshot, changed)) == 1


HARMLESS = {
    "nothing": lambda api: None,
    "a function more": lambda api: api["callables"].update(more=[["x", "POSITIONAL_OR_KEYWORD", ""]]),
    "an operator more": lambda api: api["schemas"].update(more="more(Tensor x) -> ()"),
    "a parameter with a default": lambda api: api["callables"]["rms_norm"].append(["more", "KEYWORD_ONLY", "None"]),
    "a schema with a default": lambda api: api["schemas"].update(
        rms_norm=api["schemas"]["rms_norm"].replace(") ->", ", int n=0) ->")
    ),
    "any parameters": lambda api: api["callables"].update(rms_norm=ANY),
    "a constant's value": lambda api: api["constants"].update(SKINNY_GEMM_MAX_ROWS="64"),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_what_breaks_nobody_passes(snapshot, name):
    changed = copy.deepcopy(snapshot)
    HARMLESS[name](changed)
    assert breaks(snapshot, changed) == []
