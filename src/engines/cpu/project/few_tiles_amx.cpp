// Weights that are dense along k are the rows of tiles in place, 16 outputs by 32 values, and rows of x are
// columns. Each byte of the weights moves only from memory into a tile. Weights that are dense along n are
// columns: two of their rows are first interleaved to pairs in a buffer of 2 KB, while the tiles of the
// previous buffer are multiplied.
//
// Bound by memory: a tile of weights is 1 KB, which a core reads in 100 ns; its product takes 16 cycles.
#include "engines/cpu/project/few_tiles.h"

#include "engines/cpu/amx_tiles.h"

#include <immintrin.h>

#include <cstring>

namespace smla::cpu_project {

namespace {

using amx::kTile;

int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

constexpr int64_t kAhead = 256;  // prefetch distance in a row of weights, in values
constexpr int kPairs = kTile;    // pairs of a step

// Prefetches to L2, because rows a power of two apart would evict each other from L1.
void prefetch_rows(const uint16_t* w, int64_t stride) {
    for (int r = 0; r < 2 * kTile; ++r)
        _mm_prefetch(reinterpret_cast<const char*>(w + r * stride), _MM_HINT_T1);
}

// Copies a part of the weights to whole tiles, with zeros past the last row and value.
void copy_part(const FewTiles& a, int64_t n, int64_t k, uint16_t (&part)[2 * kTile][kStep]) {
    std::memset(part, 0, sizeof part);
    const int64_t rows = least(2 * kTile, a.outputs - n), values = least(kStep, a.inner - k);
    for (int64_t r = 0; r < rows; ++r)
        std::memcpy(part[r], a.w + (n + r) * a.w_stride + k, size_t(values) * sizeof(uint16_t));
}

// Computes outputs n to n + 31.
template <bool Two>
void rows_of_weights(const FewTiles& a, int64_t n) {
    constexpr int kRows = Two ? 2 * kTile : kTile;
    alignas(64) uint16_t part[2 * kTile][kStep];
    alignas(64) float sums[2 * kTile][kRows];
    const auto* const x = reinterpret_cast<const uint32_t*>(a.x);
    const int64_t words = a.w_stride / 2;
    using Tiles = amx::Sums<true, Two>;
    Tiles::clear();
    int64_t k = 0;
    if (n + 2 * kTile <= a.outputs)
        for (const uint16_t* w = a.w + n * a.w_stride; k + kStep <= a.inner; k += kStep) {
            if (k + kAhead < a.inner) prefetch_rows(w + k + kAhead, a.w_stride);
            Tiles::add({reinterpret_cast<const uint32_t*>(w + k), words, kTile * words},
                       {x + k / 2 * kRows, kRows, kTile});
        }
    for (; k < a.inner; k += kStep) {
        copy_part(a, n, k, part);
        Tiles::add({reinterpret_cast<const uint32_t*>(part[0]), kTile, kTile * kTile},
                   {x + k / 2 * kRows, kRows, kTile});
    }
    Tiles::store(sums[0], kRows);
    const int64_t outputs = least(2 * kTile, a.outputs - n);
    for (int r = 0; r < kRows; ++r)
        for (int64_t i = 0; i < outputs; ++i) a.out[r * kUnitOutputs + n + i] = sums[i][r];
}

// Pairs of rows 2p and 2p + 1 of 32 columns: two adjacent tiles.
using ColumnPairs = uint32_t[kPairs][2 * kTile];

void put_together(const FewTiles& a, int64_t n, int64_t k, __mmask32 columns, ColumnPairs& out) {
    const auto row = [&](int64_t i) {
        return i < a.inner ? _mm512_maskz_loadu_epi16(columns, a.w + i * a.w_stride + n)
                           : _mm512_setzero_si512();
    };
    for (int p = 0; p < kPairs; ++p) {
        const __m512i low = row(k + 2 * p), high = row(k + 2 * p + 1);
        for (int half = 0; half < 2; ++half) {
            const __m512i first =
                _mm512_cvtepu16_epi32(half ? _mm512_extracti64x4_epi64(low, 1) : _mm512_castsi512_si256(low));
            const __m512i second = _mm512_cvtepu16_epi32(half ? _mm512_extracti64x4_epi64(high, 1)
                                                              : _mm512_castsi512_si256(high));
            _mm512_store_si512(out[p] + half * kTile, _mm512_or_si512(first, _mm512_slli_epi32(second, 16)));
        }
    }
}

// Computes outputs n to n + 31.
template <bool Two>
void columns_of_weights(const FewTiles& a, int64_t n) {
    constexpr int kRows = Two ? 2 * kTile : kTile;
    alignas(64) ColumnPairs pairs[2];
    alignas(64) float sums[kRows][2 * kTile];
    const int64_t count = least(2 * kTile, a.outputs - n), steps = (a.inner + kStep - 1) / kStep;
    const auto columns = __mmask32(count == 32 ? ~0u : (1u << count) - 1);
    const auto* const x = reinterpret_cast<const uint32_t*>(a.x);
    using Tiles = amx::Sums<Two, true>;
    Tiles::clear();
    if (steps) put_together(a, n, 0, columns, pairs[0]);
    for (int64_t i = 0; i < steps; ++i) {
        if (i + 1 < steps) put_together(a, n, (i + 1) * kStep, columns, pairs[(i + 1) % 2]);
        Tiles::add({x + i * kPairs, steps * kPairs, kTile * steps * kPairs},
                   {pairs[i % 2][0], 2 * kTile, kTile});
    }
    Tiles::store(sums[0], 2 * kTile);
    for (int r = 0; r < kRows; ++r)
        std::memcpy(a.out + r * kUnitOutputs + n, sums[r], size_t(count) * sizeof(float));
}

template <bool Two>
void multiply(const FewTiles& args) {
    if (args.along_inner)
        for (int64_t n = 0; n < args.outputs; n += 2 * kTile) rows_of_weights<Two>(args, n);
    else
        for (int64_t n = 0; n < args.outputs; n += 2 * kTile) columns_of_weights<Two>(args, n);
}

}  // namespace

void multiply_few_tiles(const FewTiles& args) {
    amx::enter();
    if (args.tiles == 2) multiply<true>(args);
    else multiply<false>(args);
    amx::leave();
}

void split_row(const float* x, int64_t inner, uint16_t* out, int64_t part_stride) {
    const __m512i infinite = _mm512_set1_epi32(0x7f800000), quiet = _mm512_set1_epi32(0x00400000),
                  high = _mm512_set1_epi32(int(0xffff0000)), magnitude = _mm512_set1_epi32(0x7fffffff);
    for (int64_t k = 0; k < inner; k += 16) {
        const auto lanes = __mmask16(inner - k < 16 ? (1u << (inner - k)) - 1 : 0xffffu);
        __m512i rest = _mm512_castps_si512(_mm512_maskz_loadu_ps(lanes, x + k));
        const __m512i size = _mm512_and_si512(rest, magnitude);
        const __mmask16 finite = _mm512_cmplt_epi32_mask(size, infinite);
        // a NaN with bits only in the lower half would become an infinity
        rest = _mm512_mask_or_epi32(rest, _mm512_cmpgt_epi32_mask(size, infinite), rest, quiet);
        for (int part = 0; part < 3; ++part) {
            const __m512i first = _mm512_and_si512(rest, high);
            _mm256_mask_storeu_epi16(out + part * part_stride + k, lanes,
                                     _mm512_cvtepi32_epi16(_mm512_srli_epi32(first, 16)));
            const __m512 left = _mm512_sub_ps(_mm512_castsi512_ps(rest), _mm512_castsi512_ps(first));
            rest = _mm512_maskz_mov_epi32(finite, _mm512_castps_si512(left));
        }
    }
}

void pair_columns(const uint16_t* x, int64_t rows, int64_t width, uint16_t* out) {
    const auto words = int(width / 2);
    const __m512i at = _mm512_mullo_epi32(
        _mm512_set1_epi32(words), _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    for (int64_t p = 0; p < words; ++p)
        for (int64_t first = 0; first < rows; first += kTile) {
            const uint16_t* const from = x + first * width + 2 * p;
            _mm512_storeu_si512(out + (p * rows + first) * 2, _mm512_i32gather_epi32(at, from, 4));
        }
}

}  // namespace smla::cpu_project
