// Loads that keep their place, so that several are under way before the first is used.
#pragma once

namespace smla::cuda {

// Zeros where `wanted` is false, and then nothing is read.
__device__ inline float4 load_16_if(const float4* from, bool wanted) {
    float4 out;
    asm volatile(
        "{.reg .pred p;\n"
        "setp.ne.s32 p, %5, 0;\n"
        "mov.f32 %0, 0f00000000; mov.f32 %1, 0f00000000; mov.f32 %2, 0f00000000; mov.f32 %3, 0f00000000;\n"
        "@p ld.global.v4.f32 {%0, %1, %2, %3}, [%4];}"
        : "=&f"(out.x), "=&f"(out.y), "=&f"(out.z), "=&f"(out.w)
        : "l"(from), "r"(int(wanted))
        : "memory");
    return out;
}

}  // namespace smla::cuda
