// Rows of e4m3, e2m1 and bf16 as pairs of bf16, which hold all of their values. Words past the width are
// zeros, up to a whole cache line. Each file that includes it names its own namespace, as for lanes_avx512.h.
#pragma once

#ifndef SMLA_LANES_NAMESPACE
#error "name the instruction set: #define SMLA_LANES_NAMESPACE score_avx512_bf16"
#endif

#include "engines/cpu/e4m3_avx512.h"
#include "engines/cpu/score/kernel.h"

#include <immintrin.h>

namespace smla::SMLA_LANES_NAMESPACE {

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

// Any 64 codes as two registers of bf16. The constants are loaded where they are used: in the middle of the
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

inline void decode_e4m3(const ValueRow* rows, int n, int width, int stride, uint32_t* out) {
    const int whole = width / 64 * 64;
    const __mmask64 tail = (uint64_t(1) << (width - whole)) - 1;
    for (int j = 0; j < n; ++j, out += stride) {
        const uint8_t* in = rows[j].values;
        __m512i first, second;
        for (int d = 0; d < whole; d += 64) {
            const __m512i codes = _mm512_loadu_si512(in + d);
            if (avx512::normal_e4m3(codes)) {
                first = avx512::normal_e4m3_words(in + d, 127);
                second = avx512::normal_e4m3_words(in + d + 32, 127);
            } else {
                decode64(codes, first, second);
            }
            _mm512_store_si512(out + d / 2, first);
            _mm512_store_si512(out + d / 2 + 16, second);
        }
        if (tail == 0) continue;
        decode64(_mm512_maskz_loadu_epi8(tail, in + whole), first, second);
        _mm512_store_si512(out + whole / 2, first);
        if (width - whole > 32) _mm512_store_si512(out + whole / 2 + 16, second);
    }
}

inline void decode_e2m1(const ValueRow* rows, int n, int width, int stride, uint32_t* out) {
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

inline void decode_bf16(const ValueRow* rows, int n, int width, int stride, uint32_t* out) {
    for (int j = 0; j < n; ++j, out += stride)
        for (int d = 0; d < width; d += 32) {
            const int left = width - d;
            const __mmask32 mask = left >= 32 ? ~__mmask32(0) : (__mmask32(1) << left) - 1;
            _mm512_store_si512(out + d / 2, _mm512_maskz_loadu_epi16(mask, rows[j].values + 2 * d));
        }
}

inline void decode(ValueBytes kind, const ValueRow* rows, int n, int width, int stride, uint32_t* out) {
    if (kind == ValueBytes::e4m3) decode_e4m3(rows, n, width, stride, out);
    else if (kind == ValueBytes::e2m1) decode_e2m1(rows, n, width, stride, out);
    else decode_bf16(rows, n, width, stride, out);
}

}  // namespace smla::SMLA_LANES_NAMESPACE
