// score_select on the cuda engine: the score and select kernels run one after the other on parts of the
// problem whose logits fit the workspace. Tokens are divided first, because whole rows need no merging. If
// one row is too long, columns are divided too, and the k best of the preceding columns enter the next part.
#include "engines/cuda/score_select/run.h"

#include "engines/cuda/score/run.h"
#include "engines/cuda/select/run.h"
#include "ops/score_select/score_select.h"

#include <algorithm>

namespace smla::cuda {

namespace {

using Args = smla_score_select_args;

// Returns the scratch without a budget. Parts are large enough that launches and a partial last wave cost
// little: 2048 tokens of 65,536 columns take just over 512 MiB; two parts take 2 % longer, four parts 6 %.
// The result is at most 1/32 of the GPU's memory.
size_t pays(const Env& env) {
    constexpr size_t kMost = size_t(544) << 20;
    const size_t memory = env.device->facts().memory_bytes;
    return memory ? std::min(kMost, memory / 32) : kMost;
}
constexpr int64_t kFewTokens = 32, kLongPart = 32768, kLeastPart = 1024;

struct Scratch {
    float* logits;        // [tokens, columns] of a part
    float* scores[2];     // [tokens,k] kept winners, double-buffered
    int32_t* columns[2];  // [tokens,k]
    char* select;         // null: rows are not split
};

// Division of a call, which depends only on shapes, device and budget and does not affect results.
struct Plan {
    int64_t tokens, columns, k, part_tokens, part_columns;

    Plan(const Args& args, const Env& env, size_t budget)
        : tokens(args.score.q.shape[0]),
          columns(args.columns),
          k(args.select.indices.shape[1]),
          part_tokens(std::max<int64_t>(tokens, 1)),
          part_columns(std::max<int64_t>(columns, 1)) {
        const auto halve = [](int64_t n) { return int64_t(round_up(size_t(n + 1) / 2, 4)); };
        const size_t most = budget == 0 ? pays(env) : std::min(budget, pays(env));
        while (part_tokens > kFewTokens && bytes(env) > most) part_tokens = halve(part_tokens);
        if (budget == 0) return;
        while (bytes(env) > budget) {
            if (part_columns > kLongPart) part_columns = halve(part_columns);
            else if (part_tokens > 1) part_tokens = ceil_div(part_tokens, 2);
            else if (part_columns > kLeastPart) part_columns = halve(part_columns);
            else break;
        }
    }
    // Returns select's input for a part: shapes, and whether columns were kept.
    SelectInput part(int64_t rows, int64_t n, bool kept) const {
        static constexpr float kKept = 0;
        return {.stride = part_columns,
                .dtype = SMLA_F32,
                .tokens = rows,
                .columns = columns,
                .end = n,
                .kept_scores = kept ? &kKept : nullptr};
    }
    Scratch take(Arena& arena, const Env& env) const {
        Scratch out;
        const size_t kept = part_columns < columns ? size_t(part_tokens * k) : 0;
        out.logits = arena.take<float>(size_t(part_tokens * part_columns));
        for (int i = 0; i < 2; ++i) {
            out.scores[i] = arena.take<float>(kept);
            out.columns[i] = arena.take<int32_t>(kept);
        }
        const size_t select = select_scratch(part(part_tokens, part_columns, false), k, env);
        out.select = select ? arena.take<char>(select) : nullptr;
        return out;
    }
    // Returns the scratch of an undivided call, which grows with the number of tokens.
    size_t bytes_whole(int64_t all_tokens, const Env& env) const {
        Plan whole = *this;
        whole.part_tokens = std::max<int64_t>(all_tokens, 1);
        whole.part_columns = std::max<int64_t>(columns, 1);
        return whole.bytes(env);
    }
    // Returns the largest scratch of this call or one with fewer tokens.
    size_t most_bytes(const Env& env, size_t budget) const {
        const size_t least = bytes_whole(std::min(tokens, kFewTokens), env);
        const size_t most = std::min(bytes_whole(tokens, env), std::max(pays(env), least));
        return budget == 0 ? most : std::min(most, std::max(budget, bytes(env)));
    }
    // Returns whether the select kernels that the context allows support every part.
    bool can_select(const Env& env) const {
        const int64_t last_tokens = tokens % part_tokens, last_columns = columns % part_columns;
        const auto supported = [&](int64_t rows, int64_t n, bool kept) {
            return choose_select_kernel(part(rows, n, kept), k, env) != nullptr;
        };
        for (const int64_t rows : {std::min(tokens, part_tokens), last_tokens}) {
            if (rows == 0) continue;
            if (!supported(rows, std::min(columns, part_columns), false)) return false;
            if (part_columns >= columns) continue;
            if (!supported(rows, last_columns ? last_columns : part_columns, true)) return false;
            if (2 * part_columns <= columns && !supported(rows, part_columns, true)) return false;
        }
        return true;
    }
    size_t bytes(const Env& env) const {
        Arena arena;
        take(arena, env);
        return arena.used();
    }
};

class Parts {
public:
    Parts(const Args& args, const Env& env, const ScoreKernel& score, const Plan& plan)
        : args_(args), env_(env), score_(score), plan_(plan) {
        Arena arena(env.workspace);
        scratch_ = plan_.take(arena, env);
    }
    void run() const {
        for (int64_t token = 0; token < plan_.tokens; token += plan_.part_tokens)
            run_tokens(token, std::min(token + plan_.part_tokens, plan_.tokens));
    }

private:
    void run_tokens(int64_t first, int64_t last) const {
        const smla_score_args score = score_part(args_, first, last, {});
        const SelectOutput final = select_output(select_part(args_, first, last, {}));
        int turn = 0;
        int64_t begin = 0;
        do {
            const int64_t end = std::min(begin + plan_.part_columns, plan_.columns);
            if (plan_.k > 0) {
                const ScorePart part{.columns = plan_.columns,
                                     .begin = begin,
                                     .end = end,
                                     .logits = {scratch_.logits, plan_.part_columns},
                                     .tokens = plan_.tokens};
                score_.run(score, part, env_);
            }
            SelectInput input{.scores = scratch_.logits,
                              .stride = plan_.part_columns,
                              .dtype = SMLA_F32,
                              .tokens = last - first,
                              .starts = score.starts,
                              .ends = score.ends,
                              .columns = plan_.columns,
                              .begin = begin,
                              .end = end};
            if (begin > 0) {
                input.kept_scores = scratch_.scores[turn];
                input.kept_columns = scratch_.columns[turn];
            }
            turn ^= 1;
            select(input, end == plan_.columns ? final : kept(turn));
            begin = end;
        } while (begin < plan_.columns);
    }
    SelectOutput kept(int turn) const {
        return {.indices = scratch_.columns[turn],
                .index_stride = plan_.k,
                .selected = scratch_.scores[turn],
                .selected_stride = plan_.k,
                .k = plan_.k};
    }
    void select(const SelectInput& input, const SelectOutput& output) const {
        choose_select_kernel(input, output.k, env_)->run(input, output, scratch_.select, env_);
    }

    const Args& args_;
    const Env& env_;
    const ScoreKernel& score_;
    const Plan& plan_;
    Scratch scratch_{};
};

CallPlan<Args> plan_streamed(const Args& args, const Env& env) {
    const ScoreKernel* const score = choose_score_kernel(args.score, env);
    if (!score) return refuse_call<Args>("no score kernel of this engine supports these arguments");
    const Plan cut(args, env, env.budget);
    if (!cut.can_select(env))
        return refuse_call<Args>(text(env.demanded[size_t(Stage::select)], " does not support tiles of ",
                                      cut.part_tokens, " tokens and ", cut.part_columns, " columns"));
    CallPlan<Args> plan;
    plan.scratch = cut.bytes(env);
    plan.scratch_of_fewer = cut.most_bytes(env, env.budget);
    plan.launch = [score, cut](const Args& call, const Env& on) { Parts(call, on, *score, cut).run(); };
    return plan;
}

}  // namespace

const Candidate<Args> kStreamedScoreSelect{.name = "cuda_streamed_score_select", .plan = plan_streamed};

}  // namespace smla::cuda
