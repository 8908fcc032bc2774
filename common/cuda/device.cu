#include "device.h"

#include <atomic>
#include <mutex>
#include <string>
#include <utility>

#include "../environment.h"

namespace rocm_fp8 {
namespace {

// As build.toml lists them. Machine code runs on later minor versions of its major version; "a" code on its chip alone.
constexpr int kCapabilities[] = {89, 90, 100};

Status error_of(cudaError_t code) { return {cudaGetErrorString(code)}; }

bool served(int capability) {
    for (int known : kCapabilities) {
        if (capability == known || (known % 10 == 0 && known != 90 && capability / 10 == known / 10)) return true;
    }
    return false;
}

Status query(int device, Chip* chip) {
    int major = 0, minor = 0;
    for (auto [value, attribute] :
         {std::pair{&major, cudaDevAttrComputeCapabilityMajor}, std::pair{&minor, cudaDevAttrComputeCapabilityMinor},
          std::pair{&chip->multiprocessors, cudaDevAttrMultiProcessorCount},
          std::pair{&chip->memory_bits, cudaDevAttrGlobalMemoryBusWidth}}) {
        if (const cudaError_t code = cudaDeviceGetAttribute(value, attribute, device); code != cudaSuccess)
            return error_of(code);
    }
    chip->capability = 10 * major + minor;
    chip->device = device;
    if (served(chip->capability)) return {};
    const auto name = [](int capability) { return "sm_" + std::to_string(capability); };
    static std::mutex mutex;
    static std::string message;  // made once, for the first unsupported device
    const std::lock_guard<std::mutex> lock(mutex);
    if (message.empty()) {
        message = "this GPU is of architecture " + name(chip->capability) + "; the binary holds kernels for";
        for (int known : kCapabilities) message += " " + name(known);
    }
    return {message.c_str()};
}

}  // namespace

ChipResult current_chip() {
    int device = 0;
    if (const cudaError_t code = cudaGetDevice(&device); code != cudaSuccess) return {{}, error_of(code)};
    // Cached, as a device does not change: 16 bits, 16 bits, 32 bits. 0: not asked yet.
    constexpr int kDevices = 64;
    static std::atomic<uint64_t> known[kDevices];
    if (device < kDevices) {
        if (const uint64_t seen = known[device].load(std::memory_order_relaxed)) {
            return {{int(seen >> 48), int(seen & 0xFFFFFFFFu), int(seen >> 32 & 0xFFFFu), device}, {}};
        }
    }
    ChipResult result{};
    result.status = query(device, &result.chip);
    if (result.status.ok() && device < kDevices) {
        const Chip& chip = result.chip;
        known[device].store(
            uint64_t(chip.capability) << 48 | uint64_t(chip.memory_bits) << 32 | uint32_t(chip.multiprocessors),
            std::memory_order_relaxed);
    }
    return result;
}

Status launch_any(const void* kernel, const Chip& chip, const Grid& grid, void* stream, void** arguments) {
    cudaLaunchAttribute attributes[2];
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(uint32_t(grid.ctas));
    config.blockDim = dim3(uint32_t(grid.threads));
    config.dynamicSmemBytes = size_t(grid.shared_bytes);
    config.stream = static_cast<cudaStream_t>(stream);
    config.attrs = attributes;
    if (grid.cluster > 1) {
        cudaLaunchAttribute& cluster = attributes[config.numAttrs++];
        cluster.id = cudaLaunchAttributeClusterDimension;
        cluster.val.clusterDim = {uint32_t(grid.cluster), 1, 1};
    }
    if (chip.hopper() && environment().pdl) {
        cudaLaunchAttribute& overlap = attributes[config.numAttrs++];
        overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        overlap.val.programmaticStreamSerializationAllowed = 1;
    }
    const cudaError_t code = cudaLaunchKernelExC(&config, kernel, arguments);
    if (code == cudaSuccess) return {};
    (void)cudaGetLastError();  // clears the error, so that no later call reports it again
    return error_of(code);
}

}  // namespace rocm_fp8
