"""Programs as a user runs them against a Hub: each in a process of its own, with the caches that it is given.

A process is forked from one that has imported torch: kernels and huggingface_hub, which read their
settings at import, are imported by each program itself."""

import multiprocessing
import os
import re
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

from tests.hub.server import Hub

FORKSERVER = multiprocessing.get_context("forkserver")
FORKSERVER.set_forkserver_preload(["torch", "torch._dynamo"])  # the package imports it
# Of the tester's own settings nothing may get through.
FOREIGN = ("HF_", "KERNELS_", "LOCAL_KERNELS", "HUGGING", "XDG_CACHE")


@dataclass(frozen=True)
class Done:
    returncode: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """What a traceback ends with, without the notes after it."""
        return re.findall(r"^[\w.]+(?:Error|Exception): .*", self.err, re.MULTILINE)[-1]


@dataclass
class Client:
    """`home` holds the Hub's cache, the kernels' cache beside it, and the programs' output."""

    hub: Hub
    home: Path

    def start(self, code: str, *, cwd: Path | None = None, **environment: str) -> "Running":
        self.home.mkdir(parents=True, exist_ok=True)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        own = {
            "HF_HOME": str(self.home / "hub"),
            "KERNELS_CACHE": str(self.home / "kernels"),
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        }
        output = self.home / f"output-{len(list(self.home.glob('output-*.out')))}"
        arguments = (code, kept | own | self.hub.environment() | environment, str(cwd or self.home), str(output))
        output.with_suffix(".out").touch()
        process = FORKSERVER.Process(target=program, args=arguments)
        process.start()
        return Running(process, output)

    def run(self, code: str, **options) -> Done:
        return self.start(code, **options).wait()

    def kernels(self, *arguments: str, **options) -> Done:
        """The command `kernels`."""
        code = f"import sys; sys.argv = ['kernels', *{arguments!r}]; from kernels.cli import main; main()"
        return self.run(code, **options)


@dataclass(frozen=True)
class Running:
    process: multiprocessing.Process
    output: Path

    def wait(self, timeout: float = 120) -> Done:
        self.process.join(timeout)
        if self.process.is_alive():
            self.process.kill()
            raise TimeoutError(f"still running after {timeout} s: {self.output.with_suffix('.err').read_text()}")
        out, err = (self.output.with_suffix(ending).read_text() for ending in (".out", ".err"))
        return Done(self.process.exitcode, out, err)


def program(code: str, environment: dict[str, str], cwd: str, output: str) -> None:
    """The forked process: runs `code` as python -c would."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    for stream, ending in ((1, ".out"), (2, ".err")):
        os.dup2(os.open(output + ending, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
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
