// MLA decode on MI300X (gfx942) and MI350 (gfx950): the launcher.
//
// Bytes: the cache's tokens once, 1152 each (fp8: 576, mixed: 656). Floor: those at 4.2 TB/s; from 64 rows of a
// sequence on the matrix instructions, 2176 operations a row and token.
//
//     tokens --> registers (a tile ahead) --> LDS, as 16-bit floats --> keys x queries --> scores, in registers
//                                                                   --> values x exponentials --> sums, in registers
//     splits of a sequence's tokens --> float32 sums and their lse --> a second launch: ../gpu/merge.h
//
// On gfx942 LDS holds 64 KiB: three tiles of 16 tokens. Queries and sums stay with their waves. Waves never exchange
// anything but the tile, and the sums of groups at the end.
//
// On gfx950 16-bit caches go from memory to LDS directly, tiles of 32 tokens, 147 KB of them at once: direct.h.
//
// Files: mla_decode.hip (launcher), config.h (forms, splits), work.h (a wave's part), products.h (matrix instructions),
// rows.h (a wave's rows), tile.h (loads, LDS), attend.h (a tile against rows), decode.h (loops, kernel), finish.h (the
// end). Of gfx950: direct_tile.h (loads, LDS), direct.h (a tile against rows, loops, kernel). ../gpu/: splits, merge.
//
// Limit today, by the simulator's clock: 128 heads, 128 sequences: 58 % of 708 TFLOP/s; 16 heads: 1.21 of the bytes'
// time. gfx950: 1.7 and 1.2 of its own bytes' time. docs/journal/mla_decode-hip.md has what is left. Nothing has been
// measured on an AMD GPU.
#include "../../common/forced.h"
#include "../../common/gpu/kernel_at.h"
#include "../../common/rows/hip/vendor.h"
#include "../gpu/merge.h"
#include "decode.h"

namespace rocm_fp8::mla_decode::hip {
namespace {

template <DType type>
const void* kernel_of_type(Format format, int form) {
    using Kernel = void (*)(Launch);
    const Kernel kernel = kernel_at<kFormCount>(form, [=]<int i>() -> Kernel {
        return format == Format::wide  ? mla_decode<i, type, Format::wide>
               : format == Format::fp8 ? mla_decode<i, type, Format::fp8>
                                       : mla_decode<i, type, Format::mixed>;
    });
    return reinterpret_cast<const void*>(kernel);
}
const void* kernel_of(const Args& args, int form) {
    return args.dtype == DType::f16 ? kernel_of_type<DType::f16>(args.cache.format, form)
                                    : kernel_of_type<DType::bf16>(args.cache.format, form);
}

int token_bytes(Format format) {
    return format == Format::wide ? 2 * kWidth : format == Format::fp8 ? kWidth : kMixedBytes;
}

// Of the forms in direct.hip, which count pages and bytes of a table in 32 bits, and may load a sequence's first token.
bool takes_direct(Arch arch, const Args& args) {
    const Cache& cache = args.cache;
    constexpr uintptr_t kAligned = 16;
    constexpr int64_t kMostEntries = int64_t(1) << 29, kMostPages = int64_t(1) << 31;
    return arch == Arch::gfx950 && cache.format == Format::wide &&
           reinterpret_cast<uintptr_t>(cache.data) % kAligned == 0 && cache.page_stride % kAligned == 0 &&
           cache.row_stride % kAligned == 0 && cache.pages > 0 && cache.pages < kMostPages && args.most > 0 &&
           (!args.table || args.most / cache.page_size < kMostEntries);
}

struct Choice {
    bool direct;  // of kDirectForms
    int form, splits;
    const Form& shape() const { return direct ? kDirectForms[form] : kForms[form]; }
};
Choice choose(Arch arch, const Args& args) {
    const Sizes sizes{args.batch, args.rows(), args.most, token_bytes(args.cache.format)};
    if (takes_direct(arch, args)) {
        const Picked choice = pick_direct(arch, sizes);
        return {true, choice.form, choice.splits};
    }
    const int form = pick_form(sizes.rows);
    return {false, form, pick_splits(arch, kForms[form], sizes)};
}
// What ROCM_FP8_KERNELS_CONFIG names, where it does.
Status read_forced(bool direct, Choice* choice) {
    ForcedConfig forced;
    std::string_view name;
    if (!named_config(environment().config, "mla_decode", &forced, &name))
        return {"ROCM_FP8_KERNELS_CONFIG is malformed"};
    if (!forced.set) return {};
    const int of_direct = direct ? place_of(kDirectForms, name) : -1;
    *choice = {of_direct >= 0, of_direct >= 0 ? of_direct : place_of(kForms, name), forced.splits};
    return {choice->form < 0 || choice->splits > kMostSplits ? kUnfit : nullptr};
}

}  // namespace
}  // namespace rocm_fp8::mla_decode::hip

namespace rocm_fp8::mla_decode {

Status launch(const Args& args, const Executor& on) {
    using namespace hip;
    const int64_t rows = args.rows();
    if (args.batch == 0 || rows == 0) return {};
    const ArchResult chip = current_arch();
    if (!chip.status.ok()) return chip.status;
    if (args.cache.format == Format::fp8 && args.cache.dtype != native_fp8(chip.arch)) {
        return {chip.arch == Arch::gfx942 ? "cache: dtype float8_e4m3fn; this GPU (gfx942) converts float8_e4m3fnuz"
                                          : "cache: dtype float8_e4m3fnuz; this GPU (gfx950) converts float8_e4m3fn"};
    }
    constexpr int64_t kMostTokens =
        (int64_t(1) << 31) - 256;  // tokens are counted in 32 bits, tiles behind the last, too
    if (args.most > kMostTokens) return {"cache: a sequence has more than 2147483392 tokens"};

    Choice choice = choose(chip.arch, args);
    const Status read = read_forced(takes_direct(chip.arch, args), &choice);
    if (!read.ok()) return read;
    const Form& form = choice.shape();
    const int splits = choice.splits;
    const int64_t row_tiles = ceil_div(rows, form.rows()), items = args.batch * row_tiles * splits;
    constexpr int64_t kMostItems = int64_t(1) << 30;
    const int64_t per_chiplet = ceil_div(items, kChiplets), threads = form.threads();
    if (items > kMostItems || per_chiplet * kChiplets * threads > kMaxThreads)
        return {"q has more rows than one launch takes"};
    Partial partial{nullptr, nullptr, 1, form.tile()};
    if (splits > 1) {
        void* const scratch = on.scratch(on.context, Partial::bytes(args.batch, splits, rows));
        if (!scratch) return {"no memory for the sums of splits"};
        partial = Partial::at(scratch, args.batch, rows, splits, form.tile());
    }
    Launch launch{args,
                  partial,
                  divider_by(args.table ? uint32_t(args.cache.page_size) : 1),
                  divider_by(uint32_t(args.heads)),
                  divider_by(uint32_t(row_tiles)),
                  divider_by(uint32_t(splits)),
                  uint32_t(items),
                  uint32_t(per_chiplet)};
    const void* const kernel = choice.direct ? direct_kernel(choice.form, args.dtype) : kernel_of(args, choice.form);
    void* arguments[] = {&launch};
    const Status status =
        launch_any(kernel, dim3(uint32_t(per_chiplet * kChiplets)), dim3(uint32_t(threads)), on.stream, arguments);
    if (splits == 1 || !status.ok()) return status;
    const MergeArgs merge{partial, args.lengths, args.most, rows, args.batch, args.out, args.lse};
    const Vendor vendor(chip.arch, on);
    return args.dtype == DType::f16 ? launch_merge<DType::f16>(merge, vendor)
                                    : launch_merge<DType::bf16>(merge, vendor);
}

}  // namespace rocm_fp8::mla_decode
