"""What torch.compile, opcheck and meta tensors need: every operator writes into its arguments and returns nothing,
so a fake has nothing to compute. Shapes and dtypes are checked where the operator runs; devices here, because one
meta tensor among real ones is enough to bring a call here, where it would quietly do nothing."""

import torch

from ._ops import add_op_namespace_prefix, ops


def _register(name: str) -> None:
    names = [argument.name for argument in getattr(ops, name).default._schema.arguments]

    def fake(*args) -> None:
        # The first argument is out; the kernels compare devices with the second one's.
        for argument, value in zip(names, args):
            if isinstance(value, torch.Tensor) and value.device != args[1].device:
                raise RuntimeError(
                    f"{name}: {argument}: on device {value.device}, but {names[1]} is on {args[1].device}"
                )

    torch.library.register_fake(add_op_namespace_prefix(name), fake)


for _name in (
    "rms_norm",
    "rms_norm_fp8",
    "add_rms_norm_fp8",
    "swiglu_fp8",
    "skinny_gemm",
    "quantize_fp8",
    "quantize_static_fp8",
):
    _register(_name)
