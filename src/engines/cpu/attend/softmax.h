// The online softmax of one block of keys with heads in the lanes, and the last step of a head, as templates
// for all instruction sets.
#pragma once

#include "engines/cpu/attend/products.h"

namespace smla::cpu_attend {

using lanes::exp2_below;

// Stores weights of one vector of heads in the words of the value product.
template <class Isa>
SMLA_INLINE void store_weights(const SoftmaxArgs& args, int key, int lane, typename Isa::Vec even,
                               typename Isa::Vec odd) {
    if constexpr (Isa::values_per_word == 1) {
        Isa::store(args.scores + key * args.score_stride + lane, even);
    } else {
        const int64_t step = key / 2;
        if (args.tiles == 0) Isa::store_pair(args.weights + step * args.weight_stride + lane, even, odd);
        for (int t = 0; t < args.tiles; ++t) {
            const float* scales = args.tile_scales + t * Isa::block.last + key;
            Isa::store_pair(args.weights + (t * (Isa::block.last / 2) + step) * args.weight_stride + lane,
                            Isa::mul(even, Isa::broadcast(scales[0])),
                            Isa::mul(odd, Isa::broadcast(scales[1])));
        }
    }
}

// Sets the peak of a head with NaN scores to NaN, which persists. A maximum may drop a NaN. A sum keeps a
// NaN, but a peak of +inf makes every sum NaN. Therefore under a peak of +inf the scores are checked before
// they become weights, and under other peaks the sums are checked.
template <class Isa>
SMLA_INLINE void mark_nan_scores(const float* scores, int64_t stride, int keys, float* peak) {
    for (int lane = 0; lane < Isa::lanes; ++lane) {
        if (peak[lane] != __builtin_inff()) continue;
        for (int key = 0; key < keys; ++key)
            if (scores[key * stride + lane] != scores[key * stride + lane]) peak[lane] = __builtin_nanf("");
    }
}
template <class Isa>
SMLA_INLINE void mark_nan_sums(const float* sum, float* peak) {
    for (int lane = 0; lane < Isa::lanes; ++lane)
        if (sum[lane] != sum[lane] && peak[lane] != __builtin_inff()) peak[lane] = __builtin_nanf("");
}

template <class Isa>
bool softmax_block(const SoftmaxArgs& args) {
    using Vec = typename Isa::Vec;
    const Vec factor = Isa::broadcast(args.factor);
    const Vec lowest = Isa::broadcast(-3.4028235e38f);  // replaces -inf, as -inf - -inf is NaN
    bool rescale = false;
    for (int vector = 0; vector < args.vectors; ++vector) {
        const int lane = vector * Isa::lanes;
        const float* scores = args.scores + lane;
        const auto score = [&](int key)
                               SMLA_LAMBDA_INLINE { return Isa::load(scores + key * args.score_stride); };
        Vec largest = score(0), largest_odd = largest;
        int key = 1;
        for (; key + 2 <= args.keys; key += 2) {
            largest = Isa::max(score(key), largest);
            largest_odd = Isa::max(score(key + 1), largest_odd);
        }
        if (key < args.keys) largest = Isa::max(score(key), largest);
        largest = Isa::max(largest, largest_odd);

        Vec sum = Isa::zero();
        if (!args.first) {
            const Vec before = Isa::load(args.peak + lane);
            largest = Isa::max(largest, before);
            const Vec alpha = exp2_below<Isa>(Isa::mul(Isa::sub(before, Isa::max(largest, lowest)), factor));
            Isa::store(args.alpha + lane, alpha);
            rescale |= !Isa::all_one(alpha);
            sum = Isa::mul(Isa::load(args.sum + lane), alpha);
        }
        Isa::store(args.peak + lane, largest);
        mark_nan_scores<Isa>(scores, args.score_stride, args.keys, args.peak + lane);
        largest = Isa::max(largest, lowest);
        // The factor is applied last, so that the largest score has weight 1 at any magnitude, and the
        // difference is rounded to a small error if the weight is not small.
        const auto weight = [&](int k) SMLA_LAMBDA_INLINE {
            return exp2_below<Isa>(Isa::mul(Isa::sub(score(k), largest), factor));
        };
        Vec sum_odd = Isa::zero();
        for (key = 0; key + 2 <= args.keys; key += 2) {
            const Vec even = weight(key), odd = weight(key + 1);
            sum = Isa::add(sum, even);
            sum_odd = Isa::add(sum_odd, odd);
            store_weights<Isa>(args, key, lane, even, odd);
            if constexpr (Isa::values_per_word == 1) store_weights<Isa>(args, key + 1, lane, odd, odd);
        }
        if (key < args.keys) {
            const Vec even = weight(key);
            sum = Isa::add(sum, even);
            store_weights<Isa>(args, key, lane, even, Isa::zero());
        }
        Isa::store(args.sum + lane, Isa::add(sum, sum_odd));
        mark_nan_sums<Isa>(args.sum + lane, args.peak + lane);
    }
    return rescale;
}

template <class Isa>
void finish_head(const FinishArgs& args) {
    constexpr int tile = Isa::value_vectors * Isa::lanes;
    for (int t = 0; t < args.tiles; ++t)
        for (int v = 0; v < Isa::value_vectors; v += Isa::values_per_word) {
            typename Isa::Vec sums[Isa::values_per_word];
            for (int i = 0; i < Isa::values_per_word; ++i) {
                const int64_t at = t * args.tile_stride + (v + i) * Isa::lanes;
                sums[i] = Isa::mul(Isa::broadcast(args.weights[0]), Isa::load(args.parts[0] + at));
                for (int part = 1; part < args.part_count; ++part)
                    sums[i] = Isa::fma(Isa::broadcast(args.weights[part]), Isa::load(args.parts[part] + at),
                                       sums[i]);
            }
            float* const row = args.row + t * tile + v * Isa::lanes;
            if constexpr (Isa::values_per_word == 1) Isa::store(row, sums[0]);
            else Isa::store_ordered(row, sums);
        }
}

}  // namespace smla::cpu_attend
