// StagingBuffer on a GPU. One kernel reads the pinned memory over the bus and makes all copies of a build, so
// a dozen short fields cost one launch instead of a dozen memcpy calls.
#include "engines/staging_buffer.h"

#include "core/workspace.h"
#include "engines/cuda/common/jobs.h"
#include "engines/cuda/common/launch.cuh"

#include <algorithm>

namespace smla::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 64;  // maximum for one copy

struct KernelCopy {
    const uint4* from;
    uint4* to;
    int64_t units;
};
struct KernelCopies {
    KernelCopy each[StagingBuffer::kMostCopies];
    int64_t blocks;  // for each copy
};

__global__ void __launch_bounds__(kThreads) copy_kernel(const __grid_constant__ KernelCopies p) {
    follow_grid_before();
    const KernelCopy& own = p.each[blockIdx.x / p.blocks];
    const int64_t block = int64_t(blockIdx.x) % p.blocks;
    for (int64_t i = block * kThreads + threadIdx.x; i < own.units; i += p.blocks * kThreads)
        own.to[i] = own.from[i];
}

__global__ void __launch_bounds__(kThreads)
    count_up_kernel(const int32_t* counts, int32_t* rows, int64_t columns) {
    follow_grid_before();
    const int32_t count = counts[blockIdx.x];
    int32_t* const row = rows + int64_t(blockIdx.x) * columns;
    for (int64_t c = threadIdx.x; c < columns; c += kThreads) row[c] = c < count ? int32_t(c) : -1;
}

class CudaStagingBuffer final : public StagingBuffer {
public:
    CudaStagingBuffer(Device& device, size_t bytes) : device_(device) {
        Device::Scope scope(device);
        try {
            for (Buffer& buffer : buffers_) {
                SMLA_CUDA_CALL(cudaHostAlloc(&buffer.memory, std::max(bytes, kUnit), cudaHostAllocDefault));
                SMLA_CUDA_CALL(cudaEventCreateWithFlags(&buffer.copied, cudaEventDisableTiming));
            }
        } catch (...) {
            release();
            throw;
        }
    }
    ~CudaStagingBuffer() override {
        try {
            Device::Scope scope(device_);
            release();
        } catch (...) {  // lost device: the scope fails, and there is nothing to wait for
            release();
        }
    }

    void refuse_capture(const char* field, smla_stream stream) const override {
        SMLA_CHECK(!device_.capturing(stream), field, "a stream in capture",
                   "a stream that is not being captured; build before the capture and before each replay");
    }

    char* next() override {
        Device::Scope scope(device_);
        current_ ^= 1;
        SMLA_CUDA_CALL(
            cudaEventSynchronize(buffers_[current_].copied));  // returns immediately if never recorded
        return static_cast<char*>(buffers_[current_].memory);
    }

    void copy(std::span<const StagedCopy> copies, smla_stream stream) override {
        Device::Scope scope(device_);
        const Buffer& buffer = buffers_[current_];
        KernelCopies p{};
        int64_t most = 0, count = 0;
        for (const StagedCopy& copy : copies) {
            if (count == kMostCopies || (copy.offset | copy.bytes) % kUnit != 0)
                fail(SMLA_INTERNAL, "copies",
                     text(copies.size(), " copies, ", copy.bytes, " bytes at ", copy.offset),
                     text("at most ", kMostCopies, ", sizes and offsets multiples of ", kUnit));
            const int64_t units = int64_t(copy.bytes / kUnit);
            p.each[count++] = {
                reinterpret_cast<const uint4*>(static_cast<const char*>(buffer.memory) + copy.offset),
                static_cast<uint4*>(copy.to), units};
            most = std::max(most, units);
        }
        p.blocks = std::clamp<int64_t>(ceil_div(most, 4 * kThreads), 1, kMostBlocks);
        Env env;
        env.device = &device_;
        env.stream = stream;
        launch_early(copy_kernel, count * p.blocks, kThreads, 0, env, p);
        SMLA_CUDA_CALL(cudaEventRecord(buffer.copied, stream_of(stream)));
    }

private:
    struct Buffer {
        void* memory = nullptr;
        cudaEvent_t copied = nullptr;
    };
    void release() noexcept {
        for (Buffer& buffer : buffers_) {
            if (buffer.copied) {
                cudaEventSynchronize(buffer.copied);
                cudaEventDestroy(buffer.copied);
            }
            if (buffer.memory) cudaFreeHost(buffer.memory);
        }
    }

    Device& device_;
    Buffer buffers_[2];
    int current_ = 0;
};

}  // namespace

std::unique_ptr<StagingBuffer> open_staging_buffer_on_gpu(Device& device, size_t bytes) {
    return std::make_unique<CudaStagingBuffer>(device, bytes);
}

void count_up_on_gpu(const int32_t* counts, int32_t* rows, int64_t n, int64_t columns, Device& device,
                     smla_stream stream) {
    Device::Scope scope(device);
    Env env;
    env.device = &device;
    env.stream = stream;
    launch_early(count_up_kernel, n, kThreads, 0, env, counts, rows, columns);
}

}  // namespace smla::cuda
