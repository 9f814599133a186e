// Threads that cannot start, processes that fork, and processes that end while others work.
#include "child.h"
#include "work.h"

#include <gtest/gtest.h>

#include <dirent.h>
#include <dlfcn.h>

#include <atomic>
#include <barrier>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <thread>

namespace faults {
namespace {

// The value of "NAME:\tVALUE" in a file of /proc.
std::string field_of(const std::string& path, const std::string& name) {
    std::ifstream status(path);
    for (std::string line; std::getline(status, line);)
        if (line.rfind(name, 0) == 0) return line.substr(line.find_first_not_of(" \t", name.size()));
    return "";
}
std::string of_this_process(const std::string& name) { return field_of("/proc/self/status", name); }
int threads_of_this_process() { return std::stoi(of_this_process("Threads:")); }
int usable_cores() { return int(std::thread::hardware_concurrency()); }

bool uses_openblas() {
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);)
        if (line.find("libopenblas") != std::string::npos) return true;
    return false;
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
TEST(Threads, OfTheBlasLibraryThatCannotStartLeaveProductsToOwnLoops) {
    const Model model;
    EXPECT_EQ(in_child([&] {
                  const smla::Layer layer = model.layer(context(1));
                  become_a_user_without_threads();
                  expect(model.forward(layer) == model.forward(layer), "the same bits");
                  expect(usable_cores() < 2 || !uses_openblas(), "OpenBLAS is not loaded");
              }),
              "ok");
}

// Address space that ends after OpenBLAS was loaded, with buffers for one caller: the others take turns.
TEST(Threads, CallersWithoutABufferOfTheBlasLibraryTakeTurns) {
    const Model model;
    EXPECT_EQ(in_child([&] {
                  const smla::Layer layer = model.layer(context(1));
                  const std::vector<float> wanted = model.forward(layer);
                  std::barrier start(5);
                  std::vector<std::thread> callers;
                  for (int i = 0; i < 4; ++i)
                      callers.emplace_back([&] {
                          start.arrive_and_wait();
                          for (int round = 0; round < 40; ++round)
                              expect(model.forward(layer) == wanted, "the same bits");
                      });
                  const auto bytes = rlim_t(std::stoll(of_this_process("VmSize:"))) << 10;
                  const rlimit limit{bytes + (100 << 20), bytes + (100 << 20)};
                  expect(setrlimit(RLIMIT_AS, &limit) == 0, "setrlimit");
                  start.arrive_and_wait();
                  for (std::thread& each : callers) each.join();
              }),
              "ok");
}

// Every thread but the caller's own has a name of the library and blocks all signals that are not its own.
void expect_threads_that_leave_signals_alone(const std::set<std::string>& names) {
    const std::set<int> open{SIGILL,  SIGTRAP, SIGBUS, SIGFPE, SIGKILL, SIGSEGV,
                             SIGSTOP, SIGPROF, SIGSYS, 32,     33};
    std::set<std::string> seen;
    const std::unique_ptr<DIR, int (*)(DIR*)> tasks(opendir("/proc/self/task"), closedir);
    while (const dirent* task = readdir(tasks.get())) {
        if (task->d_name[0] == '.' || std::stoi(task->d_name) == gettid()) continue;
        const std::string status = std::string("/proc/self/task/") + task->d_name + "/status";
        std::string name = field_of(status, "Name:");
        for (int i = 0; i < 100 && name.rfind("smla-", 0) != 0;
             ++i) {  // a thread names itself when it starts
            usleep(10000);
            name = field_of(status, "Name:");
        }
        seen.insert(name);
        const uint64_t blocked = std::stoull(field_of(status, "SigBlk:"), nullptr, 16);
        for (int signal = 1; signal <= 64; ++signal)
            expect((blocked >> (signal - 1) & 1) == (open.count(signal) == 0),
                   (name + ", signal " + std::to_string(signal)).c_str());
    }
    std::string all;
    for (const std::string& each : seen) all += " " + each;
    expect(seen == names, ("the threads' names:" + all).c_str());
}

TEST(Threads, LeaveSignalsToTheCallerAndHaveNames) {
    const Model model;
    EXPECT_EQ(
        in_child([&] {
            const smla::Context context = faults::context(3);
            const smla::Layer layer = model.layer(context);
            const std::vector<float> wanted = model.forward(layer);
            std::set<std::string> of_blas;
            if (usable_cores() > 1 && uses_openblas()) of_blas = {"smla-blas"};
            std::set<std::string> all = of_blas;
            all.insert({"smla-1", "smla-2"});
            expect_threads_that_leave_signals_alone(all);
            char name[16];
            expect(pthread_getname_np(pthread_self(), name, sizeof name) == 0, "the caller's name");
            expect(std::string(name).rfind("smla", 0) != 0, "the caller keeps its name");
            expect(in_child([&] {
                       expect(model.forward(layer) == wanted, "the same bits");
                       expect_threads_that_leave_signals_alone(of_blas);
                   }) == "ok",
                   "the child");
            expect(model.forward(layer) == wanted, "the same bits");
            expect_threads_that_leave_signals_alone(all);
            sigset_t waited;  // as an engine that uses sigwait: the signal is not taken by another thread
            sigemptyset(&waited);
            sigaddset(&waited, SIGUSR1);
            pthread_sigmask(SIG_BLOCK, &waited, nullptr);
            kill(getpid(), SIGUSR1);
            int got = 0;
            expect(sigwait(&waited, &got) == 0 && got == SIGUSR1, "sigwait");
        }),
        "ok");
}

// A BLAS library that starts threads in a product, as those with OpenMP do.
TEST(Threads, ThatAProductOfAnyBlasLibraryStartsLeaveSignalsAlone) {
    const Model model;
    EXPECT_EQ(in_child([&] {
                  setenv("SMLA_CBLAS", SMLA_THREADING_BLAS, 1);
                  const smla::Layer layer = model.layer(context(1));
                  model.forward(layer);
                  void* const library = dlopen(SMLA_THREADING_BLAS, RTLD_NOW);
                  expect(library, "the library");
                  const int* const started = static_cast<const int*>(dlsym(library, "smla_test_started"));
                  const int* const open = static_cast<const int*>(dlsym(library, "smla_test_open"));
                  expect(*started > 1, "its products start threads");
                  expect(*open == 0, "they block SIGUSR1");
                  sigset_t mine;
                  pthread_sigmask(SIG_BLOCK, nullptr, &mine);
                  expect(!sigismember(&mine, SIGUSR1), "the caller's mask is as before");
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
