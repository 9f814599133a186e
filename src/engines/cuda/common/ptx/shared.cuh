// Loads and stores of shared memory by 32-bit address. With generic pointers the compiler rereads a special
// register under register pressure.
#pragma once

#include <cstdint>

namespace smla::cuda {

// Hides a value from the optimizer: the value stays in a register instead of being recomputed at each use,
// and expressions derived from the value are recomputed at each use instead of kept across a loop.
__device__ inline uint32_t keep(uint32_t value) {
    asm volatile("" : "+r"(value));
    return value;
}

__device__ inline uint32_t load_shared(uint32_t at) {
    uint32_t out;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(out) : "r"(at) : "memory");
    return out;
}
__device__ inline float load_shared_f32(uint32_t at) { return __uint_as_float(load_shared(at)); }
__device__ inline uint2 load_shared_2(uint32_t at) {
    uint2 out;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(out.x), "=r"(out.y) : "r"(at) : "memory");
    return out;
}
__device__ inline uint4 load_shared_4(uint32_t at) {
    uint4 out;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out.x), "=r"(out.y), "=r"(out.z), "=r"(out.w)
                 : "r"(at)
                 : "memory");
    return out;
}
__device__ inline uint32_t load_shared_byte(uint32_t at) {
    uint32_t out;
    asm volatile("ld.shared.u8 %0, [%1];" : "=r"(out) : "r"(at) : "memory");
    return out;
}
__device__ inline float load_shared_f16(uint32_t at) {
    float out;
    asm volatile("{.reg .b16 half;\n ld.shared.b16 half, [%1];\n cvt.f32.f16 %0, half;}"
                 : "=f"(out)
                 : "r"(at)
                 : "memory");
    return out;
}
__device__ inline void store_shared(uint32_t at, uint32_t value) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(value) : "memory");
}
__device__ inline void store_shared(uint32_t at, uint16_t value) {
    asm volatile("st.shared.u16 [%0], %1;" ::"r"(at), "h"(value) : "memory");
}
__device__ inline void store_shared(uint32_t at, float value) { store_shared(at, __float_as_uint(value)); }
__device__ inline void store_shared(uint32_t at, const uint2& value) {
    asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(at), "r"(value.x), "r"(value.y) : "memory");
}
__device__ inline void store_shared(uint32_t at, const uint4& value) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(value.x), "r"(value.y),
                 "r"(value.z), "r"(value.w)
                 : "memory");
}
// Stores without a branch.
__device__ inline void store_shared_if(bool condition, uint32_t at, uint32_t value) {
    asm volatile("{.reg .pred here;\n setp.ne.u32 here, %0, 0;\n @here st.shared.u32 [%1], %2;}" ::"r"(
                     uint32_t(condition)),
                 "r"(at), "r"(value)
                 : "memory");
}
// Adds atomically and returns the previous value.
__device__ inline uint32_t add_shared(uint32_t at, uint32_t value) {
    uint32_t before;
    asm volatile("atom.shared.add.u32 %0, [%1], %2;" : "=r"(before) : "r"(at), "r"(value) : "memory");
    return before;
}
__device__ inline void min_shared(uint32_t at, uint32_t value) {
    asm volatile("red.shared.min.u32 [%0], %1;" ::"r"(at), "r"(value) : "memory");
}
__device__ inline void store_shared_byte(uint32_t at, uint32_t value) {
    asm volatile("st.shared.u8 [%0], %1;" ::"r"(at), "r"(value) : "memory");
}

}  // namespace smla::cuda
