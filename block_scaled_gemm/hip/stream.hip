// C = A B^T for up to 32 rows: common/gemm/hip/stream.h with scales for blocks of 128 k.
//
// A wave has consecutive blocks. Their scales come eight blocks at a time, past the fragments:
//
//     fragments --> registers ------------------------------------> MFMA --> a block's sums --> * scale --> sums
//     scales    --> registers (eight blocks) --> LDS, the wave's own ------------------------------^
//
// Limit today, by the simulator's clock: memory where K is large; where it is short, latencies one after the other
// (arguments, loads, LDS).
//
// Steps and figures: docs/journal/block_scaled_gemm-hip.md.
#include "../../common/gemm/hip/launch.h"
#include "../../common/gemm/hip/scaled_stream.h"
#include "../../common/gemm/hip/stream_end.h"
#include "../../common/gpu/kernel_at.h"
#include "launch.h"

namespace rocm_fp8::block_scaled_gemm::hip {
namespace {

using namespace gemm::hip;

constexpr int kCached = kPlainAccess;
// Loads byte by byte leave no registers for more blocks.
template <int index, bool strided = false>
using Form = Stream<kStreamShapes[index], strided ? 32 / kStreamShapes[index].rows : kStreamShapes[index].depth>;
// General forms are launched with the waves of the fast ones: so many threads at least.
constexpr int kLeastThreads = 2 * kWave;

// float32 scales, of one number of B a block. Bytes: to the next row, or block of 128 columns; to the next block of k.
struct LeanScaleWork {
    const float *a, *b;
    uint32_t a_row, a_block, b_row, b_block;
};
struct StreamArgs {
    LeanScaleWork scales;
    Args args;
    SplitK split;
    bool channels;  // scale_b is a scale a channel: the end's
};
// The kernel's arguments as they lie in memory.
struct StreamLaunch {
    StreamWork work;
    StreamArgs rest;
};

// The scales of kPeriod blocks, float32, of one number of B a block: eight neighbouring lanes have eight blocks of a
// row.
template <int rows>
struct LeanScales {
    static constexpr int kLoads = rows * kPeriod / kWave;
    Buffer a{nullptr, 0}, b{nullptr, 0};
    uint32_t of_row[kLoads], block_a, block_b, blocks;
    float bits_a[kLoads], bits_b;

    __device__ void start(const LeanScaleWork& from, int rows_left, int column, int first, int count) {
        const uint32_t lane = threadIdx.x % kWave;
        a = Buffer(offset(from.a, int64_t(first) * from.a_block), kNowhere);
        b = Buffer(offset(from.b, int64_t(column / kBlock) * from.b_row + int64_t(first) * from.b_block), kNowhere);
        blocks = count;
        block_a = from.a_block, block_b = from.b_block;
#pragma unroll
        for (int i = 0; i < kLoads; ++i) {
            const uint32_t row = lane / kPeriod + i * (kWave / kPeriod);
            of_row[i] = int(row) < rows_left ? row * from.a_row : kNowhere;
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

// A wave's scales, and where they lie behind their loads.
template <class S, bool of_columns, bool strided>
class StreamScales {
    static constexpr bool kLean = !of_columns && !strided;
    struct General {
        ScaleLoader<S::rows, kWave, strided> a;
        ScaleLoader<of_columns ? S::columns : 1, kWave, strided> b;
    };
    struct None {};

    bool channels;
    std::conditional_t<kLean, LeanScales<S::rows>, None> scales;
    std::conditional_t<kLean, None, General> general;

  public:
    static constexpr bool per_column = of_columns;

    __device__ void begin(int column, int first, int blocks) {
        const StreamLaunch& launch = arguments<StreamLaunch>();
        if constexpr (kLean) {
            scales.start(launch.rest.scales, launch.work.m, column, first, blocks);
            scales.request(0);
            __builtin_amdgcn_sched_barrier(0);  // before the next fragments: they are waited for first
        } else {
            const Args& a = launch.rest.args;
            channels = launch.rest.channels;
            if (blocks != 0) {
                general.a.start(a.scale_a, 0, a.m, first, first + blocks);
                general.b.start(a.scale_b, column, a.n, first, first + blocks);
                request(0);
            }
        }
    }
    __device__ void request(uint32_t block) {
        if constexpr (kLean) {
            scales.request(block);
        } else {
            const Args& a = arguments<StreamLaunch>().rest.args;
            general.a.request(a.scale_a, block);
            if (!channels) general.b.request(a.scale_b, block);
        }
    }
    __device__ void store(float* region) const {
        if constexpr (kLean) {
            scales.store(region);
        } else {
            const Args& args = arguments<StreamLaunch>().rest.args;
            store_scales<S::rows, kWave>(region, args.scale_a, general.a, [](float v) { return v; });
            // Those of channels are the end's.
            const auto of_column = [&](float v) { return channels ? 1.0f : v; };
            store_scales<S::columns, kWave>(region + kPeriod * kScalePitch<S::rows>, args.scale_b, general.b,
                                            of_column);
        }
    }
};

// General forms have the most waves that they may have; fast ones are exact.
template <int index, bool per_column, bool strided>
__global__ __launch_bounds__(Form<index>::threads, Form<index>::waves_per_simd) void block_scaled_gemm_stream(
    const uint8_t* a, const uint8_t* b, uint32_t a_stride, uint32_t b_stride, int m, int n, uint32_t k, int blocks,
    int longer, uint32_t divisor, uint32_t factor, uint32_t shift, StreamArgs) {
    using S = Form<index, strided>;
    using Sums = ScaledSums<S, StreamScales<S, per_column, strided>>;
    using A = std::conditional_t<strided, AnyFragments<S::rows>, AlignedFragments<S::rows, kCached>>;
    using B = std::conditional_t<strided, AnyFragments<S::columns>, AlignedFragments<S::columns, kNonTemporal>>;
    __shared__ alignas(16) float regions[S::waves][Sums::kRegion];
    const StreamWork work{a, b, a_stride, b_stride, m, n, k, blocks, longer, {divisor, factor, shift}};
    const StreamArgs& rest = arguments<StreamLaunch>().rest;
    const int wave = uniform(threadIdx.x / kWave), waves = per_column ? int(blockDim.x) / kWave : S::waves;
    const int tile = int(divide(blockIdx.x, work.parts)), part = blockIdx.x - tile * int(work.parts.divisor);
    const int share = part * waves + wave, first = work.begin(share), count = work.begin(share + 1) - first;
    const int column = tile * S::columns;
    StreamSlice<S, kBlock, A, B, Sums> slice;
    slice.sums.start(regions[wave], column, first, count);
    if constexpr (strided) {
        slice.load_b.start(rest.args.b, column, rest.args.n);
        slice.load_a.start(rest.args.a, 0, rest.args.m);
    } else {
        slice.load_b.start(b, b_stride, column, n);
        slice.load_a.start(a, a_stride, 0, m);
    }
    slice.start(uint32_t(first) * kBlock, count, k);
    using Factors = ChannelFactors<per_column, true>;
    StreamEnd<S, Factors, per_column ? kLeastThreads : S::threads> ending(
        {rest.args.scale_b, rest.channels}, rest.args.bias, rest.args.out, rest.split, m, n, column, tile, part);
    ending.finish(slice, regions, wave, waves);
}

}  // namespace

Status launch_stream(const Args& args, Access access, const Config& config, bool channels, const Executor& on) {
    using Kernel = decltype(&block_scaled_gemm_stream<0, false, false>);
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
    const int64_t tiles = gemm::tiles_of(size, {1, args.m, args.n, args.k}), items = tiles * config.parts;
    if (items * size.waves * kWave > kMaxThreads) return {"b has more rows than one launch takes"};
    const auto [split, status] = split_for(config.parts, tiles, int64_t(size.rows) * size.columns * 4, on);
    if (!status.ok()) return status;
    const int slices = config.parts * shape.waves, blocks = int(blocks_of(args.k));
    const auto bytes = [](int64_t stride) { return uint32_t(stride * 4); };
    const LeanScaleWork scales{static_cast<const float*>(args.scale_a.data),
                               static_cast<const float*>(args.scale_b.data),
                               args.scale_a.rows == 1 ? bytes(args.scale_a.row_stride) : 0,
                               bytes(args.scale_a.block_stride),
                               args.scale_b.rows == 1 ? 0 : bytes(args.scale_b.row_stride),
                               bytes(args.scale_b.block_stride)};
    const Divider parts = divider_by(uint32_t(config.parts));
    return launch_kernel(kernel, items, shape.waves * kWave, on, args.a.data, args.b.data, uint32_t(args.a.row_stride),
                         uint32_t(args.b.row_stride), int(args.m), int(args.n), uint32_t(args.k), blocks / slices,
                         blocks % slices, parts.divisor, parts.factor, parts.shift,
                         StreamArgs{scales, args, split, channels});
}

}  // namespace rocm_fp8::block_scaled_gemm::hip
