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

TEST(Allocation, OfAPlan) {
    expect_safe([] {
        const smla::Context context = faults::context(1);
        const smla::Plan plan(context, plan_maxima());
        return Values(1, float(plan.fields().size()));
    });
}

Values backend_step() {
    const smla::Context context = faults::context(1);
    const smla::Backend backend(context, BackendStep::backend());
    smla::Metadata metadata = backend.metadata();
    BackendStep step;
    metadata.build(step.batch());
    smla::Workspace workspace = context.workspace();
    backend.forward(step.args(metadata), workspace);
    return step.out;
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
