#include "core/cpu_features.h"

#include "core/status.h"

#include <atomic>
#include <cstring>

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <cerrno>
#endif

namespace smla {

namespace {

constexpr const char* kNames[] = {"auto", "scalar", "avx2", "avx512", "avx512_bf16", "amx", "neon"};
static_assert(sizeof kNames / sizeof *kNames == kLastIsa + 1);

std::atomic<bool> tiles_assumed{false};

#if defined(__x86_64__)
bool has_tiles() {
    if (tiles_assumed) return true;
    unsigned a, b, c, d;
    constexpr unsigned bf16 = 1u << 22, tile = 1u << 24;
    constexpr unsigned gfni = 1u << 8;  // bit of ecx; the files for AMX tiles also use GFNI
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & bf16) && (d & tile) && (c & gfni);
}
#endif

std::string ask_for_tiles() {
#if defined(__x86_64__) && defined(__linux__)
    // ARCH_REQ_XCOMP_PERM and the state component XTILEDATA of arch/x86/include/uapi/asm/prctl.h
    constexpr long request_permission = 0x1023, tile_data = 18;
    if (syscall(SYS_arch_prctl, request_permission, tile_data) == 0) return "";
    return std::string("the operating system does not permit AMX tile data (arch_prctl: ") +
           std::strerror(errno) + ")";
#else
    return "AMX kernels run only on Linux";
#endif
}

}  // namespace

smla_isa best_isa() {
#if defined(__x86_64__)
    // libgcc's probe also reads XCR0: it reports a set only if the operating system saves its registers.
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (avx512 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi"))
        return has_tiles() ? SMLA_ISA_AMX : SMLA_ISA_AVX512_BF16;
    if (avx512) return SMLA_ISA_AVX512;
    if (avx2) return SMLA_ISA_AVX2;
    return SMLA_ISA_SCALAR;
#elif defined(__aarch64__)
    return SMLA_ISA_NEON;
#else
    return SMLA_ISA_SCALAR;
#endif
}

std::vector<smla_isa> isas_here() {
    const smla_isa best = best_isa();
    if (best == SMLA_ISA_NEON) return {SMLA_ISA_SCALAR, SMLA_ISA_NEON};
    std::vector<smla_isa> out;
    for (smla_isa isa = SMLA_ISA_SCALAR; isa <= best; ++isa) out.push_back(isa);
    return out;
}

bool slow_bf16_dots() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    return __builtin_cpu_is("intel");
#else
    return false;
#endif
}

const char* isa_name(smla_isa isa) { return isa >= 0 && isa <= kLastIsa ? kNames[isa] : "unknown"; }

std::string why_no_isa(smla_isa needed, smla_isa here) {
    return here < needed ? text("it requires ", isa_name(needed), "; the context uses ", isa_name(here)) : "";
}

smla_isa isa_from_name(const char* name) {
    for (smla_isa isa = SMLA_ISA_SCALAR; isa <= kLastIsa; ++isa)
        if (strcasecmp(name, kNames[isa]) == 0) return isa;
    return SMLA_ISA_AUTO;
}

std::string isa_names(const std::vector<smla_isa>& isas) {
    std::string out;
    for (size_t i = 0; i < isas.size(); ++i) {
        if (i > 0) out += i + 1 == isas.size() ? " or " : ", ";
        out += isa_name(isas[i]);
    }
    return out;
}

std::string why_no_tiles() {
    if (tiles_assumed) return "";
    static const std::string why = ask_for_tiles();
    return why;
}

void assume_tiles() { tiles_assumed = true; }

}  // namespace smla
