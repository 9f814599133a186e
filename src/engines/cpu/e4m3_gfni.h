// Converts e4m3 codes of normal numbers to bf16 by affine maps of their bits, for files compiled with GFNI,
// which every processor with tiles has. 64 codes take 5 vector operations, instead of 8 with shifts
// (lanes_avx512_bf16.h).
#pragma once

#include "engines/cpu/lanes_avx512.h"

namespace smla::lanes {

// Returns the matrix of an affine map that moves bit from[7 - i] of a byte to bit i; -1 clears bit i.
consteval uint64_t bit_map(const int (&from)[8]) {
    uint64_t rows = 0;  // byte 7 - i is the mask of bit i
    for (int i = 0; i < 8; ++i)
        if (from[7 - i] >= 0) rows |= uint64_t(1u << from[7 - i]) << (8 * (7 - i));
    return rows;
}

struct NormalE4m3 {  // constants that stay in registers while rows are decoded
    // A bf16 has the exponent e + 120. With e = e3 e2 e1 e0 its bits are e3 ~e3 ~e3 ~e3 ~e3 e2 e1 e0, so the
    // high byte is s e3 ~e3 ~e3 ~e3 ~e3 e2 e1 and the low one e0 m2 m1 m0 0 0 0 0.
    __m512i high = _mm512_set1_epi64(int64_t(bit_map({7, 6, 6, 6, 6, 6, 5, 4})));
    __m512i low = _mm512_set1_epi64(int64_t(bit_map({3, 2, 1, 0, -1, -1, -1, -1})));
    static constexpr int kInverted = 0x3c;  // bits of the high byte
    // Unpacking works on 128-bit parts: part i gets codes 8i.. of the first and of the second half.
    __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);

    [[gnu::always_inline]] inline __m512i load(const void* codes) const {
        return _mm512_permutexvar_epi64(order, _mm512_loadu_si512(codes));
    }
    // Converts 64 loaded codes of normal_e4m3 to bf16.
    [[gnu::always_inline]] inline void decode(__m512i codes, uint32_t* out) const {
        const __m512i upper = _mm512_gf2p8affine_epi64_epi8(codes, high, kInverted),
                      lower = _mm512_gf2p8affine_epi64_epi8(codes, low, 0);
        _mm512_store_si512(out, _mm512_unpacklo_epi8(lower, upper));
        _mm512_store_si512(out + 16, _mm512_unpackhi_epi8(lower, upper));
    }
};

}  // namespace smla::lanes
