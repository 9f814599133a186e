#include "peaks.h"

#include "core/cpu_features.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <ctime>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace smla::bench {

namespace {

// Median of several runs of `body`, which does `flops` floating-point operations.
template <class Body>
double median_gflops(double flops, const Body& body) {
    const auto now = [] {  // processor time: other load does not count
        timespec time;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
        return double(time.tv_sec) * 1e9 + double(time.tv_nsec);
    };
    std::array<double, 25> rates;
    for (double& rate : rates) {
        const double start = now();
        body();
        rate = flops / (now() - start);
    }
    std::nth_element(rates.begin(), rates.begin() + rates.size() / 2, rates.end());
    return rates[rates.size() / 2];
}

#if defined(__x86_64__)
constexpr int kSteps = 50000, kChains = 20, kChains256 = 12;

// Independent chains, enough to hide the latency (four to six cycles, two a cycle). The sums are named one by
// one: a compiler keeps an array of them in memory.
#define SMLA_CHAINS_12(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
#define SMLA_CHAINS_20(X) SMLA_CHAINS_12(X) X(12) X(13) X(14) X(15) X(16) X(17) X(18) X(19)

__attribute__((target("avx512f,avx512bf16"))) void dot_chains() {
    const __m512i ones = _mm512_set1_epi32(0x3f803f80);
#define SMLA_SUM(i) __m512 a##i = _mm512_setzero_ps();
#define SMLA_STEP(i) asm volatile("vdpbf16ps %1, %1, %0" : "+v"(a##i) : "v"(ones));
    SMLA_CHAINS_20(SMLA_SUM)
    for (int step = 0; step < kSteps; ++step) {
        SMLA_CHAINS_20(SMLA_STEP)
    }
#undef SMLA_STEP
}

__attribute__((target("avx512f"))) void fma512_chains() {
    const __m512 one = _mm512_set1_ps(1.f);
#define SMLA_STEP(i) asm volatile("vfmadd231ps %1, %1, %0" : "+v"(a##i) : "v"(one));
    SMLA_CHAINS_20(SMLA_SUM)
    for (int step = 0; step < kSteps; ++step) {
        SMLA_CHAINS_20(SMLA_STEP)
    }
#undef SMLA_SUM
}

__attribute__((target("avx2,fma"))) void fma256_chains() {
    const __m256 one = _mm256_set1_ps(1.f);
#define SMLA_SUM(i) __m256 a##i = _mm256_setzero_ps();
    SMLA_CHAINS_12(SMLA_SUM)
    for (int step = 0; step < kSteps; ++step) {
        SMLA_CHAINS_12(SMLA_STEP)
    }
#undef SMLA_STEP
#undef SMLA_SUM
}

constexpr int kTileSteps = 10000;

// Four sums of 16 x 16 from two tiles of A and two of B; tdpbf16ps starts every 16 cycles and takes 52.
__attribute__((target("amx-tile,amx-bf16"))) void tile_products() {
    // Static, because gcc 12 treats _tile_loadconfig() as a read of only 8 bytes. The last elements of both
    // arrays are reserved.
    static constexpr struct alignas(64) Config {
        uint8_t palette = 1, start_row = 0, reserved[14] = {};
        uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
        uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } config;
    alignas(64) static const uint16_t ones[16 * 32] = {0x3f80};
    _tile_loadconfig(&config);
    _tile_loadd(4, ones, 64);
    _tile_loadd(5, ones, 64);
    _tile_loadd(6, ones, 64);
    _tile_loadd(7, ones, 64);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int step = 0; step < kTileSteps; ++step) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_release();
}
#endif

using Lanes [[gnu::vector_size(64)]] = uint64_t;  // the registers that this build may use

}  // namespace

double fma_f32_peak() {
#if defined(__x86_64__)
    if (best_isa() >= SMLA_ISA_AVX512) return median_gflops(2.0 * 16 * kChains * kSteps, fma512_chains);
    if (best_isa() >= SMLA_ISA_AVX2) return median_gflops(2.0 * 8 * kChains256 * kSteps, fma256_chains);
#endif
    return 0;
}

double fma_f32_peak_256() {
#if defined(__x86_64__)
    if (best_isa() >= SMLA_ISA_AVX2) return median_gflops(2.0 * 8 * kChains256 * kSteps, fma256_chains);
#endif
    return 0;
}

double dot_bf16_peak() {
#if defined(__x86_64__)
    if (best_isa() >= SMLA_ISA_AVX512_BF16) return median_gflops(4.0 * 16 * kChains * kSteps, dot_chains);
#endif
    return 0;
}

double tile_bf16_peak() {
#if defined(__x86_64__)
    if (best_isa() >= SMLA_ISA_AMX && why_no_tiles().empty())
        return median_gflops(2.0 * 16 * 16 * 32 * 4 * kTileSteps, tile_products);
#endif
    return 0;
}

uint64_t read_in_order(const void* memory, size_t bytes) {
    constexpr int kStreams = 4;  // sums that do not wait for each other
    Lanes sums[kStreams] = {};
    const char* from = static_cast<const char*>(memory);
    for (size_t at = 0; at + sizeof sums <= bytes; at += sizeof sums)
        for (int i = 0; i < kStreams; ++i) {
            Lanes block;
            std::memcpy(&block, from + at + size_t(i) * sizeof block, sizeof block);
            sums[i] += block;
        }
    const Lanes sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    uint64_t out = 0;
    for (size_t i = 0; i < sizeof sum / sizeof out; ++i) out += sum[i];
    return out;
}

}  // namespace smla::bench
