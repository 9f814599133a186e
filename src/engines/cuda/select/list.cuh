// Input and output of a block of select. The list in column order: the winners kept from earlier columns,
// then the columns of the current window.
#pragma once

#include "engines/cuda/score/windows.cuh"
#include "engines/cuda/select/cut.cuh"
#include "engines/cuda/select/run.h"

namespace smla::cuda {

// Returns a score as f32. `f16` distinguishes the two 16-bit types.
template <class Score>
__device__ float widen(Score score, bool f16) {
    if constexpr (sizeof(Score) == 4) return score;
    else return f16 ? f16_to_f32(score) : bf16_to_f32(score);
}
template <class Score>
__device__ void unpack(uint4 words, bool f16, float* scores) {
    const uint32_t all[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 4; ++i)
        if constexpr (sizeof(Score) == 4) {
            scores[i] = __uint_as_float(all[i]);
        } else {
            scores[2 * i] = widen(Score(all[i] & 0xffffu), f16);
            scores[2 * i + 1] = widen(Score(all[i] >> 16), f16);
        }
}

// Returns values[e] from registers, for an e known only at run time, by a tree of selects.
template <int Size>
__device__ float pick(const float (&values)[Size], uint32_t e) {
    if constexpr (Size == 1) {
        return values[0];
    } else {
        float half[Size / 2];
#pragma unroll
        for (int i = 0; i < Size / 2; ++i) half[i] = e & (Size / 2) ? values[i + Size / 2] : values[i];
        return pick(half, e);
    }
}

// Elements of a thread: vectors of Together elements, kSelectThreads vectors apart. Bit e of `here`: element
// e exists; its number in the list is number(e).
template <int Size, int Together>
struct Group {
    static constexpr int size = Size;
    float scores[Size];
    uint32_t here = 0;
    int first = 0;
    __device__ int number(uint32_t e) const {
        return first + int(e / Together * kSelectThreads * Together + e % Together);
    }
};

// A row's list. Score: float, or uint16_t for bf16 and f16. Ahead: elements in flight per thread.
template <class Score, int Ahead>
class ScoreList {
public:
    static constexpr int kTogether = 16 / int(sizeof(Score)), kVectors = Ahead / kTogether;

    __device__ ScoreList(const SelectInput& input, const Windows& windows, int64_t token, int64_t k)
        : f16_(input.dtype == SMLA_F16) {
        const Window window = windows(token);
        begin_ = window.begin;
        length_ = window.end - window.begin;
        scores_ = static_cast<const Score*>(input.scores) + token * input.stride + (begin_ - windows.begin);
        if (input.kept_scores) {
            const Window whole = windows.whole(token);
            kept_ = int(min(k, int64_t(max(0, min(windows.begin, whole.end) - whole.begin))));
            kept_scores_ = input.kept_scores + token * k;
            kept_columns_ = input.kept_columns + token * k;
        }
        const int misplaced = int(reinterpret_cast<uintptr_t>(scores_) % 16);
        head_ = min(length_, misplaced ? (16 - misplaced) / int(sizeof(Score)) : 0);
        vectors_ = (length_ - head_) / kTogether;
    }

    __device__ int count() const { return kept_ + length_; }
    __device__ int kept() const { return kept_; }
    __device__ int column(int i) const { return i < kept_ ? kept_columns_[i] : begin_ + (i - kept_); }
    __device__ float score(int i) const { return i < kept_ ? kept_scores_[i] : value(scores_[i - kept_]); }
    __device__ uint32_t key(int i) const { return rank_key(score(i)); }
    // Interface for put_in_order; Item: data kept of an element.
    using Item = float;
    __device__ Item item(int i) const { return score(i); }
    __device__ static uint32_t key_of(Item score) { return rank_key(score); }
    __device__ float score_of_item(Item score, int) const { return score; }

    // Spreads the list over the block's threads: whole warps call visit(group).
    template <class Visit>
    __device__ void groups(const Visit& visit) const {
        const int rest = head_ + vectors_ * kTogether;  // first number after the vectors
        scalars(kept_, visit, [&](int i) { return i; });
        scalars(length_ - vectors_ * kTogether, visit,
                [&](int i) { return kept_ + (i < head_ ? i : rest + i - head_); });
        const auto* const from = reinterpret_cast<const uint4*>(scores_ + head_);
        const int last = vectors_, lane = int(threadIdx.x % 32);
        for (int i = int(threadIdx.x); i - lane < last; i += kVectors * kSelectThreads) {
            Group<Ahead, kTogether> group;
            group.first = kept_ + head_ + i * kTogether;
            uint4 words[kVectors];
#pragma unroll
            for (int v = 0; v < kVectors; ++v) {
                const int at = i + v * kSelectThreads;
                words[v] = at < last ? __ldg(from + at) : uint4{};
                if (at < last) group.here |= ((1u << kTogether) - 1) << (v * kTogether);
            }
#pragma unroll
            for (int v = 0; v < kVectors; ++v) unpack(words[v], group.scores + v * kTogether);
            visit(group);
        }
    }

    // Loads vectors at, at + kSelectThreads, ... of the list, below `last`. Returns a mask: bit v * kTogether
    // + e is set if element e of the v-th vector exists.
    __device__ uint32_t load_in_order(int at, int last, float (&out)[Ahead]) const {
        const int whole = kept_ == 0 && head_ == 0 ? min(last, length_ / kTogether) : 0;
        const auto* const from = reinterpret_cast<const uint4*>(scores_);
        uint4 words[kVectors];
        uint32_t here = 0;
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
            const int vector = at + v * kSelectThreads;
            words[v] = vector < whole ? __ldg(from + vector) : uint4{};
            if (vector < whole) here |= ((1u << kTogether) - 1) << (v * kTogether);
        }
#pragma unroll
        for (int v = 0; v < kVectors; ++v) unpack(words[v], out + v * kTogether);
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
            const int vector = at + v * kSelectThreads;
            if (vector < whole || vector >= last) continue;
#pragma unroll
            for (int e = 0; e < kTogether; ++e) {
                if (vector * kTogether + e >= count()) continue;
                out[v * kTogether + e] = score(vector * kTogether + e);
                here |= 1u << (v * kTogether + e);
            }
        }
        return here;
    }

    template <class F>
    __device__ void each(const F& f) const {
        groups([&](const auto& group) {
#pragma unroll
            for (int e = 0; e < group.size; ++e)
                if (group.here >> e & 1) f(rank_key(group.scores[e]), group.number(uint32_t(e)));
        });
    }

    // Samples the keys of at most `wanted` elements, in evenly spaced pairs of vectors. Returns their number.
    __device__ int sample(uint32_t* out, int wanted) const {
        const int pairs = min(wanted / (2 * kTogether), vectors_ / 2);
        const auto* const from = reinterpret_cast<const uint4*>(scores_ + head_);
        for (int i = int(threadIdx.x); i < 2 * pairs; i += kSelectThreads) {
            const int64_t at = int64_t(i / 2) * (vectors_ / 2) / pairs * 2 + i % 2;
            float scores[kTogether];
            unpack(__ldg(from + at), scores);
#pragma unroll
            for (int e = 0; e < kTogether; ++e) out[i * kTogether + e] = rank_key(scores[e]);
        }
        return 2 * pairs * kTogether;
    }

private:
    __device__ float value(Score score) const { return widen(score, f16_); }
    __device__ void unpack(uint4 words, float* scores) const { cuda::unpack<Score>(words, f16_, scores); }
    template <class Visit, class Number>
    __device__ void scalars(int count, const Visit& visit, const Number& number) const {
        const int lane = int(threadIdx.x % 32);
        for (int64_t i = int(threadIdx.x); i - lane < count; i += kSelectThreads) {
            Group<Ahead, 1> group{};
            if (i < count) {
                group.first = number(int(i));
                group.scores[0] = score(group.first);
                group.here = 1;
            }
            visit(group);
        }
    }

    const Score* scores_;
    const float* kept_scores_ = nullptr;
    const int32_t* kept_columns_ = nullptr;
    int kept_ = 0, begin_, length_, head_, vectors_;
    bool f16_;
};

struct TokenOutput {
    int base = 0;     // column with index 0
    int request = 0;  // request whose pages contain the rows

    __device__ TokenOutput(const SelectOutput& out, const Windows& windows, int64_t token, bool rows) {
        if (out.relative) base = windows.whole(token).begin;
        if (rows) request = out.request_of_token[token * out.request_stride];
    }
    TokenOutput() = default;
};

// One token's row of the outputs. put() writes a winner, finish() the padding and the count. Rows: whether
// the call requests rows, known at compile time: skipped code costs a kernel of few rows 0.1 to 0.3 us.
template <bool Rows>
class Winners {
public:
    __device__ Winners(const SelectOutput& out, int64_t token, const TokenOutput& of_token)
        : indices_(out.indices + token * out.index_stride),
          selected_(out.selected ? out.selected + token * out.selected_stride : nullptr),
          rows_(Rows ? out.rows + token * out.row_stride : nullptr),
          count_(out.counts ? out.counts + token * out.count_stride : nullptr),
          table_(out.row_table),
          of_token_(of_token),
          k_(int(out.k)) {}
    template <class Score>  // score() is called only if scores are requested
    __device__ void put(int place, int column, const Score& score) const {
        indices_[place] = column - of_token_.base;
        if (selected_) selected_[place] = score();
        if constexpr (Rows) rows_[place] = row_of(table_, of_token_.request, column);
    }
    __device__ void finish(int count) const {
        for (int64_t i = count + int(threadIdx.x); i < k_; i += blockDim.x) {
            indices_[i] = -1;
            if (selected_) selected_[i] = -INFINITY;
            if constexpr (Rows) rows_[i] = -1;
        }
        if (count_ && threadIdx.x == 0) *count_ = count;
    }

private:
    int32_t* indices_;
    float* selected_;
    int32_t *rows_, *count_;
    const BlockTable& table_;
    TokenOutput of_token_;
    int k_;
};

// Writes the elements above the cut and the first cut.equal elements equal to it, in list order, in one pass.
// A list defines its size, the data kept of an element (Item), and an element's key, column and score.
template <class List, bool Rows>
__device__ void put_in_order(const List& list, Cut cut, const Winners<Rows>& winners, CutScratch& scratch) {
    constexpr int kPer = 4;
    uint32_t above = 0, equal = 0;  // numbers of elements so far
    const int count = list.count();
    for (int64_t first = 0; first < count; first += kPer * kSelectThreads) {
        const int64_t mine = first + kPer * int(threadIdx.x);
        typename List::Item items[kPer];
        uint32_t marks[kPer], sum = 0, total;  // 1: above the cut, 0x10000: equal
#pragma unroll
        for (int i = 0; i < kPer; ++i) {
            marks[i] = 0;
            if (mine + i < count) {
                items[i] = list.item(int(mine + i));
                const uint32_t key = List::key_of(items[i]);
                marks[i] = key > cut.key ? 1u : key == cut.key ? 0x10000u : 0u;
            }
            sum += marks[i];
        }
        uint32_t before = block_scan(sum, scratch.warps, total);
#pragma unroll
        for (int i = 0; i < kPer; ++i) {
            const uint32_t equals = equal + (before >> 16);
            if ((marks[i] & 1) || (marks[i] && equals < cut.equal))
                winners.put(int(above + (before & 0xffff) + min(equals, cut.equal)),
                            list.column(int(mine + i)),
                            [&] { return list.score_of_item(items[i], int(mine + i)); });
            before += marks[i];
        }
        above += total & 0xffff;
        equal += total >> 16;
    }
}

// Selects exactly for any row, by three histograms and put_in_order. Called by every thread of the block.
template <class List, bool Rows>
__device__ void select_exactly(const List& list, int k, const Winners<Rows>& winners, CutScratch& scratch) {
    const int count = list.count();
    Cut cut{0, UINT32_MAX};  // passes all keys
    if (k < count)
        cut = find_cut<RunCounter>(scratch, uint32_t(k), 0, UINT32_MAX, 3,
                                   [&](const auto& f) { list.each([&](uint32_t key, int) { f(key); }); });
    put_in_order(list, cut, winners, scratch);
}

}  // namespace smla::cuda
