// smla::Backend and smla::Metadata as a user has them.
#include "kit/small_problems.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace {

std::string field_of(const smla::Error& error) { return error.field; }
template <class Call>
std::string refused(Call call) {
    try {
        call();
    } catch (const smla::Error& error) {
        return field_of(error);
    }
    return "";
}

struct Step : BackendStep {
    smla::Context context{smla_context_args{.threads = 1}};
    smla::Backend backend{context, BackendStep::backend()};
    smla::Metadata metadata = backend.metadata();
    smla_backend_forward_args args = BackendStep::args(metadata);

    Step() { metadata.build(batch()); }
};

TEST(HppBackend, names_and_what_they_say) {
    EXPECT_EQ(smla::backends().size(), 8u);
    EXPECT_EQ(smla::backends().front(), "FLASHMLA_SPARSE");
    smla_backend_args args = BackendStep::backend();
    for (const std::string_view name : smla::backends())
        EXPECT_EQ(smla::why_not(std::string(name).c_str(), args).empty(),
                  name.find("DSV4") == std::string_view::npos)
            << name;
    args.device = smla::device("sm_80");
    args.device.capability = 75;
    EXPECT_NE(smla::why_not("FLASHMLA_SPARSE", args).find("no engine of this build"), std::string::npos);
    args = {};
    args.heads = 64;
    args.topk = 2048;
    args.max_tokens = args.max_requests = args.max_seq_len = 1;
    args.softmax_scale = 1;
    args.device = smla::device("sm_120");
    EXPECT_EQ(smla::why_not("SPARSE_MLA_SM120", args, true), "");
    EXPECT_EQ(smla::why_not("FLASHMLA_SPARSE", args, true),
              "compute capability 12.x is not supported (supported: 9, 10)");
    const auto chosen = nlohmann::json::parse(smla::select_backend(args));
    EXPECT_EQ(chosen["backend"], "SPARSE_MLA_SM120");
    EXPECT_EQ(chosen["candidates"].size(), 3u);
    EXPECT_EQ(nlohmann::json::parse(smla::select_backend(args, "TRITON_MLA_SPARSE"))["forced"], true);
}

// Texts: a null buffer asks for the length, and so does one that is too small.
TEST(HppBackend, a_buffer_that_is_too_small_learns_the_length) {
    smla_backend_args args = BackendStep::backend();
    args.struct_size = sizeof args;
    const std::string selected = smla::select_backend(args);
    char byte = 'x';
    size_t bytes = 1;
    EXPECT_EQ(smla_backend_select(&args, nullptr, &byte, &bytes), SMLA_INVALID_ARGUMENT);
    EXPECT_EQ(bytes, selected.size() + 1);
    EXPECT_EQ(byte, 'x');
    args.device = smla::device("sm_80");
    args.device.capability = 75;
    bytes = 1;
    EXPECT_EQ(smla_backend_why_not("FLASHMLA_SPARSE", &args, 0, &byte, &bytes), SMLA_INVALID_ARGUMENT);
    EXPECT_EQ(bytes, smla::why_not("FLASHMLA_SPARSE", args).size() + 1);
}

TEST(HppBackend, metadata_keep_their_backend_and_its_context) {
    const smla::Context context(smla_context_args{.threads = 1});
    const auto before = context.shared().use_count();
    {
        const smla::Metadata metadata = smla::Backend(context, BackendStep::backend()).metadata();
        EXPECT_EQ(context.shared().use_count(), before + 1);
        EXPECT_NO_THROW(metadata.tensor("slot_mapping"));
    }
    EXPECT_EQ(context.shared().use_count(), before);
}

TEST(HppBackend, a_step_with_typed_views) {
    Step step;
    EXPECT_STREQ(step.backend.info().name, "TRITON_MLA_SPARSE");
    EXPECT_STREQ(step.backend.info().kv_cache_dtype, "row_f32");
    EXPECT_EQ(step.backend.cache_shape(SMLA_GROUP_PRIMARY, 2).bytes, int64_t(step.memory.size() * 4));
    EXPECT_EQ(step.metadata.number("num_reqs"), 1);
    EXPECT_EQ(step.metadata.number("num_actual_tokens"), 3);
    const auto slots = step.metadata.slot_mapping();
    EXPECT_EQ(std::vector<int64_t>(slots.begin(), slots.end()), (std::vector<int64_t>{4, 5, 6}));
    const auto fields = step.metadata.fields();
    for (const std::string_view name : fields)
        EXPECT_NO_THROW(step.metadata.tensor(std::string(name).c_str()));
    smla::Workspace workspace = step.context.workspace();
    step.backend.forward(step.args, workspace);
    // each token attends to itself alone, so out is its latent, projected up
    for (int t = 0; t < 3; ++t)
        for (int h = 0; h < 2; ++h)
            for (int v = 0; v < 3; ++v) {
                double want = 0;
                for (int l = 0; l < 8; ++l)
                    want +=
                        double(step.k_c[size_t(t * 8 + l)]) * double(step.w_uv[size_t((h * 8 + l) * 3 + v)]);
                EXPECT_NEAR(step.out[size_t((t * 2 + h) * 3 + v)], want, 1e-6);
            }
    step.args.metadata = nullptr;  // warm-up
    step.backend.forward(step.args, workspace);
    EXPECT_EQ(step.out, std::vector<float>(step.out.size(), 0.f));
}

TEST(HppBackend, refusals_name_the_field) {
    Step step;
    smla::Workspace workspace = step.context.workspace();
    const auto forward = [&](auto spoil) {
        smla_backend_forward_args args = step.args;
        spoil(args);
        return refused([&] { step.backend.forward(args, workspace); });
    };
    using A = smla_backend_forward_args;
    EXPECT_EQ(forward([](A&) {}), "");
    EXPECT_EQ(forward([&](A& a) { a.output_scale = a.q; }), "args.output_scale");
    EXPECT_EQ(forward([&](A& a) { a.output_block_scale = a.q; }), "args.output_block_scale");
    EXPECT_EQ(forward([](A& a) { a.out.ndim = 1; }), "args.out.shape");
    EXPECT_EQ(refused([&] { step.backend.forward(step.args, smla_workspace{}); }), "workspace.bytes");
    EXPECT_EQ(refused([&] { step.metadata.tensor("no such field"); }), "name");
    EXPECT_EQ(refused([&] { smla::Backend(step.context, BackendStep::backend(), "NONE"); }), "backend");
    EXPECT_EQ(refused([&] {
                  smla_backend_args args = BackendStep::backend();
                  args.heads = 0;
                  smla::Backend(step.context, args);
              }),
              "args.heads");
    EXPECT_EQ(refused([&] {
                  smla_backend_args args = BackendStep::backend();
                  args.wants = SMLA_WANTS_ALIBI;
                  smla::Backend(step.context, args);
              }),
              "backend");
    for (const uint32_t size : {4u, uint32_t(sizeof(smla_device_info) - 8), 1000u})
        EXPECT_EQ(refused([&] {
                      smla_backend_args args = BackendStep::backend();
                      args.device = smla::device("cpu");
                      args.device.struct_size = size;
                      smla::Backend(step.context, args);
                  }),
                  "args.device.struct_size");
    EXPECT_EQ(refused([] { smla::device("tpu"); }), "device");
    smla_device_info device{};
    EXPECT_EQ(refused([&] { smla::check(smla_describe_device("cpu", &device)); }), "out.struct_size");
    EXPECT_EQ(refused([&] { smla::check(smla_describe_device("cpu", nullptr)); }), "out");
    EXPECT_EQ(refused([&] { step.backend.cache_shape(SMLA_GROUP_WINDOW, 1); }), "group");
    EXPECT_EQ(refused([&] { smla::check(smla_backend_metadata_build(nullptr, nullptr)); }), "metadata");
    EXPECT_EQ(refused([&] { smla::check(smla_backend_forward(nullptr, nullptr, {}, nullptr)); }), "backend");
}

TEST(HppBackend, row_operations) {
    const std::vector<int32_t> positions{0, 5, -1}, request{0}, table{3, 1};
    std::vector<int32_t> rows(3, 9), counts(1, 9);
    smla_request_rows_args args{};
    args.page_tokens = 4;
    args.positions = smla::tensor(positions, {1, 3});
    args.request_of_token = smla::tensor(request);
    args.block_table = smla::tensor(table, {1, 2});
    args.rows = smla::tensor(rows, {1, 3});
    args.counts = smla::tensor(counts);
    smla::request_rows(args);
    EXPECT_EQ(rows, (std::vector<int32_t>{12, 5, -1}));
    EXPECT_EQ(counts[0], 2);
    args.page_tokens = 0;
    EXPECT_EQ(refused([&] { smla::request_rows(args); }), "args.page_tokens");

    std::vector<float> log2_lse{1, -INFINITY}, lse(2);
    smla::lse_from_log2(smla::tensor(log2_lse, {1, 2}), smla::tensor(lse, {1, 2}));
    EXPECT_FLOAT_EQ(lse[0], float(std::log(2.0)));
    EXPECT_EQ(lse[1], -INFINITY);
}

TEST(HppCall, runs_a_forward_in_other_memory) {
    Step step;
    smla::Workspace workspace = step.context.workspace();
    step.backend.forward(step.args, workspace);
    const std::vector<float> wanted = step.out, cache = step.memory;
    using A = smla_backend_forward_args;
    const auto call = smla::Call::of(
        step.backend, step.args, {offsetof(A, k_c.data), offsetof(A, kv_cache.data), offsetof(A, out.data)});
    const std::vector<float> k_c = step.k_c;
    std::vector<float> memory(cache.size(), NAN), out(wanted.size(), NAN);
    step.k_c.assign(k_c.size(), NAN);  // which this run does not read
    for (int run = 0; run < 2; ++run) {
        call.run({k_c.data(), memory.data(), out.data()}, workspace);
        EXPECT_EQ(out, wanted);
        EXPECT_EQ(memory.size(), cache.size());
        for (size_t i = 0; i < cache.size(); ++i) EXPECT_TRUE(memory[i] == cache[i] || std::isnan(cache[i]));
    }
    EXPECT_EQ(refused([&] { call.run({k_c.data()}, workspace); }), "addresses");
    step.args.metadata = nullptr;
    EXPECT_EQ(refused([&] { smla::Call::of(step.backend, step.args, {}); }), "args.metadata");
    step.args.metadata = step.metadata.get();
    EXPECT_EQ(refused([&] { smla::Call::of(step.backend, step.args, {offsetof(A, lse.data)}); }),
              "moving[0]");
}

}  // namespace
