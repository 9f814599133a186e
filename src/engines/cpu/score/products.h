// The tile kernel of score as a template for all instruction sets. Lanes is a type of engines/cpu/lanes.h;
// its dot() multiplies the f32 or the pairs of bf16 in a word. score_amx.cpp does not use the template,
// because AMX tiles multiply 16 keys by 16 heads in one instruction.
#pragma once

#include "engines/cpu/lanes.h"
#include "engines/cpu/score/kernel.h"

namespace smla {

namespace {

// Lanes with the number of keys that are scored at once, indexed by the number of vectors of heads - 1. There
// are enough sums to hide the latency of the products, and enough registers left for the operands.
template <class Lanes, int... Keys>
struct ScoreLanes : Lanes {
    using typename Lanes::Vec;
    static constexpr int max_groups = sizeof...(Keys), block = max_groups * Lanes::lanes;
    static constexpr int keys[max_groups] = {Keys...};
    static_assert(((kScoreTile % Keys == 0 && Keys <= kScoreKeys) && ...));

    // Applies relu and weights to the products of some heads; adds them to a key's sums, one per lane.
    template <int Groups>
    static SMLA_INLINE void weigh(const Vec (&dots)[Groups], const float* w, int heads, bool first,
                                  float* sums) {
        Vec sum = first ? Lanes::zero() : Lanes::load(sums);
        SMLA_UNROLL
        for (int g = 0; g < Groups; ++g) {
            const Vec more = Lanes::fma(Lanes::relu(dots[g]), Lanes::load(w + g * Lanes::lanes), sum);
            // Padded heads are excluded, because zero times an infinite key would be NaN.
            sum = g + 1 < Groups ? more
                                 : Lanes::select(Lanes::first_lanes(heads - g * Lanes::lanes), more, sum);
        }
        Lanes::store(sums, sum);
    }
    // Returns the totals of as many keys as there are lanes.
    static SMLA_INLINE Vec totals(const float* sums) {
        Vec each[Lanes::lanes];
        SMLA_UNROLL
        for (int i = 0; i < Lanes::lanes; ++i) each[i] = Lanes::load(sums + i * Lanes::lanes);
        return Lanes::sum_lanes(each);
    }
};

// A `side` that does nothing between the products.
struct Nothing {
    static constexpr int steps = 0, words = 0;
    static constexpr bool fetches = false;
    void start(int) {}
    void step(int) {}
};

// One pass of a tile against the heads of a block.
struct HeadPass {
    const uint32_t* q;
    const float* w;
    int heads;
    bool first;  // whether this is the first pass over the tile
};

// Scores the given keys and adds the results to sums[key][lanes]. `side` does Side::steps steps, one for
// every Side::words words of the row; if Side::fetches, it also prefetches.
template <class Isa, int Groups, class Side>
SMLA_INLINE void score_block(const HeadPass& pass, int words, const uint32_t* keys, int stride, float* sums,
                             Side& side) {
    using Vec = typename Isa::Vec;
    constexpr int kKeys = Isa::keys[Groups - 1], kLanes = Isa::lanes;
    Vec acc[kKeys][Groups];
    SMLA_UNROLL
    for (int j = 0; j < kKeys; ++j) {
        SMLA_UNROLL
        for (int g = 0; g < Groups; ++g) acc[j][g] = Isa::zero();
    }
    const uint32_t* const q = pass.q;
    const auto products = [&](int begin, int end) SMLA_LAMBDA_INLINE {
        for (int i = begin; i < end; ++i) {
            Vec head[Groups];
            SMLA_UNROLL
            for (int g = 0; g < Groups; ++g) head[g] = Isa::load_words(q + (i * Groups + g) * kLanes);
            SMLA_UNROLL
            for (int j = 0; j < kKeys; ++j) {
                const Vec key = Isa::broadcast_word(keys + j * stride + i);
                SMLA_UNROLL
                for (int g = 0; g < Groups; ++g) acc[j][g] = Isa::dot(acc[j][g], head[g], key);
            }
        }
    };
    for (int step = 0; step < Side::steps; ++step) {
        products(step * Side::words, (step + 1) * Side::words);
        side.step(step);
    }
    products(Side::steps * Side::words, words);
    SMLA_UNROLL
    for (int j = 0; j < kKeys; ++j) Isa::weigh(acc[j], pass.w, pass.heads, pass.first, sums + kLanes * j);
}

template <class Isa, int Groups, class Side>
void score_groups(const HeadPass& pass, const TileQuery& query, const uint32_t* keys, int n,
                  const TilesAhead& ahead, float* sums, Side side) {
    constexpr int kKeys = Isa::keys[Groups - 1];
    for (int j = 0; j < n; j += kKeys) {
        if (pass.first && !Side::fetches) fetch_ahead(ahead, j, kKeys);
        side.start(j);
        score_block<Isa, Groups>(pass, query.words, keys + int64_t(j) * query.stride, query.stride,
                                 sums + Isa::lanes * j, side);
    }
}

template <class Isa, int Groups = Isa::max_groups>
void score_heads(int groups, const HeadPass& pass, const TileQuery& query, const uint32_t* keys, int n,
                 const TilesAhead& ahead, float* sums) {
    if constexpr (Groups > 1)
        if (groups < Groups) return score_heads<Isa, Groups - 1>(groups, pass, query, keys, n, ahead, sums);
    score_groups<Isa, Groups>(pass, query, keys, n, ahead, sums, Nothing());
}

// Calls Isa::score_and_decode if it exists, which does the first pass and decodes the next tile if it can do
// both; otherwise it does nothing.
template <class Isa>
bool score_tile(const TileQuery& query, const uint32_t* keys, const float* scales, int n,
                const TilesAhead& ahead, float* sums, float* logits) {
    const uint32_t* q = query.packed;
    bool decoded = false;
    for (int h = 0; h < query.heads; h += Isa::block) {
        const int heads = query.heads - h < Isa::block ? query.heads - h : Isa::block,
                  groups = (heads + Isa::lanes - 1) / Isa::lanes;
        const HeadPass pass{q, query.w + h, heads, h == 0};
        if constexpr (requires { Isa::score_and_decode(groups, pass, query, keys, n, ahead, sums); })
            if (pass.first) decoded = Isa::score_and_decode(groups, pass, query, keys, n, ahead, sums);
        if (!pass.first || !decoded) score_heads<Isa>(groups, pass, query, keys, n, ahead, sums);
        q += int64_t(query.words) * groups * Isa::lanes;
    }
    for (int j = 0; j < n; j += Isa::lanes)
        Isa::store(logits + j, Isa::mul(Isa::totals(sums + Isa::lanes * j), Isa::load(scales + j)));
    return decoded;
}

template <class Isa, ValueBytes Kind>
SMLA_INLINE typename Isa::Vec load_values(const ValueRow& row, int d) {
    if constexpr (Kind == ValueBytes::e4m3) return Isa::load_e4m3(row.values + d);
    else if constexpr (Kind == ValueBytes::bf16) return Isa::load_bf16(row.values + 2 * d);
    else return Isa::mul(Isa::load_e2m1(row.values + d / 2), Isa::broadcast(lanes::e8m0(row.scales[d / 32])));
}

// Fills the last vector of a row with zeros.
template <class Isa, ValueBytes Kind>
void decode_rows(const ValueRow* rows, int n, int width, int stride, float* out) {
    constexpr int kBytes = Kind == ValueBytes::bf16 ? 2 : 1;
    const int whole = width / Isa::lanes * Isa::lanes;
    for (int j = 0; j < n; ++j, out += stride) {
        for (int d = 0; d < whole; d += Isa::lanes) Isa::store(out + d, load_values<Isa, Kind>(rows[j], d));
        if (whole == width) continue;  // e2m1 widths are multiples of 32
        uint8_t rest[2 * Isa::lanes] = {};
        __builtin_memcpy(rest, rows[j].values + whole * kBytes, size_t(width - whole) * kBytes);
        Isa::store(out + whole, load_values<Isa, Kind>({rest, rest}, 0));
    }
}

template <class Isa>
void decode_f32(ValueBytes kind, const ValueRow* rows, int n, int width, int stride, uint32_t* words) {
    float* const out = reinterpret_cast<float*>(words);
    if (kind == ValueBytes::e4m3) return decode_rows<Isa, ValueBytes::e4m3>(rows, n, width, stride, out);
    if (kind == ValueBytes::e2m1) return decode_rows<Isa, ValueBytes::e2m1>(rows, n, width, stride, out);
    if (kind == ValueBytes::bf16) return decode_rows<Isa, ValueBytes::bf16>(rows, n, width, stride, out);
    for (int j = 0; j < n; ++j)
        __builtin_memcpy(out + int64_t(j) * stride, rows[j].values, size_t(width) * 4);
}

template <class Isa>
constexpr ScoreKernel score_kernel(const char* name, smla_isa isa) {
    return {.name = name,
            .isa = isa,
            .lanes = Isa::lanes,
            .block = Isa::block,
            .bf16_operands = Isa::values_per_word == 2,
            .keys = Isa::keys[0],  // the maximum, because fewer vectors of heads leave room for more keys
            .decode = decode_f32<Isa>,
            .transpose = lanes::transpose<Isa>,
            .score = score_tile<Isa>};
}

}  // namespace

}  // namespace smla
