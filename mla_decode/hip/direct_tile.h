// A tile of 32 tokens of 16-bit numbers on gfx950: loaded to LDS directly, 16 bytes a lane, so that no registers hold it
// on its way. Tokens begin at multiples of 16 bytes.
//
//     latent   [32 tokens][64 chunks of 16 bytes]: a load of a wave has a token
//     rope     [32 tokens][8 chunks], behind: a load has eight tokens
//
// Loads write lane after lane. So which chunk a lane loads decides how a token's chunks are permuted: by an exclusive or
// with turn_of(token), of the last 64 numbers with turn_of_rope(token). With it no read has bank conflicts:
//
//     of keys      16 bytes of each of 16 or 32 tokens, neighbouring chunks; 16 lanes together
//     of values    ds_read_b64_tr_b16: 16 lanes have 32 bytes of each of four tokens; 32 lanes together
//
// Behind the last token that token is loaded again. Its exponentials are zeros there, and it belongs to the sequence.
#pragma once

#include "../../common/attention/gpu/paged.h"
#include "../../common/hip/lds.h"
#include "../../common/hip/lds_direct.h"
#include "tile.h"

namespace rocm_fp8::mla_decode::hip {
namespace {

#if defined(__gfx950__)

constexpr int kDirectTile = 32, kDirectBytes = kDirectTile * kWidth * 2;
constexpr int kLatentBytes = kLatent * 2, kRopeBytes = kRope * 2, kRopeInTile = kDirectTile * kLatentBytes;
static_assert(kDirectBytes == 2 * kTileBytes && kLatentBytes == kWave * kChunk);

// Both by token % 16. Bits 0 and 1 part tokens that differ in bits 2 and 3, those above the neighbours.
__device__ constexpr uint32_t low_turn(uint32_t token) {
    return ((token >> 2 ^ token >> 3) & 1) * 2 + (token >> 3 & 1);
}
__device__ constexpr uint32_t turn_of(uint32_t token) { return token % 4 * 4 + low_turn(token); }
__device__ constexpr uint32_t turn_of_rope(uint32_t token) { return (token >> 1 & 1) * 4 + low_turn(token); }

__device__ inline u32x2 turned_of_lds(uint32_t address) {
    using Four = short __attribute__((ext_vector_type(4)));
    auto* const from = (__attribute__((address_space(3))) Four*)(uintptr_t(address));
    return __builtin_bit_cast(u32x2, __builtin_amdgcn_ds_read_tr16_b64_v4i16(from));
}

// What a wave of 16 or 32 rows reads of a tile. Sum m has columns m * width ... + width - 1.
//
// Values are read turned, by ds_read_b64_tr_b16: of 16 lanes each has an address of 8 bytes; lane i gets number i % 4 of
// what lanes i / 4, i / 4 + 4, + 8 and + 12 have there. These four have four tokens, so lane i gets a column of them.
template <int width>
class DirectTile {
    static constexpr int kLanes = kWave / width, kLatentSteps = kLatentChunks / kLanes, kColumns = kLatent / width;
    uint32_t latent_at, rope_at, value_at;  // in a tile: of a lane's first chunks of keys, and of values

  public:
    static constexpr int kTokens = kDirectTile, kKeySteps = kChunks / kLanes;
    static constexpr int kValueSteps = kColumns * kTokens / (8 * kLanes);
    static constexpr bool kFours = false;

    __device__ DirectTile() {
        const uint32_t lane = fresh_lane(), j = lane % width, g = lane / width, s = lane % 16, token = 4 * g + s / 4;
        latent_at = j * kLatentBytes + (g ^ turn_of(j)) * kChunk;
        rope_at = kRopeInTile + j * kRopeBytes + (g ^ turn_of_rope(j)) * kChunk;
        // Of values: columns 16 (j / 16) + 4 (s % 4) ... + 3 of an instruction's.
        value_at = token * kLatentBytes + (j / 16 * 2 + s % 4 / 2 ^ turn_of(token)) * kChunk + s % 2 * 8;
        have_computed(latent_at), have_computed(rope_at), have_computed(value_at);
    }
    // 16 bytes of the lane's token; of 16 rows it has two, 16 apart: part. Steps are in such an order that one exclusive or
    // serves four; the last ones are of the rotated numbers.
    struct Keys {
        uint32_t latent, rope;
        __device__ static constexpr int chunk_of(int step) {
            return step < kLatentSteps ? step / 4 + step % 4 * (kLatentSteps / 4) : step;
        }
        __device__ u32x4 operator()(int step, int part) const {
            const int token = part * width;
            if (step >= kLatentSteps)
                return of_lds<u32x4>((rope ^ (step - kLatentSteps) * kLanes * kChunk) + token * kRopeBytes);
            return of_lds<u32x4>((latent ^ step / 4 * kLanes * kChunk) + step % 4 * 256 + token * kLatentBytes);
        }
    };
    // tile: its address.
    __device__ Keys keys(uint32_t tile) const { return {tile + latent_at, tile + rope_at}; }
    // Eight of the lane's tokens, as an instruction takes them: all columns of 8 * kLanes tokens, then of the next ones.
    struct Values {
        uint32_t first;
        __device__ static constexpr int sum_of(int step) { return step % kColumns / 4 + step % 4 * (kColumns / 4); }
        __device__ u32x4 operator()(int step) const {
            constexpr int kFurther = 4 * kLanes;  // tokens: the lane's second four
            const uint32_t at = first ^ step % kColumns / 4 * (width / 8) * kChunk;
            const uint32_t more = step % 4 * 256 + step / kColumns * 2 * kFurther * kLatentBytes;
            return joined(turned_of_lds(at + more),
                          turned_of_lds((at ^ turn_of(kFurther) * kChunk) + more + kFurther * kLatentBytes));
        }
    };
    __device__ Values values(uint32_t tile) const { return {tile + value_at}; }
};

// Loads a wave's tokens of tiles, of every `apart`. waves: that share a tile. pages: tiles whose entries of the page table
// it keeps in LDS.
template <int waves, int apart, int pages>
class DirectLoader {
  public:
    static constexpr int kTokens = kDirectTile / waves, kEights = kTokens / 8;
    static constexpr int kLoads = kTokens + kEights;  // of a tile

  private:
    // Eights of tokens whose addresses are known before they are asked for.
    static constexpr int kHeld = waves == 1 ? 1 : kEights;
    const uint8_t *data, *table;  // table: without one anything
    uint64_t page_stride, row_stride;
    Divider page_size;
    int32_t first_page, last_page;          // without a table the sequence's, both
    uint32_t apart_in_row, apart_in_table;  // from a page to the next one: rows, bytes; without a table 0
    int32_t end;                            // the tokens before it are loaded
    uint32_t first;                         // of the wave's tokens, in a tile
    uint32_t places;                        // of the entries: [pages][lane], an address in LDS
    uint32_t chunk, rope;  // what the lane loads of its first token: of a latent part, and of a token's other numbers
    int32_t entry;
    uint32_t row, entry_at;
    // Each lane's token of an eight, and all of them.
    const uint8_t* own[kHeld];
    const uint8_t* token[kHeld][8];

    __device__ int32_t token_of(int32_t tile, uint32_t n) const {
        const int32_t token = tile * kDirectTile + int32_t(first + n);
        return token < end ? token : end - 1;
    }
    __device__ uint32_t place_of(int32_t tile) const { return places + uint32_t(tile) / apart % pages * (kWave * 4); }

  public:
    // Of the tokens before `end`, of which there is one; fewer than 2^31 pages.
    __device__ void start(const attention::PagedRows& of, int32_t all, int wave, uint32_t pages_in_lds) {
        data = of.data, page_stride = uint64_t(of.page_stride), row_stride = uint64_t(of.row_stride);
        page_size = of.page_size, end = all, first = uint32_t(wave) * kTokens, places = pages_in_lds;
        // No branch in a turn: what stands on both of its sides would move to the end.
        table = of.table ? reinterpret_cast<const uint8_t*>(of.table) : of.data;
        first_page = of.table ? 0 : of.page, last_page = of.table ? int32_t(of.pages) - 1 : of.page;
        apart_in_row = of.table ? page_size.divisor : 0, apart_in_table = of.table ? sizeof(int32_t) : 0;
        const uint32_t lane = fresh_lane();
        chunk = (lane ^ turn_of(first)) * kChunk;
        rope = kLatentBytes + (lane % 8 ^ turn_of_rope(first + lane / 8)) * kChunk;
        have_computed(chunk), have_computed(rope);
    }
    // Asks for the entries of a tile, in two pieces: one load. They have to be there before its tokens are asked for.
    __device__ void find(int32_t tile, int piece) {
        if (piece == 0) {
            entry_at = divide(uint32_t(token_of(tile, fresh_lane() % kTokens)), page_size) * apart_in_table;
        } else {
            to_lds(place_of(tile));
            settle_m0();
            load_to_lds<4>(table, entry_at);
        }
    }
    __device__ void find(int32_t tile) {
        find(tile, 0);
        settle_scalars();
        find(tile, 1);
    }
    // Finds eight tokens of a tile. In kPieces, one after the other, each of a few instructions.
    static constexpr int kPieces = 10;
    __device__ void prepare(int32_t tile, int eight, int piece) {
        const uint8_t*& mine = own[eight % kHeld];
        const uint32_t n = uint32_t(eight) * 8 + fresh_lane() / 8;
        if (piece == 0) {
            entry = of_lds<int32_t>(place_of(tile) + n * 4);
        } else if (piece == 1) {
            row = uint32_t(token_of(tile, n));
            row -= divide(row, page_size) * apart_in_row;
        } else if (piece == 2) {
            // Entries outside of the cache are read as its first page or its last one, as of PagedRows.
            entry = entry < first_page ? first_page : entry;
            entry = entry < last_page ? entry : last_page;
        } else if (piece == 3) {
            mine = data + uint32_t(entry) * page_stride;
        } else if (piece == 4) {
            mine += row * row_stride;
        } else if (piece == 9) {
            mine += rope ^ turn_of_rope(uint32_t(eight) * 8) * kChunk;
        } else {
#pragma unroll
            for (int t = 2 * (piece - 5); t < 2 * (piece - 4); ++t) {
                token[eight % kHeld][t] = address_of_lane(mine, t * 8);
                have_now(token[eight % kHeld][t]);  // far enough ahead of the loads
            }
        }
    }
    // Then asks for them, n: 0 ... 7 each one's latent numbers, 8 the others of all. to: the tile's address in LDS.
    __device__ void request(uint32_t to, int eight, int n) const {
        // first has bits of its own, which turn a token apart from the others.
        if (n < 8) {
            const int in_part = eight * 8 + n;
            load_to_lds(to + first * kLatentBytes, in_part * kLatentBytes, token[eight % kHeld][n], chunk,
                        int(turn_of(uint32_t(in_part))) * kChunk);
            return;
        }
        to_lds(to + kRopeInTile + (first + uint32_t(eight) * 8) * kRopeBytes);
        settle_m0();
        load_to_lds(own[eight % kHeld]);
    }
    __device__ void request_all(uint32_t to, int32_t tile) {
#pragma unroll
        for (int e = 0; e < kEights; ++e) {
#pragma unroll
            for (int piece = 0; piece < kPieces; ++piece) prepare(tile, e, piece);
#pragma unroll
            for (int n = 0; n <= 8; ++n) request(to, e, n);
        }
    }
};

#endif

}  // namespace
}  // namespace rocm_fp8::mla_decode::hip
