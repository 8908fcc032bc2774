// How a binding file registers its operators:
//
//     ROCM_FP8_OPERATORS(ops) {
//         ops.add<&swiglu_fp8>("swiglu_fp8(Tensor(a!) out, Tensor x, Tensor scale) -> ()");
//     }
//
// They write into `out` and return nothing. So no operator allocates, torch.compile sees every write in the schema, and the
// Python functions allocate. What Python needs of an operator beside its function (fakes, counts) follows from its schema.
#pragma once

#include <torch/csrc/stable/library.h>

#include <atomic>
#include <string>
#include <string_view>

namespace rocm_fp8::binding {

// An operator's calls; refused ones do not count. Initialised before any code runs: files register in any order.
struct Count {
    std::string_view name;
    std::atomic<int64_t> calls = 0;
    Count* next = nullptr;  // the operator that was registered before it
};
inline Count* counts = nullptr;  // written while the library is loaded

template <auto operate>
struct Counted;
template <class... Arguments, void (*operate)(Arguments...)>
struct Counted<operate> {
    static constinit inline Count count;
    static void call(Arguments... arguments) {
        operate(arguments...);
        count.calls.fetch_add(1, std::memory_order_relaxed);
    }
};

namespace {

// A file's operators are named twice to torch: their schemas, then the functions for the backend.
class Operators {
  public:
    Operators(torch::stable::detail::StableLibrary& library, bool schemas) : library_(library), schemas_(schemas) {}

    template <auto operate>
    void add(const char* schema) {
        if (schemas_) {
            library_.def(schema);
            return;
        }
        Count& count = Counted<operate>::count;
        count.name = std::string_view(schema).substr(0, std::string_view(schema).find('('));
        count.next = counts;
        counts = &count;
        library_.impl(std::string(count.name).c_str(), TORCH_BOX(&Counted<operate>::call));
    }

  private:
    torch::stable::detail::StableLibrary& library_;
    const bool schemas_;
};

}  // namespace
}  // namespace rocm_fp8::binding

// The macros of torch take names as they stand: these expand TORCH_EXTENSION_NAME first.
#define ROCM_FP8_SCHEMAS(name, library) STABLE_TORCH_LIBRARY_FRAGMENT(name, library)
#define ROCM_FP8_FUNCTIONS(name, key, library) STABLE_TORCH_LIBRARY_IMPL(name, key, library)
#if defined(CPU_KERNEL)
#define ROCM_FP8_KEY CPU
#else
#define ROCM_FP8_KEY CUDA
#endif
#define ROCM_FP8_OPERATORS(ops)                                       \
    static void add_operators(rocm_fp8::binding::Operators&);         \
    ROCM_FP8_SCHEMAS(TORCH_EXTENSION_NAME, library) {                 \
        rocm_fp8::binding::Operators operators(library, true);        \
        add_operators(operators);                                     \
    }                                                                 \
    ROCM_FP8_FUNCTIONS(TORCH_EXTENSION_NAME, ROCM_FP8_KEY, library) { \
        rocm_fp8::binding::Operators operators(library, false);       \
        add_operators(operators);                                     \
    }                                                                 \
    static void add_operators(rocm_fp8::binding::Operators& ops)
