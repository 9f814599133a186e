#include "linear/cblas_room.h"

#include "core/status.h"
#include "core/thread_pool.h"
#include "linear/cblas.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <system_error>
#include <vector>

namespace smla {

namespace {

constexpr size_t kBuffer = size_t(128) << 20;
// The library with what it needs takes 44 MiB of addresses, and an arena of malloc 64, should a thread take
// one meanwhile.
constexpr size_t kLibrary = size_t(48 + 64) << 20;
constexpr int kMostThreads = 64;  // of Debian's build
constexpr const char* kWayOut = "; an empty SMLA_CBLAS does without the library";

// Mapped as OpenBLAS does it, in its sizes: a limit on addresses and a strict overcommit both count it.
class Mappings {
public:
    Mappings() = default;
    ~Mappings() {
        for (const Mapping& each : all_) munmap(each.at, each.bytes);
    }
    Mappings(const Mappings&) = delete;
    Mappings& operator=(const Mappings&) = delete;

    void add(size_t bytes) {
        all_.reserve(all_.size() + 1);
        void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at == MAP_FAILED)
            fail(SMLA_OUT_OF_MEMORY, "memory",
                 text("no room for ", all_.size() + 1, " mappings, the last of ", bytes >> 20, " MiB"),
                 text("the buffers of CBLAS", kWayOut));
        all_.push_back({at, bytes});
    }

private:
    struct Mapping {
        void* at;
        size_t bytes;
    };
    std::vector<Mapping> all_;
};

// Threads that do nothing but exist at the same time. They are the system's, not std::thread: one that calls
// malloc or free takes an arena of 64 MiB of addresses, which stays.
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

// How many threads OpenBLAS computes with: the first of these variables that is set, at most the cores.
int threads_of_cblas() {
    const int most = std::min(usable_cores(), kMostThreads);
    for (const char* name : {"OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS"}) {
        const char* const value = std::getenv(name);
        const int threads = value ? std::atoi(value) : 0;
        if (threads > 0) return std::min(threads, most);
    }
    return most;
}

std::atomic<int> callers{0}, tried{0};
std::mutex trial;

// `now` buffers, whatever those in use are: at most one less of them is mapped without need.
void take_buffers(const Cblas& library, int now) {
    std::vector<void*> taken(static_cast<size_t>(now));
    {
        Mappings mappings;
        for (int i = 0; i < now; ++i) mappings.add(kBuffer);
    }
    for (void*& each : taken) each = library.take_buffer(0);
    for (void* const each : taken) library.give_buffer(each);
    tried.store(now, std::memory_order_release);
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
    constexpr int n = 1024, inner = 16;  // 2^24 products: OpenBLAS uses all threads from 2^18 on
    const std::vector<float> a(size_t(n) * inner), b(size_t(n) * inner);
    std::vector<float> c(size_t(n) * n);
    constexpr int row_major = 101, no_transpose = 111;
    library.sgemm(row_major, no_transpose, no_transpose, n, n, inner, 1.f, a.data(), inner, b.data(), n, 0.f,
                  c.data(), n);
    tried.store(1, std::memory_order_release);
}

CblasCaller::CblasCaller(const Cblas& library) {
    const int now = callers.fetch_add(1) + 1;
    if (!library.take_buffer || now <= tried.load(std::memory_order_acquire)) return;
    try {
        const std::lock_guard lock(trial);
        if (now > tried.load(std::memory_order_relaxed)) take_buffers(library, now);
    } catch (...) {
        callers.fetch_sub(1);
        throw;
    }
}

CblasCaller::~CblasCaller() { callers.fetch_sub(1); }

}  // namespace smla
