#include <algorithm>
#include <cstring>
#include <memory>

#include "../../common/cpu/simd_portable.h"
#include "../../common/comm/cpu/meet.h"
#include "sum.h"

namespace rocm_fp8::all_reduce {
namespace {

using comm::Meeting;
using comm::Operation;
using comm::Peers;
using comm::Phase;

constexpr Status kFailed{"the ranks did not meet"};  // the report has more

// From so many bytes on three ranks or more sum a share each.
constexpr int64_t kWholeSums = 64 << 10;
constexpr int64_t kPart = 2048;  // elements that a thread takes at a time

int64_t size_of(DType type) { return element_size(type); }

struct CopyArgs {
    const void* from;
    void* to;
    int64_t rows, bytes, from_stride, to_stride;
};
void copy_rows(const CopyArgs& a, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
        std::memcpy(static_cast<char*>(a.to) + row * a.to_stride,
                    static_cast<const char*>(a.from) + row * a.from_stride, size_t(a.bytes));
    }
}
void copy(const CopyArgs& a, const Executor& on) { run_rows(a, a.bytes, copy_rows, on); }

Status sum(const SumArgs& args, const Executor& on) {
    return launch_rows(args, RowsKernels<SumArgs>{pick<Lanes<Portable>>, sum_avx2, sum_avx512}, on);
}
// Of rows that all ranks have at `byte`.
SumArgs sum_of(const Args& a, const Peers& peers, const Meeting& meeting, int64_t byte) {
    SumArgs all{};
    for (int rank = 0; rank < peers.ranks; ++rank) all.from[rank] = meeting.data(rank) + byte;
    all.count = peers.ranks, all.out = a.out, all.rows = a.rows, all.d = a.d, all.out_stride = a.out_stride;
    all.elements = a.rows * a.d, all.dtype = a.dtype;
    return all;
}
// Elements [begin, end) of messages, to the same elements of `out`.
Status sum_range(SumArgs args, int64_t begin, int64_t end, void* out, const Executor& on) {
    const int64_t bytes = size_of(args.dtype);
    for (int rank = 0; rank < args.count; ++rank)
        args.from[rank] = static_cast<const char*>(args.from[rank]) + begin * bytes;
    args.out = static_cast<char*>(out) + begin * bytes;
    args.elements = end - begin, args.d = args.out_stride = kPart, args.rows = ceil_div(args.elements, kPart);
    return sum(args, on);
}

// One launch: x lies in the half's first half as it is summed, sums of shares in its second.
Status sum_once(const Args& a, const Peers& peers, const Executor& on) {
    const int64_t bytes = size_of(a.dtype), row_bytes = a.d * bytes, elements = a.rows * a.d;
    Meeting meeting(peers, comm::signature(Operation::all_reduce, a.dtype, a.rows, a.d));
    copy({a.x, meeting.data(peers.rank), a.rows, row_bytes, a.x_stride * bytes, row_bytes}, on);
    if (!meeting.meet(Phase::has_x)) return kFailed;
    const SumArgs all = sum_of(a, peers, meeting, 0);
    const auto end = [&](Status status) {
        meeting.end();
        return status;
    };
    if (peers.ranks <= 2 || elements * bytes <= kWholeSums) return end(sum(all, on));
    const int64_t share = ceil_div(ceil_div(elements, peers.ranks), kPart) * kPart, sums = peers.half / 2;
    const auto from = [&](int rank) { return std::min(rank * share, elements); };
    if (from(peers.rank) < elements) {
        const Status status =
            sum_range(all, from(peers.rank), from(peers.rank + 1), meeting.data(peers.rank) + sums, on);
        if (!status.ok()) return status;
    }
    if (!meeting.meet(Phase::has_sum)) return kFailed;
    // Rows of a share that another one begins or ends with are copied in part.
    for (int rank = 0; rank < peers.ranks; ++rank) {
        const char* sum_of = meeting.data(rank) + sums;
        for (int64_t i = from(rank); i < from(rank + 1);) {
            const int64_t row = i / a.d, column = i % a.d, left = from(rank + 1) - i;
            const int64_t whole = column == 0 ? left / a.d : 0, count = whole > 0 ? a.d : std::min(left, a.d - column);
            copy({sum_of + i * bytes, static_cast<char*>(a.out) + (row * a.out_stride + column) * bytes,
                  std::max<int64_t>(whole, 1), count * bytes, row_bytes, a.out_stride * bytes},
                 on);
            i += std::max<int64_t>(whole, 1) * count;
        }
    }
    return end({});
}

// body(part) for parts of rows, or of one row where it is longer than `most` bytes.
template <class Body>
Status each_part(const Args& a, int64_t rows, int64_t most, const Body& body) {
    if (rows == 0 || a.d == 0) return {};
    const int64_t bytes = size_of(a.dtype);
    const auto part = [&](int64_t row, int64_t part_rows, int64_t column, int64_t columns) {
        Args p = a;
        p.x = static_cast<const char*>(a.x) + (row * a.x_stride + column) * bytes;
        p.out = static_cast<char*>(a.out) + (row * a.out_stride + column) * bytes;
        p.rows = part_rows, p.d = columns;
        return body(p);
    };
    if (a.d * bytes <= most) {
        return each_epoch(rows, most / (a.d * bytes),
                          [&](int64_t first, int64_t count) { return part(first, count, 0, a.d); });
    }
    return each_epoch(rows, 1, [&](int64_t row, int64_t) {
        return each_epoch(a.d, most / bytes, [&](int64_t first, int64_t count) { return part(row, 1, first, count); });
    });
}

}  // namespace

Status launch(const Args& args, const Peers& peers, const Executor& on) {
    return each_part(args, args.rows, peers.half / 2, [&](const Args& part) { return sum_once(part, peers, on); });
}

Status launch_reduce_scatter(const Args& args, const Peers& peers, const Executor& on) {
    const int64_t bytes = size_of(args.dtype), rows = args.rows / peers.ranks, own = rows * args.x_stride;
    return each_part(args, rows, peers.half / peers.ranks, [&](const Args& a) -> Status {
        Meeting meeting(peers, comm::signature(Operation::reduce_scatter, a.dtype, a.rows, a.d));
        const int64_t row_bytes = a.d * bytes;
        for (int rank = 0; rank < peers.ranks; ++rank) {
            copy({static_cast<const char*>(a.x) + rank * own * bytes,
                  meeting.data(peers.rank) + rank * a.rows * row_bytes, a.rows, row_bytes, a.x_stride * bytes,
                  row_bytes},
                 on);
        }
        if (!meeting.meet(Phase::has_x)) return kFailed;
        const Status status = sum(sum_of(a, peers, meeting, peers.rank * a.rows * row_bytes), on);
        meeting.end();
        return status;
    });
}

Status launch_all_gather(const Args& args, const Peers& peers, const Executor& on) {
    const int64_t bytes = size_of(args.dtype), own = args.rows * args.out_stride;
    return each_part(args, args.rows, peers.half, [&](const Args& a) -> Status {
        Meeting meeting(peers, comm::signature(Operation::all_gather, a.dtype, a.rows, a.d));
        const int64_t row_bytes = a.d * bytes;
        copy({a.x, meeting.data(peers.rank), a.rows, row_bytes, a.x_stride * bytes, row_bytes}, on);
        if (!meeting.meet(Phase::has_x)) return kFailed;
        for (int rank = 0; rank < peers.ranks; ++rank) {
            copy({meeting.data(rank), static_cast<char*>(a.out) + rank * own * bytes, a.rows, row_bytes, row_bytes,
                  a.out_stride * bytes},
                 on);
        }
        meeting.end();
        return {};
    });
}

Status launch(const rms_norm::Args& args, const Peers& peers, const Executor& on) {
    if (args.rows == 0 || args.d == 0) return {};
    if (peers.ranks == 1) return rms_norm::launch(args, on);
    const auto memory = std::make_unique_for_overwrite<char[]>(size_t(args.rows * args.d * 2));
    const Status status =
        launch(Args{args.x, memory.get(), args.rows, args.d, args.x_stride, args.d, args.dtype}, peers, on);
    if (!status.ok()) return status;
    rms_norm::Args summed = args;
    summed.x = memory.get(), summed.x_stride = args.d;
    return rms_norm::launch(summed, on);
}

Status launch(const skinny_gemm::Args& gemm, const Peers& peers, const Executor& on) {
    const Status status = skinny_gemm::launch(gemm, on);
    return status.ok() ? launch(sum_in_place(gemm), peers, on) : status;
}

Status launch(const skinny_gemm::Args& gemm, const rms_norm::Args& norm, const Peers& peers, const Executor& on) {
    const Status status = skinny_gemm::launch(gemm, on);
    return status.ok() ? launch(norm, peers, on) : status;
}

}  // namespace rocm_fp8::all_reduce
