#include "unit.h"

#include "core/limits.h"
#include "cuda_peaks.h"
#include "peaks.h"

#include <algorithm>
#include <mutex>

namespace smla::cli {

namespace {

constexpr Unit kUnits[] = {
    {"AMX bf16", SMLA_CPU, SMLA_ISA_AMX, bench::tile_bf16_peak},
    {"vdpbf16ps", SMLA_CPU, SMLA_ISA_AVX512_BF16, bench::dot_bf16_peak},
    {"f32 multiply-add, 512 bits", SMLA_CPU, SMLA_ISA_AVX512, bench::fma_f32_peak, false},
    {"f32 multiply-add, 256 bits", SMLA_CPU, SMLA_ISA_AVX2, bench::fma_f32_peak_256, false},
    {"wgmma e4m3", SMLA_CUDA, SMLA_ISA_AUTO, [] { return bench::wgmma_e4m3_peak_tflops() * 1e3; }, false},
    {"wgmma bf16", SMLA_CUDA, SMLA_ISA_AUTO, [] { return bench::wgmma_bf16_peak_tflops() * 1e3; }},
    {"mma.sync bf16", SMLA_CUDA, SMLA_ISA_AUTO, [] { return bench::mma_peak_tflops() * 1e3; }}};
constexpr const Unit &kAmx = kUnits[0], &kDot = kUnits[1], &kWide = kUnits[2], &kNarrow = kUnits[3],
                     &kWgmmaE4m3 = kUnits[4], &kWgmma = kUnits[5], &kMma = kUnits[6];

// The first row whose unit this machine has applies. narrow: only if operands have at most 16 bits.
struct Use {
    const char* kernel;  // prefix of the kernel's name
    const Unit& unit;
    bool e4m3 = false, narrow = false;
};
constexpr Use kUses[] = {{"cuda_sm90_", kWgmmaE4m3, true},
                         {"cuda_sm90_", kWgmma},
                         {"cuda_streamed_", kWgmmaE4m3, true},
                         {"cuda_streamed_", kWgmma},
                         {"cuda_streamed_", kMma},
                         {"cuda_cublaslt_", kWgmma},
                         {"cuda_cublaslt_", kMma},
                         {"cuda_mma_", kMma},
                         {"cpu_amx_", kAmx},
                         {"cpu_avx512_bf16_", kDot},
                         {"cpu_avx512_", kWide},
                         {"cpu_avx2_", kNarrow},
                         {"cpu_streamed_", kAmx, false, true},
                         {"cpu_streamed_", kDot, false, true},
                         {"cpu_streamed_", kWide},
                         {"cpu_streamed_", kNarrow},
                         {"cpu_cblas_", kWide},
                         {"cpu_cblas_", kNarrow}};

bool is_here(const Unit& unit, const Context& context) {
    return unit.device == context.device().type() &&
           (unit.device != SMLA_CPU || unit.isa <= context.env({}).isa);
}

}  // namespace

std::span<const Unit> units() { return kUnits; }

double peak_of(const Unit& unit, Context& context) {
    if (!is_here(unit, context)) return 0;
    Device::Scope scope(context.device());
    if (unit.device != SMLA_CPU) return unit.gflops() * 1e9;
    std::mutex mutex;
    double sum = 0;
    const int threads = std::min(context.pool().threads(), usable_cores());
    context.pool().run(threads, [&](int64_t, int) {
        const double one = unit.gflops() * 1e9;
        std::lock_guard lock(mutex);
        sum += one;
    });
    return sum;
}

const Unit* unit_of(const std::string& kernel, smla_dtype operands, Context& context) {
    for (const Use& use : kUses) {
        if (!kernel.starts_with(use.kernel) || (use.e4m3 && operands != SMLA_E4M3)) continue;
        if (use.narrow && operands != SMLA_BF16 && operands != SMLA_E4M3 && operands != SMLA_E2M1) continue;
        if (peak_of(use.unit, context) > 0) return &use.unit;
    }
    return nullptr;
}

}  // namespace smla::cli
