"""Puts what it is given into a section of docs/performance.md; most benchmarks do so themselves.

    python -m benchmarks measure cuda --write docs/performance.md                  # runs, then replaces its section
    python -m benchmarks compare section --section cuda-operators < table.md   # replaces a section by what it is given

A section stands between two lines of the file: harness/sections.py.
"""

import argparse
import sys
from pathlib import Path

from benchmarks.harness import sections


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--section", required=True, help="its name")
    parser.add_argument("--file", type=Path, default=sections.PERFORMANCE, help="default: docs/performance.md")
    args = parser.parse_args(argv)
    try:
        sections.write(args.file, args.section, sys.stdin.read())
    except (sections.SectionError, OSError) as error:
        print(f"performance.py: {error}", file=sys.stderr)
        return 1
    return 0
