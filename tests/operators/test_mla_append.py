"""mla_append to the byte: each kind of cache, rotations, slots."""

import pytest
import torch

from problems.buffers import LAYOUTS, guarded, same_bytes
from problems.inputs import HALF, every_number, normal, positive, short
from problems.mla import LATENT, MIXED, ROPE, WIDTH

FORMATS = ("wide", "fp8", "mixed")


def empty_cache(format: str, dtype: torch.dtype, fp8: torch.dtype, pages: int = 5, page: int = 8) -> torch.Tensor:
    width = MIXED if format == "mixed" else WIDTH
    kind = {"wide": dtype, "fp8": fp8, "mixed": torch.uint8}[format]
    return torch.full((pages, page, width * kind.itemsize), 0x55, dtype=torch.uint8).view(kind)


def angles(count: int, dtype: torch.dtype, generator) -> tuple[torch.Tensor, torch.Tensor]:
    turn = normal((count, ROPE // 2), torch.float32, generator, 2.0).repeat(1, 2)
    return turn.cos().to(dtype), turn.sin().to(dtype)


def check(kernel, device, kv, rope, cache, slots, layout="dense", **options) -> torch.Tensor:
    """Byte for byte the reference's; nothing else is written."""
    of_cache = {} if layout == "dense" else dict(pad=16)
    written = guarded(cache, device, **of_cache)
    read = [guarded(t, device, **LAYOUTS[layout]) for t in (rope, kv) if t is not None]
    on = {name: v.to(device) if isinstance(v, torch.Tensor) else v for name, v in options.items()}
    latent = None if kv is None else read[1].t
    assert kernel.mla_append(latent, read[0].t, written.t, slots.to(device), **on) is None
    wanted = cache.clone()
    kernel.reference.mla_append(kv, rope, wanted, slots, **options)
    written.assert_guards_intact()
    for buffer in read:
        buffer.assert_unchanged()
    assert same_bytes(written.t, wanted)
    return wanted


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("dtype", HALF, ids=short)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_append(kernel, device, generator, formats, format, dtype, layout):
    for fp8 in formats if format == "fp8" else formats[:1]:
        for count in (0, 1, 19):
            kv, rope = normal((count, LATENT), dtype, generator, 3.0), normal((count, ROPE), dtype, generator, 3.0)
            slots = torch.randperm(40, generator=generator)[:count]
            scale = dict(cache_scale=positive((1,), generator)) if format == "fp8" else {}
            for angle in (None, dtype, torch.float32):
                for interleaved in (False, True) if angle else (False,):
                    turned = dict(zip(("cos", "sin"), angles(count, angle, generator))) if angle else {}
                    cache = empty_cache(format, dtype, fp8)
                    options = dict(interleaved=interleaved, **turned, **scale)
                    check(kernel, device, kv, rope, cache, slots, layout, **options)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("dtype", HALF, ids=short)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_rotated_numbers_alone(kernel, device, generator, formats, format, dtype, layout):
    """The latent part of the cache, its scales too, stays; rows of angles repeat."""
    rotated = {"wide": 2 * ROPE, "fp8": ROPE, "mixed": 2 * ROPE}[format]
    for fp8 in formats if format == "fp8" else formats[:1]:
        for count, rows in ((0, 0), (1, 1), (18, 18), (39, 13), (33, 1)):
            rope, slots = normal((count, ROPE), dtype, generator, 3.0), torch.randperm(40, generator=generator)[:count]
            slots[2:3] = -1
            scale = dict(cache_scale=positive((1,), generator)) if format == "fp8" else {}
            for angle in (None, dtype, torch.float32):
                for interleaved in (False, True) if angle else (False,):
                    turned = dict(zip(("cos", "sin"), angles(rows, angle, generator))) if angle else {}
                    cache = empty_cache(format, dtype, fp8)
                    options = dict(interleaved=interleaved, **turned, **scale)
                    written = check(kernel, device, None, rope, cache, slots, layout, **options).view(torch.uint8)
                    assert (written[..., :-rotated] == 0x55).all()
                    assert count < 3 or (written[..., -rotated:] != 0x55).any(-1).sum() == count - 1


@pytest.mark.parametrize("rows", [1, 7])
def test_rows_of_angles_repeat(kernel, device, generator, rows):
    """With the latent part: as angles of all tokens."""
    kv, rope = normal((21, LATENT), torch.bfloat16, generator), normal((21, ROPE), torch.bfloat16, generator)
    turned = dict(zip(("cos", "sin"), angles(rows, torch.bfloat16, generator)))
    cache = empty_cache("wide", torch.bfloat16, kernel.fp8_dtype(device))
    slots = torch.randperm(40, generator=generator)[:21]
    repeated = check(kernel, device, kv, rope, cache, slots, **turned)
    whole = {name: t.repeat(21 // rows, 1) for name, t in turned.items()}
    assert same_bytes(check(kernel, device, kv, rope, cache, slots, **whole), repeated)


@pytest.mark.parametrize("format", FORMATS)
def test_slots_outside_of_the_cache(kernel, device, generator, format):
    kv, rope = normal((7, LATENT), torch.bfloat16, generator), normal((7, ROPE), torch.bfloat16, generator)
    slots = torch.tensor([-1, 39, 40, 2**40, -(2**63), 2**63 - 1, 0])
    scale = dict(cache_scale=positive((1,), generator)) if format == "fp8" else {}
    fp8 = kernel.fp8_dtype(device)
    wanted = check(kernel, device, kv, rope, empty_cache(format, torch.bfloat16, fp8), slots, **scale)
    assert (wanted.view(torch.uint8) != 0x55).any(-1).sum() == 2


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("dtype", HALF, ids=short)
def test_special_values(kernel, device, generator, format, dtype):
    """Every number of the type, NaN and infinities too, beside ordinary ones."""
    numbers = every_number(dtype).view(-1, LATENT)
    kv = normal(numbers.shape, dtype, generator)
    kv[:, ::3] = numbers[:, ::3]
    kv[::2, 1::3] = numbers[::2, 1::3]
    rope = every_number(dtype).view(-1, ROPE)[: len(kv)] if format != "mixed" else kv[:, :ROPE]
    fp8 = kernel.fp8_dtype(device)
    scale = dict(cache_scale=positive((1,), generator)) if format == "fp8" else {}
    cache, wanted = (empty_cache(format, dtype, fp8, 16, 8).to(device) for _ in range(2))
    slots = torch.randperm(128, generator=generator)
    kernel.mla_append(kv.to(device), rope.to(device), cache, slots.to(device), **_on(device, scale))
    kernel.reference.mla_append(kv, rope, wanted := wanted.cpu(), slots, **scale)
    for got, expected in zip(parts(cache.cpu()), parts(wanted)):
        assert torch.equal(got.isnan(), expected.isnan())
        assert torch.equal(*(torch.where(got.isnan(), 0.0, t) for t in (got, expected)))


def parts(cache: torch.Tensor) -> list[torch.Tensor]:
    """What a cache's bytes mean, NaN without a sign."""
    if cache.dtype != torch.uint8:
        return [cache.float()]
    dtypes = torch.float8_e4m3fn, torch.float32, torch.bfloat16
    return [t.contiguous().view(dtype).float() for t, dtype in zip(cache.split((512, 16, 128), dim=-1), dtypes)]


def _on(device, options: dict) -> dict:
    return {name: v.to(device) for name, v in options.items()}


def test_decode_reads_what_append_wrote(kernel, device, generator):
    """A dense cache, filled token by token, in DeepSeek's layout: near what was appended."""
    kv, rope = normal((12, LATENT), torch.bfloat16, generator), normal((12, ROPE), torch.bfloat16, generator)
    cache = torch.full((1, 16, MIXED), 0xFF, dtype=torch.uint8, device=device)
    for t in range(12):
        one = slice(t, t + 1)
        kernel.mla_append(kv[one].to(device), rope[one].to(device), cache, torch.tensor([t], device=device))
    q = normal((1, 1, 4, WIDTH), torch.bfloat16, generator)
    lengths = torch.tensor([12], dtype=torch.int32)
    got = kernel.mla_decode(q.to(device), cache, lengths.to(device), 0.05).cpu()
    wide = torch.cat([kv, rope], dim=-1)[None]
    exact = kernel.reference.mla_decode(q, wide, lengths, 0.05)
    # A code is off by 2^-4 at most, relatively; so are scores, whose errors mostly cancel.
    assert (got.float() - exact.float()).norm() <= 0.1 * exact.float().norm()
