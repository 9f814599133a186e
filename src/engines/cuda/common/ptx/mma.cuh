// mma.sync m16n8k16 on bf16 or f16 with f32 accumulators, ldmatrix, and packing of operands.
//   A [16,16]: a0 row lane/4, columns 2*(lane%4) and +1; a1 row + 8; a2, a3: columns + 8
//   B [16,8]:  b0 rows 2*(lane%4) and +1, column lane/4; b1 rows + 8
//   C [16,8]:  c0, c1 row lane/4, columns 2*(lane%4) and +1; c2, c3 row + 8
#pragma once

#include <cstdint>

namespace smla::cuda {

__device__ inline void mma_bf16(float* c, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline void mma_f16(float* c, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Loads four 8x8 matrices of 16-bit values. Lanes 8i to 8i + 7 pass the 16-byte-row addresses of matrix i.
__device__ inline void ldmatrix_x4(uint32_t (&r)[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}
__device__ inline void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

// c += a * B for B [16,16] bf16, row-major in shared memory; c[0] has columns 0 to 7, c[1] 8 to 15. `at` is
// the address of row lane % 16, column 8 * (lane / 16).
__device__ inline void mma_bf16_rows(float (&c)[2][4], const uint32_t (&a)[4], uint32_t at) {
    uint32_t b[4];
    ldmatrix_x4_trans(b, at);
    mma_bf16(c[0], a, b[0], b[1]);
    mma_bf16(c[1], a, b[2], b[3]);
}

// Rounds two values to bf16; `low` is the low half.
__device__ inline uint32_t pack_bf16(float low, float high) {
    uint32_t out;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
    return out;
}
__device__ inline uint32_t pack_f16(float low, float high) {
    uint32_t out;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
    return out;
}

}  // namespace smla::cuda
