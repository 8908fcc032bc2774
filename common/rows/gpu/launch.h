// How the kernels of quantize.h are launched, by sizes and modes. An operator names its kernels by a type `Kernels`:
//
//     Source                         what the values are
//     flat<scale, held>()            kernel(Source, QuantizedRows, FlatWork, Maxima)
//     row<holder, held>()            kernel(Source, QuantizedRows)
//     any<scale>()                   kernel(Source, QuantizedRows, Maxima)
//     largest<by_vector>()           kernel(Source, rows, d, FlatWork, maxima, kept)
//
// and the vendor by a type with its chip's numbers and launch(kernel, workgroups, threads, cluster, arguments...).
#pragma once

#include "../../gpu/kernel_at.h"
#include "quantize.h"

namespace rocm_fp8 {
namespace {

constexpr int kGroupsAUnit = 8;        // workgroups a compute unit that fill it
constexpr int kFetchedVectors = 1024;  // a compute unit, fetched into L2 before the previous kernel ends

// What was fastest on an H200, for a Source's `tuning`: docs/journal/quantize_fp8-cuda.md, swiglu_fp8-cuda.md. Vectors
// are those of all rows, a compute unit (multiprocessor).
struct RowsTuning {
    // Flat kernels: up to `spread` vectors workgroups of one wave, up to `single` one vector a thread. More threads are
    // more loads in flight; two vectors a thread are fewer exchanges a value.
    int spread, single;
    int threads;  // of larger workgroups, but for more than 1500 vectors with one a thread
    // Rows: clusters as long as they are no more CTAs than so many a multiprocessor; smaller ones if large ones are too
    // many. From `many` vectors on each thread holds four at least: fewer threads meet for a maximum.
    int cluster_fill;
    bool small_clusters;
    int many;
};

// Which vector kernels can take the operands, whose FP8 format must be the chip's. `neighbours`: two vectors a thread,
// next to each other.
struct Fit {
    bool vectors, neighbours;
};

constexpr RowForm kRowForms[] = {{Holder::wave, 1},      {Holder::wave, 2},      {Holder::wave, 4},
                                 {Holder::workgroup, 1}, {Holder::workgroup, 2}, {Holder::workgroup, 4},
                                 {Holder::workgroup, 8},
#if defined(__CUDACC__)
                                 {Holder::cluster, 1}
#endif
};
constexpr int kRowFormCount = sizeof(kRowForms) / sizeof(kRowForms[0]);

struct RowConfig {
    int form;  // of kRowForms; -1: rows are too long
    int threads;
    int64_t groups;
    int cluster;
};

// For rows of so many vectors. float32 rows of eight vectors a thread do not fit in registers. Few rows are spread over
// as many threads as there may be, because their latency is the time.
constexpr RowConfig row_config(int64_t rows, int64_t vectors, DType type, const RowsTuning& tuning, int units,
                               bool clusters) {
    const auto threads = [&](int64_t vectors_each) { return ceil_div(vectors, vectors_each * kLanes) * kLanes; };
    for (int cluster = clusters ? 8 : 1; cluster > 1; cluster /= 2) {
        constexpr int kFewest = 128;  // threads
        if (vectors < cluster * kFewest || threads(cluster) > kMostRowThreads) continue;
        if (rows * cluster <= int64_t(tuning.cluster_fill) * units)
            return {kRowFormCount - 1, int(threads(cluster)), rows * cluster, cluster};
        if (!tuning.small_clusters) break;
    }
    const bool many = rows * vectors > int64_t(tuning.many) * units;
    for (int form = 0; form < kRowFormCount; ++form) {
        const auto [holder, held] = kRowForms[form];
        if (holder == Holder::cluster || (held == 8 && type == DType::f32)) continue;
        if (vectors > int64_t(held) * (holder == Holder::wave ? kLanes : kMostRowThreads)) continue;
        if (holder == Holder::workgroup && many && held < 4 && vectors > 4 * kLanes) continue;
        if (holder == Holder::wave) return {form, kRowsThreads, ceil_div(rows, kRowsThreads / kLanes), 1};
        return {form, int(threads(held)), rows, 1};
    }
    return {-1, 0, 0, 1};
}

template <class Kernels, class Vendor>
Status launch_by_element(const typename Kernels::Source& source, const QuantizedRows& to, const Maxima& maxima,
                         const Vendor& vendor) {
    constexpr int64_t kMostGroups = int64_t(1) << 20;  // the kernel's loop takes the rest
    const auto kernel = to.scale      ? Kernels::template any<kGiven>()
                        : maxima.data ? Kernels::template any<kFromMaxima>()
                                      : Kernels::template any<kComputed>();
    return vendor.launch(kernel, to.rows < kMostGroups ? to.rows : kMostGroups, kRowsThreads, 1, source, to, maxima);
}

// scale: kGiven, kFromMaxima, 32, 64 or 128. Of long rows one range of columns after the other.
template <class Kernels, class Vendor>
Status launch_flat(const typename Kernels::Source& source, const QuantizedRows& to, int scale, const Fit& fit,
                   const Maxima& maxima, const Vendor& vendor) {
    const int64_t at_once = columns_at_once(to.rows, to.d, Kernels::Source::kElementBytes);
    if (fit.vectors && at_once < to.d) {
        return each_columns(to.d, at_once, [&](int64_t first, int64_t count) {
            return launch_flat<Kernels>(source.from(0, first), to.columns(first, count), scale, fit, maxima, vendor);
        });
    }
    constexpr RowsTuning kTuning = Kernels::Source::tuning;
    const int64_t vectors = to.rows * (to.d / kEight), a_unit = vectors / vendor.units;
    const int held = fit.neighbours && (a_unit > kTuning.single || scale == kFromMaxima) ? 2 : 1;
    const int64_t a_row =
        scale > kFromMaxima ? ceil_div(to.d, scale) * (scale / (kEight * held)) : to.d / (kEight * held);
    const int64_t count = to.rows * a_row;
    if (!fit.vectors || count >= kMostVectors) return launch_by_element<Kernels>(source, to, maxima, vendor);
    const bool fill = scale == kFromMaxima || (held == 1 && a_unit > 1500);
    const int threads = fill ? kRowsThreads : a_unit <= kTuning.spread ? kLanes : kTuning.threads;
    int64_t groups = ceil_div(count, threads);
    if (scale == kFromMaxima && groups > kGroupsAUnit * int64_t(vendor.units))
        groups = kGroupsAUnit * int64_t(vendor.units);
    const FlatWork work{divider_by(uint32_t(a_row)), uint32_t(count),
                        uint32_t(int64_t(kFetchedVectors) * vendor.units / (held * threads))};
    const auto with = [&]<int kScale>() {
        const auto kernel = held == 1 ? Kernels::template flat<kScale, 1>() : Kernels::template flat<kScale, 2>();
        return vendor.launch(kernel, groups, threads, 1, source, to, work, maxima);
    };
    if (scale == kGiven) return with.template operator()<kGiven>();
    if (scale == kFromMaxima) return with.template operator()<kFromMaxima>();
    if (scale == 32) return with.template operator()<32>();
    return scale == 64 ? with.template operator()<64>() : with.template operator()<128>();
}

// By scales of rows or of groups.
template <class Kernels, class Vendor>
Status launch_computed(const typename Kernels::Source& source, const QuantizedRows& to, const Fit& fit,
                       const Vendor& vendor) {
    const Maxima none{};
    if (!fit.vectors) return launch_by_element<Kernels>(source, to, none, vendor);
    if (to.dynamic.group > 0) return launch_flat<Kernels>(source, to, to.dynamic.group, fit, none, vendor);
    const RowConfig config = row_config(to.rows, to.d / kEight, Kernels::Source::type, Kernels::Source::tuning,
                                        vendor.units, vendor.clusters);
    if (config.form < 0) return launch_by_element<Kernels>(source, to, none, vendor);
    const auto kernel = kernel_at<kRowFormCount>(config.form, []<int i>() {
        constexpr RowForm f = kRowForms[i];
        // float32: see row_config.
        return Kernels::template row<f.holder, Kernels::Source::type == DType::f32 && f.held == 8 ? 4 : f.held>();
    });
    return vendor.launch(kernel, config.groups, config.threads, config.cluster, source, to);
}

// So many workgroups find the maximum of rows.
inline int64_t largest_groups(int64_t rows, int64_t d, bool by_vector, int units) {
    const int64_t wanted = by_vector ? ceil_div(rows * (d / kEight), kRowsThreads) : rows,
                  most = kGroupsAUnit * int64_t(units);
    return wanted < most ? wanted : most;
}

// Rows that one launch does not reach are searched one by one, each by as many launches as it has ranges of columns.
template <class Source>
constexpr int64_t columns_of_search(int64_t d) {
    return columns_at_once(1, d, Source::kElementBytes);
}
template <class Source>
constexpr bool vectors_countable(int64_t rows, int64_t d) {
    return columns_of_search<Source>(d) < d || rows * (d / kEight) < kMostVectors;
}

// So many maxima are found for a tensor, one a workgroup.
template <class Source>
int64_t maxima_of(int64_t rows, int64_t d, bool by_vector, int units) {
    const int64_t at_once = columns_of_search<Source>(d);
    if (!by_vector || at_once == d) return largest_groups(rows, d, by_vector, units);
    return rows * ceil_div(d, at_once) * largest_groups(1, at_once, true, units);
}

// `maxima`: maxima_of them.
template <class Kernels, class Vendor>
Status launch_largest(const typename Kernels::Source& source, int64_t rows, int64_t d, bool by_vector, uint32_t* maxima,
                      void* kept, const Vendor& vendor) {
    using Source = typename Kernels::Source;
    const auto launch = [&](const Source& from, int64_t rows, int64_t d, int64_t groups, uint32_t* maxima, void* kept) {
        const int64_t vectors = by_vector ? d / kEight : 1;
        const FlatWork work{divider_by(uint32_t(vectors)), uint32_t(by_vector ? rows * vectors : 0), 0};
        const auto kernel = by_vector ? Kernels::template largest<true>() : Kernels::template largest<false>();
        return vendor.launch(kernel, groups, kRowsThreads, 1, from, rows, d, work, maxima, kept);
    };
    const int64_t at_once = columns_of_search<Source>(d);
    if (!by_vector || at_once == d) {
        return launch(source, rows, d, largest_groups(rows, d, by_vector, vendor.units), maxima, kept);
    }
    const int64_t groups = largest_groups(1, at_once, true, vendor.units);
    Status status;
    for (int64_t row = 0; row < rows && status.ok(); ++row) {
        status = each_columns(d, at_once, [&](int64_t first, int64_t count) {
            void* own = kept ? static_cast<char*>(kept) + (row * d + first) * Source::kElementBytes : nullptr;
            uint32_t* found = maxima;
            maxima += groups;
            return launch(source.from(row, first), 1, count, groups, found, own);
        });
    }
    return status;
}

}  // namespace
}  // namespace rocm_fp8
