#include "engines/cpu/lanes_avx512.h"
#include "engines/cpu/project/bf16_tiles.h"

#include <cstring>

namespace smla::cpu_project {

namespace {

constexpr int kLanes = 16, kVectors = kPanel / kLanes;

// Replaces std::min, because the linker may use this file's copy in files that run on older machines.
int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
int64_t lanes_of(int64_t end) { return end < 0 ? 0 : smaller(end, kLanes); }

// Packs a panel of weights that are dense along the inner dimension: out[p * kPanel + lane] is pair p of
// output `lane`, 0 from `count` on. Transposes blocks of 16 outputs by 16 pairs as words.
void pack_rows(const uint16_t* w, int64_t stride, int64_t count, int64_t pairs, uint32_t* out) {
    alignas(64) uint32_t edge[kLanes * kLanes];
    const auto words = [&](int64_t n, int64_t p) {
        return reinterpret_cast<const char*>(w + n * stride + 2 * p);
    };
    for (int64_t n = 0; n < kPanel; n += kLanes)
        for (int64_t p = 0; p < pairs; p += kLanes) {
            const int64_t rows = lanes_of(count - n), columns = smaller(pairs - p, kLanes);
            uint32_t* const to = out + p * kPanel + n;
            if (rows == kLanes && columns == kLanes && stride % 2 == 0) {
                lanes::Avx512::transpose_square(reinterpret_cast<const uint32_t*>(words(n, p)), stride / 2,
                                                to, kPanel);
                continue;
            }
            std::memset(edge, 0, sizeof edge);
            for (int64_t r = 0; r < rows; ++r)
                std::memcpy(edge + r * kLanes, words(n + r, p), size_t(columns) * sizeof(uint32_t));
            for (int64_t c = 0; c < columns; ++c)
                for (int64_t r = 0; r < kLanes; ++r) to[c * kPanel + r] = edge[r * kLanes + c];
        }
}

__mmask16 lanes_before(int64_t end) { return __mmask16((1u << lanes_of(end)) - 1); }

// Packs a panel of weights that are dense along the outputs: interleaves each two rows to pairs.
void pack_columns(const uint16_t* w, int64_t stride, int64_t count, int64_t pairs, uint32_t* out) {
    for (int64_t p = 0; p < pairs; ++p, out += kPanel)
        for (int v = 0; v < kVectors; ++v) {
            const __mmask16 mask = lanes_before(count - v * kLanes);
            const auto widened = [&](int64_t k) {
                return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, w + k * stride + v * kLanes));
            };
            _mm512_store_si512(out + v * kLanes,
                               _mm512_or_si512(widened(2 * p), _mm512_slli_epi32(widened(2 * p + 1), 16)));
        }
}

// One tile: T tokens by a panel, over `pairs` of the inner dimension.
struct Tile {
    const uint16_t* x;
    const uint32_t* w;
    float* sums;  // [T][sums_stride]
    void* out;    // null except in the last part of the inner dimension
    int64_t x_stride, out_stride, sums_stride, pairs, count;
    bool adds, out_bf16;  // adds: add to the sums of the previous parts
};

template <int T>
void multiply_tile(const Tile& a) {
    __m512 sums[T][kVectors];
#pragma GCC unroll 6
    for (int t = 0; t < T; ++t)
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) sums[t][v] = _mm512_setzero_ps();
    const uint32_t* w = a.w;
    const uint16_t* x = a.x;
    for (int64_t p = 0; p < a.pairs; ++p, w += kPanel, x += 2) {
        __m512bh weights[kVectors];
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) weights[v] = (__m512bh)_mm512_load_si512(w + v * kLanes);
#pragma GCC unroll 6
        for (int t = 0; t < T; ++t) {
            int32_t pair;
            std::memcpy(&pair, x + t * a.x_stride, sizeof pair);
            const auto both = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 4
            for (int v = 0; v < kVectors; ++v) sums[t][v] = _mm512_dpbf16_ps(sums[t][v], weights[v], both);
        }
    }
#pragma GCC unroll 6
    for (int t = 0; t < T; ++t)
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
            const int64_t first = v * kLanes;
            const __mmask16 mask = lanes_before(a.count - first);
            float* const before = a.sums + t * a.sums_stride + first;
            __m512 sum = sums[t][v];
            if (a.adds) sum = _mm512_add_ps(sum, _mm512_load_ps(before));
            if (!a.out) _mm512_store_ps(before, sum);
            else if (a.out_bf16)
                _mm256_mask_storeu_epi16(
                    static_cast<uint16_t*>(a.out) + t * a.out_stride + first, mask,
                    _mm512_cvtepi32_epi16(_mm512_srli_epi32(lanes::Avx512::bf16_bits(sum), 16)));
            else _mm512_mask_storeu_ps(static_cast<float*>(a.out) + t * a.out_stride + first, mask, sum);
        }
}

constexpr void (*kTiles[kTileTokens])(const Tile&) = {multiply_tile<1>, multiply_tile<2>, multiply_tile<3>,
                                                      multiply_tile<4>, multiply_tile<5>, multiply_tile<6>};

// Multiplies all tokens by the packed panels. The rows of a few tokens stay in L1 for all panels.
void multiply_part(const Bf16Block& a, int64_t first, int64_t inner) {
    const bool last = first + inner == a.inner;
    for (int64_t t = 0; t < a.tokens; t += kTileTokens)
        for (int64_t n = 0; n < a.outer; n += kPanel) {
            const int64_t at = t * a.out_stride + n;
            const Tile tile{.x = a.x + t * a.x_stride + first,
                            .w = a.packed + n * (inner / 2),
                            .sums = a.sums + t * a.sums_stride + n,
                            .out = !last        ? nullptr
                                   : a.out_bf16 ? static_cast<void*>(static_cast<uint16_t*>(a.out) + at)
                                                : static_cast<float*>(a.out) + at,
                            .x_stride = a.x_stride,
                            .out_stride = a.out_stride,
                            .sums_stride = a.sums_stride,
                            .pairs = inner / 2,
                            .count = smaller(a.outer - n, kPanel),
                            .adds = first > 0,
                            .out_bf16 = a.out_bf16};
            kTiles[smaller(a.tokens - t, kTileTokens) - 1](tile);
        }
}

}  // namespace

void multiply_bf16_block(const Bf16Block& a) {
    int64_t first = 0;
    do {
        const int64_t inner = smaller(a.inner - first, kInnerBlock);
        for (int64_t n = 0; n < a.outer; n += kPanel) {
            const int64_t count = smaller(a.outer - n, kPanel);
            const uint16_t* w = a.w + n * a.w_outer + first * a.w_inner;
            uint32_t* const out = a.packed + n * (inner / 2);
            if (a.w_inner == 1) pack_rows(w, a.w_outer, count, inner / 2, out);
            else pack_columns(w, a.w_inner, count, inner / 2, out);
        }
        multiply_part(a, first, inner);
        first += inner;
    } while (first < a.inner);
}

}  // namespace smla::cpu_project
