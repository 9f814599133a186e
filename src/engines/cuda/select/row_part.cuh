// The part of a row in shared memory of a block of a cluster, for select of few long rows (cluster.cu).
#pragma once

#include "engines/cuda/select/list.cuh"

namespace smla::cuda {

constexpr int kMostThreads = 1024;        // per block
constexpr int kUnit = 4, kMostUnits = 8;  // neighboring columns of a unit; units of a thread
static_assert(kMostUnits * kUnit <= 32 &&
              kMostThreads * kUnit * kMostUnits < 1 << 16);  // limits of masks and counts

struct ClusterSelect {
    SelectInput input;
    SelectOutput output;
    Windows windows;
    int parts, units;  // blocks per row; maximum of units per thread
};

__host__ __device__ inline int odd(int units) { return units == 1 ? 1 : units + 1; }

// Returns a mask of bits [first, last), clamped to 32 bits.
__device__ inline uint32_t bits_between(int first, int last) {
    const auto below = [](int n) { return n >= 32 ? ~0u : (1u << max(n, 0)) - 1; };
    return below(last) & ~below(first);
}

// The columns of a row that a block keeps. Places are numbered from the 16-byte boundary before the row, so
// the first ones may have no column; if there is no room for these, places are numbered from the row.
template <class Score, int Threads>
class RowPart {
public:
    static constexpr int kThreads = Threads, kWarps = Threads / 32;
    static constexpr int kTogether = 16 / int(sizeof(Score));  // per load

    __device__ RowPart(const ClusterSelect& task, const Window& window, int64_t token, int rank,
                       float4* units)
        : units_(units), window_begin_(window.begin), f16_(task.input.dtype == SMLA_F16) {
        const Score* const row = static_cast<const Score*>(task.input.scores) + token * task.input.stride +
                                 (window.begin - task.windows.begin);
        outside_ = int(reinterpret_cast<uintptr_t>(row) % 16) / int(sizeof(Score));
        divide(window, task.parts);
        if (per_block_ > kThreads * kUnit * task.units) {  // no room for places without a column
            aligned_ = false, outside_ = 0;
            divide(window, task.parts);
        }
        scores_ = row - outside_;
        begin_ = min(rank * per_block_, places_), end_ = min(begin_ + per_block_, places_);
        while (per_block_ > kThreads * kUnit << units_log2_) ++units_log2_;
    }

    // Returns a lower bound of the groups of columns that 2^log2 neighboring threads load together.
    __device__ int groups(int log2) const {
        const int threads = min(kThreads, (per_block_ + kTogether - 1) / kTogether) >> log2;
        return places_ / per_block_ * threads;
    }
    __device__ float score_of_row(int i) const { return widen(scores_[outside_ + i], f16_); }

    // Copies the part to shared memory, with NaN where a thread's units have no column. Calls visit(score)
    // for every column that the thread loads.
    template <class Visit>
    __device__ void load(const Visit& visit) const {
        constexpr int kAtOnce = kThreads == kMostThreads ? 4 : 8;      // limited by registers
        const int loads = max(1, (kUnit << units_log2_) / kTogether);  // loads per thread
        for (int first = 0; first < loads; first += kAtOnce) {
            uint4 words[kAtOnce];
#pragma unroll
            for (int v = 0; v < kAtOnce; ++v)
                if (whole(place(first + v)))
                    words[v] = __ldcg(reinterpret_cast<const uint4*>(scores_ + place(first + v)));
#pragma unroll
            for (int v = 0; v < kAtOnce; ++v) {
                if (!whole(place(first + v))) continue;
                float values[kTogether];
                unpack<Score>(words[v], f16_, values);
#pragma unroll
                for (int e = 0; e < kTogether; ++e) visit(values[e]);
                store(place(first + v) - begin_, values);
            }
#pragma unroll 1
            for (int v = 0; v < kAtOnce && first + v < loads; ++v)
                if (!whole(place(first + v))) load_edge(place(first + v), visit);
        }
    }

    // Units and columns of the thread. Bit 4 * j + c is column c of the thread's j-th unit.
    __device__ int units() const { return 1 << units_log2_; }
    __device__ float4 unit(int j) const { return units_[int(threadIdx.x) * odd(units()) + j]; }
    __device__ float score(int bit) const {
        return reinterpret_cast<const float*>(units_ + int(threadIdx.x) * odd(units()))[bit];
    }
    // Calls visit(mask, score) for each set bit. Two scores are loaded together, because the second load
    // would otherwise wait for the first visit's writes.
    template <class Visit>
    __device__ void each(uint32_t bits, const Visit& visit) const {
        while (bits) {
            const uint32_t first = bits & -bits, second = (bits ^ first) & -(bits ^ first);
            const float scores[] = {score(__ffs(int(first)) - 1), score(second ? __ffs(int(second)) - 1 : 0)};
            visit(first, scores[0]);
            if (second) visit(second, scores[1]);
            bits ^= first | second;
        }
    }
    __device__ uint32_t here() const {
        const int first = first_place();
        return bits_between(outside_ - first, min(end_ - first, kUnit * units()));
    }
    __device__ int column(int bit) const { return window_begin_ + first_place() + bit - outside_; }

private:
    __device__ void divide(const Window& window, int parts) {
        places_ = outside_ + window.end - window.begin;
        const int each = (places_ + parts - 1) >> (__ffs(parts) - 1);
        per_block_ = max((each + kTogether - 1) / kTogether, 1) * kTogether;
    }
    __device__ int first_place() const { return begin_ + int(threadIdx.x) * kUnit * units(); }
    __device__ int place(int load) const { return begin_ + (load * kThreads + int(threadIdx.x)) * kTogether; }
    __device__ bool whole(int at) const { return aligned_ && at >= outside_ && at + kTogether <= end_; }
    // Returns the address of the unit with place begin_ + at.
    __device__ float4* unit_of(int at) const {
        const int number = at / kUnit;
        return units_ + (number >> units_log2_) * odd(units()) + (number & (units() - 1));
    }
    __device__ void store(int at, const float (&values)[kTogether]) const {
#pragma unroll
        for (int i = 0; i < kTogether; i += kUnit)
            *unit_of(at + i) = {values[i], values[i + 1], values[i + 2], values[i + 3]};
    }
    template <class Visit>
    __device__ void load_edge(int at, const Visit& visit) const {
#pragma unroll 1
        for (int i = at; i < at + kTogether && i - begin_ < kThreads * kUnit << units_log2_; ++i) {
            float score = NAN;
            if (i >= outside_ && i < end_) visit(score = widen(scores_[i], f16_));
            reinterpret_cast<float*>(unit_of(i - begin_))[(i - begin_) % kUnit] = score;
        }
    }

    const Score* scores_;
    float4* units_;
    int window_begin_, outside_, per_block_, begin_, end_, places_;
    int units_log2_ = 0;
    bool aligned_ = true, f16_;
};

}  // namespace smla::cuda
