// Communicators, and the operators that take one by its number.
#include <algorithm>
#include <cstring>
#include <mutex>

#include "../all_reduce/all_reduce.h"
#include "binding.h"
#include "operators.h"
#include "rms_norm_args.h"
#include "skinny_gemm_args.h"

namespace rocm_fp8::binding {
namespace {

using comm::Failure;
using comm::Peers;

// Those that are open. Numbers are never used again: a closed communicator's is refused.
struct Communicators {
    std::mutex mutex;
    std::vector<std::pair<int64_t, Peers>> open;
    std::vector<const comm::State*> busy;  // of those in a call
    int64_t next = 1;
};
Communicators& communicators() {
    static Communicators all;
    return all;
}

// memory: the address of each rank's, as this one sees it; state, report: addresses.
int64_t comm_open(int64_t rank, std::vector<int64_t> memory, int64_t half, int64_t state, int64_t report,
                  double timeout, int64_t locks) {
    Peers peers{};
    const auto pointer = [](int64_t address) { return reinterpret_cast<void*>(address); };
    const int64_t ranks = int64_t(memory.size());
    if (ranks < 1 || ranks > comm::kMostRanks)
        refuse("Communicator", "group: ", ranks, " ranks; allowed: 1 to ", comm::kMostRanks);
    for (int64_t i = 0; i < ranks; ++i) peers.memory[i] = pointer(memory[i]);
    peers.state = static_cast<comm::State*>(pointer(state));
    peers.report = static_cast<comm::Report*>(pointer(report));
    peers.half = half;
    peers.place_bytes = half / ranks / 128 * 128;
    peers.timeout = uint64_t(timeout * 1e9);
    peers.rank = int32_t(rank), peers.ranks = int32_t(ranks), peers.locks = int32_t(locks);
    Communicators& all = communicators();
    const std::lock_guard<std::mutex> lock(all.mutex);
    all.open.emplace_back(all.next, peers);
    return all.next++;
}

void comm_close(int64_t communicator) {
    Communicators& all = communicators();
    const std::lock_guard<std::mutex> lock(all.mutex);
    std::erase_if(all.open, [&](const auto& each) { return each.first == communicator; });
}

Peers peers_of(const char* op, int64_t communicator) {
    Communicators& all = communicators();
    const std::lock_guard<std::mutex> lock(all.mutex);
    for (const auto& [number, peers] : all.open)
        if (number == communicator) return peers;
    refuse(op, "communicator: closed");
}

// What a launch has found out about other ranks; on a GPU an earlier one.
void check_report(const char* op, const Peers& peers) {
    comm::Report report;
    std::memcpy(&report, const_cast<const comm::Report*>(peers.report), sizeof(report));
    const auto failed = [&](const auto&... why) {
        refuse(op, "rank ", report.peer, " of ", peers.ranks, why..., "; this communicator can only be closed");
    };
    switch (Failure(report.failure)) {
        case Failure::none: return;
        case Failure::absent: return failed(" did not come within ", double(peers.timeout) * 1e-9, " s");
        case Failure::other_call: return failed(" calls another operator, or one with other sizes");
        case Failure::ended: return failed(" has ended");
    }
}

// A call under way. One of another thread meanwhile would take the answers of other ranks that this one waits for.
class Call {
  public:
    Call(const char* op, const Peers& peers) : state_(peers.state) {
        Communicators& all = communicators();
        const std::lock_guard<std::mutex> lock(all.mutex);
        if (std::find(all.busy.begin(), all.busy.end(), state_) != all.busy.end())
            refuse(op, "communicator: another thread is in a call of it; each thread needs its own");
        all.busy.push_back(state_);
    }
    ~Call() {
        Communicators& all = communicators();
        const std::lock_guard<std::mutex> lock(all.mutex);
        std::erase(all.busy, state_);
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

  private:
    const comm::State* state_;
};

// launch(executor) of an operator on x.
template <class Launcher>
void run(const char* op, const Peers& peers, const Tensor& x, const Launcher& launch) {
    const Call call(op, peers);
    check_report(op, peers);
    const Status status = launch(Launch(x));
    check_report(op, peers);
    check(op, status);
}

void comm_check(int64_t communicator) {
    constexpr const char* op = "Communicator";
    check_report(op, peers_of(op, communicator));
}

// --- values alone ---

using all_reduce::Args;

// `order` is what torch's compiler keeps launches in order by; no kernel looks at it.
void collective(const char* op, comm::Operation operation, const Tensor& out_t, const Tensor& x_t,
                int64_t communicator) {
    const Arg out(op, "out", out_t), x(op, "x", x_t);
    const bool gathers = operation == comm::Operation::all_gather;
    Args args{};
    args.dtype = gathers ? x.dtype({DType::f32, DType::f16, DType::bf16, DType::e4m3fn, DType::e4m3fnuz, DType::i8})
                         : x.dtype({DType::f32, DType::f16, DType::bf16});
    if (x.dim() < 1) x.refuse("0 dimensions (shape []); needs [..., d]");
    out.check_device_of(x);
    out.check_dim(x.dim());
    out.dtype({args.dtype});
    if (is_fp8(args.dtype)) args.dtype = DType::i8;
    args.d = x.last(), args.rows = x.rows(), args.x_stride = x.row_stride();
    args.out_stride = out.written_row_stride();
    const Peers peers = peers_of(op, communicator);
    const int64_t ranks = peers.ranks;
    if (operation == comm::Operation::all_reduce) {
        out.check_rows_of(x, args.d);
        if (out.data() != x.data() || args.out_stride != args.x_stride) out.check_apart_from(x);
    } else {
        x.check_dim(2);
        const int64_t rows = x.size(0);
        if (!gathers && rows % ranks != 0)
            x.refuse(rows, " rows; needs a multiple of the communicator's ", ranks, " ranks");
        out.check_shape({gathers ? rows * ranks : rows / ranks, args.d},
                        gathers ? "[rows * ranks, d]" : "[rows / ranks, d]");
        out.check_apart_from(x);
    }
    args.x = x.data(), args.out = out.mutable_data();
    run(op, peers, x_t, [&](const Executor& on) {
        if (gathers) return all_reduce::launch_all_gather(args, peers, on);
        return operation == comm::Operation::all_reduce ? all_reduce::launch(args, peers, on)
                                                        : all_reduce::launch_reduce_scatter(args, peers, on);
    });
}

void all_reduce_values(const Tensor& out, const Tensor& x, const Tensor&, int64_t communicator) {
    collective("all_reduce", comm::Operation::all_reduce, out, x, communicator);
}
void reduce_scatter(const Tensor& out, const Tensor& x, const Tensor&, int64_t communicator) {
    collective("reduce_scatter", comm::Operation::reduce_scatter, out, x, communicator);
}
void all_gather(const Tensor& out, const Tensor& x, const Tensor&, int64_t communicator) {
    collective("all_gather", comm::Operation::all_gather, out, x, communicator);
}

// --- with RMSNorm ---

void norm(const char* op, const Tensor& out, const Tensor& x, const Tensor& weight, double epsilon,
          const RmsNormOptions& options, int64_t communicator) {
    const rms_norm::Args args = rms_norm_args(op, out, x, weight, epsilon, options);
    const Peers peers = peers_of(op, communicator);
    run(op, peers, x, [&](const Executor& on) { return all_reduce::launch(args, peers, on); });
}

void all_reduce_add_rms_norm_fp8(const Tensor& out, const Tensor& x, const Tensor& residual, const Tensor& weight,
                                 const Tensor& scale, double epsilon, const Tensor&, int64_t communicator) {
    norm("all_reduce_add_rms_norm_fp8", out, x, weight, epsilon, {.residual = &residual, .scale = &scale},
         communicator);
}

void all_reduce_add_rms_norm_dynamic_fp8(const Tensor& out, const Tensor& scale, const Tensor& x,
                                         const Tensor& residual, const Tensor& weight, double epsilon,
                                         const std::optional<Tensor>& normalized,
                                         const std::optional<Tensor>& upper_bound, int64_t group, double fp8_max,
                                         bool power_of_two, const Tensor&, int64_t communicator) {
    const ScaleArgs computed{scale, upper_bound, group, fp8_max, power_of_two};
    norm("all_reduce_add_rms_norm_dynamic_fp8", out, x, weight, epsilon,
         {.residual = &residual, .computed = &computed, .normalized = normalized ? &*normalized : nullptr},
         communicator);
}

// --- with the GEMM before them ---

void skinny_gemm_all_reduce(const Tensor& out, const Tensor& a, const Tensor& b, const Tensor& scale_a,
                            const Tensor& scale_b, const std::optional<Tensor>& bias, bool constant_b, const Tensor&,
                            int64_t communicator) {
    constexpr const char* op = "skinny_gemm_all_reduce";
    const auto gemm = skinny_gemm_args(op, out, {a, b, scale_a, scale_b, bias, constant_b});
    const Peers peers = peers_of(op, communicator);
    run(op, peers, a, [&](const Executor& on) { return all_reduce::launch(gemm, peers, on); });
}

// `product`: this rank's, which the norm reads.
void skinny_gemm_all_reduce_add_rms_norm_fp8(const Tensor& out, const Tensor& product, const Tensor& residual,
                                             const Tensor& weight, const Tensor& scale, double epsilon, const Tensor& a,
                                             const Tensor& b, const Tensor& scale_a, const Tensor& scale_b,
                                             const std::optional<Tensor>& bias, bool constant_b, const Tensor&,
                                             int64_t communicator) {
    constexpr const char* op = "skinny_gemm_all_reduce_add_rms_norm_fp8";
    constexpr const char* of_gemm = "product";
    const auto gemm =
        skinny_gemm_args(op, product, {a, b, scale_a, scale_b, bias, constant_b}, of_gemm, {DType::f16, DType::bf16});
    const auto norm =
        rms_norm_args(op, out, product, weight, epsilon, {.residual = &residual, .scale = &scale, .x_name = of_gemm});
    const Arg written_product(op, of_gemm, product);
    written_product.check_apart_from(Arg(op, "scale", scale));
    written_product.check_apart_from(Arg(op, "weight", weight));
    // The GEMM's operands are read before the norm writes; refused all the same, as where one launch does both.
    for (const auto& [name, t] : {std::pair{"out", &out}, std::pair{"residual", &residual}}) {
        const Arg written(op, name, *t);
        for (const auto& [other, operand] :
             {std::pair{"a", &a}, std::pair{"b", &b}, std::pair{"scale_a", &scale_a}, std::pair{"scale_b", &scale_b}})
            written.check_apart_from(Arg(op, other, *operand));
        if (bias) written.check_apart_from(Arg(op, "bias", *bias));
    }
    const Peers peers = peers_of(op, communicator);
    run(op, peers, a, [&](const Executor& on) { return all_reduce::launch(gemm, norm, peers, on); });
}

}  // namespace

ROCM_FP8_OPERATORS(ops) {
    ops.add<&all_reduce_values>("all_reduce(Tensor(a!) out, Tensor x, Tensor(b!) order, int communicator) -> ()");
    ops.add<&reduce_scatter>("reduce_scatter(Tensor(a!) out, Tensor x, Tensor(b!) order, int communicator) -> ()");
    ops.add<&all_gather>("all_gather(Tensor(a!) out, Tensor x, Tensor(b!) order, int communicator) -> ()");
    ops.add<&all_reduce_add_rms_norm_fp8>(
        "all_reduce_add_rms_norm_fp8(Tensor(a!) out, Tensor x, Tensor(b!) residual, Tensor weight, Tensor scale, float "
        "epsilon, Tensor(c!) order, int communicator) -> ()");
    ops.add<&all_reduce_add_rms_norm_dynamic_fp8>(
        "all_reduce_add_rms_norm_dynamic_fp8(Tensor(a!) out, Tensor(b!) scale_out, Tensor x, Tensor(c!) residual, "
        "Tensor weight, float epsilon, Tensor(d!)? normalized_out, Tensor? scale_ub, int group, float fp8_max, bool "
        "power_of_two, Tensor(e!) order, int communicator) -> ()");
    ops.add<&skinny_gemm_all_reduce>(
        "skinny_gemm_all_reduce(Tensor(a!) out, Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, Tensor? bias, bool "
        "constant_b, Tensor(b!) order, int communicator) -> ()");
    ops.add<&skinny_gemm_all_reduce_add_rms_norm_fp8>(
        "skinny_gemm_all_reduce_add_rms_norm_fp8(Tensor(a!) out, Tensor(b!) product, Tensor(c!) residual, Tensor "
        "weight, Tensor scale, float epsilon, Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, Tensor? bias, bool "
        "constant_b, Tensor(d!) order, int communicator) -> ()");
}

}  // namespace rocm_fp8::binding

ROCM_FP8_SCHEMAS(TORCH_EXTENSION_NAME, ops) {
    ops.def("comm_open(int rank, int[] memory, int half, int state, int report, float timeout, int locks) -> int");
    ops.def("comm_close(int communicator) -> ()");
    ops.def("comm_check(int communicator) -> ()");
}

// They have no tensor, so no backend.
ROCM_FP8_FUNCTIONS(TORCH_EXTENSION_NAME, CompositeExplicitAutograd, ops) {
    ops.impl("comm_open", TORCH_BOX(&rocm_fp8::binding::comm_open));
    ops.impl("comm_close", TORCH_BOX(&rocm_fp8::binding::comm_close));
    ops.impl("comm_check", TORCH_BOX(&rocm_fp8::binding::comm_check));
}
