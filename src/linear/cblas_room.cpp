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
// Address space for loading: 44 MiB for the library and its dependencies, and 64 MiB for a malloc arena that
// a thread may create meanwhile.
constexpr size_t kLibrary = size_t(48 + 64) << 20;
constexpr int kMostThreads = 64;  // of Debian's build

// Trial mappings of the kind and size that OpenBLAS uses, so that limits on address space and strict
// overcommit apply equally.
class Mappings {
public:
    Mappings() = default;
    ~Mappings() {
        for (size_t i = 0; i < count_; ++i) munmap(all_[i].at, all_[i].bytes);
    }
    Mappings(const Mappings&) = delete;
    Mappings& operator=(const Mappings&) = delete;

    bool add(size_t bytes) {
        void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at == MAP_FAILED) return false;
        all_[count_++] = {at, bytes};
        return true;
    }
    static constexpr int kMost = kMostThreads + 2;

private:
    struct Mapping {
        void* at;
        size_t bytes;
    };
    std::array<Mapping, kMost> all_{};  // no vector: hot calls must not allocate
    size_t count_ = 0;
};

// Trial threads, which only have to exist at the same time. Trial threads are pthreads, because std::thread
// calls free in the new thread, and a thread that calls malloc or free permanently takes an arena of 64 MiB
// of address space.
class IdleThreads {
public:
    IdleThreads() : closed_(gate_) {}
    ~IdleThreads() {
        closed_.unlock();
        for (const pthread_t each : all_) pthread_join(each, nullptr);
    }
    IdleThreads(const IdleThreads&) = delete;
    IdleThreads& operator=(const IdleThreads&) = delete;

    // Starts threads. Returns why the system starts fewer threads; empty if it starts all.
    std::string start(int threads) {
        const LibraryThreads starting;
        all_.reserve(size_t(threads));
        for (int i = 0; i < threads; ++i) {
            pthread_t started;
            if (const int error = pthread_create(&started, nullptr, wait, &gate_))
                return text("only ", i, " of ", threads, " threads started (",
                            std::generic_category().message(error), ")");
            all_.push_back(started);
        }
        return "";
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

// Returns the number of OpenBLAS's threads: the first of these variables that is set, at most the cores of
// the affinity mask. A CPU limit has no effect.
int threads_of_cblas() {
    const int most = std::min(cores_of_affinity(), kMostThreads);
    for (const char* name : {"OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS"}) {
        const char* const value = std::getenv(name);
        const int threads = value ? std::atoi(value) : 0;
        if (threads > 0) return std::min(threads, most);
    }
    return most;
}

bool make_room(const Cblas& library, int callers);
void multiply(const Cblas& library);

// Counts products in progress and the loading of the library. fork() and exit() wait until there are none. In
// a child, a lock of OpenBLAS would stay locked forever. At exit, OpenBLAS may wait forever for threads that
// a product still uses, and unmaps its buffers.
class Gate {
public:
    // `library`: the product's library; null: none is loaded yet.
    void enter(const Cblas* library) {
        std::unique_lock lock(mutex_);
        check_not_ended();
        if (library && threads_ended_) start_again(*library);
        while (library && library->take_buffer && inside_ == served_) {
            if (make_room(*library, inside_ + 1)) {
                ++served_;
            } else {
                left_.wait(lock);
                check_not_ended();
            }
        }
        ++inside_;
    }
    void leave() {
        const std::lock_guard lock(mutex_);
        --inside_;
        left_.notify_all();
    }
    void one_caller_is_served() {
        const std::lock_guard lock(mutex_);
        served_ = std::max(served_, 1);
    }

    // Blocks products until go_on().
    void stop() {
        std::unique_lock lock(mutex_);
        left_.wait(lock, [&] { return inside_ == 0; });
        lock.release();
    }
    void go_on() { mutex_.unlock(); }
    // OpenBLAS ends its threads before fork() and restarts them at the next product of each process.
    void go_on_after_fork() {
        threads_ended_ = true;
        go_on();
    }
    void go_on_in_child() {
        new (&mutex_) std::mutex;
        new (&left_) std::condition_variable;
        threads_ended_ = true;
    }
    void end() {
        stop();
        ended_ = true;
        go_on();
    }

    static Gate& get() {
        static Gate& gate = *new Gate;  // never destroyed, because threads may use it until exit
        return gate;
    }

private:
    void check_not_ended() const {
        if (ended_)
            fail(SMLA_UNSUPPORTED, "process", "a call of CBLAS during exit()", "a call before exit()");
    }
    void start_again(const Cblas& library) {
        if (const std::string lacks = IdleThreads().start(threads_of_cblas()); !lacks.empty())
            fail(SMLA_OUT_OF_MEMORY, "CBLAS", lacks,
                 "enough threads to replace the threads that fork() ended");
        run_on_library_thread(kCblasThreads, [&] { multiply(library); });
        threads_ended_ = false;
    }

    std::mutex mutex_;
    std::condition_variable left_;
    int inside_ = 0, served_ = 0;  // current callers; callers that have buffers
    bool ended_ = false, threads_ended_ = false;
};

// Makes OpenBLAS map buffers for `callers` additional callers; some may not be needed. Returns false if there
// is no memory for them.
bool make_room(const Cblas& library, int callers) {
    std::array<void*, Mappings::kMost> taken;
    callers = std::min(callers, Mappings::kMost);
    {
        Mappings mappings;
        for (int i = 0; i < callers; ++i)
            if (!mappings.add(kBuffer)) return false;
    }
    for (int i = 0; i < callers; ++i) taken[size_t(i)] = library.take_buffer(0);
    for (int i = 0; i < callers; ++i) library.give_buffer(taken[size_t(i)]);
    return true;
}

// Runs a product in which every thread of OpenBLAS takes part.
void multiply(const Cblas& library) {
    constexpr int n = 512, inner = 16;  // 2^22 products: OpenBLAS uses all threads from 2^18 on
    const std::vector<float> a(size_t(n) * inner);
    std::vector<float> c(size_t(n) * n);
    constexpr int row_major = 101, no_transpose = 111;
    library.sgemm(row_major, no_transpose, no_transpose, n, n, inner, 1.f, a.data(), inner, a.data(), n, 0.f,
                  c.data(), n);
}

}  // namespace

std::string what_cblas_lacks() {
    const int threads = threads_of_cblas();
    Mappings mappings;
    const size_t bytes = kLibrary + size_t(threads) * kBuffer;
    bool room = mappings.add(bytes) && mappings.add(kLibrary);
    for (int i = 0; i < threads; ++i) room = room && mappings.add(kBuffer);
    if (!room)
        return text("less than ", bytes >> 19,
                    " MiB (twice the memory that OpenBLAS requires) can be mapped");
    // Threads come last: glibc keeps the stacks of threads that have ended.
    return IdleThreads().start(threads);
}

void start_threads_of(const Cblas& library) {
    multiply(library);
    // Registered after loading, because OpenBLAS's own fork handler must run after this one.
    static const int watched =
        pthread_atfork([] { Gate::get().stop(); }, [] { Gate::get().go_on_after_fork(); },
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

CblasCaller::CblasCaller(const Cblas& library) {
    Gate::get().enter(&library);
    if (!library.parallel || library.parallel() != 1) starting_.emplace();
}
CblasCaller::~CblasCaller() { Gate::get().leave(); }

}  // namespace smla
