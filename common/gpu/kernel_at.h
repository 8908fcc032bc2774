// One of a table's compiled forms, by an index that is known at run time alone.
#pragma once

namespace rocm_fp8 {

// make.operator()<index>(), 0 <= index < count: the kernel of kTable[index], or what else belongs to it.
template <int count, int first = 0, class Make>
auto kernel_at(int index, const Make& make) {
    if constexpr (first + 1 < count) {
        if (index != first) return kernel_at<count, first + 1>(index, make);
    }
    return make.template operator()<first>();
}

}  // namespace rocm_fp8
