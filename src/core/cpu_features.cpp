#include "core/cpu_features.h"

#include <cstring>

namespace smla {

smla_isa best_isa() {
#if defined(__x86_64__)
    // libgcc's probe reads XCR0 too: a set counts only if the operating system saves its registers.
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (avx512 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi"))
        return SMLA_ISA_AVX512_BF16;
    if (avx512) return SMLA_ISA_AVX512;
    if (avx2) return SMLA_ISA_AVX2;
#endif
    return SMLA_ISA_SCALAR;
}

bool slow_bf16_dots() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    return __builtin_cpu_is("intel");
#else
    return false;
#endif
}

namespace {
constexpr const char* kNames[] = {"auto", "scalar", "avx2", "avx512", "avx512_bf16"};
}

const char* isa_name(smla_isa isa) {
    return isa >= 0 && isa <= SMLA_ISA_AVX512_BF16 ? kNames[isa] : "unknown";
}

smla_isa isa_from_name(const char* name) {
    for (int isa = 1; isa <= SMLA_ISA_AVX512_BF16; ++isa)
        if (std::strcmp(name, kNames[isa]) == 0) return isa;
    return SMLA_ISA_AUTO;
}

}  // namespace smla
