// Rows of values that are quantised by a given scale or by scales computed of them: for every CPU kernel with such scales.
//
//     given    a part of kStage values is made, then its quotients
//     group    a part is made, then the maxima of its groups, their scales, their quotients
//     row      the whole row is made, with each part's maximum while the part is near; then the quotients
//     tensor   two passes over memory: the maximum of what is made, then `given`
//
// Values lie in a buffer that stays in the nearest caches, or where they are wanted as a result.
#pragma once

#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>

#include "../write_scale.h"
#include "../../cpu/lanes.h"
#include "run.h"

namespace rocm_fp8 {

// A launch's arguments, and with a scale for the whole tensor what its parts find: the largest finite magnitude, as the
// bits of a float.
template <class Args>
struct DynamicJob : Args {
    std::atomic<uint32_t>* parts;  // or nullptr
};

namespace {

// A magnitude as the integer of its bits, which has the same order, NaN at the top. Signed, because every x86-64
// processor has that maximum.
template <DType in>
using Magnitude = std::conditional_t<in == DType::f32, int32_t, int16_t>;
template <DType in>
constexpr Magnitude<in> kInfinity = in == DType::f32   ? 0x7F800000
                                    : in == DType::f16 ? 0x7C00
                                                       : 0x7F80;

// The largest magnitude of n numbers, or of the finite ones. The compiler's vectors serve: with n a constant, its loop has
// two instructions a register.
template <DType in, bool finite = false, class N>
inline Magnitude<in> largest_of(const void* x, N n) {
    using Integer = Magnitude<in>;
    const auto* bits = static_cast<const Integer*>(x);
    Integer largest = 0;
    for (int64_t i = 0; i < n; ++i) {
        Integer each = bits[i] & std::numeric_limits<Integer>::max();
        if (finite) each = each < kInfinity<in> ? each : Integer(0);
        largest = each > largest ? each : largest;
    }
    return largest;
}

// The largest magnitudes of `count` groups of `group` numbers.
template <DType in, int group>
inline void largest_of_groups(const void* x, int64_t count, Magnitude<in>* largest) {
    using N = std::integral_constant<int, group>;
    for (int64_t g = 0; g < count; ++g) largest[g] = largest_of<in>(at<in>(x, g * group), N());
}

// Quantises rows as a job asks. A thread's own.
template <class L, DType in, DType out_type>
class RowQuantizer {
    using Scale = typename L::Scale;
    enum Mode { kGiven, kGroup, kRow, kTensor };
    static constexpr int kGroupStage = 2048, kMostGroups = kGroupStage / 32;
    static_assert(kStage % 128 == 0 && kStage <= kGroupStage && kMostGroups % L::block == 0);

  public:
    template <class Args>
    explicit RowQuantizer(const DynamicJob<Args>& job)
        : rule_(job.dynamic),
          mode_(job.parts         ? kTensor
                : job.scale       ? kGiven
                : rule_.group > 0 ? kGroup
                                  : kRow),
          bound_(mode_ == kGroup || mode_ == kRow ? upper_bound(rule_) : 0.0f),
          given_(mode_ == kGiven ? *job.scale : 1.0f, Fp8Format<out_type>::max),
          parts_(job.parts) {}
    RowQuantizer(const RowQuantizer&) = delete;
    ~RowQuantizer() {
        if (!parts_) return;
        // A maximum is the same in any order.
        const uint32_t bits = float_bits(to_float(largest_));
        for (uint32_t seen = *parts_; seen < bits && !parts_->compare_exchange_weak(seen, bits);) {
        }
    }

    // Quantises a row of d values. Prefetches `next`, the row after it.
    void quantize(int64_t row, int64_t d, const void* values, void* out, const void* next) {
        const Scale given = given_;  // no store changes a copy
        if (mode_ == kGiven) return L::template quantize<out_type, in>(values, out, d, given);
        if (mode_ == kGroup) {
            for (int64_t i = 0; i < d; i += kGroupStage) {
                const int64_t ahead =
                    std::min<int64_t>(i + kGroupStage, d);  // of this row or, after its end, of the next
                quantize_groups(row, i, std::min<int64_t>(kGroupStage, d - i), at<in>(values, i), at<out_type>(out, i),
                                ahead < d ? at<in>(values, ahead) : next);
            }
            return;
        }
        note(values, d);
        if (mode_ == kRow) quantize_whole(row, d, values, out, next);
    }

    // Makes a row of d values and quantises it. make(first, length, to) writes values [first, first + length) to `to`.
    // `kept`: where all of them are wanted, or nullptr.
    template <class Make>
    void make(int64_t row, int64_t d, void* kept, void* out, const Make& make) {
        const bool whole = kept || mode_ == kRow;
        if (!kept && !buffer_) {
            buffer_.reset(new Line[(whole ? d : kStage) * element_size(in) / sizeof(Line) + 1]);
        }
        void* const values = kept ? kept : buffer_.get();
        const Scale given = given_;
        for (int64_t first = 0; first < d; first += kStage) {
            const int64_t length = std::min<int64_t>(kStage, d - first);
            void* const to = whole ? at<in>(values, first) : values;
            make(first, length, to);
            if (mode_ == kGiven) L::template quantize<out_type, in>(to, at<out_type>(out, first), length, given);
            else if (mode_ == kGroup) quantize_groups(row, first, length, to, at<out_type>(out, first), to);
            else note(to, length);
        }
        if (mode_ == kRow) quantize_whole(row, d, values, out, values);
    }

  private:
    struct alignas(64) Line {
        char bytes[64];
    };

    static float to_float(Magnitude<in> magnitude) {
        float value;
        L::template store<DType::f32, in>(&value, L::template load<in, in>(&magnitude, 1), 1);
        return value;
    }

    void note(const void* values, int64_t n) {
        using N = std::integral_constant<int, 128>;
        Magnitude<in> found = 0;
        int64_t i = 0;
        for (; i + N() <= n; i += N()) found = std::max(found, largest_of<in>(at<in>(values, i), N()));
        found = std::max(found, largest_of<in>(at<in>(values, i), n - i));
        if (__builtin_expect(found >= kInfinity<in>, 0)) {
            found = largest_of<in, true>(values, n);
            finite_ = false;
        }
        largest_ = std::max(largest_, found);
    }

    // A row's quotients, by the scale of what was noted.
    void quantize_whole(int64_t row, int64_t d, const void* values, void* out, const void* next) {
        const float scale = scale_of(to_float(largest_), rule_, bound_);
        write_scale(rule_, row, 0, scale);
        quotients(values, out, d, 1, &scale, finite_, next);
        largest_ = 0;
        finite_ = true;
    }

    // Quantises a row's values [first, first + n), at most kStage, by their groups' scales. `values` and `out` are those
    // of `first`, which begins a group. The maxima come first, together, so that the scales' divisions are vectors'.
    void quantize_groups(int64_t row, int64_t first, int64_t n, const void* values, void* out, const void* ahead) {
        alignas(64) Magnitude<in> largest[kMostGroups] = {};
        alignas(64) float scales[kMostGroups];
        const int64_t group = rule_.group, whole = n / group;
        if (group == 128) largest_of_groups<in, 128>(values, whole, largest);
        else if (group == 64) largest_of_groups<in, 64>(values, whole, largest);
        else largest_of_groups<in, 32>(values, whole, largest);
        int64_t count = whole;
        if (whole * group < n) largest[count++] = largest_of<in>(at<in>(values, whole * group), n - whole * group);

        Magnitude<in> top = 0;
        for (int64_t g = 0; g < count; ++g) top = std::max(top, largest[g]);
        const bool finite = top < kInfinity<in>;
        if (__builtin_expect(!finite, 0)) {
            for (int64_t g = 0; g < count; ++g) {
                largest[g] = largest_of<in, true>(at<in>(values, g * group), std::min<int64_t>(group, n - g * group));
            }
        }
        for (int64_t g = 0; g < count; g += L::block) {
            using Whole = std::integral_constant<int, L::block>;
            L::template store<DType::f32, in>(scales + g, L::template load<in, in>(largest + g, Whole()), Whole());
        }
        for (int64_t g = 0; g < count; ++g) scales[g] = scale_of(scales[g], rule_, bound_);
        for (int64_t g = 0; g < count; ++g) write_scale(rule_, row, first / group + g, scales[g]);
        quotients(values, out, group, whole, scales, finite, ahead);
        if (whole < count) {
            const int64_t i = whole * group;
            quotients(at<in>(values, i), at<out_type>(out, i), n - i, 1, scales + whole, finite, at<in>(ahead, i));
        }
    }
    // Quantises `count` groups of `group` values, each by its own scale.
    static void quotients(const void* values, void* out, int64_t group, int64_t count, const float* scales, bool finite,
                          const void* ahead) {
        for (int64_t g = 0; g < count; ++g) {
            const void* const from = at<in>(values, g * group);
            void* const to = at<out_type>(out, g * group);
            int64_t done = 0;
            if (__builtin_expect(finite && Scale::is_usual(scales[g]), 1)) {
                const Scale s(scales[g], Fp8Format<out_type>::max);
                done = L::template quantize_finite<out_type, in>(from, to, group, s, at<in>(ahead, g * group));
            }
            if (__builtin_expect(done < group, 0)) {
                rare_quotients(at<in>(from, done), at<out_type>(to, done), group - done, scales[g]);
            }
        }
    }
    __attribute__((noinline)) static void rare_quotients(const void* values, void* out, int64_t n, float scale) {
        L::template quantize<out_type, in>(values, out, n, Scale(scale, Fp8Format<out_type>::max));
    }

    const DynamicScale rule_;
    const Mode mode_;
    const float bound_;
    const Scale given_;
    std::atomic<uint32_t>* const parts_;
    std::unique_ptr<Line[]> buffer_;
    Magnitude<in> largest_ = 0;  // finite, of the row (kRow) or of all rows (kTensor)
    bool finite_ = true;         // whether all of them are
};

// A launch by a scale that is given or computed. With one for the whole tensor the kernels run twice: for the maximum,
// then by its scale. again(args) makes the second run's arguments of the first one's.
template <class Args, class Again>
Status launch_dynamic(const Args& args, const RowsKernels<DynamicJob<Args>>& kernels, const Executor& on,
                      const Again& again) {
    DynamicJob<Args> job{args, nullptr};
    if (args.scale || args.dynamic.group != DynamicScale::kTensor || args.rows == 0 || args.d == 0) {
        return launch_rows(job, kernels, on);
    }
    std::atomic<uint32_t> largest{0};
    job.parts = &largest;
    if (const Status status = launch_rows(job, kernels, on); !status.ok()) return status;
    const float scale = scale_of(bits_float(largest), args.dynamic, upper_bound(args.dynamic));
    write_scale(args.dynamic, 0, 0, scale);
    job = {args, nullptr};
    job.scale = &scale;
    again(job);
    return launch_rows(job, kernels, on);
}

}  // namespace
}  // namespace rocm_fp8
