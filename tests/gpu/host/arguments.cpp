// The GPU kernels' arguments as the headers lay them out, from plain ones: for host_arguments.py.
#include <cstring>
#include <string_view>

#include "common/rows/gpu/quantized.h"
#include "common/gemm/hip/counters.h"
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
                      float epsilon, const DynamicScale* dynamic, void* normalized) {
    rms_norm::Args a{};
    if (dynamic) a.dynamic = *dynamic;
    a.normalized = normalized;
    a.normalized_stride = d;
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

int64_t dynamic_scale(void* to, void* data, int64_t row_stride, int64_t group_stride, const float* upper_bound,
                      float fp8_max, int32_t group, int32_t power_of_two, int32_t exponents) {
    return copy(to, DynamicScale{data, row_stride, group_stride, upper_bound, fp8_max, exact_reciprocal(fp8_max), group,
                                 power_of_two != 0, exponents != 0});
}

int64_t quantized_rows(void* to, const float* scale, const DynamicScale* dynamic, void* out, int64_t rows, int64_t d,
                       const char* out_dtype) {
    return copy(to, QuantizedRows{scale, dynamic ? *dynamic : DynamicScale{}, out, rows, d, d,
                                  dtype_of(out_dtype) == DType::e4m3fnuz});
}

int64_t flat_work(void* to, int64_t a_row, int64_t count) {
    return copy(to, FlatWork{divider_by(uint32_t(a_row)), uint32_t(count), 0});
}

int64_t maxima(void* to, const uint32_t* data, int64_t count) { return copy(to, Maxima{data, count}); }

int64_t divider(void* to, int64_t divisor) { return copy(to, divider_by(uint32_t(divisor))); }

// counters_for() of a library, by its address; what it says, or nullptr.
const char* counters(CountersResult (*counters_for)(void*), void* stream, uint32_t** found) {
    const CountersResult result = counters_for(stream);
    *found = result.counters;
    return result.status.error;
}

int64_t counters_bytes() { return kCounters * sizeof(uint32_t); }

}  // extern "C"
