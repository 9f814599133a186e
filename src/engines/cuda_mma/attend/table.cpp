// The attend kernels of the portable GPU engine in order of preference. The mma kernels multiply 16-bit
// floats: they take only q whose values are bf16, so that no precision of another q is lost.
#include "engines/cuda_mma/attend/run.h"
#include "ops/attend/attend.h"

#include <algorithm>

namespace smla {

namespace {

using namespace cuda_attend;
using Args = smla_attend_args;

constexpr int64_t kPiece = 16;  // bytes that one asynchronous copy moves

bool aligned(const void* data, int64_t bytes) {
    return reinterpret_cast<uintptr_t>(data) % uintptr_t(bytes) == 0;
}

std::string refuse_source(const char* name, const smla_attend_source& source) {
    const smla_cache& cache = source.cache;
    if (cache.format == SMLA_FORMAT_NONE) return "";
    const CacheView view(cache);
    if (cache.format == SMLA_ROW_F32) return "row_f32 keys do not fit bf16";
    if (!aligned(view.data, kPiece) || view.page_stride % kPiece ||
        (view.format->packing == Packing::row && view.row_stride % kPiece))
        return text(name, " pages and rows must be aligned to ", kPiece, " bytes");
    if (source.rows.shape[1] > INT32_MAX - kKeys) return text(name, " lists more than 2^31 rows");
    const int64_t between = source.rows.stride_elems[1];
    if (view.page_stride / kPiece > UINT32_MAX || view.row_stride > UINT32_MAX || between != int32_t(between))
        return text(name, " pages, rows or listed entries lie too far apart");  // 32-bit factors, keys.cuh
    return "";
}

// Pairs of neighbours are loaded and stored at once.
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
    if (first && second && (first == SMLA_ROW_BF16) != (second == SMLA_ROW_BF16))
        return "one cache of bf16 rows and one of fp8 records";
    if (first && second && has_bf16_rope(first) != has_bf16_rope(second))
        return "one cache with rope of bf16 and one without";
    if ((args.q.dtype == SMLA_BF16 && !pairs(args.q)) || !pairs(args.out))
        return "rows of q and out must be aligned to pairs of values";
    const size_t needed =
        std::max(shared_bytes(kManyHeads, Width, true), shared_bytes(kManyHeads, Width, false));
    if (needed > env.device->facts().shared_bytes)
        return text("needs ", needed, " bytes of shared memory, the device has ",
                    env.device->facts().shared_bytes);
    return "";
}

size_t mma_workspace(const Args& args, const Env& env, size_t budget) {
    return schedule(args, env, budget).workspace();
}
void mma_run(const Args& args, const Env& env) {
    run_mma(args, schedule(args, env, env.workspace.budget()), env);
}

template <int Width>
constexpr Candidate<Args> mma(const char* name) {
    return {.name = name, .refuse = refuse_mma<Width>, .workspace = mma_workspace, .run = mma_run};
}

}  // namespace

template <>
std::span<const Candidate<smla_attend_args>> cuda_mma_candidates<Stage::attend>() {
    static constexpr Candidate<Args> kTable[] = {
        mma<576>("cuda_mma_attend_576"),
        mma<512>("cuda_mma_attend_512"),
        {.name = "cuda_mma_generic",
         .refuse =
             [](const Args& args, const Env&) {
                 return std::string(args.q.dtype == SMLA_F64 ? "f64 runs on the reference engine" : "");
             },
         .workspace = [](const Args&, const Env&, size_t) { return kWorkspaceHeader; },
         .run = run_generic},
    };
    return kTable;
}

}  // namespace smla
