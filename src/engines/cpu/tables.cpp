// The candidate tables of the cpu engine, one per stage: specialised kernels first, the stage's generic code
// last.
#include "engines/cpu/generic.h"
#include "ops/ops.h"

namespace smla {

// Stages without a table of their own: the op's loops, spread over the threads.
#define SMLA_GENERIC_TABLE(name, args)                                                                    \
    template <>                                                                                           \
    std::span<const Candidate<args>> cpu_candidates<Stage::name>() {                                      \
        static constexpr Candidate<args> rows[] = {cpu_generic<OpOf<Stage::name>>("cpu_generic_" #name)}; \
        return rows;                                                                                      \
    }
SMLA_GENERIC_TABLE(norm, smla_norm_args)
SMLA_GENERIC_TABLE(rope, smla_rope_args)
SMLA_GENERIC_TABLE(inverse_rope, smla_rope_args)
SMLA_GENERIC_TABLE(quant_index_q, smla_quant_index_q_args)
SMLA_GENERIC_TABLE(write_kv, smla_write_args)
SMLA_GENERIC_TABLE(write_index, smla_write_args)
SMLA_GENERIC_TABLE(save_state, smla_save_state_args)
SMLA_GENERIC_TABLE(compress, smla_compress_args)
SMLA_GENERIC_TABLE(gather, smla_gather_args)
SMLA_GENERIC_TABLE(copy_pages, smla_copy_pages_args)
SMLA_GENERIC_TABLE(map, smla_map_args)
SMLA_GENERIC_TABLE(merge, smla_merge_args)
#undef SMLA_GENERIC_TABLE

}  // namespace smla
