"""fused_moe, which calls the parts: what is wrong with its arguments is said in words of its own."""

import torch

from problems.inputs import mx_codes, mx_exponents, normal
from problems.registry.changes import Arguments, Bad, given, replace
from problems.registry.entry import Draw, Operator
from problems.registry.moe import EXPERTS, SLOTS

BF16, D, INNER, TOKENS = torch.bfloat16, 40, 24, 4


def draw(on: Draw) -> Arguments:
    return dict(
        x=on.half(on.rows, D),
        w13=on.codes(EXPERTS, 2 * INNER, D),
        w2=on.codes(EXPERTS, D, INNER),
        weights=torch.rand(on.rows, SLOTS, generator=on.generator),
        experts=torch.randint(0, EXPERTS, (on.rows, SLOTS), generator=on.generator).int(),
        scale_w13=on.positive(EXPERTS, 1, 1),
        scale_w2=on.positive(EXPERTS, 1, 1),
    )


def quantised(args: Arguments) -> Arguments:
    codes = (args["x"].float() / 0.01).clamp(-240, 240).to(args["w13"].dtype)
    return dict(x=codes, input_scale=torch.full((len(codes), 1), 0.01), inputs="row", dtype=torch.float16)


def halves(args: Arguments) -> Arguments:
    experts = {name: (args[name].float() / 100).to(BF16) for name in ("w13", "w2")}
    return experts | dict(scale_w13=None, scale_w2=None)


def shared(args: Arguments) -> Arguments:
    of_map = torch.arange(EXPERTS).roll(2).int()
    return dict(shared=args["x"] * 0.5, expert_map=of_map, limit=1.5, experts=args["experts"].long(), power_of_two=True)


def of_mxfp4(args: Arguments) -> Arguments:
    """K and I of 32: a gate, biases, rows in turn."""
    g, tokens = torch.Generator().manual_seed(len(args["x"])), len(args["x"])
    mx = dict(w13=mx_codes((EXPERTS, 128, 32), torch.uint8, g), w2=mx_codes((EXPERTS, 64, 32), torch.uint8, g))
    mx |= dict(scale_w13=mx_exponents((EXPERTS, 128, 2), g), scale_w2=mx_exponents((EXPERTS, 64, 2), g))
    biases = dict(bias13=normal((EXPERTS, 128), torch.float32, g), bias2=normal((EXPERTS, 64), BF16, g))
    gate = dict(gate="situ", beta=4.0, linear_beta=25.0, alpha=1.702, interleaved=True, limit=7.0)
    return dict(x=normal((tokens, 64), BF16, g), inputs="16bit") | mx | biases | gate


STATICALLY = dict(inputs="static", input_scale=torch.full((1,), 0.05), hidden_scale=torch.full((1,), 0.05))
FORMS = {
    "dynamic": {},
    "row": dict(inputs="row", limit=1e-30),  # beside one that rounds to zero
    "static": STATICALLY,
    "quantised": quantised,
    "half": halves,
    "shared": shared,
    "mxfp4": of_mxfp4,
    "oai": lambda args: dict(gate="oai", inputs="row", bias2=normal((EXPERTS, D), BF16, torch.Generator())),
}


def turned(t: torch.Tensor) -> torch.Tensor:
    return t.mT.contiguous().mT


ALL = ("dynamic", "static", "quantised", "half")
QUANTISING = ALL[:3]
FULL, ONE, THREE = torch.zeros(TOKENS, D, dtype=BF16), torch.ones(1), torch.ones(3, 1, 1)
# why: (the argument that is named, what is said of it, of which calls, the change)
SPOILT = {
    "odd rows": ("w13", r"\[3, 47, 40\].*2 I", ALL, replace("w13", lambda t: t[:, :-1])),
    "no rows": ("w13", r"2 I", ALL, replace("w13", lambda t: t[:, :0])),
    "another D": ("w13", "x's D = 40", ALL, replace("w13", lambda t: t[..., :-1])),
    "two dimensions": ("w13", "E, 2 I, D", ALL, replace("w13", lambda t: t[0])),
    "no experts": ("w13", "1 to 1024 experts", ALL, replace("w13", lambda t: t[:0])),
    "1025 experts": ("w13", "1 to 1024 experts", ALL, replace("w13", lambda t: t[:1].expand(1025, -1, -1))),
    "experts of another half": ("w13", "bfloat16 beside x's torch.float16", ("half",), replace("x", torch.Tensor.half)),
    "float32 experts": ("w13", "float32 beside x's", ALL, replace("w13", torch.Tensor.float)),
    "half experts of FP8 rows": ("w13", "beside x's torch.float8", ("quantised",), replace("w13", torch.Tensor.half)),
    "w13 on its side": ("w13", "stride", ALL, replace("w13", turned)),
    "w13 elsewhere": ("w13", "on device meta, but x", ALL, replace("w13", lambda t: t.to("meta"))),
    "w2 of another I": ("w2", r"\[3, 40, 24\]", ALL, replace("w2", lambda t: t[..., :-1])),
    "w2 of another D": ("w2", r"\[3, 40, 24\]", ALL, replace("w2", lambda t: t[:, :-1])),
    "w2 of other experts": ("w2", r"\[3, 40, 24\]", ALL, replace("w2", lambda t: t[:-1])),
    "w2 of two dimensions": ("w2", "E, D, I", ALL, replace("w2", lambda t: t[0])),
    "w2 of another dtype": ("w2", "needs w13's", ALL, replace("w2", torch.Tensor.float)),
    "w2 on its side": ("w2", "stride", ALL, replace("w2", turned)),
    "x of three dimensions": ("x", r"T, D", ALL, replace("x", lambda t: t[None])),
    "x of one dimension": ("x", r"T, D", ALL, replace("x", lambda t: t[0])),
    "x on its side": ("x", "stride", ALL, replace("x", turned)),
    "x without values": ("x", "T, D", ALL, replace("x", lambda t: t[:, :0])),
    "x in float32": ("x", "allowed", ("dynamic",), replace("x", torch.Tensor.float)),
    "weights in half": ("weights", "torch.float32", ALL, replace("weights", torch.Tensor.half)),
    "weights of other tokens": ("weights", "experts' ", ALL, replace("weights", lambda t: t[:-1])),
    "weights of one dimension": ("weights", "experts' ", ALL, replace("weights", torch.Tensor.flatten)),
    "weights on their side": ("weights", "contiguous", ALL, replace("weights", turned)),
    "experts in 16 bits": ("experts", "int32, torch.int64", ALL, replace("experts", torch.Tensor.short)),
    "experts on their side": ("experts", "contiguous", ALL, replace("experts", turned)),
    "experts of more tokens": ("experts", "", ("dynamic",), given(experts=torch.zeros(5, 2, dtype=torch.int32))),
    "experts of one dimension": ("experts", "", ("dynamic",), replace("experts", lambda t: t[:, 0])),
    "no choice": (
        *("experts", "k from 1 to 32", ALL),
        lambda a: a.update(experts=a["experts"][:, :0], weights=a["weights"][:, :0]),
    ),
    "33 choices": (
        *("experts", "k from 1 to 32", ALL),
        lambda a: a.update(experts=a["experts"][:, :1].repeat(1, 33), weights=a["weights"][:, :1].repeat(1, 33)),
    ),
    "a map in 64 bits": ("expert_map", "int32", ALL, given(expert_map=torch.zeros(3, dtype=torch.int64))),
    "a map of two dimensions": ("expert_map", "int32", ALL, given(expert_map=torch.zeros(1, 3, dtype=torch.int32))),
    "scale_w13 of rows of w2": ("scale_w13", r"\[3, 48, 1\]", QUANTISING, given(scale_w13=torch.ones(3, 40, 1))),
    "scale_w2 of rows of w13": ("scale_w2", r"\[3, 40, 1\]", QUANTISING, given(scale_w2=torch.ones(3, 48, 1))),
    "scale_w13 in half": ("scale_w13", "torch.float32", QUANTISING, given(scale_w13=THREE.half())),
    "scale_w2 in half": ("scale_w2", "torch.float32", QUANTISING, given(scale_w2=THREE.half())),
    "scale_w13 of nothing": ("scale_w13", "None; experts of", QUANTISING, given(scale_w13=None)),
    "scale_w2 of nothing": ("scale_w2", "None; experts of", QUANTISING, given(scale_w2=None)),
    "scale_w13 of half experts": ("scale_w13", "have no scales", ("half",), given(scale_w13=THREE)),
    "scale_w2 of half experts": ("scale_w2", "have no scales", ("half",), given(scale_w2=THREE)),
    "w13 of no blocks": (
        "w13",
        "multiple of 32",
        ("mxfp4",),
        lambda a: a.update(w13=a["w13"][..., :-8], x=a["x"][:, :-16]),
    ),
    "w13 of half a D": ("w13", "D / 2", ("mxfp4",), replace("w13", lambda t: t[..., :-1])),
    "w2 in FP8": ("w2", "needs w13's", ("mxfp4",), replace("w2", lambda t: t.view(torch.float8_e4m3fn))),
    "w2 of half an I": ("w2", r"\[3, 64, 32\]", ("mxfp4",), replace("w2", lambda t: t[..., :-1])),
    "scale_w13 of 128": ("scale_w13", r"\[3, 128, 2\]", ("mxfp4",), replace("scale_w13", lambda t: t[..., :1])),
    "scale_w2 in float32": ("scale_w2", "e8m0", ("mxfp4",), replace("scale_w2", torch.Tensor.float)),
    "MX without scales": ("scale_w13", "None; MX experts", ("mxfp4",), given(scale_w13=None)),
    "MX by groups": ("inputs", "16bit", ("mxfp4",), given(inputs="group")),
    "MX inputs of FP8": ("inputs", "allowed: 'group'", ("dynamic",), given(inputs="mxfp8")),
    "a bias of other experts": ("bias13", r"\[3, 128\]", ("mxfp4",), replace("bias13", lambda t: t[:-1])),
    "a bias of integers": ("bias2", "allowed", ("mxfp4",), replace("bias2", torch.Tensor.int)),
    "no gate": ("gate", "'silu', 'oai', 'situ'", ("dynamic", "mxfp4"), given(gate="relu")),
    "a beta of silu": ("beta", "situ", ("dynamic",), given(beta=1.0)),
    "inputs of a tensor": ("inputs", "", ("dynamic",), given(inputs="tensor")),
    "half experts beside FP8": ("inputs", "", ("dynamic",), given(w13=torch.zeros(3, 48, 40, dtype=BF16))),
    "no input scale": ("input_scale", "", ("static",), given(input_scale=None)),
    "no hidden scale": ("hidden_scale", "", ("static",), given(hidden_scale=None)),
    "an input scale of dynamic inputs": ("input_scale", "", ("dynamic",), given(input_scale=ONE)),
    "two input scales": ("input_scale", "one element", ("static",), given(input_scale=torch.ones(2))),
    "an input scale in half": ("input_scale", "torch.float32", ("static",), given(input_scale=ONE.half())),
    "scales of other rows": ("input_scale", r"\[4, 1\]", ("quantised",), given(input_scale=torch.ones(3, 1))),
    "rows without scales": ("input_scale", "None; needs", ("quantised",), given(input_scale=None)),
    "two hidden scales": ("hidden_scale", "one element", ("static",), given(hidden_scale=torch.ones(2))),
    "a hidden scale in half": ("hidden_scale", "torch.float32", ("static",), given(hidden_scale=ONE.half())),
    "shared of other tokens": ("shared", r"\[4, 40\]", ALL, given(shared=FULL[:-1])),
    "shared of another D": ("shared", r"\[4, 40\]", ALL, given(shared=FULL[:, :-1])),
    "shared of integers": ("shared", "allowed", ALL, given(shared=FULL.int())),
    "shared on its side": ("shared", "stride", ALL, given(shared=turned(FULL))),
    "out of other tokens": ("out", r"\[4, 40\]", ALL, replace("out", lambda t: t[:-1])),
    "out of another D": ("out", r"\[4, 40\]", ALL, replace("out", lambda t: t[:, :-1])),
    "out of integers": ("out", "allowed", ALL, given(out=FULL.int())),
    "no tensor for shared": ("shared", "needs a tensor", ALL, given(shared=1.0)),
    "no tensor for a scale": ("scale_w2", "needs a tensor", QUANTISING, given(scale_w2=1.0)),
    "a dtype that is not x's": ("dtype", "x's", ("dynamic", "static", "half"), given(dtype=torch.float16)),
    "dtype float32": ("dtype", "allowed", ALL, given(dtype=torch.float32)),
    "a limit below zero": ("limit", "positive", ALL, given(limit=-1.0)),
    "a limit that rounds to zero": ("limit", "positive in torch.bfloat16", QUANTISING[:2], given(limit=1e-45)),
    **{
        f"{name} is {v!r}": (name, "", ("dynamic",), given(**{name: v}))
        for name in ("x", "w13", "w2", "weights", "experts")
        for v in (0.5, "1", [1], None)
    },
}
BAD = tuple(
    Bad(named, f"{what}-{form}", change, f"{named}: .*{says}", form, of_reference=True)
    for what, (named, says, forms, change) in SPOILT.items()
    for form in forms
)
OPERATORS = (Operator("fused_moe", draw, FORMS, bad=BAD, composite=True),)
