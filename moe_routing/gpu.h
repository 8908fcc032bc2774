// What surrounds the GEMMs of a mixture of experts, for AMD and NVIDIA GPUs: which launches a call takes.
//
// Bytes: of route the logits; of sort the ids twice (once up to 4096 slots), and 8 a slot of results; of combine the
// rows of y that are not dropped, and out. Floor: those bytes at the memory rate. With few tokens what counts is the
// latency of a launch: each of the three is one.
//
// Files: gpu/route.h, gpu/sort.h, gpu/combine.h, a head each; hip/ and cuda/: the launchers.
#pragma once

#include "gpu/combine.h"
#include "gpu/route.h"
#include "gpu/sort.h"

namespace rocm_fp8::moe_routing {
namespace {

template <class Vendor>
Status route_by_type(const RouteArgs& a, const Vendor& vendor) {
    if (a.tokens == 0) return {};
    if (a.dtype == DType::f32) return launch_route_as<DType::f32>(a, vendor);
    return a.dtype == DType::f16 ? launch_route_as<DType::f16>(a, vendor) : launch_route_as<DType::bf16>(a, vendor);
}

template <class Vendor>
Status sort_by_type(const SortArgs& a, const Vendor& vendor, const Executor& on) {
    return a.wide ? launch_sort_as<true>(a, vendor, on) : launch_sort_as<false>(a, vendor, on);
}

template <class Vendor>
Status combine_by_type(const CombineArgs& a, const Vendor& vendor) {
    if (a.rows == 0 || a.d == 0) return {};
    if (a.dtype == DType::f32) return launch_combine_of<DType::f32>(a, vendor);
    return a.dtype == DType::f16 ? launch_combine_of<DType::f16>(a, vendor) : launch_combine_of<DType::bf16>(a, vendor);
}

}  // namespace
}  // namespace rocm_fp8::moe_routing
