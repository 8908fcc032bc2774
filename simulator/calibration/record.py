#!/usr/bin/env python3
"""Compile Composable Kernel's instances, run each pair's launch in the simulator, store what the clock needs of it.

    python -m simulator.calibration.record --ck PATH [--peer NAME ...]

PATH is the folder of Debian's package libcomposable-kernel-dev (suite experimental), unpacked. Needs what builds the
ROCm variant (scripts/rocm_toolchain.py). Two workgroups of each launch run whole. The recordings of other sources
(sources.py) stay as they are: nothing here builds them.
"""

import argparse
import ctypes
import importlib
import math
import multiprocessing
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from simulator import Checks
from simulator.calibration.build import build
from simulator.calibration.pairs import Pair
from simulator.calibration.store import DATA, Measured, save
from simulator.counting.profile import Profile
from simulator.host.library import Runtime
from simulator.host.toolchain import HipToolchain
from simulator.timing.recording import record

PEERS = ("ck_block_scaled", "ck_batched")  # modules of this package
OBJECTS = Path(__file__).resolve().parents[2] / "build" / "calibration"
ALIGNMENT = 512


def buffer(size: int) -> np.ndarray:
    """Zeros. Memory that nothing touches is never taken from the system."""
    data = np.zeros(size + ALIGNMENT, np.uint8)
    return data[-data.ctypes.data % ALIGNMENT :][:size]


def sample(grid: tuple) -> list[int]:
    total = math.prod(grid)
    return sorted({0, total // 2})


def run(pair: Pair, library: Path) -> Measured:
    """Runs the pair's call; what is recorded is its launch number `pair.launch`."""
    runtime = Runtime.shared(HipToolchain().include)
    found, profile = [], Profile()
    # Programs of others are taken as they are.
    checks = Checks(waits=False, uninitialised_lds=False, races=False, hazards=False, coherence=False)
    runtime.configure(checks=checks, resident=1, sample=sample, profile=profile)
    runtime.on_launched = lambda counters, beginnings: found.append(record(counters, profile, beginnings))
    buffers = [buffer(size) for size in pair.buffers]
    for each in buffers:
        runtime.memory.register(each)
    try:
        pointers = (ctypes.c_void_p * len(buffers))(*(each.ctypes.data for each in buffers))
        sizes = (ctypes.c_int * len(pair.sizes))(*pair.sizes)
        with runtime.on("gfx942"):
            code = runtime.call(runtime.open(library).run, pointers, sizes)
    finally:
        runtime.on_launched = None
        for each in buffers:
            runtime.memory.unregister(each.ctypes.data)
    if code:
        raise RuntimeError(f"{pair.name}: the peer refuses it ({code})")
    kept = {name: getattr(pair, name) for name in Measured.__dataclass_fields__ if name != "recording"}
    return Measured(**kept, recording=found[pair.launch])


def one(work: tuple[Pair, Path]) -> Measured | str:
    pair, library = work
    begin = time.time()
    try:
        return run(pair, library)
    except Exception as error:
        return f"{pair.name}: {type(error).__name__}: {error}"
    finally:
        print(f"{time.time() - begin:6.1f} s  {pair.name}", flush=True)


def recorded(pairs: list[Pair], ck: Path, folder: Path = OBJECTS, jobs: int = 2) -> Iterator[Measured]:
    """Builds what the pairs need into `folder` and runs them; one that fails is named and left out."""
    libraries = {each.library.name: each.library for each in pairs}
    built = {name: build(library, ck.resolve(), folder) for name, library in libraries.items()}
    work = [(pair, built[pair.library.name]) for pair in pairs]
    # A fresh process now and then: what launches registered is not all given back.
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=20) as pool:
        for each in pool.imap(one, work, chunksize=1):
            if isinstance(each, str):
                print(f"left out: {each}")
            else:
                yield each


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ck", type=Path, required=True, metavar="PATH")
    parser.add_argument("--peer", action="append", choices=PEERS)
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    for peer in args.peer or PEERS:
        pairs = importlib.import_module(f"simulator.calibration.{peer}").pairs()
        found = list(recorded(pairs, args.ck, jobs=args.jobs))
        save(DATA / f"{peer}.npz", found)
        print(f"{peer}: {len(found)} of {len(pairs)} pairs")


if __name__ == "__main__":
    main()
