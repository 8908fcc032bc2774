#include "../../common/cpu/simd_avx2.h"
#include "kernel.h"

namespace rocm_fp8::int8_gemm {
namespace {

// 16 products an instruction (vpmaddwd), whose pairs have exact sums in int32.
struct Avx2Int8 {
    using Floats = Avx2;
    // Of 16 registers: 4 x 2 sums, 2 columns, one row, and products that wait for their additions.
    // A block of 12 columns and of some rows of A takes no more than half of the nearest cache: two threads may share it.
    static constexpr int step = 16, block = 256, tile_n = 2, offset = 0;
    static constexpr int stream_n(int m) { return m == 1 ? 6 : m == 2 ? 4 : m == 3 ? 3 : 2; }
    using Operand = __m256i;
    using Sum = __m256i;

    static Sum zero() { return _mm256_setzero_si256(); }
    static Operand decode_a(const int8_t* codes) {
        return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
    }
    static Operand decode_b(const int8_t* codes) { return decode_a(codes); }
    static Operand load_operand(const void* p) { return _mm256_load_si256(static_cast<const __m256i*>(p)); }
    static void store_operand(void* p, Operand x) { _mm256_store_si256(static_cast<__m256i*>(p), x); }
    static Sum dot(Sum s, Operand a, Operand b) { return _mm256_add_epi32(s, _mm256_madd_epi16(a, b)); }
    // Between steps. The compiler would add the products of several steps first, as integers may be, and spill them. By
    // value: of a reference it would keep the sums in memory.
    static __m256i keep(__m256i x) {
        asm("" : "+x"(x));
        return x;
    }
    // out[i]: the total of sums[i]; up to a multiple of four.
    template <int count>
    static void totals(const Sum* sums, int32_t* out) {
        constexpr auto at = [](const Sum* sums, int i) { return i < count ? sums[i] : _mm256_setzero_si256(); };
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

Kernel kernel_avx2(const Args& args) { return pick_int8_gemm<Avx2Int8>(args); }

}  // namespace rocm_fp8::int8_gemm
