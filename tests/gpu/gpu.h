// Calls of the C++ header on a GPU: memory there, values in and out. Tests skip, visibly, where there is
// none.
#pragma once

#include "gpu/graph.h"
#include "gpu/needs_gpu.h"

#include <smla/smla.hpp>

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace gpu {

inline smla::Context context(int device = 0) {
    smla_context_args args{};
    args.engine = SMLA_ENGINE_CUDA;
    args.device_index = device;
    return smla::Context(args);
}

// Makes a device the current one for as long as it lives.
class Current {
public:
    explicit Current(int device) {
        must(cudaGetDevice(&before_));
        must(cudaSetDevice(device));
    }
    ~Current() { cudaSetDevice(before_); }

private:
    int before_ = 0;
};

// An array on the current device, and a dense tensor over it.
template <class T>
class Array {
public:
    Array(smla_dtype dtype, std::vector<int64_t> shape) {
        tensor_.dtype = dtype;
        tensor_.device_type = SMLA_CUDA;
        must(cudaGetDevice(&tensor_.device_index));
        tensor_.ndim = int32_t(shape.size());
        int64_t stride = 1;
        for (size_t i = shape.size(); i-- > 0;) {
            tensor_.shape[i] = shape[i];
            tensor_.stride_elems[i] = stride;
            stride *= shape[i];
        }
        count_ = size_t(stride);
        must(cudaMalloc(&tensor_.data, bytes()));
        must(cudaMemset(tensor_.data, 0xff, bytes()));
    }
    ~Array() { cudaFree(tensor_.data); }
    Array(const Array&) = delete;
    Array& operator=(const Array&) = delete;

    void set(const std::vector<T>& values) {
        ASSERT_EQ(values.size(), count_);
        must(cudaMemcpy(tensor_.data, values.data(), bytes(), cudaMemcpyHostToDevice));
    }
    std::vector<T> get() const {
        std::vector<T> out(count_);
        must(cudaMemcpy(out.data(), tensor_.data, bytes(), cudaMemcpyDeviceToHost));
        return out;
    }
    void poison() { must(cudaMemset(tensor_.data, 0xff, bytes())); }
    const smla_tensor& tensor() const { return tensor_; }
    size_t count() const { return count_; }

private:
    size_t bytes() const { return count_ * sizeof(T); }
    smla_tensor tensor_{};
    size_t count_ = 0;
};

// Device scratch for a call, counters zeroed, the rest dirty.
class Workspace {
public:
    Workspace(const smla::Context& context, size_t bytes) : memory_(SMLA_U8, {int64_t(bytes)}) {
        smla::check(smla_workspace_init(context.get(), get(), nullptr));
    }
    smla_workspace get() const { return {memory_.tensor().data, memory_.count()}; }
    std::vector<uint8_t> header() const {
        std::vector<uint8_t> all = memory_.get();
        all.resize(4096);
        return all;
    }

private:
    Array<uint8_t> memory_;
};

}  // namespace gpu
