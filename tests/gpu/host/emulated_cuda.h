// What the CUDA kernels use of a Hopper GPU, on the host: in the place of common/cuda's headers (emulated_cuda.py).
//
// A thread is a fiber. Fibers run one at a time, in turn, and go on until they meet a barrier that is not complete. So
// results and deadlocks show; races between threads that no barrier orders, and asynchrony, do not: a copy by TMA and a
// wgmma are done where they are issued. Layouts are the hardware's: the 128-byte swizzle, the fragments of wgmma.
#pragma once

#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <vector>

#define __CUDACC__ 1
#define __CUDA_ARCH_FEAT_SM90_ALL 1
#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __launch_bounds__(...)
#define __grid_constant__

struct uint2 {
    uint32_t x, y;
};
struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};
struct alignas(8) int2 {
    int32_t x, y;
};
struct alignas(16) int4 {
    int32_t x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct CUtensorMap {  // of bytes
    const uint8_t* data;
    int64_t rows, k, stride;
    int height;
    int64_t group_stride = 0;
};

#include "../fp8.h"

namespace rocm_fp8 {

// --- fibers, CTAs, clusters ---

struct Meeting {
    int arrived = 0;
    unsigned phase = 0;
};
struct CountingBarrier {
    int expected, pending;
    int64_t bytes = 0;
    unsigned phase = 0;
};
struct Cta;
struct Fiber {
    ucontext_t context;
    std::vector<char> stack;
    Cta* cta;
    int thread;
    bool done = false;
};
struct Cta {
    unsigned index = 0, rank = 0;
    int threads = 0;
    std::vector<char> memory;
    char* shared = nullptr;
    Meeting all;
    std::map<int, Meeting> warps, named;
    std::map<const void*, CountingBarrier> barriers;
    std::map<int, std::vector<std::vector<uint32_t>>> exchanged;  // by warp and lane
    std::vector<Fiber> fibers;
    std::vector<Cta>* cluster = nullptr;
    Meeting* cluster_meeting = nullptr;
};
struct Index {
    unsigned x;
};

inline Fiber* current;
inline ucontext_t scheduler;
inline unsigned grid_size;
inline std::function<void()> kernel_body;
inline int64_t steps_on;  // arrivals, and ends of fibers: without one, all that run wait

[[noreturn]] inline void fail(const char* what) {
    std::fprintf(stderr, "emulated CUDA: %s, CTA %u, thread %d\n", what, current->cta->index, current->thread);
    std::abort();
}
inline void yield() {
    Fiber* self = current;
    swapcontext(&self->context, &scheduler);
    current = self;
}
inline void arrive_at(Meeting& m, int count) {
    ++steps_on;
    if (++m.arrived == count) m.arrived = 0, ++m.phase;
}
inline void meet(Meeting& m, int count) {
    const unsigned phase = m.phase;
    arrive_at(m, count);
    while (m.phase == phase) yield();
}
inline void fiber_entry() {
    kernel_body();
    current->done = true;
    ++steps_on;
    swapcontext(&current->context, &scheduler);
}

inline void make_fiber(Fiber& f, Cta* cta, int thread) {
    constexpr int kStack = 64 << 10;
    f.cta = cta;
    f.thread = thread;
    f.stack.resize(kStack);
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack.data();
    f.context.uc_stack.ss_size = f.stack.size();
    makecontext(&f.context, fiber_entry, 0);
}

// Runs `body` as a kernel: cluster after cluster.
inline void launch(int64_t ctas, int threads, int cluster, int64_t shared_bytes, std::function<void()> body) {
    constexpr int kAlignment = 1024;
    grid_size = unsigned(ctas);
    kernel_body = std::move(body);
    for (int64_t first = 0; first < ctas; first += cluster) {
        std::vector<Cta> group(cluster);
        Meeting meeting;
        for (int r = 0; r < cluster; ++r) {
            Cta& cta = group[r];
            cta.index = unsigned(first + r);
            cta.rank = unsigned(r);
            cta.threads = threads;
            cta.cluster = &group;
            cta.cluster_meeting = &meeting;
            cta.memory.assign(shared_bytes + kAlignment, char(0x7F));  // NaN, as operand and as float
            const auto begin = reinterpret_cast<uintptr_t>(cta.memory.data());
            cta.shared = cta.memory.data() + (kAlignment - begin % kAlignment) % kAlignment;
            cta.fibers.resize(threads);
            for (int t = 0; t < threads; ++t) make_fiber(cta.fibers[t], &cta, t);
        }
        constexpr int kLongest = 1000;  // rounds in which nobody went on
        int left = 1;
        for (int idle = 0; left; ++idle) {
            const int64_t before = steps_on;
            left = 0;
            for (Cta& cta : group) {
                for (Fiber& f : cta.fibers) {
                    if (f.done) continue;
                    ++left;
                    current = &f;
                    swapcontext(&scheduler, &f.context);
                }
            }
            if (steps_on != before) idle = 0;
            if (idle == kLongest) fail("deadlock");
        }
    }
}

}  // namespace rocm_fp8

#define threadIdx (rocm_fp8::Index{unsigned(rocm_fp8::current->thread)})
#define blockIdx (rocm_fp8::Index{rocm_fp8::current->cta->index})
#define gridDim (rocm_fp8::Index{rocm_fp8::grid_size})
inline void __syncthreads() { rocm_fp8::meet(rocm_fp8::current->cta->all, rocm_fp8::current->cta->threads); }
inline void __syncwarp() { rocm_fp8::meet(rocm_fp8::current->cta->warps[rocm_fp8::current->thread / 32], 32); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline uint32_t __float_as_uint(float v) { return std::bit_cast<uint32_t>(v); }
inline float __uint_as_float(uint32_t bits) { return std::bit_cast<float>(bits); }

namespace rocm_fp8 {
namespace {

// --- vector.h, half_pairs.h, pdl.h, shared_memory.h ---

constexpr int kWarp = 32;
constexpr uint32_t kWholeWarp = 0xFFFFFFFFu;
template <class T>
const T* global(const void* p) {
    return static_cast<const T*>(p);
}
template <class T>
T* global(void* p) {
    return static_cast<T*>(p);
}
template <class T>
T loaded(const void* p) {
    if (reinterpret_cast<uintptr_t>(p) % sizeof(T)) fail("a load is not aligned");
    return *static_cast<const T*>(p);
}
inline uint4 load(const void* p) { return loaded<uint4>(p); }
inline float load_float(const void* p) { return loaded<float>(p); }
inline uint32_t load_byte(const void* p) { return loaded<uint8_t>(p); }
inline uint32_t load_bits(const void* p, bool byte) { return byte ? load_byte(p) : loaded<uint32_t>(p); }
template <class T>
void store(void* p, T v) {
    if (reinterpret_cast<uintptr_t>(p) % sizeof(T)) fail("a store is not aligned");
    std::memcpy(p, &v, sizeof(T));
}
inline uint32_t& word(uint4& v, int i) { return (&v.x)[i]; }
inline uint32_t word(const uint4& v, int i) { return (&v.x)[i]; }
inline uint32_t word(const uint2& v, int i) { return (&v.x)[i]; }

using f32x2 = float2;
inline f32x2 both(float v) { return {v, v}; }
template <DType>
struct Pairs;
template <>
struct Pairs<DType::bf16> {
    static f32x2 widen(uint32_t v) { return {__uint_as_float(v << 16), __uint_as_float(v & 0xFFFF0000u)}; }
    static uint32_t one(float f) {
        const auto u = std::bit_cast<uint32_t>(f);
        return f != f ? 0x7FC0 : (u + 0x7FFF + ((u >> 16) & 1)) >> 16;
    }
    static uint32_t round_any_nan(f32x2 v) { return one(v.x) | one(v.y) << 16; }
    static uint32_t round(f32x2 v) { return round_any_nan(v); }
    static uint32_t scaled(uint32_t v, float by) { return round({widen(v).x * by, widen(v).y * by}); }
    static uint32_t mul(uint32_t a, uint32_t b) { return round({widen(a).x * widen(b).x, widen(a).y * widen(b).y}); }
};
template <>
struct Pairs<DType::f16> {
    static float widen_one(uint32_t v) { return float(std::bit_cast<_Float16>(uint16_t(v))); }
    static f32x2 widen(uint32_t v) { return {widen_one(v & 0xFFFF), widen_one(v >> 16)}; }
    static uint32_t one(float f) { return std::bit_cast<uint16_t>(_Float16(f)); }
    static uint32_t round_any_nan(f32x2 v) { return one(v.x) | one(v.y) << 16; }
};

inline void wait_for_previous_kernel() {}
inline void let_next_kernel_start() {}
inline void fetch_to_l1(const void* p) { static_cast<void>(*static_cast<const volatile char*>(p)); }
template <class T>
T& dynamic_shared() {
    return *reinterpret_cast<T*>(current->cta->shared);
}

// --- cluster.h, mbarrier.h, tma.h ---

constexpr int kRankShift = 24;  // of an address in the cluster
inline uint32_t shared_address(const void* p) { return uint32_t(static_cast<const char*>(p) - current->cta->shared); }
inline uint32_t rank_in_cluster() { return current->cta->rank; }
// Of all threads, once in a kernel. Hardware would let a cluster go on without threads that have ended, but not
// reliably where they end after others have arrived.
inline void arrive_at_cluster_start() { ++steps_on, ++current->cta->cluster_meeting->arrived; }
inline void wait_for_cluster_start() {
    const Cta& cta = *current->cta;
    while (cta.cluster_meeting->arrived < cta.threads * int(cta.cluster->size())) yield();
}
inline uint32_t address_in_cta(const void* p, uint32_t rank) { return shared_address(p) | rank << kRankShift; }
using Barrier = uint64_t;
inline CountingBarrier& counting(Barrier* b) { return current->cta->barriers.at(b); }
inline void complete(CountingBarrier& b) {
    ++steps_on;
    if (b.pending < 0) fail("too many arrivals at an mbarrier");
    if (b.pending == 0 && b.bytes == 0) b.phase ^= 1, b.pending = b.expected;
}
inline void make_barrier(Barrier* b, uint32_t n) { current->cta->barriers[b] = {int(n), int(n)}; }
inline void publish_barriers() {}
inline void arrive(Barrier* b) {
    --counting(b).pending;
    complete(counting(b));
}
inline void arrive_if(bool is, Barrier* b) {
    if (is) arrive(b);
}
inline void copy_vector_async(void* to, const void* from, int bytes) {
    if ((uintptr_t(to) | uintptr_t(from)) % 16) fail("an asynchronous copy is not aligned");
    std::memset(to, 0, 16);
    std::memcpy(to, from, size_t(bytes));
}
inline void commit_copies() {}
template <int>
void wait_for_copies() {}
inline void copy_float_async(float* to, const void* from) { *to = *static_cast<const float*>(from); }
inline void arrive_after_copies(Barrier* b) { arrive(b); }
inline void arrive_expecting(Barrier* b, uint32_t bytes) {
    counting(b).bytes += bytes;
    arrive(b);
}
template <class T>
T __shfl_sync(uint32_t, T v, int from) {
    static_assert(sizeof(T) == 4);
    auto& lanes = current->cta->exchanged[current->thread / kWarp];
    lanes.resize(kWarp);
    lanes[current->thread % kWarp] = {std::bit_cast<uint32_t>(v)};
    __syncwarp();
    const T found = std::bit_cast<T>(lanes[from % kWarp][0]);
    __syncwarp();
    return found;
}
inline bool completed(Barrier* b, uint32_t parity) { return counting(b).phase != parity; }
inline void wait_for(Barrier* b, uint32_t parity) {
    while (!completed(b, parity)) yield();
}

template <class Four>
void send_in_cluster(uint32_t address, Four v, uint32_t barrier) {
    constexpr uint32_t kOffset = (1u << kRankShift) - 1;
    Cta& target = (*current->cta->cluster)[address >> kRankShift];
    store(target.shared + (address & kOffset), v);
    CountingBarrier& b = target.barriers.at(target.shared + (barrier & kOffset));
    b.bytes -= sizeof(v);
    complete(b);
}

inline uint32_t swizzled(uint32_t address) { return address ^ (address >> 7 & 7) << 4; }
inline bool elected() { return current->thread % kWarp == 0; }
inline void fetch_map(const CUtensorMap*) {}
inline void copy_tile(void* to, const CUtensorMap* map, int column, int row, Barrier* barrier) {
    constexpr int kWidth = 128;
    const uint32_t at = shared_address(to);
    if (at % (map->height < 8 ? kWidth : 1024)) fail("TMA's target is not aligned");
    for (int r = 0; r < map->height; ++r) {
        for (int c = 0; c < kWidth; ++c) {
            const bool inside = row + r < map->rows && column + c < map->k;
            const int64_t from = int64_t(row + r) * map->stride + column + c;
            current->cta->shared[swizzled(at + r * kWidth + c)] = inside ? char(map->data[from]) : 0;
        }
    }
    counting(barrier).bytes -= map->height * kWidth;
    complete(counting(barrier));
}

inline void copy_tile_of(int group, void* to, const CUtensorMap* map, int column, int row, Barrier* barrier) {
    CUtensorMap one = *map;
    one.data += group * map->group_stride;
    copy_tile(to, &one, column, row, barrier);
}

// --- wgmma.h, mma.h ---

inline float decoded(uint8_t code) {
    static const auto table = [] {
        std::vector<float> t;
        for (int c = 0; c < 256; ++c) t.push_back(fp8_decode<DType::e4m3fn>(uint8_t(c)));
        return t;
    }();
    return table[code];
}

constexpr int kWarpgroup = 128, kWgmmaRows = 64, kWgmmaK = 32;
inline uint32_t swizzled_rows(const void* p) {
    if (shared_address(p) % 1024) fail("an operand of wgmma is not aligned");
    return shared_address(p);
}
constexpr uint32_t further(uint32_t descriptor, uint32_t bytes) { return descriptor + bytes; }
inline void begin_multiplications() {}
inline void commit_multiplications() {}
template <int>
void wait_for_multiplications() {}
inline void warpgroup_meets(int id) { meet(current->cta->named[id], kWarpgroup); }
template <int>
void take_registers() {}
template <int>
void leave_registers() {}

inline float product(uint8_t a, uint8_t b, float) { return decoded(a) * decoded(b); }
inline int32_t product(uint8_t a, uint8_t b, int32_t) { return int32_t(int8_t(a)) * int8_t(b); }
// T: float with FP8, int32_t with int8.
template <class T, int kGroups>
void multiply_async(T (&d)[kGroups][4], uint32_t a, uint32_t b, bool add) {
    const int lane = current->thread % kWarp, warp = current->thread / kWarp % 4, g = lane / 4, t = lane % 4;
    const auto byte = [](uint32_t rows, int r, int k) {
        const uint32_t address = uint32_t(rows) + r / 8 * 1024 + r % 8 * 128 + k;
        return uint8_t(current->cta->shared[swizzled(address)]);
    };
    for (int i = 0; i < kGroups; ++i) {
        for (int e = 0; e < 4; ++e) {
            T sum = add ? d[i][e] : 0;
            for (int k = 0; k < kWgmmaK; ++k)
                sum += product(byte(a, 16 * warp + g + e / 2 * 8, k), byte(b, 8 * i + 2 * t + e % 2, k), sum);
            d[i][e] = sum;
        }
    }
}

// --- mma_int8.h ---

constexpr int kInt8Rows = 16, kInt8Columns = 8, kInt8K = 64;
using Int8Sums = int32_t[4];
inline void multiply_int8(Int8Sums& d, const uint4 (&rows)[2], const uint4& column) {
    const int lane = current->thread % kWarp, g = lane / 4, t = lane % 4;
    auto& lanes = current->cta->exchanged[current->thread / kWarp];
    lanes.resize(kWarp);
    lanes[lane].clear();
    for (const uint4& chunk : {rows[0], rows[1], column})
        for (int i = 0; i < 4; ++i) lanes[lane].push_back(word(chunk, i));
    __syncwarp();
    for (int e = 0; e < 4; ++e) {
        for (int part = 0; part < 4; ++part) {
            const auto &of_row = lanes[4 * g + part], &of_column = lanes[4 * (2 * t + e % 2) + part];
            for (int k = 0; k < 16; ++k) {
                const auto number = [&](uint32_t w) { return int32_t(int8_t(w >> k % 4 * 8)); };
                d[e] += number(of_row[e / 2 * 4 + k / 4]) * number(of_column[8 + k / 4]);
            }
        }
    }
    __syncwarp();
}

constexpr int kMmaWide = 16, kMmaNarrow = 8, kChunk = 16;
using Sums = float[4];
template <int kWide, int kNarrow, class Chunk>
void multiply_chunks(Sums (&sums)[kWide][kNarrow], const Chunk (&wide)[kWide][2], const Chunk (&narrow)[kNarrow]) {
    constexpr int kWords = sizeof(Chunk) / 4;
    const int lane = current->thread % kWarp, g = lane / 4, t = lane % 4;
    auto& lanes = current->cta->exchanged[current->thread / kWarp];
    lanes.resize(kWarp);
    lanes[lane].clear();
    const auto give = [&](const Chunk& chunk) {
        for (int i = 0; i < kWords; ++i) lanes[lane].push_back(word(chunk, i));
    };
    for (const auto& pair : wide)
        for (const Chunk& chunk : pair) give(chunk);
    for (const Chunk& chunk : narrow) give(chunk);
    __syncwarp();
    for (int w = 0; w < kWide; ++w) {
        for (int n = 0; n < kNarrow; ++n) {
            for (int e = 0; e < 4; ++e) {
                for (int k = 0; k < 4 * 4 * kWords; ++k) {
                    const int part = k / (4 * kWords), i = k / 4 % kWords, shift = k % 4 * 8;
                    const uint32_t a = lanes[g * 4 + part][(2 * w + e / 2) * kWords + i];
                    const uint32_t b = lanes[(2 * t + e % 2) * 4 + part][(2 * kWide + n) * kWords + i];
                    sums[w][n][e] += decoded(a >> shift & 255) * decoded(b >> shift & 255);
                }
            }
        }
    }
    __syncwarp();
}

}  // namespace
}  // namespace rocm_fp8
