"""The operators as torch's autograd needs them: what they write counts as written, and no gradient gets lost.

The stable ABI has no way to do either in C++: an operator there is neither below autograd nor may it touch a tensor's
version. So the package's functions call the operators through this module.
"""

from collections.abc import Callable
from operator import itemgetter
from types import SimpleNamespace

import torch

from .._ops import ops as _raw
from .arguments import refuse
from .fakes import OPERATORS

__all__ = ["ops"]

# Every name of a module costs 30 ns a call, and a call of a small row on a CPU takes 3 us in all.
_count_write = torch._C._increment_version  # of torch.autograd.graph.increment_version, without its look at the kind
_is_compiling, _is_grad_enabled = torch.compiler.is_compiling, torch.is_grad_enabled


def _operator(name: str) -> Callable[..., None]:
    overload = getattr(_raw, name).default
    launch = overload._op  # what the overload itself calls
    arguments = overload._schema.arguments
    written = [i for i, argument in enumerate(arguments) if argument.is_write]
    whole = [i for i in written if not isinstance(arguments[i].type, torch.OptionalType)]
    those, optional = itemgetter(*whole, whole[0]), [i for i in written if i not in whole]  # two at least: a tuple
    tensors = [(i, argument.name) for i, argument in enumerate(arguments) if "Tensor" in str(argument.type)]
    public = name.replace("_static", "")  # of the Python function

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
    **{name: _operator(name) for name in OPERATORS},
    name=_raw.name,
    reread_environment=_raw.reread_environment,
    call_count=_raw.call_count,
)
