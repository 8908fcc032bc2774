"""`python -m benchmarks` lists the benchmarks, and runs each."""

import sys

from .harness.commands import GROUPS

# As a program of its own a benchmark would define its functions, and end.
if alone := {f"benchmarks.{module}" for of in GROUPS.values() for module in of.values()} & {*sys.orig_argv}:
    sys.exit(f"{alone.pop()}: run it by its name, python -m benchmarks GROUP NAME. Without a NAME that lists them")
