// The configuration functions of the GPU backends with C names, for test_rocm_configs.py and test_cuda_configs.py.
#include "../block_scaled_gemm/cuda/config.h"
#include "../block_scaled_gemm/hip/config.h"
#include "../common/divider.h"
#include "../common/rows/gpu/forms.h"
#include "../grouped_gemm/cuda/config.h"
#include "../grouped_gemm/hip/config.h"
#include "../int8_gemm/cuda/forms.h"
#include "../int8_gemm/hip/config.h"
#include "../mla_decode/cuda/config.h"
#include "../mla_decode/hip/config.h"
#include "../mx_gemm/hip/config.h"
#include "../rmsnorm_fp8/hip/config.h"
#include "../rmsnorm_fp8/cuda/config.h"
#include "../skinny_gemm/hip/config.h"
#include "../skinny_gemm/cuda/overlap.h"
#include "../swiglu_fp8/hip/config.h"
#include "../swiglu_fp8/cuda/config.h"

#include <string>

using namespace rocm_fp8;

namespace {

constexpr int kHopper = 90;

// Of a form: its name and fields.
std::string object(const char* form, std::initializer_list<std::pair<const char*, int64_t>> fields) {
    std::string text = "{\"name\": \"" + std::string(form) + "\"";
    for (const auto& [name, value] : fields) text += ", \"" + std::string(name) + "\": " + std::to_string(value);
    return text + "}";
}

template <class Shapes, class Fields>
std::string list(const Shapes& shapes, Fields fields) {
    std::string text;
    for (const auto& shape : shapes) text += (text.empty() ? "[" : ", ") + fields(shape);
    return text + "]";
}

}  // namespace

extern "C" {

// The tables of compiled forms and their limits, as JSON; fields have the headers' names.
const char* tables() {
    static const std::string text = [] {
        using namespace skinny_gemm;
        const auto bulk = [](const cuda::BulkShape& s) {
            return object(s.name.text, {{"columns", s.columns},
                                        {"stages8", s.stages8},
                                        {"stages16", s.stages16},
                                        {"stages32", s.stages32},
                                        {"warps", s.warps},
                                        {"clusters", s.clusters}});
        };
        const auto tile = [](const auto& s) {
            return object(s.name.text, {{"rows", s.rows},
                                        {"columns", s.columns},
                                        {"waves_m", s.waves_m},
                                        {"waves_n", s.waves_n},
                                        {"waves_k", s.waves_k},
                                        {"matrix", s.matrix},
                                        {"stage", s.stage},
                                        {"ahead", s.ahead},
                                        {"deep", s.deep},
                                        {"per_unit", s.per_unit}});
        };
        const auto stream = [](const StreamShape& s) {
            return object(s.name.text, {{"rows", s.rows},
                                        {"columns", s.columns},
                                        {"waves", s.waves},
                                        {"depth", s.depth},
                                        {"per_unit", s.per_unit}});
        };
        const auto with_stages = [](const tiles::Form& f, int stages) {
            return object(f.name.text, {{"swapped", f.swapped},
                                        {"wide", f.wide()},
                                        {"narrow", f.narrow},
                                        {"slots", f.slots},
                                        {"stages", stages}});
        };
        const auto form = [&](const tiles::Form& f) { return with_stages(f, block_scaled_gemm::cuda::stages(f)); };
        const auto grouped_form = [&](const tiles::Form& f) {
            return with_stages(f, f.stages(grouped_gemm::cuda::factor_bytes(f)));
        };
        const auto int8_form = [&](const tiles::Form& f) { return with_stages(f, int8_gemm::cuda::stages(f)); };
        const auto mla_form = [&](const mla_decode::hip::Form& f) {
            return object(f.name.text, {{"matrix", f.matrix},
                                        {"waves", f.waves},
                                        {"groups", f.groups},
                                        {"buffers", f.buffers},
                                        {"per_unit", f.per_unit},
                                        {"rows", f.rows()}});
        };
        const auto mx_tile = [](const mx_gemm::hip::TileForm& f) {
            return object(f.name.text, {{"rows", f.rows}, {"per_unit", f.per_unit}});
        };
        return "{\"skinny\": " + list(hip::kStreamShapes, stream) +
               ", \"skinny_fallback\": " + list(hip::kFallbackShapes, stream) +
               ", \"tiles\": " + list(block_scaled_gemm::hip::kTileShapes, tile) +
               ", \"streams\": " + list(block_scaled_gemm::hip::kStreamShapes, stream) +
               ", \"direct\": " + list(block_scaled_gemm::hip::kDirectShapes, tile) +
               ", \"grouped_tiles\": " + list(grouped_gemm::hip::kTileShapes, tile) +
               ", \"grouped_gated\": " + list(grouped_gemm::hip::kGatedShapes, tile) +
               ", \"grouped_streams\": " + list(grouped_gemm::hip::kStreamShapes, stream) +
               ", \"grouped_short\": " + list(grouped_gemm::hip::kShortShapes, stream) +
               ", \"mx_streams\": " + list(mx_gemm::hip::kStreamShapes, stream) +
               ", \"mx_tiles\": " + list(mx_gemm::hip::kTileForms, mx_tile) +
               ", \"mla_forms\": " + list(mla_decode::hip::kForms, mla_form) +
               ", \"mla_direct\": " + list(mla_decode::hip::kDirectForms, mla_form) +
               ", \"int8_tiles\": " + list(int8_gemm::hip::kTileShapes, tile) +
               ", \"bulk\": " + list(cuda::kBulkShapes, bulk) +
               ", \"forms\": " + list(block_scaled_gemm::cuda::kForms, form) +
               ", \"grouped_forms\": " + list(grouped_gemm::cuda::kForms, grouped_form) +
               ", \"int8_forms\": " + list(int8_gemm::cuda::kForms, int8_form) +
               ", \"large_warps\": " + std::to_string(cuda::kLargeWarps) + "}";
    }();
    return text.c_str();
}

void block_scaled_config(int64_t m, int64_t n, int64_t k, int arch, int64_t out[2]) {
    const block_scaled_gemm::hip::Config c = block_scaled_gemm::hip::pick_config(m, n, k, arch);
    out[0] = c.shape;
    out[1] = c.parts;
}
double block_scaled_estimate(int arch, int shape, int parts, int64_t m, int64_t n, int64_t k) {
    using namespace block_scaled_gemm::hip;
    return estimated_us(kChipModels[arch], shape, parts, {1, m, n, k});
}
void int8_config(int64_t batch, int64_t m, int64_t n, int64_t k, int arch, int general, int64_t out[2]) {
    const int8_gemm::hip::Config c = int8_gemm::hip::pick_config({batch, m, n, k}, arch, general);
    out[0] = c.shape;
    out[1] = c.parts;
}
double int8_estimate(int arch, int shape, int parts, int64_t batch, int64_t m, int64_t n, int64_t k) {
    using namespace int8_gemm::hip;
    return estimated_us(kChipModels[arch], shape, parts, {batch, m, n, k});
}
int int8_fallback_shape(int shape) { return int8_gemm::hip::fallback_shape(shape); }
void cuda_block_scaled_config(int64_t m, int64_t n, int64_t k, int general_b, int multiprocessors, int memory_bits,
                              int64_t out[3]) {
    using namespace block_scaled_gemm::cuda;
    const Config c = pick_config(m, n, k, multiprocessors, tiles::hopper_of(memory_bits), general_b);
    out[0] = c.form;
    out[1] = c.splits;
    out[2] = c.pieces;
}
void cuda_int8_config(int64_t m, int64_t n, int64_t k, int multiprocessors, int64_t out[3]) {
    const tiles::Config c = int8_gemm::cuda::pick_form(m, n, k, multiprocessors);
    out[0] = c.form;
    out[1] = c.splits;
    out[2] = c.pieces;
}
// Of block_scaled_gemm or int8_gemm, on an H200's multiprocessors. points: m, n, k, form, splits, pieces (0: the fewest).
// costs: those of tiles::Costs, in their order.
void cuda_tiles_us(int int8, const double* costs, int64_t count, const int64_t (*points)[6], double* us) {
    for (int64_t i = 0; i < count; ++i) {
        const auto [m, n, k, form, splits, pieces] = points[i];
        const tiles::Form& f = int8 ? int8_gemm::cuda::kForms[form] : block_scaled_gemm::cuda::kForms[form];
        const int stages = int8 ? int8_gemm::cuda::stages(f) : block_scaled_gemm::cuda::stages(f);
        const int64_t rows = int8 ? int8_gemm::cuda::class_of(m) : block_scaled_gemm::row_class(m);
        const tiles::Size size{rows, n, k, tiles::kH200};
        us[i] = estimated_us(f, stages, *(const tiles::Costs*)costs, int(splits),
                             pieces ? pieces : fewest_pieces(f, size), size);
    }
}
void cuda_grouped_config(int64_t m, int64_t n, int64_t k_bytes, int64_t groups, int64_t expected, int multiprocessors,
                         int64_t out[5]) {
    using namespace grouped_gemm::cuda;
    const int form = pick_form(m, n, k_bytes, groups, expected, multiprocessors);
    out[0] = form;
    out[1] = rows_of(kForms[form]);
    out[2] = columns_of(kForms[form]);
    out[3] = most_tiles(kForms[form], m, n, groups);
    out[4] = pick_splits(m, n, k_bytes, groups, expected, multiprocessors);
}
// The place of the picked form in the table of tiles, then streams, then short ones; the most row tiles of m rows.
void grouped_config(int64_t groups, int64_t expected, int64_t n, int64_t k_bytes, int fp8, int arch, int64_t m,
                    int64_t out[2]) {
    using namespace grouped_gemm::hip;
    out[0] = pick_shape(m, groups, expected, n, k_bytes, fp8, arch);
    out[1] = most_row_tiles(m, groups, form_of(int(out[0])).rows);
}
void mla_config(int64_t batch, int64_t rows, int64_t most, int token_bytes, int arch, int64_t out[2]) {
    using namespace mla_decode::hip;
    out[0] = pick_form(rows);
    out[1] = pick_splits(Arch(arch), kForms[out[0]], {batch, rows, most, token_bytes});
}
// Of gfx950's direct forms.
void mla_direct_config(int64_t batch, int64_t rows, int64_t most, int64_t out[2]) {
    using namespace mla_decode::hip;
    const Picked choice = pick_direct(Arch::gfx950, {batch, rows, most, 2 * mla_decode::kWidth});
    out[0] = choice.form, out[1] = choice.splits;
}
// format: of mla_decode::Format. Rows and tokens of a tile, and splits.
void cuda_mla_config(int hopper, int format, int64_t batch, int64_t rows, int64_t most, int multiprocessors,
                     int64_t out[3]) {
    using namespace mla_decode;
    const cuda::Picked choice = cuda::pick(hopper, Format(format), {batch, rows, most, multiprocessors});
    out[0] = choice.form.rows;
    out[1] = choice.form.tokens;
    out[2] = choice.splits;
}
// The place of the picked form in the table of gated tiles, or -1.
int grouped_gated(int64_t groups, int64_t expected, int64_t hidden, int arch) {
    return grouped_gemm::hip::pick_gated(groups, expected, hidden, arch);
}
int grouped_item(int turn, int workgroup, int grid, int items) {
    return grouped_gemm::hip::item_of(turn, workgroup, grid, items);
}
int64_t block_scaled_row_class(int64_t m) { return block_scaled_gemm::row_class(m); }
int block_scaled_fallback_shape(int shape) { return block_scaled_gemm::hip::fallback_shape(shape); }

void rms_norm_config(int64_t rows, int64_t d, int arch, int aligned, int64_t out[4]) {
    const rms_norm::hip::Config c = rms_norm::hip::pick_config(rows, d, Arch(arch), aligned);
    const int64_t values[] = {c.is_fallback() ? -1 : int64_t(c.holder), c.held, c.threads, c.rows};
    for (int i = 0; i < 4; ++i) out[i] = values[i];
}

void swiglu_config(int64_t rows, int64_t d, int arch, int aligned, int64_t out[4]) {
    const swiglu::hip::Config c = swiglu::hip::pick_config(rows, d, Arch(arch), aligned);
    const int64_t values[] = {c.fast, c.vectors, c.threads, c.groups};
    for (int i = 0; i < 4; ++i) out[i] = values[i];
}

int64_t columns_of_a_launch(int64_t rows, int64_t d, int64_t element_bytes) {
    return columns_at_once(rows, d, element_bytes);
}

// The first n of numbers that divide() gets wrong, or -1.
int64_t wrong_division(const uint32_t* numbers, int64_t count, uint32_t divisor) {
    const Divider by = divider_by(divisor);
    for (int64_t i = 0; i < count; ++i) {
        if (divide(numbers[i], by) != numbers[i] / divisor) return numbers[i];
    }
    return -1;
}

void gemm_config(int64_t m, int64_t n, int64_t k, int arch, int aligned, int64_t out[2]) {
    const skinny_gemm::hip::Config c = skinny_gemm::hip::pick_config(m, n, k, arch, aligned);
    out[0] = c.shape;
    out[1] = c.parts;
}

double gemm_estimate(int arch, int shape, int splits, int64_t n, int64_t k) {
    using namespace skinny_gemm::hip;
    return estimated_us(kChipModels[arch], shape, splits, {1, kStreamShapes[shape].rows, n, k});
}

// Of skinny_gemm, block_scaled_gemm or int8_gemm. costs: those of the header's struct, then a tile's cycles of a block.
int gemm_most_parts(int op, int arch, int shape, int64_t m, int64_t n, int64_t k) {
    const auto most = [&](auto of) { return of(kChipModels[arch], shape, gemm::Sizes{1, m, n, k}); };
    return op == 0   ? most(skinny_gemm::hip::most_parts)
           : op == 1 ? most(block_scaled_gemm::hip::most_parts)
                     : most(int8_gemm::hip::most_parts);
}
double gemm_us(int op, int arch, int shape, int parts, int64_t m, int64_t n, int64_t k, const double* costs) {
    using namespace block_scaled_gemm::hip;
    const ChipModel& chip = kChipModels[arch];
    if (op == 0 || (op == 1 && is_stream(shape))) {
        const auto& form = op ? kStreamShapes[shape - kTileShapeCount] : skinny_gemm::hip::kStreamShapes[shape];
        return gemm::stream_time(chip, form, *(const gemm::StreamCosts*)costs, {1, m, n, k}, parts).total();
    }
    TileShape form = op == 1 ? tile_shape(shape) : int8_gemm::hip::kTileShapes[shape];
    form.block_cycles.of[arch] = costs[sizeof(gemm::TileCosts) / sizeof(double)];
    const bool wide = op == 1 && chip.arch == Arch::gfx950;
    return gemm::tile_time(chip, form, *(const gemm::TileCosts*)costs, wide, {1, m, n, k}, parts).total();
}

int64_t gemm_row_class(int64_t m) { return skinny_gemm::hip::row_class(m); }

void cuda_rms_norm_config(int64_t rows, int64_t d, int multiprocessors, int clusters, int aligned, int64_t out[5]) {
    const rms_norm::cuda::Config c = rms_norm::cuda::pick_config(rows, d, multiprocessors, clusters, aligned);
    const int64_t values[] = {c.is_fallback() ? -1 : int64_t(c.holder), c.held, c.threads, c.rows, c.cluster};
    for (int i = 0; i < 5; ++i) out[i] = values[i];
}

void cuda_swiglu_config(int64_t rows, int64_t d, int multiprocessors, int aligned, int64_t out[5]) {
    const swiglu::cuda::Config c = swiglu::cuda::pick_config(rows, d, multiprocessors, aligned);
    const int64_t values[] = {c.fast, c.vectors, c.threads, c.ctas, c.fetching};
    for (int i = 0; i < 5; ++i) out[i] = values[i];
}

int64_t cuda_rows_to_fetch(int64_t rows, int64_t row_bytes, int multiprocessors) {
    return rms_norm::cuda::rows_to_fetch(rows, row_bytes, multiprocessors);
}
int64_t cuda_rows_ahead(int64_t rows, int64_t d, int multiprocessors, int clusters, int aligned) {
    return rms_norm::cuda::rows_ahead(rows, rms_norm::cuda::pick_config(rows, d, multiprocessors, clusters, aligned),
                                      multiprocessors);
}

int64_t cuda_next_at_once(int64_t rows, int64_t d, int multiprocessors, int clusters, int aligned) {
    const rms_norm::cuda::Config c = rms_norm::cuda::pick_config(rows, d, multiprocessors, clusters, aligned);
    return rms_norm::cuda::next_at_once(rows, d, c, multiprocessors);
}

void cuda_gemm_config(int64_t m, int64_t n, int64_t k, int multiprocessors, int bulk, int64_t out[3]) {
    const skinny_gemm::cuda::Config c = skinny_gemm::cuda::pick_config(m, n, k, {kHopper, multiprocessors}, bulk);
    const int64_t values[] = {c.shape, c.splits, c.pieces};
    for (int i = 0; i < 3; ++i) out[i] = values[i];
}

void cuda_gemm_overlap(int64_t m, int64_t n, int64_t k, int multiprocessors, int constant_b, int64_t out[3]) {
    const skinny_gemm::cuda::Config c = skinny_gemm::cuda::pick_config(m, n, k, {kHopper, multiprocessors}, true);
    const skinny_gemm::cuda::Overlap o = skinny_gemm::cuda::pick_overlap(c, m, n, k, multiprocessors, constant_b);
    const int64_t values[] = {o.before_next, o.window, o.ahead};
    for (int i = 0; i < 3; ++i) out[i] = values[i];
}

int64_t cuda_gemm_most_columns(int64_t n, int pieces) { return skinny_gemm::cuda::Pieces(n, pieces).most_columns(); }

int64_t cuda_gemm_columns(int shape) { return skinny_gemm::cuda::kBulkShapes[shape].columns; }

int64_t cuda_gemm_stages(int shape, int64_t m) { return skinny_gemm::cuda::kBulkShapes[shape].stages(m); }

int64_t cuda_gemm_step(int shape, int64_t m) { return skinny_gemm::cuda::kBulkShapes[shape].step(m); }

int64_t cuda_gemm_can_pace(int shape, int64_t m) { return skinny_gemm::cuda::kBulkShapes[shape].paces(m); }

int64_t cuda_gemm_can_split(int shape, int64_t m) { return skinny_gemm::cuda::kBulkShapes[shape].splits(m); }
int64_t cuda_gemm_clusters_alone(int ctas, int64_t multiprocessors) {
    return skinny_gemm::cuda::clusters_alone(ctas, multiprocessors);
}

int64_t cuda_gemm_warps(int shape) { return skinny_gemm::cuda::kBulkShapes[shape].warps; }

int64_t cuda_gemm_groups(int shape, int64_t m) { return skinny_gemm::cuda::kBulkShapes[shape].groups(m); }

int64_t cuda_gemm_first_step(int shape, int64_t m, int64_t k, int part, int splits) {
    return skinny_gemm::cuda::first_bulk_step(skinny_gemm::cuda::kBulkShapes[shape].step(m), k, part, splits);
}

}  // extern "C"
