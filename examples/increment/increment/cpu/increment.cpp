// increment on the CPU.
//
// Bytes: 4 read and 4 written an element; the floor is those bytes at the copy rate. One addition an element is
// nothing beside that, so plain loops that the compiler vectorises are enough.

#include "../increment.h"

namespace increment {
namespace {

// Below about this many elements, waking a thread costs more than it saves.
constexpr int64_t kElementsPerPart = 32768;

// __restrict: without it the compiler would have to assume that writing out[i] changes a later x.
void increment_part(const float* __restrict x, float* __restrict out, int64_t count) {
    for (int64_t i = 0; i < count; ++i) out[i] = x[i] + 1.0f;
}

}  // namespace

Status launch_increment(const IncrementArgs& args, const Executor& on) {
    IncrementArgs context = args;
    on.parallel_for(0, args.count, kElementsPerPart, [](void* c, int64_t begin, int64_t end) {
        const auto& a = *static_cast<const IncrementArgs*>(c);
        increment_part(a.x + begin, a.out + begin, end - begin);
    }, &context);
    return {};
}

}  // namespace increment
