// Names of compiled forms: measured tables, tests and ROCM_FP8_KERNELS_CONFIG call forms by them, not by their places.
//
// A table's entries have a member `name`. GEMMs: tRxC, tiles of R rows by C columns of the result; s, n, b: those of
// streams, of swapped forms, of bulk copies. Attention: rR and dR, tiles of R rows. What else tells two forms apart follows.
#pragma once

#include <string_view>

namespace rocm_fp8 {

// Also a template argument, as part of a form. A number does not become a name.
struct FormName {
    char text[16] = {};

    constexpr FormName() = default;
    constexpr FormName(const char* name) {
        for (int i = 0; name[i]; ++i) text[i] = name[i];
    }
    constexpr operator std::string_view() const { return text; }
};

// The place of a form in its table. -1: no form has that name.
template <class Form, int count>
constexpr int place_of(const Form (&forms)[count], std::string_view name) {
    for (int i = 0; i < count; ++i) {
        if (name == std::string_view(forms[i].name)) return i;
    }
    return -1;
}

// Whether every form has a name, and no other form has the same.
template <class Form, int count>
constexpr bool names_differ(const Form (&forms)[count]) {
    for (int i = 0; i < count; ++i) {
        if (!forms[i].name.text[0] || place_of(forms, forms[i].name) != i) return false;
    }
    return true;
}

}  // namespace rocm_fp8
