#include "../../common/cpu/simd_avx512.h"
#include "kernel.h"

namespace rocm_fp8::int8_gemm {
namespace {

// 64 products an instruction (vpdpbusd, of VNNI), with the bytes of B as b + 128.
struct Avx512Int8 {
    using Floats = Avx512;
    // Of 32 registers: 4 x 6 sums, 6 columns and one row.
    static constexpr int step = 64, block = 2048, tile_n = 6, offset = 128;
    static constexpr int stream_n(int m) { return m == 3 ? 4 : 6; }
    using Operand = __m512i;
    using Sum = __m512i;

    static Sum zero() { return _mm512_setzero_si512(); }
    static Operand decode_a(const int8_t* codes) { return _mm512_loadu_si512(codes); }
    static Operand decode_b(const int8_t* codes) {
        return _mm512_xor_si512(_mm512_loadu_si512(codes), _mm512_set1_epi8(int8_t(0x80)));
    }
    static Operand load_operand(const void* p) { return _mm512_load_si512(p); }
    static void store_operand(void* p, Operand x) { _mm512_store_si512(p, x); }
    static Sum dot(Sum s, Operand a, Operand b) { return _mm512_dpbusd_epi32(s, b, a); }
    template <class Register>
    static Register keep(Register x) {
        return x;
    }
    // out[i]: the total of sums[i]; up to a multiple of four.
    template <int count>
    static void totals(const Sum* sums, int32_t* out) {
        constexpr auto at = [](const Sum* sums, int i) {
            return i < count ? _mm256_add_epi32(_mm512_castsi512_si256(sums[i]), _mm512_extracti64x4_epi64(sums[i], 1))
                             : _mm256_setzero_si256();
        };
        for (int i = 0; i < count; i += 4) {
            const __m256i ab = _mm256_hadd_epi32(at(sums, i), at(sums, i + 1));
            const __m256i cd = _mm256_hadd_epi32(at(sums, i + 2), at(sums, i + 3));
            const __m256i abcd = _mm256_hadd_epi32(ab, cd);
            _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i),
                             _mm_add_epi32(_mm256_castsi256_si128(abcd), _mm256_extracti128_si256(abcd, 1)));
        }
    }
};

}  // namespace

Kernel kernel_avx512(const Args& args) { return pick_int8_gemm<Avx512Int8>(args); }

}  // namespace rocm_fp8::int8_gemm
