// Memory that a thread keeps between calls: fresh pages would cost more than the work on them.
#pragma once

#include <cstdint>
#include <vector>

namespace rocm_fp8 {
namespace {

// Each one is for one use: what at_least() gives lies at a multiple of 64, with anything in it, until the next call.
class KeptMemory {
  public:
    char* at_least(int64_t bytes) {
        constexpr int64_t kAlign = 64;
        if (int64_t(memory_.size()) < bytes + kAlign) memory_ = std::vector<char>(bytes + kAlign);
        return memory_.data() + (kAlign - reinterpret_cast<uintptr_t>(memory_.data()) % kAlign);
    }

  private:
    std::vector<char> memory_;
};

}  // namespace
}  // namespace rocm_fp8
