"""Double precision: additions, products, comparisons of size, conversions. Full rate on these chips, as LLVM's model of
them has it (SIDPFullSpeedModel: conversions too), so counting/counters.py and profile.py class it with all other
arithmetic.
"""

import ctypes

import numpy as np

from . import conversions as convert
from . import floats

# NumPy has no fma, and no wider type holds every product exactly. The C library's rounds once.
_fma = ctypes.CDLL("libm.so.6").fma
_fma.restype, _fma.argtypes = ctypes.c_double, [ctypes.c_double] * 3


def fma64(a, b, c):
    result = np.array([_fma(*each) for each in zip(a.tolist(), b.tolist(), c.tolist())])
    made = np.isnan(result) & ~(np.isnan(a) | np.isnan(b) | np.isnan(c))
    result.view(np.uint64)[made] = floats.DEFAULT_NAN[8]
    return result


def _of_integer(a):
    return a.astype(np.float64)


# As vector_tables.OPERATIONS.
OPERATIONS = {
    "v_add_f64": ("f64", ["f64"] * 2, floats.add),
    "v_mul_f64": ("f64", ["f64"] * 2, floats.multiply),
    "v_fma_f64": ("f64", ["f64"] * 3, fma64),
    "v_min_f64": ("f64", ["f64"] * 2, floats.minimum),
    "v_max_f64": ("f64", ["f64"] * 2, floats.maximum),
    "v_cvt_f64_i32": ("f64", ["i32"], _of_integer),
    "v_cvt_f64_u32": ("f64", ["u32"], _of_integer),
    "v_cvt_i32_f64": ("i32", ["f64"], lambda a: convert.to_integer(a, np.int32)),
    "v_cvt_u32_f64": ("u32", ["f64"], lambda a: convert.to_integer(a, np.uint32)),
    "v_cvt_f64_f32": ("f64", ["f32"], convert.f32_to_f64),
    "v_cvt_f32_f64": ("f32", ["f64"], convert.f64_to_f32),
}  # fmt: skip
