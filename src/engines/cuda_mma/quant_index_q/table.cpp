#include "engines/cuda_mma/candidates.h"
#include "engines/cuda_mma/quant_index_q/quant_index_q.h"

namespace smla {

namespace {
using Args = smla_quant_index_q_args;

std::string refuse(const Args& args, const Env&) {
    const int64_t rows = args.q.shape[0] * args.q.shape[1];
    if (rows > INT32_MAX) return text(rows, " rows: 2^31 or more");
    const std::string wide = refuse_width(args.q.shape[2]);
    return wide.empty() ? refuse_f64(args) : wide;
}

constexpr Candidate<Args> kTable[] = {{.name = "cuda_mma_generic",
                                       .refuse = refuse,
                                       .workspace = no_scratch<Args>,
                                       .run = run_cuda_quant_index_q}};
}  // namespace

template <>
std::span<const Candidate<Args>> cuda_mma_candidates<Stage::quant_index_q>() {
    return kTable;
}

}  // namespace smla
