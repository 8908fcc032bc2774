"""The registered operators, and what torch needs beside them: fakes for its compiler, counts of writes for autograd.

An operator is known by its schema in the library: a new one needs no entry here.
"""

from collections.abc import Callable
from operator import itemgetter
from types import SimpleNamespace

import torch

from .._ops import add_op_namespace_prefix
from .._ops import ops as _raw
from .arguments import refuse

__all__ = ["OPERATORS", "ops"]


def _operators() -> tuple[str, ...]:
    """Those that write into their arguments; the others have no tensors, or are made in Python."""
    prefix = add_op_namespace_prefix("")
    schemas = (each for each in torch._C._jit_get_all_schemas() if each.name.startswith(prefix))
    found = {each.name.removeprefix(prefix) for each in schemas if any(a.is_write for a in each.arguments)}
    return tuple(sorted(found))


OPERATORS = _operators()


# --- torch.compile, opcheck and meta tensors ---


def function_of(operator: str) -> str:
    """Name of the Python function that calls it."""
    return operator.replace("_static", "").removesuffix("_mx")


def _register_fake(name: str) -> None:
    """Every operator writes into its arguments and returns nothing, so a fake has nothing to compute.

    Shapes and dtypes are checked where the operator runs; devices here. One meta tensor among real ones is enough to
    bring a call here, where it would quietly do nothing.
    """
    arguments = getattr(_raw, name).default._schema.arguments
    # The kernels compare devices with that of the first input that every call has.
    inputs = (i for i, argument in enumerate(arguments) if not argument.is_write)
    first = next(i for i in inputs if not isinstance(arguments[i].type, torch.OptionalType))
    operator = function_of(name)

    def fake(*args) -> None:
        device = args[first].device
        for argument, value in zip(arguments, args):
            if isinstance(value, torch.Tensor) and value.device != device:
                why = f"on device {value.device}, but {arguments[first].name} is on {device}"
                refuse(operator, argument.name, why)

    torch.library.register_fake(add_op_namespace_prefix(name), fake)


for _name in OPERATORS:
    _register_fake(_name)


# --- autograd ---

# Every name of a module costs 30 ns a call, and a call of a small row on a CPU takes 3 us in all.
_count_write = torch._C._increment_version  # of torch.autograd.graph.increment_version, without its look at the kind
_is_compiling, _is_grad_enabled = torch.compiler.is_compiling, torch.is_grad_enabled


def _call_of(name: str) -> Callable[..., None]:
    """The operator, whose writes count as written for autograd, and which loses no gradient.

    The stable ABI has no way to do either in C++: an operator there is neither below autograd nor may it touch a
    tensor's version. So the package's functions call the operators through this module.
    """
    overload = getattr(_raw, name).default
    launch = overload._op  # what the overload itself calls
    arguments = overload._schema.arguments
    written = [i for i, argument in enumerate(arguments) if argument.is_write]
    whole = [i for i in written if not isinstance(arguments[i].type, torch.OptionalType)]
    those, optional = itemgetter(*whole, whole[0]), [i for i in written if i not in whole]  # two at least: a tuple
    tensors = [(i, argument.name) for i, argument in enumerate(arguments) if "Tensor" in str(argument.type)]
    public = function_of(name)

    def refuse_gradients(args: tuple) -> None:
        for i, argument in tensors:
            if args[i] is not None and args[i].requires_grad:
                refuse(public, argument, "requires grad, and the operator has no backward; needs torch.no_grad()")

    def call(*args) -> None:
        if _is_grad_enabled():
            refuse_gradients(args)
        if _is_compiling():
            overload(*args)  # what is compiled counts by the schema
            return
        launch(*args)
        _count_write(those(args))
        for i in optional:
            if args[i] is not None:
                _count_write((args[i],))

    return call


ops = SimpleNamespace(
    **{name: _call_of(name) for name in OPERATORS},
    name=_raw.name,
    comm_open=_raw.comm_open,
    comm_close=_raw.comm_close,
    comm_check=_raw.comm_check,
    reread_environment=_raw.reread_environment,
    call_count=_raw.call_count,
)
