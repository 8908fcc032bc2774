"""llvm-objdump's text as a list of instructions: mnemonic, operands, modifiers, branch target."""

import functools
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field

from simulator.faults import UnsupportedError

from .code_object import CodeObject

# Two parts of a line: what stands before the address, and behind it.
LINE = re.compile(r"^\t(?P<text>.*?)\s*// (?P<words>[0-9A-F ]+?)(?: <(?P<target>.*)>)?$")
# A modifier stands after the operands: a word, or word:value. Operands are separated by commas, modifiers are not.
MODIFIER = re.compile(r"^(?P<name>[a-z_0-9]+)(?::(?P<value>.+))?$")

ADDRESS = re.compile(r"(?<=// )([0-9A-F]{12}): ")

_cache: dict[str, "Listing"] = {}


@dataclass
class Text:
    """An instruction as LLVM prints it, wherever it stands."""

    size: int
    mnemonic: str
    operands: list[str]
    modifiers: dict[str, str | bool] = field(default_factory=dict)
    words: list[int] = field(default_factory=list)
    line: str = ""


def objdump() -> str:
    """LLVM's disassembler, the newest that knows both architectures."""
    path = shutil.which("llvm-objdump-22") or shutil.which("llvm-objdump")
    if path is None:
        raise UnsupportedError("llvm-objdump-22 is missing")
    return path


@functools.cache
def split_operands(text: str) -> tuple[list[str], dict[str, str | bool]]:
    """Splits "v0, |v1|, s[0:1] offset:16 sc0" at the commas outside brackets, and the tail into modifiers.
    Callers share what it returns."""
    parts, depth, current = [], 0, ""
    for character in text:
        depth += (character in "[(") - (character in "])")
        if character == "," and depth == 0:
            parts.append(current.strip())
            current = ""
        elif character != " " or depth == 0:
            current += character
    if current.strip():
        parts.append(current.strip())
    if not parts:
        return [], {}
    last, *tail = parts[-1].split(" ")
    operands, modifiers = [*parts[:-1], last], {}
    for word in tail:
        match = MODIFIER.match(word)
        if match is None:
            raise UnsupportedError(f"modifier {word!r} in {text!r}")
        modifiers[match["name"]] = match["value"] if match["value"] is not None else True
    return operands, modifiers


def parse_line(line: str) -> Text:
    """A line of a Listing."""
    match = LINE.match(line)
    if match is None:
        raise UnsupportedError(f"line {line!r} of llvm-objdump")
    if "/*" in match["text"]:  # LLVM's remark on an operand that the instruction cannot have
        raise UnsupportedError(f"`{match['text'].strip()}`")
    words = [int(word, 16) for word in match["words"].split()]
    mnemonic, _, rest = match["text"].strip().partition(" ")
    # The counters of s_waitcnt are read from its encoding: its text has no commas.
    operands, modifiers = split_operands(rest.strip()) if mnemonic != "s_waitcnt" else ([], {})
    return Text(4 * len(words), mnemonic, operands, modifiers, words, match["text"].strip())


class Listing(dict[int, str]):
    """{address: line} of an object. The lines are without their addresses, so those of equal instructions are equal."""

    def __init__(self, lines: list[str]):
        super().__init__()
        for line in lines:
            if line.startswith("\t") and (match := ADDRESS.search(line)):
                self[int(match[1], 16)] = line[: match.start()] + line[match.end() :]


def disassemble(code: CodeObject) -> Listing:
    """Computed once for each content."""
    if code.digest not in _cache:
        with tempfile.NamedTemporaryFile(suffix=".co") as file:
            file.write(code.data)
            file.flush()
            text = subprocess.run([objdump(), "-d", file.name], capture_output=True, text=True, check=True).stdout
        _cache[code.digest] = Listing(text.splitlines())
    return _cache[code.digest]
