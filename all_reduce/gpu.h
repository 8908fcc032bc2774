// What HIP and CUDA share of all_reduce: the vectors of a call, who sums which, the kernels' bodies.
//
// A message is rows of vectors of 16 bytes, the last of a row filled with zeros; vector n of it. Ways:
//
//     one_shot   every rank sends its vectors to all others, which sum what they get: (ranks - 1) messages out, one way
//     two_shot   32 vectors by turns belong to each rank. They are sent to their owner, which sums them and sends the
//                sum to all: 2 (ranks - 1) / ranks messages out, two ways. In a half: places of what comes to the
//                owner, then sums as they stand in the message
//     sent       one_shot, of which a GEMM before this launch has done the sending, its header too (gemm.h)
#pragma once

#include "../common/comm/gpu/exchange.h"
#include "../common/divider.h"
#include "../common/gpu/overlap.h"
#include "all_reduce.h"

namespace rocm_fp8::all_reduce {
namespace {

using comm::Exchange;
using comm::Operation;
using comm::Peers;
using comm::VectorSum;

enum class Way : int { one_shot, two_shot, sent };

constexpr uint32_t kTurn = 32;  // vectors that belong to a rank before the next one's

// Of a message's vectors, in epoch's half.
template <int kMost>
struct Message {
    const Exchange<kMost>& exchange;
    Way way;
    uint32_t what;

    __device__ int owner(uint32_t n) const { return int(n / kTurn % uint32_t(ranks())); }

    // v: this rank's vectors at[i], or what is left where !wanted(i). Becomes their sums.
    template <DType type, int kMany, class At, class Wanted>
    __device__ void sum(Vector128 (&v)[kMany], const At& at, const Wanted& wanted) const {
        // This rank's own, too, as the others get them: so all have the same NaNs.
#pragma unroll
        for (int i = 0; i < kMany; ++i) v[i] = comm::to_send(v[i]);
        if (kMost == 2 || way != Way::two_shot) sum_here<type>(v, at, wanted);
        else sum_by_owners<type>(v, at, wanted);
    }

  private:
    __device__ int ranks() const { return exchange.peers.ranks; }
    __device__ int rank() const { return exchange.peers.rank; }

    template <DType type, int kMany, class At, class Wanted>
    __device__ void sum_here(Vector128 (&v)[kMany], const At& at, const Wanted& wanted) const {
        const int64_t place = exchange.peers.place();
#pragma unroll
        for (int i = 0; i < kMany; ++i) {
            if (wanted(i) && way != Way::sent) exchange.send_to_others(rank() * place + int64_t(at(i)) * 16, v[i]);
        }
        if constexpr (kMost == 2) {
            // One other rank: all of the thread's vectors at once.
            if (ranks() < 2) return;
            const int other = 1 - rank();
            Vector128 got[kMany];
            exchange.receive_many(
                got, [&](int i) { return other * place + int64_t(at(i)) * 16; }, wanted, [&](int) { return other; },
                what);
#pragma unroll
            for (int i = 0; i < kMany; ++i) {
                if (!wanted(i)) continue;
                const Vector128 both[2] = {rank() == 0 ? v[i] : got[i], rank() == 0 ? got[i] : v[i]};
                v[i] = VectorSum<type>::of(both, 2);
            }
        } else {
#pragma unroll
            for (int i = 0; i < kMany; ++i) {
                if (wanted(i))
                    v[i] = sum_of_all<type>(v[i], [&](int from) { return from * place + int64_t(at(i)) * 16; });
            }
        }
    }

    template <DType type, int kMany, class At, class Wanted>
    __device__ void sum_by_owners(Vector128 (&v)[kMany], const At& at, const Wanted& wanted) const {
        const int64_t sums = exchange.peers.half / 2, place = exchange.peers.place() / 256 * 128;
        const auto part = [&](int from, uint32_t n) {  // where it comes to its owner
            return from * place + int64_t(n / (kTurn * ranks()) * kTurn + n % kTurn) * 16;
        };
#pragma unroll
        for (int i = 0; i < kMany; ++i) {
            if (wanted(i) && owner(at(i)) != rank()) exchange.send(owner(at(i)), part(rank(), at(i)), v[i]);
        }
#pragma unroll
        for (int i = 0; i < kMany; ++i) {
            if (!wanted(i) || owner(at(i)) != rank()) continue;
            v[i] = comm::to_send(sum_of_all<type>(v[i], [&](int from) { return part(from, at(i)); }));
            exchange.send_to_others(sums + int64_t(at(i)) * 16, v[i]);
        }
        const auto others = [&](int i) { return wanted(i) && owner(at(i)) != rank(); };
        exchange.receive_many(
            v, [&](int i) { return sums + int64_t(at(i)) * 16; }, others, [&](int i) { return owner(at(i)); }, what);
    }

    template <DType type, class Byte>
    __device__ Vector128 sum_of_all(const Vector128& own, const Byte& byte) const {
        Vector128 all[kMost];
#pragma unroll
        for (int from = 0; from < kMost; ++from) all[from] = own;
        exchange.receive(all, byte, what);
        return VectorSum<type>::of(all, ranks());
    }
};

// --- rows of values alone ---

constexpr int kFlatThreads = 256;

// By vector: rows are multiples of 16 bytes, aligned. Else element by element.
template <DType type, bool by_vector>
struct RowsOfVectors {
    static constexpr int kBytes = type == DType::i8 ? 1 : kElementBytes<type>, kElements = 16 / kBytes;
    const void* rows;
    int64_t stride, d;

    __device__ void* address(int64_t row, int64_t column) const {
        return offset(const_cast<void*>(rows), (row * stride + column) * kBytes);
    }
    __device__ Vector128 load(int64_t row, uint32_t vector) const {
        if constexpr (by_vector) {
            return load_vector(address(row, 0), VectorIndex(vector) * 16);
        } else {
            uint32_t words[4] = {};
            const int64_t first = int64_t(vector) * kElements;
            const int inside = inside_of(first);
#pragma unroll
            for (int i = 0; i < kElements; ++i) {
                if (i < inside) words[i * kBytes / 4] |= element(row, first + i) << (8 * kBytes * i % 32);
            }
            Vector128 v;
#pragma unroll
            for (int w = 0; w < 4; ++w) set_word(v, w, words[w]);
            return v;
        }
    }
    __device__ void store(int64_t row, uint32_t vector, const Vector128& v) const {
        if constexpr (by_vector) {
            store_vector(address(row, 0), VectorIndex(vector) * 16, v);
        } else {
            const int64_t first = int64_t(vector) * kElements;
            const int inside = inside_of(first);
#pragma unroll
            for (int i = 0; i < kElements; ++i) {
                if (i < inside) set_element(row, first + i, word(v, i * kBytes / 4) >> (8 * kBytes * i % 32));
            }
        }
    }

  private:
    // Elements of the row from `first` on, kElements at most. Each time anew: what compares with it takes registers.
    __device__ int inside_of(int64_t first) const {
        int inside = d - first < kElements ? int(d - first) : kElements;
        have_computed(inside);
        return inside;
    }
    __device__ uint32_t element(int64_t row, int64_t column) const {
        const void* p = address(row, column);
        if constexpr (kBytes == 4) return *global<uint32_t>(p);
        else if constexpr (kBytes == 2) return *global<uint16_t>(p);
        else return *global<uint8_t>(p);
    }
    __device__ void set_element(int64_t row, int64_t column, uint32_t bits) const {
        void* p = address(row, column);
        if constexpr (kBytes == 4) *global<uint32_t>(p) = bits;
        else if constexpr (kBytes == 2) *global<uint16_t>(p) = uint16_t(bits);
        else *global<uint8_t>(p) = uint8_t(bits);
    }
};

// The first 16-bit halves of a vector, or the last, as words.
__device__ inline Vector128 halves_of(const Vector128& v, int last) {
    Vector128 halves;
#pragma unroll
    for (int i = 0; i < 4; ++i) set_word(halves, i, word(v, 2 * last + i / 2) >> (16 * (i % 2)) & 0xFFFFu);
    return halves;
}
__device__ inline Vector128 of_halves(const Vector128& first, const Vector128& last) {
    Vector128 v;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const Vector128& from = i < 2 ? first : last;
        set_word(v, i, word(from, i % 2 * 2) | word(from, i % 2 * 2 + 1) << 16);
    }
    return v;
}

struct FlatArgs {
    Args a;
    Peers peers;
    Divider row_of;  // a row's vectors
    uint32_t count;  // vectors of all rows
    Way way;
    uint32_t what;
    int64_t own_rows;  // rows between two ranks' parts: reduce_scatter's of x, all_gather's of out
};

// One vector a thread.
template <DType type, bool by_vector, int kMost, Operation operation>
__device__ inline void exchange_rows(const FlatArgs& f) {
    wait_for_previous_kernel();
    Exchange<kMost> exchange(f.peers);
    exchange.begin(f.what, f.way == Way::sent);
    // Barrier: nobody counts the epoch before all of the workgroup have read it.
    __syncthreads();
    const uint32_t n = blockIdx.x * kFlatThreads + threadIdx.x;
    if (n < f.count) {
        const RowsOfVectors<type, by_vector> x{f.a.x, f.a.x_stride, f.a.d}, out{f.a.out, f.a.out_stride, f.a.d};
        const uint32_t row = divide(n, f.row_of), vector = n - row * f.row_of.divisor;
        const int64_t place = f.peers.place();
        const int rank = f.peers.rank, ranks = f.peers.ranks;
        if constexpr (operation == Operation::all_reduce) {
            Vector128 v[1] = {x.load(row, vector)};
            Message<kMost>{exchange, f.way, f.what}.template sum<type>(
                v, [&](int) { return n; }, [](int) { return true; });
            out.store(row, vector, v[0]);
        } else if constexpr (operation == Operation::reduce_scatter) {
            // Without branches, so that all loads are in flight together.
            Vector128 parts[kMost];
#pragma unroll
            for (int i = 0; i < kMost; ++i) parts[i] = x.load(exchange.after(i) * f.own_rows + row, vector);
#pragma unroll
            for (int i = 1; i < kMost; ++i) {
                if (i < ranks) exchange.send(exchange.after(i), rank * place + int64_t(n) * 16, parts[i]);
            }
            Vector128 all[kMost];
            const Vector128 own = parts[0];
#pragma unroll
            for (Vector128& each : all) each = own;
            exchange.receive(all, [&](int from) { return from * place + int64_t(n) * 16; }, f.what);
            out.store(row, vector, VectorSum<type>::of(all, ranks));
        } else {
            // A word of ones may be four numbers of a byte: they are sent as 16 bits a word.
            constexpr int kSent = type == DType::i8 ? 2 : 1;
            const auto at = [&](int from, int s) { return from * place + (int64_t(n) * kSent + s) * 16; };
            const Vector128 own = x.load(row, vector);
            out.store(rank * f.own_rows + row, vector, kSent == 1 ? comm::to_send(own) : own);
#pragma unroll
            for (int s = 0; s < kSent; ++s) exchange.send_to_others(at(rank, s), kSent == 1 ? own : halves_of(own, s));
            Vector128 got[kSent][kMost];
#pragma unroll
            for (int s = 0; s < kSent; ++s) {
                exchange.receive(got[s], [&](int from) { return at(from, s); }, f.what);
            }
#pragma unroll
            for (int from = 0; from < kMost; ++from) {
                if (!exchange.is_other(from)) continue;
                const Vector128 v = kSent == 1 ? got[0][from] : of_halves(got[0][from], got[kSent - 1][from]);
                out.store(from * f.own_rows + row, vector, v);
            }
        }
    }
    exchange.end(f.what);
}

// --- a source of rms_norm ---

// The sum of the ranks' x; or that sum, rounded, + residual.
template <DType in, int kMost, class Hidden>
struct PeerSum {
    static constexpr DType type = in;
    using Loaded = typename Hidden::Loaded;
    Hidden own;  // this rank's x, and the residual
    Message<kMost> message;
    uint32_t first_vector;  // of the row, in the message

    __device__ bool keeps() const { return own.keeps(); }
    __device__ Loaded load(int64_t row, VectorIndex vector) const { return own.load(row, vector); }
    __device__ Eight<in> values(const Loaded& loaded) const { return own.values(loaded); }
    __device__ void keep(int64_t row, VectorIndex vector, const Eight<in>& h) const { own.keep(row, vector, h); }

    // What a row kernel calls between load and values. Vectors behind the row's end become zeros.
    template <int kHeld, class Row>
    __device__ void complete(const Row& by, uint32_t vectors, Loaded (&loaded)[kHeld]) const {
        Vector128 x[kHeld];
        const auto inside = [&](int v) { return by.index(v) < vectors; };
#pragma unroll
        for (int v = 0; v < kHeld; ++v) x[v] = loaded[v].x;
        message.template sum<in>(x, [&](int v) { return first_vector + by.index(v); }, inside);
#pragma unroll
        for (int v = 0; v < kHeld; ++v) {
#pragma unroll
            for (int w = 0; w < 4; ++w) {
                set_word(loaded[v].x, w, inside(v) ? word(x[v], w) : 0u);
                if (!inside(v)) set_word(loaded[v].residual, w, 0u);
            }
        }
    }
};

// --- launchers ---

inline bool by_vectors(const Args& a, int element_bytes) {
    return a.d * element_bytes % 16 == 0 && rows_aligned(a.x, a.x_stride * element_bytes) &&
           rows_aligned(a.out, a.out_stride * element_bytes);
}
inline int bytes_of(DType type) { return type == DType::f32 ? 4 : type == DType::i8 ? 1 : 2; }

// From so many bytes on two ways over the links take less than (ranks - 1) messages over each. AITER's and vLLM's
// all-reduces change there, too: 512 KiB with four ranks, 256 with eight.
constexpr int64_t one_shot_bytes(int ranks) { return ranks <= 2 ? int64_t(1) << 62 : (int64_t(2) << 20) / ranks; }
inline Way way_of(const Peers& peers, int64_t bytes) {
    return bytes > one_shot_bytes(peers.ranks) || bytes > peers.place() ? Way::two_shot : Way::one_shot;
}
// Bytes of a message that an epoch takes at most.
inline int64_t message_at_once(const Peers& peers) {
    if (peers.ranks <= 2) return peers.place();
    // Whole turns of each rank, in either part of the half.
    return peers.half / 2 / peers.ranks / (kTurn * 16) * (kTurn * 16) * peers.ranks;
}

// pick(by_vector) is the operation's kernel. Messages are cut by sizes alone: a rank's strides do not matter. sent: the
// signature of a message that a GEMM has sent; or nullptr.
template <class Vendor, class Pick>
Status launch_flat(const Args& a, const Peers& peers, const Vendor& vendor, Operation operation, const uint32_t* sent,
                   const Pick& pick) {
    const int bytes = bytes_of(a.dtype);
    const bool reduces = operation == Operation::all_reduce, gathers = operation == Operation::all_gather;
    const int64_t rows = operation == Operation::reduce_scatter ? a.rows / peers.ranks : a.rows;
    if (rows == 0 || a.d == 0) return {};
    const int64_t on_link = gathers && a.dtype == DType::i8 ? 32 : 16;  // bytes for a vector
    const int64_t vectors = (reduces ? message_at_once(peers) : peers.place()) / on_link;
    const auto launch_part = [&](int64_t row, int64_t part_rows, int64_t column, int64_t columns) -> Status {
        Args part = a;
        part.x = static_cast<const char*>(a.x) + (row * a.x_stride + column) * bytes;
        part.out = static_cast<char*>(a.out) + (row * a.out_stride + column) * bytes;
        part.d = columns;
        const int64_t row_vectors = ceil_div(columns * bytes, 16), count = part_rows * row_vectors;
        const FlatArgs f{part,
                         peers,
                         divider_by(uint32_t(row_vectors)),
                         uint32_t(count),
                         sent ? Way::sent : way_of(peers, count * 16),
                         sent ? *sent : comm::signature(operation, a.dtype, part_rows, columns),
                         rows};
        return vendor.launch(pick(by_vectors(part, bytes)), ceil_div(count, kFlatThreads), kFlatThreads, 1, f);
    };
    const int64_t row_vectors = ceil_div(a.d * bytes, 16);
    if (row_vectors <= vectors) {
        return each_epoch(rows, vectors / row_vectors,
                          [&](int64_t first, int64_t count) { return launch_part(first, count, 0, a.d); });
    }
    return each_epoch(rows, 1, [&](int64_t row, int64_t) {
        return each_epoch(a.d, vectors * (16 / bytes),
                          [&](int64_t first, int64_t count) { return launch_part(row, 1, first, count); });
    });
}

// Whether the fused kernels know the types and the scale's rule; `native`: the chip's FP8.
inline bool fused(const rms_norm::Args& a, DType native) {
    const bool of_tensor = a.is_dynamic() && a.dynamic.group == DynamicScale::kTensor;
    return a.residual && a.weight_dtype == a.dtype && a.out_dtype == native && !of_tensor;
}

// Sums into memory of the launch, then the operator: for what the fused kernels do not take.
template <class Sum>
Status launch_apart(const rms_norm::Args& a, const Executor& on, const Sum& sum) {
    void* memory = on.scratch(on.context, a.rows * a.d * 2);
    if (!memory) return {"no memory for the sum"};
    const Status status = sum(Args{a.x, memory, a.rows, a.d, a.x_stride, a.d, a.dtype});
    if (!status.ok()) return status;
    rms_norm::Args summed = a;
    summed.x = memory, summed.x_stride = a.d;
    return rms_norm::launch(summed, on);
}

}  // namespace
}  // namespace rocm_fp8::all_reduce
