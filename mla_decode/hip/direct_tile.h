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
#include "../../common/hip/lds_direct.h"
#include "tile.h"

namespace rocm_fp8::mla_decode::hip {
namespace {

constexpr int kDirectTile = 32, kDirectBytes = kDirectTile * kWidth * 2;
constexpr int kLatentBytes = kLatent * 2, kRopeBytes = kRope * 2, kRopeInTile = kDirectTile * kLatentBytes;
static_assert(kDirectBytes == 2 * kTileBytes && kLatentBytes == kWave * kChunk);

// Both by token % 16. Bits 0 and 1 part tokens that differ in bits 2 and 3, those above the neighbours.
__device__ constexpr uint32_t low_turn(uint32_t token) { return ((token >> 2 ^ token >> 3) & 1) * 2 + (token >> 3 & 1); }
__device__ constexpr uint32_t turn_of(uint32_t token) { return token % 4 * 4 + low_turn(token); }
__device__ constexpr uint32_t turn_of_rope(uint32_t token) { return (token >> 1 & 1) * 4 + low_turn(token); }

// Loads a wave's tokens of tiles, of every `apart`. waves: that share a tile. pages: tiles whose entries of the page table
// it keeps in LDS.
template <int waves, int apart, int pages>
class DirectLoader {
    attention::PagedRows rows;
    int32_t end;      // the tokens before it are loaded
    uint32_t first;   // of the wave's tokens, in a tile
    uint32_t places;  // of the entries: [pages][lane], an address in LDS
    int32_t entry;
    // Of eight tokens that are asked for: each lane's, and all of them; the chunk that the lane loads of the first one.
    const uint8_t* own;
    const uint8_t* token[8];
    uint32_t chunk;

    __device__ int32_t token_of(int32_t tile, uint32_t n) const {
        const int32_t token = tile * kDirectTile + int32_t(first + n);
        return token < end ? token : end - 1;
    }
    __device__ uint32_t place_of(int32_t tile) const { return places + uint32_t(tile) / apart % pages * (kWave * 4); }

  public:
    static constexpr int kTokens = kDirectTile / waves, kEights = kTokens / 8;
    static constexpr int kLoads = kTokens + kEights;  // of a tile

    // Of the tokens before `end`, of which there is one.
    __device__ void start(const attention::PagedRows& of, int32_t all, int wave, uint32_t pages_in_lds) {
        rows = of, end = all, first = uint32_t(wave) * kTokens, places = pages_in_lds;
    }
    // Asks for the entries of a tile: one load. They have to be there before its tokens are asked for.
    __device__ void find(int32_t tile) const {
        const int32_t token = token_of(tile, fresh_lane() % kTokens);
        // Without a table anything: the loads in flight are counted.
        const auto* const from = rows.table ? reinterpret_cast<const uint8_t*>(rows.table) : rows.data;
        const uint32_t entry_at = rows.table ? divide(uint32_t(token), rows.page_size) * 4 : 0;
        to_lds(place_of(tile));
        settle_scalars();
        load_to_lds<4>(from, entry_at);
    }
    // Reads the entries of eight tokens of a tile; then finds the tokens.
    __device__ void look(int32_t tile, int eight) {
        entry = of_lds<int32_t>(place_of(tile) + (uint32_t(eight) * 8 + fresh_lane() / 8) * 4);
    }
    __device__ void prepare(int32_t tile, int eight) {
        const uint32_t lane = fresh_lane(), n = uint32_t(eight) * 8 + lane / 8;
        own = rows.row_of(token_of(tile, n), rows.table ? entry : rows.page);
        chunk = (lane ^ turn_of(first + uint32_t(eight) * 8)) * kChunk;
#pragma unroll
        for (int t = 0; t < 8; ++t) {
            const uint64_t address = reinterpret_cast<uint64_t>(own);
            const uint64_t low = uint32_t(__builtin_amdgcn_readlane(int(address), t * 8));
            const uint64_t high = uint32_t(__builtin_amdgcn_readlane(int(address >> 32), t * 8));
            token[t] = reinterpret_cast<const uint8_t*>(high << 32 | low);
            have_now(token[t]);  // far enough ahead of the loads
        }
    }
    // Then asks for them, n: 0 ... 7 each one's latent numbers, 8 the others of all. to: the tile's address in LDS.
    __device__ void request(uint32_t to, int eight, int n) const {
        const uint32_t in_tile = first + uint32_t(eight) * 8;
        if (n < 8) {
            load_to_lds(to + in_tile * kLatentBytes, n * kLatentBytes, token[n], chunk, int(turn_of(n)) * kChunk);
            return;
        }
        to_lds(to + kRopeInTile + in_tile * kRopeBytes);
        const uint32_t lane = fresh_lane();
        load_to_lds(own + kLatentBytes + (lane % 8 ^ turn_of_rope(in_tile + lane / 8)) * kChunk);
    }
    __device__ void request_all(uint32_t to, int32_t tile) {
#pragma unroll
        for (int e = 0; e < kEights; ++e) {
            look(tile, e);
            prepare(tile, e);
#pragma unroll
            for (int n = 0; n <= 8; ++n) request(to, e, n);
        }
    }
};

}  // namespace
}  // namespace rocm_fp8::mla_decode::hip
