#!/usr/bin/env python3
"""Check the variants of a release and publish them on the Hub.

    python scripts/release.py                      # builds what this machine can, checks it, says what would change
    python scripts/release.py --upload             # and publishes it as branch v<version> of build.toml's repository
    python scripts/release.py --variants result    # finished variants, as `nix build` leaves them, instead of a build

Checked are: metadata and digest, the libraries' needs of system, Python and torch, the ROCm kernels' machine code, and
that all variants are of one source without uncommitted changes. Where a check fails, nothing is uploaded.

The Hub is HF_ENDPOINT's, the token HF_TOKEN's or that of `hf auth login`. A version changes by one commit: an upload
that fails or is interrupted leaves the published version as it was, and can be repeated.
"""

import argparse
import os
import sys
from pathlib import Path

from builder import TOOLCHAINS, BuildConfig, BuildError, build, read_config
from publishing import Release, UploadError, problems_of, render_card, variants_in


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--upload", action="store_true", help="publish (default: say what would be published)")
    parser.add_argument("--backend", action="append", help="build this one; may be repeated (default: all it can)")
    parser.add_argument("--variants", type=Path, help="folder of finished variants; nothing is built")
    parser.add_argument("--repo-id", help="default: build.toml's")
    parser.add_argument("--allow-dirty", action="store_true", help="uncommitted changes are no problem (for trials)")
    args = parser.parse_args()
    try:
        config = read_config(Path(__file__).resolve().parents[1])
        return release(config, args)
    except (BuildError, UploadError) as error:
        print(f"release.py: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("release.py: interrupted; the published version is what it was", file=sys.stderr)
        return 130


def release(config: BuildConfig, args: argparse.Namespace) -> int:
    variants = variants_in(args.variants) if args.variants else built(config, args.backend)
    if not variants:
        raise UploadError(f"no variants in {args.variants}")
    problems = problems_of(config, variants, allow_dirty=args.allow_dirty)
    for problem in problems:
        print(f"release.py: {problem}", file=sys.stderr)
    if problems:
        return 1
    print(f"checked: {', '.join(variant.name for variant in variants)}")
    version = config.table["general"]["version"]
    planned = Release.of(
        args.repo_id or config.repo_id, version, variants, config.root / "benchmarks", render_card(config)
    )
    return with_the_hub(planned, upload=args.upload, message=f"{config.name} {version}, {config.unique_id}")


def built(config: BuildConfig, backends: list[str] | None) -> list[Path]:
    """Builds the backends that were asked for, or all of which this machine has the toolchain."""
    found = []
    for backend in backends or config.backends:
        try:
            if backend in TOOLCHAINS and not backends:
                TOOLCHAINS[backend](config)
        except BuildError as missing:
            print(f"release.py: left out: {backend}: {missing}", file=sys.stderr)
            continue
        found.append(build(config, backend))
    return found


def with_the_hub(planned: Release, *, upload: bool, message: str) -> int:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    api = HfApi(library_name="rocm-fp8-kernels-release")
    try:
        if upload:
            commit = planned.publish(api, message)
            print(f"published: {planned.repo_id} {planned.branch}, commit {commit}")
            return 0
        planned.look(api)
    except (HfHubHTTPError, OSError, RuntimeError, ValueError) as error:
        first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise UploadError(f"{api.endpoint}: {first}") from error
    state = "new" if planned.parent is None else f"now {planned.parent[:7]}"
    print(f"would publish: {planned.repo_id} {planned.branch} ({state}) on {api.endpoint}")
    for path in planned.changed():
        size = os.path.getsize(planned.files[path])
        print(f"  {'change' if path in planned.existing else 'add   '} {path} ({size} bytes)")
    for path in planned.stale():
        print(f"  delete {path}")
    print("  and the card as README.md of main. --upload does it.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
