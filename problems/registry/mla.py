"""Attention over latent vectors, and what writes its cache."""

import torch

from problems.inputs import FP8, HALF
from problems.registry.changes import Arguments, Bad, given, replace, to_dtype
from problems.registry.entry import Draw, Operator, T

BF16, F32, I32, U8 = torch.bfloat16, torch.float32, torch.int32, torch.uint8
QUERIES, HEADS, PAGE, PAGES, WIDTH, LATENT = 2, 3, 4, 7, 576, 512


def draw_decode(on: Draw) -> Arguments:
    """With a cache of FP8, in pages."""
    return dict(
        q=on.half(on.rows, QUERIES, HEADS, WIDTH),
        cache=on.half(PAGES, PAGE, WIDTH).to(on.fp8),
        lengths=torch.full((on.rows,), 9, dtype=I32),
        softmax_scale=0.07,
        block_table=torch.arange(3 * on.rows).view(on.rows, 3).int() % PAGES,
        cache_scale=on.positive(1),
        lse_out=torch.full((on.rows, QUERIES, HEADS), torch.nan),
    )


def draw_append(on: Draw) -> Arguments:
    return dict(
        kv=on.half(on.rows, LATENT),
        k_rope=on.half(on.rows, 64),
        cache=torch.ones(PAGES + 2, PAGE, WIDTH).to(on.fp8),
        slots=on.permuted((PAGES + 2) * PAGE)[: on.rows],
        cos=on.half(on.rows, 64),
        sin=on.half(on.rows, 64),
        interleaved=True,
        cache_scale=on.positive(1),
    )


def mixed(cache: torch.Tensor) -> torch.Tensor:
    """Zeros in DeepSeek's layout."""
    return torch.zeros(*cache.shape[:2], 656, dtype=U8)


def wide(args: Arguments) -> Arguments:
    return dict(cache=args["cache"].to(BF16), cache_scale=None)


def dense(args: Arguments) -> Arguments:
    q = args["q"]
    cache = torch.randn(len(q), 3, WIDTH, generator=torch.Generator().manual_seed(1)).to(q.dtype)
    return dict(cache=cache, cache_scale=None, block_table=None, lse_out=None, causal=False)


def one_token_a_page_more(args: Arguments) -> None:
    args["cache"] = args["cache"].new_zeros(1, 257, WIDTH, dtype=U8).view(args["cache"].dtype)


OF_CACHE = (
    Bad("cache", "narrow", replace("cache", lambda t: t[..., :-1])),
    Bad("cache_scale", "missing", given(cache_scale=None)),
)
OF_DECODE = (
    *OF_CACHE,
    Bad("q", "no-heads", replace("q", lambda t: t[:, :, :0])),
    Bad("q", "129-heads", replace("q", lambda t: t.repeat(1, 1, 43, 1))),
    Bad("q", "9-queries", replace("q", lambda t: t.repeat(1, 5, 1, 1)[:, :9])),
    Bad("q", "two-dims", given(q=torch.zeros(2, WIDTH), out=None), of_function=True),
    Bad("cache", "of-another-batch", given(block_table=None)),
    Bad("block_table", "one-missing", replace("block_table", lambda t: t[:-1])),
    Bad("cache", "no-pages", replace("cache", lambda t: t[:0])),
    Bad("cache", "257-tokens-a-page", one_token_a_page_more),
    Bad("cache", "656-codes", replace("cache", lambda t: t.new_zeros(7, 4, 656, dtype=U8)), "cache_scale: given"),
    Bad("cache", "576-bytes", replace("cache", lambda t: t.view(U8))),
    Bad("cache", "float16-for-bfloat16", to_dtype("cache", torch.float16)),
)
OF_APPEND = (
    *OF_CACHE,
    Bad("cache", "rows-on-one-another", replace("cache", lambda t: t[:1].expand(t.shape))),
    Bad("sin", "missing", given(sin=None)),
    Bad("cos", "missing", given(cos=None)),
    Bad("interleaved", "without-angles", given(cos=None, sin=None)),
    Bad("sin", "of-another-type", to_dtype("sin", F32)),
)
CACHE = T((*FP8, BF16, torch.float16, U8))
SCALE = T((F32,), "one", optional=True)
OPERATORS = (
    Operator(
        "mla_decode",
        draw_decode,
        {
            "fp8": {},
            "wide": wide,
            "mixed": lambda args: dict(cache=mixed(args["cache"]), cache_scale=None),
            "dense": dense,
        },
        {
            "q": T(HALF, instead="lengths|block_table|out|lse_out"),
            "cache": CACHE,
            "lengths": T((I32,), "fixed", "dense", vector=True),
            "block_table": T((I32,), "free", optional=True),
            "cache_scale": SCALE,
            "out": T((BF16,), "fixed", "dense", optional=True),
            "lse_out": T((F32,), "fixed", "dense", optional=True),
        },
        ("out", "lse_out"),
        bad=OF_DECODE,
        registered_is_spoilt=True,
    ),
    Operator(
        "mla_append",
        draw_append,
        {
            "fp8": {},
            "halves": lambda args: dict(cos=None, sin=None, interleaved=False),
            "wide": wide,
            "mixed": lambda args: dict(cache=mixed(args["cache"]), cache_scale=None),
            "rotated-alone": dict(kv=None),
            "float32-angles": lambda args: dict(cos=args["cos"].float(), sin=args["sin"].float(), interleaved=False),
        },
        {
            "kv": T(HALF, "fixed", optional=True, instead="k_rope|slots"),
            "k_rope": T(HALF, "fixed", instead="kv|slots"),
            "cache": CACHE,
            "slots": T((torch.int64,), "fixed", "dense", vector=True),
            "cos": T((*HALF, F32), "fixed", optional=True, instead="sin"),
            "sin": T(HALF, "fixed", optional=True),
            "cache_scale": SCALE,
        },
        ("cache",),
        (),
        OF_APPEND,
        registered_is_spoilt=True,
    ),
)
