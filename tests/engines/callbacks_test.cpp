// Functions of the caller: what they end, what they throw, and that everything is usable afterwards.
#include "kit/context_args.h"

#include <smla/smla.h>

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr int64_t kTokens = 64, kWidth = 4096;

// A product that takes seconds with plain loops.
class Product {
public:
    Product() : w_(size_t(kWidth * kWidth), 1.f), x_(size_t(kTokens * kWidth), 1.f), out_(x_.size()) {}
    smla_status run(smla_context* context, int64_t rows = kWidth) {
        smla_project_args args{};
        args.struct_size = sizeof args;
        args.x = smla_dense(x_.data(), SMLA_F32, 3, kTokens, 1, kWidth, 0);
        args.w = smla_dense(w_.data(), SMLA_F32, 3, 1, rows, kWidth, 0);
        args.out = smla_dense(out_.data(), SMLA_F32, 3, kTokens, 1, rows, 0);
        return smla_project(context, &args, {nullptr, 0}, nullptr);
    }
    float first() const { return out_[0]; }

private:
    std::vector<float> w_, x_, out_;
};

smla_context* make(smla_context_args args) {
    smla_context* out = nullptr;
    EXPECT_EQ(smla_context_create(&args, &out), SMLA_OK) << smla_last_error();
    return out;
}

std::string error_text() { return smla_last_error(); }

TEST(Callbacks, ALongCallEndsWhereItsCallerWantsThatAndTheContextServesOn) {
    for (const smla_engine engine : {SMLA_ENGINE_REFERENCE, SMLA_ENGINE_CPU}) {
        smla_context_args args = smla::kit::context_args(engine, engine == SMLA_ENGINE_CPU ? 2 : 0);
        args.kernel = engine == SMLA_ENGINE_CPU ? "project=cpu_generic_project" : nullptr;
        smla_context* context = make(args);
        Product product;
        int questions = 0;
        smla_set_interrupt([](void* user) { return int32_t(++*static_cast<int*>(user) == 2); }, &questions);
        EXPECT_EQ(product.run(context), SMLA_CANCELLED);
        EXPECT_EQ(questions, 2);
        EXPECT_STREQ(smla_status_name(SMLA_CANCELLED), "cancelled");
        EXPECT_EQ(product.run(context, 4), SMLA_OK) << smla_last_error();
        EXPECT_EQ(product.first(), float(kWidth));
        smla_set_interrupt(nullptr, nullptr);
        smla_context_destroy(context);
    }
}

TEST(Callbacks, TheInterruptFunctionMayNotCallTheLibrary) {
    smla_context* context = make(smla::kit::context_args(SMLA_ENGINE_REFERENCE));
    static smla_status status;
    status = SMLA_OK;
    smla_set_interrupt(
        [](void* user) {
            void* memory = nullptr;
            status = smla_allocate(static_cast<smla_context*>(user), 64, &memory);
            return int32_t(1);
        },
        context);
    EXPECT_EQ(Product().run(context), SMLA_CANCELLED);
    EXPECT_EQ(status, SMLA_INVALID_ARGUMENT);
    void* memory = nullptr;
    EXPECT_EQ(smla_allocate(context, 64, &memory), SMLA_OK) << smla_last_error();
    smla_release(context, memory);
    smla_set_interrupt(nullptr, nullptr);
    smla_context_destroy(context);
}

struct Allocations {
    int exception = 0;  // which one the next allocation throws; 0: none
    int held = 0;

    static void* alloc(void* self, size_t bytes, size_t alignment) {
        auto& at = *static_cast<Allocations*>(self);
        const int exception = std::exchange(at.exception, 0);
        if (exception == 1) throw std::runtime_error("arena is closed");
        if (exception == 2) throw std::bad_alloc();
        if (exception == 3) throw 3;
        ++at.held;
        return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    }
    static void free(void* self, void* memory) {
        static_cast<Allocations*>(self)->held -= memory != nullptr;
        std::free(memory);
    }
};

TEST(Callbacks, AnAllocatorThatThrowsEndsTheCall) {
    Allocations allocations;
    smla_context_args args = smla::kit::context_args(SMLA_ENGINE_CPU, 1);
    args.allocator = {&Allocations::alloc, &Allocations::free, &allocations};
    smla_context* context = make(args);
    const struct {
        smla_status status;
        const char* text;
    } wanted[] = {{SMLA_CANCELLED, "args.allocator.alloc: got an exception: arena is closed"},
                  {SMLA_OUT_OF_MEMORY, "bad_alloc"},
                  {SMLA_CANCELLED, "args.allocator.alloc: got an exception"}};
    for (int i = 0; i < 3; ++i) {
        allocations.exception = i + 1;
        void* memory = nullptr;
        EXPECT_EQ(smla_allocate(context, 64, &memory), wanted[i].status);
        EXPECT_NE(error_text().find(wanted[i].text), std::string::npos) << error_text();
        EXPECT_EQ(memory, nullptr);
        EXPECT_EQ(smla_allocate(context, 64, &memory), SMLA_OK) << smla_last_error();
        smla_release(context, memory);
    }
    EXPECT_EQ(allocations.held, 0);
    smla_context_destroy(context);
}

TEST(Callbacks, AParallelForThatThrowsEndsTheCall) {
    static int calls;
    calls = 0;
    smla_context_args args = smla::kit::context_args(SMLA_ENGINE_CPU, 2);
    args.kernel = "project=cpu_generic_project";
    args.parallel_for = [](void*, int64_t n, void (*body)(void*, int64_t), void* user) {
        if (++calls == 1) throw std::runtime_error("pool is closed");
        for (int64_t i = 0; i < n; ++i) body(user, i);
    };
    smla_context* context = make(args);
    Product product;
    EXPECT_EQ(product.run(context, 64), SMLA_CANCELLED);
    EXPECT_NE(error_text().find("args.parallel_for: got an exception: pool is closed"), std::string::npos)
        << error_text();
    EXPECT_EQ(product.run(context, 64), SMLA_OK) << smla_last_error();
    EXPECT_EQ(product.first(), float(kWidth));
    smla_context_destroy(context);
}

TEST(Callbacks, WhatALogFunctionThrowsIsDropped) {
    static int lines;
    lines = 0;
    smla_set_log([](void*, int32_t, const char*) { throw ++lines; }, nullptr);
    smla_context* context = make(smla::kit::context_args(SMLA_ENGINE_CPU, 1));
    EXPECT_EQ(lines, 1);
    smla_set_log(nullptr, nullptr);
    smla_context_destroy(context);
}

}  // namespace
