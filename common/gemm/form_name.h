// Names of compiled forms: measured tables, tests and ROCM_FP8_KERNELS_CONFIG call forms by them, not by their places.
//
// A table's entries have a member `char name[kNameLength]`. tRxC: tiles of R rows by C columns of the result; s, n: those
// of streams and of swapped forms. What else tells two forms apart follows.
#pragma once

#include <string_view>

namespace rocm_fp8::gemm {

constexpr int kNameLength = 16;

// The place of a form in its table. -1: no form has that name.
template <class Form, int count>
constexpr int place_of(const Form (&forms)[count], std::string_view name) {
    for (int i = 0; i < count; ++i) {
        if (name == forms[i].name) return i;
    }
    return -1;
}

// Whether every form has a name, and no other form has the same.
template <class Form, int count>
constexpr bool names_differ(const Form (&forms)[count]) {
    for (int i = 0; i < count; ++i) {
        if (!forms[i].name[0] || place_of(forms, forms[i].name) != i) return false;
    }
    return true;
}

}  // namespace rocm_fp8::gemm
