#!/usr/bin/env python3
"""Build a variant of the kernel on any x86-64 Linux machine, without Nix.

    python scripts/build.py --backend cpu

reads build.toml (validated by the `kernels` library's own parser), compiles what changed with ninja, and lays
out build/<variant>/ as kernel-builder does: the Python sources, `_ops.py`, the library, metadata.json with the
digest. Then

    LOCAL_KERNELS=rocm-fp8-kernels/rocm-fp8-kernels=$PWD python ...

makes `kernels.get_kernel("rocm-fp8-kernels/rocm-fp8-kernels", version=1)` load it. Releases are built by Nix
(flake.nix); both read the same build.toml.
"""

import argparse
import sys
from pathlib import Path

from builder import BuildError, build, read_config


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="cpu", help="one of build.toml's backends (default: cpu)")
    parser.add_argument(
        "--source",
        type=Path,
        default=Path(__file__).resolve().parents[1],
        help="folder that holds build.toml (default: this repository)",
    )
    parser.add_argument(
        "--archs", nargs="+", default=(), help="of the backend's architectures these alone, for checks (default: all)"
    )
    parser.add_argument("--jobs", type=int, default=None, help="compilers at once (default: ninja's choice)")
    parser.add_argument("--verbose", action="store_true", help="print every command")
    args = parser.parse_args()
    try:
        config = read_config(args.source, args.archs)
        variant = build(config, args.backend, jobs=args.jobs, verbose=args.verbose)
    except BuildError as error:
        print(f"build.py: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("build.py: interrupted; nothing was installed, the next run goes on from here", file=sys.stderr)
        return 130
    print(variant)
    return 0


if __name__ == "__main__":
    sys.exit(main())
