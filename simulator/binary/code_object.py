"""AMDGPU code objects: unbundling, ELF segments, kernel descriptors, metadata.

Layouts are those of LLVM's "User Guide for AMDGPU Backend" (code object V5/V6).
"""

import functools
import hashlib
import struct
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from simulator.faults import UnsupportedError

BUNDLE_MAGIC = b"__CLANG_OFFLOAD_BUNDLE__"
COMPRESSED_MAGIC = b"CCOB"
EM_AMDGPU = 224
PT_LOAD, PT_NOTE = 1, 4
SHT_SYMTAB, SHT_RELA, SHT_DYNSYM = 2, 4, 11
NT_AMDGPU_METADATA = 32


def unpack_msgpack(data: bytes):
    """The value of a MessagePack document: maps, arrays, strings, integers, booleans, nil."""

    def take(at: int):
        tag = data[at]
        at += 1
        if tag <= 0x7F:
            return tag, at
        if tag >= 0xE0:
            return tag - 256, at
        if tag in (0xC0, 0xC2, 0xC3):
            return {0xC0: None, 0xC2: False, 0xC3: True}[tag], at
        if 0xCC <= tag <= 0xD3:
            code = ">" + "BHIQbhiq"[tag - 0xCC]
            size = struct.calcsize(code)
            return struct.unpack_from(code, data, at)[0], at + size
        if 0x80 <= tag <= 0x9F:
            kind, count = ("map" if tag < 0x90 else "array"), tag & 15
        elif 0xA0 <= tag <= 0xBF:
            kind, count = "str", tag & 31
        elif tag in (0xD9, 0xDA, 0xDB, 0xDC, 0xDD, 0xDE, 0xDF):
            code = {0xD9: ">B", 0xDA: ">H", 0xDB: ">I", 0xDC: ">H", 0xDD: ">I", 0xDE: ">H", 0xDF: ">I"}[tag]
            kind = "str" if tag <= 0xDB else "array" if tag <= 0xDD else "map"
            count = struct.unpack_from(code, data, at)[0]
            at += struct.calcsize(code)
        else:
            raise UnsupportedError(f"MessagePack tag {tag:#x}")
        if kind == "str":
            return data[at : at + count].decode(), at + count
        items = []
        for _ in range(count * (2 if kind == "map" else 1)):
            item, at = take(at)
            items.append(item)
        return (dict(zip(items[::2], items[1::2])) if kind == "map" else items), at

    return take(0)[0]


@dataclass
class Kernel:
    """A kernel's descriptor and its metadata, by the names that LLVM's guide uses."""

    name: str
    entry: int
    metadata: dict
    lds_size: int
    scratch_size: int
    kernarg_size: int
    rsrc1: int
    rsrc2: int
    rsrc3: int
    properties: int
    preload: int

    def bits(self, register: str, low: int, count: int = 1) -> int:
        return getattr(self, register) >> low & (1 << count) - 1

    @functools.cached_property
    def vgprs(self) -> int:
        """Registers a lane has in all, architectural and accumulation ones (granule 8)."""
        return (self.bits("rsrc1", 0, 6) + 1) * 8

    @functools.cached_property
    def accum_offset(self) -> int:
        """The number of architectural VGPRs; what lies above are the accumulation registers."""
        return (self.bits("rsrc3", 0, 6) + 1) * 4

    @property
    def user_sgprs(self) -> int:
        return self.bits("rsrc2", 1, 5)

    @property
    def preload_dwords(self) -> tuple[int, int]:
        """(first dword of the kernarg segment, count) that the hardware puts into user SGPRs."""
        return self.preload >> 7 & 0x1FF, self.preload & 0x7F

    @property
    def arguments(self) -> list[dict]:
        return self.metadata.get(".args", [])


@dataclass
class CodeObject:
    """One architecture's ELF: `image` holds its loaded segments from address 0 on."""

    data: bytes
    arch: str
    image: bytearray
    kernels: dict[str, Kernel]

    @functools.cached_property
    def digest(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


def parse(data: bytes) -> CodeObject:
    """Reads a bare code object (an ELF of machine EM_AMDGPU)."""
    if data[:4] != b"\x7fELF" or struct.unpack_from("<H", data, 18)[0] != EM_AMDGPU:
        raise UnsupportedError("not an AMDGPU ELF")
    phoff, shoff = struct.unpack_from("<QQ", data, 32)
    phsize, phcount, shsize, shcount = struct.unpack_from("<4H", data, 54)
    segments = [struct.unpack_from("<IIQQQQQQ", data, phoff + i * phsize) for i in range(phcount)]
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, shoff + i * shsize) for i in range(shcount)]

    image = bytearray(max(s[3] + s[6] for s in segments if s[0] == PT_LOAD))
    for kind, _, offset, address, _, filesize, _, _ in segments:
        if kind == PT_LOAD:
            image[address : address + filesize] = data[offset : offset + filesize]

    metadata = {}
    for kind, _, offset, _, _, filesize, _, _ in segments:
        at, end = offset, offset + filesize if kind == PT_NOTE else offset
        while at < end:
            name_size, size, note = struct.unpack_from("<III", data, at)
            start = at + 12 + (name_size + 3 & ~3)
            if note == NT_AMDGPU_METADATA:
                metadata = unpack_msgpack(data[start : start + size])
            at = start + (size + 3 & ~3)

    symbols = {}
    for _, kind, _, _, offset, size, link, _, _, entry_size in sections:
        if kind in (SHT_DYNSYM, SHT_SYMTAB):
            strings = sections[link][4]
            for at in range(offset, offset + size, entry_size):
                name, _, _, _, value, _ = struct.unpack_from("<IBBHQQ", data, at)
                start = strings + name
                symbols[data[start : data.index(b"\0", start)].decode()] = value
        elif kind == SHT_RELA and size:
            raise UnsupportedError("relocations")

    kernels = {}
    for entry in metadata.get("amdhsa.kernels", []):
        at = symbols[entry[".symbol"]]
        lds, scratch, kernarg, _, code = struct.unpack_from("<IIIIq", image, at)
        rsrc3, rsrc1, rsrc2, properties, preload = struct.unpack_from("<IIIHH", image, at + 44)
        kernels[entry[".name"]] = Kernel(
            name=entry[".name"], entry=at + code, metadata=entry, lds_size=lds, scratch_size=scratch,
            kernarg_size=kernarg, rsrc1=rsrc1, rsrc2=rsrc2, rsrc3=rsrc3, properties=properties, preload=preload,
        )  # fmt: skip
    arch = metadata.get("amdhsa.target", "").rpartition("--")[2].partition(":")[0]
    return CodeObject(data, arch, image, kernels)


def unbundle(data: bytes) -> list[bytes]:
    """The ELFs of a clang offload bundle (or of several in a row, as libraries linked of several objects have)."""
    found = []
    at = data.find(BUNDLE_MAGIC)
    while at >= 0:
        count = struct.unpack_from("<Q", data, at + 24)[0]
        cursor, end = at + 32, at + 32
        for _ in range(count):
            offset, size, length = struct.unpack_from("<QQQ", data, cursor)
            target = data[cursor + 24 : cursor + 24 + length].decode()
            cursor += 24 + length
            end = max(end, at + offset + size)
            if target.startswith("hip") and size:
                found.append(bytes(data[at + offset : at + offset + size]))
        at = data.find(BUNDLE_MAGIC, end)
    return found


def _decompress(data: bytes, bundler: str = "clang-offload-bundler-22") -> list[bytes]:
    """What `unbundle` gives, of a compressed bundle, with LLVM's tool."""
    with tempfile.TemporaryDirectory() as folder:
        packed = Path(folder) / "packed"
        packed.write_bytes(data)
        listing = subprocess.run(
            [bundler, "--list", "--type=o", f"--input={packed}"], capture_output=True, text=True, check=True
        ).stdout
        found = []
        for target in (line for line in listing.split() if line.startswith("hip")):
            out = Path(folder) / "out"
            subprocess.run(
                [bundler, "--unbundle", "--type=o", f"--input={packed}", f"--targets={target}", f"--output={out}"],
                check=True,
            )
            if out.stat().st_size:
                found.append(out.read_bytes())
        return found


def fat_binary_sections(library: bytes) -> list[bytes]:
    """The `.hip_fatbin` sections of a host shared library."""
    shoff = struct.unpack_from("<Q", library, 40)[0]
    shsize, shcount, names = struct.unpack_from("<3H", library, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", library, shoff + i * shsize) for i in range(shcount)]
    start = sections[names][4]
    named = [(library[start + s[0] : library.index(b"\0", start + s[0])], s) for s in sections]
    return [library[s[4] : s[4] + s[5]] for name, s in named if name == b".hip_fatbin"]


def bundle_objects(bundle: bytes) -> list[bytes]:
    """Every ELF of a bundle, compressed or not."""
    return _decompress(bundle) if bundle.startswith(COMPRESSED_MAGIC) else unbundle(bundle)


def load_all(source: str | Path | bytes, arch: str) -> list[CodeObject]:
    """The code objects for `arch` (one for each source that was compiled) from a host shared library, an offload
    bundle or a bare code object."""
    data = source if isinstance(source, bytes) else Path(source).read_bytes()
    if data[:4] == b"\x7fELF" and struct.unpack_from("<H", data, 18)[0] == EM_AMDGPU:
        elves = [data]
    else:
        bundles = fat_binary_sections(data) if data[:4] == b"\x7fELF" else [data]
        elves = [elf for bundle in bundles for elf in bundle_objects(bundle)]
    objects = [parse(elf) for elf in elves]
    found = [each for each in objects if each.arch == arch]
    if not found:
        present = ", ".join(sorted({each.arch for each in objects}))
        raise UnsupportedError(f"no code object for {arch}; there are: {present or 'none'}")
    return found


def load(source: str | Path | bytes, arch: str) -> CodeObject:
    """`load_all` where there is one."""
    found = load_all(source, arch)
    if len(found) > 1:
        raise UnsupportedError(f"{len(found)} code objects for {arch}; one was expected")
    return found[0]
