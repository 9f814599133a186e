// Contexts at once: on streams and threads of their own, each gives what it gives alone.
#include "attention.h"
#include "parts.h"
#include "soak.h"

#include <atomic>
#include <thread>

namespace gpu {
namespace {

constexpr int kThreads = 2;

// Calls body(thread) on as many threads.
template <class Body>
void on_threads(const Body& body) {
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) threads.emplace_back([&body, i] { body(i); });
    for (std::thread& thread : threads) thread.join();
}

// Long attention; with two GPUs, each thread has its own.
TEST(GpuSoak, ContextsOnStreamsAndThreads) {
    SMLA_NEEDS_GPU();
    int devices = 0;
    must(cudaGetDeviceCount(&devices));
    std::atomic<long> rounds = 0;
    on_threads([&](int thread) {
        const int device = thread % devices;
        const Current current(device);
        const smla::Context context = gpu::context(device);
        Attention it(thread ? 128 : 16);
        it.batch(kTokens, 0, 0);
        const Workspace workspace(context, context.workspace_size<SMLA_STAGE_ATTEND>(it.args));
        cudaStream_t stream = nullptr;
        must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        const auto step = [&] {
            for (int i = 0; i < 10; ++i) context.attend(it.args, workspace.get(), stream);
            must(cudaStreamSynchronize(stream));
            return it.take();
        };
        const std::vector<uint16_t> wanted = step();
        for (const Deadline deadline; !deadline.passed() && !testing::Test::HasFailure(); ++rounds)
            EXPECT_TRUE(step() == wanted) << "thread " << thread;
        cudaStreamDestroy(stream);
    });
    std::printf("%ld rounds on %d GPUs\n", rounds.load(), devices);
}

// Every kind of handle, made and destroyed again and again.
TEST(GpuSoak, HandlesComeAndGoOnThreads) {
    SMLA_NEEDS_GPU();
    std::vector<Bits> wanted;
    for (const NamedPart& each : parts()) wanted.push_back(bits_of(each));
    ConstantMemory memory;
    const auto round = [&](int thread) {
        cudaStream_t stream = nullptr;
        must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        for (size_t p = 0; p < parts().size(); ++p) {
            const std::unique_ptr<Part> part = parts()[p].make();
            for (int i = 0; i < 3; ++i) part->run(stream);
            must(cudaStreamSynchronize(stream));
            EXPECT_TRUE(part->bits() == wanted[p]) << parts()[p].name << ", thread " << thread;
        }
        cudaStreamDestroy(stream);
    };
    on_threads(round);
    memory.begin();
    long rounds = 0;
    for (const Deadline deadline; !deadline.passed() && !testing::Test::HasFailure(); ++rounds) {
        on_threads(round);
        memory.settle(deadline);
    }
    memory.expect_unchanged();
    std::printf("%ld rounds\n", rounds);
}

}  // namespace
}  // namespace gpu
