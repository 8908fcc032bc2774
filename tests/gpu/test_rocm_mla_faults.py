"""mla_decode with one of its barriers taken away, simulated: each form that has the barrier fails without it.

A barrier's comment says what it closes. One that closes nothing keeps a pace: without it the bytes are the same."""

import ctypes
import re
from pathlib import Path

import pytest
import torch

from problems.buffers import same_bytes
from problems.mla import LATENT, SCALE, Mla, assert_attended, draw
from scripts.host_configs import configs
from simulator import SimulationError
from tests.gpu.changed_sources import compiled, runtime
from tests.settings import ROOT, SEED, needs_rocm_toolchain

pytestmark = [needs_rocm_toolchain, pytest.mark.covering]  # each case is a library of its own
FOLDERS, HIP = ("common", "mla_decode"), "mla_decode/hip"
INDIRECT = [form["name"] for form in configs().tables["mla_forms"]]
DIRECT = [form["name"] for form in configs().tables["mla_direct"]]  # of gfx950
HEADS = {16: 11, 32: 27, 64: 50, 128: 100}  # rows of a form: the last wave has some without work
# Of both chips by turns, where the form is not gfx950's alone. Tiles that fill a ring and one more; one tile.
LENGTHS = ([150, 20], [100, 37], [290, 161], [20, 150])

GROUPS = ("r16", "r32", "r64", "d16", "d32", "d64")  # whose sums are added at the end
# A barrier, by its file and what its comment says that it closes: the forms that have it.
CLOSES = {
    ("decode.h", "the first tile is in LDS."): ("r128",),
    ("decode.h", "the first half has been multiplied by all; its place is free."): ("r128",),
    ("decode.h", "the next tile is in LDS; the second half has been multiplied by all."): ("r128",),
    ("decode.h", "the tile that lay there has been read."): ("r32", "r64"),
    ("decode.h", "the tile is in LDS."): ("r32", "r64"),
    ("direct.h", "all waves' loads of the tile are there, and the tile before it has been read."): ("d64", "d128"),
    ("direct.h", "all waves have read the last tile, in whose place sums are put."): ("d128",),
    ("finish.h", "all waves have read the last tiles, in whose place the softmax is."): GROUPS,
    ("finish.h", "all groups' softmax is there."): GROUPS,
    ("finish.h", "all waves have read the groups' softmax, where sums are put below."): GROUPS,
    ("finish.h", "all groups' columns are there."): GROUPS,
    ("finish.h", "what lies there has been read; the next columns may come."): GROUPS,
}
PACE = "direct.h", 3  # of d64, whose second group is half a turn behind

# One form's kernel, for 16-bit caches, and its launch without splits.
SOURCE = """
#include "common/hip/device.hip"
#include "mla_decode/hip/decode.h"
#include "mla_decode/hip/direct.h"

namespace rocm_fp8::mla_decode::hip {
namespace {
#pragma clang diagnostic ignored "-Wundefined-internal"
#if DIRECT
constexpr const Form& kForm = kDirectForms[FORM];
__global__ __launch_bounds__(kForm.threads(), 1) void decode(Launch)
#if defined(__gfx950__)
{
    constexpr int kWaves = kForm.waves * kForm.groups;
    __shared__ alignas(256) char lds[kDirectLds<FORM> + kWaves * (kShared<FORM> ? 4 : 1) * kWave * 4];
    decode_direct<FORM, DType::bf16>(lds);
}
#elif defined(__HIP_DEVICE_COMPILE__)
    ;
#else
{
}
#endif
#else
constexpr const Form& kForm = kForms[FORM];
#endif
}  // namespace
}  // namespace rocm_fp8::mla_decode::hip

extern "C" int run(const void* q, uint8_t* cache, const int32_t* lengths, void* out, long batch, long heads, long page,
                   float scale) {
    using namespace rocm_fp8;
    using namespace rocm_fp8::mla_decode;
    using namespace rocm_fp8::mla_decode::hip;
    Args a{};
    a.q = q, a.q_batch_stride = a.q_query_stride = heads * kWidth, a.q_head_stride = kWidth, a.dtype = DType::bf16;
    a.cache = {cache, page * kWidth * 2, kWidth * 2, batch, page, Format::wide, DType::bf16, nullptr};
    a.lengths = lengths, a.most = page, a.batch = batch, a.queries = 1, a.heads = int(heads);
    a.softmax_scale = scale, a.out = out;
    const int64_t row_tiles = ceil_div(heads, int64_t(kForm.rows())), items = batch * row_tiles;
    const int64_t per_chiplet = ceil_div(items, int64_t(8));
    hip::Launch launch{a, Partial{nullptr, nullptr, 1, kForm.tile()}, divider_by(1u), divider_by(uint32_t(heads)),
                       divider_by(uint32_t(row_tiles)), divider_by(1u), uint32_t(items), uint32_t(per_chiplet)};
    void* arguments[] = {&launch};
#if DIRECT
    const void* const kernel = reinterpret_cast<const void*>(decode);
#else
    const void* const kernel = reinterpret_cast<const void*>(hip::mla_decode<FORM, DType::bf16, Format::wide>);
#endif
    return !launch_any(kernel, dim3(uint32_t(per_chiplet * 8)), dim3(kForm.threads()), nullptr, arguments).ok();
}
"""


def barriers(file: str) -> list[tuple[str | None, re.Match]]:
    """Each barrier of a file, and what it is for: None, the pace."""
    text, found = (ROOT / HIP / file).read_text(), []
    for each in re.finditer(r"lds_barrier\(\)", text):
        above = text[: each.start()].splitlines()[-4:]
        (comment,) = [line for line in above if "// Barrier" in line][-1:]
        says = comment.partition("// Barrier")[2]
        assert says.startswith((": ", " for the pace: ")), comment
        found.append((says[2:].partition(". ")[0].removesuffix(".") + "." if says[0] == ":" else None, each))
    return found


def without(file: str, *taken: re.Match) -> tuple[str, str, str]:
    text = changed = (ROOT / HIP / file).read_text()
    for each in reversed(taken):
        changed = changed[: each.start()] + "(void)0" + changed[each.end() :]
    return f"{HIP}/{file}", text, changed


class Form:
    """One form's kernel, compiled alone."""

    def __init__(self, name: str, fault, folder: Path):
        table = DIRECT if name in DIRECT else INDIRECT
        self.name, self.archs = name, ("gfx950",) if name in DIRECT else ("gfx942", "gfx950")
        defines = f"#define FORM {table.index(name)}\n#define DIRECT {int(name in DIRECT)}\n"
        self._run = compiled(defines + SOURCE, fault, folder, FOLDERS).run
        self._run.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_long] * 3 + [ctypes.c_float]

    def attend(self, generator) -> list[torch.Tensor]:
        """Results that are right, of several launches and schedules."""
        heads, results = HEADS[int(self.name[1:])], []
        for number, lengths in enumerate(LENGTHS):
            problem = Mla(len(lengths), 1, heads, 0, max(lengths), torch.bfloat16, "wide", False, "dense")
            o = draw(problem, generator, torch.float8_e4m3fn, lengths)
            out = torch.zeros(len(lengths), 1, heads, LATENT, dtype=torch.bfloat16)
            tensors = o.q, o.cache, o.lengths, out
            runtime().configure(seed=SEED + number)
            arch = self.archs[number % len(self.archs)]
            with runtime().devices(arch, 1) as devices:
                for each in tensors:
                    devices.own_address(0, each.data_ptr(), each.nbytes)
                with runtime().on(arch, 0):
                    pointers = (each.data_ptr() for each in tensors)
                    assert runtime().call(self._run, *pointers, len(lengths), heads, max(lengths), SCALE) == 0
                devices.run()
            assert_attended(problem, o, out, None, f"{self.name}, {lengths}")
            results.append(out)
        return results


def test_every_barrier_is_taken_away():
    files = sorted({file for file, _ in CLOSES})
    holding = [path.name for path in sorted((ROOT / HIP).iterdir()) if "lds_barrier()" in path.read_text()]
    assert holding == files
    found = [(file, closes) for file in files for closes, _ in barriers(file)]
    assert sorted(each for each in found if each[1]) == sorted(CLOSES)
    assert [file for file, closes in found if closes is None] == [PACE[0]] * PACE[1]


@pytest.mark.parametrize("form", INDIRECT + DIRECT)
def test_as_it_stands(tmp_path, generator, form):
    Form(form, None, tmp_path).attend(generator)


CASES = [(form, *barrier) for barrier, forms in CLOSES.items() for form in forms]


@pytest.mark.parametrize("form, file, closes", CASES, ids=[f"{form}-{closes}" for form, _, closes in CASES])
def test_without_a_barrier(tmp_path, generator, form, file, closes):
    (taken,) = (each for says, each in barriers(file) if says == closes)
    changed = Form(form, without(file, taken), tmp_path)
    with pytest.raises((AssertionError, SimulationError)):
        changed.attend(generator)


def test_what_keeps_the_pace_closes_nothing(tmp_path, generator):
    """d64 without its three barriers of pace: no fault, and the same bytes."""
    state, results = generator.get_state(), []
    taken = [each for says, each in barriers(PACE[0]) if says is None]
    for name, fault in (("before", None), ("after", without(PACE[0], *taken))):
        generator.set_state(state)
        (tmp_path / name).mkdir()
        results.append(Form("d64", fault, tmp_path / name).attend(generator))
    assert all(same_bytes(*pair) for pair in zip(*results))
