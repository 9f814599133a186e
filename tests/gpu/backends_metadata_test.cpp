// Metadata on a GPU hold what metadata on the host hold, bit by bit and under the same names, over steps that
// share one object; addresses stay. And backends through the C ABI.
#include "there.h"

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
            if (args.family == SMLA_FAMILY_HYBRID && (args.plan_groups & SMLA_GROUP_INDEX))
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
        const Tensor host = *on_host.find(name), gpu = *on_gpu.find(name);
        const auto shape = [](const Tensor& t) { return std::vector<int64_t>(t.shape, t.shape + t.ndim); };
        const bool table = std::string(name).find("block_table") != std::string::npos;
        if (!table) {
            ASSERT_EQ(shape(host), shape(gpu)) << name;
        }
        ASSERT_EQ(host.ndim, gpu.ndim) << name;
        if (table && host.ndim && host.shape[1] != gpu.shape[1]) {  // columns that no token can reach
            ASSERT_LT(gpu.shape[1], host.shape[1]) << name;
            ASSERT_EQ(values(slice(host, 1, 0, gpu.shape[1])), values(gpu)) << name;
        } else {
            ASSERT_EQ(values(host), values(gpu)) << name;
        }
        if (element_count(gpu) == 0 || table) return;
        const auto [at, first] = addresses.emplace(name, gpu.data);
        EXPECT_EQ(at->second, gpu.data) << name;
    }
};

TEST_F(GpuBackendMetadata, TheSameAsOnTheHost) {
    for (const Backend* backend : all_backends())
        for (const int32_t ratio : {0, 4, 128}) {
            const bool hybrid = backend->family == SMLA_FAMILY_HYBRID;
            if (!hybrid && ratio == 0) continue;
            BackendArgs args = backend_args(backend->family, ratio);
            args.kv_cache_dtype = hybrid ? "auto" : "fp8_ds_mla";
            if (ratio == 4) args.plan_groups = SMLA_GROUP_INDEX;
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
    smla_context_args context_args{};
    context_args.struct_size = sizeof context_args;
    context_args.version = SMLA_VERSION;
    context_args.engine = SMLA_ENGINE_CUDA;
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
