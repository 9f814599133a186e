// Runs one kernel of the GPU engine by name on tensors placed there, for checks and timings.
#pragma once

#include "engines/candidate.h"
#include "engines/cuda/common/check.h"
#include "ops/ops.h"

#include <cstring>
#include <memory>
#include <vector>

namespace smla::bench {

class Gpu {
public:
    Gpu() : device_(open_cuda_device(0)) {
        env_.engine = SMLA_ENGINE_CUDA;
        env_.device = device_.get();
    }
    Device& device() { return *device_; }
    Env& env() { return env_; }

    // A copy on the device; lives as long as this does or until clear().
    template <class T>
    T* upload(const std::vector<T>& values, size_t shift = 0) {
        T* to = allocate<T>(values.size() + shift) + shift;
        if (!values.empty()) device_->upload(to, values.data(), values.size() * sizeof(T), nullptr);
        return to;
    }
    template <class T>
    T* allocate(size_t count, int fill = 0xff) {
        buffers_.emplace_back(*device_, count * sizeof(T) + 1);
        device_->fill(buffers_.back().data(), fill, count * sizeof(T), nullptr);
        return static_cast<T*>(buffers_.back().data());
    }
    template <class T>
    std::vector<T> download(const T* from, size_t count) {
        std::vector<T> out(count);
        if (count) device_->download(out.data(), from, count * sizeof(T), nullptr);
        return out;
    }
    void clear() {
        device_->wait(nullptr);
        buffers_.clear();
        workspace_ = {};
    }

    static Tensor tensor(const void* data, smla_dtype dtype, std::initializer_list<int64_t> shape) {
        Tensor out = make_tensor(data, dtype, shape);
        out.device_type = SMLA_CUDA;
        return out;
    }

    // The candidate of that name with a dirty workspace of the bytes it asks for within `budget`.
    template <Stage S>
    const Candidate<ArgsOf<S>>& prepare(const char* name, const ArgsOf<S>& args, size_t budget = 0) {
        OpOf<S>::check(args, env_.checks());
        for (const auto& candidate : cuda_candidates<S>()) {
            if (std::strcmp(candidate.name, name) != 0) continue;
            const std::string refusal = candidate.refuse(args, env_);
            if (!refusal.empty()) fail(SMLA_UNSUPPORTED, name, refusal, "no refusal");
            const size_t bytes = candidate.workspace(args, env_, budget);
            if (workspace_.bytes() < bytes) workspace_ = DeviceBuffer(*device_, bytes);
            device_->fill(workspace_.data(), 0xff, bytes, nullptr);
            device_->fill(workspace_.data(), 0, kWorkspaceHeader, nullptr);
            env_.workspace = {workspace_.data(), budget ? budget : bytes};
            return candidate;
        }
        fail(SMLA_UNSUPPORTED, name, "no such kernel", "a kernel of the stage");
    }
    // Runs it once; the counters of the workspace must be zero again.
    template <Stage S>
    void run(const char* name, const ArgsOf<S>& args, size_t budget = 0) {
        const auto& kernel = prepare<S>(name, args, budget);
        kernel.run(args, env_);
        device_->wait(nullptr);
        for (const char byte : download(static_cast<const char*>(workspace_.data()), kWorkspaceHeader))
            if (byte) fail(SMLA_DEVICE_ERROR, name, "counters that are not zero after the call", "zeros");
    }
    template <Stage S>
    bool refuses(const char* name, const ArgsOf<S>& args) {
        for (const auto& candidate : cuda_candidates<S>())
            if (std::strcmp(candidate.name, name) == 0) return !candidate.refuse(args, env_).empty();
        return true;
    }

private:
    std::unique_ptr<Device> device_;
    Env env_;
    std::vector<DeviceBuffer> buffers_;
    DeviceBuffer workspace_;
};

// Counts what was checked; prints what is wrong.
struct Report {
    bool brief = false, tiny = false;  // short lists, for sanitizers; tiny ones are brief too
    int checks = 0, failures = 0;
    double worst = 0;  // error of a logit in units of its bound
    bool check(bool ok, const std::string& what) {
        ++checks;
        if (ok) return true;
        if (++failures <= 40) std::printf("WRONG %s\n", what.c_str());
        return false;
    }
};

void check_score(Gpu& gpu, Report& report);
void check_select(Gpu& gpu, Report& report);
void check_score_select(Gpu& gpu, Report& report);

}  // namespace smla::bench
