// How processes of one host wait for each other: numbers in shared memory, futexes behind a short time of looking.
#pragma once

#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <chrono>
#include <ctime>

#include "../peers.h"

namespace rocm_fp8::comm {

enum class Phase : int { has_x, has_sum };

class Meeting {
  public:
    // Launch `epoch + 1` of these ranks computes `what`.
    Meeting(const Peers& peers, uint32_t what)
        : peers_(peers), number_(peers.state->epoch + 1), header_(uint64_t(number_) << 32 | what) {}

    // What this rank has written is read by others once they have met it. False: the report says whom it missed.
    bool meet(Phase phase) {
        if (peers_.ranks == 1) return true;
        Control& own = *peers_.control(peers_.rank);
        __atomic_store_n(&own.headers[number_ & 1][peers_.rank], header_, __ATOMIC_RELAXED);
        // Pairs with the load in arrived: header and data come first.
        __atomic_store_n(&own.posted[int(phase)], number_, __ATOMIC_SEQ_CST);
        syscall(SYS_futex, &own.posted[int(phase)], FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
        const auto deadline = std::chrono::steady_clock::now() + std::chrono::nanoseconds(peers_.timeout);
        for (int i = 1; i < peers_.ranks; ++i) {
            if (!wait_for((peers_.rank + i) % peers_.ranks, phase, deadline)) return false;
        }
        return true;
    }

    // Before meet: bytes of this rank's in this launch. After it: of any rank's.
    char* data(int of) const { return peers_.data(of, number_); }

    void end() const { peers_.state->epoch = number_; }

  private:
    bool arrived(int rank, Phase phase, uint32_t* seen) const {
        *seen = __atomic_load_n(&peers_.control(rank)->posted[int(phase)], __ATOMIC_ACQUIRE);
        return int32_t(*seen - number_) >= 0;
    }
    bool fail(Failure failure, int rank) const {
        peers_.state->failed = 1;
        *peers_.report = {uint32_t(failure), uint32_t(rank)};
        return false;
    }
    // A process that has ended has no locks, whoever has still to take note of its end.
    bool lives(int rank) const {
        if (peers_.locks < 0) return true;
        struct flock asked = {};
        asked.l_type = F_WRLCK, asked.l_whence = SEEK_SET, asked.l_start = rank, asked.l_len = 1;
        return fcntl(peers_.locks, F_GETLK, &asked) != 0 || asked.l_type != F_UNLCK;
    }
    bool wait_for(int rank, Phase phase, std::chrono::steady_clock::time_point deadline) const {
        // Some 20 us of looking; then a millisecond in which whoever else wants the core has it; then sleep.
        constexpr int kLooks = 2000, kYields = 2000;
        constexpr timespec kNap = {0, 20'000'000};
        uint32_t seen = 0;
        for (int look = 0; !arrived(rank, phase, &seen); ++look) {
            if (look < kLooks) {
                __builtin_ia32_pause();
                continue;
            }
            if (look < kLooks + kYields) {
                sched_yield();
                continue;
            }
            uint32_t* posted = &peers_.control(rank)->posted[int(phase)];
            if (syscall(SYS_futex, posted, FUTEX_WAIT, seen, &kNap, nullptr, 0) == 0 || errno != ETIMEDOUT) continue;
            // Its last word may have come before its end.
            if (!lives(rank)) return arrived(rank, phase, &seen) ? agrees(rank) : fail(Failure::ended, rank);
            if (other_call(rank)) return fail(Failure::other_call, rank);
            if (std::chrono::steady_clock::now() > deadline) return fail(Failure::absent, rank);
        }
        return agrees(rank);
    }
    uint64_t header_of(int rank) const {
        return __atomic_load_n(&peers_.control(rank)->headers[number_ & 1][rank], __ATOMIC_RELAXED);
    }
    bool other_call(int rank) const { return header_of(rank) >> 32 == number_ && header_of(rank) != header_; }
    bool agrees(int rank) const { return header_of(rank) == header_ || fail(Failure::other_call, rank); }

    const Peers& peers_;
    const uint32_t number_;
    const uint64_t header_;
};

}  // namespace rocm_fp8::comm
