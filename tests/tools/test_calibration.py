"""The clock against measured times of other people's kernels: the stored recordings, the summary, and what reads the
peers' tables. Nothing of the peers is needed."""

import dataclasses
import json
import subprocess

import numpy as np
import pytest

from benchmarks.calibration import accuracy, ck_block_scaled
from benchmarks.calibration.pairs import Checkouts
from benchmarks.calibration.store import Measured, digest, load, load_all, save
from simulator import cost
from simulator.recording import Buffer, Recording
from simulator.timeline import Packed

STEPS = np.array([[0, 400, 0, 0, 0, 0], [5, 16, 1, 0, 0, 0], [6, 0, 0, 0, 0, 0]], np.int32)


def measured(name: str, microseconds: float, steps: np.ndarray = STEPS, group: str = "", **fields) -> Measured:
    packed = Packed(steps, np.array([len(steps)], np.int64), np.array([1], np.int32))
    buffers = (Buffer(1 << 20, 16.0, 0.5),)
    recording = Recording("gfx942", 304, 2, 400.0, 0.0, 0.0, 16.0, buffers, packed)
    return Measured("AITER", "GEMM", name, microseconds, "2026-01-01", group, 0, False, recording, **fields)


@pytest.fixture(scope="module")
def stored() -> dict:
    return json.loads(cost.CALIBRATION.read_text())


@pytest.fixture(scope="module")
def found() -> dict:
    return accuracy.summary(load_all())


def test_the_summary_is_of_the_recordings_that_are_there(stored):
    assert stored["data"] == digest()


# A change of the clock that makes it worse fails here, until
#     python -m benchmarks.calibration.accuracy --write
# says that it is meant. Rounding of the stored numbers is allowed for.
@pytest.mark.parametrize("column, slack", [("error", 0.0005), ("nine in ten", 0.002), ("largest", 0.005)])
def test_the_clock_is_no_worse_than_it_was(stored, found, column, slack):
    assert found["all"][column] <= stored["all"][column] + slack


def test_nor_does_it_order_kernels_worse(stored, found):
    assert found["all"]["rank"] >= stored["all"]["rank"] - 0.001
    assert found["choice"]["over the best"] <= stored["choice"]["over the best"] + 0.001


def test_the_set_is_what_the_documents_say(stored):
    pairs = load_all()
    assert len(pairs) == sum(each["pairs"] for each in stored["sources"].values()) >= 200
    assert len({each.name for each in pairs}) == len(pairs) and len({each.source for each in pairs}) >= 4
    shares = [accuracy.fitted(each) for each in pairs]
    assert 0.4 < sum(shares) / len(shares) < 0.6
    assert all(each.recording.grid and len(each.recording.courses.steps) for each in pairs)


def test_a_slower_chip_is_noticed(found):
    chips = {name: dataclasses.replace(chip, l2=chip.l2 / 2) for name, chip in cost.MEASURED.items()}
    assert accuracy.summary(load_all(), chips)["all"]["error"] > found["all"]["error"] + 0.05


def test_recordings_are_stored_whole(tmp_path):
    first = measured("one", 5.0, group="a")
    second = measured("two", 7.5, np.concatenate([STEPS, STEPS[::-1], STEPS]))
    save(tmp_path / "data.npz", [first, second])
    for before, after in zip([first, second], load(tmp_path / "data.npz"), strict=True):
        courses = [(each.recording.courses.steps, each.recording.courses.ends) for each in (before, after)]
        assert all(np.array_equal(a, b) for a, b in zip(*courses))
        strip = [dataclasses.replace(each, recording=None) for each in (before, after)]
        assert strip[0] == strip[1]
        assert before.recording.buffers == after.recording.buffers
        assert accuracy.seconds(before, cost.CHIPS["gfx942"]) == accuracy.seconds(after, cost.CHIPS["gfx942"])


def test_the_order_of_kernels_of_one_problem():
    pairs = [measured("a", 10.0, group="p"), measured("b", 8.0, group="p"), measured("c", 20.0, group="q")]
    assert accuracy.choices(pairs, {"a": 0.0, "b": 0.5, "c": 0.0}) == {"p": 10 / 8}
    assert accuracy.choices(pairs, {"a": 0.0, "b": 0.1, "c": 0.0}) == {"p": 1.0}
    assert accuracy.rank_correlation(pairs, {"a": 0.0, "b": 0.0, "c": 0.0}) == pytest.approx(1.0)
    assert accuracy.rank_correlation(pairs, {"a": 0.0, "b": 0.0, "c": -5.0}) < 0


def test_memsets_and_warm_caches_are_part_of_a_time():
    chip, each = cost.CHIPS["gfx942"], measured("a", 10.0)
    plain = accuracy.seconds(each, chip)
    assert accuracy.seconds(dataclasses.replace(each, memsets=2), chip) == pytest.approx(plain + 2 * chip.memset)
    assert accuracy.seconds(dataclasses.replace(each, warm=True), chip) < plain


def test_what_is_read_of_a_tuners_tables(tmp_path, monkeypatch):
    """An old table lacks a field of the names; a padded shape is taken where its kernel pads M alone."""
    name = "a8w8_blockscale_1x128x128_256x16x64x256_16x16_16x16_1x1_16x16x1_16x16x1_1x16x1x16_4_1x1_intrawave_v1"
    head = "gfx,cu_num,M,N,K,libtype,kernelId,splitK,us,kernelName\n"
    old = name.replace("16x16_1x1_16x16x1", "16x16_16x16x1")
    (tmp_path / "old.csv").write_text(
        head.replace("gfx,", "").replace("libtype,", "") + f"304,16,512,512,8,0,4.5,{old}\n"
    )
    lines = ["gfx942,304,8,512,512,ck,8,0,4.25,", "gfx942,304,64,512,512,ck,8,2,5.5,", "gfx942,80,16,512,512,ck,8,0,9,"]
    lines += ["gfx942,304,16,520,512,ck,8,0,4.75,"]
    (tmp_path / "new.csv").write_text(head + "".join(f"{line}{name}\n" for line in lines))
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "tables"]):
        subprocess.run([*git, *command], check=True)
    tables = (("HEAD", "2025-01-01", "old.csv", "MI300X"), ("HEAD", "2026-07-01", "new.csv", "MI325X"))
    monkeypatch.setattr(ck_block_scaled, "TABLES", tables)
    monkeypatch.setattr(ck_block_scaled, "NAMES", ("new.csv",))
    monkeypatch.setattr(ck_block_scaled, "MI325X_M", (8,))
    pairs = {each.name: each for each in ck_block_scaled.pairs(Checkouts({"aiter": tmp_path}))}
    assert list(pairs) == [
        "MI300X instance 8 16x512x512", "MI325X instance 8 8x512x512", "MI325X instance 8 64x512x512 in 4 parts",
    ]  # fmt: skip
    first, padded, split = pairs.values()
    assert first.library.name == split.library.name != padded.library.name
    assert "::Default, 256, 1, 128, 128, 16, 64, 256, 16, 16, 16, 16, 1, 1, S<16, 16, 1>" in first.library.flags[-1]
    assert "::MPadding, " in padded.library.flags[-1]
    assert first.microseconds == 4.5 and first.warm and not first.memsets and split.memsets == 1
    assert split.sizes == (64, 512, 512, 4) and split.buffers == (64 * 512, 512 * 512, 2 * 64 * 512, 4 * 64 * 4, 64)
