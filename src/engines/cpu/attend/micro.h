// The microkernels of attend as the driver sees them: plain structs and one table per instruction set and
// arithmetic. An operand is made of 4-byte words: one f32, or two bf16 that a dot instruction multiplies at
// once. Scores put heads in the lanes and broadcast key words, values put dims in the lanes and broadcast
// weight words, so that no reduction over lanes happens anywhere and keys are never transposed. No code here:
// files of different instruction sets include it.
#pragma once

#include <smla/stages_attend.h>

#include <cstdint>

namespace smla::cpu_attend {

// Keys of a block. The last one of a list takes more, because each block costs a pass over the accumulators;
// a part is decoded and scored at once, while it is in L1. All are multiples of every key tile of their
// kernels, but for the shorter part of few heads (two vectors): decoding writes values, too, which drive the
// keys of a longer part out of L1, and with few heads decoding is most of the time.
struct BlockKeys {
    int usual, last, part, part_of_few = part;

    int part_of(int vectors) const { return vectors <= 2 ? part_of_few : part; }
};
constexpr BlockKeys kVectorBlock{96, 144, 48};  // 64 to 128 measure alike, more overflows L2
// Keys lie one line further apart than they are long: rows of 512 f32 would all start in the same few cache
// sets.
constexpr int kRowPadding = 16;
constexpr int kWidest = 576;  // of the kernels with a fixed distance between keys
constexpr int kMaxTiles = 4;  // tile scales per key in exact mode

struct KeyAddress {
    const char* row;
    const char* scales;  // formats that keep them apart from the row
};

// The keys that come next, fetched line by line while scores are computed: in one burst they would stall the
// loads of the product.
struct Prefetch {
    const KeyAddress* next = nullptr;
    const KeyAddress* end = nullptr;
    int row_bytes = 0;
    int at = 0;         // bytes of *next that are on their way
    int per_step = 0;   // lines per kPrefetchSteps steps of scores
    int per_pair = 0;   // lines per two keys that are decoded
    int per_value = 0;  // lines per step of a value product, where it fetches
};
constexpr int kPrefetchSteps = 8;

// What becomes of the scales of fp8 values.
enum class Scaling {
    words,     // multiplied into the words: f32, or rounded to bf16
    exponent,  // powers of two, added to the exponents of bf16 words: exact
    product    // left to the products: the words hold the codes' values
};

// Some keys of one source into words.
struct DecodeArgs {
    const KeyAddress* keys;
    int count;
    int padded;     // keys [count,padded) become zeros: padding reaches the products with weight 0
    int width;      // Dqk
    int row_lines;  // cache lines of a row, to fetch ahead
    int value_tiles;
    bool rounded;  // values rounded to bf16
    float scale;   // per-tensor formats
    Scaling scaling;
    int64_t row_words;
    uint32_t* keys_out;    // [padded][row_words]
    uint32_t* values_out;  // paired arithmetic: [Dv / tile][last / 2][tile], two keys in a word, padded
    float* tile_scales;    // paired arithmetic: [kMaxTiles][last], if the scaling is `product`
    Prefetch* prefetch;
};

struct Decoder {
    // False: the scaling is `exponent` and a scale is no power of two; nothing useful was written.
    bool (*rows)(const DecodeArgs&);  // null: only through the format's own decoder
    bool scaled;                      // offers `exponent` and `product`; else only `words`
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
    int64_t q_vector, score_vector;  // where vectors lie apart: words from one to the next
};

// Online softmax of one block for one head group: peaks and sums move on, scores become weights.
struct SoftmaxArgs {
    float* scores;      // [keys][score_stride]
    uint32_t* weights;  // [max(tiles,1)][last / values per word][weight_stride]; plain arithmetic: the scores
    const float* tile_scales;   // [tiles][last]
    float *peak, *sum, *alpha;  // per head; peak: largest score, alpha: what earlier values weigh now
    int64_t score_stride, score_vector, weight_stride;
    float factor;  // softmax scale * log2 e
    int keys, tiles, vectors;
    bool first;  // nothing came before
};

enum class Carry {
    none,
    keep,
    rescale
};  // what becomes of the values so far: there are none, unchanged, times alpha

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

// What a plan weighs when it cuts a call, over the time of one key with one vector of heads: decoding a key;
// packing the queries of a vector, or moving its sums from one core to another.
struct CutCosts {
    float decode = 3, move = 20;
};

struct Micro {
    int lanes;            // heads per vector
    int values_per_word;  // 1: f32, 2: bf16 pairs
    int group_vectors;    // vectors of heads that a score kernel takes at most
    bool vectors_apart;   // queries and scores of each vector lie by themselves, else side by side
    int value_tile;       // dims per tile of the value kernel
    int row_words;        // between keys; 0: any
    int value_words;      // paired arithmetic: from one tile of values to the next
    BlockKeys block;
    // Time to decode a key over the time to score it for one vector of heads; 0: decoding prefetches nothing.
    float decode_time;
    // Steps and vectors of heads that a value product multiplies at once if it also prefetches; else 0.
    int value_steps, value_heads;
    CutCosts cut;
    void (*score[8])(const ScoreArgs&);  // by vectors - 1
    int key_tile[8];                     // keys_padded is a multiple
    // For at most lanes / 2 heads, with two lanes each; null: none. Its q is [steps / 2][head][2].
    void (*score_few)(const ScoreArgs&);
    int key_tile_few, key_padding_few;  // keys_padded is a multiple of the latter
    void (*fetch)(Prefetch&, int lines);
    bool (*softmax)(const SoftmaxArgs&);  // false: every alpha is 1
    void (*values)(const ValueArgs&);
    void (*finish)(const FinishArgs&);
    void (*narrow)(const float* row, int n, smla_dtype dtype, char* out);
    // words[lane * stride + step] to out[step * out_stride + lane], for one vector of lanes
    void (*transpose)(const uint32_t* words, int stride, int steps, uint32_t* out, int64_t out_stride);
    Decoder (*decoder)(smla_format format, int width);
    // Around the work of a thread on one unit: state of the processor that the products need. Null: none.
    void (*enter)();
    void (*leave)();
};

extern const Micro kScalarF32, kAvx2F32, kAvx512F32, kAvx512Bf16, kAmx, kNeonF32;

}  // namespace smla::cpu_attend
