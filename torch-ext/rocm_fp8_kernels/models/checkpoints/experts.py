"""The experts of a checkpoint: which schemes they have, and the module that is made of them.

    mlp.experts.E.{gate,up,down}_proj.weight              one by one, after Names.own: published names are others
    mlp.experts.{gate_up,down}_proj                       stacked, as transformers has them, with .…_scale_inv
    mlp.experts.{gate_up,down}_proj_{blocks,scales,bias}  gpt-oss' in MXFP4: rows of gates and ups in turn

transformers' models hold them stacked, so no rule for linears would name them. A stand-in on the device meta has a
linear for each matrix: what targets, is ignored and is checked is then said of experts as of any linear.
"""

from collections.abc import Iterator

import torch

from ...layers.experts import biases_of, gate_of, is_transposed, sizes_of, why_not
from ...ops.mx import MX_BLOCK
from ..codes import join
from ..fp8.experts import Fp8Experts, experts_of
from ..fp8.linear import BLOCK
from ..fp8.mx_linear import MX
from .joined import check_codes, exponents_of, scale_of
from .published import DOWN, GATE_UP
from .schemes import EXPONENTS, Scheme
from .tensors import Tensors

__all__ = ["Apart", "StoredExperts", "mx_tensors", "split_blocks", "split_experts", "split_stacks", "take_apart"]

_STACKS = {"gate_up_proj": GATE_UP, "down_proj": DOWN}
BLOCKS, SCALES = "_blocks", "_scales"  # of gpt-oss' stacks
_BUFFERS = ("proj", "scale", "bias")
_FLOATS = (torch.bfloat16, torch.float16, torch.float32)


class Apart(torch.nn.Module):
    """A child per expert, with linears that hold no numbers."""

    def __init__(self, stacked: torch.nn.Module):
        super().__init__()
        count, d, hidden = sizes_of(stacked)
        with torch.device("meta"):
            for e in range(count):
                expert = torch.nn.Module()
                for part in (*GATE_UP, *DOWN):
                    sizes = (hidden, d) if part in DOWN else (d, hidden)
                    linear = torch.nn.Linear(*sizes, bias=False, dtype=stacked.down_proj.dtype)
                    expert.add_module(part, linear)
                self.add_module(str(e), expert)


def take_apart(model: torch.nn.Module, tensors: Tensors) -> dict[str, torch.nn.Module]:
    """Puts a stand-in in the place of each module of stacked experts, but of those that stay as they are: they are
    stored as the model has them. Returns: name -> transformers' module.

    Raises: ValueError that names experts which Fp8Experts does not take, and which are stored otherwise, before the
    model is changed.
    """
    found = {}
    for name, module in experts_of(model).items():
        why = why_not(module)
        if why is None and f"{name}.{DOWN[0]}{BLOCKS}" not in tensors:
            if is_transposed(module):
                why = "their weights are transposed, and the files have no blocks of MXFP4"
            elif biases_of(module):
                why = "they have biases, and the files have no blocks of MXFP4"
        if why is None:
            found[name] = module
        elif not all(f"{name}.{stack}" in tensors for stack, _ in module.named_parameters(recurse=False)):
            raise ValueError(f"{name}: these experts are not supported: {why}")
    for name, module in found.items():
        model.set_submodule(name, Apart(module))
    return found


class StoredExperts:
    """The experts of one module in a checkpoint.

    Args:
        name: of the module.
        own: transformers' module, on the device meta.
    """

    def __init__(self, name: str, own: torch.nn.Module, tensors: Tensors):
        self.name, self._own, self._tensors = name, own, tensors
        self._count, self._d, self._hidden = sizes_of(own)
        self._shapes = {
            "gate_up_proj": (self._count, 2 * self._hidden, self._d),
            "down_proj": (self._count, self._d, self._hidden),
        }
        self._blocks = f"{name}.{DOWN[0]}{BLOCKS}" in tensors  # gpt-oss'
        self.stacked = self._blocks or any(f"{name}.{stack}" in tensors for stack in _STACKS)

    def linears(self, parts: tuple[str, ...] = GATE_UP + DOWN) -> list[str]:
        return [f"{self.name}.{e}.{part}" for e in range(self._count) for part in parts]

    def _of_parts(self, schemes: dict[str, Scheme], parts: tuple[str, ...]) -> Scheme | None:
        """Of the matrices that one GEMM takes; the names of tensors may differ. None: they are not quantised."""
        first, *others = names = self.linears(parts)
        wanted = _alike(schemes.get(first))
        for name in others:
            if _alike(schemes.get(name)) != wanted:
                raise ValueError(f"{first} and {name} are quantised in different ways: experts have one scheme")
        return None if wanted is None else schemes[names[0]]

    def scheme(self, schemes: dict[str, Scheme]) -> Scheme | None:
        """Of gate and up; that of down may have other scales of weights. None: the experts are not quantised.

        Raises: ValueError where they do not go together, or with the operators.
        """
        gate_up, down = (self._of_parts(schemes, parts) for parts in (GATE_UP, DOWN))
        if (gate_up is None) != (down is None) or (gate_up and _inputs(gate_up) != _inputs(down)):
            names = f"{self.name}.0.gate_proj and {self.name}.0.down_proj"
            raise ValueError(f"{names} are quantised in different ways: experts have one scheme")
        if gate_up is None:
            return None
        if self.stacked and gate_up.weights != ("mxfp4" if self._blocks else "block"):
            raise ValueError(f"{self.name}: stacked experts with scales by {gate_up.weights}; known: blocks of {BLOCK}")
        if gate_up.scale_ub is not None:
            raise ValueError(f"{self.name}: activation_scale_ub; experts' scales have no upper bound")
        if gate_up.weights == "block" and self._hidden % BLOCK:
            raise ValueError(
                f"{self.name}: the experts' intermediate size is {self._hidden}; blocks of {BLOCK}x{BLOCK} need a"
                f" multiple of {BLOCK}"
            )
        return gate_up

    def check_stacks(self, scheme: Scheme | None, check) -> None:
        """Of stacked experts: as `Tensors.check`, which `check` calls."""
        if self._blocks and scheme is None:
            raise ValueError(f"{self.name}: blocks of MXFP4, which the settings do not name")
        for stack, shape in self._shapes.items():
            name = f"{self.name}.{stack}"
            if self._blocks:
                blocks = (*shape[:-1], shape[-1] // MX_BLOCK)
                check(f"{name}{BLOCKS}", [(*blocks, MX_BLOCK // 2)], (torch.uint8,))
                check(f"{name}{SCALES}", [blocks], EXPONENTS)
                if getattr(self._own, f"{stack}_bias", None) is not None:
                    check(f"{name}_bias", [shape[:2]], _FLOATS)
                continue
            check(name, [shape], _FLOATS if scheme is None else (torch.float8_e4m3fn,))
            if scheme is not None:
                blocks = (shape[0], *(-(-size // BLOCK) for size in shape[1:]))
                check(f"{name}_scale_inv", [blocks], (*_FLOATS, torch.float8_e8m0fnu))

    def read(self, schemes: dict[str, Scheme], dtype: torch.dtype) -> torch.nn.Module:
        """Fp8Experts; where the experts are not quantised, transformers' module in dtype. One expert is read after the
        other, so that no second copy of all of them is made.

        Args:
            schemes: as the files name the tensors.

        Raises: ValueError that names a scale that is no positive number, or a weight that holds NaN.
        """
        scheme = self.scheme(schemes)
        if scheme is None:
            for stack, parts in _STACKS.items():
                values = torch.nn.Parameter(self._weights(stack, parts, dtype), requires_grad=False)
                setattr(self._own, stack, values)
            return self._own
        inputs = {}
        if not scheme.dynamic:
            inputs = dict(input_scale=self._largest(schemes, GATE_UP), hidden_scale=self._largest(schemes, DOWN))
        stacks = [
            (self._weights(stack, parts, scheme.of_weight(0)[1][0], schemes), self._scales(stack, parts, schemes))
            for stack, parts in _STACKS.items()
        ]
        biased = self._blocks and biases_of(self._own)
        biases = [self._tensors.read(f"{self.name}.{stack}_bias") if biased else None for stack in _STACKS]
        settings = dict(inputs=scheme.inputs, dtype=dtype, power_of_two=scheme.power_of_two)
        return Fp8Experts(*stacks, **settings, biases=tuple(biases), gate=gate_of(self._own), **inputs)

    def _weights(
        self, stack: str, parts: tuple[str, ...], dtype: torch.dtype, schemes: dict[str, Scheme] | None = None
    ) -> torch.Tensor:
        """schemes: of codes. Without them the weights are not quantised."""
        codes, name = dtype == torch.float8_e4m3fn, f"{self.name}.{stack}"
        if self._blocks:
            return self._tensors.read(f"{name}{BLOCKS}").flatten(-2)
        if self.stacked:
            result = self._tensors.read(name)
            for of_expert in result if codes else ():
                check_codes(name, of_expert)
            return result.to(dtype)
        result = None
        for e in range(self._count):
            begin = 0
            for part in parts:
                linear = f"{self.name}.{e}.{part}"
                name = f"{linear}.{schemes[linear].weight_name if schemes else 'weight'}"
                weight = self._tensors.read(name)
                if dtype == torch.uint8:
                    weight = weight.view(dtype)
                if codes:
                    check_codes(name, weight)
                if result is None:
                    shape = (*self._shapes[stack][:2], weight.shape[1])
                    result = torch.empty(shape, dtype=dtype, device=weight.device)
                result[e, begin : begin + len(weight)].copy_(weight)
                begin += len(weight)
        return result

    def _scales(self, stack: str, parts: tuple[str, ...], schemes: dict[str, Scheme]) -> torch.Tensor:
        read = self._tensors.read
        if self._blocks:
            return exponents_of(read, f"{self.name}.{stack}{SCALES}")
        if self.stacked:
            return scale_of(read, f"{self.name}.{stack}_scale_inv").contiguous()
        names = self.linears(parts)
        kind, rows = schemes[names[0]].weights, self._shapes[stack][1] // len(parts)
        scaled = exponents_of if kind in MX else scale_of
        scales = [scaled(read, f"{name}.{schemes[name].scale_name}") for name in names]
        by_expert = [scales[i : i + len(parts)] for i in range(0, len(scales), len(parts))]
        if kind in (*MX, "block"):
            return join(scales).unflatten(0, (len(by_expert), -1))
        firsts = [of[0].reshape(-1)[:1].reshape(1, 1) for of in by_expert]
        if all(bool((scale == first).all()) for of, first in zip(by_expert, firsts) for scale in of):
            return torch.stack(firsts)  # of an expert, whatever the format has it for
        # Different scales of gate and up become those of their channels.
        by_expert = [[scale.reshape(-1, 1).expand(rows, 1) for scale in of] for of in by_expert]
        return torch.stack([torch.cat(of) for of in by_expert])

    def _largest(self, schemes: dict[str, Scheme], parts: tuple[str, ...]) -> torch.Tensor:
        """Of the scales of inputs, as vLLM does it: all experts are given the same codes."""
        names = [f"{name}.{schemes[name].input_name}" for name in self.linears(parts)]
        return torch.stack([scale_of(self._tensors.read, name).reshape(()) for name in names]).amax().reshape(1)


def _inputs(scheme: Scheme) -> tuple:
    return scheme.inputs, scheme.scale_ub, scheme.power_of_two


def _alike(scheme: Scheme | None) -> tuple | None:
    return None if scheme is None else (scheme.weights, *_inputs(scheme))


def split_blocks(name: str, experts: Fp8Experts) -> dict[str, torch.Tensor]:
    """Experts of gpt-oss in MXFP4 as its files hold them."""
    found = {}
    for stack in _STACKS:
        codes, scale, bias = (getattr(experts, f"{stack.removesuffix('_proj')}_{last}") for last in _BUFFERS)
        found[f"{name}.{stack}{BLOCKS}"] = codes.unflatten(-1, (-1, MX_BLOCK // 2))
        found[f"{name}.{stack}{SCALES}"] = scale.view(torch.uint8)
        found[f"{name}.{stack}_bias"] = bias
    return found


def split_experts(name: str, experts: Fp8Experts) -> Iterator[tuple[str, tuple[str, str], dict[str, torch.Tensor]]]:
    """(A linear's name in a checkpoint, what has a scale of its weight and its input, its tensors), of each matrix.

    Raises: ValueError where blocks hold rows of gate and of up.
    """
    hidden, weights = experts.intermediate_size, experts.weights()
    if experts.gate.get("interleaved") or experts.gate_up_bias is not None or experts.down_bias is not None:
        raise ValueError(f"{name}: files with a tensor for each matrix have no place for biases or interleaved rows")
    if weights["down_proj"] == "block" and hidden % BLOCK:
        raise ValueError(f"{name}: {hidden} is no multiple of {BLOCK}: blocks hold rows of gate_proj and of up_proj")
    scales = {"gate_up_proj": experts.gate_up_scale, "down_proj": experts.down_scale}
    inputs = {"gate_up_proj": experts.input_scale, "down_proj": experts.hidden_scale}
    for stack, parts in _STACKS.items():
        # vLLM reads no compressed-tensors experts with a scale a tensor beside inputs with one a row.
        of_tensor = weights[stack] == "tensor"
        kind = "channel" if of_tensor and experts.inputs == "row" else weights[stack], experts.inputs
        for e, (codes, scale) in enumerate(zip(getattr(experts, stack), scales[stack])):
            # Clones: safetensors refuses tensors that share memory.
            of_parts = [scale] * len(parts) if of_tensor else scale.chunk(len(parts))
            for part, of_part, own in zip(parts, codes.chunk(len(parts)), of_parts):
                if kind[0] in MX:
                    yield f"{name}.{e}.{part}", kind, mx_tensors(of_part, own)
                    continue
                values = {"weight": of_part.clone()}
                rows = len(of_part) if of_tensor and kind[0] == "channel" else len(own)
                values["weight_scale"] = own.reshape(1).clone() if kind[0] == "tensor" else own.expand(rows, -1).clone()
                if inputs[stack] is not None:
                    values["input_scale"] = inputs[stack].clone()
                yield f"{name}.{e}.{part}", kind, values


def mx_tensors(codes: torch.Tensor, exponents: torch.Tensor) -> dict[str, torch.Tensor]:
    """A matrix of an MX format as compressed-tensors stores it."""
    name = "weight_packed" if codes.dtype == torch.uint8 else "weight"
    return {name: codes.clone(), "weight_scale": exponents.view(torch.uint8).clone()}


def split_stacks(name: str, own: torch.nn.Module) -> dict[str, torch.Tensor]:
    """transformers' stacked experts, which are not quantised, as one tensor for each matrix of an expert."""
    return {
        f"{name}.{e}.{part}.weight": values.detach().clone()
        for stack, parts in _STACKS.items()
        for e, of_expert in enumerate(getattr(own, stack))
        for part, values in zip(parts, of_expert.chunk(len(parts)))
    }
