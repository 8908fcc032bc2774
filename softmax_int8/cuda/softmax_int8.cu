#include "../softmax_int8.h"

namespace rocm_fp8::softmax_int8 {

Status launch(const Args&, const Executor&) { return {"the kernel is not yet on this backend"}; }

}  // namespace rocm_fp8::softmax_int8
