// Counters in device memory by which workgroups of one launch find out who comes last.
//
// They are zero before a launch and the kernel leaves them zero, so that no launch has to clear them first. Launches that
// may run at the same time must not share them:
//
//     a stream             has its own, by the id that HIP never gives twice. A handle may be given again while the destroyed
//                          stream's work is pending
//     hipStreamPerThread   is one handle for a stream a thread: each thread has its own
//     a graph capture      has its own for each stream in it: a graph may be replayed beside any stream, and its branches
//                          beside each other. Two executable graphs of one capture share counters, as they share every
//                          operand and result, and may not run at the same time
//
// They stay for the life of the process: nobody says when a stream's or a graph's last launch is over.
#pragma once

#include <cstdint>

#include "../types.h"

namespace rocm_fp8 {

// At most this many for a launch: 4 KiB.
constexpr int kCounters = 1024;

struct CountersResult {
    uint32_t* counters;  // kCounters of them
    Status status;
};

// Of the current device, for launches on `stream` (hipStream_t). Host cost: a look-up.
CountersResult counters_for(void* stream);

}  // namespace rocm_fp8
