"""What surrounds the GEMMs of a mixture of experts, and the whole of it."""

import torch

from .activation import check_limit
from .arguments import FP8, WIDE, check_dims, check_tensors, refuse, result
from .calls import ops
from .exported import exported_moe
from .grouped import grouped_gemm, grouped_gemm_gate, grouped_gemm_swiglu_fp8
from .moe_checks import check_dtype, check_fused_moe, check_inputs, default_inputs, refuse_experts
from .mx import MX_BLOCK, gate_numbers, holds_mx, quantize_mxfp4
from .quantize import quantize_fp8

_HALF, _SCORINGS = WIDE[:2], ("softmax", "sigmoid", "sqrtsoftplus")


def moe_route(
    logits: torch.Tensor,
    top_k: int,
    *,
    scoring: str = "softmax",
    bias: torch.Tensor | None = None,
    experts: torch.Tensor | None = None,
    groups: int = 1,
    top_groups: int = 1,
    group_score: str = "top2",
    renormalize: bool = False,
    factor: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Which experts a token takes, and with which weights; in float32.

        s       = softmax(logits) over all experts, sigmoid(logits), or sqrt(softplus(logits))
        choice  = s + bias
        experts = the top_k largest choices of the best groups, largest first, ties to the lower index
        weights = s[experts], with renormalize / (their sum + 1e-20); times factor

    Whatever the logits hold, a token's experts are distinct and lie in [0, E). A choice of NaN counts as -infinity.

    Args:
        logits: float32, float16 or bfloat16 [T, E], E up to 1024; rows strided freely.
        top_k: 1 to 32 experts a token.
        scoring: "softmax", "sigmoid" or "sqrtsoftplus".
        bias: float32 [E], for the choice alone, or None.
        experts: int32 [T, top_k]: they are taken, none are chosen; one outside of [0, E) has the weight 0. Or None.
        groups: E / groups neighbours each; only experts of the top_groups best are chosen, ties to the lower group.
        top_groups: how many groups stay.
        group_score: "top2" (the sum of its two largest choices) or "max" (the largest).
        renormalize: whether weights are divided by their sum.
        factor: what weights are multiplied by at the end.

    Returns: (weights float32 [T, top_k], experts int32 [T, top_k]); experts that were given come back as a copy.
    Raises: RuntimeError naming the operator and the argument, before anything is written.

    Source: the routers of Mixtral and Qwen3-MoE (softmax), DeepSeek-V3 (sigmoid, bias, groups) and DeepSeek-V4
        (sqrtsoftplus; experts by a token's hash).
    """
    operator = "moe_route"
    check_tensors(operator, logits=logits)
    check_dims(operator, "logits", logits, 2, "[T, E]")
    if bias is not None:
        check_tensors(operator, bias=bias)
    for name, value in (("top_k", top_k), ("groups", groups), ("top_groups", top_groups)):
        if not isinstance(value, int) or value < 1:
            refuse(operator, name, f"{value!r}; needs a positive integer")
    if scoring not in _SCORINGS:
        refuse(operator, "scoring", f"{scoring!r}; allowed: {', '.join(map(repr, _SCORINGS))}")
    if group_score not in ("top2", "max"):
        refuse(operator, "group_score", f"{group_score!r}; allowed: 'top2', 'max'")
    weights = logits.new_empty((logits.shape[0], top_k), dtype=torch.float32)
    if experts is not None:
        check_tensors(operator, experts=experts)
    chosen = logits.new_empty((logits.shape[0], top_k), dtype=torch.int32)
    best = group_score == "max"
    numbers = top_k, _SCORINGS.index(scoring), groups, top_groups, best, bool(renormalize), factor
    ops.moe_route(weights, chosen, logits, bias, experts, *numbers)
    return weights, chosen


def moe_sort(
    experts: torch.Tensor, num_experts: int, *, expert_map: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sorts slots by expert: slot t k + j is token t's j-th choice. A stable counting sort; its result is exact.

    Slots whose expert lies outside of [0, num_experts), after the map, are dropped.

    Args:
        experts: int32 or int64 [T, k].
        num_experts: 1 to 1024, of this rank.
        expert_map: int32 [global experts]: the number of each on this rank, or -1. An expert beyond its end is dropped.

    Returns: (rows, offsets, positions), int32:
        rows [T k]: the slots sorted by expert, then by number; -1 from offsets[-1] on.
        offsets [num_experts + 1]: where each expert's slots begin in rows; the last: how many are not dropped.
        positions [T, k]: where each slot went, -1 where it was dropped.
    Raises: RuntimeError naming the operator and the argument, before anything is written.
    """
    operator = "moe_sort"
    check_tensors(operator, experts=experts)
    check_dims(operator, "experts", experts, 2, "[T, k]")
    if expert_map is not None:
        check_tensors(operator, expert_map=expert_map)
    if not isinstance(num_experts, int) or num_experts < 1:
        refuse(operator, "num_experts", f"{num_experts!r}; needs a positive integer")
    rows = experts.new_empty((experts.shape[0] * experts.shape[1],), dtype=torch.int32)
    offsets = experts.new_empty((num_experts + 1,), dtype=torch.int32)
    positions = experts.new_empty(experts.shape[:2], dtype=torch.int32)
    ops.moe_sort(rows, offsets, positions, experts, expert_map, num_experts)
    return rows, offsets, positions


def moe_combine(
    y: torch.Tensor,
    weights: torch.Tensor,
    positions: torch.Tensor,
    *,
    shared: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The weighted sum of each token's rows: `out[t] = round(sum over j of weights[t, j] * y[positions[t, j]])`.

    In float32, j after j from 0, each product and each sum rounded; then + shared[t]. Dropped slots (-1) are left out.

    Args:
        y: float16, bfloat16 or float32 [R, D], last dimension contiguous.
        weights: float32 [T, k], contiguous, k up to 32.
        positions: int32 [T, k], contiguous; outside of [0, R) a slot is left out.
        shared: float16, bfloat16 or float32 [T, D], or None.
        out: the same [T, D], overlapping no input; allocated in y's dtype if None.

    Returns: out.
    Raises: RuntimeError naming the operator and the argument, before anything is written.
    """
    operator = "moe_combine"
    check_tensors(operator, y=y, weights=weights, positions=positions)
    if shared is not None:
        check_tensors(operator, shared=shared)

    def allocate(_: torch.dtype | None) -> torch.Tensor:
        check_dims(operator, "y", y, 2, "[R, D]")
        check_dims(operator, "weights", weights, 2, "[T, k]")
        return y.new_empty((weights.shape[0], y.shape[1]))

    out = result(operator, out, None, (), allocate)
    ops.moe_combine(out, y, weights, positions, shared)
    return out


def fused_moe(
    x: torch.Tensor,
    w13: torch.Tensor,
    w2: torch.Tensor,
    weights: torch.Tensor,
    experts: torch.Tensor,
    *,
    scale_w13: torch.Tensor | None = None,
    scale_w2: torch.Tensor | None = None,
    inputs: str | None = None,
    input_scale: torch.Tensor | None = None,
    hidden_scale: torch.Tensor | None = None,
    bias13: torch.Tensor | None = None,
    bias2: torch.Tensor | None = None,
    gate: str = "silu",
    limit: float | None = None,
    alpha: float = 1.702,
    beta: float | None = None,
    linear_beta: float | None = None,
    interleaved: bool = False,
    shared: torch.Tensor | None = None,
    expert_map: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    power_of_two: bool = False,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """A mixture of experts: moe_sort, quantisation, grouped GEMMs with a gate between them, and moe_combine.

    One after the other and byte for byte. Nothing is read on the host, so a captured graph serves every routing.

    Args:
        x: float16 or bfloat16 [T, D], last dimension contiguous; or FP8, as quantize_fp8 gives it: then nothing is
            quantised here.
        w13: x's dtype, FP8, or MX (as in grouped_gemm) [E, 2 I, D]: gates, then ups, of this rank's experts.
        w2: of w13's kind [E, D, I].
        weights: float32 [T, k], of moe_route.
        experts: int32 or int64 [T, k]; outside of [0, E), after the map, a slot is dropped.
        scale_w13, scale_w2: of FP8 and MX weights, as in grouped_gemm.
        inputs: how x and the hidden values enter the products. FP8 weights: "group" (the default: 128 values have a
            scale), "row" or "static". MX: "16bit" (the default, unless x is FP8), "fp8" (a scale a row), "mxfp8", or
            with MXFP4 weights "mxfp4" (rounding="even", as Quark and compressed-tensors mean it).
        input_scale, hidden_scale: float32, one element each, with inputs="static" and no other. With x in FP8
            input_scale is x's scale: of one element, [T, 1] or [T, ceil(D / 128)], or [T, D / 32] for "mxfp8".
        bias13, bias2: float16, bfloat16 or float32 [E, 2 I] and [E, D], or None. bias2 counts in each slot, before its
            weight.
        gate, limit, alpha, beta, linear_beta, interleaved: as in moe_gate; limit of "silu" with FP8 or 16-bit weights
            as in swiglu_dynamic_fp8.
        shared: [T, D], added to the result: of shared experts that are computed elsewhere. One whose rows are all
            tokens can be one more expert, too, with a slot of weight 1.
        expert_map: int32 [global experts], as in moe_sort.
        out: float16, bfloat16 or float32 [T, D]; allocated in `dtype` if None.
        power_of_two: as in quantize_fp8, of scales that are computed.
        dtype: float16 or bfloat16: of the GEMMs' results and the gate's. x's own; of FP8 bfloat16 if None.

    Hidden values: with FP8 weights, gate="silu", no bias13 and no interleaving grouped_gemm_swiglu_fp8's; with 16-bit
    weights and the same SwiGLU by torch in their dtype. Else grouped_gemm_gate's.

    Returns: out.
    Raises: RuntimeError naming the operator and the argument, before `out` is written.
    """
    given = (
        *(scale_w13, scale_w2, inputs, input_scale, hidden_scale, bias13, bias2),
        *(gate, limit, alpha, beta, linear_beta, interleaved, shared, expert_map, out, dtype),
    )
    if torch.compiler.is_exporting():
        return exported_moe(x, w13, w2, weights, experts, *given, power_of_two)
    given = x, w13, w2, weights, experts, *given
    if torch.compiler.is_compiling():
        check_fused_moe(*given)
        return _fused_moe(*given, power_of_two)
    # The parts check all of it, in words of their own. A call that they take does not wait for more.
    try:
        return _fused_moe(*given, power_of_two)
    except Exception:
        why = _why_refused(given)
        if why is None:
            raise
        raise why from None


def _why_refused(given: tuple) -> RuntimeError | None:
    try:
        check_fused_moe(*given)
    except RuntimeError as why:
        return why
    return None


def _fused_moe(x, w13, w2, weights, experts, scale_w13, scale_w2, inputs, input_scale, hidden_scale, bias13, bias2,
               gate, limit, alpha, beta, linear_beta, interleaved, shared, expert_map, out, dtype,
               power_of_two) -> torch.Tensor:  # fmt: skip
    """Refuses itself what none of its parts would."""
    operator = "fused_moe"
    check_tensors(operator, x=x, w13=w13, w2=w2, weights=weights, experts=experts)
    mx = holds_mx(w13, scale_w13)
    given, inputs = x.dtype in FP8, inputs or default_inputs(x, mx)
    static = inputs == "static"
    dtype = check_dtype(x, dtype)
    check_dims(operator, "w13", w13, 3, "[E, 2 I, D]")
    check_dims(operator, "experts", experts, 2, "[T, k]")
    check_dims(operator, "x", x, 2, "[T, D]")
    if experts.shape[0] != x.shape[0]:
        refuse_experts(x, experts)
    check_inputs(mx, x, w13, w2, scale_w13, scale_w2, inputs, input_scale, hidden_scale)
    if beta is not None or linear_beta is not None:  # gates that have none do not look
        gate_numbers(operator, gate, limit, alpha, beta, linear_beta, interleaved)
    count, slots = w13.shape[0], experts.shape[1]
    rows, offsets, positions = moe_sort(experts, count, expert_map=expert_map)
    everyone = count if expert_map is None else max(expert_map.numel(), 1)
    sorted_by = dict(rows=rows, slots=slots, expected_rows=max(1, -(-rows.numel() // everyone)))
    alike = dict(expected_rows=sorted_by["expected_rows"], bias=bias2, out_dtype=dtype)
    if mx or bias13 is not None or gate != "silu" or interleaved:
        of_gate = dict(gate=gate, limit=limit, alpha=alpha, beta=beta, linear_beta=linear_beta, interleaved=interleaved)
        q, scale = (x, input_scale) if given else _entering(x, w13, inputs, input_scale, power_of_two)
        of_gate |= dict(bias=bias13, out_dtype=dtype)
        hidden = grouped_gemm_gate(q, w13, scale, scale_w13, offsets, **sorted_by, **of_gate)
        hidden, scale = _entering(hidden, w13, inputs, hidden_scale, power_of_two)
        y = grouped_gemm(hidden, w2, scale, scale_w2, offsets, **alike)
    elif w13.dtype not in FP8:
        hidden = _swiglu(grouped_gemm(x, w13, None, None, offsets, **sorted_by, out_dtype=x.dtype), limit)
        y = grouped_gemm(hidden, w2, None, None, offsets, **alike)
    else:
        computed = {} if static else dict(scaling=inputs, power_of_two=power_of_two)
        q, scale = (x, input_scale) if given else quantize_fp8(x, input_scale, **computed, out_dtype=w13.dtype)
        scaling = dict(scale=hidden_scale) if static else computed
        hidden, scale = grouped_gemm_swiglu_fp8(
            q, w13, scale, scale_w13, offsets, **sorted_by, limit=limit, dtype=dtype, **scaling, out_dtype=w2.dtype
        )
        y = grouped_gemm(hidden, w2, scale, scale_w2, offsets, **alike)
    return moe_combine(y, weights, positions, shared=shared, out=out)


def _entering(values, w13, inputs, scale, power_of_two) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Values as they enter a GEMM, and their scales."""
    if inputs == "16bit" or w13.dtype in _HALF:
        return values, None
    if inputs == "mxfp4":
        return quantize_mxfp4(values, rounding="even")
    kind = None if w13.dtype == torch.uint8 else w13.dtype
    if inputs == "static":
        return quantize_fp8(values, scale, out_dtype=kind)
    if inputs == "mxfp8":
        return quantize_fp8(
            values, scaling="group", group_size=MX_BLOCK, scale_dtype=torch.float8_e8m0fnu, out_dtype=kind
        )
    scaling = "group" if inputs == "group" else "row"
    return quantize_fp8(values, scaling=scaling, power_of_two=power_of_two, out_dtype=kind)


def _swiglu(x: torch.Tensor, limit: float | None) -> torch.Tensor:
    """In x's dtype: torch's own, as nothing is quantised."""
    check_limit("fused_moe", limit)
    gate, up = x.chunk(2, dim=-1)
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return torch.nn.functional.silu(gate) * up
