"""What torch.compile runs instead of the operator while it traces: tensors without data.

The operator writes into `out`, which the schema says, and returns nothing: there is nothing to make up.
"""

import torch

from ._ops import add_op_namespace_prefix


@torch.library.register_fake(add_op_namespace_prefix("increment"))
def _increment(out: torch.Tensor, x: torch.Tensor) -> None:
    return None
