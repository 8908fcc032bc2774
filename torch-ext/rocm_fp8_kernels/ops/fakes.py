"""What torch.compile, opcheck and meta tensors need: every operator writes into its arguments and returns nothing,
so a fake has nothing to compute. Shapes and dtypes are checked where the operator runs; devices here, because one
meta tensor among real ones is enough to bring a call here, where it would quietly do nothing."""

import torch

from .._ops import add_op_namespace_prefix, ops

# Those with tensors.
OPERATORS = (
    "rms_norm",
    "rms_norm_fp8",
    "add_rms_norm_fp8",
    "swiglu_fp8",
    "skinny_gemm",
    "block_scaled_gemm",
    "quantize_fp8",
    "quantize_static_fp8",
    "rms_norm_dynamic_fp8",
    "add_rms_norm_dynamic_fp8",
    "swiglu_dynamic_fp8",
    "int8_gemm",
    "linear_abde_i8",
    "linear_relu_abde_i8",
    "linear_ab_i8_de_f32",
    "bmm_abe_i8",
    "bmm_ab_i8_e_f32",
    "quantize_int8",
    "layer_norm_int8",
    "softmax_int8",
)


def _register(name: str) -> None:
    arguments = getattr(ops, name).default._schema.arguments
    # The kernels compare devices with that of the first input.
    first = next(i for i, argument in enumerate(arguments) if not argument.is_write)
    operator = name.replace("_static", "")  # of the Python function

    def fake(*args) -> None:
        device = args[first].device
        for argument, value in zip(arguments, args):
            if isinstance(value, torch.Tensor) and value.device != device:
                raise RuntimeError(
                    f"{operator}: {argument.name}: on device {value.device}, but {arguments[first].name} is on {device}"
                )

    torch.library.register_fake(add_op_namespace_prefix(name), fake)


for _name in OPERATORS:
    _register(_name)
