// What kernels that both vendors share use of a warp and of vectors, beside emulated_cuda.h, which comes first.
#pragma once

#define blockDim (rocm_fp8::Index{unsigned(rocm_fp8::current->cta->threads)})

namespace rocm_fp8 {
namespace {

// Four 16-bit numbers: common/cuda/mma.h's.
struct Four {
    uint32_t low, high;
};

constexpr int kLanes = kWarp, kLaneOfSum = 0;
inline int lane_of_fiber() { return current->thread % kWarp; }

// body(value of a lane), once all lanes have given theirs.
template <class Body>
auto with_lanes(uint32_t v, const Body& body) {
    auto& lanes = current->cta->exchanged[current->thread / kWarp];
    lanes.resize(kWarp);
    lanes[lane_of_fiber()] = {v};
    __syncwarp();
    const auto found = body([&](int lane) { return lanes[lane][0]; });
    __syncwarp();
    return found;
}
inline uint32_t __ballot_sync(uint32_t, bool v) {
    return with_lanes(v, [](const auto& of) {
        uint32_t votes = 0;
        for (int lane = 0; lane < kWarp; ++lane) votes |= of(lane) << lane;
        return votes;
    });
}
inline uint32_t __shfl_up_sync(uint32_t, uint32_t v, int distance) {
    const int lane = lane_of_fiber();
    return with_lanes(v, [&](const auto& of) { return of(lane < distance ? lane : lane - distance); });
}
inline int __popc(uint32_t v) { return __builtin_popcount(v); }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline float sum_over_lanes(float v) {
    for (int distance = 1; distance < kWarp; distance *= 2) {
        const int other = lane_of_fiber() ^ distance;
        v += bits_float(with_lanes(float_bits(v), [&](const auto& of) { return of(other); }));
    }
    return v;
}
inline float of_lane_of_sum(float v) { return v; }
template <int kCount>
uint32_t max_over_lanes(uint32_t v) {
    const int first = lane_of_fiber() / kCount * kCount;
    return with_lanes(v, [&](const auto& of) {
        uint32_t most = 0;
        for (int lane = first; lane < first + kCount; ++lane) most = of(lane) > most ? of(lane) : most;
        return most;
    });
}
template <int kCount>
uint32_t max_with_other_half(uint32_t v) {
    return max_over_lanes<kCount>(v);
}
inline int uniform(int v) { return v; }

inline const void* offset(const void* p, int64_t bytes) { return static_cast<const char*>(p) + bytes; }
inline void* offset(void* p, int64_t bytes) { return static_cast<char*>(p) + bytes; }
using Vector128 = uint4;
using VectorIndex = int64_t;
inline Vector128 load_vector(const void* base, VectorIndex byte) { return load(offset(base, byte)); }
template <class T>
void store_at(void* p, T v) {
    store(p, v);
}
template <class T>
void store_vector(void* base, VectorIndex byte, T v) {
    store(offset(base, byte), v);
}
inline uint4 joined(uint2 a, uint2 b) { return {a.x, a.y, b.x, b.y}; }
inline void set_word(uint4& v, int i, uint32_t value) { word(v, i) = value; }

// FP8, which nothing here makes: headers name it.
struct QuantizationScale {};
inline uint2 quantize_eight(const f32x2 (&)[4], const QuantizationScale&) { fail("FP8"); }
template <DType>
uint2 quantize_vector(const f32x2 (&)[4], QuantizationScale) {
    fail("FP8");
}
inline uint32_t max_halves(uint32_t, uint32_t) { fail("FP8"); }

}  // namespace
}  // namespace rocm_fp8
