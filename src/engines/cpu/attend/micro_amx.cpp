// attend on AMX tiles of bf16: 16 rows of 32 values against 16 columns, 16384 operations an instruction. A
// row of scores is a key, as everywhere here, so the softmax is that of the vector kernels. Both products
// keep four sums in tiles and load two tiles for each operand: a kilobyte that is loaded feeds two products.
//   scores: keys as they were decoded [16 keys][16 words], times queries [16 words][16 heads]
//   values: weights [16 heads][16 pairs of keys], transposed after the softmax, times values [16 pairs][16
//   dims]
#include "engines/cpu/amx_tiles.h"
#include "engines/cpu/attend/lanes_avx512_bf16.h"
#include "engines/cpu/attend/table_of_micro.h"

namespace smla::cpu_attend {

namespace {

using amx::kTile;
using amx::Sums;

struct Amx : Avx512Bf16 {
    // Whole tiles of pairs. Larger than those of the vector kernels: each block loads and stores all sums.
    static constexpr BlockKeys block{128, 192, 64};
    static constexpr bool pads_values = true;
};

constexpr int kKeyTile = 2 * kTile;

// Scores of kKeyTile keys and one or two vectors of heads, times the keys' scales, added to those before.
void add_scaled(const ScoreArgs& args, int key, int lane, int vectors, const float* sums) {
    for (int k = 0; k < kKeyTile; ++k) {
        const __m512 scale = _mm512_set1_ps(args.scales ? args.scales[key + k] : 1.f);
        for (int v = 0; v < vectors; ++v) {
            float* at = args.scores + (key + k) * args.score_stride + lane + v * kTile;
            const __m512 sum = _mm512_load_ps(sums + (k * 2 + v) * kTile);
            _mm512_storeu_ps(at, args.accumulate ? _mm512_fmadd_ps(sum, scale, _mm512_loadu_ps(at))
                                                 : _mm512_mul_ps(sum, scale));
        }
    }
}

template <int V, bool TwoColumns>
SMLA_INLINE void score_columns(const ScoreArgs& args, int key, int vector, Prefetch& prefetch) {
    using Tiles = Sums<true, TwoColumns>;
    constexpr int64_t lanes = V * kTile;
    const int lane = vector * kTile;
    Tiles::clear();
    for (int step = args.begin; step < args.end; step += kTile) {
        if (vector == 0) fetch<Amx>(prefetch, prefetch.per_step * (kTile / kPrefetchSteps));
        Tiles::add(args.keys + key * Amx::row_words + step, Amx::row_words, kTile * Amx::row_words,
                   args.q + step * lanes + lane, lanes);
    }
    if (!args.scales && !args.accumulate)
        return Tiles::store(args.scores + key * args.score_stride + lane, args.score_stride);
    alignas(64) float sums[kKeyTile * 2 * kTile];
    Tiles::store(sums, 2 * kTile);
    add_scaled(args, key, lane, TwoColumns ? 2 : 1, sums);
}

template <int V>
void score_tiles(const ScoreArgs& args) {
    Prefetch prefetch = *args.prefetch;
    for (int key = 0; key < args.keys_padded; key += kKeyTile) {
        for (int vector = 0; vector + 2 <= V; vector += 2)
            score_columns<V, true>(args, key, vector, prefetch);
        if (V % 2) score_columns<V, false>(args, key, V - 1, prefetch);
    }
    *args.prefetch = prefetch;
}

// The weights of 16 pairs of keys and 16 heads become rows of heads, in their place; pairs without a key
// weigh nothing.
bool softmax_tiles(const SoftmaxArgs& args) {
    const bool rescale = softmax_block<Amx>(args);
    const int pairs = (args.keys + 1) / 2, padded = (pairs + kTile - 1) / kTile * kTile;
    for (int t = 0; t < (args.tiles > 0 ? args.tiles : 1); ++t)
        for (int v = 0; v < args.vectors; ++v) {
            uint32_t* weights = args.weights + t * (Amx::block.last / 2) * args.weight_stride + v * kTile;
            for (int pair = pairs; pair < padded; ++pair)
                _mm512_storeu_si512(weights + pair * args.weight_stride, _mm512_setzero_si512());
            for (int pair = 0; pair < padded; pair += kTile)
                avx512::transpose_16(weights + pair * args.weight_stride, args.weight_stride,
                                     weights + pair * args.weight_stride, args.weight_stride);
        }
    return rescale;
}

void rescale_values(const ValueArgs& args, int64_t tile) {
    for (int head = 0; head < args.heads; ++head) {
        const __m512 alpha = _mm512_set1_ps(args.alpha[head]);
        for (float* at = args.out + head * tile; at < args.out + (head + 1) * tile; at += kTile)
            _mm512_storeu_ps(at, _mm512_mul_ps(_mm512_loadu_ps(at), alpha));
    }
}

template <bool TwoRows>
SMLA_INLINE void value_rows(const ValueArgs& args, int head) {
    using Tiles = Sums<TwoRows, true>;
    constexpr int64_t tile = Amx::value_vectors * Amx::lanes;
    for (int dim = 0; dim < tile; dim += 2 * kTile) {
        float* out = args.out + head * tile + dim;
        if (args.carry == Carry::none) Tiles::clear();
        else Tiles::load(out, tile);
        for (int pair = 0; pair < args.steps; pair += kTile)
            Tiles::add(args.weights + pair * args.weight_stride + head, args.weight_stride, kTile,
                       args.values + pair * args.value_stride + dim, args.value_stride);
        Tiles::store(out, tile);
    }
}

// Heads up to a whole tile are stored: their sums lie there (Plan::tile_stride).
void value_tiles(const ValueArgs& args) {
    if (args.carry == Carry::rescale) rescale_values(args, Amx::value_vectors * Amx::lanes);
    int head = 0;
    for (; head + kTile < args.heads; head += 2 * kTile) value_rows<true>(args, head);
    if (head < args.heads) value_rows<false>(args, head);
}

template <int V>
constexpr void set_score_tiles(Micro& micro) {
    static_assert(Amx::block.usual % kKeyTile == 0 && Amx::block.last % kKeyTile == 0 &&
                  Amx::block.part % kKeyTile == 0);
    micro.score[V - 1] = score_tiles<V>;
    micro.key_tile[V - 1] = kKeyTile;
}

constexpr Micro make() {
    Micro micro = micro_of<Amx>(bf16_decoder<Amx>);
    micro.group_vectors = 4;
    micro.transpose = transpose_avx512;
    set_score_tiles<1>(micro);
    set_score_tiles<2>(micro);
    set_score_tiles<3>(micro);
    set_score_tiles<4>(micro);
    micro.softmax = softmax_tiles;
    micro.values = value_tiles;
    micro.enter = amx::enter;
    micro.leave = amx::leave;
    return micro;
}

}  // namespace

constexpr Micro kAmx = make();

}  // namespace smla::cpu_attend
