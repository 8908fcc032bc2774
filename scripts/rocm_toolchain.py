#!/usr/bin/env python3
"""Brings what cross-builds the ROCm variant on a machine without ROCm and without an AMD GPU.

    python scripts/rocm_toolchain.py

On Debian: clang, its tools, lld and LLVM 22 from the system's packages (installed where this runs as root, asked
for otherwise), and HIP's headers, runtime library and device libraries, which are downloaded from the system's own
Debian mirror into build/.rocm; nothing of those is installed. A second call finds everything there. Where
ROCM_PATH names an installed ROCm 7, that one is used and nothing is fetched.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from builder.prefixes import ROCM_PREFIX as PREFIX

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
# Package -> a tool of it, by which it is found. clang calls the bundler to join the architectures' code objects.
COMPILER_PACKAGES = {
    "clang-22": "clang++-22",
    "clang-tools-22": "clang-offload-bundler-22",
    "lld-22": "ld.lld-22",
    "llvm-22": "llvm-objdump-22",
}
# Package -> the suite that has it. The device libraries are bitcode, which later compilers read.
PREFIX_PACKAGES = {
    "libamdhip64-dev": "experimental",
    "libamdhip64-7": "experimental",
    "rocm-device-libs-21": "sid",
}


class ToolchainError(Exception):
    """One line that says what is missing."""


def run(command: list[str], **kwargs) -> str:
    result = subprocess.run(command, capture_output=True, text=True, **kwargs)
    if result.returncode != 0:
        last = (result.stderr.strip() or result.stdout.strip() or "no message").splitlines()[-1]
        raise ToolchainError(f"{command[0]} failed: {last}")
    return result.stdout


def install_compiler() -> None:
    missing = [package for package, tool in COMPILER_PACKAGES.items() if shutil.which(tool) is None]
    if not missing:
        return
    command = ["apt-get", "install", "-y", "--no-install-recommends", *missing]
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise ToolchainError(f"missing: {', '.join(missing)}; as root: {' '.join(command)}")
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    run(["apt-get", "update"], env=environment)
    run(command, env=environment)


def debian_mirror() -> str:
    """Address of the mirror that this system takes Debian itself from."""
    for line in run(["apt-get", "indextargets", "--format", "$(SITE)|$(RELEASE)", "Created-By: Packages"]).splitlines():
        site, release = line.split("|")
        if re.fullmatch(r"[a-z]+", release) and site.endswith("/debian"):
            return site
    raise ToolchainError("apt lists no Debian mirror; set ROCM_PATH to an installed ROCm 7")


def fetch(prefix: Path) -> None:
    """Downloads with an apt configuration of its own and unpacks; `prefix` appears whole or not at all."""
    site = debian_mirror()
    prefix.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=prefix.parent, prefix=".rocm-") as work_dir:
        work = Path(work_dir)
        for folder in ("lists/partial", "cache/archives/partial", "etc/preferences.d", "download", "root"):
            (work / folder).mkdir(parents=True)
        (work / "status").touch()
        suites = ("trixie", *sorted(set(PREFIX_PACKAGES.values())))
        lines = [f"deb [signed-by={KEYRING}] {site} {suite} main" for suite in suites]
        (work / "etc" / "sources.list").write_text("\n".join(lines) + "\n")
        options = {
            "Dir::State": work,
            "Dir::State::lists": work / "lists",
            "Dir::State::status": work / "status",
            "Dir::Cache": work / "cache",
            "Dir::Etc::sourcelist": work / "etc" / "sources.list",
            "Dir::Etc::sourceparts": "-",
            "Dir::Etc::preferencesparts": work / "etc" / "preferences.d",
            "APT::Sandbox::User": "root",
            "Acquire::Languages": "none",
        }
        apt = ["apt-get", *(f"-o{key}={value}" for key, value in options.items())]
        run([*apt, "update"])
        run([*apt, "download", *(f"{name}/{suite}" for name, suite in PREFIX_PACKAGES.items())], cwd=work / "download")
        for package in sorted((work / "download").glob("*.deb")):
            run(["dpkg", "-x", str(package), str(work / "root")])
        shutil.rmtree(prefix, ignore_errors=True)
        os.rename(work / "root", prefix)


def main() -> int:
    try:
        if os.environ.get("ROCM_PATH"):
            print(f"ROCM_PATH={os.environ['ROCM_PATH']} is used; nothing to fetch")
            return 0
        install_compiler()
        if not (PREFIX / "usr/include/hip/hip_version.h").is_file():
            fetch(PREFIX)
    except ToolchainError as error:
        print(f"rocm_toolchain.py: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("rocm_toolchain.py: interrupted; nothing half-unpacked is left", file=sys.stderr)
        return 130
    print(PREFIX)
    return 0


if __name__ == "__main__":
    sys.exit(main())
