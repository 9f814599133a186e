// score with bf16 operands: e4m3, e2m1 and bf16 values are exact in bf16, and products are exact in f32.
// vdpbf16ps adds two products per lane. vdpbf16ps flushes subnormal operands and results, below 2^-126, to
// zero, far below f32 rounding.
#include "engines/cpu/score/decode_avx512_bf16.h"
#include "engines/cpu/score/products.h"

namespace smla {

namespace {

// Between the products of 128 channels, decodes rows of the next tile, as many as a block has keys, and
// prefetches as many of the tile after it, one cache line at a time. A burst of prefetches would fill the
// miss queue and stall the products.
template <int Keys>
struct DecodeE4m3 {
    static constexpr int steps = 2 * Keys, words = 64 / steps;  // half a row a step
    static constexpr bool fetches = true;

    const TilesAhead& ahead;
    int stride, row = 0;

    void start(int first) { row = first; }
    void step(int i) {
        const int j = row + i / 2, half = i % 2;
        // The table is loaded again, because only three registers are free between the products.
        lanes::store_words(ahead.out + int64_t(j) * stride + 32 * half,
                           lanes::E4m3Table().decode(_mm512_loadu_si512(
                               ahead.rows[j < ahead.n ? j : ahead.n - 1].values + 64 * half)));
        if (j >= ahead.fetch_rows) return;
        __builtin_prefetch(ahead.fetch[j].values + 64 * half, 0, 2);
        if (half == 0) __builtin_prefetch(ahead.fetch[j].scales, 0, 2);
    }
};

struct Bf16Pairs : ScoreLanes<lanes::Avx512Bf16, 16, 8, 8, 6> {
    static bool score_and_decode(int groups, const HeadPass& pass, const TileQuery& query,
                                 const uint32_t* keys, int n, const TilesAhead& ahead, float* sums) {
        // Supports only 64 heads: with fewer heads, a block has more keys, and no registers are left for
        // their rows and the decoder. Each block of this tile decodes as many rows of the next tile, which
        // must not have more.
        if (groups != 4 || ahead.kind != ValueBytes::e4m3 || ahead.width != 128 || ahead.n == 0 ||
            ahead.n > n)
            return false;
        score_groups<Bf16Pairs, 4>(pass, query, keys, n, ahead, sums,
                                   DecodeE4m3<Bf16Pairs::keys[3]>{ahead, query.stride});
        return true;
    }
};

constexpr ScoreKernel make() {
    ScoreKernel kernel = score_kernel<Bf16Pairs>("cpu_avx512_bf16_score", SMLA_ISA_AVX512_BF16);
    kernel.decode = decode_pairs;
    return kernel;
}

}  // namespace

extern constexpr ScoreKernel kScoreAvx512Bf16 = make();

}  // namespace smla
