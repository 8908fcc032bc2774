// Checks of tensor arguments. A message names the operator, the argument, what was got and what is allowed:
//
//     RuntimeError: rms_norm_fp8: weight: shape [4]; needs [d] = [8]
//
// Everything is checked before a launcher is called, so a refused call has written nothing. The Python functions raise
// the same type, because torch's stable ABI turns every C++ exception into RuntimeError.
#pragma once

#include <torch/csrc/stable/device.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "../common/types.h"

namespace rocm_fp8::binding {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

const char* name_of(DType t) {
    switch (t) {
        case DType::f32: return "float32";
        case DType::f16: return "float16";
        case DType::bf16: return "bfloat16";
        case DType::e4m3fn: return "float8_e4m3fn";
        case DType::e4m3fnuz: return "float8_e4m3fnuz";
        case DType::e8m0: return "float8_e8m0fnu";
        case DType::i8: return "int8";
        case DType::i32: return "int32";
        case DType::e2m1: return "uint8";
    }
    return "?";
}

std::optional<DType> dtype_of(ScalarType t) {
    switch (t) {
        case ScalarType::Float: return DType::f32;
        case ScalarType::Half: return DType::f16;
        case ScalarType::BFloat16: return DType::bf16;
        case ScalarType::Float8_e4m3fn: return DType::e4m3fn;
        case ScalarType::Float8_e4m3fnuz: return DType::e4m3fnuz;
        case ScalarType::Float8_e8m0fnu: return DType::e8m0;
        case ScalarType::Char: return DType::i8;
        case ScalarType::Int: return DType::i32;
        default: return std::nullopt;
    }
}

// Used in place of torch's own check, whose message begins with a C++ function name and a source line.
template <class... Parts>
[[noreturn]] void refuse(const char* op, const Parts&... parts) {
    std::ostringstream message;
    message << op << ": ";
    (message << ... << parts);
    throw std::runtime_error(message.str());
}

template <class Ints>
std::string list(const Ints& values) {
    std::string s = "[";
    for (size_t i = 0; i < values.size(); ++i) s += (i ? ", " : "") + std::to_string(values[i]);
    return s + "]";
}

// One tensor under its operator's and its argument's name.
class Arg {
  public:
    Arg(const char* op, const char* name, const Tensor& tensor) : op_(op), name_(name), t_(tensor) {
        if (!tensor.defined()) refuse("None; needs a tensor");
    }

    template <class... Parts>
    [[noreturn]] void refuse(const Parts&... parts) const {
        binding::refuse(op_, name_, ": ", parts...);
    }

    int64_t dim() const { return t_.dim(); }
    int64_t size(int64_t i) const { return t_.size(i); }
    int64_t numel() const { return t_.numel(); }
    int64_t last() const { return t_.size(t_.dim() - 1); }
    const void* data() const { return t_.const_data_ptr(); }
    void* mutable_data() const { return t_.mutable_data_ptr(); }
    const Tensor& tensor() const { return t_; }

    DType dtype(std::initializer_list<DType> allowed) const {
        const std::optional<DType> got = dtype_of(t_.scalar_type());
        std::string names;
        for (DType d : allowed) {
            if (got == d) return d;
            names += (names.empty() ? "" : ", ") + std::string(name_of(d));
        }
        refuse("dtype ", got ? name_of(*got) : torch::headeronly::toString(t_.scalar_type()), "; allowed: ", names);
    }

    void check_device_of(const Arg& other) const {
        if (t_.device() == other.t_.device()) return;
        refuse("on device ", device(), ", but ", other.name_, " is on ", other.device());
    }

    void check_dim(int64_t dim) const {
        if (t_.dim() != dim) refuse(t_.dim(), " dimensions (shape ", shape(), "); needs ", dim);
    }

    void check_shape(std::initializer_list<int64_t> wanted, const char* meaning) const {
        bool same = t_.dim() == int64_t(wanted.size());
        for (int64_t i = 0; same && i < t_.dim(); ++i) same = t_.size(i) == wanted.begin()[i];
        if (!same) refuse("shape ", shape(), "; needs ", meaning, " = ", list(std::vector<int64_t>(wanted)));
    }

    // All leading dimensions as other's; the last one `last`.
    void check_rows_of(const Arg& other, int64_t last) const {
        bool same = t_.dim() == other.t_.dim() && this->last() == last;
        for (int64_t i = 0; same && i + 1 < t_.dim(); ++i) same = t_.size(i) == other.t_.size(i);
        if (same) return;
        refuse("shape ", shape(), "; needs ", other.name_, "'s leading dimensions (shape ", other.shape(),
               ") and last dimension ", last);
    }

    void check_dense() const {
        for (int64_t i = t_.dim() - 1, stride = 1; i >= 0; stride *= std::max<int64_t>(t_.size(i--), 1))
            if (t_.size(i) > 1 && t_.stride(i) != stride)
                refuse("shape ", shape(), " with strides ", list(t_.strides()), "; needs a contiguous tensor");
    }

    void check_last_contiguous() const {
        const int64_t stride = t_.stride(t_.dim() - 1);
        if (last() > 1 && stride != 1) refuse("last dimension has stride ", stride, "; needs 1");
    }

    // One float32 element, on other's device.
    const float* scale_of(const Arg& other) const { return static_cast<const float*>(one_element(DType::f32, other)); }

    // The same of another type.
    const void* one_element(DType type, const Arg& other) const {
        dtype({type});
        check_device_of(other);
        if (t_.numel() != 1) refuse(t_.numel(), " elements (shape ", shape(), "); needs 1");
        return data();
    }

    // [..., d] as rows with one stride; the last dimension contiguous.
    int64_t row_stride() const {
        check_last_contiguous();
        return leading_stride();
    }

    // The same with any stride of the last dimension.
    int64_t leading_stride() const {
        if (const std::optional<int64_t> stride = common_stride()) return *stride;
        refuse("leading dimensions of shape ", shape(), " with strides ", list(t_.strides()),
               " do not collapse into rows with one stride");
    }

    // Of a tensor that is written, whose last dimension is contiguous and whose leading dimensions have any strides.
    void check_no_self_overlap() const {
        if (t_.numel() == 0) return;
        std::vector<std::pair<int64_t, int64_t>> dims;  // stride, size
        for (int64_t i = 0; i + 1 < t_.dim(); ++i)
            if (t_.size(i) > 1) dims.emplace_back(t_.stride(i), t_.size(i));
        std::sort(dims.begin(), dims.end());
        int64_t reach = last();  // of the dimensions with smaller strides
        for (const auto& [stride, size] : dims) {
            if (stride < reach) refuse("shape ", shape(), " with strides ", list(t_.strides()), " overlaps itself");
            reach += stride * (size - 1);
        }
    }

    // Of a tensor that is written: rows may not share memory.
    int64_t written_row_stride() const {
        const int64_t stride = row_stride();
        if (rows() <= 1 || stride >= last()) return stride;
        refuse("rows of ", last(), " elements are ", stride, " apart; a tensor that is written may not overlap itself");
    }

    int64_t rows() const { return last() == 0 ? 0 : t_.numel() / last(); }

    // Rows of this tensor and of other share no byte.
    void check_apart_from(const Arg& other) const {
        if (numel() == 0 || other.numel() == 0) return;
        const Extent p = extent(), q = other.extent();
        if (p.begin + p.bytes() <= q.begin || q.begin + q.bytes() <= p.begin) return;
        // Column ranges of one buffer interleave without touching.
        if (p.stride == q.stride && p.stride > 0) {
            const int64_t offset = ((q.begin - p.begin) % p.stride + p.stride) % p.stride;
            if (offset >= p.width && offset + q.width <= p.stride) return;
        }
        refuse("overlaps ", other.name_, " in memory");
    }

    std::string shape() const { return list(t_.sizes()); }

  private:
    struct Extent {
        int64_t begin, stride, width, rows;
        int64_t bytes() const { return (rows - 1) * stride + width; }
    };
    // Of all rows; nothing where the leading dimensions do not collapse.
    std::optional<int64_t> common_stride() const {
        int64_t stride = last(), expected = 0;
        if (t_.numel() == 0) return stride;
        bool first = true;
        for (int64_t i = t_.dim() - 2; i >= 0; --i) {
            if (t_.size(i) == 1) continue;
            if (first) {
                stride = t_.stride(i);
                first = false;
            } else if (t_.stride(i) != expected) {
                return std::nullopt;
            }
            expected = t_.stride(i) * t_.size(i);
        }
        return stride;
    }
    Extent extent() const {
        const int64_t begin = reinterpret_cast<int64_t>(data()), size = t_.element_size();
        if (t_.dim() >= 2 && (last() == 1 || t_.stride(t_.dim() - 1) == 1) && common_stride())
            return {begin, *common_stride() * size, last() * size, rows()};
        // Anything else (scales, biases, weights, batches): from its first element to its last.
        int64_t span = 1;
        for (int64_t i = 0; i < t_.dim(); ++i) span += (t_.size(i) - 1) * t_.stride(i);
        return {begin, 0, span * size, 1};
    }
    std::string device() const {
        const auto d = t_.device();
        return t_.is_cpu() ? "cpu" : (t_.is_cuda() ? "cuda:" : "device:") + std::to_string(d.index());
    }

    const char *op_, *name_;
    const Tensor& t_;
};

}  // namespace
}  // namespace rocm_fp8::binding
