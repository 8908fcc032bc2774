// What every launcher shares: element types, the result of a launch, and where it runs.
//
// A launcher takes pointers, sizes and strides, never a tensor: the operators can be called from any
// framework (and from a simulator), and the torch headers stay out of the kernel sources.
#pragma once

#include <cstdint>

// For what runs on the host and on a GPU.
#if defined(__HIPCC__) || defined(__CUDACC__)
#define ROCM_FP8_HD __host__ __device__
#define ROCM_FP8_DEVICE __device__  // on a GPU for it alone, on a CPU for the host
#else
#define ROCM_FP8_HD
#define ROCM_FP8_DEVICE
#endif

namespace rocm_fp8 {

enum class DType : int32_t { f32, f16, bf16, e4m3fn, e4m3fnuz, e8m0, i8, i32, e2m1 };

ROCM_FP8_HD constexpr int64_t ceil_div(int64_t whole, int64_t part) { return (whole + part - 1) / part; }

ROCM_FP8_HD constexpr bool is_fp8(DType t) { return t == DType::e4m3fn || t == DType::e4m3fnuz; }

// nullptr: launched. Otherwise one line in static storage that says what the caller did wrong.
struct Status {
    const char* error = nullptr;
    constexpr bool ok() const { return error == nullptr; }
};

// Runs body(context, begin, end) over parts of [begin, end) on the host framework's own threads,
// none shorter than `grain` but the last. The parts may be cut anywhere, so a body's result must not
// depend on where.
using RangeBody = void (*)(void* context, int64_t begin, int64_t end);
using ParallelFor = void (*)(int64_t begin, int64_t end, int64_t grain, RangeBody body, void* context);

// Device memory for one launch, from the host framework's own allocator: captures and streams are its business. It need
// not be freed, and is the launch's until that has run. nullptr: there is none.
using Scratch = void* (*)(void* context, int64_t bytes);

// Where a launch runs. GPU backends read `stream` (hipStream_t or cudaStream_t) and `scratch`, the CPU backend
// `parallel_for`.
struct Executor {
    void* stream = nullptr;
    ParallelFor parallel_for = nullptr;
    Scratch scratch = nullptr;
    void* context = nullptr;  // of `scratch`
};

// Whether all rows start at a multiple of that many bytes: 16 for 128-bit accesses.
inline bool rows_aligned(const void* base, int64_t stride_bytes, int bytes = 16) {
    return reinterpret_cast<uintptr_t>(base) % bytes == 0 && stride_bytes % bytes == 0;
}

}  // namespace rocm_fp8
