"""Builds of this repository that tests ask for, and what they read out of them: once a run, whichever worker comes
first."""

import fcntl
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from tests.settings import ROOT

# The same in all workers of a run.
RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID") or str(os.getpid())


Read = TypeVar("Read")


def read_once(what: str, library: Path, read: Callable[[], Read]) -> Read:
    """What `read` makes of a library, which takes long and is small."""
    state = library.stat()
    key = RUN, str(library), state.st_mtime_ns, state.st_size
    with open(ROOT / "build" / ".work" / f"{what}.of-a-test-run", "a+b") as record:
        fcntl.flock(record, fcntl.LOCK_EX)
        record.seek(0)
        if os.fstat(record.fileno()).st_size:
            known, result = pickle.load(record)
            if known == key:
                return result
        result = read()
        record.truncate(0)
        pickle.dump((key, result), record)
    return result


def built(backend: str, archs: Sequence[str] = ()) -> Path:
    """The folder of the variant, built or found up to date; with `archs` for these alone. A build puts a new folder in
    the place of the old one, so that workers may not each make one."""
    folder = ROOT / "build" / ".work"
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f"{backend}.of-a-test-run", "a+") as record:
        fcntl.flock(record, fcntl.LOCK_EX)
        record.seek(0)
        run, _, variant = record.read().partition("\n")
        if run != RUN or not Path(variant).is_dir():
            command = [sys.executable, str(ROOT / "scripts" / "build.py"), "--backend", backend]
            command += ["--archs", *archs] if archs else []
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            variant = done.stdout.strip()
            record.truncate(0)
            record.write(f"{RUN}\n{variant}")
    return Path(variant)
