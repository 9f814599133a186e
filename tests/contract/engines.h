// The engines that a line of the contract is held on, driven through the C ABI alone.
#pragma once

#include "kit/device_copies.h"
#include "kit/scratch.h"

#include <smla/smla.h>

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace contract {

struct Engine {
    std::string name;
    smla_engine engine;
    smla_isa isa;
};
// reference, then cpu on every instruction set of the machine, or on SMLA_ISA alone where that is set. In a
// test of ContractGpu: cuda.
const std::vector<Engine>& engines();
std::vector<Engine> first_and_last_engine();
Engine reference_engine();

// Tests of this suite run on a GPU, and are skipped, by name, where there is none.
class ContractGpu : public testing::Test {
protected:
    void SetUp() override;
    void TearDown() override;
};
bool on_gpu();  // a test of ContractGpu runs
using smla::kit::gpu;

// A test of the contract is written once and runs twice: as Contract.NAME on this machine's processors, as
// ContractGpu.NAME on its GPU.
#define CONTRACT_TEST(name)               \
    void name();                          \
    TEST(Contract, name) { name(); }      \
    TEST_F(ContractGpu, name) { name(); } \
    void name()
// In a test that means nothing on a GPU: why.
#define CONTRACT_SKIP_ON_GPU(why) \
    if (on_gpu()) GTEST_SKIP() << "not on a GPU: " << why

struct Options {
    int32_t threads = 2;
    int32_t batch_invariant = 0;
    int32_t check_indices = 0;
    const char* kernel = nullptr;
};

class Context {
public:
    explicit Context(const Engine& engine, const Options& options = {});
    ~Context() { smla_context_destroy(context_); }
    Context(const Context&) = delete;
    Context& operator=(const Context&) = delete;
    operator smla_context*() const { return context_; }

private:
    smla_context* context_ = nullptr;
};
bool is_on_gpu(smla_context* context);

smla_error last_error();
testing::AssertionResult succeeded(smla_status status);  // with the library's text
// A refusal: the status, a field that names `field`, and texts of what it got and wants.
testing::AssertionResult refused(smla_status status, smla_status wanted, const std::string& field);

// A workspace of exactly so many bytes between guards, where the context's engine works: counters zeroed by
// the library, all else dirty.
class Scratch {
public:
    Scratch(smla_context* context, size_t bytes, uint8_t dirt = 0xFF);
    smla_workspace get() const { return {data(), bytes_}; }
    uint8_t* data() const { return memory_.data(); }
    // The counters are zero again and nothing was written past the end.
    testing::AssertionResult clean() const;

private:
    size_t bytes_;
    smla::kit::Scratch memory_;
};

constexpr size_t kHeader = 4096;  // counters and error word

}  // namespace contract
