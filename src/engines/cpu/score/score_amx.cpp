// score on AMX tiles of bf16: S^T = K Q^T in f32, logit = scale * sum over heads of w * relu(S).
//   left   [16 keys][16 words]   keys as they were decoded
//   right  [16 words][16 heads]  the query, packed once per token
//   sums   [16 keys][16 heads]   a row is a key and lanes are heads, as in the vector kernels
// A pass has 2 x 2 tiles of sums, 32 keys and 32 heads, so it loads one tile per product. Between its steps
// of 16 words the vector units do a share of other work: they weigh the products of the pass before, decode
// rows of the next tile of keys and fetch rows of the one after.
//
// Why this shape: cycles for 64 keys, 64 heads and 128 channels of e4m3, each kind of work as if alone,
// counted with 16 cycles for tdpbf16ps and tilestored, 8 for tileloadd, two ports for vectors.
//   products    64 x 16 = 1024
//   tile loads  64 x 8  =  512 of the load ports; 1 x 4 tiles of sums would take 640
//   decoding    128 x 11 operations on vectors = 704 of both ports; by table 896 of the port that shuffles
//   weighing    256 x 2 = 256 of both ports
//   sums over the lanes 180 = 90 of both ports
// The vector ports are busy for 1050 cycles, as long as the tiles: 131,072 keys take 2.1 million cycles if
// all runs side by side, 4.2 million if nothing does. With keys on the right (S = Q K^T) no lanes are summed,
// but each 16 x 16 words of keys must be transposed: 1024 more shuffles, all on one port.
//
// A tile of 32 keys is 8 KB, twice, beside 16 KB of queries and 6 KB of products and sums, so L1 holds all of
// it: with 64 keys one token took a tenth longer.
#define SMLA_LANES_NAMESPACE score_amx
#include "engines/cpu/amx_tiles.h"
#include "engines/cpu/score/decode_avx512_bf16.h"
#include "engines/cpu/score/lanes_avx512.h"
#include "engines/cpu/transpose_avx512.h"

namespace smla {

namespace score_amx {

using amx::kTile;

constexpr int kPassKeys = 2 * kTile, kPassHeads = 2 * kTile;

// Products of a pass as tiles store them, and what turns them into logits.
struct Products {
    alignas(64) float dots[kPassKeys * kPassHeads];
    int key = 0, head = 0, heads = 0;  // the first ones of the pass, heads of the query
    int weighed = kPassKeys;           // keys done

    bool first() const { return head == 0; }
    bool last() const { return head + kPassHeads >= heads; }
};

inline __mmask16 first_lanes(int n) { return n >= kTile ? __mmask16(0xffff) : __mmask16((1u << n) - 1); }

// A NaN is the second operand of max, and the result.
inline __m512 relu(const float* dots) { return _mm512_max_ps(_mm512_setzero_ps(), _mm512_load_ps(dots)); }

// Adds w * relu(q . k) of the pass's heads to the sums of its next `n` keys.
template <int Vectors, bool First>
void weigh(Products& pass, int n, const float* w, float* sums) {
    const __m512 first = _mm512_load_ps(w + pass.head),
                 second = _mm512_load_ps(w + pass.head + (Vectors - 1) * kTile);
    // Padded heads stay out: zero times an infinite key would be NaN.
    const __mmask16 last = first_lanes(pass.heads - pass.head - (Vectors - 1) * kTile);
    const int end = pass.weighed + n < kPassKeys ? pass.weighed + n : kPassKeys;
    const float* dots = pass.dots + pass.weighed * kPassHeads;
    float* at = sums + (pass.key + pass.weighed) * kTile;
#pragma GCC unroll 4
    for (int j = pass.weighed; j < end; ++j, dots += kPassHeads, at += kTile) {
        __m512 sum = First ? _mm512_setzero_ps() : _mm512_load_ps(at);
        if (Vectors == 2) sum = _mm512_fmadd_ps(relu(dots), first, sum);
        _mm512_store_ps(at, _mm512_mask3_fmadd_ps(relu(dots + (Vectors - 1) * kTile), second, sum, last));
    }
    pass.weighed = end;
}

// What the vector units do beside the tiles.
class Beside {
public:
    Beside(const TileQuery& query, const float* scales, const TilesAhead& ahead, float* sums, float* logits,
           int passes)
        : query_(query), scales_(scales), ahead_(ahead), sums_(sums), logits_(logits) {
        const auto share = [](int n, int steps) { return (n + steps - 1) / steps; };
        const int steps = query.words / kTile;
        keys_ = share(kPassKeys, steps);
        rows_ = share(ahead.n, passes * steps);
        fetches_ = share(ahead.fetch_rows, passes * steps);
    }
    // The next share.
    void step() {
        const int rows = rows_ < ahead_.n - row_ ? rows_ : ahead_.n - row_;
        if (rows > 0)
            decode(ahead_.kind, ahead_.rows + row_, rows, ahead_.width, query_.stride,
                   ahead_.out + int64_t(row_) * query_.stride);
        row_ += rows;
        fetch_ahead(ahead_, fetched_, fetches_);
        fetched_ += fetches_;
        // Last, since the products of the pass before may still be on their way.
        if (pass_.weighed < kPassKeys) weigh_keys(keys_);
    }
    // All that is left of the pass before; then its products may be overwritten.
    void finish() {
        if (pass_.weighed < kPassKeys) weigh_keys(kPassKeys);
        if (!started_ || !pass_.last()) return;
        for (int j = pass_.key; j < pass_.key + kPassKeys; j += kTile)
            _mm512_storeu_ps(logits_ + j,
                             _mm512_mul_ps(sum_lanes(sums_ + j * kTile), _mm512_loadu_ps(scales_ + j)));
    }
    // The pass whose products are stored next.
    float* start(int key, int head) {
        pass_.key = key;
        pass_.head = head;
        pass_.heads = query_.heads;
        pass_.weighed = 0;
        started_ = true;
        return pass_.dots;
    }

private:
    void weigh_keys(int n) {
        const bool two = pass_.heads - pass_.head > kTile;
        if (pass_.first()) (two ? weigh<2, true> : weigh<1, true>)(pass_, n, query_.w, sums_);
        else (two ? weigh<2, false> : weigh<1, false>)(pass_, n, query_.w, sums_);
    }

    const TileQuery& query_;
    const float* scales_;
    const TilesAhead& ahead_;
    float* sums_;
    float* logits_;
    int keys_, rows_, fetches_;  // of a share
    int row_ = 0, fetched_ = 0;
    Products pass_;
    bool started_ = false;  // a pass has stored its products
};

// One pass: `keys` and `q` point to its own.
template <bool TwoVectors>
void run_pass(const TileQuery& query, const uint32_t* keys, const uint32_t* q, int key, int head,
              Beside& beside) {
    using Tiles = amx::Sums<true, TwoVectors>;
    constexpr int lanes = TwoVectors ? kPassHeads : kTile;
    Tiles::clear();
    for (int word = 0; word < query.words; word += kTile) {
        Tiles::add({keys + word, query.stride, int64_t(kTile) * query.stride},
                   {q + word * lanes, lanes, kTile});
        beside.step();
    }
    beside.finish();
    Tiles::store(beside.start(key, head), kPassHeads);
}

bool score_tile(const TileQuery& query, const uint32_t* keys, const float* scales, int n,
                const TilesAhead& ahead, float* sums, float* logits) {
    const int blocks = (n + kPassKeys - 1) / kPassKeys;
    Beside beside(query, scales, ahead, sums, logits, blocks * ((query.heads + kPassHeads - 1) / kPassHeads));
    for (int key = 0; key < n; key += kPassKeys)
        for (int head = 0; head < query.heads; head += kPassHeads) {
            const uint32_t* rows = keys + int64_t(key) * query.stride;
            const uint32_t* q = query.packed + int64_t(head) * query.words;
            if (query.heads - head > kTile) run_pass<true>(query, rows, q, key, head, beside);
            else run_pass<false>(query, rows, q, key, head, beside);
        }
    beside.finish();
    return ahead.n > 0;
}

// A vector of heads: out[word][lane], zero where there is no head.
void pack_vector(const uint32_t* decoded, int heads, int words, int stride, uint32_t* out,
                 int64_t out_stride) {
    if (heads >= kTile) {
        for (int i = 0; i < words; i += kTile)
            avx512::transpose_16(decoded + i, stride, out + i * out_stride, out_stride);
        return;
    }
    const __m512i rows = _mm512_mullo_epi32(
        _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), _mm512_set1_epi32(stride));
    for (int i = 0; i < words; ++i)
        _mm512_store_si512(
            out + i * out_stride,
            _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), first_lanes(heads), rows, decoded + i, 4));
}

// [heads][stride] words -> [32 heads, of the last ones perhaps 16][word][lane]
void pack_pairs(const uint32_t* decoded, int heads, int words, int stride, uint32_t* packed) {
    for (int head = 0; head < heads; head += kTile) {
        const int pair = head / kPassHeads * kPassHeads, lanes = heads - pair > kTile ? kPassHeads : kTile;
        pack_vector(decoded + int64_t(head) * stride, heads - head, words, stride,
                    packed + int64_t(pair) * words + (head - pair), lanes);
    }
}

}  // namespace score_amx

extern const ScoreKernel kScoreAmx = {.name = "cpu_amx_score",
                                      .isa = SMLA_ISA_AMX,
                                      .lanes = amx::kTile,
                                      .bf16_operands = true,
                                      .tile = score_amx::kPassKeys,
                                      .keys = score_amx::kPassKeys,
                                      .word_step = amx::kTile,
                                      .decode = score_amx::decode,
                                      .pack = score_amx::pack_pairs,
                                      .score = score_amx::score_tile,
                                      .enter = amx::enter,
                                      .leave = amx::leave};

}  // namespace smla
