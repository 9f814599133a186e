// wgmma with keys in registers: d [64,N] (+)= A [64,K] B [N,K]^T, both k-major, B in shared memory.
//
// A, lane l of warp w: a[0] and a[1] are rows 16w + l/4 and + 8 at bytes 4(l%4) to + 3 of k; a[2] and a[3]
// are these rows 16 bytes further on. For the accumulator, see common/ptx/wgmma.cuh.
#pragma once

#include "engines/cuda/common/ptx/wgmma.cuh"

namespace smla::cuda::sm90 {

#define SMLA_D8(d, i)                                                                           \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
        "+f"(d[i + 6]), "+f"(d[i + 7])
#define SMLA_D32(d, i) SMLA_D8(d, i), SMLA_D8(d, i + 8), SMLA_D8(d, i + 16), SMLA_D8(d, i + 24)
#define SMLA_NAMES32                                                                                       \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, " \
    "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SMLA_NAMES64                                                                                         \
    SMLA_NAMES32                                                                                             \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, " \
    "%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
// The accumulators are followed by four operands of keys, the queries and `accumulate`. `flags` are the signs
// and, for 16-bit types, that queries are not transposed.
#define SMLA_MULTIPLY(types, sums, keys, queries_at, accumulate_at, flags, ...)                \
    asm volatile("{.reg .pred sum;\n setp.ne.b32 sum, %" accumulate_at                         \
                 ", 0;\n"                                                                      \
                 "wgmma.mma_async.sync.aligned." types " {" sums "}, {" keys "}, %" queries_at \
                 ", sum, " flags ";}"                                                          \
                 : __VA_ARGS__                                                                 \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(queries), "r"(int(accumulate)))

// Multiplies 32 of k, e4m3. The tensor cores of sm_90 add these products with about 14 bits.
__device__ inline void wgmma_e4m3(float (&d)[32], const uint32_t (&a)[4], uint64_t queries, bool accumulate) {
    SMLA_MULTIPLY("m64n64k32.f32.e4m3.e4m3", SMLA_NAMES32, "%32, %33, %34, %35", "36", "37", "1, 1",
                  SMLA_D32(d, 0));
}
__device__ inline void wgmma_e4m3(float (&d)[64], const uint32_t (&a)[4], uint64_t queries, bool accumulate) {
    SMLA_MULTIPLY("m64n128k32.f32.e4m3.e4m3", SMLA_NAMES64, "%64, %65, %66, %67", "68", "69", "1, 1",
                  SMLA_D32(d, 0), SMLA_D32(d, 32));
}
// wgmma_e4m3 with keys in shared memory.
__device__ inline void wgmma_e4m3(float (&d)[32], uint64_t keys, uint64_t queries, bool accumulate) {
    asm volatile(
        "{.reg .pred sum;\n setp.ne.b32 sum, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {" SMLA_NAMES32 "}, %32, %33, sum, 1, 1;}"
        : SMLA_D32(d, 0)
        : "l"(keys), "l"(queries), "r"(int(accumulate)));
}
__device__ inline void wgmma_e4m3(float (&d)[64], uint64_t keys, uint64_t queries, bool accumulate) {
    asm volatile(
        "{.reg .pred sum;\n setp.ne.b32 sum, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {" SMLA_NAMES64 "}, %64, %65, sum, 1, 1;}"
        : SMLA_D32(d, 0), SMLA_D32(d, 32)
        : "l"(keys), "l"(queries), "r"(int(accumulate)));
}
// Multiplies 16 of k.
template <Half Type>
__device__ inline void wgmma_half(float (&d)[32], const uint32_t (&a)[4], uint64_t queries, bool accumulate) {
    if constexpr (Type == Half::f16)
        SMLA_MULTIPLY("m64n64k16.f32.f16.f16", SMLA_NAMES32, "%32, %33, %34, %35", "36", "37", "1, 1, 0",
                      SMLA_D32(d, 0));
    else
        SMLA_MULTIPLY("m64n64k16.f32.bf16.bf16", SMLA_NAMES32, "%32, %33, %34, %35", "36", "37", "1, 1, 0",
                      SMLA_D32(d, 0));
}

#undef SMLA_D8
#undef SMLA_D32
#undef SMLA_NAMES32
#undef SMLA_NAMES64
#undef SMLA_MULTIPLY

}  // namespace smla::cuda::sm90
