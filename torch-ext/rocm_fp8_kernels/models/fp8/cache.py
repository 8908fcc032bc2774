"""The cache of DeepSeek-V3's attention on mla_decode, as transformers' models and generate() take it.

A token is one row of 576 numbers in each layer. Rows of a sequence lie one after the other: tokens that a mask leaves
out are not stored, so that lengths alone say what counts, in batches of unlike prompts, too. Where the tokens go is
found once a step, by the first layer; all layers share it.
"""

from typing import NamedTuple

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from ...layers.mla import LATENT, ROPE

__all__ = ["QUERIES", "LatentCache", "check_causal", "check_mask", "is_valid"]

QUERIES = 8  # of one sequence, that mla_decode takes
_PAGE = 64
_CODED = 656  # bytes of a token in DeepSeek's layout
_GROWS_BY = 256


def is_valid(mask: torch.Tensor | None, batch: int, queries: int) -> torch.Tensor | None:
    """Which of the new tokens are none of padding: bool [B, S], or None for all. mask: what transformers gives its
    attentions, over the new tokens alone (LatentCache.get_mask_sizes).

    Raises: ValueError for a mask of another form.
    """
    if mask is None:
        return None
    if (
        not isinstance(mask, torch.Tensor)
        or mask.dim() not in (2, 4)
        or (mask.dim() == 4 and mask.shape[-1] != queries)
    ):
        form = list(mask.shape) if isinstance(mask, torch.Tensor) else type(mask).__name__
        raise ValueError(f"attention_mask: {form}; with a LatentCache it is [B, tokens]")
    if mask.dim() == 2:  # of flash attention: of all tokens
        return mask[:, -queries:].bool()
    own = mask[:, 0].diagonal(dim1=-2, dim2=-1)  # whether a token sees itself
    own = own if own.dtype == torch.bool else own == 0
    return own.expand(batch, -1)


def check_causal(mask: torch.Tensor | None, valid: torch.Tensor | None, batch: int, queries: int) -> None:
    """Whether a mask of [B, heads, S, S] is that of tokens which see all valid ones up to themselves: a LatentCache has
    no place for another. Raises: ValueError; on a GPU, and in compiled code, when it is found there."""
    if mask is None or mask.dim() != 4 or queries == 1:
        return
    sees = mask if mask.dtype == torch.bool else mask == 0
    before = torch.ones(queries, queries, dtype=torch.bool, device=mask.device).tril()
    wanted = before & valid[:, None, None, :]
    # What a token of padding sees has no effect.
    right = ((sees == wanted) | ~valid[:, None, :, None]).all()
    _demand(right, ValueError, "attention_mask: not that of causal attention; a LatentCache takes [B, tokens]")


def check_mask(base: torch.nn.Module, args: tuple, kwargs: dict) -> None:
    """Forward pre-hook, with keyword arguments, of a base model whose attention takes LatentCaches. The attention is
    given the mask of new tokens alone: whether that of others is what it was, nobody else could see.

    Raises: ValueError; on a GPU, and in compiled code, when it is found there.
    """
    cache = next((each for each in (*args, *kwargs.values()) if isinstance(each, LatentCache)), None)
    mask = kwargs.get("attention_mask", args[1] if len(args) > 1 else None)
    if cache is None or not isinstance(mask, torch.Tensor) or mask.dim() != 2:
        return
    # By name: a mask may come before the embeddings that stand for ids.
    new = (*args[:1], kwargs.get("input_ids"), *args[4:5], kwargs.get("inputs_embeds"))
    given = next(each for each in new if isinstance(each, torch.Tensor))
    cache.layers[0].tokens.check_mask(mask.bool(), given.shape[1])


def _demand(right: torch.Tensor, error: type[Exception], message: str) -> None:
    """Raises `error` where `right`, one bool, is False. On a GPU the device does it, so that nothing waits for it; and
    in compiled code, which cannot raise, RuntimeError comes of an operator."""
    if right.device.type == "cpu" and not torch.compiler.is_compiling():
        if not bool(right):
            raise error(message)
    else:
        torch._assert_async(right, message)


class Place(NamedTuple):
    """Where a layer's new tokens go.

    rows: [B, L, 576], or uint8 [B, L, 656] in DeepSeek's layout, L a multiple of 64; slots: int64 [B * S], -1 for none;
    before, lengths: int32 [B], tokens of each sequence before the new ones, and with them.
    """

    rows: torch.Tensor
    slots: torch.Tensor
    before: torch.Tensor
    lengths: torch.Tensor
    was_empty: bool

    def in_parts(self, q: torch.Tensor, valid: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
        """More queries than mla_decode takes, as sequences of fewer that share their pages: (q, lengths, pages,
        block_table) for it. With `valid` each query is alone. q: [B, S, H, 576]."""
        batch, queries = q.shape[:2]
        size = QUERIES if valid is None else 1
        parts = -(-queries // size)
        if valid is None:
            counted = torch.arange(1, parts + 1, device=q.device).expand(batch, -1) * size
        else:
            counted = valid.cumsum(1)
        lengths = (self.before[:, None] + counted).int().flatten()
        q = torch.nn.functional.pad(q, (0, 0, 0, 0, 0, parts * size - queries)).view(-1, size, *q.shape[2:])
        pages = self.rows.view(-1, _PAGE, self.rows.shape[-1])
        table = torch.arange(len(pages), dtype=torch.int32, device=q.device).view(batch, -1)
        return q, lengths, pages, table.repeat_interleave(parts, 0)


class _Tokens:
    """How many tokens all layers hold."""

    def __init__(self, max_length: int | None, fp8: bool):
        self.max_length, self.fp8 = max_length, fp8
        self.lengths: torch.Tensor | None = None  # int32 [B]
        self.seen: int | torch.Tensor = 0  # of each sequence, padding included; int64 on the device, where L is fixed
        self.valid: torch.Tensor | None = None  # bool [B, L]: which of them count; of a growing cache [B, seen]
        self.room = 0
        self.empty = self.was_empty = True
        self.before = self.slots = None

    def start(self, batch: int, queries: int, valid: torch.Tensor | None, device: torch.device) -> None:
        """Takes `queries` more tokens a sequence."""
        fixed = self.max_length is not None
        if self.lengths is None:
            self.lengths = torch.zeros(batch, dtype=torch.int32, device=device)
            self.seen = torch.zeros((), dtype=torch.int64, device=device) if fixed else 0
            if fixed:
                # A page more: parts of 8 queries are filled up.
                self.room = -(-(self.max_length + QUERIES) // _PAGE) * _PAGE
                self.valid = torch.zeros(batch, self.max_length, dtype=torch.bool, device=device)
                _mark_static(self.lengths, self.seen, self.valid)
        if len(self.lengths) != batch:
            raise ValueError(f"a LatentCache of {len(self.lengths)} sequences; {batch} were given")
        if not fixed and self.seen + queries + QUERIES > self.room:
            self.room = -(-(self.seen + queries + QUERIES) // _GROWS_BY) * _GROWS_BY
        if fixed:
            _demand(
                self.seen + queries <= self.max_length,
                IndexError,
                f"a LatentCache of max_length {self.max_length} is full: {queries} more tokens are too many",
            )
        self._note(batch, queries, valid, device)
        self.was_empty, self.empty = self.empty, False
        self.before = self.lengths.clone()
        if valid is None:
            of_each = torch.arange(queries, device=device).expand(batch, -1)
            count = queries
        else:
            of_each, count = valid.cumsum(1) - 1, valid.sum(1)
        place = self.before[:, None] + of_each
        live = place < (self.max_length if fixed else self.room)
        live = live if valid is None else live & valid
        first = torch.arange(batch, device=device)[:, None] * self.room
        self.slots = torch.where(live, first + place, -1).flatten()
        self.lengths.add_(count)
        if fixed:
            self.seen.add_(queries)
        else:
            self.seen += queries

    def _note(self, batch: int, queries: int, valid: torch.Tensor | None, device: torch.device) -> None:
        """Which of the new tokens count."""
        if valid is None:
            valid = torch.ones(batch, queries, dtype=torch.bool, device=device)
        if self.max_length is not None:
            at = self.seen + torch.arange(queries, device=device)
            self.valid.index_copy_(1, at.clamp(max=self.max_length - 1), valid)
        else:
            self.valid = valid if self.valid is None else torch.cat([self.valid, valid], dim=1)

    def check_mask(self, mask: torch.Tensor, queries: int) -> None:
        """mask: bool [B, tokens], of those that the cache holds and `queries` new ones, or of max_length."""
        if self.lengths is None or self.empty:
            return
        total, fixed = self.seen + queries, self.max_length is not None
        if not fixed and mask.shape[1] != total:
            raise ValueError(f"attention_mask: {list(mask.shape)}; the LatentCache and the new tokens have {total}")
        held = self.valid[:, : mask.shape[1]] if fixed else self.valid
        mask = mask[:, : held.shape[1]]
        if mask.shape != held.shape:
            raise ValueError(f"attention_mask: {list(mask.shape)}; a LatentCache of {len(held)} sequences")
        old = torch.arange(held.shape[1], device=held.device) < self.seen
        right = ((mask.to(held.device) == held) | ~old).all()
        if fixed:
            right = right & (mask.shape[1] >= total)
        _demand(right, ValueError, "attention_mask: not what it was for tokens that the LatentCache holds")

    def remove(self, count: int) -> None:
        """The last `count` tokens of each sequence, padding among them."""
        if self.lengths is None or count == 0:
            return
        if self.max_length is not None:
            last = torch.arange(self.max_length, device=self.seen.device)
            gone = (last >= self.seen - count) & (last < self.seen)
            self.lengths.sub_((self.valid & gone).sum(1))
            self.seen.sub_(count).clamp_(min=0)
        else:
            count = min(count, self.seen)
            self.lengths.sub_(self.valid[:, self.seen - count :].sum(1))
            self.valid = self.valid[:, : self.seen - count]
            self.seen -= count
        self.lengths.clamp_(min=0)

    def change(self, function) -> None:
        """Of what has a number for each sequence."""
        if self.lengths is not None:
            self.lengths, self.valid = function(self.lengths), function(self.valid)

    def reset(self) -> None:
        self.empty = True
        if self.lengths is not None:
            self.lengths.zero_()
            self.seen = self.seen.zero_() if self.max_length is not None else 0
            self.valid = self.valid if self.max_length is not None else None


class _Layer(CacheLayerMixin):
    """One layer's rows. transformers calls its methods; the first layer's speak for the tokens of all."""

    is_sliding = False
    is_croppable = True
    supports_early_init = False

    def __init__(self, tokens: _Tokens, first: bool):
        super().__init__()
        self.tokens, self.first = tokens, first
        self.rows: torch.Tensor | None = None

    @property
    def is_compileable(self) -> bool:
        return self.tokens.max_length is not None

    def place(self, like: torch.Tensor, valid: torch.Tensor | None) -> Place:
        tokens, (batch, queries) = self.tokens, like.shape[:2]
        if self.first:
            tokens.start(batch, queries, valid, like.device)
        if self.rows is None or self.rows.shape[1] < tokens.room:
            width, dtype = (_CODED, torch.uint8) if tokens.fp8 else (LATENT + ROPE, like.dtype)
            rows = torch.zeros(batch, tokens.room, width, dtype=dtype, device=like.device)
            if self.rows is not None:
                rows[:, : self.rows.shape[1]] = self.rows
            elif tokens.max_length is not None:
                _mark_static(rows)
            self.rows, self.is_initialized = rows, True
        return Place(self.rows, tokens.slots, tokens.before, tokens.lengths, tokens.was_empty)

    def update(self, key_states, value_states, *args, **kwargs):
        raise TypeError("a LatentCache is for DeepSeek-V3's attention that is quantised as a whole, by `quantization`")

    def lazy_initialization(self, key_states, value_states) -> None:
        self.update(key_states, value_states)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length, self.tokens.seen  # a mask of the new tokens

    def get_seq_length(self) -> int | torch.Tensor:
        return self.tokens.seen

    def get_max_length(self) -> int:
        return self.tokens.max_length or -1

    get_max_cache_shape = get_max_length

    def reset(self) -> None:
        if self.first:
            self.tokens.reset()

    def crop(self, tokens_to_remove: int) -> None:
        """A negative number: the last ones of each sequence go, padding counted."""
        if tokens_to_remove > 0:
            raise ValueError(f"crop: {tokens_to_remove}; a LatentCache takes minus the number of tokens to remove")
        if self.first:
            self.tokens.remove(-tokens_to_remove)

    def _change(self, function) -> None:
        if self.first:
            self.tokens.change(function)
        if self.rows is not None:
            self.rows = function(self.rows)

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        self._change(lambda t: t.index_select(0, beam_idx.to(t.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._change(lambda t: t.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self._change(lambda t: t[indices])

    def offload(self) -> None:
        raise NotImplementedError("a LatentCache is not offloaded")

    prefetch = offload


class LatentCache(Cache):
    """See quantization.latent_cache."""

    def __init__(self, config, max_length: int | None = None, fp8: bool = False):
        config = config.get_text_config(decoder=True)
        sizes = tuple(getattr(config, name, None) for name in ("kv_lora_rank", "qk_rope_head_dim"))
        if sizes != (LATENT, ROPE):
            raise ValueError(f"kv_lora_rank and qk_rope_head_dim: {sizes}; mla_decode takes {LATENT} and {ROPE}")
        if max_length is not None and (not isinstance(max_length, int) or max_length < 1):
            raise ValueError(f"max_length: {max_length!r}; needs a positive integer, or None")
        if not isinstance(fp8, bool):
            raise ValueError(f"fp8: {fp8!r}; needs True or False")
        tokens = _Tokens(max_length, fp8)
        super().__init__(layers=[_Layer(tokens, first=i == 0) for i in range(config.num_hidden_layers)])

    def standing(self) -> list[torch.Tensor]:
        """The numbers on the device that say how many tokens it holds; of one of fixed length, after its first call.
        Who sets them back takes the last steps back."""
        tokens = self.layers[0].tokens
        return [tokens.lengths, tokens.seen]

    def place(self, layer_idx: int, like: torch.Tensor, valid: torch.Tensor | None) -> Place:
        """Where the new tokens of a layer go. like: [B, S, ...], of the rows' device, and dtype unless in FP8.
        Raises: ValueError where the cache was made for fewer layers."""
        if layer_idx >= len(self.layers):
            raise ValueError(f"a LatentCache of {len(self.layers)} layers; the model has more")
        return self.layers[layer_idx].place(like, valid)


def _mark_static(*tensors: torch.Tensor) -> None:
    """Compiled graphs may write them in place without a copy; transformers does so with its own."""
    if not torch.compiler.is_compiling():
        for tensor in tensors:
            torch._dynamo.mark_static_address(tensor)
