"""scripts/release.py: what it checks, what it uploads, and that a failed upload leaves the published version alone."""

import json
import os
import shutil
import signal
import threading
import time

import pytest
from builder import read_config
from huggingface_hub.errors import HfHubHTTPError
from publishing import UploadError, problems_of, variants_in

from scripts.load import REPO_ID
from tests.hub.client import Client
from tests.hub.faults import Fault
from tests.hub.server import TOKEN
from tests.settings import ROOT


@pytest.fixture
def folder(cpu_variant, tmp_path):
    """The CPU's variant alone, to be changed at will."""
    shutil.copytree(cpu_variant, tmp_path / "variants" / cpu_variant.name)
    return tmp_path / "variants"


def command(client: Client, folder, *arguments: str, start=False, **environment: str):
    argv = ["release.py", "--variants", str(folder), "--allow-dirty", *arguments]
    script = ROOT / "scripts" / "release.py"
    code = f"import runpy, sys; sys.argv = {argv!r}; sys.path.insert(0, '{script.parent}'); "
    code += f"runpy.run_path('{script}', run_name='__main__')"
    return (client.start if start else client.run)(code, **({"HF_TOKEN": TOKEN} | environment))


def state(hub) -> tuple:
    """Branches and the files of each."""
    if REPO_ID not in hub.store.repositories:
        return ()
    repository = hub.store.repositories[REPO_ID]
    return {name: repository.commits[oid].files for name, oid in repository.branches.items()}


def test_it_says_what_it_would_do_and_does_it_when_asked(client, hub, folder, cpu_variant):
    dry = command(client, folder)
    assert dry.returncode == 0, dry.err
    assert f"checked: {cpu_variant.name}\n" in dry.out
    assert f"would publish: {REPO_ID} v1 (new) on {hub.endpoint}\n" in dry.out and "metadata.json" in dry.out
    assert state(hub) == () and not [line for line in hub.requests if line.startswith(("POST", "PUT"))]

    done = command(client, folder, "--upload")
    assert done.returncode == 0 and done.out.splitlines()[-1].startswith(f"published: {REPO_ID} v1, commit "), done.err
    files = state(hub)
    wanted = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert set(files["v1"]) == {f"build/{path}" for path in wanted} | {".gitattributes", "benchmarks/benchmark.py"}
    assert set(files["main"]) == {".gitattributes", "README.md"}
    card = hub.store.content(files["main"]["README.md"].etag).read_text()
    assert card.startswith("---\nlibrary_name: kernels\n") and f'get_kernel("{REPO_ID}", version=1' in card
    assert [name for name, blob in files["v1"].items() if blob.sha256] == [n for n in files["v1"] if n.endswith(".so")]

    before = dict(hub.store.repositories[REPO_ID].branches)
    again = command(client, folder, "--upload")
    assert again.returncode == 0 and hub.store.repositories[REPO_ID].branches == before, "a commit without a change"
    assert not [line for line in command(client, folder).out.splitlines() if line.startswith(("  add", "  change"))]


def test_a_second_upload_replaces_its_variants_and_leaves_others(hub, release, variants, folder, cpu_variant):
    release(variants)
    (folder / cpu_variant.name / "reference" / "norms.py").unlink()
    (folder / cpu_variant.name / "new.py").write_text("# new\n")
    release(folder)
    files = state(hub)["v1"]
    assert f"build/{cpu_variant.name}/reference/norms.py" not in files and f"build/{cpu_variant.name}/new.py" in files
    assert len({path.split("/")[1] for path in files if path.startswith("build/")}) == 3


def test_a_new_version_leaves_the_old_one(hub, release, variants, folder):
    release(variants)
    before = state(hub)["v1"]
    release(folder, version=2)
    assert state(hub)["v1"] == before
    assert {path.split("/")[1] for path in state(hub)["v2"] if path.startswith("build/")} == {
        each.name for each in folder.iterdir()
    }


@pytest.mark.parametrize(
    "which", ["GET .*/refs", "POST .*/preupload/", "POST .*/batch", "PUT /lfs-content", "POST .*/commit/v"]
)
@pytest.mark.parametrize("status", [403, 500])
def test_a_failed_upload_changes_nothing_and_can_be_repeated(
    hub, release, variants, folder, cpu_variant, which, status
):
    release(variants)
    before = state(hub)
    (folder / cpu_variant.name / "new.py").write_text("# new\n")
    for version in (1, 2):
        # Another library each time, so that its content has to travel.
        library = next((folder / cpu_variant.name).glob("*.so"))
        library.write_bytes(library.read_bytes() + os.urandom(8))
        hub.faults = [Fault(which, times=1, status=status)]
        try:
            release(folder, version)
        except (HfHubHTTPError, RuntimeError):
            assert state(hub) == before
            release(folder, version)
        else:
            assert status == 500, "the client has repeated the request"
        assert hub.faults[0].times == 0
        before = state(hub)
        assert f"build/{cpu_variant.name}/new.py" in before[f"v{version}"]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=lambda how: how.name)
def test_an_interrupted_upload_changes_nothing(client, hub, folder, how):
    gate = threading.Event()
    hub.faults = [Fault("PUT /lfs-content", hold=gate)]
    running = command(client, folder, "--upload", start=True)
    deadline = time.monotonic() + 600
    while not any(line.startswith("PUT") for line in hub.requests):
        assert time.monotonic() < deadline and running.process.is_alive()
        time.sleep(0.02)
    os.kill(running.process.pid, how)
    if how == signal.SIGKILL:
        running.process.join()
    gate.set()
    done = running.wait()
    assert done.returncode != 0 and "published:" not in done.out
    assert set(state(hub)) == {"main"}, "a version that has nothing in it"
    assert command(client, folder, "--upload").returncode == 0


def test_two_who_publish_at_once_are_told(hub, release, variants, folder, cpu_variant, api, xet_off):
    """The second commit is refused: its author has not seen the first."""
    release(variants)
    original = api.preupload_lfs_files

    def meanwhile(**arguments):
        original(**arguments)
        api.preupload_lfs_files = original
        (folder / cpu_variant.name / "theirs.py").write_text("")
        release(folder)
        (folder / cpu_variant.name / "theirs.py").unlink()

    (folder / cpu_variant.name / "ours.py").write_text("")
    api.preupload_lfs_files = meanwhile
    with pytest.raises(HfHubHTTPError, match="A commit has happened since"):
        release(folder)
    assert f"build/{cpu_variant.name}/theirs.py" in state(hub)["v1"]


def test_what_arrives_otherwise_than_it_was_sent_is_told(hub, folder, release, cpu_variant, monkeypatch):
    from publishing import upload

    real = upload.same_content
    monkeypatch.setattr(upload, "same_content", lambda entry, file: file.name != "gemm.py" and real(entry, file))
    with pytest.raises(UploadError, match=f"build/{cpu_variant.name}/ops/gemm.py"):
        release(folder)


def test_a_refusal_is_one_line(client, folder):
    done = command(client, folder, "--upload", HF_TOKEN="hf_of_somebody_else")
    assert done.returncode == 1 and done.err.count("\n") == 1
    assert done.err.startswith(f"release.py: {client.hub.endpoint}: ") and "401" in done.err


# --- what is checked ---


def edited(variant, **changes):
    path = variant / "metadata.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def flipped(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


PROBLEMS = {
    "uncommitted": (lambda v, lib: edited(v, id=lib.name.split(".")[0] + "_dirty"), "uncommitted changes"),
    "no-metadata": (lambda v, lib: (v / "metadata.json").unlink(), "metadata.json: "),
    "bad-metadata": (lambda v, lib: (v / "metadata.json").write_text("{"), "metadata.json: "),
    "another-version": (lambda v, lib: edited(v, version=7), "is rocm-fp8-kernels 7, build.toml says"),
    "another-package": (lambda v, lib: edited(v, name="other"), "is other 1, build.toml says"),
    "another-backend": (lambda v, lib: edited(v, backend={"type": "cuda"}), "metadata.json says cuda"),
    "no-digest": (lambda v, lib: edited(v, digest=None), "no digest"),
    "a-flipped-bit": (lambda v, lib: flipped(lib), "not as in the digest: "),
    "a-foreign-file": (lambda v, lib: (v / "notes.txt").write_text(""), "not as in the digest: "),
    "a-missing-file": (lambda v, lib: (v / "ops" / "gemm.py").unlink(), "not as in the digest: "),
    "two-libraries": (lambda v, lib: shutil.copy(lib, v / "other.abi3.so"), "has the libraries"),
    "no-library": (lambda v, lib: lib.unlink(), "has the libraries []"),
    "no-elf": (lambda v, lib: lib.write_bytes(b"text"), ".abi3.so: "),
    "another-namespace": (
        lambda v, lib: (v / "_ops.py").write_text((v / "_ops.py").read_text().replace("_cpu_", "_gpu_")),
        "_ops.py is not of",
    ),
}


@pytest.fixture(scope="session")
def config():
    return read_config(ROOT)


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_problem_is_named(config, folder, name):
    (variant,) = variants_in(folder)
    assert problems_of(config, [variant], allow_dirty=True) == []
    spoil, words = PROBLEMS[name]
    spoil(variant, next(variant.glob("*.so")))
    found = problems_of(config, [variant], allow_dirty=name != "uncommitted")
    assert found and all(line.startswith(f"{variant.name}: ") for line in found)
    assert any(words in line for line in found), found


def test_a_library_of_a_newer_system_is_refused(config, folder, monkeypatch):
    from publishing import checks

    monkeypatch.setattr(checks, "MANYLINUX", "manylinux_2_17")  # the library asks for more than that
    monkeypatch.setattr(checks, "PYTHON_ABI", "3.2")
    (variant,) = variants_in(folder)
    assert problems_of(config, [variant], allow_dirty=True)


def test_variants_of_two_sources_are_refused(variants, folder, cpu_variant):
    from publishing.checks import same_python

    other = folder / "other"
    shutil.copytree(folder / cpu_variant.name, other)
    assert same_python([folder / cpu_variant.name, other]) == []
    (other / "_ops.py").write_text("# each variant has its own\n")
    assert same_python([folder / cpu_variant.name, other]) == []
    (other / "ops" / "gemm.py").write_text("# another source\n")
    (line,) = same_python([folder / cpu_variant.name, other])
    assert line.startswith("other: ")


def test_without_variants_one_line_says_so(client, tmp_path):
    done = command(client, tmp_path)
    assert done.returncode == 1 and done.err == f"release.py: no variants in {tmp_path}\n"


def test_a_missing_toolchain_leaves_its_backend_out(monkeypatch, capsys, config):
    import release
    from builder import BuildError

    def missing(config):
        raise BuildError("no compiler")

    monkeypatch.setattr(release, "TOOLCHAINS", {"cpu": lambda config: None, "cuda": missing, "rocm": missing})
    monkeypatch.setattr(release, "build", lambda config, backend: backend)
    assert release.built(config, None) == ["cpu"]
    assert capsys.readouterr().err.splitlines() == [
        "release.py: left out: cuda: no compiler",
        "release.py: left out: rocm: no compiler",
    ]
    monkeypatch.setattr(release, "build", lambda config, backend: missing(config))
    with pytest.raises(BuildError):
        release.built(config, ["rocm"])
