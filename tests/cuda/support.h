// What the CUDA engine decides without a GPU: a device that has facts and nothing else.
#pragma once

#include "core/device.h"
#include "core/tensor.h"
#include "engines/candidate.h"

#include <stdexcept>
#include <vector>

namespace smla {

class FactsOnly final : public Device {
public:
    FactsOnly() {
        facts_.capability = 90;
        facts_.multiprocessors = 132;
        facts_.shared_bytes = 227 * 1024;
    }
    smla_device_type type() const override { return SMLA_CPU; }  // nothing may be asked of a driver
    int32_t index() const override { return 0; }
    const DeviceFacts& facts() const override { return facts_; }
    void* allocate(size_t) override { throw std::logic_error("no memory here"); }
    void release(void*) noexcept override {}
    bool reaches(const void*) const override { return true; }
    void upload(void*, const void*, size_t, smla_stream) override {}
    void download(void*, const void*, size_t, smla_stream) override {}
    void fill(void*, int, size_t, smla_stream) override {}
    void fill_rows(void*, size_t, int, size_t, size_t, smla_stream) override {}
    void wait(smla_stream) override {}
    bool capturing(smla_stream) override { return false; }
    double seconds_of(smla_stream, const std::function<void()>&) override { return 0; }

private:
    int enter() override { return 0; }
    void leave(int) noexcept override {}
    DeviceFacts facts_;
};

inline Env facts_env(FactsOnly& device) {
    Env env;
    env.engine = SMLA_ENGINE_CUDA;
    env.device = &device;
    return env;
}

// A tensor of a shape, without memory.
inline Tensor shaped(smla_dtype dtype, std::initializer_list<int64_t> shape) {
    return make_tensor(static_cast<void*>(nullptr), dtype, shape);
}

}  // namespace smla
