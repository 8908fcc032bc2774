// A cache of latent vectors, as mla_append and mla_decode take it.
#pragma once

#include <optional>

#include "../common/attention/latent_cache.h"
#include "tensor_args.h"

namespace rocm_fp8::binding {
namespace {

// [pages, page size, 576 or 656] as a launcher takes it. wide: the dtype of a cache that is not quantised.
inline latent_cache::Cache latent_cache_of(const char* name, const Arg& cache, DType wide, const Arg& like,
                                           const std::optional<Tensor>& scale_t) {
    using namespace latent_cache;
    Cache c{};
    cache.check_dim(3);
    cache.check_device_of(like);
    cache.check_last_contiguous();
    int64_t width = kWidth;
    if (cache.tensor().scalar_type() == ScalarType::Byte) {
        c.format = Format::mixed, c.dtype = DType::e4m3fn, width = kMixedBytes;
    } else {
        const std::optional<DType> got = dtype_of(cache.tensor().scalar_type());
        if (got == wide) c.format = Format::wide;
        else if (got && is_fp8(*got)) c.format = Format::fp8;
        else
            cache.refuse("dtype ", torch::headeronly::toString(cache.tensor().scalar_type()),
                         "; allowed: ", name_of(wide), ", float8_e4m3fn, float8_e4m3fnuz, uint8");
        c.dtype = *got;
    }
    if (cache.size(2) != width)
        cache.refuse("shape ", cache.shape(), "; needs ", width, " as last dimension with this dtype");
    if (scale_t.has_value() != (c.format == Format::fp8)) {
        if (scale_t) refuse(name, "cache_scale: given; allowed with a cache of FP8 alone");
        refuse(name, "cache_scale: None; needs a tensor with a cache of ", name_of(c.dtype));
    }
    if (scale_t) c.scale = Arg(name, "cache_scale", *scale_t).scale_of(like);
    const int64_t bytes = c.format == Format::wide ? 2 : 1;
    c.data = static_cast<uint8_t*>(const_cast<void*>(cache.data()));
    c.page_stride = cache.tensor().stride(0) * bytes, c.row_stride = cache.tensor().stride(1) * bytes;
    c.pages = cache.size(0), c.page_size = cache.size(1);
    return c;
}

}  // namespace
}  // namespace rocm_fp8::binding
