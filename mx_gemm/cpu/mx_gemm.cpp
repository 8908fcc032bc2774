// MX weights on the CPU: one group after the other, each on all threads.
#include <atomic>
#include <cstring>

#include "../../common/cpu/features.h"
#include "../../common/cpu/simd_portable.h"
#include "../../common/gemm/cpu/gemm.h"
#include "amx.h"
#include "kernel.h"

namespace rocm_fp8::mx_gemm {
namespace {

using gemm::bias_of, gemm::bytes_of, gemm::Part, gemm::scales_of, gemm::source;

// Columns that threads take as they come, first many at a time, then fewer: none waits long for one that was held up.
struct Shares {
    const int64_t n, least;
    std::atomic<int64_t> next = 0;
    Shares(int64_t n, int64_t least) : n(n), least((least + kStrip - 1) / kStrip * kStrip) {}
    // of_thread: columns that would be its own.
    bool take(int64_t of_thread, int64_t& begin, int64_t& end) {
        begin = next.load(std::memory_order_relaxed);
        do {
            if (begin >= n) return false;
            const int64_t some = int64_t(double(n - begin) * double(of_thread) / double(2 * n)) / kStrip * kStrip;
            end = std::min(n, begin + std::max(some, least));
        } while (!next.compare_exchange_weak(begin, end, std::memory_order_relaxed));
        return true;
    }
};

Status multiply(const Args& a, const Kernel& kernel, const Part& part, const Executor& on) {
    static thread_local KeptMemory kept_rows, kept_scales;
    const int64_t k = kernel.units(a.k) * kernel.unit, blocks = k / kMxBlock,
                  most = std::min<int64_t>(kMostRows, part.rows());
    auto* wide = reinterpret_cast<float*>(kept_rows.at_least(most * k * sizeof(float)));
    auto* scales = reinterpret_cast<float*>(kept_scales.at_least(most * blocks * sizeof(float)));
    const bool by_blocks = of_blocks(a.scale_a), by_rows = a.scale_a.data && !by_blocks;
    for (int64_t first = part.begin; first < part.end; first += kMostRows) {
        const int64_t count = std::min<int64_t>(kMostRows, part.end - first);
        for (int64_t i = 0; i < count; ++i) {
            const int64_t found = source(a, first + i), row = std::max<int64_t>(found, 0);
            if (found < 0) std::fill_n(wide + i * k, k, 0.0f);
            else kernel.widen(a, a.a.data + row * a.a.row_stride, wide + i * k);
            const auto* of_row =
                static_cast<const char*>(a.scale_a.data) + row * a.scale_a.row_stride * bytes_of(a.scale_a.dtype);
            if (by_rows) std::memcpy(scales + i, of_row, sizeof(float));
            for (int64_t j = 0; by_blocks && j < blocks; ++j)
                scales[i * blocks + j] =
                    j < a.k / kMxBlock ? e8m0_value(uint8_t(of_row[j * a.scale_a.block_stride])) : 1.0f;
        }
        struct Context {
            const Kernel& kernel;
            Rows rows;
            Shares shares;
        } context{kernel,
                  {wide, by_blocks ? scales : nullptr, by_rows ? scales : nullptr, count,
                   a.b.data + part.e * a.b.group_stride, scales_of(a.scale_b, part.e), bias_of(a, part.e),
                   static_cast<char*>(a.out.data) + first * a.out.row_stride * bytes_of(a.out.dtype), a},
                  Shares(a.n, std::max<int64_t>(1, 131072 / a.k / count))};
        on.parallel_for(
            0, a.n, context.shares.least,
            [](void* c, int64_t from, int64_t to) {
                auto* context = static_cast<Context*>(c);
                int64_t begin, end;
                while (context->shares.take(to - from, begin, end)) context->kernel.columns(context->rows, begin, end);
            },
            &context);
    }
    return {};
}

Status multiply(const Args& a, const TileKernel& kernel, const Part& part, const Executor& on) {
    static thread_local KeptMemory kept_operands, kept_ranges, kept_factors;
    const int64_t most = rows_of_chunks(part.rows(), 2 * a.k, 2 * kRowsOfTile, kMostRowsOfChunk);
    for (int64_t first = part.begin; first < part.end; first += most) {
        const int64_t count = std::min(most, part.end - first);
        struct Context {
            const TileKernel& kernel;
            Chunk chunk;
        } context{kernel,
                  {a, a.b.data + part.e * a.b.group_stride, scales_of(a.scale_b, part.e), bias_of(a, part.e), first,
                   count, kept_operands.at_least(kernel.operand_bytes(a, count)),
                   reinterpret_cast<Range*>(kept_ranges.at_least(count * int64_t(sizeof(Range)))),
                   reinterpret_cast<float*>(kept_factors.at_least(count * int64_t(sizeof(float))))}};
        on.parallel_for(
            0, (count + kRowsOfTile - 1) / kRowsOfTile, std::max<int64_t>(1, 32768 / a.k),
            [](void* c, int64_t from, int64_t to) {
                const auto* context = static_cast<Context*>(c);
                const Chunk& chunk = context->chunk;
                context->kernel.pack(chunk, from * kRowsOfTile, std::min(to * kRowsOfTile, chunk.count));
            },
            &context);
        on.parallel_for(
            0, a.n, std::max<int64_t>(2 * kRowsOfTile, 131072 / a.k),
            [](void* c, int64_t from, int64_t to) {
                const auto* context = static_cast<Context*>(c);
                context->kernel.columns(context->chunk, from, to);
            },
            &context);
    }
    return {};
}

}  // namespace

Status launch(const Args& args, const Executor& on) {
    if (args.m == 0 || args.n == 0) return {};
    const IsaChoice choice = cpu_isa();
    if (choice.error) return {choice.error};
    const auto by = [&](const auto& kernel) {
        return gemm::each_group(args, [&](const Part& part) { return multiply(args, kernel, part, on); });
    };
    if (choice.tiles && args.format_a != DType::f16) return by(kernel_amx(args));
    return by(of_isa(choice.isa, pick<Portable>, kernel_avx2, kernel_avx512)(args));
}

bool gates(const Args&) { return false; }

}  // namespace rocm_fp8::mx_gemm
