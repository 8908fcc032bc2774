// The configuration that a variable names (common/forced.h), for a Hopper GEMM.
#pragma once

#include "../../forced.h"
#include "choice.h"

namespace rocm_fp8::tiles {

// Replaces what was picked, where the variable is set. An error if the arguments do not allow it.
template <int count, class Suits>
inline Status force_config(std::string_view op, const Form (&forms)[count], const Size& size, const Suits& suits,
                           Config* config) {
    ForcedConfig forced;
    const auto place = [&](std::string_view name) { return place_of(forms, name); };
    if (const Status s = read_forced_config(op, place, kMostSplits, true, &forced); !s.ok() || !forced.set) return s;
    if (forced.shape == kFallback) {
        *config = {};
        return {};
    }
    const Form& form = forms[forced.shape];
    *config = {forced.shape, forced.splits, forced.pieces};
    if (!suits(form) || !takes(form, *config, size)) {
        return {kUnfit};
    }
    if (!config->pieces) config->pieces = int(fewest_pieces(form, size));
    return {};
}

}  // namespace rocm_fp8::tiles
