// MLA decode on the CPU: the launcher. A sequence's tokens are cut into parts, so that all threads have work; a part
// is attended to for up to kMostRows rows (kernel.h).
#include <memory>
#include <vector>

#include "../../common/cpu/simd_portable.h"
#include "../../common/cpu/features.h"
#include "kernel.h"

namespace rocm_fp8::mla_decode {
namespace {

// Parts of a sequence: a function of sizes. Sums of a part take 2 KiB a row.
constexpr int64_t kWantedItems = kMostParts, kLeastTokens = 256;

constexpr int64_t parts_of(int64_t batch, int64_t row_tiles, int64_t most) {
    const int64_t wanted = ceil_div(kWantedItems, batch * row_tiles), room = ceil_div(most, kLeastTokens);
    return wanted < room ? wanted : room < 1 ? 1 : room;
}

// Part p of a sequence: whole blocks, of its own length.
constexpr int64_t part_begin(int64_t length, int64_t p, int64_t parts) {
    const int64_t begin = ceil_div(ceil_div(length, kBlock), parts) * kBlock * p;
    return begin < length ? begin : length;
}

// One for each launch at a time: numbers of this size are not zeroed.
class Sums {
  public:
    Sums(int64_t rows, int64_t parts) : values(new float[rows * parts * kLatent]), softmax(rows * parts) {}
    const std::unique_ptr<float[]> values;
    std::vector<Softmax> softmax;
};

}  // namespace

Status launch(const Args& args, const Executor& on) {
    if (args.batch == 0 || args.rows() == 0) return {};
    const IsaChoice choice = cpu_isa();
    if (choice.error) return {choice.error};
    const Kernels kernels =
        choice.tiles ? kernels_amx(args) : of_isa(choice.isa, pick<Portable>, kernels_avx2, kernels_avx512)(args);
    const int64_t tiles = ceil_div(args.rows(), kMostRows), parts = parts_of(args.batch, tiles, args.most);
    const int64_t rows = args.batch * args.rows();
    Sums sums(rows, parts);
    struct Context {
        const Args& args;
        const Kernels& kernels;
        Sums& sums;
        int64_t tiles, parts, rows;
    } context{args, kernels, sums, tiles, parts, rows};
    on.parallel_for(
        0, args.batch * tiles * parts, 1,
        [](void* c, int64_t begin, int64_t end) {
            const auto& [a, kernels, sums, tiles, parts, rows] = *static_cast<Context*>(c);
            for (int64_t item = begin; item < end; ++item) {
                const int64_t p = item % parts, tile = item / parts % tiles, b = item / parts / tiles;
                const int64_t length = a.length_of(b), row = tile * kMostRows;
                const int64_t at = p * rows + b * a.rows() + row;
                const Part part{b,
                                part_begin(length, p, parts),
                                part_begin(length, p + 1, parts),
                                int32_t(row),
                                int32_t(std::min<int64_t>(kMostRows, a.rows() - row)),
                                sums.values.get() + at * kLatent,
                                sums.softmax.data() + at};
                kernels.attend(a, part);
            }
        },
        &context);
    on.parallel_for(
        0, rows, std::max<int64_t>(1, 64 / parts),
        [](void* c, int64_t begin, int64_t end) {
            const auto& context = *static_cast<Context*>(c);
            const Finish job{context.args, context.sums.values.get(), context.sums.softmax.data(), context.parts,
                             context.rows};
            context.kernels.finish(job, begin, end);
        },
        &context);
    return {};
}

}  // namespace rocm_fp8::mla_decode
