// MLA decode on NVIDIA GPUs: the launcher.
//
// Bytes: the cache's tokens once for each tile of rows (queries * heads) of a sequence; 1152 a token of 16 bits, 576 or
// 656 of codes. Work: 2 * (576 + 512) operations a row and token. Up to about 64 rows memory is the bound, beyond that
// the tensor cores.
//
// 16 bits (attend.h), 64 rows of a sequence at a time, by persistent CTAs:
//
//     HBM, L2 --> TMA (cp.async) --> two tiles of 64 tokens by 576 in shared memory
//     a tile's warpgroup: scores --> p = exp2(...), rounded --> registers, and shared memory for the other one
//     warpgroup 0: p values of every tile, columns 0 to 255      warpgroup 1: columns 256 to 511
//             --> result, or a split's part --> merge (../gpu/merge.h)
//
// Shared memory: queries 72 KiB, tiles 72 KiB each. The value tile is the key tile: wgmma reads it by rows for the
// scores and by columns for the values. p lies in the place of a tile's rotated numbers, which are keys alone. Tiles
// belong to the warpgroups by turns, so one's softmax runs beside the other's multiplications. Halves of a tile are
// freed apart (shape.h). The loading warps run ahead into the CTA's next piece of work.
//
// Codes (fp8_attend.h), 16, 32 or 64 rows a CTA: tiles of codes stay codes in shared memory; warpgroups with tiles of
// their own decode them in registers, once for the scores and once for the values.
//
// Codes of an FP8 cache, queries of bfloat16, 64 rows (terms_attend.h): nothing is decoded. q and p are sums of two FP8
// numbers each, and all is multiplied as FP8.
//
// Files: mla_decode.cu (launcher), config.h (forms, splits), shape.h, feed.h, attend.h (16 bits), fp8_shape.h,
//        fp8_feed.h, fp8_rows.h, fp8_attend.h, terms_shape.h, terms_feed.h, terms_attend.h, online.h (softmax), codes.h,
//        fallback.h (chips without wgmma, unaligned operands), ../gpu
//
// Limit today: 16 bits 585 TFLOP/s at 128 heads and 2.9 TB/s at 16, .88 to 1.67 of FlashMLA's speed (H100). FP8 caches
// 2.6 TB/s at 16 heads (H100); at 128 heads .93 of the speed of 16 bits, at 64 heads 1.15 (H200): exponentials and terms
// of p take longer than the other warpgroup's scores. docs/journal/mla_decode-cuda.md.
#include <algorithm>

#include "../../common/cuda/device.h"
#include "../../common/cuda/tensor_map.h"
#include "../../common/rows/cuda/vendor.h"
#include "../gpu/merge.h"
#include "attend.h"
#include "fallback.h"
#include "fp8_attend.h"
#include "terms_attend.h"

namespace rocm_fp8::mla_decode::cuda {
namespace {

constexpr const char* kOtherFormat = "cache: dtype float8_e4m3fnuz; NVIDIA GPUs decode float8_e4m3fn";

using Kernel = void (*)(Launch, CUtensorMap);

struct Choice {
    Kernel kernel;
    int threads, shared_bytes;
    AllowedDevices* allowed;
    bool persistent = false;
};

template <DType type>
Choice wide_choice() {
    static AllowedDevices allowed;
    return {mla_decode_tiles<type>, kTilesThreads, int(sizeof(Memory)), &allowed, true};
}
template <Format format, DType type, int kRows>
Choice fp8_choice() {
    static AllowedDevices allowed;
    return {mla_decode_fp8<format, type, kRows>, Fp8Roles<format, kRows>::kThreads,
            int(sizeof(Fp8Memory<format, kRows>)), &allowed};
}
Choice terms_choice() {
    static AllowedDevices allowed;
    return {mla_decode_terms, kTilesThreads, int(sizeof(TermsMemory)), &allowed, true};
}
template <Format format, DType type, bool vectors>
Choice fallback_choice() {
    static AllowedDevices allowed;
    return {mla_decode_fallback<format, type, vectors>, kFallbackThreads, int(sizeof(FallbackMemory)), &allowed};
}

// rows: of the form.
template <Format format, DType type>
Choice choice(bool hopper, bool vectors, int rows) {
    if (!hopper) return vectors ? fallback_choice<format, type, true>() : fallback_choice<format, type, false>();
    if constexpr (format == Format::wide) return wide_choice<type>();
    else if constexpr (format == Format::fp8 && type == DType::bf16)
        return rows == 16   ? fp8_choice<format, type, 16>()
               : rows == 32 ? fp8_choice<format, type, 32>()
                            : terms_choice();
    else
        return rows == 16   ? fp8_choice<format, type, 16>()
               : rows == 32 ? fp8_choice<format, type, 32>()
                            : fp8_choice<format, type, 64>();
}
template <DType type>
Choice choice(Format format, bool hopper, bool vectors, int rows) {
    return format == Format::wide  ? choice<Format::wide, type>(hopper, vectors, rows)
           : format == Format::fp8 ? choice<Format::fp8, type>(hopper, vectors, rows)
                                   : choice<Format::mixed, type>(hopper, vectors, rows);
}

// Whether all tokens and queries begin at multiples of 16 bytes.
bool aligned(const Args& a) {
    const Cache& c = a.cache;
    const auto fits = [](int64_t stride) { return stride % 16 == 0; };
    return rows_aligned(a.q, a.q_head_stride * 2) && fits(a.q_batch_stride * 2) && fits(a.q_query_stride * 2) &&
           rows_aligned(c.data, c.row_stride) && fits(c.page_stride);
}

// Rows of a TMA copy of tokens of 16 bits: as many as divide a page and a tile. 0 where TMA would take too many copies,
// or does not take the cache.
int describe_cache(CUtensorMap* map, const Args& a) {
    constexpr int kLeastBox = 8;
    const Cache& c = a.cache;
    const int bytes = c.format == Format::wide ? kWidth * 2 : c.format == Format::fp8 ? kWidth : kMixedBytes;
    int box = kTileTokens;
    while (a.table && c.page_size % box != 0) box /= 2;
    if (box < kLeastBox || c.page_size < 1 || c.pages > INT32_MAX) return 0;
    const bool takes = describe(
        map, {c.data, c.page_size, bytes, c.row_stride, kPanelRow, box, c.pages, c.pages > 1 ? c.page_stride : 0});
    return takes ? box : 0;
}

}  // namespace
}  // namespace rocm_fp8::mla_decode::cuda

namespace rocm_fp8::mla_decode {

Status launch(const Args& args, const Executor& on) {
    using namespace cuda;
    if (args.batch == 0) return {};
    const auto [chip, status] = current_chip();
    if (!status.ok()) return status;
    if (args.cache.dtype == DType::e4m3fnuz) return {kOtherFormat};
    const bool vectors = aligned(args), hopper = chip.capability == 90 && vectors;
    const auto [form, splits] =
        pick(hopper, args.cache.format, {args.batch, args.rows(), args.most, chip.multiprocessors});
    const int64_t tiles_of_rows = ceil_div(args.rows(), form.rows), ctas = args.batch * tiles_of_rows * splits;
    if (ctas > kMaxCtas) return {"q: more sequences and rows than one launch takes"};
    Launch launch{args,
                  divider_by(uint32_t(args.cache.page_size > 0 ? args.cache.page_size : 1)),
                  divider_by(uint32_t(args.heads)),
                  int(tiles_of_rows),
                  ctas,
                  0,
                  Partial{nullptr, nullptr, 1, form.tokens}};
    if (splits > 1) {
        void* const scratch = on.scratch(on.context, Partial::bytes(args.batch, splits, args.rows()));
        if (!scratch) return {"no memory for the splits' sums"};
        launch.partial = Partial::at(scratch, args.batch, args.rows(), splits, form.tokens);
    }
    const Choice c = args.dtype == DType::bf16 ? choice<DType::bf16>(args.cache.format, hopper, vectors, form.rows)
                                               : choice<DType::f16>(args.cache.format, hopper, vectors, form.rows);
    CUtensorMap map{};
    if (hopper) launch.box_rows = describe_cache(&map, args);
    if (const Status s = allow_shared_bytes(c.kernel, c.shared_bytes, chip, c.allowed); !s.ok()) return s;
    const int64_t grid = c.persistent ? std::min<int64_t>(ctas, chip.multiprocessors) : ctas;
    if (const Status s = launch_kernel(c.kernel, chip, {grid, c.threads, 1, c.shared_bytes}, on, launch, map); !s.ok())
        return s;
    if (splits == 1) return {};
    const MergeArgs merge{launch.partial, args.lengths, args.most, args.rows(), args.batch, args.out, args.lse};
    const Vendor vendor(chip, on);
    return args.dtype == DType::bf16 ? launch_merge<DType::bf16>(merge, vendor)
                                     : launch_merge<DType::f16>(merge, vendor);
}

}  // namespace rocm_fp8::mla_decode
