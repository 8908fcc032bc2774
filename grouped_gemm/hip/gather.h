// Loaders of the rows of A that a tile of the result has, and of their scales: gathered as they are loaded. Where there
// are no `rows`, a tile's rows follow one another.
#pragma once

#include "../../common/gemm/hip/block_scales.h"
#include "../../common/gemm/hip/stream.h"
#include "row_tiles.h"

namespace rocm_fp8::grouped_gemm::hip {
namespace {

using namespace gemm::hip;

// A tile of a group's rows.
struct Item {
    int group, row, end;  // its first row in the result; the group's last one and one
    int tile_n;
    int k_begin, k_end;  // blocks of K: all of them

    // Whether the wave has some: the last tile of a group may be short.
    template <class S>
    __device__ bool has_rows() const {
        return row + uniform(threadIdx.x / kWave) / S::waves_n * S::wave_rows < end;
    }
};

// body(i, source): of the tile's row `of(i)`, its row of A, counted from `first`; -1 beyond the end.
template <int loads, class Of, class Body>
__device__ inline void each_source(const Args& a, const Item& item, const Of& of, const Body& body) {
#pragma unroll
    for (int i = 0; i < loads; ++i) {
        const int row = item.row + of(i);
        body(i, row >= item.end ? -1 : a.rows ? gemm::source_of(a, row) : of(i));
    }
}
// What rows of A are counted from.
__device__ inline int64_t first_source(const Args& a, const Item& item) { return a.rows ? 0 : item.row; }

// Rows at multiples of 16 bytes; all of A, or a tile of it where its rows follow one another, within 2^30 bytes.
template <class S, int count>
struct GatheredLoader : StageLoader<S, count> {
    using Base = StageLoader<S, count>;
    __device__ void start(const Args& a, const Item& item, uint32_t first_k, uint32_t end_k) {
        Base::end = end_k;
        Base::k = first_k + uint32_t(Base::chunk()) * kChunk;
        Base::buffer = Buffer(a.a.data + first_source(a, item) * a.a.row_stride, kNowhere);
        each_source<Base::kLoads>(a, item, Base::row_of, [&](int i, int row) {
            Base::offset[i] = row >= 0 && Base::has(i) ? uint32_t(row) * uint32_t(a.a.row_stride) : kNowhere;
        });
    }
};

// Any alignment and size.
template <class S, int count>
struct GatheredAnyLoader : AnyLoader<S, count, false> {
    using Base = AnyLoader<S, count, false>;
    const uint8_t* from[Base::kLoads];  // nullptr: zeros

    __device__ void start(const Args& a, const Item& item, uint32_t first_k, uint32_t end_k) {
        Base::begin = first_k, Base::end = end_k;
        const uint8_t* const first = a.a.data + first_source(a, item) * a.a.row_stride;
        each_source<Base::kLoads>(a, item, Base::row_of, [&](int i, int row) {
            from[i] = row >= 0 && Base::has(i) ? first + row * a.a.row_stride : nullptr;
        });
    }
    __device__ void request(u32x4 (&into)[Base::kLoads], int i, uint32_t at, uint32_t) const {
        into[i] = chunk_of_row(from[i], Base::begin + at + uint32_t(Base::chunk_of(i)) * kChunk, Base::end);
    }
};

// Scales of the tile's rows of A, as ScaleLoader: of all of A within 2^30 bytes.
template <int count, int threads>
struct GatheredScales {
    static constexpr int kPieces = count * kPeriod, kLoads = (kPieces + threads - 1) / threads;
    uint32_t bits[kLoads] = {};
    Buffer buffer{nullptr, 0};
    uint32_t of_row[kLoads], block_bytes, blocks;

    static __device__ uint32_t row_of(uint32_t thread, int i) { return (thread + i * threads) / kPeriod; }

    __device__ void start(const Args& a, const Item& item, int begin, int end) {
        const gemm::Scales& s = a.scale_a;
        const int64_t size = size_of(s.dtype), row_bytes = s.row_stride * size;
        const uint32_t thread = fresh_thread() % threads;
        block_bytes = uint32_t(s.block_stride * size), blocks = uint32_t(end - begin);
        buffer = Buffer(offset(s.data, first_source(a, item) * row_bytes + begin * s.block_stride * size), kNowhere);
        each_source<kLoads>(
            a, item, [&](int i) { return int(row_of(thread, i)); },
            [&](int i, int row) { of_row[i] = row >= 0 ? uint32_t(row) * uint32_t(row_bytes) : kNowhere; });
    }

    __device__ void request(const gemm::Scales& s, uint32_t block) {
        const uint32_t in_period = uint32_t(fresh_thread()) % kPeriod;
        const uint32_t mine = block + in_period < blocks ? in_period * block_bytes : kNowhere;
        const auto load = [&]<class T>(T) {
#pragma unroll
            for (int i = 0; i < kLoads; ++i) bits[i] = buffer.load_element<T>(of_row[i] + mine, block * block_bytes);
        };
        if (s.dtype == DType::e8m0) load(uint8_t());
        else load(uint32_t());
    }
};

// Fragments of a stream's rows, as AlignedFragments and AnyFragments.
template <int rows>
struct GatheredFragments : AlignedFragments<rows, kPlainAccess> {
    using Base = AlignedFragments<rows, kPlainAccess>;
    __device__ void start(const Args& a, const Item& item) {
        Base::buffer = Buffer(a.a.data + first_source(a, item) * a.a.row_stride, kNowhere);
        each_source<Base::kCount>(
            a, item, [](int i) { return 16 * i + own_row<rows>(); },
            [&](int i, int row) {
                Base::at[i] = row >= 0 ? uint32_t(row) * uint32_t(a.a.row_stride) + own_k() : kNowhere;
            });
    }
};
template <int rows>
struct GatheredAnyFragments {
    static constexpr bool any = true;
    static constexpr uint32_t kBeyond = AnyFragments<rows>::kBeyond;
    static constexpr int kCount = rows / 16;
    const uint8_t* from[kCount];  // nullptr: zeros

    __device__ void start(const Args& a, const Item& item) {
        const uint8_t* const first = a.a.data + first_source(a, item) * a.a.row_stride;
        each_source<kCount>(
            a, item, [](int i) { return 16 * i + own_row<rows>(); },
            [&](int i, int row) { from[i] = row >= 0 ? first + row * a.a.row_stride : nullptr; });
    }
    __device__ u32x4 load(int i, uint32_t k, uint32_t end) const { return chunk_of_row(from[i], k + own_k(), end); }
};

}  // namespace
}  // namespace rocm_fp8::grouped_gemm::hip
