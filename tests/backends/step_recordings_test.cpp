// Steps that come again with the same addresses are recorded and replayed. The device here is the host's
// memory, called a GPU, that records a step as the function which queues it; tests/gpu has real ones.
#include "norm_chain.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

namespace smla::test {
namespace {

class Recorder final : public Device {
public:
    smla_device_type type() const override { return SMLA_CUDA; }
    int32_t index() const override { return 0; }
    const DeviceFacts& facts() const override { return facts_; }
    void* allocate(size_t bytes) override { return host_device().allocate(bytes); }
    void release(void* memory) noexcept override { host_device().release(memory); }
    bool reaches(const void*) const override { return true; }
    void upload(void*, const void*, size_t, smla_stream) override {}
    void download(void*, const void*, size_t, smla_stream) override {}
    void fill(void*, int, size_t, smla_stream) override {}
    void fill_rows(void*, size_t, int, size_t, size_t, smla_stream) override {}
    void wait(smla_stream) override {}
    bool capturing(smla_stream) override { return captured; }
    double seconds_of(smla_stream, const std::function<void()>&) override { return 0; }
    std::unique_ptr<Recording> record(const std::function<void(smla_stream)>& body) override {
        ++recorded;
        if (!records) return nullptr;
        body(nullptr);  // runs as well: the kernels are the processor's
        return std::make_unique<Counted>(replays);
    }

    int recorded = 0, replays = 0;
    bool records = true, captured = false;

private:
    struct Counted final : Recording {
        explicit Counted(int& replays) : replays(replays) {}
        void replay(smla_stream) const override { ++replays; }
        int& replays;
    };
    int enter() override { return 0; }
    void leave(int) noexcept override {}
    DeviceFacts facts_;
};

class StepRecordingsTest : public testing::Test {
protected:
    StepRecordingsTest() {
        env.device = &device;
        env.plans = &plans;
        env.records_steps = true;
        for (float& value : values) value = 1;
    }
    // A step whose tensors begin `at` blocks of 256 bytes into the memory.
    NormChain step(int64_t at = 0, int64_t norms = int64_t(StepRecordings::kLeastCalls)) {
        const auto tensor = [&](int64_t block, std::initializer_list<int64_t> shape) {
            Tensor out = make_tensor(values + 64 * (3 * at + block), SMLA_F32, shape);
            out.device_type = SMLA_CUDA;
            return out;
        };
        NormChain out;
        out.x = tensor(0, {3, 1, kNormWidth});
        out.weight = tensor(1, {kNormWidth});
        out.out = tensor(2, {3, 1, kNormWidth});
        out.norms = norms;
        return out;
    }
    int64_t run(const NormChain& chain, StageRecords* records = nullptr, size_t bytes = sizeof memory) {
        return run_chain(env, chain, {memory, bytes}, 1, nullptr, 0, records);
    }

    Recorder device;
    PlanCache plans;
    Env env;
    alignas(256) float values[64 * 64];
    alignas(256) char memory[1 << 16] = {};
};

TEST_F(StepRecordingsTest, TheThirdKnownStepIsRecordedAndLaterOnesAreReplayed) {
    EXPECT_EQ(run(step()), 2);  // planned: sized, then run
    EXPECT_EQ(run(step()), 1);
    EXPECT_EQ(run(step()), 1);
    EXPECT_EQ(device.recorded, 0);
    EXPECT_EQ(run(step()), 1);  // told to the recording alone
    EXPECT_EQ(device.recorded, 1);
    EXPECT_EQ(device.replays, 1);
    for (int i = 2; i < 5; ++i) {
        EXPECT_EQ(run(step()), 0);
        EXPECT_EQ(device.replays, i);
    }
    EXPECT_EQ(device.recorded, 1);
}

TEST_F(StepRecordingsTest, OtherAddressesHaveRecordingsOfTheirOwn) {
    for (int i = 0; i < 4; ++i) run(step(0));
    for (int i = 0; i < 2; ++i) EXPECT_EQ(run(step(1)), 1);
    EXPECT_EQ(device.recorded, 1);
    EXPECT_EQ(run(step(1)), 1);
    EXPECT_EQ(device.recorded, 2);
    EXPECT_EQ(run(step(0)), 0);
    EXPECT_EQ(run(step(1)), 0);
    NormChain moved = step(0);
    moved.weight.data = step(5).weight.data;  // one address of three
    EXPECT_EQ(run(moved), 1);
}

TEST_F(StepRecordingsTest, TheLeastRecentAddressesMakeRoom) {
    for (int i = 0; i < 5; ++i) run(step(0));
    for (int64_t at = 1; at < 8; ++at) run(step(at));
    EXPECT_EQ(run(step(0)), 0);  // there is room for eight
    run(step(8));                // pushes out step(1)
    EXPECT_EQ(run(step(0)), 0);
    for (int64_t at = 1; at < 10; ++at) run(step(at));
    EXPECT_EQ(run(step(0)), 1);
}

TEST_F(StepRecordingsTest, WhatIsNotWorthARecordingOrCannotHaveOneIsLaunched) {
    for (int i = 0; i < 6; ++i) run(step(0, int64_t(StepRecordings::kLeastCalls) - 1));
    EXPECT_EQ(device.recorded, 0);
    device.captured = true;
    for (int i = 0; i < 6; ++i) EXPECT_GE(run(step()), 1);
    EXPECT_EQ(device.recorded, 0);
    device.captured = false;
    device.records = false;
    for (int i = 0; i < 6; ++i) EXPECT_GE(run(step()), 1);
    EXPECT_EQ(device.recorded, 1);  // tried once
    env.records_steps = false;
    device.records = true;
    for (int i = 0; i < 6; ++i) EXPECT_GE(run(step(2)), 1);
    EXPECT_EQ(device.recorded, 1);
}

TEST_F(StepRecordingsTest, ARecordedStepStillWantsItsWorkspace) {
    for (int i = 0; i < 5; ++i) run(step());
    EXPECT_EQ(device.replays, 2);
    EXPECT_THROW(run(step(), nullptr, kWorkspaceHeader), Error);
    EXPECT_EQ(device.replays, 2);
    device.captured = true;
    EXPECT_EQ(run(step()), 1);  // a capture gets the launches
    EXPECT_EQ(device.replays, 2);
}

TEST_F(StepRecordingsTest, RecordsCountReplayedCalls) {
    StageRecords records{};
    for (int i = 0; i < 7; ++i) run(step(), &records);
    EXPECT_EQ(device.replays, 4);
    EXPECT_EQ(records[size_t(Stage::norm)].calls, 7 * int64_t(StepRecordings::kLeastCalls));
    EXPECT_NE(records[size_t(Stage::norm)].kernel, nullptr);
    EXPECT_EQ(records[size_t(Stage::attend)].kernel, nullptr);
}

}  // namespace
}  // namespace smla::test
