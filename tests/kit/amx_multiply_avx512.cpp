#include "kit/amx_multiply.h"

#if defined(__x86_64__)

#include <cstring>

#include <immintrin.h>

namespace smla::kit {

namespace {

typedef int32_t Words __attribute__((vector_size(64)));

// Sums even and odd products separately, with one rounding per step, and adds the two sums at the end. The
// caller sets the rounding mode; this is a separate function, so that no product is computed before that.
__attribute__((target("avx512f"), noinline)) void multiply_rows(TileRows& sum, const TileRows& a,
                                                                const TileRows& b, int rows, int pairs,
                                                                int row_bytes) {
    for (int m = 0; m < rows; ++m) {
        __m512 even = _mm512_setzero_ps(), odd = even;
        for (int k = 0; k < pairs; ++k) {
            int32_t word;
            std::memcpy(&word, a[m] + 4 * k, sizeof word);
            const Words left = Words{} + word, right = Words(_mm512_load_si512(b[k]));
            const int32_t high_half = int32_t(0xffff0000u);
            even = _mm512_fmadd_ps(__m512(left << 16), __m512(right << 16), even);
            odd = _mm512_fmadd_ps(__m512(left & high_half), __m512(right & high_half), odd);
        }
        _mm512_store_ps(sum[m], _mm512_load_ps(sum[m]) + (even + odd));
        std::memset(sum[m] + row_bytes, 0, size_t(kRowBytes - row_bytes));
    }
    for (int m = rows; m < kRows; ++m) std::memset(sum[m], 0, kRowBytes);
}

}  // namespace

void multiply_tiles(TileRows& sum, const TileRows& a, const TileRows& b, int rows, int pairs, int row_bytes) {
    const unsigned before = _mm_getcsr();
    constexpr unsigned masked = 0x1f80, zeros_for_denormals = 0x8040;  // rounding to nearest even
    _mm_setcsr(masked | zeros_for_denormals);
    multiply_rows(sum, a, b, rows, pairs, row_bytes);
    _mm_setcsr(before);
}

}  // namespace smla::kit

#endif
