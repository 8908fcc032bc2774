"""A mixture of experts: routing, sorted rows, GEMMs of experts, the weighted sum."""

import torch

from ..ops.arguments import FP8
from ..ops.exported import exported_moe
from ..ops.moe_checks import check_fused_moe, default_inputs
from ..ops.mx import MX_BLOCK, holds_mx
from .activation import swiglu, swiglu_dynamic_fp8
from .gemm import block_scaled_gemm
from .mx import moe_gate, mx_product, quantize_mxfp4
from .quantize import encode_fp8, fp8_dtype_of, into, quantize_fp8


def moe_route(
    logits,
    top_k,
    *,
    scoring="softmax",
    bias=None,
    experts=None,
    groups=1,
    top_groups=1,
    group_score="top2",
    renormalize=False,
    factor=1.0,
):
    wide = logits.float()
    if scoring == "softmax":
        s = wide.softmax(-1)
    else:
        s = wide.sigmoid() if scoring == "sigmoid" else torch.logaddexp(wide, torch.zeros_like(wide)).sqrt()
    if experts is not None:
        known = (experts >= 0) & (experts < s.shape[1])
        weights = torch.where(known, s.gather(-1, torch.where(known, experts, 0).long()), 0)
        return _finished(weights, renormalize, factor), experts.clone()
    choice = s if bias is None else s + bias
    least = torch.tensor(-torch.inf, device=choice.device)
    choice = torch.where(choice.isnan(), least, choice)
    if groups > 1:
        parts = choice.unflatten(-1, (groups, -1))
        best = 1 if group_score == "max" or parts.shape[-1] == 1 else 2
        scores = parts.topk(best, dim=-1).values.sum(-1)
        scores = torch.where(scores.isnan(), least, scores)
        stay = scores.sort(dim=-1, descending=True, stable=True).indices[..., :top_groups]
        kept = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, stay, True)
        # Below every expert of a group that stays, whose choice may be -infinity, too.
        order = torch.where(kept[..., None], 0, 1).expand(parts.shape).flatten(-2)
    else:
        order = torch.zeros_like(choice, dtype=torch.int64)
    by_choice = choice.sort(dim=-1, descending=True, stable=True).indices
    in_groups = order.gather(-1, by_choice).sort(dim=-1, stable=True).indices
    experts = by_choice.gather(-1, in_groups)[..., :top_k]
    return _finished(s.gather(-1, experts), renormalize, factor), experts.int()


def _finished(weights, renormalize, factor):
    if renormalize:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return weights * factor


def moe_sort(experts, num_experts, *, expert_map=None):
    flat = experts.flatten().long()
    if expert_map is not None:
        known = (flat >= 0) & (flat < len(expert_map))
        none = torch.full_like(flat, -1)
        flat = torch.where(known, expert_map[torch.where(known, flat, 0)].long(), none) if len(expert_map) else none
    live = (flat >= 0) & (flat < num_experts)
    key = torch.where(live, flat, num_experts)
    by_expert = key.sort(stable=True).indices
    counts = torch.bincount(key, minlength=num_experts + 1)[:num_experts]
    offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    places = torch.arange(len(flat), device=flat.device)
    rows = torch.where(places < offsets[-1], by_expert, -1)
    positions = torch.empty_like(places).scatter(0, by_expert, places)
    positions = torch.where(live, positions, -1)
    return rows.int(), offsets.int(), positions.reshape(experts.shape).int()


def _sources(a, offsets, rows, slots):
    """Of each expert: its places, and the rows of a that lie there."""
    begin, *ends = offsets.tolist()
    for e, end in enumerate(ends):
        if end > begin:
            yield e, slice(begin, end), slice(begin, end) if rows is None else rows[begin:end].long() // slots
        begin = end


def _of(scale, e):
    return scale if scale is None or scale.numel() == 1 else scale[e]


def _rows_of(scale, rows):
    return scale if scale is None or scale.numel() == 1 else scale[rows]


def grouped_gemm(
    a,
    b,
    scale_a,
    scale_b,
    offsets,
    *,
    rows=None,
    slots=1,
    bias=None,
    out=None,
    out_dtype=None,
    expected_rows=None,
):
    dtype = out_dtype or (torch.bfloat16 if out is None else out.dtype)
    count = len(a) if rows is None else len(rows)
    out = torch.zeros(count, b.shape[1], dtype=dtype, device=a.device) if out is None else out
    for e, places, sources in _sources(a, offsets, rows, slots):
        if holds_mx(b, scale_b, a):
            rows_of_a = a[sources] if a.itemsize == 2 else a.view(torch.uint8)[sources].view(a.dtype)
            c = mx_product(rows_of_a, b[e], _rows_of(scale_a, sources), scale_b[e], None if bias is None else bias[e])
        elif scale_a is None:
            c = a[sources].float() @ b[e].float().t()
            c = c if bias is None else c + bias[e].float()
        else:
            codes = a.view(torch.uint8)[sources].view(a.dtype)
            of_b = _of(scale_b, e)
            of_b = of_b.reshape(1, -1) if of_b.dim() == 2 and of_b.shape == (b.shape[1], 1) else of_b
            c = _scaled(codes, b[e], _rows_of(scale_a, sources), of_b, None if bias is None else bias[e])
        out[places] = c.to(dtype)
    return out


def _scaled(a, b, scale_a, scale_b, bias):
    """block_scaled_gemm, told apart where [1, N] could be blocks, too."""
    blocks = -(-a.shape[1] // 128)
    if scale_a.numel() != 1 and scale_a.dim() == 2 and scale_a.shape[1] == 1:
        scale_a = scale_a.expand(-1, blocks) if blocks > 1 else scale_a
    if scale_b.shape == (1, b.shape[0]) and b.shape[0] > 1:
        scale_b = scale_b.t().expand(-1, blocks) if blocks > 1 else scale_b.reshape(-1)
    return block_scaled_gemm(a, b, scale_a, scale_b, bias, out_dtype=torch.float32)


def grouped_gemm_gate(
    a,
    b,
    scale_a,
    scale_b,
    offsets,
    *,
    rows=None,
    slots=1,
    bias=None,
    gate="silu",
    limit=None,
    alpha=1.702,
    beta=None,
    linear_beta=None,
    interleaved=False,
    out=None,
    out_dtype=None,
    expected_rows=None,
):
    c = grouped_gemm(a, b, scale_a, scale_b, offsets, rows=rows, slots=slots, bias=bias, out_dtype=torch.float32)
    numbers = dict(gate=gate, limit=limit, alpha=alpha, beta=beta, linear_beta=linear_beta, interleaved=interleaved)
    return moe_gate(c, offsets, **numbers, out=out, out_dtype=out_dtype)


def grouped_gemm_swiglu_fp8(
    a,
    b,
    scale_a,
    scale_b,
    offsets,
    *,
    rows=None,
    slots=1,
    bias=None,
    gate="silu",
    limit=None,
    alpha=1.702,
    beta=None,
    linear_beta=None,
    interleaved=False,
    dtype=torch.bfloat16,
    scale=None,
    scaling="row",
    group_size=128,
    scale_dtype=torch.float32,
    power_of_two=False,
    scale_ub=None,
    fp8_max=None,
    column_major_scales=False,
    out=None,
    scale_out=None,
    out_dtype=None,
    expected_rows=None,
):
    live, kind = int(offsets[-1]), fp8_dtype_of(a, out, out_dtype)
    numbers = dict(gate=gate, limit=limit, alpha=alpha, beta=beta, linear_beta=linear_beta, interleaved=interleaved)
    if holds_mx(b, scale_b, a) or bias is not None or gate != "silu" or interleaved:
        wanted = dict(scaling=scaling, group_size=group_size, scale_dtype=scale_dtype, power_of_two=power_of_two)
        wanted |= dict(scale_ub=scale_ub, fp8_max=fp8_max, column_major_scales=column_major_scales)
        by = dict(rows=rows, slots=slots, bias=bias)
        hidden = grouped_gemm_gate(a, b, scale_a, scale_b, offsets, **by, **numbers, out_dtype=dtype)
        return quantize_fp8(hidden, scale, **wanted, out=out, scale_out=scale_out, out_dtype=kind)
    c = grouped_gemm(a, b, scale_a, scale_b, offsets, rows=rows, slots=slots, out_dtype=dtype)
    if scale is not None:
        q, scales = encode_fp8(swiglu(c, limit).float() / scale, kind), scale
    else:
        q, scales = swiglu_dynamic_fp8(
            c,
            limit=limit,
            scaling=scaling,
            group_size=group_size,
            scale_dtype=scale_dtype if scale_out is None else scale_out.dtype,
            power_of_two=power_of_two,
            scale_ub=scale_ub,
            fp8_max=fp8_max,
            out_dtype=kind,
        )
        if scale_out is not None:
            scale_out[:live] = scales[:live]
            scales = scale_out
    if out is not None:
        out.view(torch.uint8)[:live] = q.view(torch.uint8)[:live]
        q = out
    return q, scales


def moe_combine(y, weights, positions, *, shared=None, out=None):
    total = torch.zeros(len(weights), y.shape[1], device=y.device)
    for j in range(weights.shape[1]):
        place = positions[:, j].long()
        live = (place >= 0) & (place < len(y))
        if len(y):
            term = weights[:, j, None] * y[torch.where(live, place, 0)].float()
            total = torch.where(live[:, None], total + term, total)
    if shared is not None:
        total = total + shared.float()
    return into(out, total.to(y.dtype if out is None else out.dtype))


def fused_moe(
    x,
    w13,
    w2,
    weights,
    experts,
    *,
    scale_w13=None,
    scale_w2=None,
    inputs=None,
    input_scale=None,
    hidden_scale=None,
    bias13=None,
    bias2=None,
    gate="silu",
    limit=None,
    alpha=1.702,
    beta=None,
    linear_beta=None,
    interleaved=False,
    shared=None,
    expert_map=None,
    out=None,
    power_of_two=False,
    dtype=None,
):
    of_call, scales = (x, w13, w2, weights, experts), (scale_w13, scale_w2)
    gating = dict(gate=gate, limit=limit, alpha=alpha, beta=beta, linear_beta=linear_beta, interleaved=interleaved)
    rest = input_scale, hidden_scale, bias13, bias2, *gating.values(), shared, expert_map, out, dtype
    if torch.compiler.is_exporting():
        return exported_moe(*of_call, *scales, inputs, *rest, power_of_two)
    mx = isinstance(w13, torch.Tensor) and holds_mx(w13, scale_w13)
    # Of experts that are not quantised `inputs` says nothing.
    quantised = mx or (isinstance(w13, torch.Tensor) and w13.dtype in FP8)
    inputs = (inputs if quantised else None) or default_inputs(x, mx)
    dtype = check_fused_moe(*of_call, *scales, inputs, *rest)
    rows, offsets, positions = moe_sort(experts, len(w13), expert_map=expert_map)
    by = dict(rows=rows, slots=experts.shape[1])

    def entering(values, scale):
        """As they enter a GEMM, and their scales."""
        if not quantised or inputs == "16bit":
            return values, None
        if inputs == "mxfp4":
            return quantize_mxfp4(values, rounding="even")
        if inputs == "mxfp8":
            wanted = dict(scaling="group", group_size=MX_BLOCK, scale_dtype=torch.float8_e8m0fnu)
        else:
            wanted = dict(scaling="group" if inputs == "group" else "row", power_of_two=power_of_two)
        kind = None if w13.dtype == torch.uint8 else w13.dtype
        return quantize_fp8(values, scale if inputs == "static" else None, **wanted, out_dtype=kind)

    q, scale = (x, input_scale) if x.dtype in FP8 else entering(x, input_scale)
    if mx or bias13 is not None or gate != "silu" or interleaved:
        gating |= dict(bias=bias13, out_dtype=dtype)
        hidden = grouped_gemm_gate(q, w13, scale, scale_w13, offsets, **by, **gating)
        hidden, scale = entering(hidden, hidden_scale)
    elif not quantised:
        hidden = swiglu(grouped_gemm(q, w13, None, None, offsets, **by, out_dtype=dtype), limit)
    else:
        scaling = dict(scale=hidden_scale) if inputs == "static" else dict(scaling=inputs, power_of_two=power_of_two)
        hidden, scale = grouped_gemm_swiglu_fp8(
            q, w13, scale, scale_w13, offsets, **by, limit=limit, dtype=dtype, **scaling, out_dtype=w2.dtype
        )
    y = grouped_gemm(hidden, w2, scale, scale_w2, offsets, bias=bias2, out_dtype=dtype)
    return moe_combine(y, weights, positions, shared=shared, out=out)
