// Plans on a GPU against plans on the host, bit by bit: random steps one after the other, garbage, graphs
// replayed over changing steps, plans of a server's size.
#include "engines/plan.h"
#include "engines/context.h"
#include "gpu/needs_gpu.h"
#include "kit/context_args.h"
#include "plan/device_order.h"
#include "plan/random_batch.h"

#include <smla/smla.h>

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <map>

namespace smla::test {
namespace {

void must(cudaError_t result) { ASSERT_EQ(result, cudaSuccess) << cudaGetErrorString(result); }

smla_context_args gpu_args() { return kit::context_args(SMLA_ENGINE_CUDA); }

class GpuPlan : public testing::Test {
protected:
    void SetUp() override {
        SMLA_NEEDS_GPU();
        context_ = std::make_unique<Context>(gpu_args());
    }
    Device& device() const { return context_->device(); }

    std::unique_ptr<Context> context_;
};

// A batch's arrays on the GPU, at addresses of their own with room for any batch, as a server keeps them.
class Persistent {
public:
    explicit Persistent(Device& device) : device_(device) {}

    PlanBatch put(const Batch& batch) {
        PlanBatch view = batch.view();
        take("starts", view.query_start_loc);
        take("lengths", view.seq_lens);
        take("rope", view.rope_positions);
        PlanGroup* groups[] = {&view.primary, &view.window, &view.compressed,
                               &view.index,   &view.state,  &view.index_state};
        for (size_t g = 0; g < 6; ++g) {
            take(std::string("table") + kGroupNames[g], groups[g]->block_table);
            take(std::string("slots") + kGroupNames[g], groups[g]->slots);
        }
        return view;
    }

private:
    void take(const std::string& name, Tensor& tensor) {
        if (!present(tensor)) return;
        constexpr size_t kRoom = 1 << 22;
        DeviceBuffer& room = rooms_[name];
        if (!room.data()) room = DeviceBuffer(device_, kRoom);
        ASSERT_LE(span_bytes(tensor), kRoom);
        device_.fill(room.data(), 0xa5, std::min(kRoom, span_bytes(tensor) + 256), nullptr);
        device_.upload(room.data(), tensor.data, span_bytes(tensor), nullptr);
        tensor.data = room.data();
        tensor.device_type = device_.type();
        tensor.device_index = device_.index();
    }
    Device& device_;
    std::map<std::string, DeviceBuffer> rooms_;
};

// The whole memory of a field, padding behind the step included.
std::vector<uint8_t> memory_of(const Plan& plan, const FieldSpec& spec, Device& device) {
    const Tensor field = largest_field(spec, plan.maxima());
    std::vector<uint8_t> out(size_t(element_count(field) * dtype_bits(field.dtype) / 8));
    if (present(field)) device.download(out.data(), (plan.fields().*spec.member).data, out.size(), nullptr);
    return out;
}

void expect_equal(const Plan& host, const Plan& gpu, Device& device) {
    for (const FieldSpec& spec : kPlanFieldSpecs) {
        ASSERT_EQ(host.find(spec.name) != nullptr, gpu.find(spec.name) != nullptr) << spec.name;
        ASSERT_TRUE(memory_of(host, spec, host_device()) == memory_of(gpu, spec, device)) << spec.name;
    }
}

Batch random_step(Dice& dice, const PlanMaxima& maxima) {
    Batch batch = random_batch(dice, maxima);
    if (batch.tokens == 0) batch.tokens = std::max(1, batch.starts.back());
    return batch;
}

TEST_F(GpuPlan, RandomStepsOneAfterTheOther) {
    for (uint32_t seed = 0; seed < 60; ++seed) {
        SCOPED_TRACE(seed);
        Dice dice(seed);
        PlanMaxima maxima = random_maxima(dice);
        maxima.uniform_decodes = dice.in(0, 1);
        Plan host(maxima), gpu(maxima, plan_place(*context_));
        Persistent memory(device());
        for (int step = 0; step < 6; ++step) {
            SCOPED_TRACE(step);
            const Batch batch = random_step(dice, maxima);
            host.build(batch.view());
            gpu.build(memory.put(batch));
            device().wait(nullptr);
            expect_equal(host, gpu, device());
            if (HasFatalFailure()) return;
        }
    }
}

// The host cannot say what garbage becomes, the same rule in another order can.
TEST_F(GpuPlan, Garbage) {
    for (uint32_t seed = 500; seed < 560; ++seed) {
        SCOPED_TRACE(seed);
        Dice dice(seed);
        const PlanMaxima maxima = random_maxima(dice);
        Plan model(maxima, device_order()), gpu(maxima, plan_place(*context_));
        Persistent memory(device());
        for (int step = 0; step < 4; ++step) {
            const Batch batch = hostile_batch(dice, maxima);
            model.build(batch.view());
            gpu.build(memory.put(batch));
            device().wait(nullptr);
            expect_equal(model, gpu, device());
            if (HasFatalFailure()) return;
        }
    }
}

// More requests than a block has threads, long lists, every group.
PlanMaxima large(bool list_entries) {
    PlanMaxima maxima{};
    maxima.struct_size = sizeof maxima;
    maxima.groups = kPlanGroups;
    maxima.max_tokens = 3000;
    maxima.max_requests = 1100;
    maxima.max_seq_len = 20000;
    maxima.speculative_tokens = 1;
    maxima.window = 128;
    maxima.ratio = list_entries ? 128 : 4;
    maxima.list_entries = list_entries;
    return maxima;
}

// A server's step of `requests`: decodes, then prefills; some requests of a padded graph have nothing.
Batch server_step(Dice& dice, const PlanMaxima& maxima, int32_t requests, int32_t tokens) {
    Batch batch;
    const int32_t decodes = dice.in(0, requests);
    int32_t left = tokens;
    for (int32_t r = 0; r < requests; ++r) {
        const int32_t wanted = r < decodes ? dice.in(0, 2) : dice.in(0, 40), query = std::min(left, wanted);
        add_request(batch, query, query ? dice.in(query, maxima.max_seq_len) : 0);
        left -= query;
    }
    batch.tokens = tokens;
    for (int g = 0; g < 6; ++g) {
        Group& group = batch.groups[size_t(g)];
        const bool entries = g == kCompressed || g == kIndex;
        group.page_tokens = entries ? 64 : 256;
        group.columns = maxima.max_seq_len / (entries ? maxima.ratio : 1) / group.page_tokens + 1;
        for (int64_t i = 0; i < requests * group.columns; ++i) group.table.push_back(dice.in(0, 100000));
    }
    for (int32_t t = 0; t < tokens; ++t) batch.groups[kWindow].slots.push_back(dice.in(-1, 1 << 30));
    return batch;
}

TEST_F(GpuPlan, StepsOfAServersSize) {
    for (const bool list_entries : {false, true}) {
        const PlanMaxima maxima = large(list_entries);
        Plan host(maxima), gpu(maxima, plan_place(*context_));
        Persistent memory(device());
        Dice dice(9);
        for (const auto& [requests, tokens] :
             {std::pair{1100, 3000}, {1, 1}, {600, 700}, {257, 2999}, {0, 5}}) {
            const Batch batch = server_step(dice, maxima, requests, tokens);
            host.build(batch.view());
            gpu.build(memory.put(batch));
            device().wait(nullptr);
            expect_equal(host, gpu, device());
            if (HasFatalFailure()) return;
        }
    }
}

// Captured once, then replayed while requests grow, end and make room for padding; a build of its own between
// two replays may reach further than the graph.
TEST_F(GpuPlan, AGraphFollowsItsTensors) {
    const PlanMaxima maxima = large(true);
    Plan host(maxima), gpu(maxima, plan_place(*context_));
    Persistent memory(device());
    Dice dice(10);
    constexpr int32_t kRequests = 40, kTokens = 64;
    std::map<std::string, const void*> addresses;
    for (const char* name : gpu.names()) addresses[name] = gpu.find(name)->data;

    PlanBatch view = memory.put(server_step(dice, maxima, kRequests, kTokens));
    cudaStream_t stream = nullptr;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    must(cudaDeviceSynchronize());
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    view.stream = stream;
    gpu.build(view);
    must(cudaStreamEndCapture(stream, &graph));
    must(cudaGraphInstantiate(&exec, graph, 0));
    for (int round = 0; round < 12; ++round) {
        SCOPED_TRACE(round);
        const Batch batch = server_step(dice, maxima, kRequests, kTokens);
        memory.put(batch);
        device().wait(nullptr);
        must(cudaGraphLaunch(exec, stream));
        must(cudaStreamSynchronize(stream));
        host.build(batch.view());
        expect_equal(host, gpu, device());
        if (HasFatalFailure()) break;
        if (round % 4 != 1) continue;
        const Batch wider = server_step(dice, maxima, 300, 900);
        Persistent other(device());
        gpu.build(other.put(wider));
        device().wait(nullptr);
        host.build(wider.view());
        expect_equal(host, gpu, device());
    }
    for (const char* name : gpu.names()) EXPECT_EQ(gpu.find(name)->data, addresses[name]) << name;
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
}

TEST_F(GpuPlan, ThroughTheCAbi) {
    const smla_context_args args = gpu_args();
    smla_context* context = nullptr;
    ASSERT_EQ(smla_context_create(&args, &context), SMLA_OK) << smla_last_error();
    smla_plan_args maxima = large(false);
    maxima.context = context;
    maxima.heads = 16;
    maxima.workers = 132;
    smla_plan* plan = nullptr;
    ASSERT_EQ(smla_plan_create(&maxima, &plan), SMLA_OK) << smla_last_error();
    Dice dice(11);
    const Batch batch = server_step(dice, maxima, 30, 50);
    Persistent memory(device());
    const PlanBatch on_host = batch.view(), on_gpu = memory.put(batch);
    EXPECT_EQ(smla_plan_build(plan, &on_host), SMLA_INVALID_ARGUMENT);
    smla_error error{};
    smla_last_error_info(&error);
    EXPECT_STREQ(error.field, "batch.seq_lens.device");
    ASSERT_EQ(smla_plan_build(plan, &on_gpu), SMLA_OK) << smla_last_error();
    must(cudaDeviceSynchronize());
    Plan host(maxima);
    host.build(on_host);
    for (const char* name : host.names()) {
        smla_tensor field{};
        ASSERT_EQ(smla_plan_field(plan, name, &field), SMLA_OK);
        EXPECT_EQ(field.device_type, SMLA_CUDA) << name;
        std::unique_ptr<char[]> bytes;
        EXPECT_EQ(values_of(fetch(device(), field, nullptr, bytes)), values_of(*host.find(name))) << name;
    }
    smla_plan_destroy(plan);
    smla_context_destroy(context);
}

}  // namespace
}  // namespace smla::test
