"""What the Hub keeps: repositories with branches, tags and commits, and the contents of files. All of it lies in one
folder, and every change is one rename, so that a Hub that was killed starts again with whole repositories."""

import hashlib
import json
import threading
from dataclasses import asdict, dataclass, field
from pathlib import Path


class Refused(Exception):
    """A request that the Hub answers with an error status, in the Hub's words."""

    def __init__(self, status: int, message: str, code: str | None = None):
        super().__init__(message)
        self.status, self.message, self.code = status, message, code


@dataclass(frozen=True)
class Blob:
    """A file's content: git's object id, the size in bytes, and the SHA-256 where it is stored as a large file."""

    oid: str
    size: int
    sha256: str | None = None

    @property
    def etag(self) -> str:
        return self.sha256 or self.oid


def git_blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass
class Commit:
    """A whole tree: path -> blob."""

    files: dict[str, Blob]
    parent: str | None
    title: str


@dataclass
class Repository:
    repo_id: str
    commits: dict[str, Commit] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)

    def commit(self, files: dict[str, Blob], parent: str | None, title: str) -> str:
        text = json.dumps([self.repo_id, parent, title, {path: files[path].oid for path in sorted(files)}])
        oid = hashlib.sha1(text.encode()).hexdigest()
        self.commits[oid] = Commit(files, parent, title)
        return oid

    def resolve(self, revision: str) -> str:
        """The commit of a branch, a tag, a full ref or a commit."""
        name = revision.removeprefix("refs/heads/").removeprefix("refs/tags/")
        oid = self.branches.get(name) or self.tags.get(name) or name
        if oid not in self.commits:
            raise Refused(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return oid


class Store:
    def __init__(self, folder: Path):
        self.folder = folder
        self.lock = threading.RLock()  # a server answers in threads
        self.repositories: dict[str, Repository] = {}
        (folder / "contents").mkdir(parents=True, exist_ok=True)
        for path in sorted(folder.glob("*.json")):
            self._read(json.loads(path.read_text()))

    def repository(self, repo_id: str) -> Repository:
        if repo_id not in self.repositories:
            raise Refused(404, "Repository not found", "RepoNotFound")
        return self.repositories[repo_id]

    def create(self, repo_id: str) -> None:
        with self.lock:
            if repo_id in self.repositories:
                raise Refused(409, "You already created this kernel repo")
            repository = Repository(repo_id)
            attributes = self.add(b"*.so filter=lfs diff=lfs merge=lfs -text\n")
            repository.branches["main"] = repository.commit({".gitattributes": attributes}, None, "initial commit")
            self.repositories[repo_id] = repository
            self.write(repository)

    # Contents lie under their git object id or, large files, under their SHA-256.

    def content(self, name: str) -> Path:
        return self.folder / "contents" / name

    def add(self, content: bytes, sha256: str | None = None) -> Blob:
        if sha256 and hashlib.sha256(content).hexdigest() != sha256:
            raise Refused(400, "The content's SHA-256 is another than the one announced")
        blob = Blob(git_blob(content), len(content), sha256)
        unfinished = self.content(f"{blob.etag}.{threading.get_ident()}.part")
        unfinished.write_bytes(content)
        unfinished.rename(self.content(blob.etag))
        return blob

    def large(self, sha256: str, path: str) -> Blob:
        stored = self.content(sha256)
        if not stored.is_file():
            raise Refused(400, f"{path}: no large file of this SHA-256 was uploaded")
        pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {stored.stat().st_size}\n"
        return Blob(git_blob(pointer.encode()), stored.stat().st_size, sha256)

    def write(self, repository: Repository) -> None:
        state = asdict(repository)
        path = self.folder / f"{repository.repo_id.replace('/', '--')}.json"
        unfinished = path.with_suffix(".part")
        unfinished.write_text(json.dumps(state))
        unfinished.rename(path)

    def _read(self, state: dict) -> None:
        repository = Repository(**state | {"commits": {}})
        for oid, commit in state["commits"].items():
            files = {path: Blob(**blob) for path, blob in commit["files"].items()}
            repository.commits[oid] = Commit(**commit | {"files": files})
        self.repositories[repository.repo_id] = repository
