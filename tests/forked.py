"""Programs that need a process of their own and torch: forks of one that has imported it, which takes seconds.

What reads the environment when it is imported (kernels, huggingface_hub, the package) is imported by each program."""

import multiprocessing
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.settings import ROOT

FORKSERVER = multiprocessing.get_context("forkserver")
FORKSERVER.set_forkserver_preload(["torch", "torch._dynamo"])  # the package imports it


@dataclass(frozen=True)
class Done:
    returncode: int  # negative: the signal that ended it
    out: str
    err: str

    @property
    def error(self) -> str:
        """What a traceback ends with, without the notes after it."""
        return re.findall(r"^[\w.]+(?:Error|Exception): .*", self.err, re.MULTILINE)[-1]


@dataclass(frozen=True)
class Running:
    process: multiprocessing.Process
    folder: tempfile.TemporaryDirectory  # of its output

    def wait(self, timeout: float = 900) -> Done:
        self.process.join(timeout)
        out, err = (Path(self.folder.name, stream).read_text() for stream in ("out", "err"))
        if self.process.is_alive():
            self.process.kill()
            raise TimeoutError(f"still running after {timeout} s: {err}")
        return Done(self.process.exitcode, out, err)


def start(code: str, environment: dict[str, str], *, arguments: Sequence[str] = (), cwd: Path | None = None) -> Running:
    """Runs `code` with that environment and no other, as python -c would, in cwd (the repository's root)."""
    folder = tempfile.TemporaryDirectory()
    for stream in ("out", "err"):
        Path(folder.name, stream).touch()
    process = FORKSERVER.Process(target=program, args=(code, environment, [*arguments], str(cwd or ROOT), folder.name))
    process.start()
    return Running(process, folder)


def program(code: str, environment: dict[str, str], arguments: list[str], cwd: str, folder: str) -> None:
    """The forked process."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    sys.argv = ["-c", *arguments]
    for descriptor, stream in ((1, "out"), (2, "err")):
        os.dup2(os.open(os.path.join(folder, stream), os.O_WRONLY | os.O_TRUNC), descriptor)
    sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
    for imported in [name for name in sys.modules if name.split(".")[0] in ("kernels", "huggingface_hub", "tests")]:
        del sys.modules[imported]
    status = 0
    try:
        exec(compile(code, "<program>", "exec"), {"__name__": "__main__"})
    except SystemExit as exit:
        status = exit.code if isinstance(exit.code, int) else int(exit.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
