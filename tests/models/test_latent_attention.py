"""LatentAttention against attention with keys and values of their own: a layer's decode steps, absorbed."""

import pytest
import torch

from problems.inputs import normal

HEADS, NOPE, VALUE, LATENT, ROPE = 5, 24, 40, 512, 64


def angles(positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    turn = positions[..., None] * 10000.0 ** (-torch.arange(ROPE // 2) / (ROPE // 2))
    turn = torch.cat([turn, turn], dim=-1)
    return turn.cos(), turn.sin()


def rotated(x: torch.Tensor, positions: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """By complex numbers, in float64."""
    turn = positions[..., None].double() * 10000.0 ** (-torch.arange(ROPE // 2).double() / (ROPE // 2))
    by = torch.polar(torch.ones_like(turn), turn)
    x = x.double()
    if interleaved:
        return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * by).flatten(-2)
    first, second = x.chunk(2, dim=-1)
    turned = torch.complex(first, second) * by
    return torch.cat([turned.real, turned.imag], dim=-1)


def plain(kv_b, q, latent, rope, positions, scale, interleaved):
    """q [S, H, nope + 64] of the last S tokens, latent [L, 512], rope [L, 64]: in float64."""
    keys_values = (latent.double() @ kv_b.double().t()).view(-1, HEADS, NOPE + VALUE)
    turned = rotated(rope, positions, interleaved)[:, None].expand(-1, HEADS, -1)
    keys = torch.cat([keys_values[..., :NOPE], turned], dim=-1)
    last = positions[-len(q) :]
    queries = torch.cat([q[..., :NOPE].double(), rotated(q[..., NOPE:], last[:, None], interleaved)], dim=-1)
    scores = torch.einsum("shd,nhd->shn", queries, keys) * scale
    scores = scores.masked_fill((positions > last[:, None])[:, None], -torch.inf)
    return torch.einsum("shn,nhd->shd", scores.softmax(-1), keys_values[..., NOPE:]).flatten(-2)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("kind", ["wide", "fp8", "mixed"])
def test_steps(kernel, device, generator, interleaved, paged, kind):
    """A prompt of several tokens, then single ones and pairs: each step near the layer without absorption."""
    batch, page, most = 2, 16, 48
    kv_b = normal((HEADS * (NOPE + VALUE), LATENT), torch.bfloat16, generator, LATENT**-0.5)
    scale = kernel.layers.mla_softmax_scale(NOPE + ROPE)
    options = dict(value=VALUE, softmax_scale=scale, interleaved=interleaved)
    layer = kernel.layers.LatentAttention(kv_b.to(device), HEADS, **options)
    shape = (batch * most // page, page) if paged else (batch, most)
    dtype = {"wide": torch.bfloat16, "fp8": kernel.fp8_dtype(device), "mixed": torch.uint8}[kind]
    width = 656 if kind == "mixed" else 576
    cache = torch.zeros(*shape, width * dtype.itemsize, dtype=torch.uint8, device=device).view(dtype)
    table = torch.randperm(shape[0], generator=generator).int().view(batch, -1) if paged else None
    given = {} if table is None else dict(block_table=table.to(device))
    if kind == "fp8":
        given["cache_scale"] = torch.tensor([0.02], device=device)
    latent, rope = (normal((batch, most, n), torch.bfloat16, generator) for n in (LATENT, ROPE))
    length = 0
    for count in (5, 1, 2, 1, 8, 8, 1):
        new = torch.arange(length, length + count)
        slots = torch.arange(batch)[:, None] * most + new
        if paged:
            slots = table.long()[:, new // page] * page + new % page
        length += count
        q = normal((batch, count, HEADS, NOPE + ROPE), torch.bfloat16, generator)
        cos, sin = (t.expand(batch, -1, -1).to(device) for t in angles(new))
        now = [t[:, new].to(device) for t in (latent, rope)]
        lengths = torch.full((batch,), length, dtype=torch.int32, device=device)
        got = layer(q.to(device), *now, cos, sin, cache, slots.flatten().to(device), lengths, **given).cpu()
        positions = torch.arange(length)
        for b in range(batch):
            exact = plain(kv_b, q[b], latent[b, :length], rope[b, :length], positions, scale, interleaved)
            # Roundings to bfloat16 between the parts, 2^-8 each and of both sides of products; codes are off by 2^-4.
            off = (got[b].double() - exact).norm() / exact.norm()
            assert off <= (0.03 if kind == "wide" else 0.1), (count, b, off)


def test_softmax_scale(kernel):
    scale = kernel.layers.mla_softmax_scale
    assert scale(192) == 192**-0.5 == scale(192, {"rope_type": "default", "factor": 40})
    yarn = {"rope_type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0}
    assert abs(scale(192, yarn) - 192**-0.5 * (0.1 * 3.6888794541139363 + 1) ** 2) < 1e-9
    assert scale(192, yarn | {"mscale_all_dim": 0}) == 192**-0.5


def test_it_is_transformers_attention(kernel, device, generator):
    """DeepseekV3Attention's own scale and, of one step, its own output before o_proj."""
    transformers = pytest.importorskip("transformers")
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention, DeepseekV3RotaryEmbedding

    rope = {"rope_type": "yarn", "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 1.0, "rope_theta": 10000.0}
    rope |= {"original_max_position_embeddings": 64, "beta_fast": 32, "beta_slow": 1}
    config = transformers.DeepseekV3Config(
        **dict(
            hidden_size=64, num_attention_heads=HEADS, num_key_value_heads=HEADS, q_lora_rank=48, kv_lora_rank=LATENT
        ),
        **dict(qk_nope_head_dim=NOPE, qk_rope_head_dim=ROPE, v_head_dim=VALUE, max_position_embeddings=2560),
        rope_parameters=rope,
        attn_implementation="eager",
    )
    torch.manual_seed(int(torch.randint(2**31, (1,), generator=generator)))
    theirs = DeepseekV3Attention(config, 0).to(torch.bfloat16).eval()
    scale = kernel.layers.mla_softmax_scale(NOPE + ROPE, rope)
    assert abs(scale - theirs.scaling) < 1e-12
    x = normal((1, 9, 64), torch.bfloat16, generator)
    positions = torch.arange(9)[None]
    cos, sin = DeepseekV3RotaryEmbedding(config)(x, positions)
    seen = []
    theirs.o_proj.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    mask = torch.full((9, 9), -torch.inf, dtype=torch.bfloat16).triu(1)[None, None]
    with torch.no_grad():
        theirs(x, (cos, sin), mask)
        q = theirs.q_b_proj(theirs.q_a_layernorm(theirs.q_a_proj(x))).view(1, 9, HEADS, -1)
        kv, k_rope = theirs.kv_a_proj_with_mqa(x).split((LATENT, ROPE), dim=-1)
        kv = theirs.kv_a_layernorm(kv)
        layer = kernel.layers.LatentAttention(
            theirs.kv_b_proj.weight.to(device),
            HEADS,
            **dict(value=VALUE, softmax_scale=scale, interleaved=config.rope_interleave),
        )
        cache = torch.zeros(1, 16, 576, dtype=torch.bfloat16, device=device)
        got = []
        for at in (slice(0, 8), slice(8, 9)):
            new = [t[:, at].to(device) for t in (q, kv, k_rope, cos, sin)]
            slots = torch.arange(16, device=device)[at]
            lengths = torch.tensor([at.stop], dtype=torch.int32, device=device)
            got.append(layer(*new, cache, slots, lengths))
    got = torch.cat(got, dim=1).cpu().float()
    wanted = seen[0].view(got.shape).float()
    assert (got - wanted).norm() <= 0.02 * wanted.norm()
