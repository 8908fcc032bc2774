#include "../mla_decode/mla_decode.h"
#include "binding.h"
#include "latent_cache_args.h"
#include "operators.h"

namespace rocm_fp8::binding {
namespace {

namespace op = rocm_fp8::mla_decode;

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
    args.cache = latent_cache_of(name, cache, args.dtype, q, scale_t);
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

}  // namespace

ROCM_FP8_OPERATORS(ops) {
    ops.add<&mla_decode>(
        "mla_decode(Tensor(a!) out, Tensor(b!)? lse_out, Tensor q, Tensor cache, Tensor lengths, Tensor? block_table, "
        "Tensor? cache_scale, float softmax_scale, bool causal) -> ()");
}

}  // namespace rocm_fp8::binding
