#include "../../common/cpu/simd_portable.h"
#include "kernel.h"

namespace rocm_fp8::int8_gemm {
namespace {

// Int16 in plain C++: the path for any x86-64 processor, and the version to read first.
struct PortableInt8 {
    using Floats = Portable;
    static constexpr int step = 16, block = 512, tile_n = 2, offset = 0;
    static constexpr int stream_n(int) { return 2; }
    struct Operand {
        int16_t v[step];
    };
    struct Sum {
        int32_t v[step / 2];
    };

    static Sum zero() { return {}; }
    static Operand decode_a(const int8_t* codes) {
        Operand x;
        for (int i = 0; i < step; ++i) x.v[i] = codes[i];
        return x;
    }
    static Operand decode_b(const int8_t* codes) { return decode_a(codes); }
    static Operand load_operand(const void* p) {
        Operand x;
        std::memcpy(x.v, p, sizeof x.v);
        return x;
    }
    static void store_operand(void* p, Operand x) { std::memcpy(p, x.v, sizeof x.v); }
    static Sum dot(Sum s, Operand a, Operand b) {
        for (int i = 0; i < step / 2; ++i) s.v[i] += a.v[2 * i] * b.v[2 * i] + a.v[2 * i + 1] * b.v[2 * i + 1];
        return s;
    }
    template <class Register>
    static Register keep(Register x) {
        return x;
    }
    // out[i]: the total of sums[i]; up to a multiple of four.
    template <int count>
    static void totals(const Sum* sums, int32_t* out) {
        for (int i = 0; i < count; ++i) {
            uint32_t total = 0;
            for (int32_t lane : sums[i].v) total += uint32_t(lane);
            out[i] = int32_t(total);
        }
    }
};

}  // namespace

Kernel kernel_portable(const Args& args) { return pick_int8_gemm<PortableInt8>(args); }

}  // namespace rocm_fp8::int8_gemm
