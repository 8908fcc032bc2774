#include "../mla_append/mla_append.h"
#include "binding.h"
#include "latent_cache_args.h"
#include "operators.h"

namespace rocm_fp8::binding {
namespace {

namespace op = rocm_fp8::mla_append;

void mla_append(const Tensor& cache_t, const std::optional<Tensor>& kv_t, const Tensor& rope_t, const Tensor& slots_t,
                const std::optional<Tensor>& cos_t, const std::optional<Tensor>& sin_t,
                const std::optional<Tensor>& scale_t, bool interleaved) {
    const char* const name = "mla_append";
    const Arg cache(name, "cache", cache_t), rope(name, "k_rope", rope_t), slots(name, "slots", slots_t);
    op::Args args{};
    args.dtype = rope.dtype({DType::bf16, DType::f16});
    rope.check_dim(2);
    const int64_t tokens = rope.size(0);
    rope.check_shape({tokens, op::kRope}, "[T, 64]");
    args.cache = latent_cache_of(name, cache, args.dtype, rope, scale_t);
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
    check(name, op::launch(args, Launch(rope_t)));
}

}  // namespace

ROCM_FP8_OPERATORS(ops) {
    ops.add<&mla_append>(
        "mla_append(Tensor(a!) cache, Tensor? kv, Tensor k_rope, Tensor slots, Tensor? cos, Tensor? sin, Tensor? "
        "cache_scale, bool interleaved) -> ()");
}

}  // namespace rocm_fp8::binding
