"""What goes wrong on the way from a Hub ends in a working kernel or in one clear error, and the next call works."""

import json
import re
import shutil
import stat

import pytest

from scripts.load import REPO_ID
from tests.hub.faults import Fault
from tests.hub.programs import GET

LIBRARY = r"GET .*/resolve/.*\.so$"
# Tries until it works, and says how each try failed.
TRY = f"""
from kernels import get_kernel
for attempt in range(12):
    try:
        kernel = get_kernel('{REPO_ID}', version=1, backend='cpu')
        break
    except Exception as error:
        print(type(error).__name__, str(error).strip().replace(chr(10), ' '))
print('tries:', attempt + 1, kernel.rms_norm.__name__)
"""


def test_a_download_cut_in_the_middle_goes_on(client, published):
    client.hub.faults = [Fault(LIBRARY, times=1, cut=500_000)]
    done = client.run(GET.format("version=1"))
    assert done.returncode == 0, done.err
    assert len([line for line in client.hub.requests if re.search(LIBRARY, line)]) == 2


def test_a_download_that_is_always_cut_is_an_error_and_can_be_repeated(client, published):
    client.hub.faults = [Fault(LIBRARY, cut=1000)]
    done = client.run(GET.format("version=1"))
    assert done.returncode == 1 and done.out == ""
    client.hub.faults = []
    assert client.run(GET.format("version=1")).returncode == 0


@pytest.mark.parametrize("file", [r"\.so", "reference/norms.py"])
def test_a_corrupted_file_is_refused_and_the_remedy_works(client, published, file):
    client.hub.faults = [Fault(f"GET .*/resolve/.*{file}$", corrupt=True)]
    done = client.run(GET.format("version=1"))
    assert done.returncode == 1 and done.error.startswith("ImportError: rocm-fp8-kernels: ")
    assert re.search(f"{file} is not the file that was built", done.error)
    client.hub.faults = []
    assert client.run(GET.format("version=1")).error == done.error, "the client does not fetch it again"
    cache = re.search("delete (.*) and load the kernel again", done.error)[1]
    assert cache.startswith(str(client.home / "kernels"))
    shutil.rmtree(cache)
    assert client.run(GET.format("version=1")).returncode == 0


def test_metadata_whose_digest_does_not_hold(client, release, variants, tmp_path):
    shutil.copytree(variants, tmp_path / "wrong")
    metadata = next((tmp_path / "wrong").glob("*-cpu-*")) / "metadata.json"
    changed = json.loads(metadata.read_text())
    files = changed["digest"]["files"]
    files["ops/gemm.py"] = files["reference/norms.py"]
    metadata.write_text(json.dumps(changed))
    release(tmp_path / "wrong")
    done = client.run(GET.format("version=1"))
    assert done.returncode == 1 and re.search("ops/gemm.py is not the file that was built", done.error)


def test_a_missing_variant_is_named_with_what_there_is(client, release, variants, tmp_path):
    for stand_in in [path for path in variants.iterdir() if "-cpu-" not in path.name]:
        shutil.copytree(stand_in, tmp_path / "gpus" / stand_in.name)
    release(tmp_path / "gpus")
    done = client.run(GET.format("version=1"))
    assert done.returncode == 1 and "FileNotFoundError: Cannot find a build variant for this system" in done.err
    assert "-cu130-" in done.err and "-rocm72-" in done.err
    release(variants)
    assert client.run(GET.format("version=1")).returncode == 0


STAGES = ["/api/organizations/", "/refs$", "/tree/", "HEAD .*/resolve/", "GET .*/resolve/"]


@pytest.mark.parametrize("status", [401, 404, 429, 500])
def test_a_hub_that_fails_and_recovers(client, published, status):
    """Each kind of request fails once, in one process: the client repeats it, or says what was wrong."""
    client.hub.faults = [Fault(stage, times=1, status=status) for stage in STAGES]
    done = client.run(TRY)
    assert done.returncode == 0, done.err
    *failures, last = done.out.splitlines()
    assert last.startswith("tries: ") and last.endswith(" rms_norm") and failures
    assert all(fault.times == 0 for fault in client.hub.faults)
    for line in failures:
        assert str(status) in line or "could not verify publisher trust" in line or "in the local cache" in line, line


def test_two_processes_fetch_at_once(client, published):
    both = [client.start(GET.format("version=1")) for _ in range(2)]
    for done in [each.wait() for each in both]:
        assert done.returncode == 0, done.err


# A superuser may write anywhere; without this capability an owner keeps to the modes.
BOUND_BY_MODES = """
import ctypes, struct
CAP_DAC_OVERRIDE, VERSION_3 = 1, 0x20080522
header, data = struct.pack("Ii", VERSION_3, 0), ctypes.create_string_buffer(24)
libc = ctypes.CDLL(None, use_errno=True)
assert libc.capget(header, data) == 0
words = list(struct.unpack("6I", data.raw))
words[0] &= ~(1 << CAP_DAC_OVERRIDE)
assert libc.capset(header, struct.pack("6I", *words)) == 0
"""


def test_a_cache_that_is_read_only(client, published):
    cache = client.home / "kernels"
    cache.mkdir(parents=True)
    cache.chmod(0o555)
    program = BOUND_BY_MODES + GET.format("version=1")
    done = client.run(program)
    assert done.returncode == 1 and "Permission denied" in done.error and str(cache) in done.error
    cache.chmod(0o755)
    assert client.run(program).returncode == 0

    folders = [cache, *(path for path in cache.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(folder.stat().st_mode & ~(stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH))
    done = client.run(program)
    for folder in folders:
        folder.chmod(0o755)
    assert done.returncode == 0, done.err


def test_without_a_digest_nothing_is_compared(kernel, variant, tmp_path):
    """As in kernel-builder's development builds."""
    kernel.intact.check_files(tmp_path)
    (tmp_path / "metadata.json").write_text("{}")
    kernel.intact.check_files(tmp_path)
    shutil.copy(variant / "metadata.json", tmp_path)
    with pytest.raises(FileNotFoundError):
        kernel.intact.check_files(tmp_path)
