"""The source line of an instruction, from the line tables of code objects compiled with -gline-tables-only or -g.

Asked for only when a fault is reported, so it costs nothing otherwise.
"""

import functools
import re
import subprocess
import tempfile

from .code_object import CodeObject
from .disassembly import objdump

# llvm-objdump -l puts "; file:line" before the first instruction of each line.
LINE = re.compile(r"^; (?P<place>.+:[1-9]\d*)$")
ADDRESS = re.compile(r"// (?P<address>[0-9A-F]{12}):")


@functools.lru_cache(maxsize=4)
def _lines(data: bytes) -> dict[int, str]:
    """{address of an instruction: "file:line"}."""
    with tempfile.NamedTemporaryFile(suffix=".co") as file:
        file.write(data)
        file.flush()
        text = subprocess.run([objdump(), "-d", "-l", file.name], capture_output=True, text=True, check=True).stdout
    found, place = {}, None
    for line in text.splitlines():
        if match := LINE.match(line):
            place = match["place"]
        elif place and (match := ADDRESS.search(line)):
            found[int(match["address"], 16)] = place
    return found


def at_source_line(code: CodeObject, address: int) -> str:
    """ " (file:line)", or nothing without a line table."""
    place = _lines(code.data).get(address) if b".debug_line" in code.data else None
    return f" ({place})" if place else ""
