"""From the Hub to a running kernel, as users do it: real clients, each with empty caches in a process of its own."""

import json
import shutil
import subprocess
import sys

import pytest

from scripts.load import REPO_ID
from tests.hub.programs import GET, USE
from tests.settings import ROOT


def test_by_version_and_by_revision(client, published, cpu_variant):
    for which in ("version=1", "revision='v1'", f"revision='{published}'"):
        done = client.run(GET.format(which))
        assert done.returncode == 0, done.err
        assert done.out.endswith(f"/{published}/build/{cpu_variant.name}/__init__.py\n")
    downloads = [line for line in client.hub.requests if line.startswith("GET") and "/resolve/" in line]
    assert len(downloads) == len(set(downloads)), "the cache was not used"
    assert not [line for line in downloads if "cu130" in line or "rocm72" in line], "another variant was downloaded"


def test_whether_there_is_one(client, published):
    code = f"""
from kernels import has_kernel
print(has_kernel('{REPO_ID}', version=1, backend='cpu'), has_kernel('{REPO_ID}', version=1))
try:
    has_kernel('{REPO_ID}', version=2)
except ValueError as error:
    print(error)
"""
    done = client.run(code)
    assert done.returncode == 0, done.err
    # torch here is CUDA's build, of the version of the stand-in or of another.
    assert done.out.splitlines()[0] in ("True True", "True False")
    assert done.out.splitlines()[1] == "Version 2 not found, available versions: 1"
    assert not [line for line in client.hub.requests if line.startswith("GET") and line.endswith(".so")]


def test_a_layer_by_kernelize(client, published):
    code = f"""
import torch
from kernels import LayerRepository, Mode, kernelize, use_kernel_forward_from_hub, use_kernel_mapping

@use_kernel_forward_from_hub("Norm")
class Norm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.variance_epsilon = torch.nn.Parameter(torch.rand(64, dtype=torch.bfloat16)), 1e-5
    def forward(self, x):
        assert not isinstance(self, torch.nn.Module), "the slow way"  # but the layer may ask what is computed
        normal = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * normal.to(x.dtype)

layer = LayerRepository(repo_id="{REPO_ID}", layer_name="RMSNorm", version=1)
with use_kernel_mapping({{"Norm": {{"cpu": layer}}}}):
    norm = kernelize(torch.nn.Sequential(Norm()), mode=Mode.INFERENCE, device="cpu")
x = torch.randn(2, 64, dtype=torch.bfloat16)
with torch.inference_mode():
    wanted = torch.nn.functional.rms_norm(x.float(), (64,), norm[0].weight.float(), 1e-5)
    torch.testing.assert_close(norm(x).float(), wanted, rtol=2**-7, atol=0)
print("done")
"""
    # `kernelize` takes no backend: for a CPU layer torch has to be a CPU's build.
    done = client.run("import torch\ntorch.version.cuda = None\n" + code)
    assert done.returncode == 0 and done.out == "done\n", done.err


def test_an_untrusted_publisher_is_loaded_on_request_alone(client, published):
    client.hub.trusted.clear()
    done = client.run(GET.format("version=1"))
    assert (
        done.returncode == 1 and "is not from a trusted publisher" in done.error and "trust_remote_code" in done.error
    )
    assert not [line for line in client.hub.requests if "/resolve/" in line]
    for allowed in ("True", f"['{REPO_ID}']"):
        assert client.run(GET.format(f"version=1, trust_remote_code={allowed}")).returncode == 0


ENVIRONMENTS = [
    # torch's build, and the variant that it takes: of the same CUDA or ROCm, or none.
    ({"cuda": "13.0"}, "cu130"),
    ({"cuda": "13.2"}, "cu130"),
    ({"cuda": "12.8"}, None),
    ({"hip": "7.2.53211-158a2fd06d"}, "rocm72"),
    ({"hip": "6.4.43484"}, None),
    ({}, "cpu"),
]


def test_the_variant_is_that_of_torchs_build(client, published):
    code = f"""
import json, torch
from kernels.hf_hub import _get_hf_api
from kernels.resolver import resolve_hub_kernel
for versions, _ in {ENVIRONMENTS!r}:
    torch.version.cuda, torch.version.hip = versions.get("cuda"), versions.get("hip")
    try:
        found = resolve_hub_kernel('{REPO_ID}', api=_get_hf_api(), backend=None, revision='v1').variant_str
    except FileNotFoundError as error:
        found = str(error)
    print(json.dumps(found))
"""
    done = client.run(code)
    assert done.returncode == 0, done.err
    for (versions, wanted), line in zip(ENVIRONMENTS, done.out.splitlines(), strict=True):
        found = json.loads(line)
        if wanted is None:
            assert "Cannot find a build variant" in found, versions
            assert all(name in found for name in ("-cu130-", "-rocm72-", "-cpu-")), "the error names what there is"
        else:
            assert f"-{wanted}-" in found, versions


def test_the_commands_of_kernels(client, published):
    versions = client.kernels("versions", REPO_ID)
    assert versions.returncode == 0 and versions.out.startswith("Version 1:\n"), versions.err
    assert all(f"-{name}-" in versions.out for name in ("cpu", "cu130", "rocm72"))
    info = client.kernels("info", REPO_ID, "--json")
    described = json.loads(info.out)
    assert (described["name"], described["version"]) == ("rocm-fp8-kernels", 1)
    assert described["backends"] == ["cpu", "cuda", "rocm"] and described["revision"] == "v1"
    # Nothing of ours is signed: only kernels-community's workflows are accepted as signers.
    signature = client.kernels("verify-signature", REPO_ID, "1", "--all-variants")
    assert signature.returncode == 1
    assert signature.out.count("cannot verify kernel integrity, signature not found") == 3
    assert client.kernels("verify-signature", REPO_ID, "1", "--all-variants", "--filter-unsigned").returncode == 0


@pytest.fixture
def consumer(tmp_path):
    folder = tmp_path / "consumer"
    shutil.copytree(ROOT / "examples" / "consumer", folder)
    return folder


def test_a_locked_project_runs_offline(client, published, consumer, tmp_path):
    """examples/consumer as its README says."""
    assert client.kernels("lock", ".", cwd=consumer).returncode == 0
    assert json.loads((consumer / "kernels.lock").read_text())[0]["lock"]["commit"] == published
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", str(tmp_path / "site"), str(consumer)], check=True)
    run = f"import sys; sys.path.insert(0, '{tmp_path / 'site'}'); from consumer import main; main()"

    done = client.run(run, HF_HUB_OFFLINE="1")
    assert done.returncode == 1 and done.error.startswith("FileNotFoundError")
    argv = ["hf", "download", "--repo-type", "kernel", REPO_ID, "--revision", published, "--cache-dir"]
    download = f"import os, sys; sys.argv = [*{argv!r}, os.environ['KERNELS_CACHE']]; "
    assert client.run(download + "from huggingface_hub.cli.hf import main; main()").returncode == 0
    before = len(client.hub.requests)
    done = client.run(run, HF_HUB_OFFLINE="1")
    assert done.returncode == 0 and "float8_e4m3fn" in done.out, done.err
    assert len(client.hub.requests) == before

    locked = f"""
from pathlib import Path
from kernels import get_locked_kernel
import torch
torch.version.cuda = None
kernel = get_locked_kernel('{REPO_ID}', lockfile=Path('{consumer / "kernels.lock"}'))
"""
    assert client.run(locked + USE, HF_HUB_OFFLINE="1").returncode == 0
    assert client.run(locked + USE).returncode == 0


def test_what_kernels_download_lacks(client, published, consumer):
    """docs/verification.md says so: where this fails, the clients have been mended, and the text can go."""
    assert client.kernels("lock", ".", cwd=consumer).returncode == 0
    assert client.kernels("download", "--all-variants", ".", cwd=consumer).returncode == 0
    done = client.run(GET.format(f"revision='{published}'"), HF_HUB_OFFLINE="1")
    assert done.returncode == 1 and "Cannot find a local snapshot" in done.error
