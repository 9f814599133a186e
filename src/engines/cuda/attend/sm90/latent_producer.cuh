// Producer of attend on Hopper for fp8_656, fp8_528 and fp8_584: converts records to f16 or bf16 keys in
// shared memory, in wgmma's layout.
#pragma once

#include "engines/cuda/attend/sm90/conversion.cuh"
#include "engines/cuda/attend/sm90/row_cursor.cuh"

namespace smla::cuda_attend::sm90 {

template <class Format, int Cluster>
class LatentProducer {
public:
    // Starts at task `task`, whose first tile is the block's tile `first_tile`.
    __device__ LatentProducer(const Arguments& args, const Tasks& tasks, const KeySources& keys,
                              uint32_t base, int task, uint32_t first_tile)
        : cursor_(args, tasks, keys, task, first_tile),
          keys_(keys),
          base_(base),
          lane_(threadIdx.x % 32),
          warp_((threadIdx.x / 32) % 4),
          piece_(lane_ % 16),
          peer_(Cluster == 2 ? cuda::in_block(base, cuda::cluster_rank() ^ 1) - base : 0),
          zero_(uint32_t(tasks.blocks) >> 31),
          tile_(first_tile) {
        const uint32_t row = first_key() + lane_ / 16;
        stores_ = base + kKeysAt + piece_ / 8 * 2 * kTileBytes + chunk_at(row, piece_ % 8);
    }

    // Runs the producer and returns the number of the tile after the last.
    __device__ uint32_t run() {
        start();
        if constexpr (kWhole) {
            // ptxas counts all loads with one scoreboard, and waits at the head of a loop for pending loads.
            // The loop therefore begins where the second half of a tile is needed anyway, which saves 1 to 7
            // % of the time. Addresses stay in uniform registers only because `more` comes from a shuffle and
            // nothing waits before the loop; the first tile needs no wait, because its stage is empty.
            bool more = __shfl_sync(~0u, uint32_t(tile_ < cursor_.end()), 0);
            if (more) store_first();
#pragma unroll 1
            while (more) {
                more = store_second();
                if (more) {
                    wait_until_empty(tile_ & 1);
                    store_first();
                }
            }
        } else {
#pragma unroll 1
            while (tile_ < cursor_.end()) {
                wait_until_empty(tile_ & 1);
                store_first();
                store_second();
            }
        }
        return tile_;
    }

private:
    static constexpr int kRows = 16 / Cluster,
                         kPieces = kRows / 2;  // keys per warp; 16-byte pieces per lane
    // Number of pieces that are loaded ahead of their conversion: a whole tile, or half of one if registers
    // are scarce. Half a tile does not hide memory latency, so these formats prefetch records to L2.
    static constexpr int kAhead = Format::codes == 448 ? 2 * kPieces : 8;
    static constexpr bool kWhole = kAhead == 2 * kPieces;  // whether a whole tile is loaded ahead
    static constexpr bool kPrefetches = Format::codes == 512;
    // Unroll factor of the start. A rolled loop saves 10 KB of code, which makes calls after another kernel
    // up to 2 % faster, but fp8_584 with 64 heads 2.7 % slower.
    static constexpr int kUnrolledStart = Format::sources == 1 ? 1 : 3;

    // Loads the data of the first tile.
    __device__ void start() {
#pragma unroll kUnrolledStart
        for (int i = 0; i < 3; ++i) now_ = next_, next_ = after_, after_ = resolve(cursor_.next());
        note_range(scales_.set(load_scales(now_)), tile_);
        // Without a tile, no thread would wait for these copies, and the block could end before them.
        if (Format::early_rope && tile_ < cursor_.end()) copy_rope_early(now_, tile_);
        if (kPrefetches) prefetch(next_);
#pragma unroll
        for (int e = 0; e < kAhead; e += kPieces) load_pieces(e, now_, uint32_t(e / kPieces) ^ (tile_ & 1));
    }
    // Stores the first half of tile_'s columns, whose stage is empty.
    __device__ void store_first() {
        const uint32_t half = tile_ & 1;
        note_valid(base_, tile_ & 1, now_.place);
        store_half(0, half);
        if (!kWhole) {
            load_pieces(kPieces, now_, half ^ 1);
            load_ahead();
        }
    }
    // Stores the other half when its stage is empty, and advances to the next tile. Returns whether it
    // exists.
    __device__ bool store_second() {
        const uint32_t half = tile_ & 1 ^ 1;
        wait_until_empty(half);
        if (kWhole) {
            load_pieces(0, next_, half, arrived(kPieces));
            load_ahead();
        }
        uint32_t more = tile_ + 1 < cursor_.end();
        if (kWhole) more = __shfl_sync(~0u, more, 0);
        store_half(1, half);
        ++tile_;
        // Scales and row number are used before new loads start, as their use waits for all earlier loads.
        note_range(scales_.set(next_scales_), tile_);
        now_ = next_, next_ = after_, after_ = resolve(row_);
        after_.place = cuda::keep(after_.place);
        if (kWhole) load_pieces(kPieces, now_, half ^ 1, arrived(0));
        else load_pieces(0, now_, half);
        if (Format::early_rope && more) copy_rope_early(now_, tile_);
        return more;
    }
    // Loads ahead for later tiles: scales, a row number, records in L2.
    __device__ void load_ahead() {
        next_scales_ = load_scales(next_);
        row_ = cursor_.next();
        if (kPrefetches) prefetch(after_);
    }
    __device__ void wait_until_empty(uint32_t half) const {
        cuda::mbarrier_wait(keys_empty(base_, tile_ & 1, half), (tile_ >> 1 & 1) ^ 1);
    }

    __device__ uint32_t first_key() const {
        return Cluster == 2 ? 8 * (4 * (blockIdx.x % 2) + warp_) : 16 * warp_;
    }
    // Returns the lane that follows the key of piece i of this lane.
    __device__ uint32_t lane_of(int i) const {
        return (Cluster == 2 ? 16u : 0u) + uint32_t(2 * i) + lane_ / 16;
    }

    struct Pending {  // key that a lane follows
        uint32_t place, scales;
        bool extra;
    };
    __device__ Pending resolve(int row) const {
        const bool extra = cursor_.extra();
        return {cursor_.place(row, extra), Format::codes == 448 ? cursor_.scales_place(row, extra) : 0,
                extra};
    }
    __device__ const char* data(const Pending& keys) const {
        return keys_.of[Format::sources == 2 && keys.extra].data;
    }
    // Returns 0 once the pieces of half a tile, from piece e on, have arrived. Loads that add this 0 to their
    // places start afterwards, so that the first use of these pieces does not wait for those loads.
    __device__ uint32_t arrived(int e) const {
        uint32_t bits = 0;
#pragma unroll
        for (int i = 0; i < kPieces; ++i) bits |= raw_[e + i].x;
        return bits & zero_;
    }
    // Loads pieces of a tile from piece e on: 16 codes of a key each, from the left or right half of the
    // columns.
    __device__ void load_pieces(int e, const Pending& keys, uint32_t half, uint32_t zero = 0) {
        uint32_t place[kPieces];
#pragma unroll
        for (int i = 0; i < kPieces; ++i) place[i] = __shfl_sync(~0u, keys.place | zero, lane_of(i));
#pragma unroll
        for (int i = 0; i < kPieces; ++i)
            raw_[e + i] = load_16(data(keys), holds_codes(half) ? place[i] : kHole, half * 16 + piece_);
    }
    __device__ bool holds_codes(uint32_t half) const {
        return Format::codes == 512 || half == 0 || piece_ < uint32_t(Format::codes - 256) / 16;
    }
    __device__ typename Scales<Format>::Loaded load_scales(const Pending& keys) const {
        const bool own = Cluster == 1 || lane_ >= 16;
        return Scales<Format>::load(data(keys), own ? keys.place : kHole, keys.scales);
    }
    // Prefetches the records of the warp's keys to L2, with four lanes per record. The last line of an
    // unaligned record may be omitted. Bulk prefetches, one per record, become a loop over lanes, which takes
    // 2 to 3 % of the kernel's time.
    __device__ void prefetch(const Pending& keys) const {
        constexpr uint32_t kLines = (Format::row_bytes + 127) / 128;
#pragma unroll
        for (uint32_t key = 0; key < uint32_t(kRows); key += 8) {
            const uint32_t place = __shfl_sync(~0u, keys.place, 32 - kRows + key + lane_ / 4);
            const char* const line = data(keys) + (uint64_t(place + 8 * (lane_ % 4)) << 4);
            if (place != kHole) {
                asm volatile("prefetch.global.L2 [%0];" ::"l"(line));
                if (lane_ % 4 + 4 < kLines) asm volatile("prefetch.global.L2 [%0+512];" ::"l"(line));
            }
        }
    }
    // Stores in both blocks the first tile whose scales are out of range.
    __device__ void note_range(bool holds, uint32_t tile) const {
        if (!Format::f16 || holds) return;
        cuda::min_shared(base_ + kOutOfRangeAt, tile);
        if constexpr (Cluster == 2) cuda::min_in_cluster(base_ + kOutOfRangeAt + peer_, tile);
    }
    __device__ void copy_rope_early(const Pending& keys, uint32_t tile) const {
        copy_rope(keys, base_ + kRingAt + tile % 3 * kTileBytes, rope_full(base_, tile));
    }
    // Copies bf16 columns of the warp's 16 keys to the tile at `tile`.
    __device__ void copy_rope(const Pending& keys, uint32_t tile, uint32_t barrier) const {
        constexpr uint32_t kFrom = Format::codes == 448 ? layout::Fp8_584::rope_at : layout::Fp8_656::rope_at;
        static_assert(kFrom % 16 == 0, "places count 16 bytes");
        const uint32_t row = warp_ * 16 + lane_ / 8, to = tile + chunk_at(row, lane_ % 8);
#pragma unroll
        for (uint32_t k = 0; k < 4; ++k) {
            const uint32_t place = __shfl_sync(~0u, keys.place, 4 * k + lane_ / 8);
            cuda::cp_async_16((to + k * 512) ^ ((4 * k & 7) << 4),
                              data(keys) + (uint64_t(place + kFrom / 16 + lane_ % 8) << 4), place != kHole);
        }
        cuda::mbarrier_arrive_after_copies(barrier);
    }
    // Converts pieces i to i + 3 of half a tile, whose pieces begin at raw_[first]. From column natural_from
    // on, a piece becomes two adjacent chunks of one tile.
    __device__ void store_pieces(int first, int i, uint32_t half, uint32_t to, uint32_t full) {
        const bool natural = Format::natural_from < 512 && half == 1 && piece_ >= 8;
        const uint32_t stores = natural ? stores_ ^ ((piece_ % 8 ^ 2 * (piece_ % 8)) << 4) : stores_;
        decltype(scales_.of_piece(half, piece_, 0)) own[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) own[k] = scales_.of_piece(half, piece_, lane_of(i + k));
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const uint4& codes = raw_[first + i + k];
            uint4 low, high;
            own[k].prepare(codes);
            own[k].convert(codes.x, low.x, low.y), own[k].convert(codes.y, low.z, low.w);
            own[k].convert(codes.z, high.x, high.y), own[k].convert(codes.w, high.z, high.w);
            const uint32_t at = (stores ^ ((2 * uint32_t(i + k) & 7) << 4)) + to + uint32_t(i + k) * 256,
                           second = natural ? at ^ 16 : at + kTileBytes;
            if (!holds_codes(half)) continue;
            cuda::store_shared(at, low), cuda::store_shared(second, high);
            if constexpr (Cluster == 2) {
                cuda::store_async(at + peer_, full + peer_, low);
                cuda::store_async(second + peer_, full + peer_, high);
            }
        }
    }
    // Converts the n-th half of the columns of the warp's keys of tile_, and stores it in both blocks.
    __device__ void store_half(int n, uint32_t half) {
        const uint32_t stage = tile_ & 1, full = keys_full(base_, stage, half),
                       to = stage * kStageBytes + half * kHalfBytes;
        if (Format::rope_tile < 8 && half == 1) copy_rope(now_, base_ + kKeysAt + to + 3 * kTileBytes, full);
#pragma unroll
        for (int i = 0; i < kPieces; i += 4) store_pieces(n * kPieces, i, half, to, full);
        cuda::fence_async_proxy();
        __syncwarp();
        if (lane_ != 0) return;
        const int columns = Format::codes == 512 || half == 0 ? 256 : Format::codes - 256;
        if constexpr (Cluster == 2) cuda::mbarrier_arrive_expect(full, kRows * 2 * columns);
        else cuda::mbarrier_arrive(full);
    }

    RowCursor<Format, Cluster> cursor_;
    const KeySources& keys_;
    const uint32_t base_, lane_, warp_, piece_, peer_;
    const uint32_t zero_;  // 0, which the compiler cannot know
    uint32_t tile_;
    Pending now_, next_, after_;  // keys of tile_ and of the next two tiles
    Scales<Format> scales_;
    typename Scales<Format>::Loaded next_scales_;
    int row_;          // row number of the tile after after_
    uint32_t stores_;  // address of the lane's first chunk in a half stage
    uint4 raw_[2 * kPieces];
};

}  // namespace smla::cuda_attend::sm90
