// score with f32 operands on 16-lane registers: any key values, and queries that bf16 cannot hold.
#define SMLA_LANES_NAMESPACE score_avx512
#include "engines/cpu/score/lanes_avx512.h"

#include <cstring>

namespace smla {

namespace score_avx512 {

struct Floats {
    static bool score_and_decode(int, const HeadPass&, const TileQuery&, const uint32_t*, int,
                                 const TilesAhead&, float*) {
        return false;  // decodes nothing on the side
    }
    static __m512 multiply_add(__m512 acc, __m512i head, __m512i key) {
        return _mm512_fmadd_ps(_mm512_castsi512_ps(head), _mm512_castsi512_ps(key), acc);
    }
};

constexpr float kNan = __builtin_nanf("");

// The code's bits in a f32's exponent and mantissa are the value times 2^-120, subnormals included.
inline __m512 e4m3(__m512i code) {
    const __m512i magnitude = _mm512_and_si512(code, _mm512_set1_epi32(0x7f));
    const __m512i sign = _mm512_slli_epi32(_mm512_and_si512(code, _mm512_set1_epi32(0x80)), 24);
    const __m512 value =
        _mm512_mul_ps(_mm512_castsi512_ps(_mm512_or_si512(_mm512_slli_epi32(magnitude, 20), sign)),
                      _mm512_set1_ps(0x1p120f));
    return _mm512_mask_mov_ps(value, _mm512_cmpeq_epi32_mask(magnitude, _mm512_set1_epi32(0x7f)),
                              _mm512_set1_ps(kNan));
}

inline __mmask16 left(int n) { return n >= 16 ? __mmask16(0xffff) : __mmask16((1u << n) - 1); }

void decode_row(ValueBytes kind, const ValueRow& row, int width, uint32_t* out) {
    const __m512 e2m1 = _mm512_setr_ps(0.f, 0.5f, 1.f, 1.5f, 2.f, 3.f, 4.f, 6.f, -0.f, -0.5f, -1.f, -1.5f,
                                       -2.f, -3.f, -4.f, -6.f);
    for (int d = 0; d < width; d += 16) {
        const __mmask16 mask = left(width - d);
        __m512 value;
        if (kind == ValueBytes::e4m3) {
            value = e4m3(_mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(mask, row.values + d)));
        } else if (kind == ValueBytes::bf16) {
            const __m512i bits = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, row.values + 2 * d));
            value = _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
        } else {  // e2m1: eight bytes, the even channel in the low nibble
            const uint32_t code = row.scales[d / 32];
            const uint32_t bits = code == 0 ? 0x00400000u : code == 255 ? 0x7fc00000u : code << 23;
            const __m512i pairs =
                _mm512_cvtepu8_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(row.values + d / 2)));
            const __m512i codes =
                _mm512_or_si512(pairs, _mm512_slli_epi64(pairs, 28));  // low dword: even, high: odd
            value = _mm512_mul_ps(_mm512_permutexvar_ps(codes, e2m1),
                                  _mm512_castsi512_ps(_mm512_set1_epi32(int(bits))));
        }
        _mm512_store_ps(out + d, value);
    }
}

void decode(ValueBytes kind, const ValueRow* rows, int n, int width, int stride, uint32_t* out) {
    for (int j = 0; j < n; ++j, out += stride) {
        if (kind == ValueBytes::f32) std::memcpy(out, rows[j].values, size_t(width) * 4);
        else decode_row(kind, rows[j], width, out);
    }
}

}  // namespace score_avx512

extern const ScoreKernel kScoreAvx512 = {.name = "cpu_avx512_f32_score",
                                         .isa = SMLA_ISA_AVX512,
                                         .lanes = 16,
                                         .bf16_operands = false,
                                         .decode = score_avx512::decode,
                                         .pack = score_avx512::pack_heads,
                                         .score = score_avx512::score_tile<score_avx512::Floats>};

}  // namespace smla
