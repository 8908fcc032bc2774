#include "../mla_decode/mla_decode.h"
#include "binding.h"
#include "operators.h"

namespace rocm_fp8::binding {
namespace {

namespace op = rocm_fp8::mla_decode;

// [pages, page size, 576 or 656] as a launcher takes it. wide: the dtype of a cache that is not quantised.
op::Cache cache_of(const char* name, const Arg& cache, DType wide, const Arg& like,
                   const std::optional<Tensor>& scale_t) {
    op::Cache c{};
    cache.check_dim(3);
    cache.check_device_of(like);
    cache.check_last_contiguous();
    int64_t width = op::kWidth;
    if (cache.tensor().scalar_type() == ScalarType::Byte) {
        c.format = op::Format::mixed, c.dtype = DType::e4m3fn, width = op::kMixedBytes;
    } else {
        const std::optional<DType> got = dtype_of(cache.tensor().scalar_type());
        if (got == wide) c.format = op::Format::wide;
        else if (got && is_fp8(*got)) c.format = op::Format::fp8;
        else
            cache.refuse("dtype ", torch::headeronly::toString(cache.tensor().scalar_type()),
                         "; allowed: ", name_of(wide), ", float8_e4m3fn, float8_e4m3fnuz, uint8");
        c.dtype = *got;
    }
    if (cache.size(2) != width)
        cache.refuse("shape ", cache.shape(), "; needs ", width, " as last dimension with this dtype");
    if (scale_t.has_value() != (c.format == op::Format::fp8)) {
        if (scale_t) refuse(name, "cache_scale: given; allowed with a cache of FP8 alone");
        refuse(name, "cache_scale: None; needs a tensor with a cache of ", name_of(c.dtype));
    }
    if (scale_t) c.scale = Arg(name, "cache_scale", *scale_t).scale_of(like);
    const int64_t bytes = c.format == op::Format::wide ? 2 : 1;
    c.data = static_cast<uint8_t*>(const_cast<void*>(cache.data()));
    c.page_stride = cache.tensor().stride(0) * bytes, c.row_stride = cache.tensor().stride(1) * bytes;
    c.pages = cache.size(0), c.page_size = cache.size(1);
    return c;
}

void mla_decode(const Tensor& out_t, const std::optional<Tensor>& lse_t, const Tensor& q_t, const Tensor& cache_t,
                const Tensor& lengths_t, const std::optional<Tensor>& table_t, const std::optional<Tensor>& scale_t,
                double softmax_scale, bool causal) {
    const char* const name = "mla_decode";
    const Arg q(name, "q", q_t), cache(name, "cache", cache_t), lengths(name, "lengths", lengths_t),
        out(name, "out", out_t);
    op::Args args{};
    args.dtype = q.dtype({DType::bf16, DType::f16});
    q.check_dim(4);
    const int64_t batch = q.size(0), queries = q.size(1), heads = q.size(2);
    if (queries < 1 || queries > op::kMostQueries || heads < 1 || heads > op::kMostHeads || q.size(3) != op::kWidth)
        q.refuse("shape ", q.shape(), "; needs [B, S, H, ", op::kWidth, "] with 1 to ", op::kMostQueries,
                 " query tokens and 1 to ", op::kMostHeads, " heads");
    q.check_last_contiguous();
    args.q = q.data();
    args.q_batch_stride = q_t.stride(0), args.q_query_stride = q_t.stride(1), args.q_head_stride = q_t.stride(2);
    args.batch = batch, args.queries = int32_t(queries), args.heads = int32_t(heads);
    args.cache = cache_of(name, cache, args.dtype, q, scale_t);
    args.most = args.cache.page_size;
    std::vector<const Arg*> read = {&q, &cache, &lengths};
    std::optional<Arg> table;
    if (table_t) {
        table.emplace(name, "block_table", *table_t);
        table->dtype({DType::i32});
        table->check_device_of(q);
        table->check_dim(2);
        if (table->size(0) != batch) table->refuse("shape ", table->shape(), "; needs [B, pages] with q's B = ", batch);
        table->check_last_contiguous();
        if (args.cache.pages < 1 || args.cache.page_size < 1 || args.cache.page_size > op::kMostPage)
            cache.refuse("shape ", cache.shape(), "; needs [pages, page size, ...] with 1 to ", op::kMostPage,
                         " tokens a page");
        args.table = static_cast<const int32_t*>(table->data());
        args.table_stride = table_t->stride(0);
        args.most = table->size(1) * args.cache.page_size;
        read.push_back(&*table);
    } else if (args.cache.pages != batch) {
        cache.refuse("shape ", cache.shape(), "; needs [B, L, ...] with q's B = ", batch, ", or a block_table");
    }
    if (args.most >= int64_t(1) << 31)
        refuse(name, table_t ? "block_table" : "cache", ": ", args.most, " tokens a sequence; needs less than 2^31");
    lengths.dtype({DType::i32});
    lengths.check_device_of(q);
    lengths.check_shape({batch}, "[B]");
    lengths.check_dense();
    args.lengths = static_cast<const int32_t*>(lengths.data());
    out.dtype({args.dtype});
    out.check_device_of(q);
    out.check_shape({batch, queries, heads, op::kLatent}, "[B, S, H, 512]");
    out.check_dense();
    std::optional<Arg> scale;
    if (scale_t) read.push_back(&scale.emplace(name, "cache_scale", *scale_t));
    for (const Arg* each : read) out.check_apart_from(*each);
    if (lse_t) {
        const Arg lse(name, "lse_out", *lse_t);
        lse.dtype({DType::f32});
        lse.check_device_of(q);
        lse.check_shape({batch, queries, heads}, "[B, S, H]");
        lse.check_dense();
        for (const Arg* each : read) lse.check_apart_from(*each);
        lse.check_apart_from(out);
        args.lse = static_cast<float*>(lse.mutable_data());
    }
    args.softmax_scale = float(softmax_scale), args.causal = causal;
    args.out = out.mutable_data();
    check(name, op::launch(args, Launch(q_t)));
}

void mla_append(const Tensor& cache_t, const std::optional<Tensor>& kv_t, const Tensor& rope_t, const Tensor& slots_t,
                const std::optional<Tensor>& cos_t, const std::optional<Tensor>& sin_t,
                const std::optional<Tensor>& scale_t, bool interleaved) {
    const char* const name = "mla_append";
    const Arg cache(name, "cache", cache_t), rope(name, "k_rope", rope_t), slots(name, "slots", slots_t);
    op::AppendArgs args{};
    args.dtype = rope.dtype({DType::bf16, DType::f16});
    rope.check_dim(2);
    const int64_t tokens = rope.size(0);
    rope.check_shape({tokens, op::kRope}, "[T, 64]");
    args.cache = cache_of(name, cache, args.dtype, rope, scale_t);
    cache.check_no_self_overlap();
    if (slots_t.scalar_type() != ScalarType::Long)
        slots.refuse("dtype ", torch::headeronly::toString(slots_t.scalar_type()), "; allowed: int64");
    slots.check_device_of(rope);
    slots.check_shape({tokens}, "[T]");
    slots.check_dense();
    for (const Arg* each : {&rope, &slots}) cache.check_apart_from(*each);
    if (scale_t) cache.check_apart_from(Arg(name, "cache_scale", *scale_t));
    if (kv_t) {
        const Arg kv(name, "kv", *kv_t);
        kv.dtype({args.dtype});
        kv.check_device_of(rope);
        kv.check_shape({tokens, op::kLatent}, "[T, 512]");
        cache.check_apart_from(kv);
        args.latent = kv.data(), args.latent_stride = kv.row_stride();
    }
    if (cos_t.has_value() != sin_t.has_value())
        refuse(name, cos_t ? "sin" : "cos", ": None; needs a tensor where ", cos_t ? "cos" : "sin", " is given");
    if (cos_t) {
        const Arg cos(name, "cos", *cos_t), sin(name, "sin", *sin_t);
        args.angle_dtype = cos.dtype({args.dtype, DType::f32});
        for (const Arg* angle : {&cos, &sin}) {
            angle->dtype({args.angle_dtype});
            angle->check_device_of(rope);
            angle->check_dim(2);
            const int64_t rows = angle->size(0);
            if (angle->size(1) != op::kRope || rows > tokens || (rows ? tokens % rows : tokens) != 0)
                angle->refuse("shape ", angle->shape(), "; needs [R, 64], where R divides k_rope's T = ", tokens);
            cache.check_apart_from(*angle);
        }
        args.angles = cos.size(0);
        if (sin.size(0) != args.angles) sin.refuse("shape ", sin.shape(), "; needs cos's, ", cos.shape());
        if (args.angles < tokens && tokens >= int64_t(1) << 31)
            cos.refuse("shape ", cos.shape(), "; needs a row a token from 2^31 tokens on");
        args.cos = cos.data(), args.cos_stride = cos.row_stride();
        args.sin = sin.data(), args.sin_stride = sin.row_stride();
    } else if (interleaved) {
        refuse(name, "interleaved: True; needs cos and sin");
    }
    args.rope = rope.data(), args.rope_stride = rope.row_stride();
    args.slots = static_cast<const int64_t*>(slots.data());
    args.tokens = tokens, args.interleaved = interleaved;
    if (args.cache.page_size == 0) return;
    args.cache.data = static_cast<uint8_t*>(cache.mutable_data());
    check(name, op::launch_append(args, Launch(rope_t)));
}

}  // namespace

ROCM_FP8_OPERATORS(ops) {
    ops.add<&mla_decode>(
        "mla_decode(Tensor(a!) out, Tensor(b!)? lse_out, Tensor q, Tensor cache, Tensor lengths, Tensor? block_table, "
        "Tensor? cache_scale, float softmax_scale, bool causal) -> ()");
    ops.add<&mla_append>(
        "mla_append(Tensor(a!) cache, Tensor? kv, Tensor k_rope, Tensor slots, Tensor? cos, Tensor? sin, Tensor? "
        "cache_scale, bool interleaved) -> ()");
}

}  // namespace rocm_fp8::binding
