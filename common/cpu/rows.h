// Loads, stores and sums over 16 lanes (simd_*.h) that the row kernels share. A row's last, partial block
// goes through a zeroed buffer, so nothing outside the row is ever read or written.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#include "../launch.h"

namespace rocm_fp8 {
namespace {

constexpr int kLanes = 16;

constexpr int64_t element_size(DType t) { return t == DType::f32 ? 4 : is_fp8(t) ? 1 : 2; }

template <DType type>
inline const void* at(const void* p, int64_t i) { return static_cast<const char*>(p) + i * element_size(type); }
template <DType type>
inline void* at(void* p, int64_t i) { return static_cast<char*>(p) + i * element_size(type); }

template <class S, DType type>
inline typename S::F load_block(const void* p) {
    if constexpr (type == DType::f32) return S::load_f32(p);
    else if constexpr (type == DType::f16) return S::load_f16(p);
    else return S::load_bf16(p);
}

template <class S, DType type>
inline void store_block(void* p, typename S::F v) {
    if constexpr (is_fp8(type)) S::template store_fp8<type>(p, v);
    else if constexpr (type == DType::f32) S::store_f32(p, v);
    else if constexpr (type == DType::f16) S::store_f16(p, v);
    else S::store_bf16(p, v);
}

// n of 16 elements, zeros above.
template <class S, DType type>
inline typename S::F load(const void* p, int n) {
    if (n == kLanes) return load_block<S, type>(p);
    alignas(64) char block[kLanes * element_size(type)] = {};
    std::memcpy(block, p, n * element_size(type));
    return load_block<S, type>(block);
}

template <class S, DType type>
inline void store(void* p, typename S::F v, int n) {
    if (n == kLanes) return store_block<S, type>(p, v);
    alignas(64) char block[kLanes * element_size(type)];
    store_block<S, type>(block, v);
    std::memcpy(p, block, n * element_size(type));
}

// To the 16-bit type and back: a rounding point of the unfused modules.
template <class S, DType type>
inline typename S::F round_to(typename S::F v) {
    if constexpr (type == DType::f16) return S::round_f16(v);
    else return S::round_bf16(v);
}

// A fixed tree, so that every instruction set gives the same sum.
template <class S>
inline float sum_lanes(typename S::F v) {
    float lane[kLanes];
    S::store_f32(lane, v);
    for (int width = kLanes / 2; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) lane[i] += lane[i + width];
    return lane[0];
}

// block(i, n) for the blocks of 16 in [0, d), n = 16 a constant in all but the last.
template <class Block>
inline void for_blocks(int64_t d, Block block) {
    int64_t i = 0;
    for (; i + kLanes <= d; i += kLanes) block(i, std::integral_constant<int, kLanes>());
    if (i < d) block(i, int(d - i));
}

}  // namespace

// What each instruction set's translation unit hands to the launcher: computes rows [begin, end).
template <class Args>
using RowsKernel = void (*)(const Args& args, int64_t begin, int64_t end);

// About this many elements make a part of the work worth a thread.
constexpr int64_t kElementsPerPart = 32768;

// The rows of `args`, `elements_per_row` each, on the executor's threads.
template <class Args>
void run_rows(const Args& args, int64_t elements_per_row, RowsKernel<Args> kernel, const Executor& on) {
    struct Context {
        const Args* args;
        RowsKernel<Args> kernel;
    } context{&args, kernel};
    const int64_t grain = elements_per_row >= kElementsPerPart ? 1 : kElementsPerPart / elements_per_row;
    on.parallel_for(0, args.rows, grain, [](void* c, int64_t begin, int64_t end) {
        auto* context = static_cast<Context*>(c);
        context->kernel(*context->args, begin, end);
    }, &context);
}

}  // namespace rocm_fp8
