"""Recordings of the set as one file of numbers: nothing of the peers' code is in it."""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from simulator.calibration.sources import SOURCES
from simulator.timing.recording import Buffer, Recording
from simulator.timing.timeline import Packed

DATA = Path(__file__).with_name("data")


@dataclass(frozen=True)
class Measured:
    """What is kept of a pair."""

    source: str
    kind: str
    name: str
    microseconds: float
    date: str
    group: str
    memsets: int
    warm: bool
    recording: Recording

    @property
    def chip(self) -> str:
        """Of cost.MEASURED."""
        return SOURCES[self.source].chip


def save(path: Path, found: list[Measured]) -> None:
    """Steps repeat: each different one is kept once."""
    arrays, listed = {}, []
    for number, each in enumerate(found):
        fields = asdict(each) | {"recording": None}
        packed, recording = each.recording.courses, asdict(each.recording)
        recording["courses"] = None
        different, index = np.unique(packed.steps, axis=0, return_inverse=True)
        arrays[f"{number} steps"], arrays[f"{number} index"] = different, index.reshape(-1).astype(np.uint16)
        arrays[f"{number} ends"], arrays[f"{number} waves"] = packed.ends, packed.waves
        assert len(different) < 1 << 16
        listed.append(fields | {"recording": recording})
    arrays["pairs"] = np.frombuffer(json.dumps(listed).encode(), np.uint8)
    path.parent.mkdir(exist_ok=True)
    np.savez_compressed(path, **arrays)


def load(path: Path) -> list[Measured]:
    with np.load(path) as arrays:
        found = []
        for number, fields in enumerate(json.loads(arrays["pairs"].tobytes())):
            kept = fields.pop("recording")
            steps = arrays[f"{number} steps"][arrays[f"{number} index"]]
            kept["courses"] = Packed(steps, arrays[f"{number} ends"], arrays[f"{number} waves"])
            kept["buffers"] = tuple(Buffer(**each) for each in kept["buffers"])
            found.append(Measured(**fields, recording=Recording(**kept)))
        return found


def files() -> list[Path]:
    return sorted(DATA.glob("*.npz"))


def load_all() -> list[Measured]:
    return [each for path in files() for each in load(path)]


def digest() -> str:
    """Of all files."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in files())).hexdigest()
