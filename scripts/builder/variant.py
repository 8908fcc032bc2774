"""From a library to build/<variant>/, as kernel-builder lays it out and `kernels` loads it."""

import json
import os
import platform
import shutil
import sys
from pathlib import Path

from .config import BuildConfig, BuildError

OPS_PY = '''\
import torch
from . import {ops}
ops = torch.ops.{ops}

def add_op_namespace_prefix(op_name: str):
    """
    Prefix op by namespace.
    """
    return f"{ops}::{{op_name}}"
'''


def variant_name(config: BuildConfig, backend: str, toolchain) -> str:
    major, minor = config.stable_abi(backend)
    return f"torch-stable-abi{major}{minor}-{toolchain.env_name}-{platform.machine()}-{sys.platform}"


def metadata(config: BuildConfig, backend: str, toolchain) -> dict:
    general = config.table["general"]
    archs = toolchain.archs(config)
    result = {
        "name": config.name,
        "id": config.ops_name(backend),
        "version": general["version"],
        "license": general["license"],
        "python-depends": general.get("python-depends", []),
        "kernel-depends": general.get("kernel-depends", []),
        "backend": {"type": backend} | ({"archs": sorted(archs)} if archs else {}),
    }
    return result | {key: general[key] for key in ("upstream", "source") if key in general}


def digest_of(directory: Path) -> dict:
    """The digest of metadata.json's `digest` key, by kernels' own code over all files but metadata.json."""
    from kernels._rust import Digest, DigestAlgorithm

    digest = Digest.hash_variant(DigestAlgorithm.SHA256, directory)
    return {"algorithm": "sha256", "files": dict(sorted(digest.files.items()))}


def install_variant(config: BuildConfig, backend: str, toolchain, library: Path) -> Path:
    """Writes beside the variant and renames, so that it is whole or absent at any moment."""
    target = config.root / "build" / variant_name(config, backend, toolchain)
    staging = target.parent / ".work" / f"{target.name}.new"
    retired = target.parent / ".work" / f"{target.name}.old"
    for leftover in (staging, retired):
        shutil.rmtree(leftover, ignore_errors=True)

    endings = [f".{ending}" for ending in config.table["torch"].get("pyext", ["py", "pyi"])]
    package = config.root / "torch-ext" / config.python_name
    if not (package / "__init__.py").is_file():
        raise BuildError(f"{package}/__init__.py is missing")
    for source in sorted(package.rglob("*")):
        if source.suffix in endings and source.name != "_ops.py":
            copy = staging / source.relative_to(package)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)
    shutil.copyfile(library, staging / library.name)
    (staging / "_ops.py").write_text(OPS_PY.format(ops=config.ops_name(backend)))
    data = metadata(config, backend, toolchain)
    data["digest"] = digest_of(staging)
    (staging / "metadata.json").write_text(json.dumps(data, indent=2) + "\n")

    if target.exists():
        os.rename(target, retired)
    os.rename(staging, target)
    shutil.rmtree(retired, ignore_errors=True)
    return target
