"""What fused_moe refuses, in words of its own arguments."""

import torch

from .arguments import FP8, SCALES, WIDE, check_tensors, refuse
from .device import fp8_dtype
from .mx import MX_BLOCK, gate_numbers, holds_mx

_HALF, _OF_MX = WIDE[:2], ("16bit", "fp8", "mxfp8", "mxfp4")
_MOST_EXPERTS, _MOST_CHOSEN, _BLOCK = 1024, 32, 128


def default_inputs(x: torch.Tensor, mx: bool) -> str:
    """MX weights take 16-bit values as they are, for few rows and many alike: a checkpoint of W4A16 gets it."""
    return "group" if not mx else "fp8" if x.dtype in FP8 else "16bit"


def check_fused_moe(
    x: torch.Tensor,
    w13: torch.Tensor,
    w2: torch.Tensor,
    weights: torch.Tensor,
    experts: torch.Tensor,
    scale_w13: torch.Tensor | None,
    scale_w2: torch.Tensor | None,
    inputs: str | None,
    input_scale: torch.Tensor | None,
    hidden_scale: torch.Tensor | None,
    bias13: torch.Tensor | None,
    bias2: torch.Tensor | None,
    gate: str,
    limit: float | None,
    alpha: float,
    beta: float | None,
    linear_beta: float | None,
    interleaved: bool,
    shared: torch.Tensor | None,
    expert_map: torch.Tensor | None,
    out: torch.Tensor | None,
    dtype: torch.dtype | None,
) -> torch.dtype:
    """Refuses in words of fused_moe's own arguments, which its parts know by other names. Returns `dtype`."""
    operator = "fused_moe"
    tensors = dict(x=x, w13=w13, w2=w2, weights=weights, experts=experts)
    scales = dict(scale_w13=scale_w13, scale_w2=scale_w2, input_scale=input_scale, hidden_scale=hidden_scale)
    biases = dict(bias13=bias13, bias2=bias2)
    optional = scales | biases | dict(shared=shared, expert_map=expert_map, out=out)
    tensors |= {name: t for name, t in optional.items() if t is not None}
    check_tensors(operator, **tensors)
    for name, t in tensors.items():
        if t.device != x.device:
            refuse(operator, name, f"on device {t.device}, but x is on {x.device}")

    dtype = check_dtype(x, dtype)
    if x.dim() != 2 or x.shape[1] < 1:
        _refuse_shape("x", x, "[T, D]")
    gate_numbers(operator, gate, limit, alpha, beta, linear_beta, interleaved)
    mx = holds_mx(w13, scale_w13)
    inputs = inputs or default_inputs(x, mx)
    if mx:
        _check_mx_experts(x, w13, w2, inputs, **scales)
    else:
        _check_experts(x, w13, w2, inputs, **scales)
    for name, bias, columns in (("bias13", bias13, w13.shape[1]), ("bias2", bias2, x.shape[1])):
        if bias is not None and bias.dtype not in WIDE:
            refuse(operator, name, f"dtype {bias.dtype}; allowed: {_names(*WIDE)}")
        if bias is not None and bias.shape != (w13.shape[0], columns):
            _refuse_shape(name, bias, f"{[w13.shape[0], columns]}")
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
    if mx:
        return dtype
    _check_scales(x, w13, inputs, **scales)
    least = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps / 2  # rounds to zero
    if w13.dtype in FP8 and limit is not None and limit <= least:
        refuse(operator, "limit", f"{limit!r}; needs a number that is positive in {dtype}")
    return dtype


def check_dtype(x: torch.Tensor, dtype: torch.dtype | None) -> torch.dtype:
    given = x.dtype in FP8
    if not given and x.dtype not in _HALF:
        refuse("fused_moe", "x", f"dtype {x.dtype}; allowed: {_names(*_HALF, *FP8)}")
    dtype = dtype or (torch.bfloat16 if given else x.dtype)
    if dtype not in _HALF or not (given or dtype == x.dtype):
        needs = _names(*_HALF) if given else f"x's, {x.dtype}"
        refuse("fused_moe", "dtype", f"{dtype}; allowed: {needs}")
    return dtype


def check_inputs(mx, x, w13, w2, scale_w13, scale_w2, inputs, input_scale, hidden_scale) -> None:
    """How x and the hidden values are quantised, and whether they are. mx: whether w13 is."""
    operator, given, static = "fused_moe", x.dtype in FP8, inputs == "static"
    allowed = _OF_MX if mx else ("group", "row", "static")
    if inputs not in allowed:
        refuse(operator, "inputs", f"{inputs!r}; allowed: {', '.join(map(repr, allowed))}")
    if not mx and w13.dtype == x.dtype and not given:
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
    check_inputs(False, x, w13, w2, scale_w13, scale_w2, inputs, input_scale, hidden_scale)
    if w2.dtype != w13.dtype:
        refuse(operator, "w2", f"dtype {w2.dtype}; needs w13's, {w13.dtype}")
    if w2.shape != (count, d, columns // 2):
        _refuse_shape("w2", w2, f"[E, D, I] = {[count, d, columns // 2]}, as w13 has them")


def _check_mx_experts(x, w13, w2, inputs, scale_w13, scale_w2, input_scale, hidden_scale) -> None:
    operator, d = "fused_moe", x.shape[1]
    each = 2 if w13.dtype == torch.uint8 else 1  # numbers a byte
    if w13.dim() != 3 or w13.shape[2] * each != d or d % MX_BLOCK or w13.shape[1] < 2 or w13.shape[1] % 2:
        of_d = "[E, 2 I, D / 2]" if each == 2 else "[E, 2 I, D]"
        _refuse_shape("w13", w13, f"{of_d}, with x's D = {d}, a multiple of {MX_BLOCK}")
    count, hidden = w13.shape[0], w13.shape[1] // 2
    if not 1 <= count <= _MOST_EXPERTS:
        _refuse_shape("w13", w13, f"1 to {_MOST_EXPERTS} experts")
    if hidden % MX_BLOCK:
        _refuse_shape("w13", w13, f"I = {hidden} a multiple of {MX_BLOCK}")
    if each == 1 and x.device.type == "cuda" and w13.dtype != fp8_dtype(x.device):
        refuse(operator, "w13", f"dtype {w13.dtype}; this GPU multiplies {fp8_dtype(x.device)}")
    check_inputs(True, x, w13, w2, scale_w13, scale_w2, inputs, input_scale, hidden_scale)
    if inputs == "mxfp4" and each == 1:
        refuse(operator, "inputs", "'mxfp4' beside MXFP8 weights; needs MXFP4 ones")
    if x.dtype in FP8 and inputs not in ("fp8", "mxfp8"):
        refuse(operator, "inputs", f"{inputs!r} beside x in FP8; allowed: 'fp8', 'mxfp8'")
    if w2.dtype != w13.dtype:
        refuse(operator, "w2", f"dtype {w2.dtype}; needs w13's, {w13.dtype}")
    if w2.shape != (count, d, hidden // each):
        _refuse_shape("w2", w2, f"{[count, d, hidden // each]}, as w13 has them")
    for name, scale, rows, k in (("scale_w13", scale_w13, 2 * hidden, d), ("scale_w2", scale_w2, d, hidden)):
        if scale is None:
            refuse(operator, name, "None; MX experts need scales of 32 k")
        if scale.dtype not in (torch.float8_e8m0fnu, torch.uint8):
            refuse(operator, name, f"dtype {scale.dtype}; allowed: {_names(torch.float8_e8m0fnu, torch.uint8)}")
        if scale.shape != (count, rows, k // MX_BLOCK):
            _refuse_shape(name, scale, f"{[count, rows, k // MX_BLOCK]}")
    if x.dtype in FP8:
        shape = (x.shape[0], d // MX_BLOCK) if inputs == "mxfp8" else (x.shape[0], 1)
        needed = torch.float8_e8m0fnu if inputs == "mxfp8" else torch.float32
        if input_scale.dtype != needed or (
            input_scale.shape != shape and (inputs == "mxfp8" or input_scale.numel() != 1)
        ):
            _refuse_shape("input_scale", input_scale, f"{needed} {list(shape)}")


def _check_chosen(x, weights, experts, expert_map) -> None:
    operator = "fused_moe"
    if experts.dim() != 2 or experts.shape[0] != x.shape[0] or not 1 <= experts.shape[1] <= _MOST_CHOSEN:
        refuse_experts(x, experts)
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


def refuse_experts(x: torch.Tensor, experts: torch.Tensor) -> None:
    _refuse_shape("experts", experts, f"[T, k] with x's T = {x.shape[0]} and k from 1 to {_MOST_CHOSEN}")


def _names(*dtypes: torch.dtype) -> str:
    return ", ".join(map(str, dtypes))


def _refuse_shape(name: str, t: torch.Tensor, needs: str) -> None:
    refuse("fused_moe", name, f"{t.dtype} of shape {list(t.shape)}; needs {needs}")
