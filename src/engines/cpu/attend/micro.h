// Interface of attend's microkernels to the driver: plain structs and one table per instruction set and
// arithmetic. Operands consist of 4-byte words: one f32, or two bf16 that a dot instruction multiplies.
// Scores have heads in the lanes and broadcast key words; values have dims in the lanes and broadcast weight
// words. Therefore nothing is reduced over lanes and keys are never transposed. This header has no code,
// because files of different instruction sets include it.
#pragma once

#include <smla/stages_attend.h>

#include <cstdint>

namespace smla::cpu_attend {

// Keys of a block. The last block of a list is larger, because each block costs a pass over the accumulators.
// A part is decoded and then scored while it is in L1. All numbers are multiples of every key tile of their
// kernels, except the shorter part of few heads (two vectors). Decoding also writes values, which evict the
// keys of a longer part from L1, and with few heads decoding is most of the time.
struct BlockKeys {
    int usual, last, part, part_of_few = part;

    int part_of(int vectors) const { return vectors <= 2 ? part_of_few : part; }
};
constexpr BlockKeys kVectorBlock{96, 144, 48};  // 64 to 128 keys are equally fast; more overflow L2
// Keys have a padding of one line, because rows of 512 f32 would all start in a few cache sets.
constexpr int kRowPadding = 16;
constexpr int kWidest = 576;  // maximum of kernels with a fixed distance between keys
constexpr int kMaxTiles = 4;  // tile scales per key in exact mode

struct KeyAddress {
    const char* row;
    const char* scales;  // scales that the format stores outside of the row
};

// The next keys, fetched line by line while scores are computed. A burst would stall the product's loads.
struct Prefetch {
    const KeyAddress* next = nullptr;
    const KeyAddress* end = nullptr;
    int row_bytes = 0;
    int at = 0;         // bytes of *next that are being fetched
    int per_step = 0;   // lines per kPrefetchSteps steps of scores
    int per_pair = 0;   // lines per two keys that are decoded
    int per_value = 0;  // lines per step of a value product that prefetches
};
constexpr int kPrefetchSteps = 8;

// Use of the scales of fp8 values.
enum class Scaling {
    words,     // words are values times scales, in f32 or rounded to bf16
    exponent,  // scales are powers of two and are added to the exponents of bf16 words, which is exact
    product    // words are values without scales, which are applied to scores and weights
};

// Arguments of a decoder, for some keys of one source.
struct DecodeArgs {
    const KeyAddress* keys;
    int count;
    int padded;     // keys [count,padded) become zeros, whose weight in the products is 0
    int width;      // Dqk
    int row_lines;  // cache lines of a row to fetch ahead
    int value_tiles;
    bool rounded;  // values rounded to bf16
    float scale;   // scale of per-tensor formats
    Scaling scaling;
    int64_t row_words;
    uint32_t* keys_out;    // [padded][row_words]
    uint32_t* values_out;  // paired arithmetic: [Dv / tile][last / 2][tile], two keys in a word, padded
    float* tile_scales;    // paired arithmetic: [kMaxTiles][last], if the scaling is `product`
    Prefetch* prefetch;
};

struct Decoder {
    // Returns false, with undefined output, if the scaling is `exponent` and a scale is no power of two.
    bool (*rows)(const DecodeArgs&);  // null: only the format's own decoder
    bool scaled;                      // supports `exponent` and `product`; else only `words`
};

// scores[key][lane] (+)= scale[key] * sum over steps [begin,end) of q[step][lane] . keys[key][step]
struct ScoreArgs {
    const uint32_t* q;  // [steps][lanes of the head group], or of each vector of it (Micro::vectors_apart)
    const uint32_t* keys;
    float* scores;
    const float* scales;  // null: 1
    Prefetch* prefetch;
    int64_t row_words, score_stride;
    int begin, end;
    int keys_padded;
    bool accumulate;
    int64_t q_vector, score_vector;  // distance in words between vectors, if apart
};

// Online softmax of one block for one head group: updates peaks and sums, and turns scores into weights.
struct SoftmaxArgs {
    float* scores;      // [keys][score_stride]
    uint32_t* weights;  // [max(tiles,1)][last / values per word][weight_stride]; plain arithmetic: the scores
    const float* tile_scales;   // [tiles][last]
    float *peak, *sum, *alpha;  // per head; peak: largest score, alpha: factor of earlier values
    int64_t score_stride, score_vector, weight_stride;
    float factor;  // softmax scale * log2 e
    int keys, tiles, vectors;
    bool first;  // nothing precedes this block
};

enum class Carry { none, keep, rescale };  // previous values are absent, unchanged, or multiplied by alpha

// out[head][dim] = carry + sum over steps of weights[step][head] * values[step][dim], one tile of dims
struct ValueArgs {
    const uint32_t* values;   // [steps][value_stride]
    const uint32_t* weights;  // [steps][weight_stride]
    const float* alpha;
    float* out;  // [heads][tile]
    int64_t value_stride, weight_stride;
    int steps, heads;
    Carry carry;
    Prefetch* prefetch;
};

// One head's result: out[d] = sum_i weight[i] * part[i][d], from dim tiles to a row of the output's type.
struct FinishArgs {
    const float* const* parts;  // each [tiles][tile_stride], this head's lanes first
    const float* weights;
    int64_t tile_stride;
    int part_count, tiles;
    float* row;  // scratch [tiles * tile]: values in order
};

// Cost model for cutting a call, in units of the time of one key with one vector of heads. decode: time to
// decode a key. move: time to pack the queries of a vector, or to move its sums from one core to another.
struct CutCosts {
    float decode = 3, move = 20;
};

struct Micro {
    int lanes;            // heads per vector
    int values_per_word;  // 1: f32, 2: bf16 pairs
    int group_vectors;    // maximum vectors of heads in a score kernel
    bool vectors_apart;   // queries and scores of each vector are contiguous, else interleaved
    int value_tile;       // dims per tile of the value kernel
    int row_words;        // distance between keys; 0: any
    int value_words;      // paired arithmetic: distance between tiles of values
    BlockKeys block;
    // Time to decode a key over the time to score it for one vector of heads; 0 disables its prefetches.
    float decode_time;
    // Steps and vectors of heads in one step of a value product that also prefetches; else 0.
    int value_steps, value_heads;
    CutCosts cut;
    void (*score[8])(const ScoreArgs&);  // by vectors - 1
    int key_tile[8];                     // keys_padded is a multiple of it
    // Score kernel for at most lanes / 2 heads, with two lanes each, or null. Its q is [steps / 2][head][2].
    void (*score_few)(const ScoreArgs&);
    int key_tile_few, key_padding_few;  // keys_padded is a multiple of the latter
    void (*fetch)(Prefetch&, int lines);
    bool (*softmax)(const SoftmaxArgs&);  // false: every alpha is 1
    void (*values)(const ValueArgs&);
    void (*finish)(const FinishArgs&);
    void (*narrow)(const float* row, int n, smla_dtype dtype, char* out);
    // copies words[lane * stride + step] to out[step * out_stride + lane] for one vector of lanes
    void (*transpose)(const uint32_t* words, int stride, int steps, uint32_t* out, int64_t out_stride);
    Decoder (*decoder)(smla_format format, int width);
    // Set and reset processor state for the products of a unit, in its thread; may be null.
    void (*enter)();
    void (*leave)();
};

extern const Micro kScalarF32, kAvx2F32, kAvx512F32, kAvx512Bf16, kAmx, kNeonF32;

}  // namespace smla::cpu_attend
