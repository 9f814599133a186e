#include "engines/cpu/select/run.h"

#include "core/cpu_features.h"
#include "engines/cpu/select/rank_key.h"
#include "engines/cpu/select/top_k.h"
#include "engines/cpu/tasks.h"
#include "ops/score/score.h"
#include "ops/select/select.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace smla {

namespace {

constexpr int64_t kChunk = 2048;     // 16-bit scores that are widened together
constexpr int64_t kSample = 4096;    // scores in the sample of a long row
constexpr int64_t kShortRow = 8192;  // shorter rows are not sampled

struct Listed {  // column of a list with ids
    int32_t key, id, column;
};

struct Scratch {
    TopK top;
    float* chunk;
    Listed* list;

    void take(Arena& arena, const smla_select_args& args, int64_t capacity) {
        chunk = arena.take<float>(args.scores.dtype == SMLA_F32 ? 0 : kChunk);
        if (present(args.ids)) {
            list = arena.take<Listed>(size_t(args.scores.shape[1]));
            chunk = arena.take<float>(kChunk);
        } else {
            top.take(arena, capacity);
        }
    }
    static size_t bytes(const smla_select_args& args, int64_t capacity) {
        Arena arena;
        Scratch().take(arena, args, capacity);
        return arena.used() - kWorkspaceHeader;
    }
};

int64_t capacity_of(const smla_select_args& args, const Env& env, size_t budget) {
    if (present(args.ids)) return 0;
    const int64_t k = args.indices.shape[1], n = args.scores.shape[1];
    const size_t fixed = Scratch::bytes(args, 0) - TopK::bytes(0), threads = size_t(env.threads());
    const size_t share = budget > kWorkspaceHeader ? (budget - kWorkspaceHeader) / threads : 1;
    return TopK::capacity(k, n, budget == 0 ? 0 : share > fixed ? share - fixed : 1);
}

class Rows {
public:
    Rows(const SelectKernel& kernel, const smla_select_args& args)
        : kernel_(kernel), args_(args), k_(args.indices.shape[1]), columns_(args.scores.shape[1]) {}

    void select(Scratch& scratch, int64_t t) const {
        const ColumnWindow window = clamp_window(args_.starts, args_.ends, t, columns_);
        if (k_ == 0) return store_selection<float>(args_, t, nullptr, nullptr, 0, 0);
        if (present(args_.ids)) return select_listed(scratch, t, window);
        TopK& top = scratch.top;
        const float floor = sampled_floor(scratch, t, window);
        top.start(kernel_, k_, floor);
        if (std::isnan(floor)) top.start(kernel_, k_);
        push(scratch, t, window);
        if (!top.finish()) {  // the sampled floor was too high: retry without a floor
            top.start(kernel_, k_);
            push(scratch, t, window);
            top.finish();
        }
        store_selection(args_, t, top.columns(), top.values(), top.count(),
                        args_.relative ? window.begin : 0);
    }

private:
    // Returns `n` scores from column `begin` as f32: in place, or widened into the chunk.
    const float* load(float* chunk, int64_t t, int64_t begin, int64_t n) const {
        const char* row = address(args_.scores, t, begin);
        if (args_.scores.dtype == SMLA_F32) return reinterpret_cast<const float*>(row);
        load_row(args_.scores, row, n, chunk);
        return chunk;
    }

    void push(Scratch& scratch, int64_t t, ColumnWindow window) const {
        const int64_t step = args_.scores.dtype == SMLA_F32 ? window.end - window.begin : kChunk;
        for (int64_t j = window.begin; j < window.end; j += step) {
            const int64_t n = std::min(step, window.end - j);
            scratch.top.push(load(scratch.chunk, t, j, n), n, int32_t(j));
        }
    }

    // Samples vectors of a row. Returns a floor that probably a few more than k scores pass; NaN: none.
    float sampled_floor(Scratch& scratch, int64_t t, ColumnWindow window) const {
        const int64_t length = window.end - window.begin;
        if (length < kShortRow || 4 * k_ > length || scratch.top.room() < kSample) return NAN;
        const int64_t blocks = std::min(kSample, length / 16) / kFilterSlack;
        const int64_t sampled = blocks * kFilterSlack;
        float* sample = scratch.top.spare_values();
        for (int64_t b = 0; b < blocks; ++b) {
            const float* from = load(scratch.chunk, t, window.begin + b * length / blocks, kFilterSlack);
            std::copy(from, from + kFilterSlack, sample + b * kFilterSlack);
        }
        // The k-th best is expected at rank k * sampled / length of the sample. Three standard deviations are
        // added, so that the floor is rarely too high.
        const double expected = double(k_) * double(sampled) / double(length);
        const int64_t rank = int64_t(expected + 3 * std::sqrt(expected) + 4);
        int32_t* keys = scratch.top.spare_keys();
        kernel_.keys(sample, sampled, keys);
        const int32_t key = kth_key(kernel_, keys, sampled, std::min(rank, sampled));
        return key == kNanKey ? NAN : floor_above(key - 1);
    }

    void select_listed(Scratch& scratch, int64_t t, ColumnWindow window) const {
        Listed* list = scratch.list;
        int64_t n = 0;
        const auto* ids = reinterpret_cast<const int32_t*>(address(args_.ids, t));
        for (int64_t from = window.begin; from < window.end; from += kChunk) {
            const int64_t some = std::min(kChunk, window.end - from);
            const float* scores = load(scratch.chunk, t, from, some);
            for (int64_t j = 0; j < some; ++j)
                if (ids[from + j] >= 0) list[n++] = {rank_key(scores[j]), ids[from + j], int32_t(from + j)};
        }
        const int64_t count = std::min(n, k_);
        std::nth_element(list, list + count, list + n, [](const Listed& a, const Listed& b) {
            return a.key != b.key ? a.key > b.key : a.id != b.id ? a.id < b.id : a.column < b.column;
        });
        std::sort(list, list + count, [](const Listed& a, const Listed& b) {
            return a.id != b.id ? a.id < b.id : a.key != b.key ? a.key > b.key : a.column < b.column;
        });
        store_selection<float>(args_, t, nullptr, nullptr, 0, 0);
        auto* indices = reinterpret_cast<int32_t*>(address(args_.indices, t));
        for (int64_t i = 0; i < count; ++i) {
            indices[i] = list[i].id;
            if (!present(args_.selected)) continue;
            const float* score = load(scratch.chunk, t, list[i].column, 1);
            store_row(args_.selected, address(args_.selected, t, i), 1, score);
        }
        if (present(args_.counts)) *reinterpret_cast<int32_t*>(address(args_.counts, t)) = int32_t(count);
    }

    const SelectKernel& kernel_;
    const smla_select_args& args_;
    int64_t k_, columns_;
};

// `capacity` is the number of candidates that a row keeps during its scan.
void run_select(const SelectKernel& kernel, int64_t capacity, const smla_select_args& args, const Env& env) {
    Arena arena(env.workspace);
    std::vector<Scratch> scratch(size_t(env.threads()));
    for (Scratch& each : scratch) each.take(arena, args, capacity);
    const Rows rows(kernel, args);
    run_tasks(env, args.scores.shape[0],
              [&](int64_t t, int worker) { rows.select(scratch[size_t(worker)], t); });
}

}  // namespace

Support supports_select(const SelectKernel& kernel, const smla_select_args& args, const Env& env) {
    if (std::string why = why_no_isa(kernel.isa, env.isa); !why.empty()) return {why};
    if (args.scores.dtype == SMLA_F64) return {"f64 scores are supported only by the generic kernel"};
    return {};
}

const SelectKernel* choose_select_kernel(const smla_select_args& args, const Env& env) {
    static const SelectKernel kernels[] = {
#if defined(__x86_64__)
        kSelectAvx512,
        kSelectAvx2,
#endif
        kSelectScalar
    };
    return choose(std::span<const SelectKernel>(kernels), Stage::select, env,
                  [&](const SelectKernel& kernel) { return supports_select(kernel, args, env); })
        .kernel;
}

CallPlan<smla_select_args> plan_select(const SelectKernel& kernel, const smla_select_args& args,
                                       const Env& env) {
    CallPlan<smla_select_args> plan{supports_select(kernel, args, env)};
    if (!plan.refusal.empty()) return plan;
    const int64_t capacity = capacity_of(args, env, env.budget);
    plan.scratch = kWorkspaceHeader + size_t(env.threads()) * Scratch::bytes(args, capacity);
    plan.launch = [&kernel, capacity](const smla_select_args& call, const Env& on) {
        run_select(kernel, capacity, call, on);
    };
    return plan;
}

}  // namespace smla
