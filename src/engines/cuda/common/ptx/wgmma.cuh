// wgmma of sm_90a: products of a warpgroup (4 warps), f32 accumulators in registers, operands in shared
// memory.
//
// A tile is 64 rows of 128 bytes with 128-byte swizzle; 16-byte chunk c of row r is at
// r * 128 + ((c ^ (r & 7)) << 4). Tiles begin at multiples of 1024 bytes. A descriptor names a tile (PTX ISA,
// "matrix descriptor"): address, leading and stride byte offsets in units of 16 bytes, swizzle mode.
//
// Accumulator of m64nN, lane l of warp w, n8-block i: d[4i] and d[4i+1] are row 16w + l/4, columns
// 8i + 2(l%4) and +1; d[4i+2] and d[4i+3] are row + 8.
#pragma once

#include "engines/cuda/common/ptx/half.cuh"

#include <cstdint>

namespace smla::cuda {

constexpr int kTileBytes = 8192;

constexpr uint64_t kSwizzle128 = uint64_t(1) << 62;
__device__ inline uint64_t descriptor(uint32_t at, uint32_t leading_bytes, uint32_t stride_bytes) {
    return uint64_t((at & 0x3ffff) >> 4) | uint64_t(leading_bytes >> 4) << 16 |
           uint64_t(stride_bytes >> 4) << 32 | kSwizzle128;
}
// Tile whose 128-byte rows run along k. The next 16 of k are at + 32 bytes, the next tile at + kTileBytes.
__device__ inline uint64_t k_major(uint32_t at) { return descriptor(at, 16, 1024); }
// Tiles whose rows are k and whose columns are n ("transposed" B). The next 64 of n are at + kTileBytes, the
// next 8 rows at + 1024 bytes, the next 16 of k at + 2048 bytes.
__device__ inline uint64_t n_major(uint32_t at) { return descriptor(at, kTileBytes, 1024); }
// Returns the descriptor of the data `bytes` further on.
__device__ inline uint64_t advanced(uint64_t descriptor, uint32_t bytes) { return descriptor + (bytes >> 4); }

// Required before the first wgmma, and after a write to registers of accumulators or operands.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most `Pending` groups of wgmma are incomplete.
template <int Pending>
__device__ inline void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}
// Makes threads' writes to shared memory visible to wgmma and bulk copies.
__device__ inline void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Stores four 8x8 matrices of 16-bit values. Lanes 8i to 8i + 7 pass the addresses of the rows of matrix i.
__device__ inline void stmatrix_x4(uint32_t at, const uint32_t* values) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(values[0]),
                 "r"(values[1]), "r"(values[2]), "r"(values[3])
                 : "memory");
}

// Stores each matrix transposed: lane 8i + j passes the address of column j of matrix i.
__device__ inline void stmatrix_x4_trans(uint32_t at, const uint32_t* values) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at),
                 "r"(values[0]), "r"(values[1]), "r"(values[2]), "r"(values[3])
                 : "memory");
}

// Sets the registers per thread of the calling warpgroup; all four warps must call this.
template <int Registers>
__device__ inline void raise_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}
template <int Registers>
__device__ inline void lower_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}

#define SMLA_F8(d, i)                                                                           \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
        "+f"(d[i + 6]), "+f"(d[i + 7])
#define SMLA_F32(d, i) SMLA_F8(d, i), SMLA_F8(d, i + 8), SMLA_F8(d, i + 16), SMLA_F8(d, i + 24)
#define SMLA_F128(d) SMLA_F32(d, 0), SMLA_F32(d, 32), SMLA_F32(d, 64), SMLA_F32(d, 96)
#define SMLA_LIST32                                                                                      \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26," \
    "%27,%28,%29,%30,%31"
#define SMLA_LIST128                                                                                         \
    SMLA_LIST32                                                                                              \
    ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,"  \
    "%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,"   \
    "%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105," \
    "%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,"   \
    "%126,%127"
#define SMLA_WGMMA(n, type) "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {"

// d [64,64] (+)= A [64,16] B [64,16]^T, both k-major in shared memory. d is overwritten unless `accumulate`.
template <Half Type>
__device__ inline void wgmma_n64(float (&d)[32], uint64_t a, uint64_t b, bool accumulate) {
#define SMLA_RUN(type)                                                                            \
    asm volatile("{.reg .pred sum;\n setp.ne.b32 sum, %34, 0;\n" SMLA_WGMMA(64, type) SMLA_LIST32 \
                 "}, %32, %33, sum, 1, 1, 0, 0;}"                                                 \
                 : SMLA_F32(d, 0)                                                                 \
                 : "l"(a), "l"(b), "r"(int(accumulate)))
    if constexpr (Type == Half::bf16) SMLA_RUN("bf16");
    else SMLA_RUN("f16");
#undef SMLA_RUN
}

// d [64,256] += A [64,16] B [16,256]; A k-major, B n-major in shared memory.
template <Half Type>
__device__ inline void wgmma_n256(float (&d)[128], uint64_t a, uint64_t b) {
#define SMLA_RUN(type)                                                              \
    asm volatile(SMLA_WGMMA(256, type) SMLA_LIST128 "}, %128, %129, 1, 1, 1, 0, 1;" \
                 : SMLA_F128(d)                                                     \
                 : "l"(a), "l"(b))
    if constexpr (Type == Half::bf16) SMLA_RUN("bf16");
    else SMLA_RUN("f16");
#undef SMLA_RUN
}
// d += A B with A in registers: a[0] row l/4, columns 2(l%4) and +1; a[1] row + 8; a[2], a[3] columns + 8.
template <Half Type>
__device__ inline void wgmma_n256(float (&d)[128], const uint32_t* a, uint64_t b) {
#define SMLA_RUN(type)                                                                               \
    asm volatile(SMLA_WGMMA(256, type) SMLA_LIST128 "}, {%128, %129, %130, %131}, %132, 1, 1, 1, 1;" \
                 : SMLA_F128(d)                                                                      \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
    if constexpr (Type == Half::bf16) SMLA_RUN("bf16");
    else SMLA_RUN("f16");
#undef SMLA_RUN
}

// d [64,N] (+)= A [64,16] B [N,16]^T, N = 16 or 32; A in registers as above, B k-major in tiles of N rows.
template <Half Type>
__device__ inline void wgmma_few(float (&d)[8], const uint32_t* a, uint64_t b, bool accumulate) {
#define SMLA_RUN(type)                                                                          \
    asm volatile("{.reg .pred sum;\n setp.ne.b32 sum, %13, 0;\n" SMLA_WGMMA(                    \
                     16, type) "%0,%1,%2,%3,%4,%5,%6,%7}, {%8,%9,%10,%11}, %12, sum, 1, 1, 0;}" \
                 : SMLA_F8(d, 0)                                                                \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(accumulate)))
    if constexpr (Type == Half::bf16) SMLA_RUN("bf16");
    else SMLA_RUN("f16");
#undef SMLA_RUN
}
template <Half Type>
__device__ inline void wgmma_few(float (&d)[16], const uint32_t* a, uint64_t b, bool accumulate) {
#define SMLA_RUN(type) \
    asm volatile("{.reg .pred sum;\n setp.ne.b32 sum, %21, 0;\n" SMLA_WGMMA(                            \
                     32, type) "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, "               \
                               "{%16,%17,%18,%19}, %20, sum, 1, 1, 0;}"                                 \
                 : SMLA_F8(d, 0), SMLA_F8(d, 8)                                                         \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(accumulate)))
    if constexpr (Type == Half::bf16) SMLA_RUN("bf16");
    else SMLA_RUN("f16");
#undef SMLA_RUN
}

#undef SMLA_F8
#undef SMLA_F32
#undef SMLA_F128
#undef SMLA_LIST32
#undef SMLA_LIST128
#undef SMLA_WGMMA

}  // namespace smla::cuda
