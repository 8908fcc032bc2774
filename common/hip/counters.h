// Counters in device memory by which workgroups of one launch find out who comes last.
//
// They are zero before a launch and the kernel leaves them zero, so that no launch has to clear them first. Launches that
// may run at the same time must not share them: a stream has its own (its launches follow one another), and so has each
// graph capture on a stream, because a graph may be replayed beside anything. They stay for the life of the process:
// nobody says when a graph is gone.
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
