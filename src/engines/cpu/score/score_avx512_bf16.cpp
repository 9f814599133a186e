// score with bf16 operands: e4m3, e2m1 and bf16 values are exact in bf16, products are exact in f32, and
// vdpbf16ps adds two of them per lane (it flushes subnormal operands and results to zero: below 2^-126, far
// under f32 rounding).
#define SMLA_LANES_NAMESPACE score_avx512_bf16
#include "engines/cpu/score/lanes_avx512.h"

#include <cstring>

namespace smla {

namespace score_avx512_bf16 {

struct Bf16Pairs {
    static __m512 multiply_add(__m512 acc, __m512i head, __m512i key) {
        return _mm512_dpbf16_ps(acc, (__m512bh)head, (__m512bh)key);
    }
    static bool score_and_decode(int groups, const HeadPass& pass, const TileQuery& query,
                                 const uint32_t* keys, int n, const TilesAhead& ahead, float* sums);
};

// The high and low byte of the bf16 of e4m3 codes 0..127: a table, because shifting the code loses the
// subnormals and NaN.
struct E4m3Table {
    alignas(64) uint8_t high[128], low[128];

    constexpr E4m3Table() : high(), low() {
        for (int code = 0; code < 128; ++code) {
            int exponent = code >> 3, mantissa = code & 7;
            uint32_t bits = uint32_t(exponent + 120) << 7 | uint32_t(mantissa) << 4;
            if (exponent == 0) {  // mantissa * 2^-9, normalised
                int shift = 0;
                while (mantissa != 0 && mantissa < 8) mantissa <<= 1, ++shift;
                bits = mantissa == 0 ? 0 : uint32_t(121 - shift) << 7 | uint32_t(mantissa & 7) << 4;
            }
            if (code == 127) bits = 0x7fc0;
            high[code] = uint8_t(bits >> 8);
            low[code] = uint8_t(bits);
        }
    }
};
constexpr E4m3Table kTable;

// 64 codes as two registers of bf16. The constants are loaded where they are used: in the middle of the
// products there are three registers to spare.
inline void decode64(__m512i codes, __m512i& first, __m512i& second) {
    // Eight codes to the low half of each 128-bit lane and eight to the high half, so that unpacking keeps
    // the order.
    codes = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7), codes);
    __m512i high =
        _mm512_permutex2var_epi8(_mm512_load_si512(kTable.high), codes, _mm512_load_si512(kTable.high + 64));
    const __m512i low =
        _mm512_permutex2var_epi8(_mm512_load_si512(kTable.low), codes, _mm512_load_si512(kTable.low + 64));
    high =
        _mm512_ternarylogic_epi64(high, codes, _mm512_set1_epi8(char(0x80)), 0xf8);  // high | (codes & sign)
    first = _mm512_unpacklo_epi8(low, high);
    second = _mm512_unpackhi_epi8(low, high);
}

void decode_e4m3(const ValueRow* rows, int n, int width, int stride, uint32_t* out) {
    const int whole = width / 64 * 64;
    const __mmask64 tail = (uint64_t(1) << (width - whole)) - 1;
    for (int j = 0; j < n; ++j, out += stride) {
        const uint8_t* in = rows[j].values;
        __m512i first, second;
        for (int d = 0; d < whole; d += 64) {
            decode64(_mm512_loadu_si512(in + d), first, second);
            _mm512_store_si512(out + d / 2, first);
            _mm512_store_si512(out + d / 2 + 16, second);
        }
        if (tail == 0) continue;
        decode64(_mm512_maskz_loadu_epi8(tail, in + whole), first, second);
        _mm512_store_si512(out + whole / 2, first);
        if (width - whole > 32) _mm512_store_si512(out + whole / 2 + 16, second);
    }
}

// Between the products of 128 channels: decodes rows of the next tile, as many as a block has keys, and
// fetches as many of the tile after it, a cache line at a time: in one burst they fill the miss queue and
// stall the products.
template <int Keys>
struct DecodeE4m3 {
    static constexpr int steps = 2 * Keys, words = 64 / steps;  // half a row a step
    static constexpr bool fetches = true;

    const TilesAhead& ahead;
    int stride, row = 0;

    void start(int first) { row = first; }
    void step(int i) {
        const int j = row + i / 2, half = i % 2;
        __m512i first, second;
        decode64(_mm512_loadu_si512(ahead.rows[j < ahead.n ? j : ahead.n - 1].values + 64 * half), first,
                 second);
        uint32_t* out = ahead.out + int64_t(j) * stride + 32 * half;
        _mm512_store_si512(out, first);
        _mm512_store_si512(out + 16, second);
        if (j >= ahead.fetch_rows) return;
        __builtin_prefetch(ahead.fetch[j].values + 64 * half, 0, 2);
        if (half == 0) __builtin_prefetch(ahead.fetch[j].scales, 0, 2);
    }
};

bool Bf16Pairs::score_and_decode(int groups, const HeadPass& pass, const TileQuery& query,
                                 const uint32_t* keys, int n, const TilesAhead& ahead, float* sums) {
    // 64 heads: with fewer there are more keys per block, and no registers left for their rows and the
    // decoding. Each block of this tile decodes as many rows of the next, which must not have more.
    constexpr int kKeys = 6;
    if (groups != 4 || ahead.kind != ValueBytes::e4m3 || ahead.width != 128 || ahead.n == 0 || ahead.n > n)
        return false;
    score_groups<Bf16Pairs, 4, kKeys>(pass, query, keys, n, ahead, sums,
                                      DecodeE4m3<kKeys>{ahead, query.stride});
    return true;
}

void decode_e2m1(const ValueRow* rows, int n, int width, int stride, uint32_t* out) {
    const __m512 values = _mm512_setr_ps(0.f, 0.5f, 1.f, 1.5f, 2.f, 3.f, 4.f, 6.f, -0.f, -0.5f, -1.f, -1.5f,
                                         -2.f, -3.f, -4.f, -6.f);
    for (int j = 0; j < n; ++j, out += stride)
        for (int d = 0; d < width; d += 32) {  // both nibbles of 16 bytes
            const uint32_t code = rows[j].scales[d / 32];
            // 2^(code - 127): 0 is 2^-127, a subnormal; 255 is NaN
            const uint32_t bits = code == 0 ? 0x00400000u : code == 255 ? 0x7fc00000u : code << 23;
            const __m512 scale = _mm512_castsi512_ps(_mm512_set1_epi32(int(bits)));
            const __m512i bytes = _mm512_cvtepu8_epi32(
                _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[j].values + d / 2)));
            // vpermps looks at the low four bits of each index
            const __m512 even = _mm512_mul_ps(_mm512_permutexvar_ps(bytes, values), scale);
            const __m512 odd =
                _mm512_mul_ps(_mm512_permutexvar_ps(_mm512_srli_epi32(bytes, 4), values), scale);
            const __m512i pair =
                _mm512_ternarylogic_epi32(_mm512_srli_epi32(_mm512_castps_si512(even), 16),
                                          _mm512_castps_si512(odd), _mm512_set1_epi32(int(0xffff0000)),
                                          0xf8);  // a | (b & c)
            _mm512_store_si512(out + d / 2, pair);
        }
}

void decode_bf16(const ValueRow* rows, int n, int width, int stride, uint32_t* out) {
    for (int j = 0; j < n; ++j, out += stride) {
        std::memcpy(out, rows[j].values, size_t(width) * 2);
        if (width % 2) reinterpret_cast<uint16_t*>(out)[width] = 0;
    }
}

void decode(ValueBytes kind, const ValueRow* rows, int n, int width, int stride, uint32_t* out) {
    if (kind == ValueBytes::e4m3) decode_e4m3(rows, n, width, stride, out);
    else if (kind == ValueBytes::e2m1) decode_e2m1(rows, n, width, stride, out);
    else decode_bf16(rows, n, width, stride, out);
}

}  // namespace score_avx512_bf16

extern const ScoreKernel kScoreAvx512Bf16 = {
    .name = "cpu_avx512_bf16_score",
    .isa = SMLA_ISA_AVX512_BF16,
    .lanes = 16,
    .bf16_operands = true,
    .decode = score_avx512_bf16::decode,
    .pack = score_avx512_bf16::pack_heads,
    .score = score_avx512_bf16::score_tile<score_avx512_bf16::Bf16Pairs>};

}  // namespace smla
