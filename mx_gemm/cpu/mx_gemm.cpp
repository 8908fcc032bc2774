// MX weights on the CPU: few rows of all groups at once, else one group after the other, on all threads.
#include <atomic>
#include <cstring>
#include <vector>

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

// Rows of some groups, kMostRows at most, multiplied at once: threads are woken and waited for once, not for each expert.
class Batch {
  public:
    Batch(const Args& args, const Kernel& kernel, const Executor& on)
        : a_(args),
          kernel_(kernel),
          on_(on),
          k_(kernel.units(args.k) * kernel.unit),
          by_blocks_(of_blocks(args.scale_a)),
          by_rows_(args.scale_a.data && !by_blocks_) {
        static thread_local KeptMemory kept_rows, kept_scales;
        const int64_t most = std::min<int64_t>(kMostRows, args.m), bytes = most * int64_t(sizeof(float));
        wide_ = reinterpret_cast<float*>(kept_rows.at_least(bytes * k_));
        scales_ = reinterpret_cast<float*>(kept_scales.at_least(bytes * blocks()));
    }

    void add(const Part& part) {
        for (int64_t first = part.begin; first < part.end; first += kMostRows) {
            const int64_t count = std::min<int64_t>(kMostRows, part.end - first);
            if (count_ + count > kMostRows) multiply();
            float *const wide = wide_ + count_ * k_, *const scales = scales_ + count_ * (by_blocks_ ? blocks() : 1);
            for (int64_t i = 0; i < count; ++i) widen(first + i, wide + i * k_, count_ + i);
            parts_.push_back(
                {wide, by_blocks_ ? scales : nullptr, by_rows_ ? scales : nullptr, count,
                 a_.b.data + part.e * a_.b.group_stride, scales_of(a_.scale_b, part.e), bias_of(a_, part.e),
                 static_cast<char*>(a_.out.data) + first * a_.out.row_stride * bytes_of(a_.out.dtype), a_});
            count_ += count;
        }
    }

    void multiply() {
        if (parts_.empty()) return;
        const int64_t columns = int64_t(parts_.size()) * a_.n, of_a_part = count_ / int64_t(parts_.size());
        struct Context {
            const Batch& batch;
            Shares shares;
        } context{*this, Shares(columns, std::max<int64_t>(1, 131072 / a_.k / of_a_part))};
        on_.parallel_for(
            0, columns, context.shares.least,
            [](void* c, int64_t from, int64_t to) {
                auto* context = static_cast<Context*>(c);
                int64_t begin, end;
                while (context->shares.take(to - from, begin, end)) context->batch.multiply(begin, end);
            },
            &context);
        parts_.clear();
        count_ = 0;
    }

  private:
    const Args& a_;
    const Kernel& kernel_;
    const Executor& on_;
    const int64_t k_;  // to whole units
    const bool by_blocks_, by_rows_;
    float *wide_, *scales_;
    std::vector<Rows> parts_;
    int64_t count_ = 0;

    int64_t blocks() const { return k_ / kMxBlock; }

    // Row `number` of the result; its scales are the batch's `at`-th.
    void widen(int64_t number, float* wide, int64_t at) const {
        const int64_t found = source(a_, number), row = std::max<int64_t>(found, 0);
        if (found < 0) std::fill_n(wide, k_, 0.0f);
        else kernel_.widen(a_, a_.a.data + row * a_.a.row_stride, wide);
        const auto* of_row =
            static_cast<const char*>(a_.scale_a.data) + row * a_.scale_a.row_stride * bytes_of(a_.scale_a.dtype);
        if (by_rows_) std::memcpy(scales_ + at, of_row, sizeof(float));
        for (int64_t j = 0; by_blocks_ && j < blocks(); ++j)
            scales_[at * blocks() + j] =
                j < a_.k / kMxBlock ? e8m0_value(uint8_t(of_row[j * a_.scale_a.block_stride])) : 1.0f;
    }

    // Columns of all parts, one part's after the other's.
    void multiply(int64_t begin, int64_t end) const {
        while (begin < end) {
            const int64_t from = begin % a_.n, to = std::min(a_.n, from + end - begin);
            kernel_.columns(parts_[begin / a_.n], from, to);
            begin += to - from;
        }
    }
};

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
    if (choice.tiles && args.format_a != DType::f16) {
        const TileKernel kernel = kernel_amx(args);
        return gemm::each_group(args, [&](const Part& part) { return multiply(args, kernel, part, on); });
    }
    const Kernel kernel = of_isa(choice.isa, pick<Portable>, kernel_avx2, kernel_avx512)(args);
    Batch batch(args, kernel, on);
    const Status status = gemm::each_group(args, [&](const Part& part) { return batch.add(part), Status{}; });
    batch.multiply();
    return status;
}

bool gates(const Args&) { return false; }

}  // namespace rocm_fp8::mx_gemm
