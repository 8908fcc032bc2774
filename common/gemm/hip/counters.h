// Counters in device memory, which tell the workgroups of one launch which of them arrives last.
//
// They are zero before a launch, and the kernel resets them to zero, so that no launch has to clear them. Launches that
// may run at the same time must not share counters:
//
//     a stream             has its own, by the id that HIP never reuses. A handle may be reused while work of the
//                          destroyed stream is pending
//     hipStreamPerThread   is one handle for one stream per thread: each thread has its own counters
//     a graph capture      has its own for each stream in it: a graph may run beside any stream, and its branches
//                          beside each other. Two executable graphs of one capture share counters, as they share
//                          every operand and result, and must not run at the same time
//
// They are never freed: no call tells when a stream's or a graph's last launch is over.
#pragma once

#include <cstdint>

#include "../../types.h"

namespace rocm_fp8 {

// The most counters of a launch: 4 KiB.
constexpr int kCounters = 1024;

struct CountersResult {
    uint32_t* counters;  // kCounters of them
    Status status;
};

// The counters for launches on `stream` (hipStream_t) of the current device. Host cost: a look-up.
CountersResult counters_for(void* stream);

}  // namespace rocm_fp8
