// Every allocation fails in its turn: the call says out of memory, nothing is lost, and the next call works.
#include "child.h"
#include "failing_memory.h"
#include "work.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstring>
#include <functional>
#include <new>

namespace faults {
namespace {

using Values = std::vector<float>;
using Scenario = std::function<Values()>;

int64_t now;  // which allocation fails

void tell_where(int signal) {
    char line[64];
    const int length =
        std::snprintf(line, sizeof line, "child: signal %d at allocation %ld\n", signal, long(now));
    if (write(STDERR_FILENO, line, size_t(length)) < 0) _exit(3);
    std::signal(signal, SIG_DFL);
    raise(signal);
}

// Whether the scenario ran to its end; an error must say what is missing.
bool runs(const Scenario& scenario, int64_t nth, int64_t more, const Values& wanted, bool& reached) {
    try {
        fail_allocation(nth, more);
        const Values found = scenario();
        reached = stop_failing() >= nth;
        expect(found == wanted, "a run that goes on is right");
        return true;
    } catch (const smla::Error& error) {
        stop_failing();
        if (error.code == SMLA_OUT_OF_MEMORY) return false;
        std::fprintf(stderr, "child: allocation %ld: %s\n", long(nth), error.what());
        _exit(1);
    } catch (const std::bad_alloc&) {  // this program's own
        stop_failing();
        return false;
    }
}

// All of the first allocations, then about a hundred of each doubling; SMLA_ALL_FAULTS=1: all.
int64_t next(int64_t nth) {
    static const bool all = std::getenv("SMLA_ALL_FAULTS");
    return nth + (all ? 1 : 1 + nth / 100);
}

void fail_each(const Scenario& scenario, int64_t more) {
    for (const int signal : {SIGABRT, SIGSEGV, SIGBUS}) std::signal(signal, tell_where);
    const Values wanted = scenario();
    expect(scenario() == wanted, "it repeats");
    int64_t failed = 0;
    const int64_t before = live_blocks();
    bool reached = true;
    for (now = 1; reached; now = next(now)) {
        if (!runs(scenario, now, more, wanted, reached)) ++failed;
        expect(scenario() == wanted, "the next call works");
        if (live_blocks() == before) continue;
        std::fprintf(stderr, "child: allocation %ld of which %ld blocks stay\n", long(now),
                     long(live_blocks() - before));
        _exit(1);
    }
    std::printf("%ld allocations, %ld failures tried\n", long(now), long(failed));
    std::fflush(stdout);
    expect(failed > 0, "something failed");
}

void expect_safe(const Scenario& scenario) {
    for (const int64_t more : {0, 5, 1000000}) {  // one, some in a row, all from there on
        EXPECT_EQ(in_child([&] {
                      alarm(240);
                      fail_each(scenario, more);
                  }),
                  "ok")
            << more;
    }
}

TEST(Allocation, OfAContextAndAStage) {
    expect_safe([] { return attend(context(1)); });
}

smla_plan_args plan_maxima() {
    smla_plan_args args{};
    args.groups = SMLA_GROUP_WINDOW | SMLA_GROUP_COMPRESSED;
    args.max_tokens = 16;
    args.max_requests = 2;
    args.max_seq_len = 64;
    args.window = 3;
    args.ratio = 4;
    args.heads = 8;
    args.workers = 4;
    args.topk = 32;
    return args;
}

TEST(Allocation, OfAPlan) {
    expect_safe([] {
        const smla::Context context = faults::context(1);
        const smla::Plan plan(context, plan_maxima());
        return Values(1, float(plan.fields().size()));
    });
}

smla_backend_args backend_args() {
    smla_backend_args args{};
    args.dtype = SMLA_F32;
    args.kv_cache_dtype = "row_f32";
    args.heads = 2;
    args.kv_lora_rank = 8;
    args.rope_dim = 2;
    args.nope_dim = 4;
    args.v_head_dim = 3;
    args.page_tokens = 4;
    args.topk = 4;
    args.max_tokens = 8;
    args.max_requests = 2;
    args.max_seq_len = 16;
    args.softmax_scale = 0.5;
    return args;
}

// One request of three tokens.
Values backend_step() {
    const smla::Context context = faults::context(1);
    const smla::Backend backend(context, backend_args());
    smla::Metadata metadata = backend.metadata();
    std::vector<int32_t> starts{0, 3}, lengths{3}, table{1, 0};
    std::vector<int32_t> topk{0, -1, -1, -1, 1, -1, -1, -1, 2, -1, -1, -1};
    smla_plan_batch batch{};
    batch.query_start_loc = smla::tensor(starts);
    batch.seq_lens = smla::tensor(lengths);
    batch.primary.block_table = smla::tensor(table, {1, 2});
    batch.primary.page_tokens = 4;
    metadata.build(batch);
    Values q = random_floats(3 * 2 * 6, 1), k_c = random_floats(3 * 8, 2), k_pe = random_floats(3 * 2, 3),
           w_uk_t = random_floats(2 * 4 * 8, 4), w_uv = random_floats(2 * 8 * 3, 5), out(3 * 2 * 3),
           memory(2 * 4 * 10);
    smla_backend_forward_args args{};
    args.metadata = metadata.get();
    args.q = smla::tensor(q, {3, 2, 6});
    args.k_c = smla::tensor(k_c, {3, 8});
    args.k_pe = smla::tensor(k_pe, {3, 2});
    args.topk_indices = smla::tensor(topk, {3, 4});
    args.w_uk_t = smla::tensor(w_uk_t, {2, 4, 8});
    args.w_uv = smla::tensor(w_uv, {2, 8, 3});
    args.out = smla::tensor(out, {3, 6});
    args.kv_cache = smla::cache(memory.data(), SMLA_ROW_F32, 2, 4, 10);
    smla::Workspace workspace = context.workspace();
    backend.forward(args, workspace);
    return out;
}

TEST(Allocation, OfABackend) { expect_safe(backend_step); }

TEST(Allocation, OfALayer) {
    const Model model;
    expect_safe([&] {
        const smla::Context context = faults::context(1);
        return Values(1, float(model.layer(context).info().hidden_size));
    });
}

TEST(Allocation, OfASession) {
    const Model model;
    const smla::Context context = faults::context(1);
    const smla::Layer layer = model.layer(context);
    expect_safe([&] { return model.forward(layer); });
}

// Threads take memory of the loader, which keeps some for the next ones: no count of what stays.
TEST(Allocation, OfAPoolOfThreads) {
    const Values wanted = attend(context(1));
    EXPECT_EQ(in_child([&] {
                  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS}) std::signal(signal, tell_where);
                  bool reached = true;
                  for (now = 1; reached; now = next(now)) {
                      runs([] { return attend(context(3)); }, now, 0, wanted, reached);
                      expect(attend(context(3)) == wanted, "the next call works");
                  }
              }),
              "ok");
}

}  // namespace
}  // namespace faults
