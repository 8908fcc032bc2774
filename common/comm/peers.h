// The ranks of one host that compute together, and the memory through which they do: the contract of every backend.
//
// Each rank has a memory that all of them map: Control, then two halves. A launch is an epoch: its number's parity says
// which half it uses. A rank that begins epoch n + 2 has seen something of every other rank's epoch n + 1, which began
// when that rank had ended n. So nobody still reads the half that is written anew, and no launch waits at its end.
// Launches depend on nothing that the host counts: the epoch is in memory, and graphs may be replayed in any order that
// all ranks share.
#pragma once

#include "../types.h"

namespace rocm_fp8::comm {

constexpr int kMostRanks = 8;

// What a rank's memory begins with. Other ranks write headers on a GPU; on a CPU each rank its own.
struct Control {
    // By parity and sender: the launch's number, from 1 on, and in the lower half what it computes (see signature).
    uint64_t headers[2][kMostRanks];
    // CPU: the newest launch of which this rank has written x, and its part of the sum; futexes.
    uint32_t posted[2];
};
constexpr int64_t kControlBytes = 4096;
static_assert(sizeof(Control) <= kControlBytes);

// The rank's own, in ordinary memory of its device; zeros at first. `epoch`: launches that have ended.
struct State {
    uint32_t epoch, arrived, failed;
};

// Why a rank cannot go on; in memory of the host that the device writes. Zeros at first.
enum class Failure : uint32_t { none, absent, other_call, ended };
struct Report {
    uint32_t failure, peer;
};

// A rank's view. It is an argument of kernels.
struct Peers {
    void* memory[kMostRanks];  // of each rank, as this one addresses it
    State* state;
    Report* report;
    int64_t half;         // bytes of a half; a multiple of 1024, less than 2^32 - 16
    uint64_t timeout;     // nanoseconds that a rank waits for another
    int64_t place_bytes;  // see place
    int32_t rank, ranks;
    int32_t locks;  // CPU: a file of which rank r has locked byte r for as long as it lives; or -1

    ROCM_FP8_HD Control* control(int of) const { return static_cast<Control*>(memory[of]); }
    ROCM_FP8_HD char* data(int of, uint32_t epoch) const {
        return static_cast<char*>(memory[of]) + kControlBytes + (epoch & 1) * half;
    }
    // Of a half, where rank `from` writes: bytes of each such place, multiples of 128.
    ROCM_FP8_HD int64_t place() const { return place_bytes; }
};

// Of a call: what all ranks have to agree on.
enum class Operation : uint32_t { all_reduce = 1, norm, reduce_scatter, all_gather, gemm, gemm_norm };
ROCM_FP8_HD constexpr uint32_t signature(Operation operation, DType type, int64_t rows, int64_t d) {
    uint64_t mixed = uint64_t(operation) << 8 | uint64_t(type);
    for (const int64_t size : {rows, d}) mixed = (mixed ^ uint64_t(size)) * 0x9E3779B97F4A7C15u ^ mixed >> 29;
    return uint32_t(mixed >> 32) ^ uint32_t(mixed);
}

// What Control's headers hold, from an epoch and a signature.
ROCM_FP8_HD constexpr uint64_t header_of(uint32_t epoch, uint32_t what) { return uint64_t(epoch + 1) << 32 | what; }

}  // namespace rocm_fp8::comm
