"""Variants to a Hub repository, laid out as kernel-builder's `upload` does (its upload.rs):

    branch vN    build/<variant>/...  the variants of version N; other variants that are there stay
                 benchmarks/benchmark*.py
    main         README.md  the card

A version changes by one commit: clients see the old one or the new one. So the order is: contents of large files, the
branch where it is new, the commit, last the card. A new branch whose commit fails is removed again; kernel-builder
makes the branch first and writes the card first."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path


class UploadError(Exception):
    """One line that says why nothing was published."""


@dataclass
class Release:
    """What publishing `variants` as `branch` of `repo_id` means for what is there now."""

    repo_id: str
    branch: str
    files: dict[str, Path]  # path in the repository -> file
    card: str
    token: str | None = None
    existing: dict[str, object] = field(default_factory=dict)  # path -> huggingface_hub's RepoFile
    parent: str | None = None  # the commit of the branch; None: there is no such branch

    @classmethod
    def of(cls, repo_id: str, version: int, variants: list[Path], benchmarks: Path, card: str) -> "Release":
        files = {f"build/{v.name}/{p.relative_to(v)}": p for v in variants for p in sorted(v.rglob("*")) if p.is_file()}
        files |= {f"benchmarks/{p.name}": p for p in sorted(benchmarks.glob("benchmark*.py"))}
        return cls(repo_id, f"v{version}", files, card)

    def look(self, api) -> None:
        """Asks the Hub what is published. A repository that is not there is an empty one."""
        from huggingface_hub.errors import RepositoryNotFoundError

        try:
            branches = api.list_repo_refs(self.repo_id, repo_type="kernel").branches
        except RepositoryNotFoundError:
            return
        heads = {branch.name: branch.target_commit for branch in branches}
        self.parent = heads.get(self.branch)
        self.existing = self.files_at(api, self.parent or heads["main"])

    def files_at(self, api, revision: str) -> dict[str, object]:
        """Path -> huggingface_hub's RepoFile."""
        from huggingface_hub.hf_api import RepoFile

        tree = api.list_repo_tree(self.repo_id, repo_type="kernel", revision=revision, recursive=True)
        return {entry.path: entry for entry in tree if isinstance(entry, RepoFile)}

    def stale(self) -> list[str]:
        """Files to delete: what an older upload of the same variants left. A new branch begins as a copy of main."""
        variants = {"/".join(path.split("/")[:2]) + "/" for path in self.files if path.startswith("build/")}
        replaced = ("build/", "benchmarks/") if self.parent is None else (*variants, "benchmarks/benchmark")
        return sorted(path for path in self.existing if path.startswith(replaced) and path not in self.files)

    def changed(self) -> list[str]:
        return [path for path, file in self.files.items() if not same_content(self.existing.get(path), file)]

    def publish(self, api, message: str) -> str:
        """Returns the commit of the version. UploadError: the published version is what it was."""
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        where = {"repo_id": self.repo_id, "repo_type": "kernel"}
        api.create_repo(**where, exist_ok=True)
        self.look(api)
        added = [CommitOperationAdd(path, str(self.files[path])) for path in self.changed()]
        operations = [*added, *(CommitOperationDelete(path) for path in self.stale())]
        commit = self.parent
        if operations:
            api.preupload_lfs_files(additions=added, revision=self.branch if self.parent else "main", **where)
            if self.parent is None:
                api.create_branch(branch=self.branch, **where)
            try:
                commit = api.create_commit(
                    operations=operations,
                    revision=self.branch,
                    commit_message=message,
                    parent_commit=self.parent,  # refused where somebody has published meanwhile
                    **where,
                ).oid
            except BaseException:  # Ctrl-C too
                if self.parent is None:
                    api.delete_branch(branch=self.branch, **where)
                raise
        self.confirm(api, commit)
        card = CommitOperationAdd("README.md", self.card.encode())
        api.create_commit(operations=[card], revision="main", commit_message=message, **where)
        return commit

    def confirm(self, api, commit: str) -> None:
        """Each file is there with the bytes that were sent."""
        there = self.files_at(api, commit)
        wrong = [path for path, file in self.files.items() if not same_content(there.get(path), file)]
        if wrong:
            raise UploadError(f"published, but these are not on the Hub as they were sent: {', '.join(wrong)}")


def same_content(entry, file: Path) -> bool:
    """Whether the Hub's entry of a file has the file's bytes: by its SHA-256, or git's object id of a small file."""
    if entry is None:
        return False
    content = file.read_bytes()
    if entry.lfs is not None:
        return entry.lfs.sha256 == hashlib.sha256(content).hexdigest()
    return entry.blob_id == hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
