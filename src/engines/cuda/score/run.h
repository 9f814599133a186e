// The score kernels of the cuda engine. score_select also runs them on parts of the columns.
#pragma once

#include "engines/candidate.h"

#include <algorithm>

namespace smla::cuda {

// Destination of logits. bf16: rounded to nearest.
struct Logits {
    void* data = nullptr;
    int64_t stride = 0;  // elements between tokens
    bool bf16 = false;
};

// Columns [begin, end) of the logits. `logits` begin at column `begin` of the first token.
struct ScorePart {
    int64_t columns = 0;  // N, to which windows are clamped
    int64_t begin = 0, end = 0;
    Logits logits;
    int64_t tokens = 0;  // tokens of the whole call; 0: of this part
    // Only for cuda_mma_score. Above 0, entries of the block table are parts of pages, of so many tokens
    // each, as page << part_bits | part; otherwise they are pages.
    uint32_t part_tokens = 0;
    int part_bits = 0;
};

// Returns the number of rows per request if all have equally many.
inline int64_t rows_of_request(const smla_score_args& args, const ScorePart& part) {
    const int64_t requests = args.block_table.ndim ? std::max<int64_t>(1, args.block_table.shape[0]) : 1;
    return std::max<int64_t>(1, ceil_div(part.tokens ? part.tokens : args.q.shape[0], requests));
}

struct ScoreKernel {
    const char* name;
    std::string (*refuse)(const smla_score_args& args, const Env& env);  // ignores `logits`
    void (*run)(const smla_score_args& args, const ScorePart& part, const Env& env);
};

extern const Candidate<smla_score_args> kSm90PagesScore, kSm90Score, kMmaScore, kGenericScore;
// Returns the kernel of the score stage, or null if no allowed kernel supports the call.
const ScoreKernel* choose_score_kernel(const smla_score_args& args, const Env& env);

std::string refuse_score_sm90(const smla_score_args& args, const Env& env);
void run_score_sm90(const smla_score_args& args, const ScorePart& part, const Env& env);
std::string refuse_score_pages(const smla_score_args& args, const Env& env);
void run_score_pages(const smla_score_args& args, const ScorePart& part, const Env& env);
std::string refuse_score_tile(const smla_score_args& args, const Env& env);
void run_score_tile(const smla_score_args& args, const ScorePart& part, const Env& env);
void run_score_generic(const smla_score_args& args, const ScorePart& part, const Env& env);

}  // namespace smla::cuda
