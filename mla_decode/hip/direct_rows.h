// A wave's rows against a tile of direct_tile.h, on gfx950: 16 or 32 of them, with the registers of rows.h and
// wide_rows.h. Both products are made by instructions of twice the k: 32 tokens at once, or 16.
//
// Values are read turned, by ds_read_b64_tr_b16: of 16 lanes each has an address of 8 bytes; lane i gets number i % 4 of
// what lanes i / 4, i / 4 + 4, + 8 and + 12 have there. These four have four tokens, so lane i gets a column of them.
//
// Columns of the sums, m = 4 b + n: of 16 rows sums[b][n][r] is column 16 m + 4 g + r, of 32 rows column
// 32 m + 8 (r / 4) + 4 h + r % 4.
#pragma once

#include "direct_tile.h"
#include "wide_rows.h"

namespace rocm_fp8::mla_decode::hip {
namespace {

#if defined(__gfx950__)

__device__ inline u32x2 turned_of_lds(uint32_t address) {
    using Four = short __attribute__((ext_vector_type(4)));
    auto* const from = (__attribute__((address_space(3))) Four*)(uintptr_t(address));
    return __builtin_bit_cast(u32x2, __builtin_amdgcn_ds_read_tr16_b64_v4i16(from));
}

// keys, values: steps whose reads of LDS are ahead of the multiplications.
template <DType type, int keys_ahead, int values_ahead>
class DirectRows : public Rows<type, keys_ahead, values_ahead> {
    using Base = Rows<type, keys_ahead, values_ahead>;
    using Base::q, Base::sums, Base::seen, Base::scale;
    uint32_t latent_at, rope_at, value_at;  // in a tile: of a lane's first chunks of keys, and of values
    static constexpr int kHalf = 16, kLatentSteps = kLatent / 32, kColumns = kLatent / 16;

  public:
    using Base::rescale, Base::softmax;

    __device__ void find_places() {
        const uint32_t lane = fresh_lane(), j = lane % 16, g = lane / 16, token = 4 * g + j / 4;
        latent_at = j * kLatentBytes + (g ^ turn_of(j)) * kChunk;
        rope_at = kRopeInTile + j * kRopeBytes + (g ^ turn_of_rope(j)) * kChunk;
        value_at = token * kLatentBytes + (j % 4 / 2 ^ turn_of(token)) * kChunk + j % 2 * 8;
        have_computed(latent_at), have_computed(rope_at), have_computed(value_at);
    }
    // lds: the tile's address. While the wave's matrix unit is busy, a little of all else:
    //
    //     during.keys(i), i < kKeySteps       behind an instruction; of 16 rows two a step
    //     during.between()                    in the middle, ahead of the exponentials
    //     during.values(i), i < kValueSteps
    static constexpr int kKeySteps = Base::kSteps, kValueSteps = kColumns;
    template <class During>
    __device__ void attend(uint32_t lds, int32_t tile, const During& during) {
        f32x4 scores[2];
        keys_by_queries(scores, lds, during);
        const uint32_t first = lds + value_at;
        // Step i: columns 16 m of i = 4 x + y, m = x + 8 y, so that one exclusive or serves four.
        const auto read = [&](int i) {
            const uint32_t at = (first ^ i / 4 * 2 * kChunk) + i % 4 * 256;
            return joined(turned_of_lds(at), turned_of_lds(at + kHalf * kLatentBytes));
        };
        u32x4 values[values_ahead];
#pragma unroll
        for (int i = 0; i < values_ahead; ++i) values[i] = read(i);
        const u32x4 exponentials = exponentials_of(scores, tile, during);
#pragma unroll
        for (int i = 0; i < kColumns; ++i) {
            const int m = i / 4 + i % 4 * 8;
            f32x4& sum = sums[m / 4][m % 4];
            u32x4& now = values[i % values_ahead];
            sum = multiply_chunks<16, type>(now, exponentials, sum);
            if (i + values_ahead < kColumns) now = read(i + values_ahead);
            made_first(sum);
            during.values(i);
            __builtin_amdgcn_sched_barrier(0);
        }
    }

    // 64 columns of block b, as Rows has it.
    __device__ void put(char* region, int b, float factor) const {
        const uint32_t lane = fresh_lane(), j = lane % 16, g = lane / 16;
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            *reinterpret_cast<f32x4*>(region + j * 256 + ((4 * n + g) ^ j) * 16) = sums[b][n] * factor;
        }
    }

  private:
    template <class During>
    __device__ void keys_by_queries(f32x4 (&scores)[2], uint32_t lds, const During& during) {
        const uint32_t latent = lds + latent_at, rope = lds + rope_at;
        // Step i: chunks 4 c + g, c = x + 4 y of i = 4 x + y; the last two are of the rotated numbers.
        const auto chunk_of = [](int i) { return i < kLatentSteps ? i / 4 + i % 4 * 4 : i; };
        const auto read = [&](int i, int half) {
            if (i >= kLatentSteps)
                return of_lds<u32x4>((rope ^ i % 2 * 4 * kChunk) + uint32_t(half) * kHalf * kRopeBytes);
            return of_lds<u32x4>((latent ^ i / 4 * 4 * kChunk) + i % 4 * 256 + uint32_t(half) * kHalf * kLatentBytes);
        };
        u32x4 keys[keys_ahead][2];
#pragma unroll
        for (int i = 0; i < keys_ahead; ++i) keys[i][0] = read(i, 0), keys[i][1] = read(i, 1);
        scores[0] = scores[1] = f32x4(0);
#pragma unroll
        for (int i = 0; i < Base::kSteps; ++i) {
            u32x4(&now)[2] = keys[i % keys_ahead];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                scores[half] = multiply_chunks<16, type>(now[half], q[chunk_of(i)], scores[half]);
                if (i + keys_ahead < Base::kSteps) now[half] = read(i + keys_ahead, half);
                made_first(scores[half]);
                __builtin_amdgcn_sched_barrier(0);
            }
            during.keys(i);
        }
    }
    template <class During>
    __device__ u32x4 exponentials_of(f32x4 (&scores)[2], int32_t tile, const During& during) {
        float by = scale, largest = -__builtin_inff();
        have_computed(by);
        const int32_t left = seen - tile * kDirectTile - int32_t(fresh_lane() / 16 * 4);  // of this lane's tokens
        const bool some = any_lane(left < kHalf + 4);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            f32x4& four = scores[half];
            four *= by;
            if (some) {
#pragma unroll
                for (int i = 0; i < 4; ++i) four[i] = i + half * kHalf < left ? four[i] : -__builtin_inff();
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) largest = __builtin_fmaxf(largest, four[i]);
        }
        softmax.refer_to(largest, [&](float factor) { rescale(factor); });
        during.between();
        u32x2 rounded[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            f32x4 p;
#pragma unroll
            for (int i = 0; i < 4; ++i) p[i] = softmax.exponential(scores[half][i]);
            rounded[half] = softmax.rounded(p);
        }
        return joined(rounded[0], rounded[1]);
    }
};

// As multiply_wide and multiply_chunk, of twice the k. No wait state is in here: what comes of vector instructions is
// ahead of settle_operand(). What stands in the memory's order stays so, as with made_first.
#define ROCM_FP8_WIDE "v_mfma_f32_32x32x16_"
template <DType type>
__device__ inline void multiply_values(f32x16& sums, u32x4 left, u32x4 right) {
    if constexpr (type == DType::f16)
        asm volatile(ROCM_FP8_WIDE "f16 %0, %1, %2, %0" : "+a"(sums) : "v"(left), "v"(right) : "memory");
    else asm volatile(ROCM_FP8_WIDE "bf16 %0, %1, %2, %0" : "+a"(sums) : "v"(left), "v"(right) : "memory");
}
template <DType type>
__device__ inline void multiply_keys(f32x16& scores, u32x4 keys, u32x4 queries, bool first) {
    if constexpr (type == DType::f16) {
        if (first) asm volatile(ROCM_FP8_WIDE "f16 %0, %1, %2, 0" : "=&v"(scores) : "v"(keys), "v"(queries) : "memory");
        else asm volatile(ROCM_FP8_WIDE "f16 %0, %1, %2, %0" : "+v"(scores) : "v"(keys), "v"(queries) : "memory");
    } else {
        if (first)
            asm volatile(ROCM_FP8_WIDE "bf16 %0, %1, %2, 0" : "=&v"(scores) : "v"(keys), "v"(queries) : "memory");
        else asm volatile(ROCM_FP8_WIDE "bf16 %0, %1, %2, %0" : "+v"(scores) : "v"(keys), "v"(queries) : "memory");
    }
}
#undef ROCM_FP8_WIDE
// Behind the last one of keys and eight other instructions scores may be read.
__device__ inline void settle_scores() {
    __builtin_amdgcn_sched_barrier(0);
    asm volatile("s_nop 3" ::: "memory");
    __builtin_amdgcn_sched_barrier(0);
}
// Of vector instructions to a matrix instruction.
__device__ inline void settle_operand(u32x4& v) { asm volatile("s_nop 1" : "+v"(v)::"memory"); }

template <DType type, int keys_ahead, int values_ahead>
class DirectWideRows : public WideRows<type, keys_ahead> {
    using Base = WideRows<type, keys_ahead>;
    using Base::q, Base::sums;
    uint32_t latent_at, rope_at, value_at;  // as of 16 rows
    static constexpr int kLatentSteps = kLatent / 16, kColumns = kLatent / 32, kSteps = 2 * kColumns;

  public:
    using Base::softmax;

    __device__ void find_places() {
        const uint32_t lane = fresh_lane(), j = lane % 32, h = lane / 32, s = lane % 16, token = 4 * h + s / 4;
        latent_at = j * kLatentBytes + (h ^ turn_of(j)) * kChunk;
        rope_at = kRopeInTile + j * kRopeBytes + (h ^ turn_of_rope(j)) * kChunk;
        // Of values: token 4 h + s / 4 of eight, columns 16 (j / 16) + 4 (s % 4) of 32.
        value_at = token * kLatentBytes + (j / 16 * 2 + s % 4 / 2 ^ turn_of(token)) * kChunk + s % 2 * 8;
        have_computed(latent_at), have_computed(rope_at), have_computed(value_at);
    }
    // As of 16 rows.
    using Base::kKeySteps;
    static constexpr int kValueSteps = kSteps;
    template <class During>
    __device__ void attend(uint32_t lds, int32_t tile, const During& during) {
        f32x16 scores = keys_by_queries(lds, during);
        const uint32_t first = lds + value_at;
        // Step i of 16 tokens: columns 32 m of i = 4 x + y, m = x + 4 y. Eight tokens further turn by 3 more.
        const auto read = [&](int step) {
            const int i = step % kColumns;
            const uint32_t at = first ^ i / 4 * 4 * kChunk;
            const uint32_t more = i % 4 * 256 + step / kColumns * 16 * kLatentBytes;
            return joined(turned_of_lds(at + more), turned_of_lds((at ^ 3 * kChunk) + more + 8 * kLatentBytes));
        };
        u32x4 values[values_ahead];
#pragma unroll
        for (int i = 0; i < values_ahead; ++i) values[i] = read(i);
        settle_scores();
        f32x4 p[2];
        this->refer(scores, tile);
        during.between();
#pragma unroll
        for (int i = 0; i < 4; ++i) p[0][i] = softmax.exponential(scores[i]);
#pragma unroll
        for (int i = 0; i < 4; ++i) p[1][i] = softmax.exponential(scores[4 + i]);
        u32x4 exponentials = joined(softmax.rounded(p[0]), softmax.rounded(p[1]));
        settle_operand(exponentials);
        __builtin_amdgcn_sched_barrier(0);
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
            const int i = step % kColumns, m = i / 4 + i % 4 * 4;
            f32x16& sum = sums[m / 4][m % 4];
            u32x4& now = values[step % values_ahead];
            multiply_values<type>(sum, now, exponentials);
            __builtin_amdgcn_sched_barrier(0);
            if (step + values_ahead < kSteps) now = read(step + values_ahead);
            // The next 16 tokens' exponentials, while these are multiplied.
            if (step < 8) p[step / 4][step % 4] = softmax.exponential(scores[8 + step]);
            during.values(step);
            if (step + 1 == kColumns) {
                exponentials = joined(softmax.rounded(p[0]), softmax.rounded(p[1]));
                settle_operand(exponentials);
            }
            __builtin_amdgcn_sched_barrier(0);
        }
    }

    // 64 columns of block b, as WideRows has it.
    __device__ void put(char* region, int b, float factor) const {
        const uint32_t lane = fresh_lane(), j = lane % 32, h = lane / 32;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int m = 2 * b + i / 4, r = i % 4 * 4;
            const f32x16& of = sums[m / 4][m % 4];
            const f32x4 four{of[r], of[r + 1], of[r + 2], of[r + 3]};
            *reinterpret_cast<f32x4*>(region + j * 256 + ((uint32_t(2 * i) + h) ^ j % 16) * 16) = four * factor;
        }
    }

  private:
    template <class During>
    __device__ f32x16 keys_by_queries(uint32_t lds, const During& during) const {
        const uint32_t latent = lds + latent_at, rope = lds + rope_at;
        // Step i: chunks 2 c + h, c = x + 8 y of i = 4 x + y; the last four are of the rotated numbers.
        const auto chunk_of = [](int i) { return i < kLatentSteps ? i / 4 + i % 4 * 8 : i; };
        const auto read = [&](int i) {
            if (i >= kLatentSteps) return of_lds<u32x4>(rope ^ i % 4 * 2 * kChunk);
            return of_lds<u32x4>((latent ^ i / 4 * 2 * kChunk) + i % 4 * 256);
        };
        u32x4 keys[keys_ahead];
#pragma unroll
        for (int i = 0; i < keys_ahead; ++i) keys[i] = read(i);
        f32x16 scores;
#pragma unroll
        for (int i = 0; i < Base::kKeySteps; ++i) {
            u32x4& now = keys[i % keys_ahead];
            multiply_keys<type>(scores, now, q[chunk_of(i)], i == 0);
            __builtin_amdgcn_sched_barrier(0);
            if (i + keys_ahead < Base::kKeySteps) now = read(i + keys_ahead);
            during.keys(i);
            __builtin_amdgcn_sched_barrier(0);
        }
        return scores;
    }
};

#endif

}  // namespace
}  // namespace rocm_fp8::mla_decode::hip
