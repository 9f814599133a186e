// Tests of one score kernel for Hopper, skipped on other devices.
#pragma once

#include "engines/context.h"
#include "gpu/needs_gpu.h"

namespace smla::test {

class HopperScore : public testing::Test {
protected:
    explicit HopperScore(const char* kernel) : kernel_(kernel) {}

    void SetUp() override {
        SMLA_NEEDS_GPU();
        smla_context_args args{};
        args.struct_size = sizeof args;
        args.version = SMLA_VERSION;
        args.engine = SMLA_ENGINE_CUDA;
        context_ = std::make_unique<Context>(args);
        const int capability = context_->device().facts().capability;
        if (capability != 90) GTEST_SKIP() << "for sm_90, here is sm_" << capability;
    }
    Env env() const {  // where score runs this kernel
        Env out = context_->env({});
        out.demanded[size_t(Stage::score)] = kernel_;
        return out;
    }

    const char* const kernel_;
    std::unique_ptr<Context> context_;
};

}  // namespace smla::test
