// The rotated numbers of a token, for HIP and CUDA: as a part of mla_append, and by themselves.
//
// Bytes of mla_append_rope: 128 of a token read, 128 (fp8: 64) written, and its slot. Floor: those at the memory rate.
// Angles of fewer rows than tokens stay in L2.
//
//     lane l of a token   words l * kWords ... of the first halves of the pairs, and of the second ones: words of two
//                         numbers, i ... and i + 32 ..., or 2 i and 2 i + 1
//     mla_append_rope     four lanes a token, each with 16 bytes of both halves; kTurns tokens a lane, whose loads are
//                         in flight together
//
// Limit today: docs/journal/mla_decode-hip.md. Nothing has been measured.
#pragma once

#include <type_traits>

#include "../../common/divider.h"
#include "../../common/gpu/overlap.h"
#include "../../common/rows/gpu/eight.h"
#include "../mla_append.h"

namespace rocm_fp8::mla_append {
namespace {

constexpr int kThreads = 256;

// Bytes to any address.
template <class T>
__device__ inline void store_bytewise(void* to, int64_t at, const T& v) {
    uint8_t bytes[sizeof(T)];
    __builtin_memcpy(bytes, &v, sizeof(T));
#pragma unroll
    for (int i = 0; i < int(sizeof(T)); ++i) global<uint8_t>(to)[at + i] = bytes[i];
}

// Where a token goes, or nullptr.
__device__ inline void* place_in(const Args& a, int64_t slot) {
    const int64_t page = slot / a.cache.page_size, row = slot - page * a.cache.page_size;
    if (slot < 0 || page >= a.cache.pages) return nullptr;
    return a.cache.data + page * a.cache.page_stride + row * a.cache.row_stride;
}
__device__ inline void* place_of(const Args& a, int64_t token) { return place_in(a, global<int64_t>(a.slots)[token]); }

// Words of a row, from `first` on.
template <bool aligned, int kWords>
__device__ inline void read_words(uint32_t (&words)[kWords], const void* row, int first) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
        if constexpr (!aligned) {
            const auto* const halves = global<uint16_t>(row) + 2 * (first + i);
            words[i] = uint32_t(halves[0]) | uint32_t(halves[1]) << 16;
        } else if constexpr (kWords % 4 == 0) {
            if (i % 4 != 0) continue;
            const Vector128 four = load_vector(row, VectorIndex(first + i) * 4);
#pragma unroll
            for (int n = 0; n < 4; ++n) words[i + n] = word(four, n);
        } else {
            words[i] = global<uint32_t>(row)[first + i];
        }
    }
}

// kWords words of both halves of a token's pairs; kSharing lanes have all of them.
template <DType type, int kWords, bool aligned>
struct RopePart {
    static constexpr int kSharing = kRope / 4 / kWords;
    using P = Pairs<type>;
    using Words = uint32_t[kWords];
    Words halves[2];                // as they lie
    Words cos[2], sin[2];           // of the first halves, of the second; of float32 not used
    const void *cos_row, *sin_row;  // of float32

    __device__ void load(const Args& a, Divider angles, int64_t token, int lane) {
        const void* const from = offset(a.rope, token * a.rope_stride * 2);
#pragma unroll
        for (int h = 0; h < 2; ++h) read_words<aligned>(halves[h], from, place(a, lane, h));
        if (!a.cos) return;
        // Rows that repeat: tokens are below 2^31 then.
        if (angles.divisor > 1) token -= int64_t(divide(uint32_t(token), angles)) * angles.divisor;
        else if (a.angles < a.tokens) token = 0;
        const bool wide = a.angle_dtype == DType::f32;
        cos_row = offset(a.cos, token * a.cos_stride * (wide ? 4 : 2));
        sin_row = offset(a.sin, token * a.sin_stride * (wide ? 4 : 2));
        if (wide) return;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            read_words<aligned>(cos[h], cos_row, lane * kWords + h * (kRope / 4));
            read_words<aligned>(sin[h], sin_row, lane * kWords + h * (kRope / 4));
        }
    }

    // Waits for what has been loaded, also where it is not stored: else its registers may be loaded again before.
    __device__ void arrive(const Args& a) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
#pragma unroll
            for (int i = 0; i < kWords; ++i) have_computed(halves[h][i]);
        }
        if (!a.cos || a.angle_dtype == DType::f32) return;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
#pragma unroll
            for (int i = 0; i < kWords; ++i) have_computed(cos[h][i]), have_computed(sin[h][i]);
        }
    }

    // Rotated where there are angles, and as the cache asks for it.
    __device__ void store(const Args& a, int lane, void* to) {
        if (a.cos) {
            if (a.interleaved) part_pairs();
            if (a.angle_dtype == DType::f32) rotate_wide(lane);
            else rotate();
            if (a.interleaved) join_pairs();
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int first = place(a, lane, h);
            if (a.cache.format == Format::fp8) put(to, kLatent + first * 2, codes(a, halves[h]));
            else if (a.cache.format == Format::wide) put(to, kLatent * 2 + first * 4, Bytes<4>(halves[h]));
            else put(to, kRopeAt + first * 4, of_mixed(halves[h]));
        }
    }

  private:
    // Of a half's words: two or four bytes for each word.
    template <int kBytes>
    struct Bytes {
        alignas(kBytes* kWords) uint8_t bytes[kBytes * kWords];
        Bytes() = default;
        __device__ explicit Bytes(const Words& words) { __builtin_memcpy(bytes, words, sizeof(bytes)); }
    };

    // The first word of a half, in the token.
    __device__ static int place(const Args& a, int lane, int half) {
        return a.cos && a.interleaved ? (2 * lane + half) * kWords : lane * kWords + half * (kRope / 4);
    }
    // Neighbours (2 i, 2 i + 1) to words of first numbers and words of second ones, and back.
    __device__ void part_pairs() {
        uint32_t lie[2 * kWords];
        __builtin_memcpy(lie, halves, sizeof(lie));
#pragma unroll
        for (int i = 0; i < kWords; ++i) {
            const uint32_t x = lie[2 * i], y = lie[2 * i + 1];
            halves[0][i] = (x & 0xFFFFu) | y << 16, halves[1][i] = x >> 16 | (y & 0xFFFF0000u);
        }
    }
    __device__ void join_pairs() {
        uint32_t lie[2 * kWords];
#pragma unroll
        for (int i = 0; i < kWords; ++i) {
            const uint32_t x = halves[0][i], y = halves[1][i];
            lie[2 * i] = (x & 0xFFFFu) | y << 16, lie[2 * i + 1] = x >> 16 | (y & 0xFFFF0000u);
        }
        __builtin_memcpy(halves, lie, sizeof(lie));
    }
    static constexpr uint32_t kSigns = 0x80008000u;
    __device__ void rotate() {
#pragma unroll
        for (int i = 0; i < kWords; ++i) {
            const uint32_t x = halves[0][i], y = halves[1][i];
            halves[0][i] = P::add(P::mul(x, cos[0][i]), P::mul(y ^ kSigns, sin[0][i]));
            halves[1][i] = P::add(P::mul(y, cos[1][i]), P::mul(x, sin[1][i]));
        }
    }
    __device__ void rotate_wide(int lane) {
        uint32_t c[2][2 * kWords], s[2][2 * kWords];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            read_words<aligned>(c[h], cos_row, lane * 2 * kWords + h * (kRope / 2));
            read_words<aligned>(s[h], sin_row, lane * 2 * kWords + h * (kRope / 2));
        }
#pragma unroll
        for (int i = 0; i < kWords; ++i) {
            const auto two = [&](const uint32_t* of) {
                return f32x2{bits_float(of[2 * i]), bits_float(of[2 * i + 1])};
            };
            const auto sum = [](f32x2 v, f32x2 w) { return f32x2{v.x + w.x, v.y + w.y}; };
            const f32x2 x = P::widen(halves[0][i]), y = P::widen(halves[1][i]), less = P::widen(halves[1][i] ^ kSigns);
            halves[0][i] = P::round_any_nan(sum(x * two(c[0]), less * two(s[0])));
            halves[1][i] = P::round_any_nan(sum(y * two(c[1]), x * two(s[1])));
        }
    }

    __device__ static Bytes<2> codes(const Args& a, const Words& words) {
        const float scale = load_scalar(a.cache.scale);
        const bool fnuz = a.cache.dtype == DType::e4m3fnuz;
        Bytes<2> codes;
#pragma unroll
        for (int i = 0; i < kWords; ++i) {
            const f32x2 two = P::widen(words[i]);
            codes.bytes[2 * i] = quantize_one(two.x, scale, fnuz);
            codes.bytes[2 * i + 1] = quantize_one(two.y, scale, fnuz);
        }
        return codes;
    }
    // bfloat16. Of float16 a number is rounded once more.
    __device__ static Bytes<4> of_mixed(const Words& words) {
        Words rounded;
#pragma unroll
        for (int i = 0; i < kWords; ++i) {
            rounded[i] = type == DType::f16 ? Pairs<DType::bf16>::round_any_nan(P::widen(words[i])) : words[i];
        }
        return Bytes<4>(rounded);
    }
    template <class T>
    __device__ static void put(void* to, int64_t at, const T& v) {
        using Few = std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>;
        using Access =
            std::conditional_t<sizeof(T) == 16, Vector128, std::conditional_t<sizeof(T) == 8, EightBytes, Few>>;
        static_assert(sizeof(T) == sizeof(Access));
        Access whole;
        __builtin_memcpy(&whole, &v, sizeof(T));
        if constexpr (!aligned) store_bytewise(to, at, v);
        else if constexpr (sizeof(T) >= 8) store_at(offset(to, at), whole);
        else *global<Access>(offset(to, at)) = whole;
    }
};

// The tokens of a workgroup of mla_append_rope.
constexpr int kTurns = 4;
template <bool aligned>
constexpr int kRopeWords = aligned ? 4 : 1;
template <bool aligned>
constexpr int kRopeTokens = kTurns * kThreads / (kRope / 4 / kRopeWords<aligned>);

template <DType type, bool aligned>
__global__ __launch_bounds__(kThreads) void mla_append_rope(Args a, Divider angles) {
    using Part = RopePart<type, kRopeWords<aligned>, aligned>;
    constexpr int kTokens = kRopeTokens<aligned>;  // of a turn: a kTurns-th
    const int lane = threadIdx.x % Part::kSharing, own = threadIdx.x / Part::kSharing;
    const int64_t first = int64_t(blockIdx.x) * kTokens + own;
    wait_for_previous_kernel();
    let_next_kernel_start();
    // Behind the last token that again; it is not written twice.
    const auto token = [&](int turn) {
        const int64_t at = first + turn * (kTokens / kTurns);
        return at < a.tokens ? at : a.tokens - 1;
    };
    int64_t slots[kTurns];
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) slots[turn] = global<int64_t>(a.slots)[token(turn)];
    void* to[kTurns];
    bool any = false;
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
        to[turn] = first + turn * (kTokens / kTurns) < a.tokens ? place_in(a, slots[turn]) : nullptr;
        any |= to[turn] != nullptr;
    }
    // Tokens that go nowhere are mostly neighbours. One that has a neighbour that does not is loaded all the same: a
    // branch a turn would keep the loads from being in flight together.
    if (!for_any_lane(any)) return;
    Part parts[kTurns];
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) parts[turn].load(a, angles, token(turn), lane);
    keep_order();  // the loads first
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
        parts[turn].arrive(a);
        if (to[turn]) parts[turn].store(a, lane, to[turn]);
    }
}

}  // namespace
}  // namespace rocm_fp8::mla_append
