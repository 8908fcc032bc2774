// The GPU kernels' arguments as the headers lay them out, from plain ones: for host_arguments.py.
#include <cstring>
#include <string_view>

#include "common/divider.h"
#include "common/hip/counters.h"
#include "rmsnorm_fp8/rmsnorm_fp8.h"
#include "swiglu_fp8/swiglu_fp8.h"

using namespace rocm_fp8;

namespace {

// Of a torch.dtype's name.
DType dtype_of(std::string_view name) {
    if (name == "float16") return DType::f16;
    if (name == "bfloat16") return DType::bf16;
    if (name == "float8_e4m3fn") return DType::e4m3fn;
    if (name == "float8_e4m3fnuz") return DType::e4m3fnuz;
    return DType::f32;
}

template <typename T>
int64_t copy(void* to, const T& arguments) {
    std::memcpy(to, &arguments, sizeof(T));
    return sizeof(T);
}

}  // namespace

// Each writes a kernel's argument to `to` and returns its size in bytes. Rows are dense.
extern "C" {

int64_t rms_norm_args(void* to, const void* x, void* residual, const void* weight, const float* scale, void* out,
                      int64_t rows, int64_t d, const char* dtype, const char* weight_dtype, const char* out_dtype,
                      float epsilon) {
    rms_norm::Args a{};
    a.x = x;
    a.residual = residual;
    a.weight = weight;
    a.scale = scale;
    a.out = out;
    a.rows = rows;
    a.d = a.x_stride = a.residual_stride = a.out_stride = d;
    a.dtype = dtype_of(dtype);
    a.weight_dtype = dtype_of(weight_dtype);
    a.out_dtype = dtype_of(out_dtype);
    a.epsilon = epsilon;
    return copy(to, a);
}

int64_t swiglu_args(void* to, const void* x, const float* scale, void* out, int64_t rows, int64_t d, const char* dtype,
                    const char* out_dtype) {
    swiglu::Args a{};
    a.x = x;
    a.scale = scale;
    a.out = out;
    a.rows = rows;
    a.d = a.out_stride = d;
    a.x_stride = 2 * d;
    a.dtype = dtype_of(dtype);
    a.out_dtype = dtype_of(out_dtype);
    return copy(to, a);
}

int64_t divider(void* to, int64_t divisor) { return copy(to, divider_by(uint32_t(divisor))); }

// counters_for() of a library, by its address; what it says, or nullptr.
const char* counters(CountersResult (*counters_for)(void*), void* stream, uint32_t** found) {
    const CountersResult result = counters_for(stream);
    *found = result.counters;
    return result.status.error;
}

int64_t counters_bytes() { return kCounters * sizeof(uint32_t); }

}  // extern "C"
