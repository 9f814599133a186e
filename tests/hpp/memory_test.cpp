// Buffers, tensors and caches that a context makes, and the C calls behind them.
#include "kit/small_problems.h"

#include <gtest/gtest.h>

#include <array>

namespace {

static_assert(std::is_nothrow_move_constructible_v<smla::Buffer> &&
              !std::is_copy_constructible_v<smla::Buffer>);
static_assert(std::is_move_constructible_v<smla::Tensor> && !std::is_copy_constructible_v<smla::Tensor>);
static_assert(std::is_move_constructible_v<smla::Cache> && !std::is_copy_constructible_v<smla::Cache>);
static_assert(std::is_base_of_v<smla::Context, smla::Cpu> && std::is_base_of_v<smla::Context, smla::Gpu>);

template <class Body>
smla::Error refusal(Body&& body) {
    try {
        body();
    } catch (const smla::Error& error) {
        return error;
    }
    ADD_FAILURE() << "nothing was refused";
    return smla::Error(SMLA_OK, "", "", "");
}

struct Counting {
    int live = 0;
    size_t bytes = 0;

    smla_allocator allocator() {
        return {[](void* user, size_t bytes, size_t alignment) {
                    auto& self = *static_cast<Counting*>(user);
                    ++self.live, self.bytes += bytes;
                    return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
                },
                [](void* user, void* memory) {
                    --static_cast<Counting*>(user)->live;
                    std::free(memory);
                },
                this};
    }
};

TEST(HppMemory, a_cpu_is_a_context_of_the_host) {
    const smla::Cpu cpu({.threads = 1});
    EXPECT_EQ(cpu.device_type(), SMLA_CPU);
    EXPECT_EQ(cpu.device_index(), 0);
    EXPECT_NE(cpu.description().find("1 thread"), std::string::npos) << cpu.description();
    const smla::Context moved = smla::Cpu({.threads = 2});
    EXPECT_NE(moved.description().find("2 threads"), std::string::npos);
}

// Whatever stands in the arguments, Cpu is a CPU.
TEST(HppMemory, cpu_and_gpu_overrule_the_engine_of_the_arguments) {
    EXPECT_EQ(smla::Cpu({.engine = SMLA_ENGINE_CUDA}).device_type(), SMLA_CPU);
    try {
        EXPECT_EQ(smla::Gpu(0, {.engine = SMLA_ENGINE_CPU}).device_type(), SMLA_CUDA);
    } catch (const smla::Error& error) {  // no GPU, or a build without
        EXPECT_TRUE(error.code == SMLA_UNSUPPORTED || error.code == SMLA_DEVICE_ERROR) << error.what();
    }
    EXPECT_EQ(refusal([] { smla::Gpu(-1); }).field, "args.device_index");
}

TEST(HppMemory, a_call_on_tensors_of_the_context_equals_one_on_vectors) {
    const smla::Cpu cpu;
    Problem problem, same;
    cpu.attend(problem.args());

    const smla::Tensor q = cpu.copy_of(same.q, {Problem::tokens, Problem::heads, Problem::width}),
                       rows = cpu.copy_of(same.rows, {Problem::tokens, Problem::listed}),
                       out = cpu.tensor<float>({Problem::tokens, Problem::heads, Problem::width}),
                       lse = cpu.tensor<float>({Problem::tokens, Problem::heads});
    const smla::Cache keys =
        cpu.cache(SMLA_ROW_F32, Problem::pages, Problem::page_tokens, int32_t(Problem::width));
    keys.memory().upload(same.keys.data(), same.keys.size() * sizeof(float));
    smla::Workspace workspace = cpu.workspace();
    cpu.attend(
        {.softmax_scale = 0.2, .q = q, .primary = {.cache = keys, .rows = rows}, .out = out, .lse = lse},
        workspace);
    EXPECT_EQ(out.download<float>(), problem.out);
    EXPECT_EQ(lse.download<float>(), problem.lse);
}

TEST(HppMemory, tensors_know_their_bytes_and_types) {
    const smla::Cpu cpu;
    const smla::Tensor packed = cpu.tensor(SMLA_E2M1, {3, 64});
    EXPECT_EQ(packed.memory().bytes(), 3u * 32);
    const std::vector<uint8_t> codes(96, 0x31);
    packed.upload(codes);
    EXPECT_EQ(packed.download<uint8_t>(), codes);
    const smla::Tensor half = cpu.tensor(SMLA_BF16, {2});
    half.upload(std::vector<uint16_t>{0x3f80, 0x4000});
    EXPECT_EQ(half.download<uint16_t>(), (std::vector<uint16_t>{0x3f80, 0x4000}));
    EXPECT_EQ(refusal([&] { half.upload(std::vector<float>(1)); }).field, "values");
    EXPECT_EQ(refusal([&] { half.download<uint8_t>(); }).field, "values");
    EXPECT_EQ(refusal([&] { packed.download<uint16_t>(); }).got, "codes of 16 bits");
    const smla::Tensor none = cpu.tensor<float>({0, 4});
    EXPECT_TRUE(none.download<float>().empty());
    const smla::Tensor ids = cpu.copy_of(std::array<int64_t, 3>{7, -1, 5});
    EXPECT_EQ(ids.get().ndim, 1);
    EXPECT_EQ(ids.get().dtype, SMLA_I64);
    EXPECT_EQ(ids.download<int64_t>(), (std::vector<int64_t>{7, -1, 5}));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(ids.memory().data()) % 64, 0u);

    EXPECT_EQ(refusal([&] { ids.download<int32_t>(); }).field, "values");
    EXPECT_EQ(refusal([&] { ids.upload(std::vector<int32_t>(6)); }).field, "values");
    EXPECT_EQ(refusal([&] { ids.upload(std::vector<int64_t>(2)); }).wanted, "24, those of the tensor");
    EXPECT_EQ(refusal([&] { cpu.copy_of(std::vector<float>(5), {2, 3}); }).field, "values");
    EXPECT_EQ(refusal([&] { cpu.buffer(8).download(nullptr, 9); }).field, "bytes");
    EXPECT_EQ(refusal([&] { cpu.buffer(8).upload(nullptr, 8); }).field, "from");
    EXPECT_EQ(refusal([&] { cpu.tensor(99, {1}); }).field, "tensor.dtype");
}

TEST(HppMemory, caches_take_the_memory_of_their_pages) {
    const smla::Cpu cpu;
    smla::Cache cache = cpu.cache(SMLA_FP8_584, 2, 64);
    EXPECT_EQ(cache.memory().bytes(), 2u * 37440);
    EXPECT_EQ(cache.get().data, cache.memory().data());
    EXPECT_EQ(cache.get().device_type, SMLA_CPU);
    smla::Cache scaled = cpu.cache(SMLA_FP8_512, 1, 4);
    scaled.set_scale(0.5f);
    EXPECT_EQ(scaled.get().scale, 0.5f);
    const smla::Cache moved = std::move(cache);
    EXPECT_EQ(moved.get().data, moved.memory().data());
}

TEST(HppMemory, what_was_moved_from_is_refused_by_name) {
    smla::Cpu cpu;
    smla::Tensor tensor = cpu.tensor<float>({2});
    smla::Cache cache = cpu.cache(SMLA_FP8_512, 1, 4);
    smla::Buffer buffer = cpu.buffer(8);
    smla::Workspace workspace = cpu.workspace();
    workspace.reserve(1);
    const smla::Tensor new_tensor = std::move(tensor);
    const smla::Cache new_cache = std::move(cache);
    const smla::Buffer new_buffer = std::move(buffer);
    const smla::Workspace new_workspace = std::move(workspace);
    char bytes[8];
    EXPECT_EQ(refusal([&] { tensor.get(); }).field, "tensor");
    EXPECT_EQ(refusal([&] { tensor.get(); }).got, "moved from");
    EXPECT_EQ(refusal([&] { static_cast<void>(static_cast<const smla_tensor&>(tensor)); }).field, "tensor");
    EXPECT_EQ(refusal([&] { tensor.upload(std::vector<float>(2)); }).field, "tensor");
    EXPECT_EQ(refusal([&] { tensor.download<float>(); }).field, "tensor");
    EXPECT_EQ(refusal([&] { cache.get(); }).field, "cache");
    EXPECT_EQ(refusal([&] { static_cast<void>(static_cast<const smla_cache&>(cache)); }).field, "cache");
    EXPECT_EQ(refusal([&] { cache.set_scale(1); }).field, "cache");
    EXPECT_EQ(refusal([&] { buffer.upload(bytes, 0); }).field, "buffer");
    EXPECT_EQ(refusal([&] { buffer.download(bytes, 8); }).field, "buffer");
    EXPECT_EQ(refusal([&] { smla::Buffer().download(bytes, 0); }).field, "buffer");
    EXPECT_EQ(refusal([&] { workspace.reserve(1); }).field, "context");
    EXPECT_EQ(new_tensor.download<float>().size(), 2u);
    EXPECT_EQ(new_cache.memory().bytes(), 4u * 512);
    new_buffer.download(bytes, 8);
    EXPECT_GT(new_workspace.bytes(), 0u);

    const smla::Context new_context = std::move(cpu);
    EXPECT_EQ(refusal([&] { cpu.tensor<float>({2}); }).field, "context");
    EXPECT_EQ(refusal([&] { cpu.cache(SMLA_FP8_512, 1, 4); }).field, "context");
    EXPECT_EQ(refusal([&] { cpu.attend({}); }).field, "context");
    EXPECT_EQ(cpu.description(), "");
    EXPECT_EQ(new_context.tensor<float>({0, 2}).get().shape[1], 2);
}

TEST(HppMemory, memory_comes_from_the_allocator_and_goes_back) {
    Counting counting;
    {
        smla::Buffer outlives;
        {
            const smla::Cpu cpu({.allocator = counting.allocator()});
            outlives = cpu.buffer(1000);
            const smla::Tensor tensor = cpu.tensor<double>({10});
            EXPECT_EQ(counting.live, 2);
            outlives = cpu.buffer(500);  // the first one goes
            EXPECT_EQ(counting.live, 2);
            EXPECT_EQ(outlives.bytes(), 500u);
            smla::Workspace workspace = cpu.workspace();
            workspace.reserve(1);
            workspace.reserve(10000);
            EXPECT_EQ(counting.live, 3);
            EXPECT_EQ(workspace.bytes() % 64, 0u);
        }
        EXPECT_EQ(counting.live, 1);  // and keeps its context
        char byte = 1;
        outlives.upload(&byte, 1);
    }
    EXPECT_EQ(counting.live, 0);
    EXPECT_GE(counting.bytes, 1000u + 80 + 500 + 4096 + 10000);
}

TEST(HppMemory, a_view_lies_where_the_context_runs) {
    const smla::Cpu cpu;
    std::vector<uint16_t> memory(6);
    const smla_tensor view = cpu.view(memory.data(), SMLA_BF16, {2, 3});
    EXPECT_EQ(view.data, memory.data());
    EXPECT_EQ(view.device_type, cpu.device_type());
    EXPECT_EQ(view.stride_elems[0], 3);
}

TEST(HppMemory, the_c_calls_refuse_what_is_missing) {
    const smla::Cpu cpu;
    smla_context* const context = cpu.get();
    void* memory = &memory;
    char bytes[4] = {1, 2, 3, 4}, back[4] = {};
    const auto field = [](smla_status status) {
        smla_error error{};
        smla_last_error_info(&error);
        return status == SMLA_INVALID_ARGUMENT ? std::string(error.field) : "accepted";
    };
    EXPECT_EQ(field(smla_allocate(nullptr, 4, &memory)), "context");
    EXPECT_EQ(memory, nullptr);
    EXPECT_EQ(field(smla_allocate(context, 4, nullptr)), "out");
    EXPECT_EQ(field(smla_upload(context, nullptr, bytes, 4, nullptr)), "to");
    EXPECT_EQ(field(smla_upload(context, back, nullptr, 4, nullptr)), "from");
    EXPECT_EQ(field(smla_download(context, nullptr, bytes, 4, nullptr)), "to");
    EXPECT_EQ(smla_upload(context, nullptr, nullptr, 0, nullptr), SMLA_OK);
    smla_release(context, nullptr);
    smla_release(nullptr, nullptr);
    smla_device_type type = -1;
    int32_t index = -1;
    EXPECT_EQ(field(smla_context_device(nullptr, &type, &index)), "context");
    EXPECT_EQ(field(smla_context_device(context, nullptr, &index)), "device_type");
    EXPECT_EQ(field(smla_context_device(context, &type, nullptr)), "device_index");
    ASSERT_EQ(smla_context_device(context, &type, &index), SMLA_OK);
    EXPECT_EQ(type, SMLA_CPU);

    ASSERT_EQ(smla_allocate(context, 4, &memory), SMLA_OK);
    ASSERT_EQ(smla_upload(context, memory, bytes, 4, nullptr), SMLA_OK);
    ASSERT_EQ(smla_download(context, back, memory, 4, nullptr), SMLA_OK);
    EXPECT_EQ(std::string(back, 4), std::string(bytes, 4));
    smla_release(context, memory);
}

// The rule of smla/types.h: an error names the parameter as the header spells it, then the members.
TEST(HppMemory, errors_name_the_parameter_of_the_call) {
    const smla::Cpu cpu;
    const auto field = [](smla_status status) {
        smla_error error{};
        smla_last_error_info(&error);
        return status == SMLA_INVALID_ARGUMENT ? std::string(error.field) : "accepted";
    };
    smla_attend_args attend{};
    attend.struct_size = 1;
    EXPECT_EQ(field(smla_attend(cpu.get(), &attend, {}, nullptr)), "args.struct_size");
    EXPECT_EQ(field(smla_attend(cpu.get(), nullptr, {}, nullptr)), "args");
    smla::Plan plan({.groups = SMLA_GROUP_PRIMARY, .max_tokens = 1, .max_requests = 1, .max_seq_len = 1});
    smla_plan_batch batch{};
    batch.struct_size = 1;
    EXPECT_EQ(field(smla_plan_build(plan.get(), &batch)), "batch.struct_size");
    EXPECT_EQ(field(smla_plan_build(plan.get(), nullptr)), "batch");
    batch.struct_size = sizeof batch;
    EXPECT_EQ(field(smla_plan_build(plan.get(), &batch)), "batch.seq_lens");
    smla_cache cache{};
    size_t bytes = 0;
    EXPECT_EQ(field(smla_cache_bytes(&cache, &bytes)), "cache.format");
}

}  // namespace
