"""A mixture of experts: routing, sorted rows, GEMMs of experts, the weighted sum."""

import torch

from ..ops.arguments import FP8
from ..ops.exported import exported_moe
from ..ops.moe import check_fused_moe
from .activation import swiglu, swiglu_dynamic_fp8
from .gemm import block_scaled_gemm
from .quantize import encode_fp8, fp8_dtype_of, into, quantize_fp8


def moe_route(
    logits,
    top_k,
    *,
    scoring="softmax",
    bias=None,
    groups=1,
    top_groups=1,
    group_score="top2",
    renormalize=False,
    factor=1.0,
):
    s = logits.float().softmax(-1) if scoring == "softmax" else logits.float().sigmoid()
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
    weights = s.gather(-1, experts)
    if renormalize:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return weights * factor, experts.int()


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
        if scale_a is None:
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


def grouped_gemm_swiglu_fp8(
    a,
    b,
    scale_a,
    scale_b,
    offsets,
    *,
    rows=None,
    slots=1,
    limit=None,
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
    c = grouped_gemm(a, b, scale_a, scale_b, offsets, rows=rows, slots=slots, out_dtype=dtype)
    live, kind = int(offsets[-1]), fp8_dtype_of(a, out, out_dtype)
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
    inputs="group",
    input_scale=None,
    hidden_scale=None,
    shared=None,
    expert_map=None,
    limit=None,
    out=None,
    power_of_two=False,
    dtype=None,
):
    if torch.compiler.is_exporting():
        options = dict(scale_w13=scale_w13, scale_w2=scale_w2, inputs=inputs, input_scale=input_scale, shared=shared)
        options |= dict(hidden_scale=hidden_scale, expert_map=expert_map, limit=limit, power_of_two=power_of_two)
        return exported_moe(x, w13, w2, weights, experts, **options, dtype=dtype, out=out)
    # Of experts that are not quantised `inputs` says nothing.
    quantised = isinstance(w13, torch.Tensor) and w13.dtype in FP8
    dtype = check_fused_moe(
        *(x, w13, w2, weights, experts, scale_w13, scale_w2, inputs if quantised else "group"),
        *(input_scale, hidden_scale, shared, expert_map, limit, out, dtype),
    )
    given = x.dtype in FP8
    rows, offsets, positions = moe_sort(experts, len(w13), expert_map=expert_map)
    by = dict(rows=rows, slots=experts.shape[1])
    if not quantised:
        hidden = swiglu(grouped_gemm(x, w13, None, None, offsets, **by, out_dtype=dtype), limit)
        y = grouped_gemm(hidden, w2, None, None, offsets, out_dtype=dtype)
    else:
        static = inputs == "static"
        computed = {} if static else dict(scaling=inputs, power_of_two=power_of_two)
        q, scale = (x, input_scale) if given else quantize_fp8(x, input_scale, **computed, out_dtype=w13.dtype)
        scaling = dict(scale=hidden_scale) if static else computed
        hidden, scale = grouped_gemm_swiglu_fp8(
            q, w13, scale, scale_w13, offsets, **by, limit=limit, dtype=dtype, **scaling, out_dtype=w2.dtype
        )
        y = grouped_gemm(hidden, w2, scale, scale_w2, offsets, out_dtype=dtype)
    return moe_combine(y, weights, positions, shared=shared, out=out)
