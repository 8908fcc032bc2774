// The end of a GEMM whose result all ranks sum: it stores what it has finished in the other ranks' memories, too, as
// soon as that is there. The launch behind it only receives.
//
//     a rank     | send n: GEMM; products and a header leave |  receive n: what has come, + own; epoch n is counted |
//     another    |   the same, at its own time                 |  ...                                               |
//
// What is sent are whole words of 32 bits in the places in which receive (exchange.h) looks for vectors: each word says
// for itself that it has come. A word of ones is sent as another NaN, which the receiver makes of its own, too.
//
// Sending waits for nobody, so it can neither hang nor fail. It reads the epoch and does not count it. Why that is
// safe, for ranks A and B (< is "has happened before"):
//
//     this                     is behind                    by
//     send n reads the epoch   receive n-1 counted it       the stream: one launch behind the other; PDL's wait
//     receive n reads it       send n                       the stream; nothing counts between the two
//     send n of A stores at B  receive n-2 of B has put     receive n-1 of A ended with B's header of n-1, which send
//                              the half's ones back         n-1 of B stored; that began when receive n-2 of B had ended
//     receive n of B reads it  send n of A stored it        the word itself: ones until then
//     A's own product is read  send n of A stored it        the stream
//
// A rank that calls something else, or dies between the two launches, is found by receive's headers and time-out, as
// any launch finds it. A graph holds both launches, or neither: an operator launches them together.
#pragma once

#include "exchange.h"

namespace rocm_fp8::comm {

// Of a call, as an argument of its kernel. The host has put the others into the order in which this rank sends: each
// rank begins with another one.
struct Sending {
    void* others[kMostRanks - 1];  // their memories; nullptr behind the last one
    State* state;
    int64_t half, place;  // bytes of a half; this rank's place in the first half, from a memory's beginning on
    int32_t rank;
    uint32_t what;
};

inline Sending sending_of(const Peers& peers, uint32_t what) {
    Sending s{{}, peers.state, peers.half, kControlBytes + peers.rank * peers.place(), peers.rank, what};
    for (int i = 1; i < peers.ranks; ++i) s.others[i - 1] = peers.memory[(peers.rank + i) % peers.ranks];
    return s;
}

namespace {

// Its methods in this order: load_epoch behind wait_for_previous_kernel; begin, by all threads, with what that has
// found; send of neighbouring numbers, `byte` from the first one of the result on, in whole words.
class Sender {
    const Sending& to;
    int64_t first = 0;  // of this rank's place of this epoch, from a memory's beginning on

  public:
    static constexpr bool kSends = true;
    __device__ explicit Sender(const Sending& s) : to(s) {}

    __device__ uint32_t load_epoch() const { return load_before(&to.state->epoch); }

    // Workgroup 0 tells the others what this launch computes.
    __device__ void begin(uint32_t epoch) {
        first = (epoch & 1) * to.half + to.place;
        if (blockIdx.x != 0 || threadIdx.x != 0) return;
        const int64_t at = ((epoch & 1) * kMostRanks + to.rank) * sizeof(uint64_t);
        static_assert(offsetof(Control, headers) == 0);
        to_each([&](char* memory) { store_system(memory + at, header_of(epoch, to.what)); });
    }

    template <int kWords>
    __device__ void send(int64_t byte, const uint32_t (&words)[kWords]) const {
        static_assert(kWords == 1 || kWords == 2 || kWords == 4);
        const int64_t at = first + byte;
        uint32_t sent[kWords];
#pragma unroll
        for (int i = 0; i < kWords; ++i) sent[i] = to_send(words[i]);
        to_each([&](char* memory) {
            if constexpr (kWords == 1) {
                store_system(memory + at, sent[0]);
            } else if constexpr (kWords == 2) {
                store_system(memory + at, uint64_t(sent[1]) << 32 | sent[0]);
            } else {
                Vector128 v;
#pragma unroll
                for (int i = 0; i < 4; ++i) set_word(v, i, sent[i]);
                store_system(memory + at, v);
            }
        });
    }

  private:
    template <class Body>
    __device__ void to_each(const Body& body) const {
#pragma unroll
        for (int i = 0; i < kMostRanks - 1; ++i) {
            if (!to.others[i]) break;
            body(static_cast<char*>(to.others[i]));
        }
    }
};

// Of a GEMM whose result stays in its own memory.
struct NoSender {
    static constexpr bool kSends = false;
    __device__ uint32_t load_epoch() const { return 0; }
    __device__ void begin(uint32_t) {}
};

}  // namespace
}  // namespace rocm_fp8::comm
