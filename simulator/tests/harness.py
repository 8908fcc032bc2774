"""What the simulator's tests share: assembling snippets into kernels, compiling HIP sources, bit patterns to try."""

import hashlib
import os
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pytest

from simulator import Checks, Simulator, UnsupportedError
from simulator.host.toolchain import HipToolchain

# conftest.py at the root sets it, another one for each run.
SEED = int(os.environ.get("ROCM_FP8_TEST_SEED", "1"))
ROOT = Path(__file__).resolve().parents[2]
ARCHS = ("gfx942", "gfx950")
LANES = 64
# Registers of a snippet: inputs from v10 on, outputs from v30 on, scalar inputs from s8 on.
INPUT, OUTPUT, SCALAR = 10, 30, 8
INPUTS, OUTPUTS, SCALARS = 16, 8, 8

clang = shutil.which("clang++-22")
needs_clang = pytest.mark.skipif(
    not (clang and shutil.which("llvm-objdump-22")),
    reason="clang++-22, lld-22 or llvm-objdump-22 is missing: python scripts/rocm_toolchain.py brings them",
)

PROLOGUE = f"""
  s_load_dwordx4 s[4:7], s[0:1], 0x0
  s_load_dwordx8 s[{SCALAR}:{SCALAR + SCALARS - 1}], s[0:1], 0x10
  v_lshlrev_b32_e32 v0, 2, v0
  s_waitcnt lgkmcnt(0)
""" + "".join(f"  global_load_dword v{INPUT + i}, v0, s[4:5] offset:{256 * i}\n" for i in range(INPUTS))
PROLOGUE += "".join(f"  v_mov_b32_e32 v{OUTPUT + i}, 0x5a5a5a5a\n" for i in range(OUTPUTS)) + "  s_waitcnt vmcnt(0)\n"
EPILOGUE = "  s_waitcnt vmcnt(0) lgkmcnt(0)\n  s_mov_b64 exec, -1\n" + "".join(
    f"  global_store_dword v0, v{OUTPUT + i}, s[6:7] offset:{256 * i}\n" for i in range(OUTPUTS)
)
DESCRIPTOR = """
.rodata
.p2align 6
.amdhsa_kernel {name}
  .amdhsa_user_sgpr_kernarg_segment_ptr 1
  .amdhsa_user_sgpr_count 2
  .amdhsa_next_free_vgpr 128
  .amdhsa_accum_offset 64
  .amdhsa_next_free_sgpr 100
  .amdhsa_group_segment_fixed_size {lds}
  .amdhsa_kernarg_size 48
  .amdhsa_float_denorm_mode_32 3
.end_amdhsa_kernel
.text
"""
METADATA = """
  - .name: {name}
    .symbol: {name}.kd
    .kernarg_segment_size: 48
    .kernarg_segment_align: 8
    .group_segment_fixed_size: {lds}
    .private_segment_fixed_size: 0
    .wavefront_size: 64
    .sgpr_count: 100
    .vgpr_count: 128
    .max_flat_workgroup_size: 1024
    .args:
      - {{.offset: 0, .size: 8, .value_kind: global_buffer, .address_space: global}}
      - {{.offset: 8, .size: 8, .value_kind: global_buffer, .address_space: global}}
      - {{.offset: 16, .size: 32, .value_kind: by_value}}
"""


def assemble(snippets: dict[str, str], arch: str, lds: int = 0, raw: bool = False) -> bytes:
    """A code object with one kernel for each snippet. `raw`: the snippet is the whole kernel but its s_endpgm."""
    text = [f'.amdgcn_target "amdgcn-amd-amdhsa--{arch}"\n.text\n']
    for name, body in snippets.items():
        whole = body if raw else PROLOGUE + body + "\n" + EPILOGUE
        text.append(f".globl {name}\n.p2align 8\n.type {name},@function\n{name}:\n{whole}\n  s_endpgm\n")
        text.append(DESCRIPTOR.format(name=name, lds=lds))
    text.append(".amdgpu_metadata\n---\namdhsa.version: [1, 2]\n")
    text.append(f"amdhsa.target: amdgcn-amd-amdhsa--{arch}\namdhsa.kernels:\n")
    text += [METADATA.format(name=name, lds=lds) for name in snippets]
    text.append("...\n.end_amdgpu_metadata\n")
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder) / "snippets.s", Path(folder) / "snippets.co"
        source.write_text("".join(text))
        command = [clang, "-x", "assembler", "--target=amdgcn-amd-amdhsa", f"-mcpu={arch}", str(source), "-o", str(out)]
        done = subprocess.run([*command, "-fuse-ld=lld"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return out.read_bytes()


class Snippets:
    """Snippets of one architecture, assembled together, run one at a time on 64-lane inputs."""

    def __init__(self, snippets: dict[str, str], arch: str, lds: int = 0, checks: Checks | None = None):
        # Snippets show what instructions do; test_hazards.py has the distances between them.
        self.simulator = Simulator(assemble(snippets, arch, lds), arch, checks=checks or Checks(hazards=False))

    def run(self, name: str, inputs=(), scalars=(), seed: int = 0) -> np.ndarray:
        """Output registers as [register, lane] of uint32."""
        data = np.zeros((INPUTS, LANES), np.uint32)
        for row, values in zip(data, inputs):
            row[:] = values
        result = np.zeros((OUTPUTS, LANES), np.uint32)
        words = struct.pack(f"<{SCALARS}I", *[*scalars, *[0] * (SCALARS - len(scalars))])
        self.simulator.launch(name, 1, LANES, [data, result, words], seed=seed)
        return result


def launch(body: str, arch: str, threads: int, grid: int = 1, lds: int = 256, **options):
    """Runs a whole kernel on a buffer of 1024 dwords, each 5, twice its argument."""
    options = {"checks": Checks(hazards=False), **options}
    simulator = Simulator(assemble({"planted": body}, arch, lds, raw=True), arch, **options)
    out = np.full(1024, 5, np.uint32)
    simulator.launch("planted", grid, threads, [out, out, bytes(32)])
    return out


def hip_toolchain() -> HipToolchain:
    """A test that finds none is skipped, saying why."""
    try:
        return HipToolchain()
    except UnsupportedError as error:
        pytest.skip(str(error))


def compile_hip(source: str, folder: Path, *flags: str) -> Path:
    """A shared library for both architectures of one HIP source.

    Compiled once for all tests and workers: kept in build/ by its source, flags and compiler; `folder` gets a copy.
    """
    tools = hip_toolchain()
    key = hashlib.sha256("\0".join([source, *flags, str(tools.clang), str(tools.root)]).encode()).hexdigest()[:16]
    kept = ROOT / "build" / ".work" / "simulator" / key
    path, out = kept / "source.hip", kept / f"library.{os.getpid()}.so"
    copy = folder / "library.so"
    if (kept / "library.so").is_file():
        shutil.copyfile(kept / "library.so", copy)
        return copy
    kept.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    done = subprocess.run(tools.command(ARCHS, path, out, "-O3", *flags), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    os.replace(out, kept / "library.so")
    shutil.copyfile(kept / "library.so", copy)
    return copy


SPECIAL_F32 = [
    0x00000000, 0x80000000, 0x3F800000, 0xBF800000, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00001, 0x00000001,
    0x7F800001, 0xFFBFFFFF,
    0x80000001, 0x007FFFFF, 0x00800000, 0x7F7FFFFF, 0xFF7FFFFF, 0x3F000000, 0x40490FDB, 0x4B800000, 0xCB000001,
]  # fmt: skip
SPECIAL_F16 = [
    0x0000,
    0x8000,
    0x3C00,
    0xBC00,
    0x7C00,
    0xFC00,
    0x7E00,
    0xFE01,
    0x7C01,
    0xFDFF,
    0x0001,
    0x8001,
    0x03FF,
    0x0400,
    0x7BFF,
]


def patterns(kind: str, rng: np.random.Generator) -> np.ndarray:
    """64 bit patterns to try as an operand: special values, everyday ones, random bits."""
    bits = rng.integers(0, 1 << 32, LANES, np.uint32)
    if kind == "f32":
        bits[: LANES // 3] = rng.choice(np.array(SPECIAL_F32, np.uint32), LANES // 3)
        usual = (rng.standard_normal(LANES // 3) * 2.0 ** rng.integers(-8, 8, LANES // 3)).astype(np.float32)
        bits[LANES // 3 : 2 * (LANES // 3)] = usual.view(np.uint32)
    elif kind == "f16":
        halves = bits.view(np.uint16)
        halves[:LANES] = rng.choice(np.array(SPECIAL_F16, np.uint16), LANES)
        halves[LANES : LANES + 32] = (rng.standard_normal(32) * 2).astype(np.float16).view(np.uint16)
    elif kind == "int":
        bits[: LANES // 4] = rng.choice(
            np.array([0, 1, 31, 32, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF], np.uint32), LANES // 4
        )
        bits[LANES // 4 : LANES // 2] = rng.integers(0, 300, LANES // 4)
    return rng.permutation(bits)


def pair_patterns(kind: str, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """The low and high words of 64 bit patterns to try as an operand of up to two registers."""
    if kind != "f64":
        return patterns(kind, rng), patterns(kind, rng)
    values = np.ldexp(rng.standard_normal(LANES), rng.integers(-8, 40, LANES)).view(np.uint64)
    # Of any size; those are mostly too large or too small for other types.
    values[::3] = rng.integers(0, 1 << 64, len(values[::3]), np.uint64)
    special = rng.choice(np.array(SPECIAL_F32, np.uint32), len(values[1::6])).view(np.float32)
    with np.errstate(invalid="ignore"):
        values[1::6] = special.astype(np.float64).view(np.uint64)
    words = rng.permutation(values).view(np.uint32)
    return words[0::2].copy(), words[1::2].copy()
