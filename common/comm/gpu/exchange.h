// Vectors of 16 bytes that the ranks of one host send each other, and the launch around them.
//
// Who needs a value gets it in its own memory, by a store of the sender over the link. What is sent says itself that it
// has come: memory that waits for a vector holds four words of ones, which is no vector that is sent. So there is no
// flag, no fence, and one way over the link is the whole latency. Who has read a vector puts the ones back. A word of
// ones is two NaNs of 16 bits, or one of 32; it is sent as another NaN. Numbers of a byte, four of which can be
// such a word, are sent two a word.
//
//     begin      the epoch, from the rank's own memory; workgroup 0 tells the others what this launch computes
//     ...        send, receive: a vector belongs to workgroups of the same number on all ranks
//     end        the last workgroup counts the epoch; workgroup 0 has seen that the others compute the same
//
// A workgroup waits only for those of its own number on other ranks, and sends before it waits. Workgroups begin in the
// order of their numbers, so the lowest that waits anywhere has its partners running.
//
// A GEMM may have sent a launch's vectors before it, and the header with them: send.h.
//
// A wait ends with the communicator's time-out, too: its kernel says whom it waited for, and ends. Its results are then
// undefined.
#pragma once

#include "../../gpu/overlap.h"
#include "../../rows/gpu/eight.h"
#include "../peers.h"

#if defined(__CUDACC__)
#include "../cuda/system.h"
#else
#include "../hip/system.h"
#endif

namespace rocm_fp8::comm {
namespace {

constexpr uint32_t kAbsent = 0xFFFFFFFFu;

__device__ inline Vector128 absent() {
    Vector128 v;
#pragma unroll
    for (int i = 0; i < 4; ++i) set_word(v, i, kAbsent);
    return v;
}
// Each word by itself: nothing says that 16 bytes arrive at once.
__device__ inline bool has_come(const Vector128& v) {
    bool come = true;
#pragma unroll
    for (int i = 0; i < 4; ++i) come &= word(v, i) != kAbsent;
    return come;
}
__device__ inline uint32_t to_send(uint32_t word) { return word == kAbsent ? kAbsent - 1 : word; }
__device__ inline Vector128 to_send(Vector128 v) {
#pragma unroll
    for (int i = 0; i < 4; ++i) set_word(v, i, to_send(word(v, i)));
    return v;
}

// kMost: ranks that the kernel is compiled for.
template <int kMost>
struct Exchange {
    const Peers& peers;
    uint32_t epoch = 0;

    __device__ explicit Exchange(const Peers& p) : peers(p) {}

    // After wait_for_previous_kernel. announced: a launch before this one has sent the header.
    __device__ void begin(uint32_t what, bool announced = false) {
        epoch = load_now(&peers.state->epoch);
        if (blockIdx.x == 0 && is_other(threadIdx.x) && !announced)
            store_system(&peers.control(threadIdx.x)->headers[epoch & 1][peers.rank], header(what));
    }

    // By every thread, once each has begun: after a barrier of the workgroup that follows begin.
    __device__ void end(uint32_t what) const {
        if (blockIdx.x == 0 && is_other(threadIdx.x)) {
            const int from = threadIdx.x;
            Patience patience;
            while (!agrees(from, what)) {
                if (!patience.lasts(*this, from, what)) break;
            }
        }
        if (threadIdx.x != 0) return;
        State& state = *peers.state;
        if (atomicAdd(&state.arrived, 1u) != gridDim.x - 1) return;
        store_now(&state.arrived, 0);
        store_now(&state.epoch, epoch + 1);
    }

    __device__ void* at(int rank, int64_t byte) const { return peers.data(rank, epoch) + byte; }

    // To all others, each time beginning with another one.
    template <class Bytes>
    __device__ void send_to_others(const Bytes& byte, const Vector128& v) const {
        const Vector128 sent = to_send(v);
#pragma unroll
        for (int i = 1; i < kMost; ++i) {
            if (i >= peers.ranks) break;
            store_system(at(after(i), byte), sent);
        }
    }
    // The i-th rank after this one, by turns; this one where there are not as many.
    __device__ int after(int i) const {
        const int rank = peers.rank + i;
        return i >= peers.ranks ? peers.rank : rank < peers.ranks ? rank : rank - peers.ranks;
    }
    __device__ void send(int to, int64_t byte, const Vector128& v) const { store_system(at(to, byte), to_send(v)); }

    // A vector of each other rank, from byte(rank). What is not another rank's is left as it is.
    template <class Byte>
    __device__ void receive(Vector128 (&got)[kMost], const Byte& byte, uint32_t what) const {
        receive_many(got, byte, [&](int from) { return is_other(from); }, [](int from) { return from; }, what);
    }
    // Several vectors at once, from byte(i), where wanted(i); the rest are left as they are.
    template <int kMany, class Byte, class Wanted, class From>
    __device__ void receive_many(Vector128 (&got)[kMany], const Byte& byte, const Wanted& wanted, const From& from,
                                 uint32_t what) const {
        void* own = in_all_lanes(at(peers.rank, 0));
        uint32_t places[kMany];
#pragma unroll
        for (int i = 0; i < kMany; ++i) {
            places[i] = wanted(i) ? uint32_t(byte(i)) : kNoPlace;
            have_computed(places[i]);
        }
        Vector128 seen[kMany];
        Patience patience;
        for (;;) {
            // Without branches, so that all of a turn's loads are in flight together.
#pragma unroll
            for (int i = 0; i < kMany; ++i) seen[i] = load_system(own, places[i]);
            int missing = -1;
#pragma unroll
            for (int i = 0; i < kMany; ++i) missing = has_come(seen[i]) ? missing : i;
            if (missing < 0 || !patience.lasts(*this, from(missing), what)) break;
        }
#pragma unroll
        for (int i = 0; i < kMany; ++i) {
            got[i] = places[i] == kNoPlace ? got[i] : seen[i];
            store_system(own, places[i], absent());  // it is taken away
        }
    }

    __device__ bool is_other(int rank) const { return rank < peers.ranks && rank != peers.rank; }

  private:
    __device__ uint64_t header(uint32_t what) const { return header_of(epoch, what); }
    __device__ uint64_t header_from(int rank) const {
        return load_system_64(&peers.control(peers.rank)->headers[epoch & 1][rank]);
    }
    __device__ bool agrees(int from, uint32_t what) const { return header_from(from) == header(what); }

    // How long a thread waits. Most waits end before its first look at the clock.
    struct Patience {
        static constexpr uint32_t kTurns = 128;
        uint32_t turns = 0;
        uint64_t since = 0;

        // False: the wait is over without what it was for.
        __device__ bool lasts(const Exchange& exchange, int from, uint32_t what) {
            if (++turns % kTurns != 0) return true;
            return exchange.may_still_come(from, what, since);
        }
    };
    __device__ bool may_still_come(int from, uint32_t what, uint64_t& since) const {
        if (load_now(&peers.state->failed)) return false;
        const uint64_t seen = header_from(from), now = nanoseconds();
        const bool other_call = seen >> 32 == epoch + 1 && seen != header(what);
        if (since == 0) since = now;
        if (!other_call && now - since < peers.timeout) {
            pause();
            return true;
        }
        const Failure failure = other_call ? Failure::other_call : Failure::absent;
        store_now(&peers.state->failed, 1);
        store_system(peers.report, uint64_t(from) << 32 | uint32_t(failure));
        return false;
    }
};

// Numbers of a vector, added in float32 in the order of ranks.
template <DType type>
struct VectorSum {
    static constexpr int kPairs = type == DType::f32 ? 2 : 4;
    f32x2 sums[kPairs];

    __device__ static f32x2 pair(const Vector128& v, int i) {
        if constexpr (type == DType::f32) return {bits_float(word(v, 2 * i)), bits_float(word(v, 2 * i + 1))};
        else return Pairs<type>::widen(word(v, i));
    }
    __device__ void begin(const Vector128& v) {
#pragma unroll
        for (int i = 0; i < kPairs; ++i) sums[i] = pair(v, i);
    }
    __device__ void add(const Vector128& v) {
#pragma unroll
        for (int i = 0; i < kPairs; ++i) {
            const f32x2 more = pair(v, i);
            sums[i].x += more.x, sums[i].y += more.y;
        }
    }
    __device__ Vector128 rounded() const {
        Vector128 v;
#pragma unroll
        for (int i = 0; i < kPairs; ++i) {
            if constexpr (type == DType::f32) {
                set_word(v, 2 * i, float_bits(sums[i].x)), set_word(v, 2 * i + 1, float_bits(sums[i].y));
            } else {
                set_word(v, i, Pairs<type>::round_any_nan(sums[i]));
            }
        }
        return v;
    }
    template <int kMost>
    __device__ static Vector128 of(const Vector128 (&all)[kMost], int ranks) {
        VectorSum sum;
        sum.begin(all[0]);
#pragma unroll
        for (int i = 1; i < kMost; ++i) {
            if (i < ranks) sum.add(all[i]);
        }
        return sum.rounded();
    }
};

}  // namespace
}  // namespace rocm_fp8::comm
