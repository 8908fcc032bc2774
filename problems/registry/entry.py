"""What an entry of the registry is: an operator, how its calls are drawn, what each of its tensors may be."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType

import torch

from problems.buffers import Guarded, guarded
from problems.inputs import normal, positive, random_fp8, weights
from problems.operators import function_of
from problems.registry.changes import Arguments, Bad

Form = dict | Callable[[Arguments], Arguments]


@dataclass
class Draw:
    """Sizes of a call, and what draws its tensors."""

    kernel: ModuleType
    device: torch.device
    generator: torch.Generator
    communicator: object = None  # of the operators between ranks
    rows: int = 4
    d: int = 80
    k: int = 48

    @property
    def fp8(self) -> torch.dtype:
        return self.kernel.fp8_dtype(self.device)

    def half(self, *shape: int) -> torch.Tensor:
        return normal(shape, torch.bfloat16, self.generator)

    def weight(self, *shape: int) -> torch.Tensor:
        return weights(shape, torch.bfloat16, self.generator)

    def codes(self, *shape: int) -> torch.Tensor:
        return random_fp8(shape, self.fp8, self.generator)

    def bytes(self, *shape: int) -> torch.Tensor:
        return torch.randint(-128, 128, shape, generator=self.generator).to(torch.int8)

    def positive(self, *shape: int) -> torch.Tensor:
        return positive(shape, self.generator)

    def permuted(self, count: int) -> torch.Tensor:
        return torch.randperm(count, generator=self.generator)


@dataclass(frozen=True)
class T:
    """A tensor of a call.

    kind: "one" element; "free", whose shape others follow; "fixed", whose shape follows from others; "scales" of a
        GEMM, whose shapes have meanings; "handle", which the caller does not give.
    layout: "rows" strided freely, of contiguous values; "dense"; "any".
    batches, vector: it has any number of dimensions; one. numbers: it may be a number.
    made: by the function, which takes none.
    shares: tensors whose memory is not kept apart from its own.
    instead: what may be named in its place where its shape contradicts another's; that is tried, then.
    """

    dtypes: tuple[torch.dtype, ...]
    kind: str = "free"
    layout: str = "rows"
    optional: bool = False
    batches: bool = False
    numbers: bool = False
    vector: bool = False
    made: bool = False
    shares: tuple[str, ...] = ()
    instead: str = ""


@dataclass
class Call:
    """A valid call whose written tensors are guarded: tests spoil one argument of it."""

    function: Callable
    arguments: Arguments
    written: list[Guarded]

    def __call__(self):
        return self.function(**self.arguments)


@dataclass(frozen=True)
class Operator:
    """An operator of the package.

    name: as it is registered; that of its Python function where nothing is registered (`composite`).
    draw: arguments of its Python function, all that go together.
    forms: name -> what else the function can be given: arguments in the place of drawn ones, or a function of them.
    tensors: those of its schema. spoilt: form -> those that are spoilt in it, if not all in the first; of the
        function's call, or with registered_is_spoilt of the registered operator's.
    written: tensors that it writes. results: parameters of the function that take its results, in their order.
    exact: it has the reference's bytes. between_ranks: its function is a Communicator's method.
    """

    name: str
    draw: Callable[[Draw], Arguments]
    forms: dict[str, Form]
    tensors: dict[str, T] = field(default_factory=dict)
    written: tuple[str, ...] = ("out",)
    results: tuple[str, ...] = ("out",)
    bad: tuple[Bad, ...] = ()
    spoilt: dict[str, tuple[str, ...]] = field(default_factory=dict)
    registered_is_spoilt: bool = False
    exact: bool = False
    composite: bool = False
    between_ranks: bool = False

    @property
    def first(self) -> str:
        return next(iter(self.forms))

    def schema(self, kernel: ModuleType) -> torch.FunctionSchema:
        return getattr(kernel._ops.ops, self.name).default._schema

    def function(self, draw: Draw) -> Callable:
        return getattr(draw.communicator if self.between_ranks else draw.kernel, function_of(self.name))

    def arguments(self, draw: Draw, form: str) -> Arguments:
        drawn, given = self.draw(draw), self.forms[form]
        if not callable(given):  # each call has tensors of its own
            given = {name: v.clone() if isinstance(v, torch.Tensor) else v for name, v in given.items()}
        found = drawn | (given(drawn) if callable(given) else given)
        return {name: v.to(draw.device) if isinstance(v, torch.Tensor) else v for name, v in found.items()}

    def with_results(self, draw: Draw, arguments: Arguments) -> Arguments:
        """New tensors for the results that the function makes."""
        copies = {name: v.clone() if isinstance(v, torch.Tensor) else v for name, v in arguments.items()}
        parts = self.function(draw)(**copies)
        parts = parts if isinstance(parts, tuple) else (parts,)
        given = {id(v) for v in copies.values() if v is not None}
        made = {name: t for name, t in zip(self.results, parts) if t is not None and id(t) not in given}
        rest = {name: v for name, v in arguments.items() if name not in ("out_dtype", "scale_dtype")}
        return rest | {name: torch.empty_like(t) for name, t in made.items()}

    def registered_arguments(self, draw: Draw, form: str) -> Arguments:
        """The registered operator's arguments, by its schema's names, as the function passes them; results are
        poison."""
        operators, passed, given = draw.kernel.ops.calls.ops, [], self.arguments(draw, form)
        launch = getattr(operators, self.name)
        setattr(operators, self.name, lambda *args: passed.append(args))
        try:
            self.function(draw)(**given)
        finally:
            setattr(operators, self.name, launch)
        names = [argument.name for argument in self.schema(draw.kernel).arguments]
        found = dict(zip(names, passed[0]))
        for name in self.written:
            if name not in given and found.get(name) is not None:
                found[name] = Guarded(found[name].shape, found[name].dtype, draw.device).t
        return found

    def call(self, draw: Draw, form: str, of_registered: bool) -> Call:
        if of_registered:
            function, given = getattr(draw.kernel._ops.ops, self.name), self.registered_arguments(draw, form)
        else:
            given = self.arguments(draw, form)
            function, given = self.function(draw), self.with_results(draw, given)
        held = {name: guarded(given[name], draw.device) for name in self.written if given.get(name) is not None}
        return Call(function, given | {name: each.t for name, each in held.items()}, list(held.values()))
