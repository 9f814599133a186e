// The attend kernels of the cpu engine. cpu_avx512_bf16_attend_576 multiplies pairs of bf16 for keys of 576
// values.
#include "core/cpu_features.h"
#include "engines/cpu/attend/run.h"
#include "engines/cpu/candidates.h"
#include "engines/cpu/generic.h"

namespace smla {

namespace {

using namespace cpu_attend;
using Args = smla_attend_args;

constexpr int kValueWidth = 512;  // of the models whose widths have kernels of their own

std::string refuse_f64(const Args& args) {
    return args.q.dtype == SMLA_F64 ? "f64 queries: the generic kernel computes in double" : "";
}

std::string refuse_dims(const Args& args, const Env& env, smla_isa isa, int width) {
    if (std::string why = why_no_isa(isa, env.isa); !why.empty()) return why;
    if (args.q.shape[2] != width || args.out.shape[2] != kValueWidth)
        return text("for keys of ", width, " and values of ", kValueWidth, " values, got ", args.q.shape[2],
                    " and ", args.out.shape[2]);
    return refuse_f64(args);
}

template <int Width>
std::string refuse_bf16(const Args& args, const Env& env, smla_isa isa) {
    const std::string dims = refuse_dims(args, env, isa, Width);
    if (!dims.empty()) return dims;
    if (args.q.dtype != SMLA_BF16 && args.q.dtype != SMLA_E4M3)
        return text("q must hold bf16 values, got ", dtype_name(args.q.dtype));
    for (const smla_attend_source* source : {&args.primary, &args.extra}) {
        const Format* const format = find_format(source->cache.format);
        if (!format) continue;
        if (format->id == SMLA_ROW_F32) return "row_f32 keys do not fit bf16";
        if (!kAvx512Bf16.decoder(format->id, Width).rows)
            return text("no decoder of ", format->name, " into pairs of bf16");
    }
    return "";
}

template <int Width>
std::string refuse_tiles(const Args& args, const Env& env) {
    const std::string bf16 = refuse_bf16<Width>(args, env, SMLA_ISA_AMX);
    return bf16.empty() ? why_no_tiles() : bf16;
}

CallPlan<Args> plan_with(const Micro& micro, std::string refusal, const Args& args, const Env& env) {
    if (!refusal.empty()) return refuse_call<Args>(std::move(refusal));
    const Plan cut(args, micro, env, env.budget);
    CallPlan<Args> plan;
    plan.scratch = cut.workspace();
    plan.launch = [cut](const Args& call, const Env& on) { run(call, cut, on); };
    return plan;
}

template <const Micro& M, smla_isa Isa, int Width>
constexpr Candidate<Args> f32_kernel(const char* name) {
    return {.name = name, .plan = [](const Args& args, const Env& env) {
                return plan_with(M, refuse_dims(args, env, Isa, Width), args, env);
            }};
}

#if defined(__x86_64__)
template <int Width>
constexpr Candidate<Args> bf16_kernel(const char* name) {
    return {.name = name,
            .plan =
                [](const Args& args, const Env& env) {
                    return plan_with(kAvx512Bf16, refuse_bf16<Width>(args, env, SMLA_ISA_AVX512_BF16), args,
                                     env);
                },
            .last_resort = slow_bf16_dots_here<Args>};
}
// A tile has 16 heads and 16 keys. One head and one key take 4.7 us on tiles, 1.3 in f32, 8 heads and 16
// keys 5.9 and 5.8; with more of either tiles are faster (docs/kernels/log/cpu.md). Batch-invariant bits do
// not depend on the width of the lists, which other tokens may have decided.
const char* padding_in_tiles(const Args& args, const Env& env) {
    if (env.batch_invariant) return nullptr;
    constexpr int64_t kFewHeads = 8, kFewRows = 16;
    int64_t rows = 0;
    for (const smla_attend_source* source : {&args.primary, &args.extra})
        if (source->cache.format != SMLA_FORMAT_NONE) rows += source->rows.shape[1];
    return args.q.shape[1] <= kFewHeads && rows <= kFewRows
               ? "with so few heads and rows tiles would hold padding for the most part"
               : nullptr;
}
template <int Width>
constexpr Candidate<Args> amx_kernel(const char* name) {
    return {.name = name,
            .plan = [](const Args& args,
                       const Env& env) { return plan_with(kAmx, refuse_tiles<Width>(args, env), args, env); },
            .last_resort = padding_in_tiles};
}
#endif

}  // namespace

namespace cpu {

#if defined(__x86_64__)
const Candidate<Args> kAmxAttend576 = amx_kernel<576>("cpu_amx_attend_576");
const Candidate<Args> kAmxAttend512 = amx_kernel<512>("cpu_amx_attend_512");
const Candidate<Args> kAvx512Bf16Attend576 = bf16_kernel<576>("cpu_avx512_bf16_attend_576");
const Candidate<Args> kAvx512Bf16Attend512 = bf16_kernel<512>("cpu_avx512_bf16_attend_512");
const Candidate<Args> kAvx512Attend576 =
    f32_kernel<kAvx512F32, SMLA_ISA_AVX512, 576>("cpu_avx512_f32_attend_576");
const Candidate<Args> kAvx512Attend512 =
    f32_kernel<kAvx512F32, SMLA_ISA_AVX512, 512>("cpu_avx512_f32_attend_512");
const Candidate<Args> kAvx2Attend576 = f32_kernel<kAvx2F32, SMLA_ISA_AVX2, 576>("cpu_avx2_f32_attend_576");
const Candidate<Args> kAvx2Attend512 = f32_kernel<kAvx2F32, SMLA_ISA_AVX2, 512>("cpu_avx2_f32_attend_512");
#endif
#if defined(__aarch64__)
const Candidate<Args> kNeonAttend576 = f32_kernel<kNeonF32, SMLA_ISA_NEON, 576>("cpu_neon_f32_attend_576");
const Candidate<Args> kNeonAttend512 = f32_kernel<kNeonF32, SMLA_ISA_NEON, 512>("cpu_neon_f32_attend_512");
#endif
const Candidate<Args> kScalarAttend576 =
    f32_kernel<kScalarF32, SMLA_ISA_SCALAR, 576>("cpu_scalar_f32_attend_576");
const Candidate<Args> kScalarAttend512 =
    f32_kernel<kScalarF32, SMLA_ISA_SCALAR, 512>("cpu_scalar_f32_attend_512");
constexpr Candidate<Args> kLoops = cpu_generic<AttendOp>("");
const Candidate<Args> kGenericAttend{.name = "cpu_generic_attend",
                                     .plan = [](const Args& args, const Env& env) {
                                         if (args.q.dtype == SMLA_F64) return kLoops.plan(args, env);
                                         return plan_with(kScalarF32, "", args, env);
                                     }};

}  // namespace cpu

}  // namespace smla
