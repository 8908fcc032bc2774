"""The package's public interface as data, and what a change of it breaks.

    python -m tests.package.public_api --update

writes api_v<version>.json beside this file, of the version that build.toml names, and the lists of the Hub's card
(CARD.md). It refuses a change that would break callers of that version: such a change needs a new version, which is a
new file."""

import argparse
import inspect
import json
import re
import sys
import tomllib
from pathlib import Path
from types import FunctionType

import torch

from problems.operators import registered
from tests.settings import ROOT


def snapshot_file() -> Path:
    version = tomllib.loads((ROOT / "build.toml").read_text())["general"]["version"]
    return Path(__file__).with_name(f"api_v{version}.json")


def parameters(function) -> list[list[str]]:
    """[name, kind, default] each."""

    def shown(default) -> str:
        if inspect.ismodule(default):  # of the package; where it lies is no part of the interface
            return default.__name__.split(".", 1)[1]
        return "" if default is inspect.Parameter.empty else repr(default)

    return [[p.name, p.kind.name, shown(p.default)] for p in inspect.signature(function).parameters.values()]


def interface(kernel) -> dict:
    """Functions with their parameters, constants with their values, and the operators' schemas."""
    found = {"callables": {}, "constants": {}, "schemas": {}}
    for prefix, module in [
        ("", kernel),
        *((f"{n}.", getattr(kernel, n)) for n in ("layers", "quantization", "reference", "smoothquant")),
    ]:
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isclass(value):
                for method in [m for m in ("__init__", "forward") if hasattr(value, m)]:
                    found["callables"][f"{prefix}{name}.{method}"] = parameters(getattr(value, method))
            elif callable(value):
                found["callables"][prefix + name] = parameters(value)
            elif not inspect.ismodule(value):
                found["constants"][prefix + name] = repr(value)
    namespace = kernel._ops.ops.name
    for name, schema in registered(kernel).items():
        found["schemas"][name] = str(schema).replace(f"{namespace}::", "")
    return {kind: dict(sorted(values.items())) for kind, values in found.items()}


def with_lists(card: str, kernel) -> str:
    """CARD.md, whose lists of functions and layers have the first paragraphs of their docstrings."""

    def summary(value) -> str:
        return " ".join(inspect.getdoc(value).split("\n\n")[0].split())

    def public(cls: type) -> str:
        return ", ".join(f"`{name}`" for name in vars(cls) if not name.startswith("_"))

    functions = {n: getattr(kernel, n) for n in kernel.__all__ if isinstance(getattr(kernel, n), FunctionType)}
    layers = {n: getattr(kernel.layers, n) for n in kernel.layers.__all__ if inspect.isclass(getattr(kernel.layers, n))}
    layers = {name: layer for name, layer in layers.items() if issubclass(layer, torch.nn.Module)}
    for heading, named in {"functions": functions, "layers": layers}.items():
        lines = [f"- `{name}`: {summary(value)}" for name, value in named.items()]
        if named is functions:
            ranks = kernel.comm.Communicator
            lines.append(f"- `comm.Communicator`: {summary(ranks)} {public(ranks.__mro__[1])}.")
        text = f"\n## Available {heading}\n\n" + "\n".join(lines) + "\n"
        card = re.sub(rf"\n## Available {heading}\n.*?(?=\n## )", lambda _: text, card, flags=re.DOTALL)
    return card


def breaks(old: dict, new: dict) -> list[str]:
    """What a caller of `old` loses: a line each."""
    found = [f"{name} is gone" for kind in old for name in old[kind] if name not in new[kind]]
    for name in old["callables"].keys() & new["callables"].keys():
        before, after = old["callables"][name], new["callables"][name]
        if {"VAR_POSITIONAL", "VAR_KEYWORD"} <= {p[1] for p in after}:
            # A forward in the place of one of transformers', whose names it takes: it may be given all that it was.
            kept = [p for p in before if p[:2] in [q[:2] for q in after]]
            before, after = kept, [*kept, *(p for p in after if p not in kept and not p[1].startswith("VAR_"))]
        if after[: len(before)] != before:
            found.append(f"{name}: the parameters were {before}")
        found += [f"{name}: the new parameter {p[0]} has no default" for p in after[len(before) :] if not p[2]]
    for name in old["schemas"].keys() & new["schemas"].keys():
        before, after = (torch._C.parse_schema(f"x::{each['schemas'][name]}") for each in (old, new))
        if not after.is_backward_compatible_with(before):
            found.append(f"{name}: the schema was {old['schemas'][name]}")
    return sorted(found)


def render(api: dict) -> str:
    """JSON with a line a name, which is what a change shows in review."""
    kinds = []
    for kind, values in api.items():
        rows = ",\n".join(f"    {json.dumps(name)}: {json.dumps(value)}" for name, value in values.items())
        kinds.append(f"  {json.dumps(kind)}: {{\n{rows}\n  }}")
    return "{\n" + ",\n".join(kinds) + "\n}\n"


def main() -> int:
    from scripts.load import load_kernel

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true", help="write the snapshot and the card's lists")
    args = parser.parse_args()
    kernel = load_kernel("cpu")
    new, file = interface(kernel), snapshot_file()
    lost = breaks(json.loads(file.read_text()), new) if file.is_file() else []
    for line in lost:
        print(line, file=sys.stderr)
    if args.update and not lost:
        file.write_text(render(new))
        card = ROOT / "CARD.md"
        card.write_text(with_lists(card.read_text(encoding="utf-8"), kernel), encoding="utf-8")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
