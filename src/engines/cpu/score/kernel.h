// Interface of a score kernel of one instruction set. The driver (tiles.h) passes one query row and one tile
// of keys at a time. Lanes are heads, so that no product is summed across lanes before the heads are.
//
// Operands are rows of 32-bit words: one f32, or two bf16 of neighboring channels. Queries are packed as
// [head block][word][lane], keys as [key][word]. The logit of a (query row, key) pair is one fixed sequence
// of operations in any tile, thread, page or batch.
#pragma once

#include <smla/context.h>

#include <cstddef>
#include <cstdint>

namespace smla {

// Maximum keys that are decoded at a time: 48 and the packed query of 64 heads fit a 48 KB L1.
constexpr int kScoreTile = 48;
// Default maximum of keys that a kernel scores at a time.
constexpr int kScoreKeys = 16;

enum class ValueBytes { e4m3, e2m1, bf16, f32 };

// One row of values in the cache or the caller's tensor.
struct ValueRow {
    const uint8_t* values;
    const uint8_t* scales;  // e2m1: one e8m0 per 32 values; e4m3 keys: one f32, which multiplies the logit
};

struct TileQuery {
    const uint32_t* packed;  // packed query; zeros pad heads to a multiple of `lanes`
    const float* w;          // [heads], with the same padding
    int heads, words;        // words per row in use
    int stride;              // words between keys
};

// Work for other tiles between products of a kernel, when execution units and cache ports are idle.
struct TilesAhead {
    // Next tile, which a kernel may decode into `out` while it scores this one, or leave to the driver. `n`
    // is 0 without a next tile.
    ValueBytes kind = ValueBytes::f32;
    const ValueRow* rows = nullptr;
    int n = 0, width = 0;
    uint32_t* out = nullptr;
    // The tile after the next, whose rows of `fetch_bytes` are prefetched. Pages are anywhere in memory, so
    // without prefetching their first lines cost as much as the arithmetic.
    const ValueRow* fetch = nullptr;
    int fetch_rows = 0, fetch_bytes = 0;
};

// Prefetches rows [first, first + n) of the tile after the next.
[[gnu::always_inline]] inline void fetch_ahead(const TilesAhead& ahead, int first, int n) {
    const int last = first + n < ahead.fetch_rows ? first + n : ahead.fetch_rows;
    for (int j = first; j < last; ++j) {
        __builtin_prefetch(ahead.fetch[j].scales, 0, 2);
        for (int byte = 0; byte < ahead.fetch_bytes; byte += 64)
            __builtin_prefetch(ahead.fetch[j].values + byte, 0, 2);
    }
}

struct ScoreKernel {
    const char* name;
    smla_isa isa;
    int lanes;              // heads are padded to a multiple of `lanes`
    int block;              // heads of a pass, packed next to each other
    bool bf16_operands;     // bf16, else f32
    int tile = kScoreTile;  // keys
    int keys = kScoreKeys;  // maximum scored at a time; a shorter tile is padded
    int word_step = 1;      // words per row are a multiple of `word_step`, zeros past the width

    // decodes rows [n,width] to out [n][stride] words, zero past width
    void (*decode)(ValueBytes kind, const ValueRow* rows, int n, int width, int stride, uint32_t* out);
    // sets out[word * out_stride + lane] = decoded[lane * stride + word]
    void (*transpose)(const uint32_t* decoded, int stride, int words, uint32_t* out, int64_t out_stride);
    // Computes logits[j] = scales[j] * sum_h w[h] * relu(q[h] . keys[j]) for j < n; later logits are
    // undefined. `keys`, `scales` and `logits` have `tile` rows, `sums` is scratch of tile * lanes values.
    // Returns whether it has decoded the next tile.
    bool (*score)(const TileQuery& query, const uint32_t* keys, const float* scales, int n,
                  const TilesAhead& ahead, float* sums, float* logits);
    // A thread calls enter before its first score and leave after its last, once per task. May be null.
    void (*enter)() = nullptr, (*leave)() = nullptr;

    int words(int width) const {
        const int used = bf16_operands ? (width + 1) / 2 : width;
        return (used + word_step - 1) / word_step * word_step;
    }
    int stride(int width) const { return (words(width) + 15) / 16 * 16; }  // whole cache lines
    int padded_heads(int heads) const { return (heads + lanes - 1) / lanes * lanes; }
};

extern const ScoreKernel kScoreScalar;
#if defined(__x86_64__)
extern const ScoreKernel kScoreAvx2, kScoreAvx512, kScoreAvx512Bf16, kScoreAmx;
#elif defined(__aarch64__)
extern const ScoreKernel kScoreNeon;
#endif

}  // namespace smla
