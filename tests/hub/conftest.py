"""A Hub, clients of it, and what is published there."""

import json
import logging
import shutil
from pathlib import Path

import pytest
from publishing import Release

from scripts.load import REPO_ID
from tests.hub.client import Client
from tests.hub.server import TOKEN, Hub
from tests.settings import ROOT

logging.getLogger("werkzeug").setLevel(logging.WARNING)  # a line a request


@pytest.fixture
def hub(tmp_path):
    hub = Hub(tmp_path / "hub", trusted={"rocm-fp8-kernels"}).start()
    yield hub
    hub.stop()


@pytest.fixture
def client(hub, tmp_path) -> Client:
    """A user's account with empty caches."""
    return Client(hub, tmp_path / "home")


@pytest.fixture(scope="session")
def cpu_variant() -> Path:
    """The CPU's variant in build/."""
    return next((ROOT / "build").glob("torch-*-cpu-*"))


@pytest.fixture
def api(hub):
    """huggingface_hub's client with the right to write."""
    from huggingface_hub import HfApi
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    return HfApi(endpoint=hub.endpoint, token=TOKEN)


@pytest.fixture(scope="session")
def variants(cpu_variant, tmp_path_factory) -> Path:
    """A folder with the real CPU variant, and stand-ins for the GPUs', which are chosen and never loaded."""
    folder = tmp_path_factory.mktemp("variants")
    shutil.copytree(cpu_variant, folder / cpu_variant.name, ignore=shutil.ignore_patterns("__pycache__"))
    for backend, name in (("cuda", "cu130"), ("rocm", "rocm72")):
        stand_in = folder / cpu_variant.name.replace("-cpu-", f"-{name}-")
        stand_in.mkdir()
        metadata = json.loads((cpu_variant / "metadata.json").read_text())
        metadata["backend"] = {"type": backend}
        metadata["id"] = metadata["id"].replace("_cpu_", f"_{backend}_")
        metadata["digest"]["files"] = {}
        (stand_in / "metadata.json").write_text(json.dumps(metadata))
        (stand_in / f"{metadata['id']}.abi3.so").write_bytes(b"a stand-in")
    return folder


@pytest.fixture
def xet_off(monkeypatch):
    """For publishing from the test's own process; programs of Client have it in their environment."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)


@pytest.fixture
def release(api, xet_off):
    """release(folder, version) publishes the variants in a folder, as scripts/release.py does after its checks."""

    def publish(folder: Path, version: int = 1) -> str:
        planned = Release.of(REPO_ID, version, sorted(folder.iterdir()), ROOT / "benchmarks", "---\n---\n# card\n")
        return planned.publish(api, f"version {version}")

    return publish


@pytest.fixture
def published(release, variants) -> str:
    """Version 1 is on the Hub; its commit."""
    return release(variants)
