"""The text of the byte-level Llama: the running interpreter's own standard library.

Nothing is downloaded: a CPython installation carries some nine megabytes of reviewed Python source.
The files fall into three parts, by name alone, so that a file is in the same part on every machine:

    HELD_OUT    twelve named modules; figures that are published are measured on them, and on nothing else
    validation  about 3 % of the other files; training picks its checkpoint by them
    training    the rest

A token is a byte. Byte 0 never occurs in Python source, so it serves as the document separator,
as BOS and as EOS; there is no tokenizer file.
"""

import sysconfig
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

VOCABULARY = 256
BOS = EOS = 0
# What the configurations of all models of these bytes say.
CONFIG = dict(vocab_size=VOCABULARY, bos_token_id=BOS, eos_token_id=EOS, tie_word_embeddings=True)

# Hand-written modules of different character (numerics, parsers, containers, I/O, text), present in
# Python 3.11 to 3.14 and without a near-copy elsewhere in the library: tokenize.py, for one, would
# leak through lib2to3.
HELD_OUT = (
    "calendar.py",
    "cmd.py",
    "csv.py",
    "fractions.py",
    "graphlib.py",
    "heapq.py",
    "html/parser.py",
    "queue.py",
    "selectors.py",
    "shlex.py",
    "statistics.py",
    "textwrap.py",
)

# Third-party packages, and tests: the latter are as large as the library and full of odd fixtures.
# `encodings` is almost wholly generated character tables.
_SKIPPED_FOLDERS = frozenset(
    ("site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__", "encodings")
)
# Generated tables, and two files that belong to the machine rather than to Python.
_SKIPPED_FILES = frozenset(
    (
        "html/entities.py",
        "pydoc_data/topics.py",
        "re/_casefix.py",
        "stringprep.py",
        "sitecustomize.py",
        "usercustomize.py",
    )
)
_SKIPPED_PREFIX = "_sysconfigdata"

# One file in 32 goes to validation.
_VALIDATION_STRIDE = 32


def encode(text: str) -> list[int]:
    """The UTF-8 bytes of `text`. No BOS is added: prepend `BOS` where a document begins."""
    return list(text.encode("utf-8"))


def decode(ids: Iterable[int]) -> str:
    """The inverse of `encode`; a character that generation cut short becomes U+FFFD."""
    return bytes(ids).decode("utf-8", errors="replace")


def stdlib_folder() -> Path:
    """The folder of the library's sources; FileNotFoundError where the interpreter ships none."""
    folder = Path(sysconfig.get_path("stdlib"))
    missing = [name for name in HELD_OUT if not (folder / name).is_file()]
    if missing:
        # A zipped, frozen or cut-down library; the first missing name is enough to recognise it.
        raise FileNotFoundError(f"this Python has no complete standard library sources: {folder / missing[0]}")
    return folder


def is_validation(name: str) -> bool:
    """Whether a file is set aside for validation. CRC-32, since Python's hash() changes with each run."""
    return zlib.crc32(name.encode("utf-8")) % _VALIDATION_STRIDE == 0


def join(documents: Iterable[bytes]) -> bytes:
    """One stream: byte 0 before each document and after the last."""
    stream = b"".join(b"\0" + document for document in documents)
    return stream + b"\0"


def training_bytes() -> bytes:
    """The stream of every file that is neither held out nor set aside for validation."""
    return join(text for name, text in _sources() if name not in HELD_OUT and not is_validation(name))


def validation_bytes() -> bytes:
    """The stream that chooses among a run's checkpoints; never trained on, never in published figures."""
    return join(text for name, text in _sources() if name not in HELD_OUT and is_validation(name))


def held_out_files() -> list[tuple[str, bytes]]:
    """(name, text) of each module of HELD_OUT, in its order, without separators."""
    folder = stdlib_folder()
    return [(name, _normalised((folder / name).read_bytes())) for name in HELD_OUT]


def _sources() -> Iterator[tuple[str, bytes]]:
    """(name relative to the library, text) of every usable file, in order of name."""
    folder = stdlib_folder()
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.py"))
    for name in names:
        *parents, base = name.split("/")
        if name in _SKIPPED_FILES or base.startswith(_SKIPPED_PREFIX) or not _SKIPPED_FOLDERS.isdisjoint(parents):
            continue
        text = _normalised((folder / name).read_bytes())
        if text and _is_plain_text(text):
            yield name, text


def _normalised(text: bytes) -> bytes:
    return text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _is_plain_text(text: bytes) -> bool:
    """UTF-8 without the separator: a few old files are Latin-1."""
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return b"\0" not in text
