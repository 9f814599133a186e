// The device's memory is full. A suite of its own: nothing else may use the device meanwhile
// (scripts/gpu_check runs it alone).
#include "child.h"
#include "failing_calls.h"
#include "graph.h"
#include "needs_gpu.h"
#include "parts.h"

#include <smla/smla.hpp>

#include <cuda_runtime.h>

#include <cstdio>

namespace gpu {
namespace {

constexpr size_t kMiB = size_t(1) << 20;

// All of the device's memory that can be had, but for a block that release() gives back.
class Full {
public:
    explicit Full(size_t kept) {
        if (kept) must(cudaMalloc(&kept_, kept));
        size_t available = 0, total = 0;
        must(cudaMemGetInfo(&available, &total));
        for (size_t bytes = available; bytes >= 256;) {
            void* block = nullptr;
            if (cudaMalloc(&block, bytes) == cudaSuccess) {
                blocks_.push_back(block);
                continue;
            }
            cudaGetLastError();
            bytes /= 2;
        }
    }
    ~Full() {
        release();
        for (void* block : blocks_) cudaFree(block);
    }
    Full(const Full&) = delete;
    Full& operator=(const Full&) = delete;
    void release() {
        if (kept_) cudaFree(kept_);
        kept_ = nullptr;
    }

private:
    void* kept_ = nullptr;
    std::vector<void*> blocks_;
};

size_t available() {
    size_t bytes = 0, total = 0;
    must(cudaDeviceSynchronize());
    must(cudaMemGetInfo(&bytes, &total));
    return bytes;
}

// Whether the part ran; else there was no memory for it, and it said so.
bool runs(const NamedPart& part, const Bits& wanted) {
    try {
        EXPECT_TRUE(bits_of(part) == wanted) << part.name;
        return true;
    } catch (const smla::Error& error) {
        std::printf("%s: %s\n", part.name.c_str(), error.what());
        std::fflush(stdout);
        EXPECT_EQ(error.code, SMLA_OUT_OF_MEMORY) << part.name << ": " << error.what();
        return false;
    }
}

TEST(GpuMemoryFull, IsAnErrorAndTheNextCallWorks) {
    SMLA_NEEDS_GPU();
    SMLA_IN_A_CHILD();
    std::vector<Bits> wanted;
    for (int round = 0; round < 2; ++round) {  // what the driver and cuBLASLt keep is theirs from here on
        wanted.clear();
        for (const NamedPart& part : parts()) wanted.push_back(bits_of(part));
    }
    { const Full once(0); }
    const Held before = held();
    const size_t room = available();
    for (const size_t kept : {size_t(0), 2 * kMiB, 16 * kMiB, 128 * kMiB}) {
        size_t ran = 0;
        {
            Full full(kept);
            full.release();
            for (size_t p = 0; p < parts().size(); ++p) ran += runs(parts()[p], wanted[p]);
        }
        std::printf("%zu MiB left: %zu of %zu parts ran\n", kept / kMiB, ran, parts().size());
        EXPECT_EQ(cudaGetLastError(), cudaSuccess);
        EXPECT_TRUE(kept || ran == 0) << "a part that needs no memory";
        EXPECT_TRUE(held() == before) << held().text() << "; there were " << before.text();
        for (size_t p = 0; p < parts().size(); ++p)
            EXPECT_TRUE(bits_of(parts()[p]) == wanted[p]) << parts()[p].name << ", afterwards";
    }
    EXPECT_EQ(available(), room) << "bytes of the device that can be had, before: " << room;
}

// The room for another process's context is gone.
TEST(GpuMemoryFull, AnotherProcessIsToldSo) {
    SMLA_NEEDS_GPU();
    if (child_role() == "second") {
        try {
            bits_of(parts().front());
            std::printf("it ran\n");
        } catch (const smla::Error& error) {
            std::printf("%s\n", error.what());
            EXPECT_EQ(error.code, SMLA_OUT_OF_MEMORY) << error.what();
        }
        return;
    }
    SMLA_IN_A_CHILD();
    const Full full(0);
    Child second("second");
    const std::string complaint = second.complaint();
    std::printf("the second process: %s\n", second.output().c_str());
    EXPECT_EQ(complaint, "");
}

TEST(GpuFaults, CachesLargerThanTheDevice) {
    SMLA_NEEDS_GPU();
    const NamedPart& layer = parts().back();
    const Bits wanted = bits_of(layer);
    const Held before = held();
    {
        smla_context_args on{};
        on.engine = SMLA_ENGINE_CUDA;
        const smla::Context context(on);
        EXPECT_THROW(context.buffer(size_t(1) << 50), smla::Error);
        smla_error error{};
        smla_last_error_info(&error);
        EXPECT_EQ(error.status, SMLA_OUT_OF_MEMORY) << error.message;
        smla_plan_args args{};
        args.groups = SMLA_GROUP_WINDOW;
        args.max_tokens = 1 << 29;
        args.max_requests = 1 << 20;
        args.max_seq_len = 1 << 30;
        args.window = 1 << 14;
        EXPECT_THROW(smla::Plan(context, args), smla::Error);
        smla_last_error_info(&error);
        std::printf("a plan: %s\n", error.message);
        EXPECT_EQ(error.status, SMLA_OUT_OF_MEMORY) << error.message;
    }
    EXPECT_TRUE(held() == before) << held().text() << "; there were " << before.text();
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
    EXPECT_TRUE(bits_of(layer) == wanted);
}

}  // namespace
}  // namespace gpu
