"""The sums of an int8 weight's rows, which zero points of activations need. They are computed once, and again when the
weight has been written.

torch counts writes in a tensor's version. It does not count those through `.data` (Int8Linear.sum_weights), nor those
to tensors that were made under torch.inference_mode(): of them the sums are computed at each call.
"""

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ..._ops import add_op_namespace_prefix
from ..._ops import ops as _raw

__all__ = ["forget", "weight_sum"]

# Address of a storage -> that storage, what of it was summed, the sums. No other storage gets the address while this
# one is referred to.
_known: dict[int, tuple[StorageWeakRef, tuple, torch.Tensor]] = {}


def weight_sum(weight: torch.Tensor) -> torch.Tensor:
    """weight: int8 [N, K]. Returns: int32 [1, N]; not to be written. In compiled code an operator, which looks at each
    call."""
    if torch.compiler.is_compiling():
        return _raw.weight_sum(weight)
    if weight.is_inference() or weight.is_meta:
        return _summed(weight)
    storage = weight.untyped_storage()
    what = weight._version, weight.storage_offset(), weight.shape, weight.stride()
    found = _known.get(storage._cdata)
    if found is not None and found[1] == what:
        return found[2]
    sums = _summed(weight)
    if weight.is_cuda and torch.cuda.is_current_stream_capturing():
        return sums  # it is the graph's, and holds nothing before a replay
    for address in [address for address, (known, *_) in _known.items() if known.expired()]:
        del _known[address]
    _known[storage._cdata] = StorageWeakRef(storage), what, sums
    return sums


def forget(weight: torch.Tensor) -> None:
    """After a write that torch does not count."""
    _known.pop(weight.untyped_storage()._cdata, None)


def _summed(weight: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return weight.sum(-1, dtype=torch.int32).reshape(1, -1)


_library = torch.library.Library(_raw.name, "FRAGMENT")
_library.define("weight_sum(Tensor weight) -> Tensor")
# A copy: what compiled code gets it may write over.
_library.impl("weight_sum", lambda weight: weight_sum(weight).clone(), "CompositeExplicitAutograd")
torch.library.register_fake(
    add_op_namespace_prefix("weight_sum"),
    lambda weight: weight.new_empty((1, weight.shape[0]), dtype=torch.int32),
    lib=_library,
)
