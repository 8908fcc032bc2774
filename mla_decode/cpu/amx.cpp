// MLA decode by AMX, for queries of bfloat16; those of float16 are AVX-512's.
//
//     kChunk tokens --> rows of bfloat16: the cache's own, where 16 neighbours of a bfloat16 cache lie in one page, else
//                       copies or decoded ones (FP8 codes are exact in bfloat16), zeros behind the last
//                   --> scores, transposed: 16 tokens by 16 rows of queries, so that a lane is a row
//                   --> online softmax --> p in bfloat16
//                   --> of 32 columns the values' tiles, tokens in pairs, in the nearest cache --> sums, in the second
//
// Order of the sums, for every number of rows: a score's along the 576 in AMX's order, a value's token after token.
#include "../../common/cpu/amx.h"
#include "kernel.h"

namespace rocm_fp8::mla_decode {
namespace {

constexpr int kSide = rocm_fp8::kTileRows;                   // tokens, or rows of queries, of a tile
constexpr int kChunk = 64, kGroups = kChunk / kSide;         // tokens, and groups of 16
constexpr int kDepth = 2 * kSide, kSteps = kChunk / kDepth;  // tokens that a product of p and values adds up
constexpr int kKeyTiles = kWidth * 2 / kTileRowBytes, kValueTiles = kLatent / kSide;
constexpr int64_t kKeyBytes = kWidth * 2;

// 16 tokens in bfloat16.
struct Group {
    const char* data;
    int64_t stride;
};

struct Tile {
    alignas(64) char bytes[kTileBytes];
};
struct TileOfSums {
    alignas(64) float rows[kSide][kSide];
};

// Lanes are rows of queries.
struct Softmaxes {
    alignas(64) float largest[kSide], sum[kSide];
    int64_t seen[kSide];
};

template <int M>  // tiles of rows
struct Memory {
    Tile queries[M][kKeyTiles], values[2][kSteps][2], p[M][kSteps];
    TileOfSums sums[M][kValueTiles], scores[M][kGroups];
    alignas(64) char keys[kChunk][kKeyBytes];
    Softmaxes softmax[M];
};

// --- tokens ---

template <DType format>
void decode_codes(const uint8_t* codes, int count, char* to) {
    const __m512i low = _mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0), high = _mm512_set_epi64(15, 14, 7, 6, 13, 12, 5, 4);
    for (int i = 0; i < count; i += 64, to += 2 * kTileRowBytes) {
        __m512i x[2];
        Avx512::decode<format>(codes + i, x);
        _mm512_storeu_si512(to, _mm512_permutex2var_epi64(x[0], low, x[1]));
        _mm512_storeu_si512(to + kTileRowBytes, _mm512_permutex2var_epi64(x[0], high, x[1]));
    }
}

void decode_token(const Cache& c, const uint8_t* from, char* to) {
    if (c.format == Format::wide) {
        std::memcpy(to, from, kKeyBytes);
    } else if (c.format == Format::fp8) {
        if (c.dtype == DType::e4m3fn) decode_codes<DType::e4m3fn>(from, kWidth, to);
        else decode_codes<DType::e4m3fnuz>(from, kWidth, to);
    } else {
        decode_codes<DType::e4m3fn>(from, kLatent, to);
        for (int i = 0; i < kLatent; i += 32) {
            float scale;
            std::memcpy(&scale, from + kScalesAt + i / kScaleGroup * 4, 4);
            __m512 even, odd;
            Avx512::load_bf16(to + 2 * i, even, odd);
            const __m512 by = _mm512_set1_ps(scale);
            Avx512::store_rounded_bf16(to + 2 * i, _mm512_mul_ps(even, by), _mm512_mul_ps(odd, by));
        }
        std::memcpy(to + 2 * kLatent, from + kRopeAt, 2 * kRope);
    }
}

// Tokens [first, first + 16), of which those from `end` on are zeros: what lies there could be NaN, times a p of 0.
Group group_of(const Args& a, int64_t b, int64_t first, int64_t end, char (*copies)[kKeyBytes]) {
    static constexpr char kZeros[kKeyBytes] = {};
    const int64_t tokens = end - first;
    if (tokens <= 0) return {kZeros, 0};
    const bool one_page = !a.table || first % a.cache.page_size + kSide <= a.cache.page_size;
    if (a.cache.format == Format::wide && tokens >= kSide && one_page)
        return {reinterpret_cast<const char*>(token(a, b, first)), a.cache.row_stride};
    for (int n = 0; n < kSide; ++n) {
        if (n + kSide < tokens) prefetch_token(a.cache, token(a, b, first + n + kSide));
        if (n < tokens) decode_token(a.cache, token(a, b, first + n), copies[n]);
        else std::memset(copies[n], 0, kKeyBytes);
    }
    return {copies[0], kKeyBytes};
}

// Numbers [32 d, 32 d + 32) of 32 tokens' values: two tiles, which have the columns by fours in turn.
inline void interleave(const Group* groups, int d, Tile* tiles) {
    for (int n = 0; n < kDepth; n += 2) {
        const Group& group = groups[n / kSide];
        const char* const even = group.data + n % kSide * group.stride + d * kTileRowBytes;
        const __m512i x = _mm512_loadu_si512(even), y = _mm512_loadu_si512(even + group.stride);
        _mm512_store_si512(tiles[0].bytes + n / 2 * kTileRowBytes, _mm512_unpacklo_epi16(x, y));
        _mm512_store_si512(tiles[1].bytes + n / 2 * kTileRowBytes, _mm512_unpackhi_epi16(x, y));
    }
}

// --- products: tiles of R times tiles of N, R N <= 4 accumulators ---

// R tiles of rows, N groups of tokens.
template <int R, int N>
void multiply_keys(const Group* groups, const Tile (*queries)[kKeyTiles], TileOfSums (*scores)[kGroups], int first) {
    each_constant<R * N>([](auto i) { zero_tile<i()>(); });
    for (int t = 0; t < kKeyTiles; ++t) {
        each_constant<R * N>([groups, queries, t](auto i) {
            constexpr int n = i() / R, r = i() % R;
            if constexpr (r == 0) load_tile<4 + n % 2>(groups[n].data + t * kTileRowBytes, groups[n].stride);
            if constexpr (n == 0) load_tile<6 + r>(queries[r][t].bytes, kTileRowBytes);
            multiply_bf16_tiles<i(), 4 + n % 2, 6 + r>();
        });
    }
    each_constant<R * N>(
        [scores, first](auto i) { store_tile<i()>(scores[i() % R][first + i() / R].rows, kTileRowBytes); });
}

// R tiles of rows, 32 columns.
template <int R>
void add_values(const Tile (*values)[2], int steps, const Tile (*p)[kSteps], TileOfSums (*sums)[kValueTiles],
                int first) {
    each_constant<R * 2>([sums, first](auto i) { load_tile<i()>(sums[i() % R][first + i() / R].rows, kTileRowBytes); });
    for (int step = 0; step < steps; ++step)
        each_constant<R * 2>([values, p, step](auto i) {
            constexpr int n = i() / R, r = i() % R;
            if constexpr (n == 0) load_tile<4 + r>(p[r][step].bytes, kTileRowBytes);
            if constexpr (r == 0) load_tile<6 + n>(values[step][n].bytes, kTileRowBytes);
            multiply_bf16_tiles<i(), 4 + r, 6 + n>();
        });
    each_constant<R * 2>(
        [sums, first](auto i) { store_tile<i()>(sums[i() % R][first + i() / R].rows, kTileRowBytes); });
}

// --- a part ---

template <int M>
class TileAttention {
    // use(first, count) of the tiles of rows, two at a time.
    template <class Use>
    static void each_pair(const Use& use) {
        each_constant<(M + 1) / 2>([&](auto i) {
            constexpr int first = 2 * i();
            use(std::integral_constant<int, first>(), std::integral_constant<int, std::min(2, M - first)>());
        });
    }

    static void pack_queries(const Args& a, const Part& part, Memory<M>& s) {
        for (int m = 0; m < M; ++m) {
            for (int i = 0; i < kSide; ++i) {
                const int row = m * kSide + i;
                if (row < part.count)
                    std::memcpy(s.keys[i], at<DType::bf16>(a.q, query_at(a, part.b, part.row + row)), kKeyBytes);
                else std::memset(s.keys[i], 0, kKeyBytes);
            }
            for (int t = 0; t < kKeyTiles; ++t)
                pack_tile(s.keys[0] + t * kTileRowBytes, kKeyBytes, s.queries[m][t].bytes);
        }
    }

    // The chunk's scores; groups: where its tokens are, in pairs.
    static void score(const Args& a, int64_t b, int64_t first, int64_t end, Group (&groups)[kGroups], Memory<M>& s) {
        constexpr int kTogether = M == 1 ? 4 : 2;
        for (int g = 0; g < kGroups && first + g * kSide < end; g += kTogether) {
            for (int i = g; i < g + kTogether; ++i)
                groups[i] = group_of(a, b, first + i * kSide, end, s.keys + i * kSide);
            each_pair(
                [&](auto m, auto R) { multiply_keys<R(), kTogether>(groups + g, s.queries + m(), s.scores + m(), g); });
        }
    }

    // As softmax.h's take_scores, for 16 rows at once: p of the chunk's tokens, and sums made before rescaled.
    static void take_scores(int64_t first, int tokens, int steps, float factor, Softmaxes& softmax, TileOfSums* scores,
                            Tile* p, TileOfSums* sums) {
        alignas(64) int32_t visible[kSide];
        for (int i = 0; i < kSide; ++i) visible[i] = int32_t(std::clamp<int64_t>(softmax.seen[i] - first, 0, tokens));
        float (*const rows)[kSide] = scores->rows;
        const __m512 before = _mm512_load_ps(softmax.largest);
        __m512 largest = before;
        for (int n = 0; n < steps * kDepth; ++n) {
            const __mmask16 seen = _mm512_cmpgt_epi32_mask(_mm512_load_si512(visible), _mm512_set1_epi32(n));
            const __m512 score =
                _mm512_mask_mul_ps(_mm512_set1_ps(kNoScore), seen, _mm512_load_ps(rows[n]), _mm512_set1_ps(factor));
            _mm512_store_ps(rows[n], score);
            largest = _mm512_max_ps(score, largest);  // NaN: the second one
        }
        _mm512_store_ps(softmax.largest, largest);
        alignas(64) float base[kSide], total[kSide] = {};
        for (int i = 0; i < kSide; ++i) base[i] = base_of({softmax.largest[i], 0});
        if (const unsigned grows = _mm512_cmp_ps_mask(largest, before, _CMP_GT_OQ)) {
            alignas(64) float old[kSide];
            _mm512_store_ps(old, before);
            for (int i = 0; i < kSide; ++i) {
                if (!(grows >> i & 1) || softmax.sum[i] == 0) continue;
                const float kept = exp_of_negative(base_of({old[i], 0}) - base[i]);
                softmax.sum[i] *= kept;
                for (int d = 0; d < kValueTiles; ++d)
                    for (float& sum : sums[d].rows[i]) sum *= kept;
            }
        }
        for (int n = 0; n < steps * kDepth; ++n) {
            float* const row = rows[n];
            for (int i = 0; i < kSide; ++i) row[i] = exp_of_negative(row[i] - base[i]);
            for (int i = 0; i < kSide; ++i) total[i] += row[i];
        }
        for (int i = 0; i < kSide; ++i) softmax.sum[i] += total[i];
        for (int step = 0; step < steps; ++step) {
            Tile pairs;
            for (int n = 0; n < kDepth; n += 2)
                Avx512::store_rounded_bf16(pairs.bytes + n / 2 * kTileRowBytes, _mm512_load_ps(rows[step * kDepth + n]),
                                           _mm512_load_ps(rows[step * kDepth + n + 1]));
            pack_tile(pairs.bytes, kTileRowBytes, p[step].bytes);
        }
    }

    static void add_all_values(const Group* groups, int steps, Memory<M>& s) {
        constexpr int kPairs = kValueTiles / 2;
        const auto prepare = [&](int d) {
            for (int step = 0; step < steps; ++step) interleave(groups + 2 * step, d, s.values[d % 2][step]);
        };
        prepare(0);
        for (int d = 0; d < kPairs; ++d) {
            if (d + 1 < kPairs) prepare(d + 1);
            each_pair([&](auto m, auto R) { add_values<R()>(s.values[d % 2], steps, s.p + m(), s.sums + m(), 2 * d); });
        }
    }

    // A row's sums, in their own order again.
    static void hand_on(const TileOfSums* sums, int row, float* values) {
        const __m512i first = _mm512_set_epi32(23, 22, 21, 20, 7, 6, 5, 4, 19, 18, 17, 16, 3, 2, 1, 0);
        const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
        for (int d = 0; d < kValueTiles; d += 2) {
            const __m512 x = _mm512_load_ps(sums[d].rows[row]), y = _mm512_load_ps(sums[d + 1].rows[row]);
            _mm512_storeu_ps(values + d * kSide, _mm512_permutex2var_ps(x, first, y));
            _mm512_storeu_ps(values + (d + 1) * kSide, _mm512_permutex2var_ps(x, second, y));
        }
    }

  public:
    static void attend(const Args& a, const Part& part) {
        static thread_local KeptMemory memory;
        auto& s = *reinterpret_cast<Memory<M>*>(memory.at_least(sizeof(Memory<M>)));
        const TilesInUse in_use;
        const int64_t length = a.length_of(part.b);
        int64_t most = 0;
        for (int i = 0; i < M * kSide; ++i) {
            auto& [largest, sum, seen] = s.softmax[i / kSide];
            largest[i % kSide] = kNoScore, sum[i % kSide] = 0;
            seen[i % kSide] = i < part.count ? a.seen_by((part.row + i) / a.heads, length) : 0;
            most = std::max(most, seen[i % kSide]);
        }
        const int64_t end = std::min(part.end, most);
        const float factor = a.softmax_scale * cache_scale(a);
        pack_queries(a, part, s);
        std::memset(s.sums, 0, sizeof(s.sums));
        for (int64_t first = part.begin; first < end; first += kChunk) {
            const int tokens = int(std::min<int64_t>(kChunk, end - first)), steps = int(ceil_div(tokens, kDepth));
            Group groups[kGroups];
            score(a, part.b, first, end, groups, s);
            for (int m = 0; m < M; ++m)
                take_scores(first, tokens, steps, factor, s.softmax[m], s.scores[m], s.p[m], s.sums[m]);
            add_all_values(groups, steps, s);
        }
        for (int i = 0; i < part.count; ++i) {
            const int m = i / kSide, row = i % kSide;
            hand_on(s.sums[m], row, part.values + i * kLatent);
            part.softmax[i] = {s.softmax[m].largest[row], s.softmax[m].sum[row]};
        }
    }
};

void attend(const Args& a, const Part& part) {
    constexpr decltype(&attend) kOfTiles[] = {TileAttention<1>::attend, TileAttention<2>::attend,
                                              TileAttention<3>::attend, TileAttention<4>::attend};
    kOfTiles[(part.count - 1) / kSide](a, part);
}

}  // namespace

Kernels kernels_amx(const Args& args) {
    Kernels kernels = kernels_avx512(args);
    if (args.dtype == DType::bf16) kernels.attend = attend;
    return kernels;
}

}  // namespace rocm_fp8::mla_decode
