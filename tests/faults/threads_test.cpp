// Threads that cannot start, processes that fork, and processes that end while others work.
#include "child.h"
#include "work.h"

#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <thread>

namespace faults {
namespace {

int threads_of_this_process() {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);)
        if (line.rfind("Threads:", 0) == 0) return std::stoi(line.substr(8));
    return -1;
}

// A user who may start no thread more; root is not bound by the limit.
void become_a_user_without_threads() {
    if (geteuid() == 0) expect(setresuid(65534, 65534, 65534) == 0, "setresuid");
    const rlimit limit{1, 1};
    expect(setrlimit(RLIMIT_NPROC, &limit) == 0, "setrlimit");
}

TEST(Threads, ThatCannotStartAreAnErrorAndTheNextCallWorks) {
    const std::vector<float> wanted = attend(context(1));
    EXPECT_EQ(in_child([&] {
                  become_a_user_without_threads();
                  for (int i = 0; i < 3; ++i) {
                      try {
                          const smla::Context refused = context(4);
                          expect(false, "a context of 4 threads is refused");
                      } catch (const smla::Error& error) {
                          expect(error.code == SMLA_OUT_OF_MEMORY, "out of memory");
                          expect(error.field == "args.threads", "args.threads");
                          expect(error.got.rfind("0 of 3 started (", 0) == 0, error.got.c_str());
                      }
                      expect(attend(context(1)) == wanted, "one thread computes the same");
                  }
              }),
              "ok");
}

// OpenBLAS raises SIGINT where a thread of its own does not start.
TEST(Threads, OfTheBlasLibraryThatCannotStartAreAnError) {
    const Model model;
    EXPECT_EQ(in_child([&] {
                  const smla::Layer layer = model.layer(context(1));
                  become_a_user_without_threads();
                  for (int i = 0; i < 3; ++i) {
                      try {
                          model.forward(layer);  // one core needs no thread; or there is no such library
                      } catch (const smla::Error& error) {
                          expect(error.code == SMLA_OUT_OF_MEMORY, error.what());
                          expect(error.field == "threads", error.what());
                      }
                  }
              }),
              "ok");
}

TEST(Threads, AChildOfForkComputesWithContextsOfBothProcesses) {
    const Model model;
    EXPECT_EQ(in_child([&] {
                  const smla::Context context = faults::context(4);
                  const smla::Layer layer = model.layer(context);
                  const std::vector<float> wanted = attend(context), wanted_y = model.forward(layer);
                  std::atomic<bool> stop{false};
                  std::vector<std::thread> busy;  // so that every lock is held at some fork
                  for (int i = 0; i < 2; ++i)
                      busy.emplace_back([&, i] {
                          while (!stop) i ? attend(context) : model.forward(layer);
                      });
                  for (int i = 0; i < 30; ++i)
                      expect(in_child([&] {
                                 expect(attend(context) == wanted, "the parent's context");
                                 expect(model.forward(layer) == wanted_y, "the parent's layer");
                                 expect(attend(faults::context(3)) == wanted, "a context of its own");
                             }) == "ok",
                             "the child's child ends well");
                  stop = true;
                  for (std::thread& each : busy) each.join();
                  expect(attend(context) == wanted, "the parent goes on");
              }),
              "ok");
}

TEST(Threads, AChildOfForkDestroysWhatItInherited) {
    EXPECT_EQ(in_child([&] {
                  auto* const inherited = new smla::Context(context(4));
                  const std::vector<float> wanted = attend(*inherited);
                  expect(in_child([&] {
                             delete inherited;
                             expect(attend(context(2)) == wanted, "a context of its own");
                         }) == "ok",
                         "the child's child");
                  expect(attend(*inherited) == wanted, "the parent's own");
                  delete inherited;
              }),
              "ok");
}

TEST(Threads, ContextsComeAndGoInManyThreads) {
    const std::vector<float> wanted = attend(context(1));
    const int before = threads_of_this_process();
    std::atomic<int> wrong{0};
    std::vector<std::thread> callers;
    for (int i = 0; i < 8; ++i)
        callers.emplace_back([&] {
            for (int round = 0; round < 25; ++round)
                if (attend(context(1 + round % 4)) != wanted) ++wrong;
        });
    for (std::thread& each : callers) each.join();
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(threads_of_this_process(), before);
}

TEST(Threads, AProcessEndsWhileAPoolWorks) {
    const Model model;
    for (int i = 0; i < 20; ++i)
        EXPECT_EQ(in_child([&] {
                      auto& context = *new smla::Context(faults::context(3));
                      auto& layer = *new smla::Layer(model.layer(context));
                      for (int caller = 0; caller < 3; ++caller)
                          std::thread([&, caller] {
                              try {
                                  for (;;) caller ? attend(context) : model.forward(layer);
                              } catch (const smla::Error& error) {  // a product that began after exit()
                                  expect(error.code == SMLA_UNSUPPORTED, error.what());
                                  for (;;) pause();
                              }
                          }).detach();
                      usleep(20000);
                      std::exit(0);
                  }),
                  "ok");
}

}  // namespace
}  // namespace faults
