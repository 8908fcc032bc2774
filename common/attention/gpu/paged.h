// Where a sequence's tokens lie in a cache of pages, for HIP and CUDA. Every offset has 64 bits: caches are larger than
// 2 GiB.
#pragma once

#include <cstdint>

#include "../../divider.h"
#include "../../vendor.h"

namespace rocm_fp8::attention {
namespace {

// Of one sequence. Without a table all of its tokens are rows of one page.
struct PagedRows {
    const uint8_t* data;
    int64_t page_stride, row_stride;  // bytes
    int64_t pages;
    const int32_t* table;  // the sequence's, or nullptr
    int32_t page;          // without a table
    Divider page_size;

    // The entry of a token's page: what is loaded of memory, ahead of the token.
    __device__ int32_t entry_of(int32_t token) const {
        return table ? global<int32_t>(table)[divide(uint32_t(token), page_size)] : page;
    }
    struct Place {
        int64_t page, row;
    };
    // Entries outside of the cache are read as its first page or its last one.
    __device__ Place place_of(int32_t token, int32_t entry) const {
        int64_t at = entry, row = token;
        if (table) row -= int64_t(divide(uint32_t(token), page_size)) * page_size.divisor;
        at = at < 0 ? 0 : at < pages ? at : pages - 1;
        return {at, row};
    }
    __device__ const uint8_t* row_of(int32_t token, int32_t entry) const {
        const Place at = place_of(token, entry);
        return data + at.page * page_stride + at.row * row_stride;
    }
};

}  // namespace
}  // namespace rocm_fp8::attention
