// score on AMX tiles of bf16: S^T = K Q^T in f32, logit = scale * sum over heads of w * relu(S).
//   left   [16 keys][16 words]   decoded keys
//   right  [16 words][16 heads]  the query, packed once per token
//   sums   [16 keys][16 heads]   a row is a key and lanes are heads, as in the vector kernels
// A pass has 2 x 2 tiles of sums, 32 keys and 32 heads, so it loads one tile per product. The sums are stored
// between the first products of the next pass (amx::Sums). Between the steps of 16 words the vector units
// do a share of other work: they weigh the products of the previous pass, decode rows of the next tile of
// keys and prefetch rows of the one after.
//
// Why this shape: cycles for 64 keys, 64 heads and 128 channels of e4m3, counted separately for each kind of
// work, with 16 cycles for tdpbf16ps and tilestored, 8 for tileloadd, two ports for vectors.
//   products    64 x 16 = 1024
//   tile loads  64 x 8  =  512 of the load ports; 1 x 4 tiles of sums would take 640
//   decoding    128 x 7 operations on vectors = 448 of both ports
//   weighing    256 x 2 = 256 of both ports
//   sums over the lanes 180 = 90 of both ports
// So the vector ports are busy for 800 cycles. Products hide vector work of up to about half of their own
// time; the rest adds to the time (measured; docs/kernels/log/cpu.md). With keys on the right (S = Q K^T) no
// lanes are summed, but each 16 x 16 words of keys must be transposed: 1024 more shuffles, all on one port.
//
// L1 holds two tiles of 32 keys (8 KB each), 16 KB of queries and 6 KB of products and sums. With 64 keys one
// token takes a tenth longer.
#include "engines/cpu/amx_tiles.h"
#include "engines/cpu/e4m3_gfni.h"
#include "engines/cpu/score/decode_avx512_bf16.h"

namespace smla {

namespace {

using amx::kTile;
using lanes::Avx512;

constexpr int kPassKeys = 2 * kTile, kPassHeads = 2 * kTile;

// Computes sums of w * relu(q . k) over the heads, in passes of one or two vectors of heads.
struct Weighing {
    const TileQuery query;
    const float* dots;    // [32 keys][32 heads]: products of the pass
    float* sums;          // [32 keys][16 lanes]: sums of earlier passes
    int head = 0;         // first head of the pass
    int key = kPassKeys;  // next key

    void start(int of_head) {
        head = of_head;
        key = 0;
    }
    template <int Vectors>
    [[gnu::always_inline]] inline __m512 sum(int j, __m512 before, __m512 first, __m512 second,
                                             __mmask16 last) const {
        const float* at = dots + j * kPassHeads;
        if (Vectors == 2) before = _mm512_fmadd_ps(Avx512::relu(_mm512_load_ps(at)), first, before);
        return _mm512_mask3_fmadd_ps(Avx512::relu(_mm512_load_ps(at + (Vectors - 1) * kTile)), second, before,
                                     last);
    }
    template <int Vectors, class Each>
    [[gnu::always_inline]] inline void with_weights(const Each& each) const {
        // Padded heads are excluded, because zero times an infinite key would be NaN.
        each(_mm512_load_ps(query.w + head), _mm512_load_ps(query.w + head + (Vectors - 1) * kTile),
             Avx512::first_lanes(query.heads - head - (Vectors - 1) * kTile));
    }
    // Weighs the next `n` keys of a pass of two vectors that is not the last.
    [[gnu::always_inline]] inline void next(int n) {
        if (key == kPassKeys) return;
        with_weights<2>([&](__m512 first, __m512 second, __mmask16 last) __attribute__((always_inline)) {
            const int end = key + n < kPassKeys ? key + n : kPassKeys;
            for (; key < end; ++key) {
                float* at = sums + key * kTile;
                _mm512_store_ps(at, sum<2>(key, head == 0 ? _mm512_setzero_ps() : _mm512_load_ps(at), first,
                                           second, last));
            }
        });
    }
    // Turns the sums of the last pass into logits.
    template <int Vectors>
    inline void finish(const float* scales, float* logits) const {
        with_weights<Vectors>([&](__m512 first, __m512 second,
                                  __mmask16 last) __attribute__((always_inline)) {
            for (int from = 0; from < kPassKeys; from += kTile) {
                __m512 each[kTile];
#pragma GCC unroll 16
                for (int i = 0; i < kTile; ++i)
                    each[i] = sum<Vectors>(
                        from + i, head == 0 ? _mm512_setzero_ps() : _mm512_load_ps(sums + (from + i) * kTile),
                        first, second, last);
                _mm512_storeu_ps(logits + from,
                                 _mm512_mul_ps(Avx512::sum_lanes(each), _mm512_loadu_ps(scales + from)));
            }
        });
    }
};

// Usual channels of models' indexers. A constant size costs no instructions and fewer registers.
constexpr int kUsualWidth = 128;

// Decodes the next tile of keys and prefetches the one after, some rows at a time.
template <bool Usual>
class Ahead {
public:
    Ahead(const TilesAhead& ahead, int stride, int steps)
        : ahead_(ahead),
          stride_(Usual ? kUsualWidth / 2 : stride),
          rows_((ahead.n + steps - 1) / steps),
          fetches_((ahead.fetch_rows + steps - 1) / steps) {}

    [[gnu::always_inline]] inline void step() {
        const int end = row_ + rows_ < ahead_.n ? row_ + rows_ : ahead_.n;
        uint32_t* out = ahead_.out + int64_t(row_) * stride_;
        if (Usual && ahead_.kind == ValueBytes::e4m3) {
            for (; row_ < end; ++row_, out += stride_) decode_codes(ahead_.rows[row_], out);
            fetch_codes();
            return;
        }
        if (row_ < end)
            decode_pairs(ahead_.kind, ahead_.rows + row_, end - row_, ahead_.width, int(stride_), out);
        row_ = end;
        fetch_ahead(ahead_, fetched_, fetches_);
        fetched_ += fetches_;
    }

private:
    [[gnu::always_inline]] inline void decode_codes(const ValueRow& row, uint32_t* out) const {
        const __m512i first = normal_.load(row.values), second = normal_.load(row.values + 64);
        if ((lanes::other_e4m3(first) | lanes::other_e4m3(second)) != 0) return decode_any(row, out);
        normal_.decode(first, out);
        normal_.decode(second, out + 32);
    }
    [[gnu::noinline]] static void decode_any(const ValueRow& row, uint32_t* out) {
        decode_e4m3(row, kUsualWidth, out);
    }

    // Does fetch_ahead for rows of two lines; the scales of a few neighbors share a line.
    [[gnu::always_inline]] inline void fetch_codes() {
        const int end = fetched_ + fetches_ < ahead_.fetch_rows ? fetched_ + fetches_ : ahead_.fetch_rows;
        if (fetched_ < end) __builtin_prefetch(ahead_.fetch[fetched_].scales, 0, 2);
        for (; fetched_ < end; ++fetched_) {
            const uint8_t* values = ahead_.fetch[fetched_].values;
            __builtin_prefetch(values, 0, 2);
            __builtin_prefetch(values + 64, 0, 2);
        }
    }

    const TilesAhead ahead_;
    const lanes::NormalE4m3 normal_;
    const int64_t stride_;
    const int rows_, fetches_;  // rows of a step
    int row_ = 0, fetched_ = 0;
};

template <int T>
[[gnu::always_inline]] inline void store_product(float* dots) {
    amx::store_tile<T>(dots + T % 2 * kTile * kPassHeads + T / 2 * kTile, kPassHeads);
}

// Runs a pass of one or two vectors of heads, whose products stay in tiles. Stores and weighs the products of
// the previous pass.
template <bool TwoVectors, bool Usual>
[[gnu::always_inline]] inline void run_pass(const TileQuery& query, const uint32_t* keys, int head,
                                            float* dots, Weighing& weighing, Ahead<Usual>& ahead) {
    using Tiles = amx::Sums<true, TwoVectors>;
    constexpr int kLanes = TwoVectors ? kPassHeads : kTile;
    const int words = Usual ? kUsualWidth / 2 : query.words;
    const int64_t stride = Usual ? kUsualWidth / 2 : query.stride;
    amx::Operand rows{keys, stride, kTile * stride},
        columns{query.packed + int64_t(head) * words, kLanes, kTile};
    const auto turn = [&]<int T>() __attribute__((always_inline)) {
        if (head > 0) {
            store_product<T>(dots);
            if (!TwoVectors) store_product<T + 2>(dots);
        }
        amx::zero_tile<T>();
    };
    Tiles::add(rows, columns, turn);
    ahead.step();
    if (head > 0) weighing.start(head - kPassHeads);
    const int steps = words / kTile - 1, share = steps > 0 ? (kPassKeys + steps - 1) / steps : 0;
#pragma GCC unroll 4
    for (int step = 0; step < steps; ++step) {
        rows.at += kTile;
        columns.at += kTile * kLanes;
        Tiles::add(rows, columns);
        ahead.step();
        weighing.next(share);
    }
    weighing.next(kPassKeys);
}

template <bool Usual>
void score_passes(const TileQuery query, const uint32_t* keys, const float* scales,
                  const TilesAhead& tiles_ahead, float* sums, float* logits) {
    alignas(64) float dots[kPassKeys * kPassHeads];
    const int passes = (query.heads + kPassHeads - 1) / kPassHeads, last = (passes - 1) * kPassHeads;
    Weighing weighing{query, dots, sums};
    Ahead<Usual> ahead(tiles_ahead, query.stride, passes * (query.words / kTile));
    for (int head = 0; head < last; head += kPassHeads)
        run_pass<true>(query, keys, head, dots, weighing, ahead);
    if (query.heads - last > kTile) {
        run_pass<true>(query, keys, last, dots, weighing, ahead);
        amx::Sums<true, true>::store(dots, kPassHeads);
        weighing.start(last);
        weighing.finish<2>(scales, logits);
    } else {
        run_pass<false>(query, keys, last, dots, weighing, ahead);
        amx::Sums<true, false>::store(dots, kPassHeads);
        weighing.start(last);
        weighing.finish<1>(scales, logits);
    }
}

// Scores at most 32 keys, padded to 32.
bool score_keys(const TileQuery& query, const uint32_t* keys, const float* scales, int,
                const TilesAhead& ahead, float* sums, float* logits) {
    const bool usual = query.words == kUsualWidth / 2 && query.stride == kUsualWidth / 2 &&
                       (ahead.n == 0 || ahead.width == kUsualWidth);
    (usual ? score_passes<true> : score_passes<false>)(query, keys, scales, ahead, sums, logits);
    return ahead.n > 0;
}

}  // namespace

extern constexpr ScoreKernel kScoreAmx = {.name = "cpu_amx_score",
                                          .isa = SMLA_ISA_AMX,
                                          .lanes = kTile,
                                          .block = kPassHeads,
                                          .bf16_operands = true,
                                          .tile = kPassKeys,
                                          .keys = kPassKeys,
                                          .word_step = kTile,
                                          .decode = decode_pairs,
                                          .transpose = lanes::transpose<Avx512>,
                                          .score = score_keys,
                                          .enter = amx::enter,
                                          .leave = amx::leave};

}  // namespace smla
