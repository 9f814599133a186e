// Roles of attend_many: producer, score, accumulate and epilogue.
#pragma once

#include "engines/cuda/attend/mma/decoded_rows.cuh"
#include "engines/cuda/attend/mma/many/operands.cuh"
#include "engines/cuda/attend/mma/softmax.cuh"

#include <type_traits>

namespace smla::cuda_attend {

template <class T>
using ManyTiles = KeyTiles<T::keys, T::row_slots>;

// A thread's share of the copies of a tile: every Lanes-th chunk of one row, starting at `chunk`.
struct CopyLane {
    uint32_t row, chunk;
};

// Returns the share of this thread: `Lanes` neighboring threads copy a row. Recomputed to save registers.
template <class T, int Lanes>
__device__ inline CopyLane copy_lane() {
    const uint32_t thread = cuda::keep(threadIdx.x) - 32 * T::score_warps, group = thread / Lanes % T::keys;
    // With 4 lanes per row, the 8 lanes of a 128-byte access write rows r and r + 4, which fall into
    // different banks: the record pitch is 80 bytes more than a multiple of 128.
    const uint32_t row = Lanes == 4 ? (group & 8) + (group >> 1 & 3) + 4 * (group & 1) : group;
    return {row, thread % Lanes};
}

// Producer role of the value warps: cp.async of key tiles into the ring of stages. The threads form teams,
// which process tiles in rotation.
template <class T>
class Producer {
public:
    __device__ Producer(const ManyTiles<T>& tiles, uint32_t base) : tiles_(tiles), base_(base) {}

    // Starts the copies of this warp's queries, before the tile list is known.
    static __device__ void fetch_queries(const Arguments& args, const WorkTile& work, uint32_t base) {
        queries(base).fetch(args, work, first_query());
    }
    static __device__ ManyQueries<T> queries(uint32_t base) { return {base + uint32_t(T::query_tile_at)}; }

    // Copies tile 0 while the queries are loaded, and other tiles after the score warps have read the
    // queries.
    __device__ void prologue(smla_format format) {
        for (int i = 0; i < kRowsAhead; ++i) fetch(team() + i * kTeams);
        wait_copies<0>();
        KeyStage<T> stage;
        load_tile(0, stage);
        if (T::coded) queries(base_).scale(format, first_query(), WeightStage<T>::output_factor(base_, 0));
        signal_queries_loaded<T>();
        if constexpr (T::decoded) decode_tile<0>(0, stage);
        wait_queries_taken<T>();
        for (int t = 1; t < T::ahead; ++t) load_tile(t, stage = stage.after(1));
        if constexpr (T::decoded) decode_tile<kLater>(1, KeyStage<T>().after(1));
    }
    // Starts the copy of tile t into its stage, if the tile belongs to this team.
    __device__ void load_tile(int t, const KeyStage<T>& stage) {
        if (t >= tiles_.count() || t % kTeams != team()) {
            if constexpr (T::decoded && kLater > 0) cuda::cp_async_commit();  // decode_tile counts groups
            return;
        }
        wait_copies<kRowsAhead - 1>();  // for the row numbers
        wait_until_empty(stage);
        const CopyLane lane = copy_lane<T, T::copy_lanes>();
        const BlockSource source = tiles_.source(t);  // all fields together, so that loads wait once
        const BlockSource::Row row = tiles_.row(t, int(lane.row), source);
        if constexpr (T::coded) {
            const uint32_t to = stage.keys(base_) + lane.row * T::pitch;
            copy_record<T::width, T::copy_lanes>(to, source.record(row), source.chunks, row.valid,
                                                 lane.chunk);
            if (lane.chunk == 0) copy_scales(to, source, row);
        } else if constexpr (T::decoded)
            copy_raw_record(stage.keys(base_) + lane.row * T::pitch, lane.row, source, RawRecord(source, row),
                            row.valid, lane.chunk);
        else
            copy_row<T::width>(swizzled_at(stage.keys(base_), T::pitch, lane.row, lane.chunk),
                               source.record(row), row.valid, lane.chunk);
        publish_tile(stage.full(base_), stage.mask(base_), lane, row.valid);
        fetch(t + kRowsAhead * kTeams);
    }
    // Decodes tile t, if it belongs to this team, and arrives at `full`. Later: tiles that the team loaded
    // since.
    template <int Later>
    __device__ void decode_tile(int t, const KeyStage<T>& stage) {
        static_assert(T::copy_lanes == kDecodedLanes);
        if (t >= tiles_.count() || t % kTeams != team()) return;
        wait_copies<Later>();
        const CopyLane lane = copy_lane<T, T::copy_lanes>();
        const uint32_t place = stage.keys(base_) + lane.row * T::pitch;
        if (is_nvfp4(tiles_.source(t))) decode_row<Nvfp4Group, 2>(place, lane.row, lane.chunk);
        else decode_row<Mxfp8Group, 2>(place, lane.row, lane.chunk);
        arrive_as_warp(stage.full(base_), threadIdx.x % 32);
    }
    // Starts the copies of tile t + ahead and decodes tile t + ahead - 1. Called before the value products of
    // tile t. The team of tile t + ahead - 1 has loaded nothing since, or one tile if all warps are one team.
    __device__ void produce(int t, const KeyStage<T>& stage) {
        load_tile(t + T::ahead, stage.after(T::ahead));
        if constexpr (T::decoded) decode_tile<kLater>(t + T::ahead - 1, stage.after(T::ahead - 1));
    }

private:
    static constexpr uint32_t kFirst = 32 * T::score_warps;  // first thread of the value warps
    static constexpr int kTeamThreads = T::keys * T::copy_lanes, kTeams = 32 * T::value_warps / kTeamThreads;
    // Prefetch depth of row numbers, in tiles of a team. cp.async completes in issue order, so waiting for
    // row numbers also waits for older tiles. All of these precede t: t + ahead - kTeams * kRowsAhead < t.
    static constexpr int kRowsAhead = T::ahead / kTeams + 1;
    static constexpr int kLater = kTeams == 1;  // tiles that a team loads between copying and decoding a tile
    static_assert(T::ahead == 3 || !T::decoded);         // tiles 0 and 1 are decoded in the prologue
    static_assert(kTeams * kRowsAhead <= T::row_slots);  // a slot is read before it is overwritten

    static __device__ uint32_t first_query() {  // returns the first query of this warp
        return (cuda::keep(threadIdx.x) - kFirst) / 32 * T::query_rows;
    }
    // Arrives at `full` when this thread's copies are done, unless the tile must be decoded. One thread per
    // row stores the row's byte of the mask.
    __device__ void publish_tile(uint32_t full, uint32_t mask, const CopyLane& lane, bool valid) {
        if constexpr (!T::decoded) cuda::mbarrier_arrive_after_copies(full);
        if (lane.chunk == 0) {
            cuda::store_shared_byte(mask + lane.row, valid);
            if constexpr (!T::decoded) cuda::mbarrier_arrive(full);
        }
        __syncwarp();  // the row number is read, so fetch() may overwrite it
    }
    // Fetches a row number. All lanes of a row fetch the same number, which is cheaper than a branch.
    __device__ void fetch(int t) {
        tiles_.fetch(t, int(copy_lane<T, T::copy_lanes>().row));
        cuda::cp_async_commit();
    }
    // Waits for all except the last `Pending` groups of copies of this warp.
    template <int Pending>
    __device__ void wait_copies() {
        cuda::cp_async_wait<Pending>();
        __syncwarp();
    }
    // Waits until a stage is empty. Returns immediately in a stage's first use, because the phase before the
    // first phase of an mbarrier counts as completed.
    __device__ void wait_until_empty(const KeyStage<T>& stage) {
        cuda::mbarrier_wait(stage.empty(base_), stage.phase() ^ 1);
    }
    static __device__ int team() { return int((threadIdx.x - kFirst) / kTeamThreads); }

    const ManyTiles<T>& tiles_;
    const uint32_t base_;
};

// Score warps: compute S = Q K^T for every key and the softmax, and write the weights to shared memory.
template <class T>
class ScoreRole {
public:
    __device__ ScoreRole(const Arguments& args, uint32_t base)
        : args_(args),
          base_(base),
          // a shuffle with fp8: registers are so scarce that ptxas would reread the special register at each
          // use
          warp_(T::coded ? __shfl_sync(~0u, threadIdx.x / 32, 0) : cuda::keep(threadIdx.x / 32)),
          lane_(T::coded ? __shfl_sync(~0u, threadIdx.x % 32, threadIdx.x % 32)
                         : cuda::keep(threadIdx.x % 32)),
          softmax_(args.scale() * (T::value_unit * kLog2E)),
          mma_(ScoreSlice<T>{base_, warp_, lane_}) {}

    __device__ void load_queries() {
        wait_queries_loaded<T>();
        mma_.load_queries(Producer<T>::queries(base_), first_format(args_), softmax_.scale_log2);
    }

    __device__ void main_loop(const ManyTiles<T>& tiles) {
        KeyStage<T> stage;
        WeightStage<T> weights;
        for (int t = 0; t < tiles.count(); ++t, stage = stage.after(1)) {
            typename WarpMma::Early early;
            mma_.load_early(tiles.source(t), early);
            // tested early, so that the result arrives during the wait for keys
            const bool free = !T::coded && cuda::mbarrier_over(weights.empty(base_), weights.phase() ^ 1);
            cuda::mbarrier_wait(stage.full(base_), stage.phase());
            mma_.load_first(stage.keys(base_), early);
            const Mask mask(stage.mask(base_));
            const bool any = mask.any(), all = mask.all();
            float s[2][2][4];
            if (any) mma_.multiply(stage.keys(base_), early, s);
            // read again, which saves four registers during the products
            const uint32_t holes = all ? 0 : Mask(stage.mask(base_)).holes(lane());
            arrive_as_warp(stage.empty(base_), lane());
            if (t > 0 && lane() == 0) cuda::mbarrier_arrive(weights.previous().scored(base_));
            if (!free) cuda::mbarrier_wait(weights.empty(base_), weights.phase() ^ 1);
            if (!any) {
                publish(weights, kAllHoles);
                continue;
            }
            exchange(weights, s);
            if (!all) mask_holes(holes, s[0]);
            publish_weights(weights, s[0]);
        }
    }

    // Writes the statistics of this warp's heads and the factors of their output rows.
    __device__ void finish(const TileScheduler& scheduler, const WorkTile& work) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float sum = softmax_.row_sum(r), largest2 = softmax_.max2(r);
            const int64_t h = work.head + head(lane_, r);
            if (lane_ % 4 == 0 && h < args_.q.shape[1])
                cuda::store_shared(
                    WeightStage<T>::output_factor(base_, head(lane_, r)),
                    finish_head(args_, scheduler, work, h, softmax_.any(), softmax_.peak2[r], largest2, sum));
        }
    }

private:
    using WarpMma = std::conditional_t<T::coded, ScoreCodes<T>, ScoreRows<T>>;

    // With fp8, values derived from warp_ and lane_ are recomputed at each use instead of kept across the
    // loop.
    __device__ uint32_t warp() const { return T::coded ? cuda::keep(warp_) : warp_; }
    __device__ uint32_t lane() const { return T::coded ? cuda::keep(lane_) : lane_; }

    // Returns head r of a lane within the block, among the heads whose softmax this warp computes.
    __device__ int head(uint32_t lane, int r) const { return int(16 * warp() + lane / 4) + 8 * r; }

    // Adds the partner warp's half-width products to this warp's and sends it the products of its heads. If
    // shared memory is short, half is written to the partner's weight slot, which no other warp overwrites.
    __device__ void exchange(const WeightStage<T>& weights, float (&s)[2][2][4]) {
        const uint32_t warp = this->warp(), lane = this->lane();
        const uint32_t of_lane = base_ + 16 * lane, own = of_lane + warp * T::exchange_bytes,
                       other = of_lane + (warp ^ 1) * T::exchange_bytes;
        const uint32_t slot = weights.stage() * uint32_t(T::weights_bytes) + T::weights_at;
        // Returns the address at which the warp at `here` stores half n of products for the warp at `there`.
        const auto sent = [&](uint32_t here, uint32_t there, uint32_t n) {
            if (T::exchange_bytes == 1024) return here + T::exchange_at + 512 * n;
            return n == 0 ? there + slot : here + T::exchange_at;
        };
        cuda::named_barrier<64>(id(Barrier::scores_read, warp / 2));
#pragma unroll
        for (uint32_t n = 0; n < 2; ++n) {
            const auto bits = [&](int i) { return __float_as_uint(s[1][n][i]); };
            cuda::store_shared(sent(own, other, n), make_uint4(bits(0), bits(1), bits(2), bits(3)));
        }
        cuda::named_barrier<64>(id(Barrier::scores_sent, warp / 2));
#pragma unroll
        for (uint32_t n = 0; n < 2; ++n) {
            const uint4 came = cuda::load_shared_4(sent(other, own, n));
            s[0][n][0] += __uint_as_float(came.x), s[0][n][1] += __uint_as_float(came.y);
            s[0][n][2] += __uint_as_float(came.z), s[0][n][3] += __uint_as_float(came.w);
        }
    }

    static __device__ void mask_holes(uint32_t holes, float (&s)[2][4]) {
#pragma unroll
        for (int i = 0; i < 8; ++i)
            if (holes >> (2 * (i / 4) + i % 2) & 1) s[i / 4][i % 4] = -INFINITY;
    }

    __device__ void publish_weights(WeightStage<T>& weights, float (&s)[2][4]) {
        float rescale[2];
        const bool moved = softmax_.update(s, rescale);
        if (T::exchange_bytes < 1024) __syncwarp();  // all lanes have read the partner's products
        const uint32_t lane = this->lane(), at = weights.weights_of_lane(base_, this->warp(), lane);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
#pragma unroll
            for (int n = 0; n < 2; ++n)
                cuda::store_shared((n ? at ^ 16 : at) + 256 * uint32_t(r),
                                   WarpMma::pack(s[n][2 * r], s[n][2 * r + 1]));
            if (moved && lane % 4 == 0) cuda::store_shared(weights.factor(base_, head(lane, r)), rescale[r]);
        }
        publish(weights, moved ? kRescale : 0);
    }
    __device__ void publish(WeightStage<T>& weights, uint32_t flags) {
        const uint32_t lane = this->lane();
        if (lane == 0) cuda::store_shared_byte(weights.flags(base_) + warp_, flags);
        arrive_as_warp(weights.full(base_), lane);
        weights = weights.after(1);
    }

    const Arguments& args_;
    const uint32_t base_, warp_, lane_;
    Softmax<2, T::lift> softmax_;
    WarpMma mma_;
};

// Value warps: compute O += P V for all heads of the block and a share of the columns. They also perform the
// producer role and, at the end, the epilogue.
template <class T>
class AccumulateRole {
public:
    __device__ explicit AccumulateRole(uint32_t base)
        : base_(base),
          warp_(cuda::keep(threadIdx.x / 32 - T::score_warps)),
          lane_(cuda::keep(threadIdx.x % 32)),
          mma_(base_, warp_) {}

    __device__ void main_loop(const ManyTiles<T>& tiles, smla_format format) {
        Producer<T> producer(tiles, base_);
        KeyStage<T> stage;
        WeightStage<T> weights;
        producer.prologue(format);
        for (int t = 0; t < tiles.count(); ++t, stage = stage.after(1), weights = weights.after(1)) {
            producer.produce(t, stage);
            const typename WarpMma::Kind kind(tiles.source(t));
            // A warp that sees the weights also sees the keys that they belong to.
            cuda::mbarrier_wait(weights.full(base_), weights.phase());
            const uint32_t flags = cuda::load_shared(weights.flags(base_));
            const bool last = t + 1 == tiles.count();
            if (flags & kAllHoles) release(weights, last);
            else accumulate(weights, flags, last, stage.keys(base_), kind);
            arrive_as_warp(stage.empty(base_), lane_);
        }
    }

    // Writes the output through the memory of keys and queries, which no thread reads any more.
    __device__ void epilogue(const Arguments& args, const TileScheduler& scheduler,
                             const WorkTile& work) const {
        const smla_format format = first_format(args);
        const typename T::Epilogue out{base_ + warp_ * T::Epilogue::bytes};
#pragma unroll
        for (int m = 0; m < T::m_values; ++m) {
            mma_.write(out, format, warp_, lane_, m);
            out.store(args, scheduler, work, 16 * m, WeightStage<T>::output_factor(base_, 16 * m),
                      [&](int c) { return T::columns * int(warp_) + c; });
        }
    }

private:
    using WarpMma = std::conditional_t<T::coded, ValueCodes<T>, ValueRows<T>>;

    __device__ void accumulate(const WeightStage<T>& weights, uint32_t flags, bool last, uint32_t keys,
                               const typename WarpMma::Kind& kind) {
        if (flags) rescale(weights, flags);
        mma_.prepare(keys, kind, warp_, lane_, [&](int head, int key) {
            return weights.weights(base_, head, key / 8) + uint32_t(2 * (key % 8));
        });
        uint32_t a[T::m_values][4];
#pragma unroll
        for (int m = 0; m < T::m_values; ++m)
            cuda::ldmatrix_x4(a[m], weights.weights(base_, 16 * m + int(lane_ & 15), int(lane_ >> 4)));
        release(weights, last);
        mma_.accumulate(keys, kind, warp_, lane_, a);
    }
    // Frees the stage of the weights, which are in registers, after the next tile is scored. If it were freed
    // earlier, score warps could run ahead by a phase of `scored`.
    __device__ void release(const WeightStage<T>& weights, bool last) {
        if (!last) cuda::mbarrier_wait(weights.scored(base_), weights.phase());
        arrive_as_warp(weights.empty(base_), lane_);
    }
    // Multiplies accumulators by their factors. Byte w of the flags: score warp w has new factors.
    __device__ void rescale(const WeightStage<T>& weights, uint32_t flags) {
#pragma unroll
        for (int i = 0; i < 2 * T::m_values; ++i) {
            if (!(flags >> (8 * (i / 2)) & kRescale)) continue;
            const float factor = cuda::load_shared_f32(weights.factor(base_, 8 * i + int(lane_ / 4)));
#pragma unroll
            for (int j = 0; j < 4 * T::n_values; ++j)
                mma_.sums[i / 2][j / 4][j / 2 % 2][2 * (i % 2) + j % 2] *= factor;
        }
    }

    const uint32_t base_, warp_, lane_;
    WarpMma mma_;
};

}  // namespace smla::cuda_attend
