// compress in f32: divides many tokens by ranges of tokens, few tokens also by their channels.
#include "core/cpu_features.h"
#include "engines/cpu/candidates.h"
#include "engines/cpu/compress/pool.h"
#include "engines/cpu/tasks.h"
#include "ops/compress/entry.h"

#include <algorithm>

namespace smla {

namespace {

using namespace cpu_compress;

// Minimum rows times channels of a task: 5 us of work, a few times its overhead.
constexpr int64_t kLeastWork = 8192, kTasksPerThread = 4;

using Rows = std::vector<const float*>;  // kv of each row of a window

struct Scratch {
    float *peak, *sum, *value;  // [D] each

    void take(Arena& arena, int64_t width) {
        for (float** each : {&peak, &sum, &value}) *each = arena.take<float>(size_t(width));
    }
};

size_t scratch_bytes(const smla_compress_args& args, const Env& env) {
    Arena arena;
    for (int thread = 0; thread < env.threads(); ++thread) Scratch().take(arena, CacheView(args.cache).width);
    return arena.used();
}

// Returns the tokens that close a group, in order, at most `most`.
std::vector<int64_t> closing_tokens(const EntryMaker<float>& maker, int64_t tokens, int64_t most) {
    std::vector<int64_t> out;
    for (int64_t t = 0; t < tokens && int64_t(out.size()) < most; ++t)
        if (maker.closes(t)) out.push_back(t);
    return out;
}

class Compression {
public:
    Compression(const PoolKernel& kernel, const smla_compress_args& args, const Env& env)
        : kernel_(kernel),
          args_(args),
          env_(env),
          score_(overlap(args) * CacheView(args.cache).width),
          scratch_(static_cast<size_t>(env.threads())) {
        Arena arena(env.workspace);
        for (Scratch& each : scratch_) each.take(arena, CacheView(args.cache).width);
    }

    void run() const {
        const EntryMaker<float> maker(args_);
        const std::vector<int64_t> closing = closing_tokens(maker, CompressOp::tasks(args_), env_.threads());
        if (closing.empty()) return;
        if (int64_t(closing.size()) < env_.threads()) run_channels(maker, closing);
        else run_tokens();
    }

private:
    // Gives whole tokens to each thread.
    void run_tokens() const {
        const int64_t tokens = CompressOp::tasks(args_),
                      ranges = std::min<int64_t>(tokens, kTasksPerThread * env_.threads());
        run_tasks(env_, ranges, [&](int64_t range, int worker) {
            EntryMaker<float> maker(args_);
            Rows rows;
            for (int64_t t = tokens * range / ranges; t < tokens * (range + 1) / ranges; ++t) {
                if (!maker.closes(t)) continue;
                find_rows(maker, t, rows);
                pool(rows, 0, maker.width(), scratch_[size_t(worker)]);
                maker.finish(t, scratch_[size_t(worker)].value);
            }
        });
    }

    // With fewer tokens than threads, several threads pool channels of one token. The steps before and after
    // use one thread per token.
    void run_channels(const EntryMaker<float>& maker, const std::vector<int64_t>& closing) const {
        const int64_t n = int64_t(closing.size()), width = maker.width(),
                      most = overlap(args_) * args_.ratio * width / kLeastWork,
                      wanted = ceil_div(kTasksPerThread * env_.threads(), n),
                      cuts = std::max<int64_t>(1, std::min({most, wanted, width / kChannels}));
        const auto cut_at = [&](int64_t i) { return width / kChannels * i / cuts * kChannels; };
        std::vector<Rows> rows(closing.size());
        run_tasks(env_, n, [&](int64_t i, int) { find_rows(maker, closing[size_t(i)], rows[size_t(i)]); });
        run_tasks(env_, n * cuts, [&](int64_t task, int) {
            const int64_t i = task / cuts, cut = task % cuts;
            pool(rows[size_t(i)], cut_at(cut), cut_at(cut + 1), scratch_[size_t(i)]);
        });
        run_tasks(env_, n, [&](int64_t i, int) {
            EntryMaker<float>(args_).finish(closing[size_t(i)], scratch_[size_t(i)].value);
        });
    }

    static void find_rows(const EntryMaker<float>& maker, int64_t token, Rows& rows) {
        rows.clear();
        maker.each_row(token, [&](int64_t row, int64_t kv) {
            rows.push_back(reinterpret_cast<const float*>(maker.state().at(row).row()) + kv);
        });
    }

    // Writes channels [begin, end) of the mean over rows to scratch.value.
    void pool(const Rows& rows, int64_t begin, int64_t end, const Scratch& scratch) const {
        kernel_.run({rows.data(), int64_t(rows.size()), score_, begin, end, scratch.peak, scratch.sum,
                     scratch.value});
        if (rows.empty()) return;  // then the mean is 0
        for (int64_t d = begin; d < end; ++d) scratch.value[d] /= scratch.sum[d];
    }

    const PoolKernel& kernel_;
    const smla_compress_args& args_;
    const Env& env_;
    const int64_t score_;           // distance of a row's scores from its kv
    std::vector<Scratch> scratch_;  // one per thread, or per token if there are fewer tokens
};

template <const PoolKernel& Kernel>
CallPlan<smla_compress_args> plan_compress(const smla_compress_args& args, const Env& env) {
    if (std::string why = why_no_isa(Kernel.isa, env.isa); !why.empty())
        return refuse_call<smla_compress_args>(std::move(why));
    if (args.state.format == SMLA_STATE_F64)
        return refuse_call<smla_compress_args>("f64 states are supported only by the generic kernel");
    if (const int64_t width = CacheView(args.cache).width; width % kChannels != 0)
        return refuse_call<smla_compress_args>(
            text("the width of entries, ", width, ", is not a multiple of ", kChannels));
    CallPlan<smla_compress_args> plan;
    plan.scratch = scratch_bytes(args, env);
    plan.launch = [](const smla_compress_args& call, const Env& at) { Compression(Kernel, call, at).run(); };
    return plan;
}

}  // namespace

#if defined(__x86_64__)
const Candidate<smla_compress_args> cpu::kAvx2Compress{.name = kPoolAvx2.name,
                                                       .plan = plan_compress<kPoolAvx2>};
#elif defined(__aarch64__)
const Candidate<smla_compress_args> cpu::kNeonCompress{.name = kPoolNeon.name,
                                                       .plan = plan_compress<kPoolNeon>};
#endif

}  // namespace smla
