// What value warps do besides adding values: tiles on their way into shared memory, for all.
#pragma once

#include "engines/cuda_mma/attend/codes.cuh"
#include "engines/cuda_mma/attend/fill.cuh"
#include "engines/cuda_mma/attend/many/turn.cuh"

namespace smla::cuda_attend {

template <class T>
using ManyTiles = Tiles<T::keys, T::row_slots>;

// A thread's place among those that share the rows of a tile.
struct Lane {
    uint32_t row, piece;
};

// Of the value warps' threads, `Lanes` neighbours to each row. Made anew where it is needed: registers.
template <class T, int Lanes>
__device__ inline Lane lane_of_thread() {
    const uint32_t thread = cuda::keep(threadIdx.x) - 32 * T::score_warps, group = thread / Lanes % T::keys;
    // With 4 lanes the 8 of a 128-byte access have rows r and r + 4, whose banks are those that the other
    // leaves: a record takes 16 or 80 bytes more than a multiple of 128.
    const uint32_t row = Lanes == 4 ? (group & 8) + (group >> 1 & 3) + 4 * (group & 1) : group;
    return {row, thread % Lanes};
}

template <class T>
class Maker {
public:
    __device__ Maker(const ManyTiles<T>& tiles, uint32_t base) : tiles_(tiles), base_(base) {}

    // Before there are tiles: queries are under way.
    static __device__ void fetch_queries(const Arguments& args, const Place& place, uint32_t base) {
        queries(base).fetch(args, place, first_query());
    }
    static __device__ ManyQueries<T> queries(uint32_t base) { return {base + uint32_t(T::came_at)}; }

    // The first tiles are under way: one beside the queries, others once these are taken.
    __device__ void begin(smla_format format) {
        for (int i = 0; i < kRowsAhead; ++i) fetch(team() + i * kTeams);
        arrive<0>();
        Turn<T> turn;
        copy(0, turn);
        if (T::coded) queries(base_).scale(format, first_query(), WeightsTurn<T>::last_factor(base_, 0));
        queries_have_come<T>();
        wait_until_queries_are_taken<T>();
        for (int t = 1; t < T::ahead; ++t) copy(t, turn = turn.after(1));
    }
    // Tile t is under way into its buffer, if it is this thread's to copy.
    __device__ void copy(int t, const Turn<T>& turn) {
        if (t >= tiles_.count() || t % kTeams != team()) return;
        arrive<kRowsAhead - 1>();  // the row numbers
        wait_until_empty(turn);
        const Lane lane = lane_of_thread<T, T::copy_lanes>();
        const Reader reader = tiles_.reader(t);  // at once: each field by itself would be waited for
        const Reader::Row row = tiles_.row(t, int(lane.row), reader);
        if constexpr (T::coded) {
            const uint32_t to = turn.keys(base_) + lane.row * T::pitch;
            copy_record<T::width, T::copy_lanes>(to, reader.record(row), reader.pieces, row.valid,
                                                 lane.piece);
            if (lane.piece == 0) copy_scales(to, reader, row);
        } else
            copy_row<T::width>(piece_at(turn.keys(base_), T::pitch, lane.row, lane.piece), reader.record(row),
                               row.valid, lane.piece);
        under_way(turn.full(base_), turn.mask(base_), lane, row.valid);
        fetch(t + kRowsAhead * kTeams);
    }

private:
    static constexpr uint32_t kFirst = 32 * T::score_warps;  // of the value warps' threads
    static constexpr int kTeamThreads = T::keys * T::copy_lanes, kTeams = 32 * T::value_warps / kTeamThreads;
    // A team has the row numbers of so many of its tiles under way. What is waited for with them was under
    // way no later than a tile that is long there: t + ahead - kTeams * kRowsAhead < t.
    static constexpr int kRowsAhead = T::ahead / kTeams + 1;
    static_assert(kTeams * kRowsAhead <= T::row_slots);  // a slot is read before it is written again

    static __device__ uint32_t first_query() {  // of this warp
        return (cuda::keep(threadIdx.x) - kFirst) / 32 * T::query_rows;
    }
    // This thread's arrival once its copies are done; whether the row is no hole, a byte per key.
    __device__ void under_way(uint32_t full, uint32_t mask, const Lane& lane, bool valid) {
        cuda::mbarrier_arrive_after_copies(full);
        if (lane.piece == 0) {
            cuda::store_shared_byte(mask + lane.row, valid);
            cuda::mbarrier_arrive(full);
        }
        __syncwarp();  // the row numbers are read
    }
    __device__ void fetch(int t) {  // all lanes of a row fetch the same: cheaper than a branch
        tiles_.fetch(t, int(lane_of_thread<T, T::copy_lanes>().row));
        cuda::cp_async_commit();
    }
    // What this warp has on its way but the last `Pending` is there, for all of its lanes.
    template <int Pending>
    __device__ void arrive() {
        cuda::cp_async_wait<Pending>();
        __syncwarp();
    }
    // True at once in a buffer's first turn: the phase before a barrier's first counts as over.
    __device__ void wait_until_empty(const Turn<T>& turn) {
        cuda::mbarrier_wait(turn.empty(base_), turn.parity() ^ 1);
    }
    static __device__ int team() { return int((threadIdx.x - kFirst) / kTeamThreads); }

    const ManyTiles<T>& tiles_;
    const uint32_t base_;
};

}  // namespace smla::cuda_attend
