// attend on AMX tiles of bf16: 16 rows of 32 values against 16 columns, 16384 operations an instruction. A
// row of scores is a key and lanes are heads, as everywhere here. Both products keep four sums in tiles and
// load two tiles for each operand: a kilobyte that is loaded feeds two products. One operand of each stays in
// L1, the other one comes from L2 once for each pass and is streamed: without that hint it drives the first
// one out, and the product takes a third longer (measured, docs/kernels/log/cpu.md).
//   scores: keys as they were decoded [16 keys][16 words], in L1, times queries [16 words][16 heads]
//   values: weights [16 heads][16 pairs of keys] times values [16 pairs][16 dims], in L1
// Queries and scores lie in panels of two vectors of heads, values in tiles of 32 dims, weights in whole
// tiles of theirs: [vector of heads][16 pairs of keys][16 heads][16 words].
#include "engines/cpu/amx_tiles.h"
#include "engines/cpu/attend/lanes_avx512_bf16.h"
#include "engines/cpu/attend/table_of_micro.h"

namespace smla::cpu_attend {

namespace {

using amx::kTile;
using amx::Stream;
using amx::Sums;

struct Amx : Avx512Bf16 {
    // Each block loads and stores all sums, so blocks are large; 32 keys and the queries that pass by fit L1.
    static constexpr BlockKeys block{256, 384, 32, 16};
    static constexpr int value_vectors = 2;
    // A row of padding: else the tiles that a key's values go to would all start in the same sets of L1.
    static constexpr int value_words = (block.last / 2 + 1) * value_vectors * lanes;
    static constexpr bool pads_values = true;
};

constexpr int kKeyTile = 2 * kTile, kPanel = 2 * kTile, kDims = Amx::value_vectors * Amx::lanes;
constexpr int kTileWords = kTile * kTile;
constexpr int kVectorWeights = Amx::block.last / 2 * kTile;  // words of a vector of heads

// Scores of some keys and a panel of heads, times the keys' scales, added to those before.
void add_scaled(const ScoreArgs& args, int key, int keys, float* scores, const float* sums) {
    for (int k = 0; k < keys; ++k) {
        const __m512 scale = _mm512_set1_ps(args.scales[key + k]);
        for (int lane = 0; lane < kPanel; lane += kTile) {
            float* at = scores + k * kPanel + lane;
            const __m512 sum = _mm512_load_ps(sums + k * kPanel + lane);
            _mm512_storeu_ps(at, args.accumulate ? _mm512_fmadd_ps(sum, scale, _mm512_loadu_ps(at))
                                                 : _mm512_mul_ps(sum, scale));
        }
    }
}

// `lines`: fetched ahead in each step.
template <bool TwoRows, bool TwoColumns>
SMLA_INLINE void score_panel(const ScoreArgs& args, int key, int panel, Prefetch& prefetch, int lines) {
    using Tiles = Sums<TwoRows, TwoColumns, Stream::columns>;
    constexpr int64_t lanes = TwoColumns ? kPanel : kTile;
    const uint32_t* q = args.q + panel * args.q_panel;
    float* scores = args.scores + panel * args.score_panel + key * kPanel;
    if (args.accumulate && !args.scales) Tiles::load(scores, kPanel);
    else Tiles::clear();
    for (int step = args.begin; step < args.end; step += kTile) {
        fetch<Amx>(prefetch, lines);
        Tiles::add(args.keys + key * Amx::row_words + step, Amx::row_words, kTile * Amx::row_words,
                   q + step * lanes, lanes);
    }
    if (!args.scales) return Tiles::store(scores, kPanel);
    alignas(64) float sums[kKeyTile * kPanel] = {};
    Tiles::store(sums, kPanel);
    add_scaled(args, key, TwoRows ? kKeyTile : kTile, scores, sums);
}

template <bool TwoRows>
SMLA_INLINE void score_keys(const ScoreArgs& args, int key, int vectors, Prefetch& prefetch, int lines) {
    for (int panel = 0; panel < vectors / 2; ++panel)
        score_panel<TwoRows, true>(args, key, panel, prefetch, lines);
    if (vectors % 2) score_panel<TwoRows, false>(args, key, vectors / 2, prefetch, lines);
}

void score_panels(const ScoreArgs& args, int vectors) {
    Prefetch prefetch = *args.prefetch;
    const int panels = (vectors + 1) / 2,
              lines = (prefetch.per_step * (kTile / kPrefetchSteps) + panels - 1) / panels;
    int key = 0;
    for (; key + kKeyTile <= args.keys_padded; key += kKeyTile)
        score_keys<true>(args, key, vectors, prefetch, lines);
    if (key < args.keys_padded) score_keys<false>(args, key, vectors, prefetch, lines);
    *args.prefetch = prefetch;
}
template <int V>
void score_tiles(const ScoreArgs& args) {
    score_panels(args, V);
}

// 2^x for x <= 0 (or NaN): x = floor(x) + f, a minimax polynomial in f with 2^0 exactly 1; relative error
// 1.4e-7 (measured over f). Two instructions do what rounding, subtracting and a bound take elsewhere.
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

// Weights of 32 keys and a vector of heads, before they are a tile of the value product.
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
    // One for each tile of scales, or only one.
    template <bool Scaled>
    SMLA_INLINE void store(const SoftmaxArgs& args, int key, uint32_t* out) {
        for (int t = 0; t < (Scaled ? args.tiles : 1); ++t) {
            const float* scales = Scaled ? args.tile_scales + t * Amx::block.last + key : nullptr;
            for (int pair = 0; Scaled && pair < kTile; ++pair, scales += 2)
                _mm512_store_si512(words + pair * kTile,
                                   pair_words(weight(2 * pair, scales[0]), weight(2 * pair + 1, scales[1])));
            avx512::transpose_16(words, kTile, out + t * (Amx::block.last / 2) * args.weight_stride, kTile);
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
            largest[i] = _mm512_max_ps(_mm512_loadu_ps(scores + (key + i) * kPanel), largest[i]);
    for (; key < keys; ++key) largest[0] = _mm512_max_ps(_mm512_loadu_ps(scores + key * kPanel), largest[0]);
    return _mm512_max_ps(_mm512_max_ps(largest[0], largest[1]), _mm512_max_ps(largest[2], largest[3]));
}

// softmax_block for one vector of heads.
template <bool Scaled>
bool softmax_vector(const SoftmaxArgs& args, int vector) {
    const int lane = vector * kTile;
    const __m512 factor = _mm512_set1_ps(args.factor);
    const __m512 lowest = _mm512_set1_ps(-3.4028235e38f);  // instead of a peak of -inf: -inf - -inf is NaN
    const float* scores = args.scores + vector / 2 * args.score_panel + vector % 2 * kTile;
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
    mark_nan_scores<Amx>(scores, kPanel, args.keys, args.peak + lane);
    largest = _mm512_max_ps(largest, lowest);
    for (int key = 0; key < args.keys; key += kKeyTile, out += kTileWords) {
        WeightTile tile;
        // The factor is applied last, as in softmax_block.
        const auto weight = [&](int k) SMLA_LAMBDA_INLINE {
            const __m512 score = _mm512_loadu_ps(scores + (key + k) * kPanel);
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

// Rescales the sums of heads that have a new peak; after the first blocks few have one.
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

template <bool TwoRows>
SMLA_INLINE void value_rows(const ValueArgs& args, int head) {
    using Tiles = Sums<TwoRows, true, Stream::rows>;
    float* out = args.out + head * kDims;
    const uint32_t* weights = args.weights + head / kTile * kVectorWeights;
    if (args.carry == Carry::none) Tiles::clear();
    else Tiles::load(out, kDims);
    for (int pair = 0; pair < args.steps; pair += kTile)
        Tiles::add(weights + pair * kTile, kTile, kVectorWeights, args.values + pair * kDims, kDims);
    Tiles::store(out, kDims);
}

// Heads up to a whole tile are stored: their sums lie there (Plan::tile_stride).
void value_tiles(const ValueArgs& args) {
    if (args.carry == Carry::rescale) rescale_values(args);
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
    if constexpr (V > 1) set_score_tiles<V - 1>(micro);
}

constexpr Micro make() {
    Micro micro = micro_of<Amx>(bf16_decoder<Amx>);
    micro.value_words = Amx::value_words;
    micro.decode_time = 4;
    micro.cut = {.decode = 2.3f, .move = 100};
    micro.group_vectors = 8;
    micro.panel_vectors = 2;
    micro.transpose = transpose_avx512;
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
