"""FP8 checkpoints of transformers' models in the formats of the ecosystem: read into a model, and written.

    format (quant_method)   weights                  activations
    compressed-tensors      per tensor, per channel  static per tensor, dynamic per token
    fp8 (AutoFP8, vLLM)     per tensor               static per tensor, dynamic per token
    quark (AMD)             per tensor, per channel  static per tensor, dynamic per token
    fbgemm_fp8              per channel              dynamic per token, activation_scale_ub as an upper bound

    schemes.py   which linears are quantised, and how: of every format through the library `compressed-tensors`
    settings.py  what settings say and nothing reads, which is refused
    published.py what published files call a model's tensors, where transformers calls them otherwise
    tensors.py   the safetensors files: names, shapes, dtypes
    joined.py    stored linears as one QuantizedLinear
    experts.py   those of a mixture as Fp8Experts: one tensor for each matrix of an expert, or stacked ones
    load.py      the model;  save.py  compressed-tensors from a model;  convert.py  a model that transformers has loaded

Written is compressed-tensors, and with scales of blocks "fp8": transformers and vLLM load them, too.
"""

from .convert import convert
from .load import load_quantized
from .save import save_quantized
from .settings import check_settings

__all__ = ["check_settings", "convert", "load_quantized", "save_quantized"]
