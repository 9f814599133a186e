// The candidate tables of the cuda engine: the kernels of each stage, best first. The last kernel of a stage
// supports every shape and every record format.
#include "engines/cuda/attend/run.h"
#include "engines/cuda/candidates.h"
#include "engines/cuda/generic/generic.h"
#include "engines/cuda/project/project.h"
#include "engines/cuda/score/run.h"
#include "engines/cuda/score_select/run.h"
#include "engines/cuda/select/run.h"

namespace smla {

namespace {

using namespace cuda;

// A kernel of generic/ that supports every dtype except f64.
template <class Args, void (*Run)(const Args&, const Env&)>
constexpr Candidate<Args> generic(const char* name) {
    return {.name = name,
            .plan = [](const Args& args, const Env&) { return plain_plan<Args>(refuse_f64(args), Run); }};
}
// A kernel of generic/ that moves bytes or integers, and therefore supports f64 records.
template <class Args, void (*Run)(const Args&, const Env&)>
constexpr Candidate<Args> moves(const char* name) {
    return {.name = name,
            .plan = [](const Args&, const Env&) { return plain_plan<Args>(std::string(), Run); }};
}

// A kernel of generic/ that may run concurrently with the previous grid (launch_ordered).
template <class Args, void (*Run)(const Args&, const Env&)>
constexpr Candidate<Args> ordered(const char* name) {
    return {.name = name, .plan = [](const Args& args, const Env&) {
                return beside_plan(plain_plan<Args>(refuse_f64(args), Run));
            }};
}

std::string refuse_rows(const smla_tensor& rows) {
    const int64_t count = rows.shape[0] * rows.shape[1];
    return count > INT32_MAX ? text(count, " rows exceed the limit of 2^31 - 1") : "";
}

CallPlan<smla_norm_args> plan_norm(const smla_norm_args& args, const Env&) {
    std::string refusal = refuse_rows(args.x);
    if (refusal.empty()) refusal = refuse_f64(args);
    return plain_plan<smla_norm_args>(std::move(refusal), run_cuda_norm);
}

CallPlan<smla_rope_args> plan_rope(const smla_rope_args& args, const Env&) {
    const int64_t pairs = args.frequencies.shape[0];
    return beside_plan(plain_plan<smla_rope_args>(
        pairs > kMaxRopePairs ? text(pairs, " rotated pairs exceed the limit of ", kMaxRopePairs)
                              : refuse_f64(args),
        run_cuda_rope));
}

CallPlan<smla_quant_index_q_args> plan_quant_index_q(const smla_quant_index_q_args& args, const Env&) {
    std::string refusal = refuse_rows(args.q);
    if (refusal.empty()) refusal = refuse_width(args.q.shape[2]);
    if (refusal.empty()) refusal = refuse_f64(args);
    return beside_plan(plain_plan<smla_quant_index_q_args>(std::move(refusal), run_cuda_quant_index_q));
}

// Cache stages need no width check, because no format is wider than kMaxRowWidth.
constexpr Candidate<smla_norm_args> kNorm{.name = "cuda_generic_norm", .plan = plan_norm};
constexpr Candidate<smla_rope_args> kRope{.name = "cuda_generic_rope", .plan = plan_rope};
constexpr Candidate<smla_quant_index_q_args> kQuantIndexQ{.name = "cuda_generic_quant_index_q",
                                                          .plan = plan_quant_index_q};
constexpr auto kWriteKv = ordered<smla_write_args, run_cuda_write>("cuda_generic_write");
constexpr auto kWriteIndex = ordered<smla_write_args, run_cuda_write>("cuda_generic_write");
constexpr auto kSaveState = ordered<smla_save_state_args, run_cuda_save_state>("cuda_generic_save_state");
constexpr auto kCompress = ordered<smla_compress_args, run_cuda_compress>("cuda_generic_compress");
constexpr auto kGather = generic<smla_gather_args, run_cuda_gather>("cuda_generic_gather");
constexpr auto kCopyPages = moves<smla_copy_pages_args, run_cuda_copy_pages>("cuda_generic_copy_pages");
constexpr auto kMap = moves<smla_map_args, run_cuda_map>("cuda_generic_map");
constexpr auto kGenericAttend = generic<smla_attend_args, cuda_attend::run_generic>("cuda_generic_attend");
constexpr auto kGenericMerge = generic<smla_merge_args, cuda_merge::run_generic>("cuda_generic_merge");
constexpr auto kGenericProject = generic<smla_project_args, run_cuda_project_loops>("cuda_generic_project");

}  // namespace

#define SMLA_ROWS(stage, ...)                                                          \
    template <>                                                                        \
    std::span<const Candidate<ArgsOf<Stage::stage>>> cuda_candidates<Stage::stage>() { \
        static const Candidate<ArgsOf<Stage::stage>> rows[] = {__VA_ARGS__};           \
        return rows;                                                                   \
    }
SMLA_ROWS(norm, kNorm)
SMLA_ROWS(rope, kRope)
SMLA_ROWS(project, kMmaProject, kFewTokensProject, kCublasLtProject, kGenericProject)
SMLA_ROWS(absorb, kMmaProject, kFewTokensProject, kCublasLtProject, kGenericProject)
SMLA_ROWS(quant_index_q, kQuantIndexQ)
SMLA_ROWS(write_kv, kWriteKv)
SMLA_ROWS(write_index, kWriteIndex)
SMLA_ROWS(save_state, kSaveState)
SMLA_ROWS(compress, kCompress)
SMLA_ROWS(gather, kGather)
SMLA_ROWS(copy_pages, kCopyPages)
SMLA_ROWS(score, kSm90PagesScore, kSm90Score, kMmaScore, kGenericScore)
SMLA_ROWS(select, kClusterSelect, kRegisterSelect, kSampledSelect, kGenericSelect)
SMLA_ROWS(score_select, kStreamedScoreSelect)
SMLA_ROWS(score_select_blocks, kStreamedBlocks, kGenericBlocks)
SMLA_ROWS(map, kMap)
SMLA_ROWS(attend, cuda_attend::kSm90RawAttend, cuda_attend::kSm90Attend, cuda_attend::kMmaAttend,
          kGenericAttend)
SMLA_ROWS(merge, kGenericMerge)
SMLA_ROWS(inverse_rope, kRope)
SMLA_ROWS(up_project, kMmaProject, kFewTokensProject, kCublasLtProject, kGenericProject)
SMLA_ROWS(out_project, kMmaProject, kFewTokensProject, kCublasLtProject, kGenericProject)
#undef SMLA_ROWS

}  // namespace smla
