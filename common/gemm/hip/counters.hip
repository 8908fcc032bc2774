#include "counters.h"

#include <hip/hip_runtime.h>

#include <atomic>
#include <map>
#include <mutex>
#include <tuple>

namespace rocm_fp8 {
namespace {

constexpr int kSetsAtOnce = 64;  // 256 KiB

struct Pool {
    uint32_t* next = nullptr;
    int left = 0;
};

// Allocates zeroed memory, also during a capture: it uses its own stream and waits for it before it returns.
hipError_t allocate_zeroed(uint32_t** memory, size_t bytes) {
    hipStreamCaptureMode mode = hipStreamCaptureModeRelaxed;
    hipError_t code = hipThreadExchangeStreamCaptureMode(&mode);
    if (code != hipSuccess) return code;
    hipStream_t own = nullptr;
    code = hipMalloc(reinterpret_cast<void**>(memory), bytes);
    if (code == hipSuccess) code = hipStreamCreateWithFlags(&own, hipStreamNonBlocking);
    if (code == hipSuccess) code = hipMemsetAsync(*memory, 0, bytes, own);
    if (code == hipSuccess) code = hipStreamSynchronize(own);
    if (own) (void)hipStreamDestroy(own);
    (void)hipThreadExchangeStreamCaptureMode(&mode);
    return code;
}

// A number per thread, from 1 on, never reused.
unsigned long long number_of_thread() {
    static std::atomic<unsigned long long> threads{0};
    static thread_local const unsigned long long number = ++threads;
    return number;
}

}  // namespace

CountersResult counters_for(void* stream) {
    const auto fail = [](hipError_t code) { return CountersResult{nullptr, {hipGetErrorString(code)}}; };
    int device = 0;
    if (const hipError_t code = hipGetDevice(&device); code != hipSuccess) return fail(code);
    hipStreamCaptureStatus capturing = hipStreamCaptureStatusNone;
    unsigned long long capture = 0;
    const hipError_t code = hipStreamGetCaptureInfo(static_cast<hipStream_t>(stream), &capturing, &capture);
    if (code == hipErrorStreamCaptureImplicit) {
        // The legacy stream, while another stream is captured. It cannot be captured itself.
        (void)hipGetLastError();
        capturing = hipStreamCaptureStatusNone;
    } else if (code != hipSuccess) {
        return fail(code);
    }
    if (capturing != hipStreamCaptureStatusActive) capture = 0;

    unsigned long long id = 0;
    if (const hipError_t failed = hipStreamGetId(static_cast<hipStream_t>(stream), &id); failed != hipSuccess) {
        return fail(failed);
    }
    const unsigned long long thread = stream == hipStreamPerThread ? number_of_thread() : 0;

    static std::mutex mutex;
    static std::map<int, Pool> pools;
    static std::map<std::tuple<int, unsigned long long, unsigned long long, unsigned long long>, uint32_t*> sets;
    const std::lock_guard<std::mutex> lock(mutex);
    uint32_t*& set = sets[{device, id, thread, capture}];
    if (!set) {
        Pool& pool = pools[device];
        if (pool.left == 0) {
            uint32_t* memory = nullptr;
            constexpr size_t kBytes = size_t(kSetsAtOnce) * kCounters * sizeof(uint32_t);
            if (const hipError_t failed = allocate_zeroed(&memory, kBytes); failed != hipSuccess) return fail(failed);
            pool = {memory, kSetsAtOnce};
        }
        set = pool.next;
        pool.next += kCounters;
        --pool.left;
    }
    return {set, {}};
}

}  // namespace rocm_fp8
