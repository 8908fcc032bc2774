"""The loopback Hub itself, where other tests would not notice that it is wrong."""

import hashlib
import urllib.error
import urllib.request

import pytest
from huggingface_hub import CommitOperationAdd, CommitOperationDelete
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError
from huggingface_hub.hf_api import RepoFile, RepoFolder

from tests.hub.server import TREE_PAGE, Hub

REPO = {"repo_id": "somebody/something", "repo_type": "kernel"}


def commit(api, files: dict[str, bytes], deleted=(), revision="main") -> str:
    operations = [CommitOperationAdd(path, content) for path, content in files.items()]
    operations += [CommitOperationDelete(path) for path in deleted]
    return api.create_commit(operations=operations, commit_message="a commit", revision=revision, **REPO).oid


@pytest.fixture
def repository(api, xet_off):
    api.create_repo(**REPO)
    commit(api, {"small.txt": b"small", "build/a/large.so": b"large" * 1000, "build/b/x/y.py": b""})


def opened(hub, path: str, **headers: str):
    request = urllib.request.Request(f"{hub.endpoint}/kernels/somebody/something/resolve/main/{path}", headers=headers)
    return urllib.request.urlopen(request)


def test_files_have_gits_and_lfss_names(hub, api, repository):
    tree = {entry.path: entry for entry in api.list_repo_tree(**REPO, recursive=True)}
    assert {path for path, entry in tree.items() if isinstance(entry, RepoFolder)} == {
        "build",
        "build/a",
        "build/b",
        "build/b/x",
    }
    # `git hash-object` of "small", and of an empty file.
    assert tree["small.txt"].blob_id == hashlib.sha1(b"blob 5\0small").hexdigest()
    assert tree["build/b/x/y.py"].blob_id == "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"
    assert tree["build/a/large.so"].lfs.sha256 == hashlib.sha256(b"large" * 1000).hexdigest()
    assert [entry.path for entry in api.list_repo_tree(**REPO, path_in_repo="build")] == ["build/a", "build/b"]
    assert opened(hub, "small.txt").headers["ETag"].strip('"') == tree["small.txt"].blob_id


def test_a_part_of_a_file(hub, repository):
    answer = opened(hub, "build/a/large.so", Range="bytes=4995-")
    assert answer.status == 206 and answer.read() == b"large"
    assert answer.headers["Content-Range"] == "bytes 4995-4999/5000"
    with pytest.raises(urllib.error.HTTPError, match="416"):
        opened(hub, "build/a/large.so", Range="bytes=5000-")


def test_a_long_list_comes_in_pages(hub, api, repository):
    commit(api, {f"many/{i:03}": b"" for i in range(3 * TREE_PAGE)})
    paths = [entry.path for entry in api.list_repo_tree(**REPO, path_in_repo="many") if isinstance(entry, RepoFile)]
    assert paths == [f"many/{i:03}" for i in range(3 * TREE_PAGE)]
    assert len([line for line in hub.requests if "/tree/main/many" in line]) == 3


def test_an_old_commit_stays_as_it_was(api, repository):
    old = api.list_repo_refs(**REPO).branches[0].target_commit
    new = commit(api, {"small.txt": b"other"}, deleted=["build/a/large.so", "build/b/"])
    assert {e.path for e in api.list_repo_tree(**REPO, revision=new)} == {".gitattributes", "small.txt"}
    assert {e.path for e in api.list_repo_tree(**REPO, revision=old)} == {".gitattributes", "small.txt", "build"}


def test_what_is_not_there(api, repository):
    with pytest.raises(RevisionNotFoundError):
        list(api.list_repo_tree(**REPO, revision="v9"))
    with pytest.raises(RepositoryNotFoundError):
        api.list_repo_refs("nobody/nothing", repo_type="kernel")
    with pytest.raises(HfHubHTTPError, match="doesn't exist"):
        commit(api, {}, deleted=["nothing.txt"])
    with pytest.raises(HfHubHTTPError, match="Reference already exists"):
        api.create_branch(branch="main", **REPO)


def test_who_may_write(hub, api, repository):
    api.token = "hf_of_somebody_else"
    with pytest.raises(HfHubHTTPError, match="401"):
        commit(api, {"small.txt": b"theirs"})
    assert opened(hub, "small.txt").read() == b"small"


def test_content_that_is_not_what_was_announced(hub, repository):
    request = urllib.request.Request(f"{hub.endpoint}/lfs-content/{'0' * 64}", data=b"other", method="PUT")
    with pytest.raises(urllib.error.HTTPError, match="400"):
        urllib.request.urlopen(request)


def test_a_hub_that_starts_again_has_everything(hub, repository):
    other = Hub(hub.folder).start()
    try:
        assert opened(other, "build/a/large.so").read() == b"large" * 1000
        assert other.store.repositories == hub.store.repositories
    finally:
        other.stop()
