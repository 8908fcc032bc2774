"""What surrounds the GEMMs of a mixture of experts, and the whole of it."""

import torch

from .activation import check_limit
from .arguments import FP8, SCALES, WIDE, check_dims, check_tensors, refuse, result
from .calls import ops
from .device import fp8_dtype
from .exported import exported_moe
from .grouped import grouped_gemm, grouped_gemm_swiglu_fp8
from .quantize import quantize_fp8

_HALF = WIDE[:2]
_MOST_EXPERTS, _MOST_CHOSEN, _BLOCK = 1024, 32, 128


def moe_route(
    logits: torch.Tensor,
    top_k: int,
    *,
    scoring: str = "softmax",
    bias: torch.Tensor | None = None,
    groups: int = 1,
    top_groups: int = 1,
    group_score: str = "top2",
    renormalize: bool = False,
    factor: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Which experts a token takes, and with which weights; in float32.

        s       = softmax(logits) over all experts, or sigmoid(logits)
        choice  = s + bias
        experts = the top_k largest choices of the best groups, largest first, ties to the lower index
        weights = s[experts], with renormalize / (their sum + 1e-20); times factor

    Whatever the logits hold, a token's experts are distinct and lie in [0, E). A choice of NaN counts as -infinity.

    Args:
        logits: float32, float16 or bfloat16 [T, E], E up to 1024; rows strided freely.
        top_k: 1 to 32 experts a token.
        scoring: "softmax" or "sigmoid".
        bias: float32 [E], for the choice alone, or None.
        groups: E / groups neighbours each; only experts of the top_groups best are chosen, ties to the lower group.
        top_groups: how many groups stay.
        group_score: "top2" (the sum of its two largest choices) or "max" (the largest).
        renormalize: whether weights are divided by their sum.
        factor: what weights are multiplied by at the end.

    Returns: (weights float32 [T, top_k], experts int32 [T, top_k]).
    Raises: RuntimeError naming the operator and the argument, before anything is written.

    Source: the routers of Mixtral and Qwen3-MoE (softmax) and DeepSeek-V3 (sigmoid, bias, groups).
    """
    operator = "moe_route"
    check_tensors(operator, logits=logits)
    check_dims(operator, "logits", logits, 2, "[T, E]")
    if bias is not None:
        check_tensors(operator, bias=bias)
    for name, value in (("top_k", top_k), ("groups", groups), ("top_groups", top_groups)):
        if not isinstance(value, int) or value < 1:
            refuse(operator, name, f"{value!r}; needs a positive integer")
    if scoring not in ("softmax", "sigmoid"):
        refuse(operator, "scoring", f"{scoring!r}; allowed: 'softmax', 'sigmoid'")
    if group_score not in ("top2", "max"):
        refuse(operator, "group_score", f"{group_score!r}; allowed: 'top2', 'max'")
    weights = logits.new_empty((logits.shape[0], top_k), dtype=torch.float32)
    experts = logits.new_empty((logits.shape[0], top_k), dtype=torch.int32)
    best = group_score == "max"
    ops.moe_route(
        weights, experts, logits, bias, top_k, scoring == "sigmoid", groups, top_groups, best, bool(renormalize), factor
    )
    return weights, experts


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
    inputs: str = "group",
    input_scale: torch.Tensor | None = None,
    hidden_scale: torch.Tensor | None = None,
    shared: torch.Tensor | None = None,
    expert_map: torch.Tensor | None = None,
    limit: float | None = None,
    out: torch.Tensor | None = None,
    power_of_two: bool = False,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """A mixture of experts with SwiGLU: moe_sort, quantize_fp8, grouped_gemm_swiglu_fp8, grouped_gemm and moe_combine,
    one after the other and byte for byte. Nothing is read on the host, so a captured graph serves every routing.

    Args:
        x: float16 or bfloat16 [T, D], last dimension contiguous; or FP8, as quantize_fp8 gives it: then nothing is
            quantised here.
        w13: FP8 or x's dtype [E, 2 I, D]: gates, then ups, of this rank's experts.
        w2: w13's dtype [E, D, I].
        weights: float32 [T, k], of moe_route.
        experts: int32 or int64 [T, k]; outside of [0, E), after the map, a slot is dropped.
        scale_w13, scale_w2: of FP8 weights, as in grouped_gemm.
        inputs: how x and the hidden values are quantised: "group" (128 values have a scale), "row" or "static".
        input_scale, hidden_scale: float32, one element each, with inputs="static" and no other. With x in FP8
            input_scale is x's scale: of one element, [T, 1] or [T, ceil(D / 128)], as `inputs` says.
        shared: [T, D], added to the result: of shared experts that are computed elsewhere. One whose rows are all
            tokens can be one more expert, too, with a slot of weight 1.
        expert_map: int32 [global experts], as in moe_sort.
        limit: as in swiglu_dynamic_fp8.
        out: float16, bfloat16 or float32 [T, D]; allocated in `dtype` if None.
        power_of_two: as in quantize_fp8, of scales that are computed.
        dtype: float16 or bfloat16: of the GEMMs' results. x's own; of FP8 bfloat16 if None.

    Returns: out.
    Raises: RuntimeError naming the operator and the argument, before `out` is written.
    """
    if torch.compiler.is_exporting():
        options = dict(scale_w13=scale_w13, scale_w2=scale_w2, inputs=inputs, input_scale=input_scale, shared=shared)
        options |= dict(hidden_scale=hidden_scale, expert_map=expert_map, limit=limit, power_of_two=power_of_two)
        return exported_moe(x, w13, w2, weights, experts, **options, dtype=dtype, out=out)
    scales = scale_w13, scale_w2, inputs, input_scale, hidden_scale
    given = x, w13, w2, weights, experts, *scales, shared, expert_map, limit, out, dtype
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


def _fused_moe(x, w13, w2, weights, experts, scale_w13, scale_w2, inputs, input_scale, hidden_scale, shared,
               expert_map, limit, out, dtype, power_of_two) -> torch.Tensor:  # fmt: skip
    """Refuses itself what none of its parts would."""
    operator = "fused_moe"
    check_tensors(operator, x=x, w13=w13, w2=w2, weights=weights, experts=experts)
    given, static = x.dtype in FP8, inputs == "static"
    dtype = _check_dtype(x, dtype)
    check_dims(operator, "w13", w13, 3, "[E, 2 I, D]")
    check_dims(operator, "experts", experts, 2, "[T, k]")
    check_dims(operator, "x", x, 2, "[T, D]")
    if experts.shape[0] != x.shape[0]:
        _refuse_experts(x, experts)
    _check_inputs(x, w13, w2, scale_w13, scale_w2, inputs, input_scale, hidden_scale)
    count, slots = w13.shape[0], experts.shape[1]
    rows, offsets, positions = moe_sort(experts, count, expert_map=expert_map)
    everyone = count if expert_map is None else max(expert_map.numel(), 1)
    sorted_by = dict(rows=rows, slots=slots, expected_rows=max(1, -(-rows.numel() // everyone)))
    alike = dict(expected_rows=sorted_by["expected_rows"], out_dtype=dtype)
    if w13.dtype not in FP8:
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


def _swiglu(x: torch.Tensor, limit: float | None) -> torch.Tensor:
    """In x's dtype: torch's own, as nothing is quantised."""
    check_limit("fused_moe", limit)
    gate, up = x.chunk(2, dim=-1)
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return torch.nn.functional.silu(gate) * up


def check_fused_moe(
    x: torch.Tensor,
    w13: torch.Tensor,
    w2: torch.Tensor,
    weights: torch.Tensor,
    experts: torch.Tensor,
    scale_w13: torch.Tensor | None,
    scale_w2: torch.Tensor | None,
    inputs: str,
    input_scale: torch.Tensor | None,
    hidden_scale: torch.Tensor | None,
    shared: torch.Tensor | None,
    expert_map: torch.Tensor | None,
    limit: float | None,
    out: torch.Tensor | None,
    dtype: torch.dtype | None,
) -> torch.dtype:
    """Refuses in words of fused_moe's own arguments, which its parts know by other names. Returns `dtype`."""
    operator = "fused_moe"
    tensors = dict(x=x, w13=w13, w2=w2, weights=weights, experts=experts)
    scales = dict(scale_w13=scale_w13, scale_w2=scale_w2, input_scale=input_scale, hidden_scale=hidden_scale)
    optional = scales | dict(shared=shared, expert_map=expert_map, out=out)
    tensors |= {name: t for name, t in optional.items() if t is not None}
    check_tensors(operator, **tensors)
    for name, t in tensors.items():
        if t.device != x.device:
            refuse(operator, name, f"on device {t.device}, but x is on {x.device}")

    dtype = _check_dtype(x, dtype)
    if x.dim() != 2 or x.shape[1] < 1:
        _refuse_shape("x", x, "[T, D]")
    _check_experts(x, w13, w2, inputs, **scales)
    _check_chosen(x, weights, experts, expert_map)
    for name, t in (("x", x), ("w13", w13), ("w2", w2), ("shared", shared), ("out", out)):
        if t is None:
            continue
        if name in ("shared", "out"):
            if t.dtype not in WIDE:
                refuse(operator, name, f"dtype {t.dtype}; allowed: {_names(*WIDE)}")
            if t.shape != x.shape:
                _refuse_shape(name, t, f"x's [T, D] = {list(x.shape)}")
        if t.shape[-1] > 1 and t.stride(-1) != 1:
            refuse(operator, name, f"last dimension has stride {t.stride(-1)}; needs 1")
    _check_scales(x, w13, inputs, **scales)
    check_limit(operator, limit)
    least = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps / 2  # rounds to zero
    if w13.dtype in FP8 and limit is not None and limit <= least:
        refuse(operator, "limit", f"{limit!r}; needs a number that is positive in {dtype}")
    return dtype


def _check_dtype(x: torch.Tensor, dtype: torch.dtype | None) -> torch.dtype:
    given = x.dtype in FP8
    if not given and x.dtype not in _HALF:
        refuse("fused_moe", "x", f"dtype {x.dtype}; allowed: {_names(*_HALF, *FP8)}")
    dtype = dtype or (torch.bfloat16 if given else x.dtype)
    if dtype not in _HALF or not (given or dtype == x.dtype):
        needs = _names(*_HALF) if given else f"x's, {x.dtype}"
        refuse("fused_moe", "dtype", f"{dtype}; allowed: {needs}")
    return dtype


def _check_inputs(x, w13, w2, scale_w13, scale_w2, inputs, input_scale, hidden_scale) -> None:
    """How x and the hidden values are quantised, and whether they are."""
    operator, given, static = "fused_moe", x.dtype in FP8, inputs == "static"
    if inputs not in ("group", "row", "static"):
        refuse(operator, "inputs", f"{inputs!r}; allowed: 'group', 'row', 'static'")
    if w13.dtype == x.dtype and not given:
        scales = {name: s for name, s in (("scale_w13", scale_w13), ("scale_w2", scale_w2)) if s is not None}
        if inputs != "group" or (scales and w2.dtype in FP8):
            refuse(operator, "inputs", f"{inputs!r} or scales given; experts of {w13.dtype} (w13) have none")
        for name in scales:
            refuse(operator, name, f"given; needs None: experts of {w13.dtype} have no scales")
    for name, scale, needed in (("input_scale", input_scale, static or given), ("hidden_scale", hidden_scale, static)):
        if (scale is not None) != needed:
            where = "with inputs='static'" + (", and with x in FP8" if name == "input_scale" else "")
            refuse(operator, name, f"None; needs a tensor {where}" if needed else f"given; needs None but {where}")


def _check_experts(x, w13, w2, inputs, scale_w13, scale_w2, input_scale, hidden_scale) -> None:
    operator, d = "fused_moe", x.shape[1]
    if w13.dim() != 3 or w13.shape[2] != d or w13.shape[1] < 2 or w13.shape[1] % 2 != 0:
        _refuse_shape("w13", w13, f"[E, 2 I, D], gates and as many ups, with x's D = {d}")
    count, columns = w13.shape[:2]
    if not 1 <= count <= _MOST_EXPERTS:
        _refuse_shape("w13", w13, f"[E, 2 I, D] with 1 to {_MOST_EXPERTS} experts")
    if w13.dtype != x.dtype and (x.dtype in FP8 or w13.dtype not in FP8):
        needs = "x's" if x.dtype in FP8 else f"x's, {_names(*FP8)}"
        refuse(operator, "w13", f"dtype {w13.dtype} beside x's {x.dtype}; allowed: {needs}")
    if w13.dtype in FP8 and x.device.type == "cuda" and w13.dtype != fp8_dtype(x.device):
        refuse(operator, "w13", f"dtype {w13.dtype}; this GPU multiplies {fp8_dtype(x.device)}")
    _check_inputs(x, w13, w2, scale_w13, scale_w2, inputs, input_scale, hidden_scale)
    if w2.dtype != w13.dtype:
        refuse(operator, "w2", f"dtype {w2.dtype}; needs w13's, {w13.dtype}")
    if w2.shape != (count, d, columns // 2):
        _refuse_shape("w2", w2, f"[E, D, I] = {[count, d, columns // 2]}, as w13 has them")


def _check_chosen(x, weights, experts, expert_map) -> None:
    operator = "fused_moe"
    if experts.dim() != 2 or experts.shape[0] != x.shape[0] or not 1 <= experts.shape[1] <= _MOST_CHOSEN:
        _refuse_experts(x, experts)
    if experts.dtype not in (torch.int32, torch.int64):
        refuse(operator, "experts", f"dtype {experts.dtype}; allowed: torch.int32, torch.int64")
    if weights.dtype != torch.float32:
        refuse(operator, "weights", f"dtype {weights.dtype}; allowed: torch.float32")
    if weights.shape != experts.shape:
        _refuse_shape("weights", weights, f"experts' [T, k] = {list(experts.shape)}")
    if expert_map is not None and (expert_map.dtype != torch.int32 or expert_map.dim() != 1):
        _refuse_shape("expert_map", expert_map, "int32 [global experts]")
    for name, t in (("weights", weights), ("experts", experts), ("expert_map", expert_map)):
        if t is not None and not t.is_contiguous():
            refuse(operator, name, f"strides {list(t.stride())}; needs a contiguous tensor")


def _check_scales(x, w13, inputs, scale_w13, scale_w2, input_scale, hidden_scale) -> None:
    static, (tokens, d) = inputs == "static", x.shape
    if w13.dtype in FP8:
        count, columns = w13.shape[:2]
        for name, scale, rows, k in (("scale_w13", scale_w13, columns, d), ("scale_w2", scale_w2, d, columns // 2)):
            if scale is None:
                refuse("fused_moe", name, f"None; experts of {w13.dtype} need scales")
            blocks = count, -(-rows // _BLOCK), -(-k // _BLOCK)
            _check_scale(name, scale, (count, 1, 1), (count, rows, 1), blocks)
    if x.dtype in FP8:
        _check_scale("input_scale", input_scale, (tokens,), (tokens, 1), (tokens, -(-d // _BLOCK)))
    elif static:
        _check_scale("input_scale", input_scale)
    if static:
        _check_scale("hidden_scale", hidden_scale)


def _check_scale(name: str, scale: torch.Tensor, *shapes: tuple[int, ...]) -> None:
    """Of one element, or of one of `shapes`; without these float32 alone."""
    allowed = SCALES if shapes else SCALES[:1]
    if scale.dtype not in allowed:
        refuse("fused_moe", name, f"dtype {scale.dtype}; allowed: {_names(*allowed)}")
    if scale.numel() != 1 and not any(scale.shape == shape for shape in shapes):
        _refuse_shape(name, scale, " or ".join(["one element", *(str(list(shape)) for shape in shapes)]))


def _refuse_experts(x: torch.Tensor, experts: torch.Tensor) -> None:
    _refuse_shape("experts", experts, f"[T, k] with x's T = {x.shape[0]} and k from 1 to {_MOST_CHOSEN}")


def _names(*dtypes: torch.dtype) -> str:
    return ", ".join(map(str, dtypes))


def _refuse_shape(name: str, t: torch.Tensor, needs: str) -> None:
    refuse("fused_moe", name, f"{t.dtype} of shape {list(t.shape)}; needs {needs}")
