// What value warps do besides adding values: tiles on their way into shared memory, for all.
#pragma once

#include "engines/cuda_mma/attend/fill.cuh"
#include "engines/cuda_mma/attend/many/turn.cuh"

namespace smla::cuda_attend {

template <class T>
using ManyTiles = Tiles<T::keys, T::row_slots>;

// Of the value warps' threads, `Lanes` neighbours to each row. Made anew where it is needed: registers.
template <class T, int Lanes>
__device__ inline Lane lane_of_thread() {
    const uint32_t thread = cuda::keep(threadIdx.x) - 32 * T::score_warps, group = thread / Lanes % T::keys;
    // With 4 lanes the 8 of a 128-byte access have rows r and r + 4, whose banks are those that the other
    // leaves: a record takes 16 bytes more than a multiple of 128.
    const uint32_t row = Lanes == 4 ? (group & 8) + (group >> 1 & 3) + 4 * (group & 1) : group;
    return {row, thread % Lanes};
}

template <class T>
class Maker {
public:
    __device__ Maker(const Arguments& args, const ManyTiles<T>& tiles, uint32_t base)
        : args_(args), tiles_(tiles), base_(base) {}

    // The first tiles, or their records, are under way.
    __device__ void begin() {
        for (int i = 0; i < kRowsAhead; ++i) fetch(team() + i * kTeams);
        arrive<0>();
        Turn<T> turn;
        if constexpr (T::coded) {
            for (int t = 0; t < T::raws; ++t) send(t);
        } else {
            for (int t = 0; t < T::ahead; ++t, turn = turn.after(1)) copy(t, turn);
        }
    }
    // And made: fp8.
    __device__ void make_first() {
        Turn<T> turn;
        for (int t = 0; t < T::ahead; ++t, turn = turn.after(1)) {
            decode(t, turn);
            send_next(t, turn);
        }
    }
    // bf16: tile t is under way into its buffer, if it is this thread's to copy.
    __device__ void copy(int t, const Turn<T>& turn) {
        if (t >= tiles_.count() || t % kTeams != team()) return;
        arrive<kRowsAhead - 1>();  // the row numbers
        wait_until_empty(turn);
        const Lane lane = lane_of_thread<T, T::copy_lanes>();
        const Reader::Row row = tiles_.row(t, int(lane.row));
        copy_row<T::width>(piece_at(turn.keys(base_), T::pitch, lane.row, lane.piece),
                           tiles_.reader(t).record(row), row.valid, lane.piece);
        under_way(turn.full(base_), turn.mask(base_), lane, row.valid);
        fetch(t + kRowsAhead * kTeams);
    }
    // fp8: tile t, whose records have been sent, becomes bf16 in its buffer.
    __device__ void decode(int t, const Turn<T>& turn) {
        if (t >= tiles_.count()) return;
        const int place = t % T::raws;
        cuda::mbarrier_wait(raw_full<T>(base_, place), uint32_t(t / T::raws) & 1);
        wait_until_empty(turn);
        const Lane lane = lane_of_thread<T, T::lanes>();
        Decoder<T::lanes>(args_, tiles_.extra(t), tiles_.reader(t).format, lane.piece,
                          raw(place) + lane.row * kRawPitch,
                          piece_at(turn.keys(base_), T::pitch, lane.row, lane.piece % 8))
            .run();
        if (lane.row + lane.piece == 0)
            cuda::store_shared(turn.mask(base_), cuda::load_shared_4(raw_mask(place)));
        arrive_as_warp(turn.full(base_), threadIdx.x % 32);
    }
    // fp8: the records that follow in the place of tile t, which fills the buffer of `turn`, if they are this
    // thread's to copy. Waits for all warps to have decoded t.
    __device__ void send_next(int t, const Turn<T>& turn) {
        if (t + T::raws >= tiles_.count() || (t + T::raws) % kTeams != team()) return;
        cuda::mbarrier_wait(turn.full(base_), turn.parity());
        send(t + T::raws);
    }

private:
    static constexpr uint32_t kFirst = 32 * T::score_warps;  // of the value warps' threads
    static constexpr int kTeamThreads = T::keys * T::copy_lanes, kTeams = 32 * T::value_warps / kTeamThreads;
    // A team has the row numbers of so many of its tiles under way. What is waited for with them was under
    // way no later than a tile that is long there.
    static constexpr int kLongThere = T::coded ? T::raws : T::buffers;
    static constexpr int kRowsAhead = (kLongThere + kTeams - 1) / kTeams;
    static_assert(kTeams * kRowsAhead <= T::row_slots);  // a slot is read before it is written again

    __device__ void send(int t) {
        if (t >= tiles_.count() || t % kTeams != team()) return;
        const int place = t % T::raws;
        arrive<kRowsAhead - 1>();  // the row numbers
        const Lane lane = lane_of_thread<T, T::copy_lanes>();
        const Reader& reader = tiles_.reader(t);
        const Reader::Row row = tiles_.row(t, int(lane.row));
        copy_record<T::copy_lanes>(raw(place) + lane.row * kRawPitch, reader, row, lane.piece);
        under_way(raw_full<T>(base_, place), raw_mask(place), lane, row.valid);
        fetch(t + kRowsAhead * kTeams);
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
    __device__ uint32_t raw(int place) const { return base_ + uint32_t(T::raw_at + place * T::raw_bytes); }
    __device__ uint32_t raw_mask(int place) const { return base_ + uint32_t(T::raw_masks_at + 16 * place); }
    static __device__ int team() { return int((threadIdx.x - kFirst) / kTeamThreads); }

    const Arguments& args_;
    const ManyTiles<T>& tiles_;
    const uint32_t base_;
};

}  // namespace smla::cuda_attend
