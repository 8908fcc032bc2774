// increment: out[i] = x[i] + 1, the contract of every backend's launcher.
//
// No torch in here: pointers and sizes alone, so that the kernel compiles in a second, can be called from
// any framework, and does not change when torch does.
#pragma once

#include <cstdint>

namespace increment {

struct IncrementArgs {
    const float* x;  // float32 [count]
    float* out;      // float32 [count], apart from x
    int64_t count;
};

// nullptr: launched. Otherwise one line in static storage that says why not.
struct Status {
    const char* error = nullptr;
};

// Runs body(context, begin, end) over parts of [begin, end) on the framework's own threads.
using RangeBody = void (*)(void* context, int64_t begin, int64_t end);
using ParallelFor = void (*)(int64_t begin, int64_t end, int64_t grain, RangeBody body, void* context);

// Where a launch runs: the CPU backend reads `parallel_for`, a GPU backend would read `stream`.
struct Executor {
    void* stream = nullptr;
    ParallelFor parallel_for = nullptr;
};

Status launch_increment(const IncrementArgs& args, const Executor& on);

}  // namespace increment
