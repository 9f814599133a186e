// A backend's step on a GPU: arguments at addresses that stay, values in and out.
#pragma once

#include "backends/forward_world.h"
#include "gpu/needs_gpu.h"
#include "kit/context_args.h"
#include "kit/scratch.h"

#include <cuda_runtime.h>

#include <cstring>

namespace smla::test {

class GpuBackends : public testing::Test {
protected:
    void SetUp() override {
        SMLA_NEEDS_GPU();
        context = std::make_unique<Context>(kit::context_args(SMLA_ENGINE_CUDA));
    }
    Device& device() const { return context->device(); }
    // Arguments of a backend on this GPU. V3.2 may have pages of any size.
    BackendArgs here(BackendArgs args) const {
        args.device = device_info(device());
        return args;
    }

    std::unique_ptr<Context> context;
};

constexpr Tensor ForwardArgs::*kForwardTensors[] = {
    &ForwardArgs::q,    &ForwardArgs::q_pe,         &ForwardArgs::k_c,
    &ForwardArgs::k_pe, &ForwardArgs::topk_indices, &ForwardArgs::w_uk_t,
    &ForwardArgs::w_uv, &ForwardArgs::sink,         &ForwardArgs::out,
    &ForwardArgs::lse};
constexpr smla_cache ForwardArgs::*kForwardCaches[] = {&ForwardArgs::kv_cache, &ForwardArgs::swa_cache};

class There {
public:
    explicit There(Device& device) : device_(device) {}

    // Copies; a second step of the same sizes lands at the same addresses.
    ForwardArgs put(const ForwardArgs& host) {
        ForwardArgs out = host;
        size_t at = 0;
        for (auto member : kForwardTensors) {
            Tensor& tensor = out.*member;
            mark(tensor);
            if (present(tensor)) tensor.data = room(at, tensor.data, span_bytes(tensor));
            ++at;
        }
        for (auto member : kForwardCaches) {
            smla_cache& cache = out.*member;
            mark(cache);
            if (cache.data) cache.data = room(at, cache.data, cache_bytes(cache));
            ++at;
        }
        device_.wait(nullptr);
        return out;
    }
    // What put() took, as it is now, into the host's memory.
    void get(const ForwardArgs& host) const {
        device_.wait(nullptr);
        size_t at = 0;
        for (auto member : kForwardTensors) {
            const Tensor& tensor = host.*member;
            if (present(tensor))
                device_.download(tensor.data, rooms_[at].data(), span_bytes(tensor), nullptr);
            ++at;
        }
        for (auto member : kForwardCaches) {
            const smla_cache& cache = host.*member;
            if (cache.data) device_.download(cache.data, rooms_[at].data(), cache_bytes(cache), nullptr);
            ++at;
        }
    }

private:
    template <class Memory>
    void mark(Memory& memory) const {
        memory.device_type = device_.type();
        memory.device_index = device_.index();
    }
    void* room(size_t at, const void* host, size_t bytes) {
        if (rooms_.size() <= at) rooms_.resize(at + 1);
        if (rooms_[at].bytes() < bytes || !rooms_[at].data()) rooms_[at] = DeviceBuffer(device_, bytes);
        device_.upload(rooms_[at].data(), host, bytes, nullptr);
        return rooms_[at].data();
    }
    Device& device_;
    std::vector<DeviceBuffer> rooms_;
};

using kit::Scratch;

}  // namespace smla::test
