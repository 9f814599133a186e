// Decodes rows of e4m3, e2m1 and bf16 to pairs of bf16, exactly. Words past the width are zeros, up to a
// whole cache line.
#pragma once

#include "engines/cpu/lanes_avx512_bf16.h"
#include "engines/cpu/score/kernel.h"

namespace smla {

namespace {

SMLA_INLINE void decode_e4m3(const ValueRow& row, int width, uint32_t* out) {
    const int whole = width / 64 * 64, rest = width - whole;
    for (int d = 0; d < whole; d += 64) {
        const __m512i codes = _mm512_loadu_si512(row.values + d);
        lanes::store_words(out + d / 2, lanes::normal_e4m3(codes)
                                            ? lanes::normal_e4m3_words(row.values + d, 127)
                                            : lanes::E4m3Table().decode(codes));
    }
    if (rest == 0) return;
    const lanes::Words words =
        lanes::E4m3Table().decode(_mm512_maskz_loadu_epi8((uint64_t(1) << rest) - 1, row.values + whole));
    _mm512_store_si512(out + whole / 2, words.first);
    if (rest > 32) _mm512_store_si512(out + whole / 2 + 16, words.second);
}

SMLA_INLINE void decode_e2m1(const ValueRow& row, int width, uint32_t* out) {
    const uint8_t *const values = row.values, *const scales = row.scales;
    for (int64_t b = 0; b < width / 32; ++b)
        _mm512_store_si512(out + 16 * b, lanes::e2m1_words(values + 16 * b, scales[b]));
}

SMLA_INLINE void decode_bf16(const ValueRow& row, int width, uint32_t* out) {
    for (int d = 0; d < width; d += 32) {
        const int left = width - d;
        const __mmask32 mask = left >= 32 ? ~__mmask32(0) : (__mmask32(1) << left) - 1;
        _mm512_store_si512(out + d / 2, _mm512_maskz_loadu_epi16(mask, row.values + 2 * d));
    }
}

inline void decode_pairs(ValueBytes kind, const ValueRow* rows, int n, int width, int stride, uint32_t* out) {
    for (int j = 0; j < n; ++j, out += stride)
        if (kind == ValueBytes::e4m3) decode_e4m3(rows[j], width, out);
        else if (kind == ValueBytes::e2m1) decode_e2m1(rows[j], width, out);
        else decode_bf16(rows[j], width, out);
}

}  // namespace

}  // namespace smla
