// The attend kernels of the CPU engine.
#include "core/cpu_features.h"
#include "engines/cpu/attend/plan.h"
#include "engines/cpu/candidates.h"
#include "engines/cpu/generic.h"

namespace smla {

namespace {

using namespace cpu_attend;
using Args = smla_attend_args;

// Kernels with a fixed distance between keys support at most kWidest values per key.
Support supports_f32(const Micro& micro, smla_isa isa, const Args& args, const Env& env) {
    if (std::string why = why_no_isa(isa, env.isa); !why.empty()) return {why};
    if (args.q.dtype == SMLA_F64) return {"f64 queries are supported only by the generic kernel"};
    if (micro.row_words && args.q.shape[2] > kWidest)
        return {text("keys of ", args.q.shape[2], " values are wider than the limit of ", kWidest)};
    return {};
}

// Decoders into pairs of bf16 write 64 values at a time.
Support supports_bf16(smla_isa isa, const Args& args, const Env& env) {
    if (std::string why = why_no_isa(isa, env.isa); !why.empty()) return {why};
    const int width = int(args.q.shape[2]), values = int(args.out.shape[2]);
    if (width > kWidest || width % 64 || values % 64)
        return {text("it requires widths that are multiples of 64 up to ", kWidest, ", got keys of ", width,
                     " and values of ", values)};
    if (args.q.dtype != SMLA_BF16 && args.q.dtype != SMLA_E4M3)
        return {text("q must be bf16, got ", dtype_name(args.q.dtype))};
    for (const smla_attend_source* source : {&args.primary, &args.extra}) {
        const Format* const format = find_format(source->cache.format);
        if (!format) continue;
        if (format->id == SMLA_ROW_F32) return {"row_f32 keys cannot be converted to bf16 exactly"};
#if defined(__x86_64__)
        if (!kAvx512Bf16.decoder(format->id, width).rows)
            return {text(format->name, " keys are not supported")};
#endif
    }
    if (isa == SMLA_ISA_AMX) return {why_no_tiles()};
    return {.lower_priority = slow_bf16_dots_here(env)};
}

template <const Micro& M, smla_isa Isa>
constexpr Candidate<Args> kernel(const char* name) {
    return {.name = name, .plan = [](const Args& args, const Env& env) {
                CallPlan<Args> plan{M.values_per_word == 2 ? supports_bf16(Isa, args, env)
                                                           : supports_f32(M, Isa, args, env)};
                if (!plan.refusal.empty()) return plan;
                const Plan cut(args, M, env, env.budget);
                plan.scratch = cut.workspace();
                plan.launch = [cut](const Args& call, const Env& on) { run(call, cut, on); };
                return plan;
            }};
}

}  // namespace

#if defined(__x86_64__)
const Candidate<Args> cpu::kAmxAttend = kernel<kAmx, SMLA_ISA_AMX>("cpu_amx_attend");
const Candidate<Args> cpu::kAvx512Bf16Attend =
    kernel<kAvx512Bf16, SMLA_ISA_AVX512_BF16>("cpu_avx512_bf16_attend");
const Candidate<Args> cpu::kAvx512Attend = kernel<kAvx512F32, SMLA_ISA_AVX512>("cpu_avx512_f32_attend");
const Candidate<Args> cpu::kAvx2Attend = kernel<kAvx2F32, SMLA_ISA_AVX2>("cpu_avx2_f32_attend");
#endif
#if defined(__aarch64__)
const Candidate<Args> cpu::kNeonAttend = kernel<kNeonF32, SMLA_ISA_NEON>("cpu_neon_f32_attend");
#endif
const Candidate<Args> cpu::kScalarAttend = kernel<kScalarF32, SMLA_ISA_SCALAR>("cpu_scalar_f32_attend");

}  // namespace smla
