#include "../moe_routing/moe_routing.h"
#include "binding.h"
#include "operators.h"

namespace rocm_fp8::binding {
namespace {

namespace op = rocm_fp8::moe_routing;

constexpr std::initializer_list<DType> kWide = {DType::f32, DType::f16, DType::bf16};

// Dense, of one dtype, apart from what is read.
void check_written(const Arg& out, DType type, std::initializer_list<int64_t> shape, const char* meaning,
                   const Arg& like) {
    out.dtype({type});
    out.check_device_of(like);
    out.check_shape(shape, meaning);
    out.check_dense();
    out.check_apart_from(like);
}

void moe_route(const Tensor& weights_t, const Tensor& experts_t, const Tensor& logits_t,
               const std::optional<Tensor>& bias_t, const std::optional<Tensor>& given_t, int64_t top_k,
               int64_t scoring, int64_t groups, int64_t top_groups, bool group_max, bool renormalize, double factor) {
    const char* const name = "moe_route";
    const Arg logits(name, "logits", logits_t), weights(name, "weights", weights_t),
        experts(name, "experts", experts_t);
    op::RouteArgs args{};
    args.dtype = logits.dtype(kWide);
    logits.check_dim(2);
    const int64_t tokens = logits.size(0), count = logits.size(1);
    if (count < 1 || count > op::kMostExperts)
        logits.refuse("shape ", logits.shape(), "; needs [T, E] with 1 to ", op::kMostExperts, " experts");
    if (groups < 1 || count % groups != 0)
        refuse(name, "groups: ", groups, "; needs a divisor of the ", count, " experts");
    if (top_groups < 1 || top_groups > groups)
        refuse(name, "top_groups: ", top_groups, "; needs 1 to groups = ", groups);
    const int64_t left = top_groups * (count / groups);
    if (top_k < 1 || top_k > op::kMostChosen || top_k > left)
        refuse(name, "top_k: ", top_k, "; needs 1 to ", std::min<int64_t>(op::kMostChosen, left));
    args.stride = logits.row_stride();
    check_written(weights, DType::f32, {tokens, top_k}, "[T, top_k]", logits);
    check_written(experts, DType::i32, {tokens, top_k}, "[T, top_k]", logits);
    weights.check_apart_from(experts);
    if (bias_t) {
        const Arg bias(name, "bias", *bias_t);
        bias.dtype({DType::f32});
        bias.check_device_of(logits);
        bias.check_shape({count}, "[E]");
        bias.check_dense();
        weights.check_apart_from(bias);
        experts.check_apart_from(bias);
        args.bias = static_cast<const float*>(bias.data());
    }
    if (given_t) {
        const Arg given(name, "given", *given_t);
        given.dtype({DType::i32});
        given.check_device_of(logits);
        given.check_shape({tokens, top_k}, "[T, top_k]");
        given.check_dense();
        weights.check_apart_from(given);
        experts.check_apart_from(given);
        args.given = static_cast<const int32_t*>(given.data());
    }
    args.logits = logits.data();
    args.weights = static_cast<float*>(weights.mutable_data());
    args.ids = static_cast<int32_t*>(experts.mutable_data());
    args.tokens = tokens, args.experts = int32_t(count), args.chosen = int32_t(top_k);
    args.groups = int32_t(groups), args.top_groups = int32_t(top_groups);
    args.scoring = op::Scoring(scoring), args.group_max = group_max, args.renormalize = renormalize,
    args.factor = float(factor);
    check(name, op::launch_route(args, Launch(logits_t)));
}

void moe_sort(const Tensor& rows_t, const Tensor& offsets_t, const Tensor& positions_t, const Tensor& experts_t,
              const std::optional<Tensor>& map_t, int64_t num_experts) {
    const char* const name = "moe_sort";
    const Arg experts(name, "experts", experts_t), rows(name, "rows", rows_t), offsets(name, "offsets", offsets_t),
        positions(name, "positions", positions_t);
    op::SortArgs args{};
    args.wide = experts_t.scalar_type() == ScalarType::Long;
    if (!args.wide && experts_t.scalar_type() != ScalarType::Int)
        experts.refuse("dtype ", torch::headeronly::toString(experts_t.scalar_type()), "; allowed: int32, int64");
    experts.check_dim(2);
    experts.check_dense();
    if (num_experts < 1 || num_experts > op::kMostExperts)
        refuse(name, "num_experts: ", num_experts, "; needs 1 to ", op::kMostExperts);
    const int64_t slots = experts.numel();
    if (slots >= int64_t(1) << 31) experts.refuse("shape ", experts.shape(), "; needs less than 2^31 slots");
    check_written(rows, DType::i32, {slots}, "[T k]", experts);
    check_written(offsets, DType::i32, {num_experts + 1}, "[num_experts + 1]", experts);
    check_written(positions, DType::i32, {experts.size(0), experts.size(1)}, "[T, k]", experts);
    rows.check_apart_from(offsets);
    rows.check_apart_from(positions);
    offsets.check_apart_from(positions);
    if (map_t) {
        const Arg map(name, "expert_map", *map_t);
        map.dtype({DType::i32});
        map.check_device_of(experts);
        map.check_dim(1);
        map.check_dense();
        if (map.numel() >= int64_t(1) << 31) map.refuse("shape ", map.shape(), "; needs less than 2^31 experts");
        for (const Arg* written : {&rows, &offsets, &positions}) written->check_apart_from(map);
        args.map = static_cast<const int32_t*>(map.data());
        args.mapped = int32_t(map.numel());
        // Without an element there may be no pointer, and every expert is unknown.
        static const int32_t none = -1;
        if (!args.map) args.map = &none;
    }
    args.ids = experts.data();
    args.slots = slots, args.experts = int32_t(num_experts);
    args.rows = static_cast<int32_t*>(rows.mutable_data());
    args.offsets = static_cast<int32_t*>(offsets.mutable_data());
    args.positions = static_cast<int32_t*>(positions.mutable_data());
    check(name, op::launch_sort(args, Launch(experts_t)));
}

void moe_combine(const Tensor& out_t, const Tensor& y_t, const Tensor& weights_t, const Tensor& positions_t,
                 const std::optional<Tensor>& shared_t) {
    const char* const name = "moe_combine";
    const Arg y(name, "y", y_t), weights(name, "weights", weights_t), positions(name, "positions", positions_t),
        out(name, "out", out_t);
    op::CombineArgs args{};
    args.dtype = y.dtype(kWide);
    y.check_dim(2);
    args.y_stride = y.row_stride();
    weights.dtype({DType::f32});
    weights.check_device_of(y);
    weights.check_dim(2);
    weights.check_dense();
    const int64_t tokens = weights.size(0), chosen = weights.size(1), d = y.size(1);
    if (chosen > op::kMostChosen)
        weights.refuse("shape ", weights.shape(), "; needs [T, k] with k up to ", op::kMostChosen);
    positions.dtype({DType::i32});
    positions.check_device_of(y);
    positions.check_shape({tokens, chosen}, "[T, k]");
    positions.check_dense();
    args.out_dtype = out.dtype(kWide);
    out.check_device_of(y);
    out.check_shape({tokens, d}, "[T, D]");
    args.out_stride = out.written_row_stride();
    for (const Arg* read : {&y, &weights, &positions}) out.check_apart_from(*read);
    if (shared_t) {
        const Arg shared(name, "shared", *shared_t);
        args.shared_dtype = shared.dtype(kWide);
        shared.check_device_of(y);
        shared.check_shape({tokens, d}, "[T, D]");
        args.shared_stride = shared.row_stride();
        out.check_apart_from(shared);
        args.shared = shared.data();
    }
    args.y = y.data();
    args.weights = static_cast<const float*>(weights.data());
    args.positions = static_cast<const int32_t*>(positions.data());
    args.rows = tokens, args.y_rows = y.size(0), args.d = d, args.chosen = int32_t(chosen);
    args.out = out.mutable_data();
    check(name, op::launch_combine(args, Launch(y_t)));
}

}  // namespace

ROCM_FP8_OPERATORS(ops) {
    ops.add<&moe_route>(
        "moe_route(Tensor(a!) weights, Tensor(b!) experts, Tensor logits, Tensor? bias, Tensor? given, int "
        "top_k, int scoring, int groups, int top_groups, bool group_max, bool renormalize, float factor) -> ()");
    ops.add<&moe_sort>(
        "moe_sort(Tensor(a!) rows, Tensor(b!) offsets, Tensor(c!) positions, Tensor experts, Tensor? expert_map, int "
        "num_experts) -> ()");
    ops.add<&moe_combine>(
        "moe_combine(Tensor(a!) out, Tensor y, Tensor weights, Tensor positions, Tensor? shared) -> ()");
}

}  // namespace rocm_fp8::binding
