// Candidate tables of the CPU engine: the kernels of each stage, best first. The last kernel of a stage
// supports every shape and every record format.
#include "engines/cpu/candidates.h"
#include "engines/cpu/generic.h"
#include "engines/cpu/score/run.h"
#include "engines/cpu/select/run.h"
#include "ops/ops.h"

namespace smla {

namespace {

// Returns the op's loops, spread over the threads.
template <Stage S>
constexpr auto loops(const char* name) {
    return cpu_generic<OpOf<S>>(name);
}

}  // namespace

#if defined(__x86_64__)
#define SMLA_X86(...) __VA_ARGS__,
#else
#define SMLA_X86(...)
#endif
#if defined(__aarch64__)
#define SMLA_ARM(...) __VA_ARGS__,
#else
#define SMLA_ARM(...)
#endif

#define SMLA_ROWS(stage, ...)                                                         \
    template <>                                                                       \
    std::span<const Candidate<ArgsOf<Stage::stage>>> cpu_candidates<Stage::stage>() { \
        using namespace cpu;                                                          \
        static const Candidate<ArgsOf<Stage::stage>> rows[] = {__VA_ARGS__};          \
        return rows;                                                                  \
    }
#define SMLA_LOOPS(stage) loops<Stage::stage>("cpu_generic_" #stage)
#define SMLA_PRODUCTS \
    SMLA_X86(kAmxProject, kFewTokens512, kFewTokens256, kAvx512Bf16Project) kCblasProject, kLoopsProject
SMLA_ROWS(norm, SMLA_LOOPS(norm))
SMLA_ROWS(rope, SMLA_LOOPS(rope))
SMLA_ROWS(project, SMLA_PRODUCTS)
SMLA_ROWS(absorb, SMLA_PRODUCTS)
SMLA_ROWS(quant_index_q, SMLA_LOOPS(quant_index_q))
SMLA_ROWS(write_kv, SMLA_LOOPS(write_kv))
SMLA_ROWS(write_index, SMLA_LOOPS(write_index))
SMLA_ROWS(save_state, SMLA_LOOPS(save_state))
SMLA_ROWS(compress, SMLA_X86(kAvx2Compress) SMLA_ARM(kNeonCompress) SMLA_LOOPS(compress))
SMLA_ROWS(gather, SMLA_LOOPS(gather))
SMLA_ROWS(copy_pages, SMLA_LOOPS(copy_pages))
SMLA_ROWS(score,
          SMLA_X86(score_candidate<kScoreAmx>(), score_candidate<kScoreAvx512Bf16>(),
                   score_candidate<kScoreAvx512>(), score_candidate<kScoreAvx2>())
              SMLA_ARM(score_candidate<kScoreNeon>()) score_candidate<kScoreScalar>(),
          SMLA_LOOPS(score))
SMLA_ROWS(select,
          SMLA_X86(select_candidate<kSelectAvx512>(), select_candidate<kSelectAvx2>())
              select_candidate<kSelectScalar>(),
          SMLA_LOOPS(select))
SMLA_ROWS(score_select, kStreamed, SMLA_LOOPS(score_select))
SMLA_ROWS(score_select_blocks, kStreamedBlocks, SMLA_LOOPS(score_select_blocks))
SMLA_ROWS(map, SMLA_LOOPS(map))
SMLA_ROWS(attend,
          SMLA_X86(kAmxAttend, kAvx512Bf16Attend, kAvx512Attend, kAvx2Attend) SMLA_ARM(kNeonAttend)
              kScalarAttend,
          SMLA_LOOPS(attend))
SMLA_ROWS(merge, SMLA_LOOPS(merge))
SMLA_ROWS(inverse_rope, SMLA_LOOPS(inverse_rope))
SMLA_ROWS(up_project, SMLA_PRODUCTS)
SMLA_ROWS(out_project, SMLA_PRODUCTS)
#undef SMLA_PRODUCTS
#undef SMLA_LOOPS
#undef SMLA_ROWS
#undef SMLA_X86
#undef SMLA_ARM

}  // namespace smla
