// attend on AMX tiles of bf16: 16 rows of 32 values times 16 columns, 16384 operations per instruction. A
// row of scores is a key and lanes are heads, as in all CPU kernels. Both products keep four sums in tiles
// and load two tiles per operand, so a loaded kilobyte feeds two products. One operand per product stays in
// L1. The other one comes from L2 once per pass and is streamed: without this hint it evicts the first one,
// and the product takes a third longer (measured, docs/kernels/log/cpu.md).
//   scores: decoded keys [16 keys][16 words], in L1, times queries [16 words][16 heads]
//   values: weights [16 heads][16 pairs of keys] times values [16 pairs][16 dims], in L1
// Queries and scores of a vector of heads are contiguous. Values are in tiles of 32 dims, weights in whole
// tiles: [vector of heads][16 pairs of keys][16 heads][16 words].
// Sums are stored, and the next ones begin, between the first products of the next pass (amx::Sums).
#include "engines/cpu/amx_tiles.h"
#include "engines/cpu/attend/decode_avx512_bf16.h"
#include "engines/cpu/attend/table_of_micro.h"

namespace smla::cpu_attend {

namespace {

using amx::kTile;
using amx::Stream;
using amx::Sums;

struct Amx : Avx512Bf16 {
    // Each block loads and stores all sums, so blocks are large. 32 keys and the streamed queries fit in L1.
    static constexpr BlockKeys block{256, 384, 32, 16};
    static constexpr int value_vectors = 2;
    // One row of padding, because the tiles of a key's values would all start in the same sets of L1.
    static constexpr int value_words = (block.last / 2 + 1) * value_vectors * lanes;
    static constexpr bool pads_values = true;
    // After some 3000 cycles without a product the tile unit sleeps, and the next products take 250 cycles
    // more. During decoding no tile contains a sum, so this product may overwrite one.
    static SMLA_INLINE void keep_awake() { amx::multiply_tiles<3, 4, 6>(); }
};

constexpr int kKeyTile = 2 * kTile, kDims = Amx::value_vectors * Amx::lanes;
constexpr int kTileWords = kTile * kTile;
constexpr int kVectorWeights = Amx::block.last / 2 * kTile;  // weight words per vector of heads

// Computes the scores of one or two tiles of keys, in a pass for each two vectors of heads. Each step fetches
// `lines` lines ahead.
template <bool TwoRows>
struct ScorePasses {
    const ScoreArgs& args;
    int key, lines;
    Prefetch& prefetch;
    float* scaled;  // [2][32 keys][16 heads], a product before scaling

    void run(int vectors) const {
        int vector = 0;
        for (; vector + 2 <= vectors; vector += 2) pass<true>(vector);
        if (vector < vectors) pass<false>(vector);
        const int last = (vectors - 1) / 2 * 2;
        store<0>(last);
        store<1>(last);
        if (last + 1 < vectors) {
            store<2>(last);
            store<3>(last);
        }
        stored(last, vectors - last);
    }

private:
    SMLA_INLINE float* scores(int vector) const {
        return args.scores + vector * args.score_vector + key * kTile;
    }
    template <int T>
    SMLA_INLINE void begin(int vector) const {
        if (!args.accumulate || args.scales) amx::zero_tile<T>();
        else amx::load_tile<T>(scores(vector + T / 2) + T % 2 * kTileWords, kTile);
    }
    template <int T>
    SMLA_INLINE void store(int vector) const {
        if (!TwoRows && T % 2) return;
        amx::store_tile<T>(
            (args.scales ? scaled + T / 2 * 2 * kTileWords : scores(vector + T / 2)) + T % 2 * kTileWords,
            kTile);
    }
    template <bool TwoColumns>
    SMLA_INLINE void pass(int vector) const {
        using Tiles = Sums<TwoRows, TwoColumns, Stream::columns>;
        amx::Operand keys{args.keys + key * Amx::row_words + args.begin, Amx::row_words,
                          kTile * Amx::row_words},
            q{args.q + vector * args.q_vector + args.begin * kTile, kTile, args.q_vector};
        const auto turn = [&]<int T>() SMLA_LAMBDA_INLINE {
            if (vector > 0) {
                store<T>(vector - 2);
                if (!TwoColumns) store<T + 2>(vector - 2);
            }
            begin<T>(vector);
        };
        fetch<Amx>(prefetch, lines);
        Tiles::add(keys, q, turn);
        for (int step = args.begin + kTile; step < args.end; step += kTile) {
            keys.at += kTile;
            q.at += kTileWords;
            fetch<Amx>(prefetch, lines);
            Tiles::add(keys, q);
        }
        if (vector > 0) stored(vector - 2, 2);
    }
    // Multiplies scores by the keys' scales and adds them to the previous scores.
    SMLA_INLINE void stored(int vector, int vectors) const {
        if (!args.scales) return;
        for (int v = 0; v < vectors; ++v) {
            float* at = scores(vector + v);
            const float* sum = scaled + v * 2 * kTileWords;
            for (int k = 0; k < (TwoRows ? kKeyTile : kTile); ++k, at += kTile, sum += kTile) {
                const __m512 scale = _mm512_set1_ps(args.scales[key + k]), product = _mm512_load_ps(sum);
                _mm512_storeu_ps(at, args.accumulate ? _mm512_fmadd_ps(product, scale, _mm512_loadu_ps(at))
                                                     : _mm512_mul_ps(product, scale));
            }
        }
    }
};

void score_vectors(const ScoreArgs& args, int vectors) {
    Prefetch prefetch = *args.prefetch;
    const int passes = (vectors + 1) / 2,
              lines = (prefetch.per_step * (kTile / kPrefetchSteps) + passes - 1) / passes;
    alignas(64) float scaled[4 * kTileWords];
    int key = 0;
    for (; key + kKeyTile <= args.keys_padded; key += kKeyTile)
        ScorePasses<true>{args, key, lines, prefetch, scaled}.run(vectors);
    if (key < args.keys_padded) ScorePasses<false>{args, key, lines, prefetch, scaled}.run(vectors);
    *args.prefetch = prefetch;
}
template <int V>
void score_tiles(const ScoreArgs& args) {
    score_vectors(args, V);
}

// Returns 2^x for x <= 0 or NaN: x = floor(x) + f, with a minimax polynomial of f that gives exactly 1 for
// 2^0. The measured relative error is 1.4e-7. Two instructions replace rounding, subtraction and a bound.
SMLA_INLINE __m512 exp2_by_floor(__m512 x) {
    const __m512 f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    __m512 p = _mm512_set1_ps(0.00186713f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.00901703f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.05579991f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.24016444f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.6931513f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.f));
    return _mm512_scalef_ps(p, x);
}

// Weights of 32 keys and a vector of heads, before they become a tile of the value product.
struct WeightTile {
    alignas(64) float weights[kKeyTile * kTile];  // if Scaled
    alignas(64) uint32_t words[kTileWords];

    template <bool Scaled>
    SMLA_INLINE void set(int pair, __m512 even, __m512 odd) {
        if constexpr (Scaled) {
            _mm512_store_ps(weights + 2 * pair * kTile, even);
            _mm512_store_ps(weights + (2 * pair + 1) * kTile, odd);
        } else {
            _mm512_store_si512(words + pair * kTile, pair_words(even, odd));
        }
    }
    // Stores one tile for each tile of scales, or only one.
    template <bool Scaled>
    SMLA_INLINE void store(const SoftmaxArgs& args, int key, uint32_t* out) {
        for (int t = 0; t < (Scaled ? args.tiles : 1); ++t) {
            const float* scales = Scaled ? args.tile_scales + t * Amx::block.last + key : nullptr;
            for (int pair = 0; Scaled && pair < kTile; ++pair, scales += 2)
                _mm512_store_si512(words + pair * kTile,
                                   pair_words(weight(2 * pair, scales[0]), weight(2 * pair + 1, scales[1])));
            Amx::transpose_square(words, kTile, out + t * (Amx::block.last / 2) * args.weight_stride, kTile);
        }
    }
    SMLA_INLINE __m512 weight(int key, float scale) const {
        return _mm512_mul_ps(_mm512_load_ps(weights + key * kTile), _mm512_set1_ps(scale));
    }
};

__m512 largest_score(const float* scores, int keys) {
    __m512 largest[4];
    for (__m512& each : largest) each = _mm512_loadu_ps(scores);
    int key = 0;
    for (; key + 4 <= keys; key += 4)
        for (int i = 0; i < 4; ++i)
            largest[i] = _mm512_max_ps(_mm512_loadu_ps(scores + (key + i) * kTile), largest[i]);
    for (; key < keys; ++key) largest[0] = _mm512_max_ps(_mm512_loadu_ps(scores + key * kTile), largest[0]);
    return _mm512_max_ps(_mm512_max_ps(largest[0], largest[1]), _mm512_max_ps(largest[2], largest[3]));
}

// Does the work of softmax_block for one vector of heads.
template <bool Scaled>
bool softmax_vector(const SoftmaxArgs& args, int vector) {
    const int lane = vector * kTile;
    const __m512 factor = _mm512_set1_ps(args.factor);
    const __m512 lowest = _mm512_set1_ps(-3.4028235e38f);  // replaces -inf: -inf - -inf is NaN
    const float* scores = args.scores + vector * args.score_vector;
    uint32_t* out = args.weights + int64_t(vector) * kVectorWeights;
    __m512 largest = largest_score(scores, args.keys), sum[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    bool rescale = false;
    if (!args.first) {
        const __m512 before = _mm512_loadu_ps(args.peak + lane);
        largest = _mm512_max_ps(largest, before);
        const __m512 alpha =
            exp2_by_floor(_mm512_mul_ps(_mm512_sub_ps(before, _mm512_max_ps(largest, lowest)), factor));
        _mm512_storeu_ps(args.alpha + lane, alpha);
        rescale = !Amx::all_one(alpha);
        sum[0] = _mm512_mul_ps(_mm512_loadu_ps(args.sum + lane), alpha);
    }
    _mm512_storeu_ps(args.peak + lane, largest);
    mark_nan_scores<Amx>(scores, kTile, args.keys, args.peak + lane);
    largest = _mm512_max_ps(largest, lowest);
    for (int key = 0; key < args.keys; key += kKeyTile, out += kTileWords) {
        WeightTile tile;
        // The factor is applied last, as in softmax_block.
        const auto weight = [&](int k) SMLA_LAMBDA_INLINE {
            const __m512 score = _mm512_loadu_ps(scores + (key + k) * kTile);
            return exp2_by_floor(_mm512_mul_ps(_mm512_sub_ps(score, largest), factor));
        };
        const int keys = args.keys - key < kKeyTile ? args.keys - key : kKeyTile;
        int pair = 0;
        for (; 2 * pair + 2 <= keys; ++pair) {
            const __m512 even = weight(2 * pair), odd = weight(2 * pair + 1);
            sum[0] = _mm512_add_ps(sum[0], even);
            sum[1] = _mm512_add_ps(sum[1], odd);
            tile.set<Scaled>(pair, even, odd);
        }
        if (keys % 2) {
            const __m512 even = weight(2 * pair);
            sum[0] = _mm512_add_ps(sum[0], even);
            tile.set<Scaled>(pair++, even, _mm512_setzero_ps());
        }
        for (; pair < kTile; ++pair) tile.set<Scaled>(pair, _mm512_setzero_ps(), _mm512_setzero_ps());
        tile.store<Scaled>(args, key, out);
    }
    _mm512_storeu_ps(args.sum + lane, _mm512_add_ps(sum[0], sum[1]));
    mark_nan_sums<Amx>(args.sum + lane, args.peak + lane);
    return rescale;
}

bool softmax_tiles(const SoftmaxArgs& args) {
    bool rescale = false;
    for (int vector = 0; vector < args.vectors; ++vector)
        rescale |= args.tiles > 0 ? softmax_vector<true>(args, vector) : softmax_vector<false>(args, vector);
    return rescale;
}

// Rescales the sums of heads with a new peak, which are few after the first blocks.
void rescale_values(const ValueArgs& args) {
    for (int first = 0; first < args.heads; first += kTile) {
        uint32_t heads =
            _mm512_cmp_ps_mask(_mm512_loadu_ps(args.alpha + first), _mm512_set1_ps(1.f), _CMP_NEQ_UQ);
        for (; heads != 0; heads &= heads - 1) {
            const int head = first + __builtin_ctz(heads);
            const __m512 alpha = _mm512_set1_ps(args.alpha[head]);
            for (float* at = args.out + head * kDims; at < args.out + (head + 1) * kDims; at += kTile)
                _mm512_storeu_ps(at, _mm512_mul_ps(_mm512_loadu_ps(at), alpha));
        }
    }
}

template <int T>
SMLA_INLINE void store_values(float* out) {
    amx::store_tile<T>(out + T % 2 * kTile * kDims + T / 2 * kTile, kDims);
}

// Adds to the sums of two vectors of heads and 32 dims.
template <bool TwoRows>
SMLA_INLINE void value_pass(const ValueArgs& args, Prefetch& prefetch, int head) {
    using Tiles = Sums<TwoRows, true, Stream::rows>;
    float* out = args.out + head * kDims;
    amx::Operand weights{args.weights + head / kTile * kVectorWeights, kTile, kVectorWeights},
        values{args.values, kDims, kTile};
    const auto turn = [&]<int T>() SMLA_LAMBDA_INLINE {
        if (head > 0) {
            store_values<T>(out - 2 * kTile * kDims);
            if (!TwoRows) store_values<T + 1>(out - 2 * kTile * kDims);
        }
        if (args.carry == Carry::none) amx::zero_tile<T>();
        else amx::load_tile<T>(out + T % 2 * kTile * kDims + T / 2 * kTile, kDims);
    };
    fetch<Amx>(prefetch, prefetch.per_value);
    Tiles::add(weights, values, turn);
    for (int pair = kTile; pair < args.steps; pair += kTile) {
        weights.at += kTileWords;
        values.at += kTile * kDims;
        fetch<Amx>(prefetch, prefetch.per_value);
        Tiles::add(weights, values);
    }
}

// Stores whole tiles of heads, for which the sums have room (Plan::tile_stride).
void value_tiles(const ValueArgs& args) {
    if (args.carry == Carry::rescale) rescale_values(args);
    Prefetch prefetch = *args.prefetch;
    int head = 0;
    for (; head + kTile < args.heads; head += 2 * kTile) value_pass<true>(args, prefetch, head);
    const bool odd = head < args.heads;
    if (odd) value_pass<false>(args, prefetch, head);
    float* last = args.out + (odd ? head : head - 2 * kTile) * kDims;
    store_values<0>(last);
    if (!odd) store_values<1>(last);
    store_values<2>(last);
    if (!odd) store_values<3>(last);
    *args.prefetch = prefetch;
}

template <int V>
constexpr void set_score_tiles(Micro& micro) {
    static_assert(Amx::block.usual % kKeyTile == 0 && Amx::block.last % kKeyTile == 0 &&
                  Amx::block.part % kKeyTile == 0);
    micro.score[V - 1] = score_tiles<V>;
    micro.key_tile[V - 1] = kKeyTile;
    if constexpr (V > 1) set_score_tiles<V - 1>(micro);
}

constexpr Micro make() {
    Micro micro = micro_of<Amx>(bf16_decoder<Amx>);
    micro.value_words = Amx::value_words;
    micro.decode_time = 1.5f;
    micro.value_steps = kTile;
    micro.value_heads = 2;
    micro.cut = {.decode = 2.3f, .move = 100};
    micro.group_vectors = 8;
    micro.vectors_apart = true;
    set_score_tiles<8>(micro);
    micro.softmax = softmax_tiles;
    micro.values = value_tiles;
    micro.enter = amx::enter;
    micro.leave = amx::leave;
    return micro;
}

}  // namespace

constexpr Micro kAmx = make();

}  // namespace smla::cpu_attend
