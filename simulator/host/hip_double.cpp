// A test double of libamdhip64.so.7: what HIP-clang's host code and launchers call, on host memory.
//
// "Device" memory is host memory. Device 0 is a gfx942, 1 a gfx950, 2 a gfx1100; then come eight gfx942 and eight
// gfx950, which can run together. A launch goes to the callback that the tests set, with what the real library would
// send to the GPU. Streams run at once; captures only are said to be active. While launches are deferred, nothing else
// can be put into a stream, and nothing waits for one: such calls fail.
#include <hip/hip_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>

namespace {

// Returns a hipError_t. `arguments` points to one pointer an argument.
using LaunchCallback = int (*)(const void* bundle, const char* kernel, int device, const uint32_t* grid,
                               const uint32_t* block, uint64_t dynamic_lds, void** arguments);
// Workgroups that a compute unit holds, or 0.
using OccupancyCallback = int (*)(const void* bundle, const char* kernel, int device, int threads, uint64_t lds);
// size 0: freed.
using MemoryCallback = void (*)(void* address, uint64_t size, int device);

// The third is for tests of what is said to an unsupported GPU: launches on it fail.
constexpr const char* kArchNames[] = {"gfx942:sramecc+:xnack-", "gfx950:sramecc+:xnack-", "gfx1100"};
constexpr int kSingle = 3, kTogether = 8, kDevices = kSingle + 2 * kTogether;
constexpr int arch_of(int device) { return device < kSingle ? device : (device - kSingle) / kTogether; }
constexpr size_t kAlignment = 256;

struct Function {
    const void* bundle;
    std::string name;
};

struct PendingCall {
    dim3 grid, block;
    size_t dynamic_lds;
    hipStream_t stream;
};

LaunchCallback on_launch;
OccupancyCallback on_occupancy;
MemoryCallback on_memory;
std::mutex mutex;
std::map<const void*, Function>& functions() {
    static auto* const all = new std::map<const void*, Function>;  // outlives every library's destructors
    return *all;
}

thread_local int current_device = 0;
thread_local hipError_t last_error = hipSuccess;
thread_local PendingCall pending;
thread_local hipStreamCaptureMode capture_mode = hipStreamCaptureModeGlobal;
unsigned long long capture = 0;       // of every stream; 0: none is active
unsigned long long stream_epoch = 0;  // see simulator_set_stream_epoch
bool deferred = false;                // see simulator_set_deferred

hipError_t remember(hipError_t code) {
    if (code != hipSuccess) last_error = code;
    return code;
}

// Of calls whose work would come before launches that are deferred.
hipError_t in_order() { return remember(deferred ? hipErrorNotSupported : hipSuccess); }
// What no launch can have touched: the newest allocation, as long as nothing has been launched behind it, and streams
// without a launch.
thread_local const void* untouched = nullptr;
std::set<hipStream_t>& idle_streams() {
    static auto* const all = new std::set<hipStream_t>;
    return *all;
}

// The wrapper that clang emits for each bundle.
struct FatBinaryWrapper {
    uint32_t magic, version;
    const void* bundle;
    void* unused;
};

}  // namespace

extern "C" {

// The tests' side.

void simulator_set_callbacks(LaunchCallback launch, OccupancyCallback occupancy, MemoryCallback memory) {
    on_launch = launch;
    on_occupancy = occupancy;
    on_memory = memory;
}

// From now on streams say that they are in this capture; 0 for none. Nothing is recorded: launches run at once.
void simulator_set_capture(unsigned long long id) { capture = id; }

// From now on every handle stands for another stream than before: those of before were destroyed.
void simulator_set_stream_epoch(unsigned long long epoch) { stream_epoch = epoch << 48; }

// From now on launches are kept, to be run later.
void simulator_set_deferred(int on) { deferred = on; }

// The first of kTogether devices of an architecture.
int simulator_first_device(int arch) { return kSingle + arch * kTogether; }

// Registration, from static constructors.

void** __hipRegisterFatBinary(const void* data) {
    return new void*(const_cast<void*>(static_cast<const FatBinaryWrapper*>(data)->bundle));
}

void __hipRegisterFunction(void** handle, const void* host_function, char*, const char* device_name, unsigned, void*,
                           void*, void*, void*, int*) {
    const std::lock_guard<std::mutex> lock(mutex);
    functions()[host_function] = {*handle, device_name};
}

void __hipRegisterVar(void**, void*, char*, char* name, int, size_t, int, int) {
    std::fprintf(stderr, "hip_double: device variable %s is not supported\n", name);
    std::abort();
}

void __hipUnregisterFatBinary(void** handle) {
    const std::lock_guard<std::mutex> lock(mutex);
    for (auto it = functions().begin(); it != functions().end();) {
        it = it->second.bundle == *handle ? functions().erase(it) : std::next(it);
    }
    delete handle;
}

// Launches.

hipError_t __hipPushCallConfiguration(dim3 grid, dim3 block, size_t dynamic_lds, hipStream_t stream) {
    pending = {grid, block, dynamic_lds, stream};
    return hipSuccess;
}

hipError_t __hipPopCallConfiguration(dim3* grid, dim3* block, size_t* dynamic_lds, hipStream_t* stream) {
    *grid = pending.grid;
    *block = pending.block;
    *dynamic_lds = pending.dynamic_lds;
    *stream = pending.stream;
    return hipSuccess;
}

hipError_t hipLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments, size_t dynamic_lds,
                           hipStream_t stream) {
    Function found;
    untouched = nullptr;
    {
        const std::lock_guard<std::mutex> lock(mutex);
        idle_streams().erase(stream);
        const auto it = functions().find(function);
        if (it == functions().end()) return remember(hipErrorInvalidDeviceFunction);
        found = it->second;
    }
    const uint64_t threads = uint64_t(block.x) * block.y * block.z;
    if (!grid.x || !grid.y || !grid.z || !threads || threads > 1024) return remember(hipErrorInvalidConfiguration);
    if (!on_launch) return remember(hipErrorNotInitialized);
    const uint32_t grid3[] = {grid.x, grid.y, grid.z}, block3[] = {block.x, block.y, block.z};
    return remember(
        hipError_t(on_launch(found.bundle, found.name.c_str(), current_device, grid3, block3, dynamic_lds, arguments)));
}

hipError_t hipFuncSetAttribute(const void*, hipFuncAttribute, int) { return hipSuccess; }

// Errors.

hipError_t hipGetLastError() {
    const hipError_t code = last_error;
    last_error = hipSuccess;
    return code;
}
hipError_t hipPeekAtLastError() { return last_error; }
const char* hipGetErrorName(hipError_t code) { return code == hipSuccess ? "hipSuccess" : "hipError"; }
const char* hipGetErrorString(hipError_t code) {
    static thread_local char text[64];
    std::snprintf(text, sizeof text, "HIP error %d (from the simulator)", int(code));
    return text;
}

// Devices.

hipError_t hipGetDeviceCount(int* count) {
    *count = kDevices;
    return hipSuccess;
}
hipError_t hipGetDevice(int* device) {
    *device = current_device;
    return hipSuccess;
}
hipError_t hipSetDevice(int device) {
    if (device < 0 || device >= kDevices) return remember(hipErrorInvalidDevice);
    current_device = device;
    return hipSuccess;
}

hipError_t hipGetDevicePropertiesR0600(hipDeviceProp_tR0600* p, int device) {
    if (device < 0 || device >= kDevices) return remember(hipErrorInvalidDevice);
    std::memset(p, 0, sizeof *p);
    std::strcpy(p->gcnArchName, kArchNames[arch_of(device)]);
    std::strcpy(p->name, "simulated");
    p->multiProcessorCount = arch_of(device) == 0 ? 304 : 256;
    p->warpSize = 64;
    p->maxThreadsPerBlock = 1024;
    p->sharedMemPerBlock = arch_of(device) == 0 ? 64 << 10 : 160 << 10;
    return hipSuccess;
}

hipError_t hipDeviceGetAttribute(int* value, hipDeviceAttribute_t attribute, int device) {
    hipDeviceProp_tR0600 p;
    if (const hipError_t code = hipGetDevicePropertiesR0600(&p, device); code != hipSuccess) return code;
    switch (attribute) {
        case hipDeviceAttributeMultiprocessorCount: *value = p.multiProcessorCount; return hipSuccess;
        case hipDeviceAttributeWarpSize: *value = p.warpSize; return hipSuccess;
        case hipDeviceAttributeMaxThreadsPerBlock: *value = p.maxThreadsPerBlock; return hipSuccess;
        case hipDeviceAttributeMaxSharedMemoryPerBlock: *value = int(p.sharedMemPerBlock); return hipSuccess;
        default: return remember(hipErrorNotSupported);
    }
}

hipError_t hipDeviceSynchronize() { return in_order(); }

// As many as the device can hold at once is a question for the simulator's counters; hosts that ask size their grids.
hipError_t hipOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function, int threads, size_t lds) {
    std::string kernel;
    const void* bundle;
    {
        const std::lock_guard<std::mutex> lock(mutex);
        const auto it = functions().find(function);
        if (it == functions().end()) return remember(hipErrorInvalidDeviceFunction);
        kernel = it->second.name, bundle = it->second.bundle;
    }
    if (!on_occupancy) return remember(hipErrorNotInitialized);
    *blocks = on_occupancy(bundle, kernel.c_str(), current_device, threads, lds);
    return remember(*blocks > 0 ? hipSuccess : hipErrorInvalidConfiguration);
}

// Memory.

hipError_t hipMalloc(void** pointer, size_t size) {
    const size_t rounded = (size + kAlignment - 1) / kAlignment * kAlignment;
    *pointer = size ? std::aligned_alloc(kAlignment, rounded) : nullptr;
    if (size && !*pointer) return remember(hipErrorOutOfMemory);
    if (size && on_memory) on_memory(*pointer, size, current_device);
    untouched = *pointer;
    return hipSuccess;
}
hipError_t hipFree(void* pointer) {
    if (pointer && on_memory) on_memory(pointer, 0, current_device);
    std::free(pointer);
    return hipSuccess;
}
hipError_t hipMemset(void* pointer, int value, size_t size) {
    if (pointer != untouched && in_order() != hipSuccess) return hipErrorNotSupported;
    std::memset(pointer, value, size);
    return hipSuccess;
}
hipError_t hipMemsetAsync(void* pointer, int value, size_t size, hipStream_t) {
    return hipMemset(pointer, value, size);
}
hipError_t hipMemcpy(void* to, const void* from, size_t size, hipMemcpyKind) {
    if (in_order() != hipSuccess) return hipErrorNotSupported;
    std::memcpy(to, from, size);
    return hipSuccess;
}
hipError_t hipMemcpyAsync(void* to, const void* from, size_t size, hipMemcpyKind kind, hipStream_t) {
    return hipMemcpy(to, from, size, kind);
}

// Streams: everything has happened when a call returns.

hipError_t hipStreamCreateWithFlags(hipStream_t* stream, unsigned) {
    *stream = reinterpret_cast<hipStream_t>(new char);
    const std::lock_guard<std::mutex> lock(mutex);
    idle_streams().insert(*stream);
    return hipSuccess;
}
hipError_t hipStreamCreate(hipStream_t* stream) { return hipStreamCreateWithFlags(stream, 0); }
hipError_t hipStreamDestroy(hipStream_t stream) {
    const std::lock_guard<std::mutex> lock(mutex);
    idle_streams().erase(stream);
    delete reinterpret_cast<char*>(stream);
    return hipSuccess;
}
hipError_t hipStreamSynchronize(hipStream_t stream) {
    {
        const std::lock_guard<std::mutex> lock(mutex);
        if (idle_streams().contains(stream)) return hipSuccess;
    }
    return in_order();
}
hipError_t hipStreamQuery(hipStream_t) { return hipSuccess; }
hipError_t hipStreamWaitEvent(hipStream_t, hipEvent_t, unsigned) { return hipSuccess; }
// Of any other handle than those of hipStreamCreate: the handle itself, plus what simulator_set_stream_epoch says.
hipError_t hipStreamGetId(hipStream_t stream, unsigned long long* id) {
    *id = reinterpret_cast<uintptr_t>(stream) + stream_epoch;
    return hipSuccess;
}
hipError_t hipStreamIsCapturing(hipStream_t, hipStreamCaptureStatus* status) {
    *status = hipStreamCaptureStatusNone;
    return hipSuccess;
}
hipError_t hipStreamGetCaptureInfo(hipStream_t, hipStreamCaptureStatus* status, unsigned long long* id) {
    *status = capture ? hipStreamCaptureStatusActive : hipStreamCaptureStatusNone;
    if (id) *id = capture;
    return hipSuccess;
}
hipError_t hipStreamGetCaptureInfo_v2(hipStream_t, hipStreamCaptureStatus* status, unsigned long long* id, hipGraph_t*,
                                      const hipGraphNode_t**, size_t* dependencies) {
    if (dependencies) *dependencies = 0;
    return hipStreamGetCaptureInfo(nullptr, status, id);
}
hipError_t hipThreadExchangeStreamCaptureMode(hipStreamCaptureMode* mode) {
    std::swap(*mode, capture_mode);
    return hipSuccess;
}

// Events: everything before them has happened, and nothing here takes time.

hipError_t hipEventCreateWithFlags(hipEvent_t* event, unsigned) {
    *event = reinterpret_cast<hipEvent_t>(new char);
    return hipSuccess;
}
hipError_t hipEventCreate(hipEvent_t* event) { return hipEventCreateWithFlags(event, 0); }
hipError_t hipEventDestroy(hipEvent_t event) {
    delete reinterpret_cast<char*>(event);
    return hipSuccess;
}
hipError_t hipEventRecord(hipEvent_t, hipStream_t) { return hipSuccess; }
hipError_t hipEventSynchronize(hipEvent_t) { return in_order(); }
hipError_t hipEventQuery(hipEvent_t) { return hipSuccess; }
hipError_t hipEventElapsedTime(float* milliseconds, hipEvent_t, hipEvent_t) {
    *milliseconds = 0;
    return hipSuccess;
}

}  // extern "C"
