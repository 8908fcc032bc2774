#include "device.h"

#include <atomic>
#include <cstring>
#include <mutex>
#include <string>

namespace rocm_fp8 {
namespace {

// In the order of Arch, and as build.toml lists them.
constexpr const char* kArchNames[] = {"gfx942", "gfx950"};

Status error_of(hipError_t code) { return {hipGetErrorString(code)}; }

ArchResult query(int device) {
    hipDeviceProp_t properties;
    if (const hipError_t code = hipGetDeviceProperties(&properties, device); code != hipSuccess) {
        return {{}, error_of(code)};
    }
    // "gfx942:sramecc+:xnack-"
    const std::string name(properties.gcnArchName, std::strcspn(properties.gcnArchName, ":"));
    for (int i = 0; i < int(std::size(kArchNames)); ++i) {
        if (name == kArchNames[i]) return {Arch(i), {}};
    }
    static std::mutex mutex;
    static std::string message;  // made once, for the first unsupported device
    const std::lock_guard<std::mutex> lock(mutex);
    if (message.empty()) {
        message = "this GPU is a " + name + "; the binary holds kernels for";
        for (const char* known : kArchNames) message += std::string(" ") + known;
    }
    return {{}, {message.c_str()}};
}

}  // namespace

ArchResult current_arch() {
    int device = 0;
    if (const hipError_t code = hipGetDevice(&device); code != hipSuccess) return {{}, error_of(code)};
    // Cached, as a device does not change. 0: not asked yet.
    constexpr int kDevices = 64;
    static std::atomic<int> known[kDevices];
    const int seen = device < kDevices ? known[device].load(std::memory_order_relaxed) : 0;
    if (seen) return {Arch(seen - 1), {}};
    const ArchResult result = query(device);
    if (result.status.ok() && device < kDevices) known[device].store(int(result.arch) + 1, std::memory_order_relaxed);
    return result;
}

Status launch_any(const void* kernel, dim3 grid, dim3 block, void* stream, void** arguments) {
    const hipError_t code = hipLaunchKernel(kernel, grid, block, arguments, 0, static_cast<hipStream_t>(stream));
    if (code == hipSuccess) return {};
    (void)hipGetLastError();  // clears the error, so that no later call reports it again
    return error_of(code);
}

}  // namespace rocm_fp8
