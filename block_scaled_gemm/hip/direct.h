// The main loop of gfx950's largest tile: loads go to LDS directly, 16 bytes a lane, so that no registers hold stages.
//
//     HBM, L2 --> LDS (two blocks of 128 k) --> fragments --> MFMA --> sums of a block, two subtiles' --> * scale --> sums
//
// A wave holds its rows' fragments of a block, and those of its columns one subtile after the other. A chain is the two
// matrix instructions of a subtile's block; its sums are added two chains later, so that few registers hold them. Of a
// block, in the order of its chains:
//
//     chain 0             the last rows' fragments are read
//     before the third    barrier: all waves have read the rows. The rows of the block after the next are asked for
//     before the last     barrier: all waves have read the columns, and the next block is in LDS. The columns of the
//     column of subtiles  block after the next are asked for; the next block's first fragments are read
//
// Scales are loaded likewise, those of eight blocks at once. Loads that an asm asks for are unknown to the compiler, and
// waited for by an asm.
#pragma once

#include "../../common/hip/lds_direct.h"
#include "tiles.h"

namespace rocm_fp8::block_scaled_gemm::hip {
namespace {

template <int index>
struct DirectShape : TileSizes<kDirectShapes[index], kChunksAFragment> {
    using Sizes = TileSizes<kDirectShapes[index], kChunksAFragment>;
    static constexpr bool by_columns = false;
    static constexpr int region_bytes = 4096;     // a wave's, in the epilogue
    static constexpr int columns_in_region = 64;  // of 16-bit results
    static constexpr int column_blocks = Sizes::columns / kBlock;
    static_assert(Sizes::stage == kBlock && Sizes::sub_m == 2 && Sizes::sub_n >= 2 && Sizes::sub_n % 2 == 0);
    static_assert(Sizes::columns % kBlock == 0 && kBlock % Sizes::wave_columns == 0);
};

// One operand's rows in a tile. A load of a wave covers eight rows of a block, a row's chunks permuted as they lie in
// LDS. Rows beyond the last are the last once more.
template <int count, int threads>
struct DirectLoader {
    static constexpr int kRowsALoad = threads / (kBlock / kChunk);  // of all waves
    static constexpr int kLoads = count / kRowsALoad;
    static_assert(count % kRowsALoad == 0 && kRowsALoad % 16 == 0);
    const uint8_t* next;  // of the block that is loaded next
    uint32_t stride, last;

    __device__ void start(const Operand& from, int64_t row, int64_t all, int64_t block) {
        next = from.data + row * from.row_stride + block * kBlock;
        stride = uint32_t(from.row_stride);
        last = uint32_t(rows_before(all, row, count)) - 1;
    }
    // Load n of kLoads of a block. row: the lane's in load 0; chunk: its bytes' place in it; to: the wave's part of an
    // operand's place in LDS.
    __device__ void load(int n, uint32_t& row, uint32_t chunk, uint32_t to) const {
        to_lds(to + n * threads * kChunk);
        asm volatile("" : "+v"(row));  // offsets are computed anew, not held
        const uint32_t mine = row + n * kRowsALoad, bound = last & 0xFFFF;
        // Of 24 bits at most, both: one instruction.
        load_to_lds<16>(next, (mine < bound ? mine : bound) * (stride & 0xFFFFFF) + chunk);
    }
};

// The scales of a period of blocks, of rows or squares of them: [row][kPeriod] in LDS. Eight neighbouring lanes load
// those of a row. Rows beyond the last, and blocks, are the last once more.
struct DirectScales {
    const uint8_t* first;
    uint32_t row_bytes, block_bytes, last;

    // rows: of which each has scales here; apart: rows of the operand from one to the next.
    __device__ void start(const Scales& s, int64_t row, int64_t all, int rows, int apart, int64_t block) {
        const int64_t at = s.rows == 1 ? row : int64_t(uint64_t(row) / kBlock);
        first = static_cast<const uint8_t*>(s.data) + (at * s.row_stride + block * s.block_stride) * 4;
        row_bytes = uint32_t(s.row_stride) * (s.rows == 1 ? apart : 1) * 4;
        block_bytes = uint32_t(s.block_stride) * 4;
        last = uint32_t(rows_before((all - row + apart - 1) / apart, 0, rows)) - 1;
    }
    // A square's rows share a scale: shift is then 7.
    __device__ void load(uint32_t row, uint32_t shift, uint32_t block, uint32_t blocks, uint32_t to) const {
        to_lds(to);
        const uint32_t of_lane = block + uint32_t(fresh_thread()) % kPeriod;
        const uint32_t of_row = ((row < last ? row : last) >> shift) * row_bytes;
        load_to_lds<4>(first, of_row + (of_lane < blocks ? of_lane : blocks - 1) * block_bytes);
    }
};

template <class S>
class DirectTile {
    using LoadA = DirectLoader<S::rows, S::threads>;
    using LoadB = DirectLoader<S::columns, S::threads>;
    using Fragment = uint32_t __attribute__((ext_vector_type(8)));
    static constexpr int kChains = S::sub_m * S::sub_n;
    static constexpr int kPairs = S::matrix * S::matrix / kWave / 2;  // of a lane's sums of a subtile
    static constexpr int kScaleLoads = S::rows * kPeriod / S::threads;

  public:
    struct Lds {
        alignas(16) char a[2][S::a_bytes];
        alignas(16) char b[2][S::b_bytes];
        float scales[2][S::rows][kPeriod];
        float of_columns[2][kWave / kPeriod][kPeriod];  // of blocks of columns; a load has a wave's lanes
    };
    static_assert(offsetof(Lds, b) == 2 * S::a_bytes && S::waves * S::region_bytes <= S::a_bytes);

    __device__ explicit DirectTile(Lds& lds)
        : lds(lds),
          wave(uniform(threadIdx.x / kWave)),
          first(lds_address(&lds)),
          row(threadIdx.x / 8),
          chunk((threadIdx.x % 8 ^ threadIdx.x / 16 % 8) * kChunk) {
        const int lane = threadIdx.x % kWave;
        const int mine = place<S::stage, S::by_columns>(lane % S::matrix, lane / S::matrix);
        at_a = mine + wave / S::waves_n * S::wave_rows * S::stage;
        at_b = mine + 2 * S::a_bytes + wave % S::waves_n * S::wave_columns * S::stage;
    }

    // Starts to load an item: its first block, and scales.
    __device__ void begin(const WorkItem& item) {
        const Launch& launch = arguments<Launch>();
        const Args& a = launch.args;
        blocks = uint32_t(item.k_end - item.k_begin);
        load_a.start(a.a, first_row<S>(item), a.m, item.k_begin);
        load_b.start(a.b, first_column<S>(item), a.n, item.k_begin);
        scales_a.start(a.scale_a, first_row<S>(item), a.m, S::rows, 1, item.k_begin);
        scales_b.start(a.scale_b, first_column<S>(item), a.n, S::column_blocks, kBlock, item.k_begin);
        // Barrier: all waves have read the last item's blocks.
        lds_barrier();
        const int thread = fresh_thread();
        if (launch.mode && thread < 2 * kWave) (&lds.of_columns[0][0][0])[thread] = 1;
        load_scales(0);
        load_rows(0, 0, LoadA::kLoads);
        load_columns(0, 0, LoadB::kLoads);
    }

    __device__ void multiply() {
        scale = f32x2(0);
#pragma unroll
        for (int i = 0; i < S::sub_m; ++i) {
            block_sums[i] = Sums<S::matrix>(0);
#pragma unroll
            for (int j = 0; j < S::sub_n; ++j) {
#pragma unroll
                for (int p = 0; p < kPairs; ++p) pairs[i][j][p] = f32x2(0);
            }
        }
        // Barrier: the epilogue of the last item has read its part of LDS.
        lds_barrier();
        if (blocks > 1) {
            load_rows(1, 0, LoadA::kLoads);
            load_columns(1, 0, LoadB::kLoads);
            wait_for_loads<LoadA::kLoads + LoadB::kLoads>();
        } else {
            wait_for_loads<0>();
        }
        // Barrier: the first block and its scales are in LDS.
        lds_barrier();
        const uint32_t end = blocks;
        at_a &= ~S::a_bytes;
        at_b &= ~S::b_bytes;
        read_row(0);
        read_column(0);
        for (uint32_t block = 0; block < end; ++block) multiply_block(block, end);
        fold(kChains - 1);
#pragma unroll
        for (int i = 0; i < S::sub_m; ++i) {
#pragma unroll
            for (int j = 0; j < S::sub_n; ++j) {
#pragma unroll
                for (int e = 0; e < 2 * kPairs; ++e) sums[i][j][e] = pairs[i][j][e / 2][e % 2];
            }
        }
    }

    __device__ void finish(const WorkItem& done) {
        // Barrier: all waves have read the last block.
        lds_barrier();
        // The next item's first block is on its way to the other half.
        auto& regions = *reinterpret_cast<char (*)[S::waves][S::region_bytes]>(lds.a[1]);
        const Launch& launch = arguments<Launch>();
        if (launch.split.parts > 1 && !add_parts<S>(sums, done, launch.split, regions)) return;
        finish_tile<S, S::columns_in_region>(sums, launch.args, launch.mode, first_row<S>(done), first_column<S>(done),
                                             regions);
    }

  private:
    __device__ void load_rows(uint32_t half, int n, int end) {
        const uint32_t to = first + half * S::a_bytes + wave * kWave * kChunk;
#pragma unroll
        for (; n < end; ++n) load_a.load(n, row, chunk, to);
        if (end == LoadA::kLoads) load_a.next += kBlock;
    }
    __device__ void load_columns(uint32_t half, int n, int end) {
        const uint32_t to = first + 2 * S::a_bytes + half * S::b_bytes + wave * kWave * kChunk;
#pragma unroll
        for (; n < end; ++n) load_b.load(n, row, chunk, to);
        if (end == LoadB::kLoads) load_b.next += kBlock;
    }
    // Of the period that begins at `block`.
    __device__ void load_scales(uint32_t block) {
        const Launch& launch = arguments<Launch>();
        const uint32_t buffer = block / kPeriod % 2, row = uint32_t(fresh_thread()) / kPeriod;
        const uint32_t shift_a = launch.args.scale_a.rows == 1 ? 0 : 7;
        const uint32_t to_a = first + offsetof(Lds, scales) + buffer * sizeof(lds.scales[0]) + wave * kWave * 4;
#pragma unroll
        for (int n = 0; n < kScaleLoads; ++n) {
            constexpr int kRows = S::threads / kPeriod;
            scales_a.load(row + n * kRows, shift_a, block, blocks, to_a + n * S::threads * 4);
        }
        // Those of channels are the epilogue's.
        if (wave != 0 || launch.mode) return;
        const uint32_t to_b = first + offsetof(Lds, of_columns) + buffer * sizeof(lds.of_columns[0]);
        scales_b.load(row, 0, block, blocks, to_b);
    }
    __device__ void read_scales(uint32_t block) {
        const int lane = threadIdx.x % kWave, buffer = block / kPeriod % 2, in_period = block % kPeriod;
        const auto& from = lds.scales[buffer];
#pragma unroll
        for (int i = 0; i < S::sub_m; ++i) {
            next_scale[i] = from[wave / S::waves_n * S::wave_rows + row_in_wave<S>(lane, i)][in_period];
        }
        of_columns = lds.of_columns[buffer][wave % S::waves_n * S::wave_columns / kBlock][in_period];
    }

    // at: of a lane's first chunk. The exclusive or that permutes chunks leaves their distances.
    __device__ void read(Fragment (&into)[S::steps], int& at, int row) {
        asm volatile("" : "+v"(at));  // the other chunks' places are computed anew, not held
        const auto chunk = [&](int n) {
            return *reinterpret_cast<const u32x4*>(lds.a[0] + (at ^ n * 2 * kChunk) + row * S::matrix * S::stage);
        };
#pragma unroll
        for (int step = 0; step < S::steps; ++step) {
            into[step] = __builtin_shufflevector(chunk(2 * step), chunk(2 * step + 1), 0, 1, 2, 3, 4, 5, 6, 7);
        }
    }
    __device__ void read_row(int i) { read(a[i], at_a, i); }
    __device__ void read_column(int j) { read(b[j % 2], at_b, j); }

    // A chain's first instruction, from zero. The asm keeps the compiler from taking other registers for each chain.
    __device__ static void start_chain(Sums<S::matrix>& sums, Fragment b, Fragment a) {
        static_assert(S::matrix == 32);
        asm volatile("v_mfma_f32_32x32x64_f8f6f4 %0, %1, %2, 0" : "+v"(sums) : "v"(b), "v"(a));
    }
    // Adds the sums of a chain, scaled.
    __device__ void fold(int chain) {
        const int i = chain % S::sub_m, j = chain / S::sub_m;
        before_sums_are_read(block_sums[i]);
#pragma unroll
        for (int p = 0; p < kPairs; ++p) {
            const f32x2 mine{block_sums[i][2 * p], block_sums[i][2 * p + 1]};
            pairs[i][j][p] = __builtin_elementwise_fma(mine, f32x2(scale[i]), pairs[i][j][p]);
            asm volatile("" : "+v"(pairs[i][j][p]));  // here: block_sums are overwritten next
        }
    }

    __device__ void multiply_block(uint32_t block, uint32_t end) {
        const bool more = block + 1 < end, further = block + 2 < end;
        const uint32_t half = block % 2;
        if (block % kPeriod == kPeriod - 1 && more) load_scales(block + 1);
#pragma unroll
        for (int chain = 0; chain < kChains; ++chain) {
            const int j = chain / S::sub_m, i = chain % S::sub_m;
            if (chain == S::sub_m) {
                // Barrier: all waves have read the rows of this block.
                lds_done();
                lds_barrier();
            }
            if (chain == kChains - S::sub_m) {
                if (further && S::sub_n > 2) {
                    wait_for_loads<LoadA::kLoads>();
                } else {
                    wait_for_loads<0>();
                }
                // Barrier: all waves have read the columns of this block, and the next one is in LDS.
                lds_done();
                lds_barrier();
            }
            __builtin_amdgcn_sched_barrier(0);
            start_chain(block_sums[i], b[j % 2][0], a[i][0]);
            __builtin_amdgcn_sched_barrier(0);
            // Reads, and loads of the block after the next.
            if (chain == 0) {
                read_row(1);
                read_scales(block);
            }
            if (i == (j == 0) && j + 1 < S::sub_n) read_column(j + 1);
            if (j == 1 && further) load_rows(half, i * LoadA::kLoads / S::sub_m, (i + 1) * LoadA::kLoads / S::sub_m);
            if (j == S::sub_n - 1) {
                // To the next block's half. The last block reads once more what it has.
                if (i == 0 && more) at_a ^= S::a_bytes, at_b ^= S::b_bytes;
                if (i == 0) read_column(0);
                if (i == 1) read_row(0);
                if (further) load_columns(half, i * LoadB::kLoads / S::sub_m, (i + 1) * LoadB::kLoads / S::sub_m);
            }
            __builtin_amdgcn_sched_barrier(0);
            block_sums[i] = hip::multiply<S::matrix>(b[j % 2][1], a[i][1], block_sums[i]);
            __builtin_amdgcn_sched_barrier(0);
            if (chain == 1) scale[0] = next_scale[0] * of_columns;
            if (chain == 2) scale[1] = next_scale[1] * of_columns;
            fold((chain + kChains - 1) % kChains);
            __builtin_amdgcn_sched_barrier(0);
        }
    }

    static_assert(S::steps == 2);

    Lds& lds;
    const uint32_t wave, first;  // first: the place of lds
    uint32_t row, chunk;         // of a lane's first load of an operand: its row, and the bytes' place in it
    int at_a, at_b;              // of a lane's first chunk in its first row, of the block that is read; bytes in lds
    uint32_t blocks;
    LoadA load_a;
    LoadB load_b;
    DirectScales scales_a, scales_b;
    Fragment a[S::sub_m][S::steps], b[2][S::steps];
    f32x2 pairs[S::sub_m][S::sub_n][kPairs];  // the tile's sums in the main loop: registers need not follow one another
    TileSums<S> sums;                         // and at its end
    Sums<S::matrix> block_sums[S::sub_m];
    f32x2 scale, next_scale;  // of rows of two subtiles
    float of_columns;
};

}  // namespace
}  // namespace rocm_fp8::block_scaled_gemm::hip
