// C = A B^T for up to 32 rows: the weights (B) stream from memory into registers, as fragments of matrix instructions.
//
// A workgroup makes all rows of 16 or 32 columns, over all of K or a part of it. Its waves share the blocks of K; each
// multiplies what it loads. No barrier and no LDS lies between a load and its multiplication:
//
//     each wave   B: HBM, A: L2 --> registers (S::depth blocks in flight) --> MFMA --> * scale --> sums
//                 scales --> registers (eight blocks) --> LDS, its own part ------------^
//     workgroup   sums --> LDS --> added in the order of the waves --> split-K --> channels' scales, bias, rounding
//
// Bytes: a step of 128 k of 16 columns are 2 KiB from memory, and 2 KiB from L2 for each 16 rows of A. Two tiles of
// columns share what is loaded of A.
//
// Fragments, sums and order within a block are those of 16 x 16 subtiles in tile.h. A load covers 64 bytes of each of
// 16 rows; the two loads of a block cover whole lines of 128 bytes.
//
// Limit today, by the simulator's clock: memory where K is large; where it is short, latencies one after the other
// (arguments, loads, LDS).
//
// Steps and figures: docs/journal/block_scaled_gemm-hip.md.
#include <type_traits>

#include "../../common/divider.h"
#include "../../common/gemm/hip/launch.h"
#include "../../common/gemm/hip/loaders.h"
#include "../../common/gpu/kernel_at.h"
#include "epilogue.h"
#include "launch.h"

namespace rocm_fp8::block_scaled_gemm::hip {
namespace {

using gemm::Output;

// What each workgroup needs before its first load, as it needs it.
struct Lean {
    const uint8_t *a, *b;
    const float *scale_a, *scale_b;
    uint32_t a_stride, b_stride;
    int m, n;
    uint32_t k;
    // Bytes: to the next row, or block of 128 columns; to the next block of k.
    uint32_t scale_a_row, scale_a_block, scale_b_row, scale_b_block;
    // A wave's part of K: `blocks`, the first `longer` waves of a tile have one more. Divisions are the host's.
    int blocks, longer;
    Divider parts;
};

struct StreamLaunch {
    Lean lean;
    Args args;
    SplitK split;
    bool channels;  // scale_b is a scale a channel: the epilogue's
};

template <int index>
struct Stream {
    static constexpr StreamShape s = kStreamShapes[index];
    static constexpr int rows = s.rows, columns = s.columns, waves = s.waves, depth = s.depth, threads = waves * kWave,
                         sub_m = rows / 16, sub_n = columns / 16, loads = kBlock / 64;
    static constexpr int waves_per_simd = (waves * s.per_unit + 3) / 4;
    // A wave's sums in LDS: rows of so many floats that eight rows' fours lie in different banks.
    static constexpr int pitch = columns + 4;
    static constexpr int fours = rows * columns / 4;
};

// An operand's fragments, of 16 rows each.
template <int subtiles, bool strided>
struct FragmentLoader {
    Buffer buffer{nullptr, 0};
    uint32_t offset[subtiles];

    // Of the rows from `row` on, of `all`. end: the wave's last k, and one.
    __device__ void start(const uint8_t* data, uint32_t stride, int row, int all, uint32_t end) {
        const int rows = all - row < 16 * subtiles ? all - row : 16 * subtiles;
        buffer = Buffer(data + uint64_t(uint32_t(row)) * stride, (rows - 1) * stride + end);
#pragma unroll
        for (int i = 0; i < subtiles; ++i) {
            const int mine = 16 * i + threadIdx.x % 16;
            offset[i] = mine < rows ? mine * stride : kNowhere;
        }
    }
    // k: of the lane's chunk; kNowhere: beyond the end.
    __device__ u32x4 load(int i, uint32_t k, uint32_t) const { return buffer.load(k + offset[i]); }
};
template <int subtiles>
struct FragmentLoader<subtiles, true> {
    const uint8_t* first;
    int64_t row_stride, k_stride, rows;

    __device__ void start(const Operand& from, int64_t row, int64_t all) {
        first = from.data + row * from.row_stride;
        row_stride = from.row_stride;
        k_stride = from.k_stride;
        rows = all - row;
    }
    __device__ u32x4 load(int i, uint32_t k, uint32_t end) const {
        const int mine = 16 * i + threadIdx.x % 16;
        return mine < rows && k < end ? chunk_of_bytes(first + mine * row_stride + k * k_stride, k_stride, end - k)
                                      : u32x4(0);
    }
};

// The scales of kPeriod blocks, float32, of one number of B a block: eight neighbouring lanes have eight blocks of a
// row.
template <int rows>
struct LeanScales {
    static constexpr int kLoads = rows * kPeriod / kWave;
    Buffer a{nullptr, 0}, b{nullptr, 0};
    uint32_t of_row[kLoads], of_block, block_a, block_b, blocks;
    float bits_a[kLoads], bits_b;

    __device__ void start(const Lean& lean, int column, int first, int count) {
        const uint32_t lane = threadIdx.x % kWave;
        a = Buffer(offset(lean.scale_a, int64_t(first) * lean.scale_a_block), kNowhere);
        b = Buffer(
            offset(lean.scale_b, int64_t(column / kBlock) * lean.scale_b_row + int64_t(first) * lean.scale_b_block),
            kNowhere);
        blocks = count;
        block_a = lean.scale_a_block, block_b = lean.scale_b_block;
#pragma unroll
        for (int i = 0; i < kLoads; ++i) {
            const uint32_t row = lane / kPeriod + i * (kWave / kPeriod);
            of_row[i] = int(row) < lean.m ? row * lean.scale_a_row : kNowhere;
        }
    }
    __device__ void request(uint32_t block) {
        const uint32_t mine = block + threadIdx.x % kPeriod;
        const uint32_t at_a = mine < blocks ? mine * block_a : kNowhere,
                       at_b = mine < blocks ? mine * block_b : kNowhere;
#pragma unroll
        for (int i = 0; i < kLoads; ++i) bits_a[i] = bits_float(a.load_element<uint32_t>(at_a + of_row[i], 0));
        bits_b = bits_float(b.load_element<uint32_t>(at_b, 0));
    }
    // [kPeriod][kScalePitch] products.
    __device__ void store(float* lds) const {
        const uint32_t lane = threadIdx.x % kWave;
#pragma unroll
        for (int i = 0; i < kLoads; ++i) {
            lds[lane % kPeriod * kScalePitch<rows> + lane / kPeriod + i * (kWave / kPeriod)] = bits_a[i] * bits_b;
        }
    }
};

// What a wave does of a unit.
template <class S, bool per_column, bool strided>
class Slice {
    static constexpr bool kLean = !per_column && !strided;
    using ScalesA = ScaleLoader<S::rows, kWave, strided>;
    using ScalesB = ScaleLoader<per_column ? S::columns : 1, kWave, strided>;
    static constexpr int kScalesOfA = kPeriod * kScalePitch<S::rows>,
                         kScalesOfB = per_column ? kPeriod * kScalePitch<S::columns> : 0;

  public:
    static constexpr int kSums = S::rows * S::pitch, kScales = kScalesOfA + kScalesOfB;
    // Floats in LDS that a wave has for itself: scales, then sums.
    static constexpr int kRegion = kSums > kScales ? kSums : kScales;

    // Starts to load columns from `column` on, blocks [first, last).
    __device__ Slice(const StreamLaunch& launch, const Lean& lean, float* region, int column, int first, int last)
        : region(region), blocks(uint32_t(last - first)) {
        end = uint32_t(last) * kBlock < lean.k ? uint32_t(last) * kBlock : lean.k;
        my_k = uint32_t(first) * kBlock + threadIdx.x % kWave / 16 * kChunk;
        if constexpr (kLean) {
            scales.start(lean, column, first, blocks);
            scales.request(0);
            __builtin_amdgcn_sched_barrier(0);  // before the fragments: they are waited for first
        } else {
            const Args& a = launch.args;
            channels = launch.channels;
            if (blocks != 0) {
                general.a.start(a.scale_a, 0, a.m, first, last);
                general.b.start(a.scale_b, column, a.n, first, last);
                request_scales(a, 0);
            }
        }
        if constexpr (strided) {
            load_b.start(launch.args.b, column, launch.args.n);
            load_a.start(launch.args.a, 0, launch.args.m);
        } else {
            load_b.start(lean.b, lean.b_stride, column, lean.n, end);
            load_a.start(lean.a, lean.a_stride, 0, lean.m, end);
        }
#pragma unroll
        for (int slot = 0; slot < S::depth; ++slot) request(slot, slot);
    }

    __device__ void multiply() {
#pragma unroll
        for (int i = 0; i < S::sub_m; ++i) {
#pragma unroll
            for (int j = 0; j < S::sub_n; ++j) sums[i][j] = f32x4(0);
        }
        if (blocks == 0) return;
        for (uint32_t block = 0;;) {
#pragma unroll
            for (int slot = 0; slot < S::depth; ++slot) {
                if ((kPeriod % S::depth || slot == 0) && block % kPeriod == 0) change_scales(block);
                multiply(block, slot);
                // Not a break to the loop's condition: the compiler would wait for loads as if the loop went on.
                if (++block == blocks) return;
            }
        }
    }

    // The sums to LDS: [rows][S::pitch].
    __device__ void store() const {
        const int lane = threadIdx.x % kWave;
        __builtin_amdgcn_wave_barrier();
#pragma unroll
        for (int i = 0; i < S::sub_m; ++i) {
#pragma unroll
            for (int j = 0; j < S::sub_n; ++j) {
                *reinterpret_cast<f32x4*>(region + (16 * i + lane % 16) * S::pitch + 16 * j + lane / 16 * 4) =
                    sums[i][j];
            }
        }
    }

  private:
    __device__ void request(uint32_t block, int slot) {
#pragma unroll
        for (int n = 0; n < S::loads; ++n) {
            const uint32_t k = my_k + block * kBlock + n * 64, at = k < end ? k : kNowhere;
#pragma unroll
            for (int j = 0; j < S::sub_n; ++j) b[slot][j][n] = load_b.load(j, at, end);
#pragma unroll
            for (int i = 0; i < S::sub_m; ++i) a[slot][i][n] = load_a.load(i, at, end);
        }
    }

    __device__ void request_scales(const Args& a, uint32_t block) {
        general.a.request(a.scale_a, block);
        if (!channels) general.b.request(a.scale_b, block);
    }

    // A period's scales to LDS; the next ones are asked for. One wave's accesses to LDS are in order.
    __device__ void change_scales(uint32_t block) {
        __builtin_amdgcn_wave_barrier();
        if constexpr (kLean) {
            scales.store(region);
            if (block + kPeriod < blocks) scales.request(block + kPeriod);
        } else {
            const Args& args = arguments<StreamLaunch>().args;
            store_scales<S::rows, kWave>(region, args.scale_a, general.a, [](float v) { return v; });
            // Those of channels are the epilogue's.
            const auto of_column = [&](float v) { return channels ? 1.0f : v; };
            store_scales<S::columns, kWave>(region + kScalesOfA, args.scale_b, general.b, of_column);
            if (block + kPeriod < blocks) request_scales(args, block + kPeriod);
        }
        __builtin_amdgcn_wave_barrier();
    }

    __device__ void multiply(uint32_t block, int slot) {
        const int lane = threadIdx.x % kWave, at = int(block % kPeriod);
        float scale[S::sub_m];
#pragma unroll
        for (int i = 0; i < S::sub_m; ++i) scale[i] = region[at * kScalePitch<S::rows> + 16 * i + lane % 16];
        f32x4 of_block[S::sub_m][S::sub_n];
#pragma unroll
        for (int n = 0; n < instructions_on(S::loads); ++n) {
#pragma unroll
            for (int i = 0; i < S::sub_m; ++i) {
#pragma unroll
                for (int j = 0; j < S::sub_n; ++j) {
                    of_block[i][j] = hip::multiply<16>(b[slot][j], a[slot][i], n ? of_block[i][j] : f32x4(0), n);
                }
            }
        }
        request(block + S::depth, slot);
#pragma unroll
        for (int i = 0; i < S::sub_m; ++i) {
#pragma unroll
            for (int j = 0; j < S::sub_n; ++j) {
                f32x4 factor(scale[i]);
                if constexpr (per_column) {
                    factor *= *reinterpret_cast<const f32x4*>(region + kScalesOfA + at * kScalePitch<S::columns> +
                                                              16 * j + lane / 16 * 4);
                }
                sums[i][j] = __builtin_elementwise_fma(of_block[i][j], factor, sums[i][j]);
            }
        }
    }

    struct General {
        ScalesA a;
        ScalesB b;
    };
    struct None {};

    float* const region;
    const uint32_t blocks;
    bool channels;
    uint32_t my_k, end;  // k of the lane's first chunk; the end of the wave's
    FragmentLoader<S::sub_m, strided> load_a;
    FragmentLoader<S::sub_n, strided> load_b;
    u32x4 a[S::depth][S::sub_m][S::loads], b[S::depth][S::sub_n][S::loads];
    std::conditional_t<kLean, LeanScales<S::rows>, None> scales;
    std::conditional_t<kLean, None, General> general;
    f32x4 sums[S::sub_m][S::sub_n];
};

// What the end needs of the arguments.
struct Finish {
    Output out;
    const void* bias;
    int m, n, parts;
};

// Four columns of a row of the result.
template <bool lean>
__device__ inline void finish_four(const StreamLaunch& launch, const Finish& finish, int m, int n, f32x4 v) {
    const Output& out = finish.out;
    if ((!lean && launch.channels) || finish.bias) {
        const Args& a = launch.args;
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const int at = n + e < finish.n ? n + e : finish.n - 1;
            if (!lean && launch.channels) {
                v[e] *= scale_of_bits(a.scale_b.dtype == DType::e8m0, scale_bits(a.scale_b, at, 0));
            }
            if (finish.bias) v[e] += gemm::bias_at(a.bias, at);
        }
    }
    const int64_t at = m * out.row_stride + n;
    const bool whole = out.row_stride % 4 == 0 && finish.n % 4 == 0 && reinterpret_cast<uintptr_t>(out.data) % 16 == 0;
    if (out.dtype == DType::f32) {
        if (whole) {
            *global<f32x4>(offset(out.data, at * 4)) = v;
            return;
        }
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            if (n + e < finish.n) global<float>(out.data)[at + e] = v[e];
        }
        return;
    }
    const auto rounded = [&](f32x2 pair) { return gemm::rounded_pair(out.dtype, pair); };
    const u32x2 bits{rounded(f32x2{v.x, v.y}), rounded(f32x2{v.z, v.w})};
    if (whole) {
        store_at(offset(out.data, at * 2), bits);
        return;
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
        if (n + e < finish.n) global<uint16_t>(out.data)[at + e] = uint16_t(bits[e / 2] >> (e % 2 * 16));
    }
}

// Adds the waves' sums, and the parts of K. regions: [waves][kRegion] floats.
template <class S, int kRegion, bool lean>
__device__ inline void reduce_and_finish(const StreamLaunch& launch, const Finish& finish, const float* regions,
                                         int waves, int tile, int part) {
    const int column = tile * S::columns, parts = finish.parts;
    const auto each = [&](auto body) {
        for (int e = threadIdx.x; e < S::fours; e += waves * kWave) {
            const int row = e / (S::columns / 4), own = e % (S::columns / 4) * 4;
            if (row < finish.m && column + own < finish.n) body(e, row, own);
        }
    };
    const auto of_workgroup = [&](int row, int own) {
        const float* from = regions + row * S::pitch + own;
        f32x4 v = *reinterpret_cast<const f32x4*>(from);
#pragma unroll
        for (int wave = 1; wave < waves; ++wave) v += *reinterpret_cast<const f32x4*>(from + wave * kRegion);
        return v;
    };
    if (parts == 1) {
        each([&](int, int row, int own) {
            finish_four<lean>(launch, finish, row, column + own, of_workgroup(row, own));
        });
        return;
    }
    const SplitK& split = launch.split;
    constexpr uint32_t kPartBytes = S::fours * 16;
    const Buffer all(reinterpret_cast<char*>(split.partial) + int64_t(tile) * parts * kPartBytes,
                     uint32_t(parts) * kPartBytes);
    each([&](int e, int row, int own) {
        all.template store<kAllChiplets>(part * kPartBytes + e * 16, __builtin_bit_cast(u32x4, of_workgroup(row, own)));
    });
    if (!arrives_last(split.arrived + tile, parts)) return;
    each([&](int e, int row, int own) {
        f32x4 v(-0.0f);
        // A batch is asked for at once. Beyond the last part there are zeros without an access, which are not added.
        constexpr int kBatch = 8;
        for (int first = 0; first < parts; first += kBatch) {
            f32x4 batch[kBatch];
#pragma unroll
            for (int i = 0; i < kBatch; ++i) {
                batch[i] = __builtin_bit_cast(
                    f32x4, all.template load<kAllChiplets>((first + i) * kPartBytes + uint32_t(e) * 16));
            }
#pragma unroll
            for (int i = 0; i < kBatch; ++i) {
                if (first + i < parts) v += batch[i];
            }
        }
        finish_four<lean>(launch, finish, row, column + own, v);
    });
    reset(split.arrived + tile);
}

// General forms have the most waves that they may have; fast ones are exact.
template <int index, bool per_column, bool strided>
__global__ __launch_bounds__(Stream<index>::threads, Stream<index>::waves_per_simd) void block_scaled_gemm_stream(
    StreamLaunch) {
    using S = Stream<index>;
    using T = Slice<S, per_column, strided>;
    __shared__ alignas(16) float regions[S::waves][T::kRegion];
    const StreamLaunch& launch = arguments<StreamLaunch>();
    const Lean lean = launch.lean;  // all at once: one latency
    const int wave = uniform(threadIdx.x / kWave), waves = per_column ? int(blockDim.x) / kWave : S::waves;
    const int tile = int(divide(blockIdx.x, lean.parts)), part = blockIdx.x - tile * int(lean.parts.divisor);
    const int place = part * waves + wave, longer = place < lean.longer ? place : lean.longer;
    const int first = place * lean.blocks + longer, end = first + lean.blocks + (place < lean.longer);
    T slice(launch, lean, regions[wave], tile * S::columns, first, end);
    // What the end needs, before the loads are waited for.
    Output out = launch.args.out;
    int parts = launch.split.parts;
    const void* bias = launch.args.bias.data;
    have_now(out.data), have_now(out.row_stride), have_now(out.dtype), have_now(parts), have_now(bias);
    slice.multiply();
    slice.store();
    // Closes: the sums of all waves are in LDS.
    lds_barrier();
    reduce_and_finish<S, T::kRegion, !per_column>(launch, {out, bias, lean.m, lean.n, parts}, regions[0], waves, tile,
                                                  part);
}

}  // namespace

Status launch_stream(const Args& args, Access access, const Config& config, bool channels, const Executor& on) {
    using Kernel = void (*)(StreamLaunch);
    constexpr int kFew = kFallbackStream16, kMany = kFallbackStream32;
    const StreamShape& shape = kStreamShapes[config.shape - kTileShapeCount];
    const FormSize size = launched_size(config.shape, access != Access::fast);
    const bool few = shape.rows == 16;
    const auto kernel = [&]() -> Kernel {
        if (access == Access::strided) {
            return few ? block_scaled_gemm_stream<kFew, true, true> : block_scaled_gemm_stream<kMany, true, true>;
        }
        if (access == Access::per_column) {
            return few ? block_scaled_gemm_stream<kFew, true, false> : block_scaled_gemm_stream<kMany, true, false>;
        }
        return kernel_at<kStreamShapeCount>(config.shape - kTileShapeCount, []<int i>() -> Kernel {
            return block_scaled_gemm_stream<i, false, false>;
        });
    }();
    const int64_t tiles = tiles_of(size, args.m, args.n), items = tiles * config.parts;
    if (items * size.waves * kWave > kMaxThreads) return {"b has more rows than one launch takes"};
    const auto [split, status] = split_for(config.parts, tiles, int64_t(size.rows) * size.columns * 4, on);
    if (!status.ok()) return status;
    const int slices = config.parts * shape.waves, blocks = int(blocks_of(args.k));
    const auto bytes = [](int64_t stride) { return uint32_t(stride * 4); };
    const Lean lean{args.a.data,
                    args.b.data,
                    static_cast<const float*>(args.scale_a.data),
                    static_cast<const float*>(args.scale_b.data),
                    uint32_t(args.a.row_stride),
                    uint32_t(args.b.row_stride),
                    int(args.m),
                    int(args.n),
                    uint32_t(args.k),
                    args.scale_a.rows == 1 ? bytes(args.scale_a.row_stride) : 0,
                    bytes(args.scale_a.block_stride),
                    args.scale_b.rows == 1 ? 0 : bytes(args.scale_b.row_stride),
                    bytes(args.scale_b.block_stride),
                    blocks / slices,
                    blocks % slices,
                    divider_by(uint32_t(config.parts))};
    return launch_kernel(kernel, items, shape.waves * kWave, on, StreamLaunch{lean, args, split, channels});
}

}  // namespace rocm_fp8::block_scaled_gemm::hip
