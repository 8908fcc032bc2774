// A tile of tokens: from pages to registers, and to LDS as 16-bit floats of the queries' type.
//
// In LDS a tile is [16 tokens][72 chunks of 16 bytes], the chunks of a token permuted by an exclusive or with token %
// 8:
//
//     writes       a wave has the 64 latent chunks of a token, lane for lane; then the 8 others of eight tokens
//     of keys      lane 16 g + j: chunk 4 c + g of token j, 8 numbers of two instructions' k
//     of values    lane 16 g + i: 8 bytes of each of tokens 4 g ... + 3, columns 4 i ... + 3 of 64; 128 bytes together
//
// On gfx942 none of them has bank conflicts.
//
// A wave loads 16 / waves tokens, eight at a time or as many as there are. The lanes are divided between these, and
// know their token's address; scalar registers have it for the latent part, of which each lane loads 8 numbers. The
// last 64 numbers are loaded by the lanes that know the address.
#pragma once

#include <type_traits>

#include "../../common/attention/gpu/paged.h"
#include "../../common/gpu/lanes.h"
#include "../../common/hip/dequantize.h"
#include "../../common/hip/lds.h"
#include "config.h"

namespace rocm_fp8::mla_decode::hip {
namespace {

// A wave's lane; what is computed from it is computed anew in each turn, not kept in registers. Unsigned: cheap to
// divide.
__device__ inline uint32_t fresh_lane() { return uint32_t(fresh_thread()) % kWave; }

// All lanes' copy of a lane's address, in scalar registers.
__device__ inline const uint8_t* address_of_lane(const uint8_t* own, int lane) {
    const uint64_t address = reinterpret_cast<uint64_t>(own), high = of_lane(uint32_t(address >> 32), lane);
    return reinterpret_cast<const uint8_t*>(high << 32 | of_lane(uint32_t(address), lane));
}

constexpr int kChunk = 16, kNumbers = 8, kChunks = kWidth / kNumbers, kTokenBytes = kChunks * kChunk;
constexpr int kLatentChunks = kLatent / kNumbers, kRopeChunks = kRope / kNumbers;
static_assert(kTokenBytes * kTile == kTileBytes && kLatentChunks == kWave);

// Byte of a chunk of a token in LDS.
__device__ inline uint32_t place(uint32_t token, uint32_t chunk) {
    return token * kTokenBytes + (chunk ^ token % 8) * kChunk;
}

// What a wave of 16 or 32 rows reads of a tile of as many tokens, in one place of LDS or in two. Values come as fours of
// columns: of each 4 * width columns, sum n of four has column 4 m + n in the matrix instruction's row m.
template <int width>
struct Tile {
    static constexpr int kTokens = width, kLanes = kWave / width, kKeySteps = kChunks / kLanes;
    static constexpr bool kFours = true;
    uint32_t places[width / kTile];

    // 16 bytes of the lane's token; a step is a chunk of each lane of the token.
    struct Keys {
        static constexpr int kPeriod = 8 / kLanes;  // steps in 128 bytes: rows of LDS are multiples of those
        uint32_t first;
        __device__ static constexpr int chunk_of(int step) { return step; }
        __device__ u32x4 operator()(int step, int) const {
            return of_lds<u32x4>((first ^ step % kPeriod * kLanes * kChunk) + step / kPeriod * 128);
        }
    };
    __device__ Keys keys() const {
        const uint32_t lane = fresh_lane(), j = lane % width;
        const uint32_t first = places[0], last = places[width / kTile - 1];
        return {(j < kTile ? first : last) + place(j % kTile, lane / width)};
    }
    // Of columns 4 j ... + 3 of 4 * width the lane's token r of four. A step is one of blocks of these columns, then the
    // next 4 * kLanes tokens. Chunks of the four tokens differ in the two bits of r.
    static constexpr int kBlocks = kLatent / (4 * width), kStepsOfAPlace = 8;
    static constexpr int kValueSteps = kStepsOfAPlace * width / kTile;
    struct Values {
        uint32_t first[width / kTile];
        __device__ u32x2 operator()(int step, int r) const {
            const int tokens = step % kStepsOfAPlace / kBlocks * 4 * kLanes, at = step % kBlocks * 8 * width;
            return of_lds<u32x2>((first[step / kStepsOfAPlace] ^ r * kChunk) + (tokens + r) * kTokenBytes + at);
        }
    };
    __device__ Values values() const {
        const uint32_t lane = fresh_lane(), j = lane % width;
        Values read;
#pragma unroll
        for (int i = 0; i < width / kTile; ++i)
            read.first[i] = places[i] + place(4 * (lane / width), j / 2) + j % 2 * 8;
        return read;
    }
};

// Eight numbers as they lie in the cache.
template <Format format>
using Packed = std::conditional_t<format == Format::wide, u32x4, u32x2>;

// From any address: the chips' loads need no alignment. Aligned ones are as fast as they can be.
template <class T>
__device__ inline T load_packed(const uint8_t* p, uint32_t byte) {
    struct __attribute__((packed)) AnyAddress {
        T v;
    };
    return global<AnyAddress>(p + byte)->v;
}

// Of the last 64 numbers what a lane loads, where `lanes` share them: of codes always eight.
template <Format format, int lanes>
using RopePacked =
    std::conditional_t<format == Format::fp8, u32x2,
                       std::conditional_t<lanes == 8, u32x4, std::conditional_t<lanes == 16, u32x2, uint32_t>>>;

// Loads a wave's tokens of a tile. waves: that share it.
template <int waves, DType type, Format format>
class TileLoader {
    static constexpr bool kMixed = format == Format::mixed, kFp8 = format == Format::fp8;
    static constexpr int kTokens = kTile / waves, kOfAnEight = kTokens < 8 ? kTokens : 8,
                         kEights = kTokens / kOfAnEight;
    static constexpr uint32_t kLanes = kWave / kOfAnEight;                // of a token
    static constexpr int kLatentBytes = format == Format::wide ? 16 : 8;  // a lane's
    using Rope = RopePacked<format, int(kLanes)>;

    attention::PagedRows rows;
    int32_t end;     // the tokens before it are loaded
    uint32_t first;  // of the wave's tokens, in a tile
    int32_t entries[kEights];
    const uint8_t *own, *token;  // that are being requested: each lane's, and all lanes'
    Packed<format> latent[kTokens];
    Rope rope[kEights];
    float scales[kMixed ? kTokens : 1];

    // The token whose address this lane has; behind the last one that.
    __device__ int32_t own_token(int32_t tile, int eight) const {
        const int32_t token = tile * kTile + int32_t(first) + eight * 8 + int32_t(fresh_lane() / kLanes);
        return token < end ? token : end - 1;
    }

  public:
    // Of the tokens before `end`, of which there is one.
    __device__ void start(const attention::PagedRows& of, int32_t all, int wave) {
        rows = of, end = all, first = uint32_t(wave) * kTokens;
    }
    // The pages of a tile that is to be requested next.
    __device__ void find(int32_t tile) {
#pragma unroll
        for (int e = 0; e < kEights; ++e) entries[e] = rows.entry_of(own_token(tile, e));
    }
    __device__ void request_all(int32_t tile) {
#pragma unroll
        for (int piece = 0; piece < kRequests; ++piece) prepare(tile, piece), request(piece);
    }
    // The same in kRequests pieces, one after the other; of each first what `prepare` does.
    static constexpr int kRequests = kEights * (kOfAnEight + 1);
    __device__ void prepare(int32_t tile, int piece) {
        const int e = piece / (kOfAnEight + 1), t = piece % (kOfAnEight + 1) - 1;
        if (t < 0) {
            own = rows.row_of(own_token(tile, e), entries[e]);
            return;
        }
        token = address_of_lane(own, t * int(kLanes));
    }
    __device__ void request(int piece) {
        const uint32_t lane = fresh_lane();
        const int e = piece / (kOfAnEight + 1), t = piece % (kOfAnEight + 1) - 1;
        if (t < 0) {
            constexpr uint32_t kRopeFrom = kMixed ? kRopeAt : kLatent / kNumbers * kLatentBytes;
            rope[e] = load_packed<Rope>(own, kRopeFrom + rope_lane(lane) * uint32_t(sizeof(Rope)));
            return;
        }
        latent[e * 8 + t] = load_packed<Packed<format>>(token, lane * kLatentBytes);
        if constexpr (kMixed) {
            const uint32_t group = lane * kNumbers / kScaleGroup;
            scales[e * 8 + t] = load_packed<float>(token, kScalesAt + group * 4);
        }
    }
    // What has been requested, to a tile in LDS. Tokens behind the last one are zeros: NaN there would reach results.
    __device__ void store(char* lds, int32_t tile) {
#pragma unroll
        for (int piece = 0; piece < kStores; ++piece) store(lds, tile, piece);
    }
    // The same in kStores pieces, one after the other.
    static constexpr int kStores = kTokens + kEights;
    __device__ void store(char* lds, int32_t tile, int piece) {
        const uint32_t lane = fresh_lane();
        if (piece == 0) {
            const int32_t left = uniform(end - tile * kTile - int32_t(first));  // of the wave's tokens
            if (left < kTokens) [[unlikely]] {
                keep_branch();
                clear_from(left, lane);
            }
        }
        const auto put = [&](uint32_t token, uint32_t chunk, u32x4 v) {
            *reinterpret_cast<u32x4*>(lds + place(first + token, chunk)) = v;
        };
        if (piece < kTokens) {
            put(piece, lane, numbers(latent[piece], scales[kMixed ? piece : 0]));
            return;
        }
        const int e = piece - kTokens;
        const uint32_t token = e * 8 + lane / kLanes;
        if constexpr (kFp8) {
            if (lane % kLanes < kRopeChunks) put(token, kLatentChunks + lane % kLanes, numbers(rope[e], 1));
        } else {
            Rope v = rope[e];
            if constexpr (kMixed && type == DType::f16) v = halves_of(v);
            const uint32_t byte = lane % kLanes * uint32_t(sizeof(Rope));
            char* const to = lds + place(first + token, kLatentChunks + byte / kChunk) + byte % kChunk;
            *reinterpret_cast<Rope*>(to) = v;
        }
    }

  private:
    __device__ void clear_from(int32_t left, uint32_t lane) {
#pragma unroll
        for (int t = 0; t < kTokens; ++t) {
            if (t < left) continue;
            latent[t] = Packed<format>(0);
            if constexpr (kMixed) scales[t] = 0;
        }
#pragma unroll
        for (int e = 0; e < kEights; ++e) {
            if (e * 8 + int32_t(lane / kLanes) >= left) rope[e] = Rope(0);
        }
    }
    __device__ static u32x4 numbers(const Packed<format>& v, float scale) {
        if constexpr (format == Format::wide) return v;
        else if constexpr (format == Format::fp8) return eight_values<type>(v);
        // NaN with zeros in its lower half, as rounding asks for.
        else return scaled_fn_values<type>(v, scale == scale ? scale : __builtin_nanf(""));
    }
    __device__ static uint32_t rope_lane(uint32_t lane) { return kFp8 ? lane % kRopeChunks : lane % kLanes; }
    // bfloat16 as float16.
    __device__ static Rope halves_of(Rope v) {
        uint32_t words[sizeof(Rope) / 4];
        __builtin_memcpy(words, &v, sizeof(Rope));
#pragma unroll
        for (uint32_t& word : words) word = Pairs<DType::f16>::round(Pairs<DType::bf16>::widen(word));
        __builtin_memcpy(&v, words, sizeof(Rope));
        return v;
    }
};

}  // namespace
}  // namespace rocm_fp8::mla_decode::hip
