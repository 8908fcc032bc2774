"""Programs as a user runs them against a Hub: each in a process of its own, with the caches that it is given."""

import os
from dataclasses import dataclass
from pathlib import Path

from tests import forked
from tests.forked import Done, Running
from tests.hub.server import Hub

# Of the tester's own settings nothing may get through.
FOREIGN = ("HF_", "KERNELS_", "LOCAL_KERNELS", "HUGGING", "XDG_CACHE")


@dataclass
class Client:
    """`home` holds the Hub's cache and the kernels' cache beside it."""

    hub: Hub
    home: Path

    def start(self, code: str, *, cwd: Path | None = None, **environment: str) -> Running:
        self.home.mkdir(parents=True, exist_ok=True)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        own = {
            "HF_HOME": str(self.home / "hub"),
            "KERNELS_CACHE": str(self.home / "kernels"),
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        }
        return forked.start(code, kept | own | self.hub.environment() | environment, cwd=cwd or self.home)

    def run(self, code: str, **options) -> Done:
        return self.start(code, **options).wait()

    def kernels(self, *arguments: str, **options) -> Done:
        """The command `kernels`."""
        code = f"import sys; sys.argv = ['kernels', *{arguments!r}]; from kernels.cli import main; main()"
        return self.run(code, **options)
