// The mma kernels of attend: what they take, and how a call is cut. They multiply 16-bit floats, so q must be
// bf16, or e4m3, which bf16 holds exactly.
#include "engines/cuda/attend/run.h"

namespace smla {

namespace {

using namespace cuda_attend;
using Args = smla_attend_args;

constexpr uint32_t kMmaFormats =
    formats(SMLA_ROW_BF16, SMLA_FP8_656, SMLA_FP8_576, SMLA_FP8_584, SMLA_FP8_512, SMLA_FP8_528,
            SMLA_FP8_528_G32, SMLA_FP8_528_G32_SPLIT, SMLA_NVFP4_288, SMLA_NVFP4_288_SPLIT);
constexpr int64_t kPiece = 16;  // bytes that one asynchronous copy moves

bool aligned(const void* data, int64_t bytes) {
    return reinterpret_cast<uintptr_t>(data) % uintptr_t(bytes) == 0;
}

std::string refuse_source(const char* name, const smla_attend_source& source) {
    const smla_cache& cache = source.cache;
    if (cache.format == SMLA_FORMAT_NONE) return "";
    const CacheView view(cache);
    if (cache.format == SMLA_ROW_F32) return "row_f32 keys do not fit 16-bit operands";
    if (!(kMmaFormats & format_bit(cache.format))) return text("no operands of ", view.format->name, " keys");
    if (!aligned(view.data, kPiece) || view.page_stride % kPiece ||
        (view.format->packing == Packing::row && view.row_stride % kPiece))
        return text(name, " pages and rows must be aligned to ", kPiece, " bytes");
    if (source.rows.shape[1] > INT32_MAX - kKeys) return text(name, " lists more than 2^31 rows");
    const int64_t between = source.rows.stride_elems[1];
    if (view.page_stride / kPiece > UINT32_MAX || view.row_stride > UINT32_MAX || between != int32_t(between))
        return text(name, " pages, rows or listed entries lie too far apart");  // for BlockSource's 32 bits
    return "";
}

// Whether two neighbouring values can be loaded and stored as one aligned pair.
bool pairs(const Tensor& tensor) {
    const int64_t bytes = dtype_bits(tensor.dtype) / 4;
    return aligned(tensor.data, bytes) && tensor.stride_elems[0] % 2 == 0 && tensor.stride_elems[1] % 2 == 0;
}

template <int Width>
std::string refuse_mma(const Args& args, const Env& env) {
    if (args.q.dtype != SMLA_BF16 && args.q.dtype != SMLA_E4M3)
        return text("q must hold bf16 values, got ", dtype_name(args.q.dtype));
    if (args.q.shape[2] != Width || args.out.shape[2] != kValueWidth)
        return text("for keys of ", Width, " and values of ", kValueWidth, " values, got ", args.q.shape[2],
                    " and ", args.out.shape[2]);
    for (const auto& [name, source] : {std::pair("primary", &args.primary), {"extra", &args.extra}}) {
        const std::string refusal = refuse_source(name, *source);
        if (!refusal.empty()) return refusal;
    }
    const smla_format first = args.primary.cache.format, second = args.extra.cache.format;
    if (first && second && key_form(first) != key_form(second))
        return text("keys of ", find_format(first)->name, " and of ", find_format(second)->name,
                    " become different operands");
    if (first && second && has_bf16_rope(first) != has_bf16_rope(second))
        return "one cache has bf16 rope and the other has not";
    if ((args.q.dtype == SMLA_BF16 && !pairs(args.q)) || !pairs(args.out))
        return "rows of q and out must be aligned to pairs of values";
    const size_t needed = std::max(shared_bytes(kManyHeads, Width, KeyForm::codes),
                                   shared_bytes(kManyHeads, Width, KeyForm::rows));
    if (needed > env.device->facts().shared_bytes)
        return text("needs ", needed, " bytes of shared memory, the device has ",
                    env.device->facts().shared_bytes);
    return "";
}

template <int Width>
CallPlan<Args> plan_mma(const Args& args, const Env& env) {
    CallPlan<Args> plan = refuse_call<Args>(refuse_mma<Width>(args, env));
    if (!plan.refusal.empty()) return plan;
    const Schedule cut = schedule(args, env);
    plan.scratch = cut.workspace();
    plan.scratch_of_fewer = env.batch_invariant ? 0 : most_workspace(args, env);
    plan.checks_indices = cut.tokens >= args.q.shape[0];
    plan.rotates_out = cut.splits > 1;
    plan.launch = [cut](const Args& call, const Env& on) { each_launch(call, cut, on, run_mma); };
    return plan;
}

}  // namespace

namespace cuda_attend {

const Candidate<Args> kMmaAttend576{.name = "cuda_mma_attend_576", .plan = plan_mma<576>};
const Candidate<Args> kMmaAttend512{.name = "cuda_mma_attend_512", .plan = plan_mma<512>};

}  // namespace cuda_attend

}  // namespace smla
