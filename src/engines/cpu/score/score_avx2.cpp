// score with f32 operands on 8-lane registers.
#include "engines/cpu/score/kernel.h"

#include <algorithm>
#include <cstring>

#include <immintrin.h>

namespace smla {

namespace score_avx2 {

constexpr int kLanes = 8, kBlock = 16;  // heads per register and per pass over a tile
constexpr int kKeys = 8;                // in one go, at most
constexpr float kNan = __builtin_nanf("");

// `Keys` keys against 8 * Groups heads; the relu'd and weighted products join sums[key][8 lanes].
template <int Groups, int Keys>
inline void score_block(const uint32_t* packed, const float* w, __m256 last, int words,
                        const uint32_t* key_words, int stride, bool first, float* sums) {
    const float* q = reinterpret_cast<const float*>(packed);
    const float* keys = reinterpret_cast<const float*>(key_words);
    __m256 acc[Keys][Groups];
#pragma GCC unroll 16
    for (int j = 0; j < Keys; ++j)
#pragma GCC unroll 16
        for (int g = 0; g < Groups; ++g) acc[j][g] = _mm256_setzero_ps();
    for (int i = 0; i < words; ++i) {
        __m256 head[Groups];
#pragma GCC unroll 16
        for (int g = 0; g < Groups; ++g) head[g] = _mm256_load_ps(q + (i * Groups + g) * kLanes);
#pragma GCC unroll 16
        for (int j = 0; j < Keys; ++j) {
            const __m256 key = _mm256_broadcast_ss(keys + j * stride + i);
#pragma GCC unroll 16
            for (int g = 0; g < Groups; ++g) acc[j][g] = _mm256_fmadd_ps(head[g], key, acc[j][g]);
        }
    }
    const __m256 zero = _mm256_setzero_ps();
#pragma GCC unroll 16
    for (int j = 0; j < Keys; ++j) {
        __m256 sum = first ? zero : _mm256_load_ps(sums + kLanes * j);
#pragma GCC unroll 16
        for (int g = 0; g < Groups; ++g) {
            const __m256 relu =
                _mm256_max_ps(zero, acc[j][g]);  // a NaN is the second operand, and the result
            const __m256 more = _mm256_fmadd_ps(relu, _mm256_load_ps(w + kLanes * g), sum);
            // Padded heads stay out: zero times an infinite key would be NaN.
            sum = g + 1 < Groups ? more : _mm256_blendv_ps(sum, more, last);
        }
        _mm256_store_ps(sums + kLanes * j, sum);
    }
}

template <int Groups, int Keys>
inline void score_groups(const uint32_t* q, const float* w, __m256 last, const TileQuery& query,
                         const uint32_t* keys, int n, bool first, const TilesAhead& ahead, float* sums) {
    static_assert(kScoreTile % Keys == 0 && Keys <= kKeys);
    for (int j = 0; j < n; j += Keys) {
        if (first) fetch_ahead(ahead, j, Keys);
        score_block<Groups, Keys>(q, w, last, query.words, keys + int64_t(j) * query.stride, query.stride,
                                  first, sums + kLanes * j);
    }
}

// Sums over the 8 lanes of 8 registers, register i to lane i.
inline __m256 sum_lanes(const float* sums) {
    __m256 four[2];
    for (int i = 0; i < 2; ++i) {
        const float* at = sums + 32 * i;
        const __m256 ab = _mm256_hadd_ps(_mm256_load_ps(at), _mm256_load_ps(at + 8));
        const __m256 cd = _mm256_hadd_ps(_mm256_load_ps(at + 16), _mm256_load_ps(at + 24));
        four[i] = _mm256_hadd_ps(ab, cd);
    }
    return _mm256_add_ps(_mm256_permute2f128_ps(four[0], four[1], 0x20),
                         _mm256_permute2f128_ps(four[0], four[1], 0x31));
}

bool score_tile(const TileQuery& query, const uint32_t* keys, const float* scales, int n,
                const TilesAhead& ahead, float* sums, float* logits) {
    const uint32_t* q = query.packed;
    for (int h = 0; h < query.heads; h += kBlock) {
        const int heads = query.heads - h < kBlock ? query.heads - h : kBlock,
                  groups = (heads + kLanes - 1) / kLanes;
        const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        const __m256 last =
            _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(heads - kLanes * (groups - 1)), lane));
        // 12 accumulators, 2 heads and a key: the most that 16 registers hold.
        if (groups == 2) score_groups<2, 6>(q, query.w + h, last, query, keys, n, h == 0, ahead, sums);
        else score_groups<1, 8>(q, query.w + h, last, query, keys, n, h == 0, ahead, sums);
        q += int64_t(query.words) * groups * kLanes;
    }
    for (int j = 0; j < n; j += kLanes)
        _mm256_storeu_ps(logits + j,
                         _mm256_mul_ps(sum_lanes(sums + kLanes * j), _mm256_loadu_ps(scales + j)));
    return false;
}

// [heads][stride] words -> [block of 16 heads][word][lane], zero where there is no head
void pack_heads(const uint32_t* decoded, int heads, int words, int stride, uint32_t* packed) {
    for (int h = 0; h < heads; h += kBlock) {
        const int block = heads - h < kBlock ? heads - h : kBlock,
                  lanes = (block + kLanes - 1) / kLanes * kLanes;
        if (block < lanes) std::fill(packed, packed + int64_t(words) * lanes, 0u);
        for (int i = 0; i < words; ++i, packed += lanes)
            for (int lane = 0; lane < block; ++lane) packed[lane] = decoded[int64_t(h + lane) * stride + i];
    }
}

// The code's bits in a f32's exponent and mantissa are the value times 2^-120, subnormals included.
inline __m256 e4m3(__m256i code) {
    const __m256i magnitude = _mm256_and_si256(code, _mm256_set1_epi32(0x7f));
    const __m256i sign = _mm256_slli_epi32(_mm256_and_si256(code, _mm256_set1_epi32(0x80)), 24);
    const __m256 value =
        _mm256_mul_ps(_mm256_castsi256_ps(_mm256_or_si256(_mm256_slli_epi32(magnitude, 20), sign)),
                      _mm256_set1_ps(0x1p120f));
    const __m256i nan = _mm256_cmpeq_epi32(magnitude, _mm256_set1_epi32(0x7f));
    return _mm256_blendv_ps(value, _mm256_set1_ps(kNan), _mm256_castsi256_ps(nan));
}

inline __m256 e2m1(__m256i code, uint32_t scale_code) {
    const uint32_t bits = scale_code == 0 ? 0x00400000u : scale_code == 255 ? 0x7fc00000u : scale_code << 23;
    const __m256 magnitudes = _mm256_setr_ps(0.f, 0.5f, 1.f, 1.5f, 2.f, 3.f, 4.f, 6.f);
    const __m256i sign = _mm256_slli_epi32(_mm256_and_si256(code, _mm256_set1_epi32(8)), 28);
    const __m256 value = _mm256_permutevar8x32_ps(magnitudes, code);  // looks at the low three bits
    return _mm256_mul_ps(_mm256_xor_ps(value, _mm256_castsi256_ps(sign)),
                         _mm256_castsi256_ps(_mm256_set1_epi32(int(bits))));
}

__m256 load8(ValueBytes kind, const ValueRow& row, int d) {
    if (kind == ValueBytes::e4m3)
        return e4m3(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(row.values + d))));
    if (kind == ValueBytes::bf16) {
        const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row.values + 2 * d));
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
    }
    uint32_t bytes;  // e2m1: eight codes, the even channel in the low nibble
    std::memcpy(&bytes, row.values + d / 2, 4);
    const __m256i shifts = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
    return e2m1(_mm256_srlv_epi32(_mm256_set1_epi32(int(bytes)), shifts), row.scales[d / 32]);
}

void decode(ValueBytes kind, const ValueRow* rows, int n, int width, int stride, uint32_t* out) {
    for (int j = 0; j < n; ++j, out += stride) {
        if (kind == ValueBytes::f32) {
            std::memcpy(out, rows[j].values, size_t(width) * 4);
            continue;
        }
        float* row = reinterpret_cast<float*>(out);
        const int whole = width / 8 * 8, bytes = kind == ValueBytes::bf16 ? 2 : 1;
        for (int d = 0; d < whole; d += 8) _mm256_store_ps(row + d, load8(kind, rows[j], d));
        if (whole == width) continue;  // e2m1 widths are multiples of 32
        uint8_t rest[16] = {};
        std::memcpy(rest, rows[j].values + whole * bytes, size_t(width - whole) * size_t(bytes));
        _mm256_store_ps(row + whole, load8(kind, {rest, nullptr}, 0));
    }
}

}  // namespace score_avx2

extern const ScoreKernel kScoreAvx2 = {.name = "cpu_avx2_f32_score",
                                       .isa = SMLA_ISA_AVX2,
                                       .lanes = 8,
                                       .bf16_operands = false,
                                       .keys = score_avx2::kKeys,
                                       .decode = score_avx2::decode,
                                       .pack = score_avx2::pack_heads,
                                       .score = score_avx2::score_tile};

}  // namespace smla
