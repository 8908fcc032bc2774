// increment: out[i] = x[i] + 1. The contract: every backend defines launch_increment, the binding calls it.
//
// No torch in here: pointers and sizes alone. So a kernel compiles in a second, can be called from any
// framework, and does not change when torch does.
#pragma once

#include <cstdint>

namespace increment {

struct IncrementArgs {
    const float* x;  // float32 [count]
    float* out;      // float32 [count], apart from x
    int64_t count;   // at least 1
};

// nullptr: launched. Otherwise one line in static storage that says why not.
struct Status {
    const char* error = nullptr;
};

// Runs body(context, begin, end) over parts of [begin, end) on the framework's own threads.
using RangeBody = void (*)(void* context, int64_t begin, int64_t end);
using ParallelFor = void (*)(int64_t begin, int64_t end, int64_t grain, RangeBody body, void* context);

// Where a launch runs. The CPU backend reads `parallel_for`, the GPU backends read `stream`.
struct Executor {
    void* stream = nullptr;  // hipStream_t or cudaStream_t, of the current device
    ParallelFor parallel_for = nullptr;
};

Status launch_increment(const IncrementArgs& args, const Executor& on);

}  // namespace increment
