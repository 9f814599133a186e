#include "linear/cblas_room.h"

#include "core/limits.h"
#include "core/status.h"
#include "linear/cblas.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <new>
#include <system_error>
#include <vector>

namespace smla {

namespace {

constexpr size_t kBuffer = size_t(128) << 20;
// Address space for loading: the library and what it depends on take 44 MiB, and a malloc arena, which a
// thread may take meanwhile, 64 MiB.
constexpr size_t kLibrary = size_t(48 + 64) << 20;
constexpr int kMostThreads = 64;  // of Debian's build
constexpr const char* kWayOut = "; an empty SMLA_CBLAS does without the library";

// Trial mappings, made in the way and in the sizes of OpenBLAS, so that limits on address space and strict
// overcommit count them alike.
class Mappings {
public:
    Mappings() = default;
    ~Mappings() {
        for (size_t i = 0; i < count_; ++i) munmap(all_[i].at, all_[i].bytes);
    }
    Mappings(const Mappings&) = delete;
    Mappings& operator=(const Mappings&) = delete;

    void add(size_t bytes) {
        void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at == MAP_FAILED)
            fail(SMLA_OUT_OF_MEMORY, "memory",
                 text("no room for ", count_ + 1, " mappings, the last of ", bytes >> 20, " MiB"),
                 text("the buffers of CBLAS", kWayOut));
        all_[count_++] = {at, bytes};
    }
    static constexpr int kMost = kMostThreads + 1;

private:
    struct Mapping {
        void* at;
        size_t bytes;
    };
    std::array<Mapping, kMost> all_{};  // no vector: hot calls take nothing from the heap
    size_t count_ = 0;
};

// Trial threads, which only have to exist at the same time. They are pthreads, because std::thread calls free
// in the new thread: a thread that calls malloc or free takes an arena of 64 MiB of address space, which
// stays.
class IdleThreads {
public:
    IdleThreads() : closed_(gate_) {}
    ~IdleThreads() {
        closed_.unlock();
        for (const pthread_t each : all_) pthread_join(each, nullptr);
    }
    IdleThreads(const IdleThreads&) = delete;
    IdleThreads& operator=(const IdleThreads&) = delete;

    void start(int threads) {
        all_.reserve(size_t(threads));
        for (int i = 0; i < threads; ++i) {
            pthread_t started;
            if (const int error = pthread_create(&started, nullptr, wait, &gate_))
                fail(SMLA_OUT_OF_MEMORY, "threads",
                     text(i, " of ", threads, " (", std::generic_category().message(error), ")"),
                     text("the threads of CBLAS", kWayOut));
            all_.push_back(started);
        }
    }

private:
    static void* wait(void* gate) {
        const std::lock_guard open(*static_cast<std::mutex*>(gate));
        return nullptr;
    }
    std::mutex gate_;
    std::unique_lock<std::mutex> closed_;
    std::vector<pthread_t> all_;
};

// How many threads OpenBLAS computes with: the first of these variables that is set, at most the cores of the
// affinity mask. It does not ask for a CPU limit.
int threads_of_cblas() {
    const int most = std::min(cores_of_affinity(), kMostThreads);
    for (const char* name : {"OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS"}) {
        const char* const value = std::getenv(name);
        const int threads = value ? std::atoi(value) : 0;
        if (threads > 0) return std::min(threads, most);
    }
    return most;
}

void make_room(const Cblas& library, int callers);

// Counts products in progress and the loading of the library. fork() and exit() wait until there are none: in
// a child a lock of OpenBLAS would stay closed for ever; at exit OpenBLAS joins threads that a product still
// uses, which may never end, and unmaps its buffers.
class Gate {
public:
    // `library`: whose product it is; null: none is loaded yet.
    void enter(const Cblas* library) {
        const std::lock_guard lock(mutex_);
        if (ended_) fail(SMLA_UNSUPPORTED, "process", "a call during exit()", "a process that goes on");
        if (library && library->take_buffer && inside_ + 1 > tried_) {
            make_room(*library, inside_ + 1);
            tried_ = inside_ + 1;
        }
        ++inside_;
    }
    void leave() {
        const std::lock_guard lock(mutex_);
        if (--inside_ == 0) empty_.notify_all();
    }
    void one_caller_is_served() {
        const std::lock_guard lock(mutex_);
        tried_ = std::max(tried_, 1);
    }

    // No product runs from here until go_on().
    void stop() {
        std::unique_lock lock(mutex_);
        empty_.wait(lock, [&] { return inside_ == 0; });
        lock.release();
    }
    void go_on() { mutex_.unlock(); }
    void go_on_in_child() {
        new (&mutex_) std::mutex;
        new (&empty_) std::condition_variable;
    }
    void end() {
        stop();
        ended_ = true;
        go_on();
    }

    static Gate& get() {
        static Gate& gate = *new Gate;  // never destroyed: threads may use it to the last
        return gate;
    }

private:
    std::mutex mutex_;
    std::condition_variable empty_;
    int inside_ = 0, tried_ = 0;  // callers now; most callers at once for which there was a trial
    bool ended_ = false;
};

// Makes OpenBLAS map buffers for `callers` callers, beside those that are in use: some may not be needed.
void make_room(const Cblas& library, int callers) {
    std::array<void*, Mappings::kMost> taken;
    callers = std::min(callers, Mappings::kMost);
    {
        Mappings mappings;
        for (int i = 0; i < callers; ++i) mappings.add(kBuffer);
    }
    for (int i = 0; i < callers; ++i) taken[size_t(i)] = library.take_buffer(0);
    for (int i = 0; i < callers; ++i) library.give_buffer(taken[size_t(i)]);
}

}  // namespace

void check_room_to_load_cblas() {
    const int threads = threads_of_cblas();
    IdleThreads idle;
    idle.start(threads - 1);
    Mappings mappings;
    mappings.add(kLibrary);
    for (int i = 0; i < threads; ++i) mappings.add(kBuffer);
}

void start_threads_of(const Cblas& library) {
    constexpr int n = 512, inner = 16;  // 2^22 products: OpenBLAS uses all threads from 2^18 on
    const std::vector<float> a(size_t(n) * inner);
    std::vector<float> c(size_t(n) * n);
    constexpr int row_major = 101, no_transpose = 111;
    library.sgemm(row_major, no_transpose, no_transpose, n, n, inner, 1.f, a.data(), inner, a.data(), n, 0.f,
                  c.data(), n);
    // After it is loaded: its own handler of fork must run after this one.
    static const int watched = pthread_atfork([] { Gate::get().stop(); }, [] { Gate::get().go_on(); },
                                              [] { Gate::get().go_on_in_child(); });
    static_cast<void>(watched);
    Gate::get().one_caller_is_served();
}

CblasLoading::CblasLoading() {
    static const int watched = std::atexit([] { Gate::get().end(); });
    static_cast<void>(watched);
    Gate::get().enter(nullptr);
}
CblasLoading::~CblasLoading() { Gate::get().leave(); }

CblasCaller::CblasCaller(const Cblas& library) { Gate::get().enter(&library); }
CblasCaller::~CblasCaller() { Gate::get().leave(); }

}  // namespace smla
