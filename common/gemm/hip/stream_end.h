// The end of a stream's workgroup: waves' sums are added, then split-K's parts, scaled and stored. A thread has two or four
// neighbours of a row. The constructor computes where it stores, so that nothing of this is waited for when the sums
// are there.
//
// Factors say what a sum is multiplied by: row(m), column(n); kRows, kColumns: whether it is; kSplits: whether launches
// may split K; kEarly: whether factors and the bias are asked for by the constructor. Their registers then are pending
// in the main loop, whose packed instructions may touch one of them as the unused half of a pair, and would wait. tile,
// part: the workgroup's. least_threads: of one. To: a sender (../../comm/gpu/send.h), which gets the result densely; n
// is then a multiple of four, of 16 bits of eight.
#pragma once

#include "../../comm/gpu/send.h"
#include "../../hip/lds.h"
#include "../epilogue.h"
#include "split_k.h"
#include "stream.h"

namespace rocm_fp8::gemm::hip {
namespace {

// Scales of channels, where the launch has them.
template <bool columns, bool splits>
struct ChannelFactors {
    static constexpr bool kRows = false, kColumns = columns, kSplits = splits, kEarly = false;
    const Scales& scales;
    bool channels;
    __device__ float column(int n) const {
        return channels ? scale_of_bits(scales.dtype == DType::e8m0, scale_bits(scales, n, 0)) : 1.0f;
    }
};

template <class S, class Factors, int least_threads = S::threads, class To = comm::NoSender>
class StreamEnd {
    static constexpr int kApiece = S::sums > 2 * least_threads ? 4 : 2, kAcross = S::columns / kApiece;
    static constexpr uint32_t kPartBytes = S::sums * 4;
    using Numbers = float __attribute__((ext_vector_type(kApiece)));
    using Bits = uint32_t __attribute__((ext_vector_type(kApiece)));
    static_assert(kApiece * least_threads >= S::sums);

    Output out;
    SplitK split;
    Bias bias;
    const Factors factors;
    const int m, n, column, part;
    int row, own;  // the thread's, from the workgroup's first column on
    int left;      // columns from its own on; 0: it has none, or no row
    int apart;     // 0: its numbers are stored at once
    int64_t at;    // of its first number in the result
    float of_row;
    Numbers of_column;
    Bits added;  // as they lie in memory: to convert them is to wait for them
    To to;
    uint32_t epoch;

  public:
    __device__ StreamEnd(const Factors& factors, const Bias& bias, const Output& to, const SplitK& parts, int m, int n,
                         int column, int tile, int part, const To& others = {})
        : out(to), split(parts), bias(bias), factors(factors), m(m), n(n), column(column), part(part), to(others) {
        have_now(out.data), have_now(out.row_stride), have_now(out.dtype), have_now(this->bias.data);
        if constexpr (Factors::kSplits) {
            have_now(split.parts);
            split.partial += int64_t(tile) * split.parts * S::sums;
            auto arrived =
                global<uint32_t>(split.arrived + tile);  // of a generic pointer the compiler would lose the space
            have_now(split.partial), have_now(arrived);
            split.arrived = (uint32_t*)arrived;
        }
        row = int(threadIdx.x) / kAcross, own = int(threadIdx.x) % kAcross * kApiece;
        if constexpr (Factors::kEarly) ask();
        epoch = this->to.load_epoch();
        if constexpr (To::kSends) have_now(epoch);
        left = int(threadIdx.x) * kApiece < S::sums && row < m ? n - column - own : 0;
        apart = ((int(out.row_stride) | n) & (kApiece - 1)) | int(reinterpret_cast<uintptr_t>(out.data) & 15);
        at = row * out.row_stride + column + own;
        have_now(apart), have_computed(left);
        if constexpr (!To::kSends) have_computed(at);  // its registers are a sender's: one form has no more
    }

    // Behind the slice's loads. regions: one for each wave's sums.
    template <class Slice, int most_waves, int kRegion>
    __device__ void finish(Slice& slice, float (&regions)[most_waves][kRegion], int wave, int waves) {
        slice.multiply();
        slice.sums.store(regions[wave]);
        // Barrier: the sums are added below by other waves.
        lds_barrier();
        if constexpr (!Factors::kEarly) ask();
        to.begin(epoch);
        Numbers v(0);
        if (left > 0) {
            const float* from = regions[0] + S::place(row, own);
            v = *reinterpret_cast<const Numbers*>(from);
#pragma unroll
            for (int wave = 1; wave < waves; ++wave) v += *reinterpret_cast<const Numbers*>(from + wave * kRegion);
        }
        if (Factors::kSplits && split.parts > 1) {
            const Buffer all(split.partial, uint32_t(split.parts) * kPartBytes);
            const uint32_t mine = threadIdx.x * sizeof(Numbers);
            if (left > 0) all.template store<kAllChiplets>(part * kPartBytes + mine, __builtin_bit_cast(Bits, v));
            if (!arrives_last(split.arrived, split.parts)) return;
            if (left > 0) v = sum_of_parts(all, mine);
            reset(split.arrived);
        }
        if (left <= 0) return;
        if constexpr (Factors::kRows) v *= of_row;
        if constexpr (Factors::kColumns) v *= of_column;
        if (bias.data) v += biases();  // without one, -0 stays -0
        store(v);
    }

  private:
    // For scales and bias.
    __device__ void ask() {
        if constexpr (Factors::kRows) of_row = factors.row(row < m ? row : m - 1);
        const auto each = [&](auto&& body) {
#pragma unroll
            for (int c = 0; c < kApiece; ++c) body(c, column + own + c < n ? column + own + c : n - 1);
        };
        if constexpr (Factors::kColumns) each([&](int c, int mine) { of_column[c] = factors.column(mine); });
        added = Bits(0);
        if (bias.data && bias.dtype == DType::f32) {
            each([&](int c, int mine) { added[c] = global<uint32_t>(bias.data)[mine * bias.stride]; });
        } else if (bias.data) {
            each([&](int c, int mine) { added[c] = global<uint16_t>(bias.data)[mine * bias.stride]; });
        }
    }

    __device__ Numbers biases() const {
        const auto each = [&](auto widened) {
            Numbers v;
#pragma unroll
            for (int c = 0; c < kApiece; ++c) v[c] = widened(added[c]);
            return v;
        };
        if (bias.dtype == DType::f32) return each([](uint32_t bits) { return bits_float(bits); });
        if (bias.dtype == DType::f16) return each([](uint32_t bits) { return widened(DType::f16, bits); });
        return each([](uint32_t bits) { return widened(DType::bf16, bits); });
    }

    // A batch is asked for at once. Beyond the last part there are zeros without an access, which are not added.
    template <int batch>
    __device__ void add_parts(Numbers& v, const Buffer& all, uint32_t mine, int first) const {
        Numbers part[batch];
#pragma unroll
        for (int i = 0; i < batch; ++i) {
            const uint32_t from = (first + i) * kPartBytes + mine;
            if constexpr (kApiece == 2)
                part[i] = __builtin_bit_cast(Numbers, all.template load_two<kAllChiplets>(from));
            else part[i] = __builtin_bit_cast(Numbers, all.template load<kAllChiplets>(from));
        }
#pragma unroll
        for (int i = 0; i < batch; ++i) {
            if (first + i < split.parts) v += part[i];
        }
    }
    __device__ Numbers sum_of_parts(const Buffer& all, uint32_t mine) const {
        Numbers v(-0.0f);
        if (split.parts <= 4) {
            add_parts<4>(v, all, mine, 0);
        } else {
            for (int first = 0; first < split.parts; first += 8) add_parts<8>(v, all, mine, first);
        }
        return v;
    }

    // words: of the thread's numbers, as they lie in memory.
    template <class Words>
    __device__ void send(const Words& words, int element_bytes) const {
        if constexpr (To::kSends) {
            constexpr int kWords = sizeof(Words) / 4;
            uint32_t each[kWords];
#pragma unroll
            for (int w = 0; w < kWords; ++w) each[w] = words[w];
            to.send((int64_t(row) * n + column + own) * element_bytes, each);
        }
    }

    __device__ void store(Numbers v) const {
        if (out.dtype == DType::f32) {
            send(__builtin_bit_cast(Bits, v), 4);
            if (!apart) {
                *global<Numbers>(offset(out.data, at * 4)) = v;
                return;
            }
#pragma unroll
            for (int c = 0; c < kApiece; ++c) {
                if (c < left) global<float>(out.data)[at + c] = v[c];
            }
            return;
        }
        using Pairs = uint32_t __attribute__((ext_vector_type(kApiece / 2)));
        Pairs bits;
#pragma unroll
        for (int c = 0; c < kApiece; c += 2) bits[c / 2] = rounded_pair(out.dtype, f32x2{v[c], v[c + 1]});
        send(bits, 2);
        if (!apart) {
            *global<Pairs>(offset(out.data, at * 2)) = bits;
            return;
        }
#pragma unroll
        for (int c = 0; c < kApiece; ++c) {
            if (c < left) global<uint16_t>(out.data)[at + c] = uint16_t(bits[c / 2] >> (c % 2 * 16));
        }
    }
};

}  // namespace
}  // namespace rocm_fp8::gemm::hip
