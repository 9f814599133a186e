// Sends of host memory: one kernel reads pinned staging memory over the bus and writes every parcel to its
// place, so that a build with a dozen short fields costs one launch and no copy of its own for each.
#include "engines/outbox.h"

#include "core/workspace.h"
#include "engines/cuda_common/launch.cuh"

#include <algorithm>

namespace smla {

namespace cuda {

namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostParts = 64;  // blocks of a parcel

struct Delivery {
    const uint4* from;
    uint4* to;
    int64_t units;
};
struct Deliveries {
    Delivery each[Outbox::kMostParcels];
    int64_t parts;  // blocks of each
};

__global__ void __launch_bounds__(kThreads) deliver_kernel(const __grid_constant__ Deliveries p) {
    const Delivery& own = p.each[blockIdx.x / p.parts];
    const int64_t part = int64_t(blockIdx.x) % p.parts;
    for (int64_t i = part * kThreads + threadIdx.x; i < own.units; i += p.parts * kThreads)
        own.to[i] = own.from[i];
}

__global__ void __launch_bounds__(kThreads)
    count_up_kernel(const int32_t* counts, int32_t* rows, int64_t columns) {
    const int32_t count = counts[blockIdx.x];
    int32_t* const row = rows + int64_t(blockIdx.x) * columns;
    for (int64_t c = threadIdx.x; c < columns; c += kThreads) row[c] = c < count ? int32_t(c) : -1;
}

class CudaOutbox final : public Outbox {
public:
    CudaOutbox(Device& device, size_t bytes) : device_(device) {
        Device::Scope scope(device);
        try {
            for (Slot& slot : slots_) {
                SMLA_CUDA_CALL(cudaHostAlloc(&slot.memory, std::max(bytes, kUnit), cudaHostAllocDefault));
                SMLA_CUDA_CALL(cudaEventCreateWithFlags(&slot.sent, cudaEventDisableTiming));
            }
        } catch (...) {
            release();
            throw;
        }
    }
    ~CudaOutbox() override {
        Device::Scope scope(device_);
        release();
    }

    void refuse_capture(const char* field, smla_stream stream) const override {
        Device::Scope scope(device_);
        cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
        SMLA_CUDA_CALL(cudaStreamIsCapturing(stream_of(stream), &status));
        SMLA_CHECK(status == cudaStreamCaptureStatusNone, field, "capturing",
                   "a stream outside of captures: build before a graph is captured, and before each replay");
    }

    char* next() override {
        Device::Scope scope(device_);
        current_ ^= 1;
        SMLA_CUDA_CALL(cudaEventSynchronize(slots_[current_].sent));  // at once if it was never recorded
        return static_cast<char*>(slots_[current_].memory);
    }

    void send(std::span<const Parcel> parcels, smla_stream stream) override {
        Device::Scope scope(device_);
        const Slot& slot = slots_[current_];
        Deliveries p{};
        int64_t most = 0, count = 0;
        for (const Parcel& parcel : parcels) {
            if (count == kMostParcels || (parcel.offset | parcel.bytes) % kUnit != 0)
                fail(SMLA_INTERNAL, "parcels", text(parcels.size(), " parcels, ", parcel.bytes, " bytes"),
                     text("at most ", kMostParcels, ", of whole units"));
            const int64_t units = int64_t(parcel.bytes / kUnit);
            p.each[count++] = {
                reinterpret_cast<const uint4*>(static_cast<const char*>(slot.memory) + parcel.offset),
                static_cast<uint4*>(parcel.to), units};
            most = std::max(most, units);
        }
        p.parts = std::clamp<int64_t>(ceil_div(most, 4 * kThreads), 1, kMostParts);
        Env env;
        env.device = &device_;
        env.stream = stream;
        launch(deliver_kernel, count * p.parts, kThreads, 0, env, p);
        SMLA_CUDA_CALL(cudaEventRecord(slot.sent, stream_of(stream)));
    }

private:
    struct Slot {
        void* memory = nullptr;
        cudaEvent_t sent = nullptr;
    };
    void release() noexcept {
        for (Slot& slot : slots_) {
            if (slot.sent) {
                cudaEventSynchronize(slot.sent);
                cudaEventDestroy(slot.sent);
            }
            if (slot.memory) cudaFreeHost(slot.memory);
        }
    }

    Device& device_;
    Slot slots_[2];
    int current_ = 0;
};

}  // namespace

}  // namespace cuda

std::unique_ptr<Outbox> open_outbox(Device& device, size_t bytes) {
    return std::make_unique<cuda::CudaOutbox>(device, bytes);
}

void count_up_on_gpu(const int32_t* counts, int32_t* rows, int64_t n, int64_t columns, Device& device,
                     smla_stream stream) {
    Device::Scope scope(device);
    Env env;
    env.device = &device;
    env.stream = stream;
    cuda::launch(cuda::count_up_kernel, n, cuda::kThreads, 0, env, counts, rows, columns);
}

}  // namespace smla
