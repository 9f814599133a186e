// Metadata on a GPU hold what metadata on the host hold, bit by bit and under the same names, over steps that
// share one object; addresses stay. And backends through the C ABI.
#include "graph.h"
#include "kit/context_args.h"
#include "kit/refused.h"
#include "there.h"

#include <functional>
#include <map>

namespace smla::test {
namespace {

class GpuBackendMetadata : public GpuBackends {
protected:
    // A field's values, wherever it lies, as bytes without gaps.
    std::vector<uint8_t> values(const Tensor& field) const {
        std::unique_ptr<char[]> memory;
        const Tensor host = field.device_type == SMLA_CPU ? field : fetch(device(), field, nullptr, memory);
        const size_t bytes = size_t(dtype_bits(host.dtype) / 8);
        const int64_t rows = host.ndim ? host.shape[0] : 0;
        std::vector<uint8_t> out;
        if (element_count(host) == 0) return out;
        const int64_t inner = element_count(host) / std::max<int64_t>(rows, 1);
        for (int64_t i = 0; i < rows; ++i) {
            const char* row = address(host, i);
            out.insert(out.end(), row, row + size_t(inner) * bytes);
        }
        return out;
    }

    void check(const Backend& backend, BackendArgs args) {
        args = here(args);
        const BackendInstance host = instance(backend, args);
        BackendInstance gpu = instance(backend, args);
        gpu.context = context.get();
        const auto on_gpu = gpu.metadata(), on_host = host.metadata();
        std::map<std::string, const void*> addresses;
        Random random(args.ratio + 3);
        for (int step = 0; step < 12; ++step) {
            SCOPED_TRACE(testing::Message() << backend.name << " ratio " << args.ratio << " step " << step);
            Batch batch = random_step(random, args);
            if (args.family != SMLA_FAMILY_DSA && (args.plan_groups & SMLA_GROUP_INDEX))
                set_table(batch, kIndex, args.max_seq_len, 64);
            on_host->build(batch.view());
            on_gpu->build(batch.view());
            device().wait(nullptr);
            ASSERT_EQ(on_host->names().size(), on_gpu->names().size());
            for (const char* name : on_host->names()) expect_field(*on_host, *on_gpu, name, addresses);
            if (HasFailure()) return;
        }
    }
    void expect_field(const Metadata& on_host, const Metadata& on_gpu, const char* name,
                      std::map<std::string, const void*>& addresses) {
        const Tensor host = *on_host.find(name);
        Tensor gpu = *on_gpu.find(name);
        const auto shape = [](const Tensor& t) { return std::vector<int64_t>(t.shape, t.shape + t.ndim); };
        const bool table = std::string(name).find("block_table") != std::string::npos;
        // A copy of a host batch's table ends at max_seq_len; a table on the GPU is shown whole.
        if (table && gpu.ndim && gpu.shape[1] > host.shape[1]) gpu = slice(gpu, 1, 0, host.shape[1]);
        ASSERT_EQ(shape(host), shape(gpu)) << name;
        ASSERT_EQ(values(host), values(gpu)) << name;
        if (element_count(gpu) == 0 || table) return;
        const auto [at, first] = addresses.emplace(name, gpu.data);
        EXPECT_EQ(at->second, gpu.data) << name;
    }
};

// A batch whose tensors lie on the GPU, at addresses that stay.
class BatchThere {
public:
    explicit BatchThere(Device& device) : device_(device) {}

    // `host` with its tensors copied there, and what the host tells of them.
    PlanBatch put(const PlanBatch& host, const Metadata& built) {
        PlanBatch out = host;
        size_t at = 0;
        const auto move = [&](Tensor& tensor) {
            const size_t i = at++;
            if (!present(tensor)) return;
            if (rooms_.size() <= i) rooms_.resize(i + 1);
            const size_t bytes = std::max<size_t>(span_bytes(tensor), 4);
            if (rooms_[i].bytes() < bytes || !rooms_[i].data()) rooms_[i] = DeviceBuffer(device_, bytes);
            device_.upload(rooms_[i].data(), tensor.data, span_bytes(tensor), nullptr);
            tensor.data = rooms_[i].data();
            tensor.device_type = device_.type();
            tensor.device_index = device_.index();
        };
        for (Tensor* tensor : {&out.query_start_loc, &out.seq_lens, &out.rope_positions}) move(*tensor);
        for (PlanGroup* group :
             {&out.primary, &out.window, &out.compressed, &out.index, &out.state, &out.index_state}) {
            move(group->block_table);
            move(group->slots);
        }
        device_.wait(nullptr);
        out.tokens = int32_t(built.tokens());
        out.query_tokens = int32_t(built.split().decode_tokens + built.split().prefill_tokens);
        out.decodes = int32_t(built.split().decodes);
        out.decode_tokens = int32_t(built.split().decode_tokens);
        out.max_query_len = *static_cast<const int32_t*>(built.find("max_query_len")->data);
        out.max_seq_len = *static_cast<const int32_t*>(built.find("max_seq_len")->data);
        return out;
    }

private:
    Device& device_;
    std::vector<DeviceBuffer> rooms_;
};

// Every backend, as args of each kind of layer.
template <class Use>
void each_backend(const Use& use) {
    for (const Backend* backend : all_backends())
        for (const int32_t ratio : ratios(*backend)) {
            BackendArgs args = backend_args(backend->family, ratio);
            args.kv_cache_dtype = backend->family == SMLA_FAMILY_DSA ? "fp8_ds_mla" : "auto";
            use(*backend, args);
            if (testing::Test::HasFailure()) return;
        }
}

// What the host is only told bounds of.
bool is_bound(const std::string& name) {
    return name == "prefill.has_context" || name == "decode_max_q_len" || name == "prefill_max_q_len" ||
           name == "indexer.prefill_chunks";
}

// Batches on the GPU and on the host in turn, on one object.
TEST_F(GpuBackendMetadata, ABatchOnTheGpu) {
    each_backend([&](const Backend& backend, BackendArgs args) {
        args = here(args);
        const BackendInstance host = instance(backend, args);
        BackendInstance placed = instance(backend, args);
        placed.context = context.get();
        const auto on_gpu = placed.metadata(), on_host = host.metadata();
        BatchThere there(device());
        Random random(args.ratio + 5);
        std::map<std::string, const void*> addresses;
        for (int step = 0; step < 12; ++step) {
            SCOPED_TRACE(testing::Message() << backend.name << " ratio " << args.ratio << " step " << step);
            // One step has the maximum of requests, so that the last elements of their fields count.
            const Batch batch =
                step == 6 ? decode_step(random, args, args.max_requests) : random_step(random, args);
            on_host->build(batch.view());
            if (on_host->tokens() == 0) continue;
            if (step % 4 == 3) on_gpu->build(batch.view());
            else on_gpu->build(there.put(batch.view(), *on_host));
            device().wait(nullptr);
            for (const char* name : on_host->names())
                if (!is_bound(name)) expect_field(*on_host, *on_gpu, name, addresses);
            if (HasFailure()) return;
        }
    });
}

// A captured build follows what the batch's tensors hold when it is replayed.
TEST_F(GpuBackendMetadata, ACapturedBuildOfABatchOnTheGpu) {
    each_backend([&](const Backend& backend, BackendArgs args) {
        args = here(args);
        const BackendInstance host = instance(backend, args);
        BackendInstance placed = instance(backend, args);
        placed.context = context.get();
        const auto on_gpu = placed.metadata(), on_host = host.metadata();
        BatchThere there(device());
        Random random(args.ratio + 7);
        std::unique_ptr<gpu::Graph> graph;
        std::map<std::string, const void*> addresses;
        for (int step = 0; step < 4; ++step) {
            SCOPED_TRACE(testing::Message() << backend.name << " ratio " << args.ratio << " step " << step);
            const Batch batch = decode_step(random, args, 4);
            on_host->build(batch.view());
            PlanBatch moved = there.put(batch.view(), *on_host);
            moved.query_tokens = 0;  // padding is found there
            if (!graph)
                graph = std::make_unique<gpu::Graph>([&](cudaStream_t stream) {
                    moved.stream = stream;
                    on_gpu->build(moved);
                });
            for (const cudaGraphNodeType kind : graph->kinds()) EXPECT_EQ(kind, cudaGraphNodeTypeKernel);
            graph->replay();
            for (const char* name : {"query_start_loc", "seq_lens", "row_limit", "plan.position"})
                expect_field(*on_host, *on_gpu, name, addresses);
            if (HasFailure()) return;
        }
    });
}

TEST_F(GpuBackendMetadata, WhatIsToldOfABatchIsChecked) {
    const BackendArgs args = here(backend_args(SMLA_FAMILY_DSA));
    BackendInstance on = instance(kFlashMlaSparse, args);
    const auto on_host = on.metadata();
    on.context = context.get();
    const auto metadata = on.metadata();
    BatchThere there(device());
    Random random(3);
    const Batch batch = random_step(random, args);
    on_host->build(batch.view());
    const PlanBatch good = there.put(batch.view(), *on_host);
    const auto refused = [&](const std::function<void(PlanBatch&)>& change) {
        PlanBatch wrong = good;
        change(wrong);
        return kit::refused_field([&] { metadata->build(wrong); });
    };
    EXPECT_EQ(refused([](PlanBatch& b) { b.tokens = 0; }), "batch.tokens");
    EXPECT_EQ(refused([&](PlanBatch& b) { b.decodes = int32_t(batch.requests()) + 1; }), "batch.decodes");
    EXPECT_EQ(refused([](PlanBatch& b) { b.decode_tokens = b.query_tokens + 1; }), "batch.decode_tokens");
    EXPECT_EQ(refused([](PlanBatch& b) { b.max_seq_len = -1; }), "batch.max_seq_len");
    EXPECT_EQ(refused([&](PlanBatch& b) { b.seq_lens = batch.view().seq_lens; }), "batch.seq_lens.device");
    EXPECT_EQ(refused([&](PlanBatch& b) { b.primary.block_table = batch.view().primary.block_table; }),
              "batch.primary.block_table.device");
    EXPECT_EQ(refused([](PlanBatch&) {}), "");
}

TEST_F(GpuBackendMetadata, TheSameAsOnTheHost) {
    for (const Backend* backend : all_backends())
        for (const int32_t ratio : ratios(*backend)) {
            BackendArgs args = backend_args(backend->family, ratio);
            args.kv_cache_dtype = backend->family == SMLA_FAMILY_DSA ? "fp8_ds_mla" : "auto";
            if (reads_selection(resolve_config(args).kind())) args.plan_groups = SMLA_GROUP_INDEX;
            check(*backend, args);
            if (HasFailure()) return;
        }
}

// Kernels of a captured graph see a table of every column that a request may ever have: what an earlier batch
// left behind a narrow one's columns must not look like pages.
TEST_F(GpuBackendMetadata, ColumnsBehindANarrowTableAreHoles) {
    BackendArgs args = here(backend_args(SMLA_FAMILY_DSA));
    args.page_tokens = 16;
    BackendInstance on = instance(kFlashMlaSparse, args);
    on.context = context.get();
    const auto metadata = on.metadata();
    Random random(2);
    metadata->build(decode_step(random, args, 4).view());
    Batch narrow;
    add_request(narrow, 1, 20);
    add_request(narrow, 2, 31);
    set_table(narrow, kPrimary, 2, 16, 100);
    metadata->build(narrow.view());
    std::unique_ptr<char[]> memory;
    const Tensor seen = fetch(device(), metadata->step().kv.block_table, nullptr, memory);
    ASSERT_EQ(seen.shape[0], args.max_requests);
    ASSERT_EQ(seen.shape[1], 1200 / 16);
    for (int64_t r = 0; r < 2; ++r)
        for (int64_t c = 0; c < seen.shape[1]; ++c)
            EXPECT_EQ(load_int(seen, r, c), c < 2 ? 100 + r * 2 + c : -1) << r << " " << c;
}

TEST_F(GpuBackendMetadata, ThroughTheCAbi) {
    smla_context_args context_args = kit::context_args(SMLA_ENGINE_CUDA);
    smla_context *gpu = nullptr, *cpu = nullptr;
    ASSERT_EQ(smla_context_create(&context_args, &gpu), SMLA_OK) << smla_last_error();
    context_args.engine = SMLA_ENGINE_CPU;
    ASSERT_EQ(smla_context_create(&context_args, &cpu), SMLA_OK) << smla_last_error();

    BackendArgs args = backend_args(SMLA_FAMILY_HYBRID, 128);  // the context tells the device
    smla_backend* backend = nullptr;
    ASSERT_EQ(smla_backend_create(gpu, nullptr, &args, &backend), SMLA_OK) << smla_last_error();
    smla_backend_metadata* metadata = nullptr;
    ASSERT_EQ(smla_backend_metadata_create(backend, &metadata), SMLA_OK) << smla_last_error();
    Random random(1);
    const Batch batch = random_step(random, args);
    const PlanBatch view = batch.view();
    ASSERT_EQ(smla_backend_metadata_build(metadata, &view), SMLA_OK) << smla_last_error();
    smla_tensor rows{}, number{};
    ASSERT_EQ(smla_backend_metadata_field(metadata, "plan.entry_rows", &rows), SMLA_OK);
    EXPECT_EQ(rows.device_type, SMLA_CUDA);
    ASSERT_EQ(smla_backend_metadata_field(metadata, "swa.num_decodes", &number), SMLA_OK);
    EXPECT_EQ(number.device_type, SMLA_CPU);
    smla_backend_metadata_destroy(metadata);
    smla_backend_destroy(backend);

    args.device = device_info(device());
    EXPECT_EQ(smla_backend_create(cpu, nullptr, &args, &backend), SMLA_INVALID_ARGUMENT);
    EXPECT_EQ(refused_field(SMLA_INVALID_ARGUMENT), "args.device");
    args.device = describe_device("cpu");
    EXPECT_EQ(smla_backend_create(gpu, nullptr, &args, &backend), SMLA_INVALID_ARGUMENT);
    smla_context_destroy(gpu);
    smla_context_destroy(cpu);
}

}  // namespace
}  // namespace smla::test
