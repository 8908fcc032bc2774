"""All benchmarks' entry: python -m benchmarks GROUP NAME [ARGUMENT ...]. Without a NAME it lists them."""

import ast
import importlib
import sys
from pathlib import Path

from benchmarks.harness.commands import GROUPS

HELP = ("", "-h", "--help")


def title(module: str) -> str:
    """Its docstring's first line; an import would need torch, and time."""
    return ast.get_docstring(ast.parse(Path(__file__).with_name(f"{module}.py").read_text())).splitlines()[0]


def listing(groups: dict[str, dict[str, str]]) -> str:
    lines = [f"  {group} {name:<{20 - len(group)}}{title(of[name])}" for group, of in groups.items() for name in of]
    return "\n".join(["usage: python -m benchmarks GROUP NAME [--help] [ARGUMENT ...]", "", *lines])


def main() -> int | None:
    group, name = [*sys.argv[1:], "", ""][:2]
    commands = GROUPS.get(group, {})
    if name in commands:
        sys.argv = [f"python -m benchmarks {group} {name}", *sys.argv[3:]]
        return importlib.import_module(f"benchmarks.{commands[name]}").main()
    wrong = group not in (*GROUPS, *HELP) or name not in HELP
    print(listing({group: commands} if commands else GROUPS), file=sys.stderr if wrong else sys.stdout)
    return 2 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
