// Stands in for the functions of torch's stable ABI that ask for a GPU, so that a GPU variant's own binding runs on CPU
// tensors: see simulated_rocm.py. Loaded before the variant, for all.
#include <cstdint>

extern "C" {

int32_t aoti_torch_create_device_guard(int32_t, void** guard) {
    static char none;
    *guard = &none;
    return 0;
}

int32_t aoti_torch_delete_device_guard(void*) { return 0; }

int32_t aoti_torch_get_current_cuda_stream(int32_t, void** stream) {
    *stream = nullptr;
    return 0;
}

}  // extern "C"
