// The configuration that an environment variable names replaces what a GPU backend's configuration function picks: for
// tuning and tests.
//
//     ROCM_FP8_KERNELS_CONFIG=OPERATOR:FORM[,split=N][,pieces=P][;OPERATOR:...]
//
// FORM: a name in the backend's table (form_name.h), or fallback. split: parts of K, or of a sequence's tokens. pieces: of the
// columns, or the wide rows (CUDA).
#pragma once

#include <algorithm>
#include <charconv>
#include <string_view>

#include "environment.h"
#include "types.h"

namespace rocm_fp8 {

struct ForcedConfig {
    bool set = false;  // the variable names the operator
    int shape = 0, splits = 1;
    int pieces = 0;  // 0: not named
};

// Of which there may be entries. tests/gpu/test_rocm_forced_configs.py holds it to the schemas.
constexpr std::string_view kForcedOperators[] = {"skinny_gemm", "block_scaled_gemm", "int8_gemm", "grouped_gemm",
                                                 "mla_decode"};
constexpr const char* kUnfit = "ROCM_FP8_KERNELS_CONFIG names a configuration that cannot take these arguments";

// Text before the first `mark`, which is taken away with it.
inline std::string_view taken_until(char mark, std::string_view* text) {
    const size_t at = text->find(mark);
    const std::string_view before = text->substr(0, at);
    *text = at == std::string_view::npos ? std::string_view() : text->substr(at + 1);
    return before;
}

// Whether text is a whole number from `least` on.
inline bool read_number(std::string_view text, int least, int* number) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
    return error == std::errc() && end == text.data() + text.size() && *number >= least;
}

// The entry of `op`; name: its form's. False where the text is no list of entries.
inline bool named_config(std::string_view text, std::string_view op, ForcedConfig* forced, std::string_view* name) {
    while (!text.empty()) {
        std::string_view entry = taken_until(';', &text);
        if (entry.ends_with(',')) return false;
        const std::string_view whose = taken_until(':', &entry);
        const auto is = [&](std::string_view name) { return name == whose; };
        if (!std::any_of(std::begin(kForcedOperators), std::end(kForcedOperators), is)) return false;
        ForcedConfig found{true};
        const std::string_view form = taken_until(',', &entry);
        while (!entry.empty()) {
            std::string_view value = taken_until(',', &entry);
            const std::string_view key = taken_until('=', &value);
            if (key == "split" ? !read_number(value, 1, &found.splits)
                               : key != "pieces" || !read_number(value, 1, &found.pieces)) {
                return false;
            }
        }
        if (whose == op) *forced = found, *name = form;
    }
    return true;
}

// place_of(name): of a form in the backend's table, -1 for none.
template <class PlaceOf>
Status read_forced_config(std::string_view op, const PlaceOf& place_of, int most_splits, bool takes_pieces,
                          ForcedConfig* forced) {
    std::string_view name;
    if (!named_config(environment().config, op, forced, &name)) {
        return {
            "ROCM_FP8_KERNELS_CONFIG is not OPERATOR:FORM[,split=N][,pieces=P], one or more with ; between them, of "
            "GEMMs that have scales of both operands"};
    }
    if (!forced->set) return {};
    forced->shape = place_of(name);
    if (forced->shape < 0 && name != "fallback") return {"ROCM_FP8_KERNELS_CONFIG names a form that is unknown"};
    if (forced->splits > most_splits || (forced->pieces && !takes_pieces)) return {kUnfit};
    return {};
}

}  // namespace rocm_fp8
