"""DeepSeek-V3's attention (MLA) as the half of a decoder layer.

    FP8 --q_a and kv_a, one GEMM--> q', c', r      c' and r: what all heads share
    q' --the norm--> FP8 --q_b--> q                c' --the norm--> c

With a LatentCache (cache.py), c and the rotated r are appended to it, and new tokens read it by mla_decode: no
key and no value of a head is made. A prompt into an empty cache, and every call with another cache, makes them from c
by kv_b, and calls transformers' attention.

mla_decode's steps multiply by copies of kv_b's numbers, in 16 bits (`absorbed`), which follow it. A prompt into an
empty cache renews them, whoever has written the weight, and how. So does an eager step after a write that torch has
counted. All of it is in place: compiled steps and captured graphs read the new numbers.
"""

import torch

from ...layers.mla import LATENT, ROPE, LatentAttention
from ...layers.watching import call, is_watched, ours, plain_norm
from ...operators import operators
from ..signatures import cached, named, pop_cache
from .cache import QUERIES, LatentCache, check_causal, is_valid
from .decoder import normalised_for
from .halves import AttentionHalf
from .linear import QuantizedLinear, SeenTensor


class FusedLatentAttention(AttentionHalf):
    q_kv_a_proj: QuantizedLinear
    kv_b_proj: QuantizedLinear
    absorbed: LatentAttention | None

    @classmethod
    def joined_of(cls, own: torch.nn.Module) -> dict[str, tuple[str, ...]]:
        low_rank = own.q_lora_rank is not None
        joined = {"q_kv_a_proj": ("q_a_proj" if low_rank else "q_proj", "kv_a_proj_with_mqa")}
        alone = ("q_b_proj",) if low_rank else ()
        return joined | {name: (name,) for name in (*alone, "kv_b_proj", "o_proj")}

    def rows_of_parts(self, name: str) -> list[int]:
        if name != "q_kv_a_proj":
            return super().rows_of_parts(name)
        shared = self.kv_lora_rank + self.qk_rope_head_dim
        return [self.q_kv_a_proj.out_features - shared, shared]

    @property
    def first(self) -> QuantizedLinear:
        return self.q_kv_a_proj

    def absorb(self) -> None:
        """Makes, or renews, what mla_decode needs of kv_b_proj, in 16 bits; of sizes that it does not take, nothing."""
        if (self.kv_lora_rank, self.qk_rope_head_dim) != (LATENT, ROPE):
            self.absorbed = None
            return
        weight, absorbed = self.kv_b_proj.dequantized(), getattr(self, "absorbed", None)
        self._absorbed_of = SeenTensor(), SeenTensor()
        if absorbed is not None and absorbed.heads == self.num_heads and absorbed.w_uk.dtype == weight.dtype:
            absorbed.renew(weight)
            return
        self.absorbed = LatentAttention(
            weight,
            self.num_heads,
            value=self.v_head_dim,
            softmax_scale=self.scaling,
            interleaved=bool(self.config.rope_interleave),
        )

    def _follow(self, prompt: bool) -> None:
        """Renews `absorbed` where kv_b_proj may be another than before. A compiled step cannot tell."""
        linear = self.kv_b_proj
        changed = False
        if not torch.compiler.is_compiling():
            tensors = linear.weight, linear.weight_scale
            counted = not any(tensor.is_inference() for tensor in tensors)
            changed = counted and not all([seen.again(each) for seen, each in zip(self._absorbed_of, tensors)])
        if prompt or changed:
            self.absorbed.renew(linear.dequantized())

    @ours
    def forward(
        self,
        hidden_states: torch.Tensor,
        *args,
        input_scale: torch.Tensor | None = None,
        **kwargs,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """hidden_states [batch, length, hidden_size] and input_scale: as in Fp8Linear's or MxLinear's forward. The
        others: PARAMETERS."""
        arguments = named(self.PARAMETERS, args, kwargs)
        angles, mask = arguments.pop("position_embeddings"), arguments.pop("attention_mask", None)
        low = call(self.q_kv_a_proj, hidden_states, more=dict(scale=input_scale))
        of_q = low.shape[-1] - self.kv_lora_rank - self.qk_rope_head_dim
        q, latent, rope = low.split([of_q, self.kv_lora_rank, self.qk_rope_head_dim], dim=-1)
        if self.q_lora_rank is not None:
            q = self._of_low_rank(q)
        q, latent = q.unflatten(-1, (-1, self.qk_head_dim)), self.kv_a_layernorm(latent)
        cache = pop_cache(arguments, LatentCache)
        if cache is None:
            output, weights = self._expanded(q, latent, rope, angles, mask, arguments)
        else:
            output, weights = self._with_latent_cache(cache, q, latent, rope, angles, mask, arguments)
        return self.o_proj(output.reshape(*hidden_states.shape[:-1], -1)), weights

    def _of_low_rank(self, q: torch.Tensor) -> torch.Tensor:
        linear = self.q_b_proj
        if not plain_norm(self.q_a_layernorm) or not isinstance(linear, QuantizedLinear) or is_watched(linear):
            return linear(self.q_a_layernorm(q))
        q, scale = normalised_for(self.q_b_proj, self.q_a_layernorm, q)
        return self.q_b_proj(q, scale=scale)

    def _expanded(self, q, latent, rope, angles, mask, arguments: dict):
        """transformers' attention, with keys and values of each head. latent, rope: [B, S, 512], [B, S, 64]."""
        q_nope, q_rope = q.transpose(1, 2).split([self.qk_nope_head_dim, self.qk_rope_head_dim], dim=-1)
        modeling = self.modeling
        interleaved = self.config.rope_interleave
        rotate = modeling.apply_rotary_pos_emb_interleave if interleaved else modeling.apply_rotary_pos_emb
        q_rope, rope = rotate(q_rope, rope[:, None], *angles)
        # One head each, as transformers stores them.
        latent, rope = cached(arguments, latent[:, None], rope, self.layer_idx)
        of_heads = self.kv_b_proj(latent[:, 0]).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        k_nope, value = of_heads.split([self.qk_nope_head_dim, self.v_head_dim], dim=-1)
        key = torch.cat([k_nope, rope.expand(-1, self.num_heads, -1, -1)], dim=-1)
        return self.attend(torch.cat([q_nope, q_rope], dim=-1), key, value, mask, arguments)

    def _with_latent_cache(self, cache: LatentCache, q, latent, rope, angles, mask, arguments: dict):
        if self.absorbed is None:
            raise ValueError(
                f"{type(cache).__name__}: kv_lora_rank {self.kv_lora_rank} and qk_rope_head_dim"
                f" {self.qk_rope_head_dim}; mla_decode takes {LATENT} and {ROPE}"
            )
        if not isinstance(self.kv_b_proj, QuantizedLinear) or is_watched(self.kv_b_proj):
            raise ValueError(
                f"{type(cache).__name__}: kv_b_proj is watched, wrapped or another module, and steps with this cache do"
                " not call it; other caches' do"
            )
        ops, (batch, queries) = operators(), q.shape[:2]
        cos, sin = (each.expand(batch, -1, -1) for each in angles)
        valid = is_valid(mask, batch, queries)
        if self.layer_idx == 0:
            check_causal(mask, valid, batch, queries)
        place = cache.place(self.layer_idx, latent, valid)
        self._follow(place.was_empty)
        of_rope = dict(cos=cos.reshape(-1, ROPE), sin=sin.reshape(-1, ROPE), interleaved=self.absorbed.interleaved)
        ops.mla_append(latent.reshape(-1, LATENT), rope.reshape(-1, ROPE), place.rows, place.slots, **of_rope)
        if place.was_empty and queries > QUERIES:
            return self._expanded(q, latent, rope, angles, mask, arguments)
        q = self.absorbed.absorb(q, cos, sin)
        if queries == 1 or (valid is None and queries <= QUERIES):
            out = ops.mla_decode(q, place.rows, place.lengths, self.scaling)
        else:
            q, lengths, pages, table = place.in_parts(q, valid)
            out = ops.mla_decode(q, pages, lengths, self.scaling, block_table=table)
            out = out.view(batch, -1, *out.shape[2:])[:, :queries].contiguous()
        return self.absorbed.values(out), None
