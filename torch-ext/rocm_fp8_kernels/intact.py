"""Refuses files that are not those that were built: a bit that flipped on the way would compute wrong numbers.

kernels 0.17 and huggingface_hub 2.4 compare a download's size alone. This costs a few milliseconds, once a process.
"""

import base64
import hashlib
import json
from pathlib import Path


def check_files(folder: Path) -> None:
    """ImportError where a file of the variant in `folder` is not as in the digest of its metadata.json.

    Without metadata.json or a digest in it (kernel-builder's development builds) nothing is checked.
    """
    metadata = folder / "metadata.json"
    digest = json.loads(metadata.read_bytes()).get("digest") if metadata.is_file() else None
    if digest is None:
        return
    for name, wanted in digest["files"].items():
        found = hashlib.new(digest["algorithm"], (folder / name).read_bytes()).digest()
        if base64.b64encode(found).decode() != wanted:
            # In the Hub's cache a snapshot's files are links to blobs, which a new download would not replace.
            cache = next((p.parent for p in folder.parents if p.name == "snapshots"), folder)
            raise ImportError(
                f"rocm-fp8-kernels: {folder / name} is not the file that was built (its {digest['algorithm']} is not"
                f" metadata.json's): delete {cache} and load the kernel again"
            )
