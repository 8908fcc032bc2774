#include "environment.h"

#include <atomic>
#include <cstdlib>

namespace rocm_fp8 {
namespace {

std::atomic<const Environment*> current{nullptr};

const Environment* read() {
    const auto text = [](const char* name) {
        const char* value = std::getenv(name);
        return std::string(value ? value : "");
    };
    return new Environment{text("ROCM_FP8_KERNELS_CPU"), text("ROCM_FP8_KERNELS_CONFIG"),
                           text("ROCM_FP8_KERNELS_PDL") != "0"};
}

}  // namespace

const Environment& environment() {
    if (const Environment* known = current.load(std::memory_order_acquire)) return *known;
    const Environment *fresh = read(), *none = nullptr;
    // Another thread may have been first.
    if (current.compare_exchange_strong(none, fresh, std::memory_order_acq_rel)) return *fresh;
    delete fresh;
    return *none;
}

// The old object stays: a launch on another thread may be reading it. Tests and tuning alone come here.
void reread_environment() { current.store(read(), std::memory_order_release); }

}  // namespace rocm_fp8
