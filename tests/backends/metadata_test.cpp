// Every field of every backend's metadata against a slow model, over steps that share one object.
#include "serving.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace smla::test {
namespace {

using Fields = std::map<std::string, std::vector<int64_t>>;

std::vector<int64_t> wide(const std::vector<int32_t>& values) { return {values.begin(), values.end()}; }

// A table as fields show it: without columns behind the longest request.
std::vector<int64_t> shown_table(const Group& group, int64_t longest, int64_t first_request = 0) {
    const int64_t columns = (longest + group.page_tokens - 1) / group.page_tokens;
    std::vector<int64_t> out;
    for (int64_t i = first_request * group.columns; i < int64_t(group.table.size()); ++i)
        if (i % group.columns < columns) out.push_back(group.table[size_t(i)]);
    return out;
}

// What both families have.
Fields common_fields(const Batch& batch, const std::map<std::string, Expected>& plan) {
    Fields out;
    int64_t longest_query = 0, longest = 0;
    for (size_t r = 0; r < batch.lengths.size(); ++r) {
        longest_query = std::max<int64_t>(longest_query, batch.starts[r + 1] - batch.starts[r]);
        longest = std::max<int64_t>(longest, batch.lengths[r]);
    }
    out["num_reqs"] = {batch.requests()};
    out["num_actual_tokens"] = {batch.tokens ? batch.tokens : batch.query_tokens()};
    out["max_query_len"] = {longest_query};
    out["max_seq_len"] = {longest};
    out["query_start_loc"] = wide(batch.starts);
    out["seq_lens"] = wide(batch.lengths);
    for (const auto& [name, field] : plan) out["plan." + name] = field.values;
    return out;
}

PlanMaxima model_maxima(const BackendArgs& args) {
    PlanMaxima maxima{};
    maxima.max_seq_len = args.max_seq_len;
    maxima.max_tokens = args.max_tokens;
    maxima.speculative_tokens = args.speculative_tokens;
    if (args.family != SMLA_FAMILY_DSA) {
        maxima.window = args.window ? args.window : 128;
        maxima.ratio = args.ratio;
        maxima.list_entries = args.ratio == 128;
    }
    return maxima;
}

int64_t first_prefill(const BackendArgs& args, const Batch& batch) {
    int64_t r = 0;
    while (r < batch.requests() &&
           batch.starts[size_t(r) + 1] - batch.starts[size_t(r)] <= 1 + args.speculative_tokens)
        ++r;
    return r;
}

Fields latent_fields(const BackendArgs& args, const Batch& batch) {
    const auto plan = expected_fields(model_maxima(args), batch);
    Fields out = common_fields(batch, plan);
    const int64_t decodes = first_prefill(args, batch), first = batch.starts[size_t(decodes)];
    const auto of_plan = [&](const char* name) {
        const auto found = plan.find(name);
        return found == plan.end() ? std::vector<int64_t>() : found->second.values;
    };
    out["req_id_per_token"] = of_plan("request_of_token");
    out["slot_mapping"] = of_plan("primary_slot");
    out["block_table"] = shown_table(batch.groups[kPrimary], args.max_seq_len);
    out["block_size"] = {batch.groups[kPrimary].page_tokens};
    out["topk_tokens"] = out["topk_tokens_tensor"] = {args.topk};
    out["max_model_len_tensor"] = out["fp8_extra_metadata.cache_lens"] = {args.max_seq_len};
    out["fp8_extra_metadata.dummy_block_table"] = out["dummy_block_table"] = {0};
    auto& contexts = out["prefill.context_lens"];
    auto& of_tokens = out["prefill_context_lengths"];
    auto& starts = out["prefill_new_k_start_locs"];
    starts.push_back(0);
    for (size_t r = size_t(decodes); r < batch.lengths.size(); ++r) {
        const int64_t query = batch.starts[r + 1] - batch.starts[r];
        contexts.push_back(batch.lengths[r] - query);
        of_tokens.insert(of_tokens.end(), size_t(query), contexts.back());
        starts.push_back(batch.starts[r + 1] - first);
    }
    out["prefill.has_context"] = {
        std::any_of(contexts.begin(), contexts.end(), [](int64_t c) { return c > 0; })};
    out["prefill.block_table"] = shown_table(batch.groups[kPrimary], args.max_seq_len, decodes);
    return out;
}

Fields hybrid_fields(const BackendArgs& args, const Batch& batch) {
    const PlanMaxima maxima = model_maxima(args);
    const auto plan = expected_fields(maxima, batch);
    Fields out = common_fields(batch, plan);
    const int64_t decodes = first_prefill(args, batch), first = batch.starts[size_t(decodes)],
                  query_tokens = batch.query_tokens(), window = maxima.window;
    const auto of_plan = [&](const char* name, int64_t begin, int64_t end) {
        const auto found = plan.find(name);
        if (found == plan.end()) return std::vector<int64_t>();
        const auto& all = found->second.values;
        const int64_t tokens = batch.tokens ? batch.tokens : query_tokens,
                      each = int64_t(all.size()) / tokens;
        return std::vector<int64_t>(all.begin() + begin * each, all.begin() + end * each);
    };
    const int64_t tokens = batch.tokens ? batch.tokens : query_tokens;
    out["swa.num_decodes"] = {decodes};
    out["swa.num_prefills"] = {batch.requests() - decodes};
    out["swa.num_decode_tokens"] = {first};
    out["swa.num_prefill_tokens"] = {query_tokens - first};
    out["swa.block_size"] = {batch.groups[kWindow].page_tokens};
    out["swa.window_size"] = {window};
    out["swa.block_table"] = shown_table(batch.groups[kWindow], args.max_seq_len);
    out["swa.slot_mapping"] = of_plan("window_slot", 0, tokens);
    out["swa.token_to_req_indices"] = of_plan("request_of_token", 0, tokens);
    out["swa.is_valid_token"] = of_plan("is_valid", 0, tokens);
    out["swa.decode_swa_indices"] = of_plan("window_rows", 0, first);
    out["swa.decode_swa_lens"] = of_plan("window_len", 0, first);
    out["swa.prefill_swa_indices"] = of_plan("window_rows", first, query_tokens);
    out["swa.prefill_swa_lens"] = of_plan("window_len", first, query_tokens);
    auto& lengths = out["swa.prefill_seq_lens"];
    auto& gathered = out["swa.prefill_gather_lens"];
    for (size_t r = size_t(decodes); r < batch.lengths.size(); ++r) {
        const int64_t query = batch.starts[r + 1] - batch.starts[r];
        lengths.push_back(batch.lengths[r]);
        gathered.push_back(query + std::min<int64_t>(batch.lengths[r] - query, window - 1));
    }
    out["decode_cum_seq_lens_q"] = wide({batch.starts.begin(), batch.starts.begin() + decodes + 1});
    auto& rebased = out["prefill_cum_seq_lens_q"];
    for (size_t r = size_t(decodes); r < batch.starts.size(); ++r) rebased.push_back(batch.starts[r] - first);
    const auto longest = [&](int64_t begin, int64_t end) {
        int64_t most = 0;
        for (int64_t r = begin; r < end; ++r)
            most = std::max<int64_t>(most, batch.starts[size_t(r) + 1] - batch.starts[size_t(r)]);
        return std::vector<int64_t>{most};
    };
    out["decode_max_q_len"] = longest(0, decodes);
    out["prefill_max_q_len"] = longest(decodes, batch.requests());
    if (args.ratio == 0) return out;
    out["slot_mapping"] = of_plan("compressed_slot", 0, tokens);
    out["block_table"] = shown_table(batch.groups[kCompressed], args.max_seq_len / args.ratio);
    out["req_id_per_token"] = out["swa.token_to_req_indices"];
    out["block_size"] = {args.family == SMLA_FAMILY_HYBRID ? 256 : 128};
    out["topk_tokens"] = {args.topk};
    out["c128a_global_decode_topk_indices"] = of_plan("entry_rows", 0, first);
    out["c128a_decode_topk_lens"] = of_plan("entry_len", 0, first);
    auto& local = out["c128a_prefill_topk_indices"];
    const int64_t columns = (args.max_seq_len / 128 + 127) / 128 * 128;
    for (const int64_t n : of_plan("entry_len", first, query_tokens))
        for (int64_t c = 0; c < columns; ++c) local.push_back(c < n ? c : -1);
    return out;
}

// row_limit by its definition, for the field that the originals do not have.
// FlashInfer counts columns of a prefill token's list, as many as it sees entries.
std::vector<int64_t> row_limit(const Backend& backend, const BackendArgs& args, const Batch& batch,
                               const Fields& fields) {
    std::vector<int64_t> out;
    const int64_t tokens = batch.tokens ? batch.tokens : batch.query_tokens();
    for (int64_t t = 0; t < tokens; ++t) {
        const bool counts = args.family != SMLA_FAMILY_DSA ? fields.at("swa.is_valid_token")[size_t(t)] != 0
                                                           : t < batch.query_tokens();
        const bool columns = ((&backend == &kFlashInferMlaSparseDsv4 && args.ratio == 4) ||
                              (&backend == &kFlashInferMlaSparseDsv41 && args.ratio)) &&
                             t >= fields.at("swa.num_decode_tokens")[0];
        out.push_back(!counts ? 0 : columns ? fields.at("plan.visible_entries")[size_t(t)] : 2147483647);
    }
    return out;
}

void expect_step(const Metadata& metadata, const Backend& backend, const BackendArgs& args,
                 const Batch& batch) {
    Fields want = args.family != SMLA_FAMILY_DSA ? hybrid_fields(args, batch) : latent_fields(args, batch);
    want["row_limit"] = row_limit(backend, args, batch, want);
    for (const char* name : metadata.names()) {
        const std::string label = name;
        if (label == "plan.schedule" || label == "num_kv_splits" ||
            label.find("scheduler_metadata") != label.npos || label.find("num_splits") != label.npos)
            continue;  // tests of their own
        const bool empty = element_count(*metadata.find(name)) == 0;
        if (empty && !want.count(label)) continue;  // no tokens: the model lists nothing
        ASSERT_TRUE(want.count(label)) << label;
        ASSERT_EQ(field(metadata, name), want.at(label)) << label;
    }
}

void check_backend(const Backend& backend, BackendArgs args, uint32_t seeds) {
    for (uint32_t seed = 0; seed < seeds; ++seed) {
        SCOPED_TRACE(testing::Message() << backend.name << " ratio " << args.ratio << " seed " << seed);
        Random random(seed);
        args.speculative_tokens = random.in(0, 3);
        const BackendInstance on = instance(backend, args);
        const auto metadata = on.metadata();
        std::map<std::string, const void*> addresses;
        for (int step = 0; step < 8; ++step) {
            SCOPED_TRACE(step);
            const Batch batch = random_step(random, args);
            metadata->build(batch.view());
            expect_step(*metadata, backend, args, batch);
            if (testing::Test::HasFatalFailure()) return;
            for (const char* name : metadata->names()) {
                const std::string label = name;
                if (label.find("block_table") != label.npos && label.find("dummy") == label.npos) continue;
                const void* data = metadata->find(name)->data;
                ASSERT_EQ(addresses.emplace(label, data).first->second, data) << label << " moved";
            }
        }
    }
}

TEST(BackendMetadata, LatentFields) {
    for (const Backend* backend : {&kFlashMlaSparse, &kSparseMlaSm120, &kTritonMlaSparse}) {
        BackendArgs args = backend_args(SMLA_FAMILY_DSA);
        check_backend(*backend, args, 20);
        args.kv_cache_dtype = "fp8_ds_mla";
        check_backend(*backend, args, 10);
    }
}

TEST(BackendMetadata, HybridFields) {
    for (const Backend* backend : all_backends())
        for (const int32_t ratio : ratios(*backend))
            if (backend->family != SMLA_FAMILY_DSA)
                check_backend(*backend, backend_args(backend->family, ratio), 15);
}

// The same step gives the same fields whatever came before.
TEST(BackendMetadata, HistoryLeavesNoTrace) {
    for (const Backend* backend : all_backends())
        for (const int32_t ratio : ratios(*backend))
            for (uint32_t seed = 500; seed < 510; ++seed) {
                Random random(seed);
                const BackendArgs args = backend_args(backend->family, ratio);
                const BackendInstance on = instance(*backend, args);
                const auto used = on.metadata(), fresh = on.metadata();
                for (int step = 0; step < 5; ++step) used->build(random_step(random, args).view());
                const Batch batch = random_step(random, args);
                used->build(batch.view());
                fresh->build(batch.view());
                for (const char* name : used->names())
                    ASSERT_EQ(field(*used, name), field(*fresh, name)) << backend->name << " " << name;
            }
}

// Behind the step's decodes, lengths are 0 up to the end of the buffer: graphs read them.
TEST(BackendMetadata, LengthsBehindTheDecodesAreZero) {
    BackendArgs args = backend_args(SMLA_FAMILY_HYBRID, 128);
    const BackendInstance on = instance(kDsv4SparseMlaSm120, args);
    const auto metadata = on.metadata();
    Random random(77);
    for (int step = 0; step < 30; ++step) {
        const Batch batch = random_step(random, args);
        metadata->build(batch.view());
        for (const char* name : {"swa.decode_swa_lens", "c128a_decode_topk_lens"}) {
            const Tensor* lens = metadata->find(name);
            for (int64_t t = lens->shape[0]; t < args.max_tokens; ++t)
                ASSERT_EQ(static_cast<const int32_t*>(lens->data)[t], 0) << name << " " << t;
        }
    }
}

// Attention runs once for the decodes and once per chunk of prefill; padding goes with the last.
TEST(BackendMetadata, PartsOfAStep) {
    const auto parts = [](const Backend& backend, const std::vector<int32_t>& queries, int32_t padded) {
        BackendArgs args = backend_args(backend.family, 0);
        args.max_requests = 12;
        args.max_tokens = 100;
        args.ratio = 0;
        Batch batch;
        for (const int32_t query : queries) add_request(batch, query, query + 3);
        batch.tokens = padded;
        set_table(batch, backend.family == SMLA_FAMILY_DSA ? kPrimary : kWindow, 2, 64);
        const auto metadata = instance(backend, args).metadata();
        metadata->build(batch.view());
        const auto span = metadata->step().batch.parts;
        return std::vector<int32_t>(span.begin(), span.end());
    };
    const std::vector<int32_t> mixed{1, 2, 3, 4, 5, 6, 7, 8};
    EXPECT_EQ(parts(kDsv4SparseMlaSm120, mixed, 0), (std::vector<int32_t>{0, 3, 21, 36}));
    EXPECT_EQ(parts(kFlashMlaSparseDsv4, mixed, 40), (std::vector<int32_t>{0, 3, 21, 40}));
    EXPECT_EQ(parts(kFlashInferMlaSparseDsv4, mixed, 0), (std::vector<int32_t>{0, 3, 36}));
    EXPECT_EQ(parts(kFlashMlaSparseDsv41, mixed, 40), (std::vector<int32_t>{0, 3, 21, 40}));
    EXPECT_EQ(parts(kFlashInferMlaSparseDsv41, mixed, 0), (std::vector<int32_t>{0, 3, 36}));
    EXPECT_EQ(parts(kFlashMlaSparse, mixed, 0), (std::vector<int32_t>{0, 36}));
    EXPECT_EQ(parts(kDsv4SparseMlaSm120, {1, 1}, 5), (std::vector<int32_t>{0, 5}));
    EXPECT_EQ(parts(kDsv4SparseMlaSm120, {9, 1}, 0), (std::vector<int32_t>{0, 10}));
    EXPECT_EQ(parts(kDsv4SparseMlaSm120, {}, 4), (std::vector<int32_t>{0, 4}));
}

TEST(BackendMetadata, DecodeScheduleOfAnFp8Cache) {
    BackendArgs args = backend_args(SMLA_FAMILY_DSA);
    args.kv_cache_dtype = "fp8_ds_mla";
    args.topk = 2048;
    args.heads = 128;
    args.device = describe_device("cpu");
    args.device.multiprocessors = 132;
    const BackendInstance on = instance(kFlashMlaSparse, args);
    const auto metadata = on.metadata();
    Batch batch;
    add_request(batch, 1, 9);
    set_table(batch, kPrimary, 1, 64);
    metadata->build(batch.view());
    const Tensor* schedule = metadata->find("fp8_extra_metadata.scheduler_metadata");
    EXPECT_EQ(schedule->shape[0], 66);
    EXPECT_EQ(field(*metadata, "fp8_extra_metadata.num_splits"), (std::vector<int64_t>{0, 32}));
    EXPECT_EQ(load_int(*schedule, 31, 3), 32);
    // all tokens are one batch of the kernel, so more of them leave it fewer parts
    add_request(batch, 2, 9);
    set_table(batch, kPrimary, 1, 64);
    metadata->build(batch.view());
    EXPECT_EQ(schedule->shape[0], 22);
    // lists of index_kpool 16 have 2048 + 15 entries, rounded up to 128
    args.rope_dim = -1;
    args.ratio = 16;
    const auto of_pools = instance(kFlashMlaSparse, args).metadata();
    of_pools->build(batch.view());
    EXPECT_EQ(field(*of_pools, "fp8_extra_metadata.num_splits"), (std::vector<int64_t>{0, 17}));
    EXPECT_EQ(field(*of_pools, "topk_tokens"), std::vector<int64_t>{2048});
    EXPECT_EQ(instance(kFlashMlaSparse, backend_args(SMLA_FAMILY_DSA))
                  .metadata()
                  ->find("fp8_extra_metadata.num_splits"),
              nullptr);  // bf16: there is none
}

TEST(BackendMetadata, TritonSplitsFollowOccupancy) {
    BackendArgs args = backend_args(SMLA_FAMILY_DSA);
    args.topk = 2048;
    args.heads = 16;
    args.device = describe_device("cpu");
    args.device.multiprocessors = 132;
    const BackendInstance on = instance(kTritonMlaSparse, args);
    const auto metadata = on.metadata();
    Batch batch;
    add_request(batch, 1, 9);
    set_table(batch, kPrimary, 1, 64);
    metadata->build(batch.view());
    EXPECT_EQ(field(*metadata, "num_kv_splits"), std::vector<int64_t>{16});
    for (const int32_t pool : {0, 16}) {  // 2040 columns in 8 equal parts, or 2176 in 32
        args.topk = 2040;
        args.ratio = pool;
        const auto more = instance(kTritonMlaSparse, args).metadata();
        more->build(batch.view());
        EXPECT_EQ(field(*more, "num_kv_splits"), std::vector<int64_t>{pool ? 32 : 8});
    }
}

TEST(BackendMetadata, IndexerChunks) {
    BackendArgs args = backend_args(SMLA_FAMILY_DSA);
    args.plan_groups = SMLA_GROUP_INDEX;
    args.max_logits_bytes = 4 * 100 * 4;  // four tokens of 100 rows
    const BackendInstance on = instance(kFlashMlaSparse, args);
    const auto metadata = on.metadata();
    Batch batch;
    add_request(batch, 1, 500);
    add_request(batch, 10, 100);
    add_request(batch, 3, 10);
    add_request(batch, 3, 20);
    set_table(batch, kPrimary, 10, 64);
    set_table(batch, kIndex, 10, 64);
    metadata->build(batch.view());
    EXPECT_EQ(field(*metadata, "indexer.prefill_chunks"),
              (std::vector<int64_t>{1, 2, 1,  5,  100, 0, 1, 2, 5, 9, 100, 1, 1, 2, 9, 11, 100, 1,  //
                                    2, 4, 11, 17, 30,  0}));
}

TEST(BackendMetadata, BadBatchesAreRefusedByFieldAndChangeNothing) {
    const auto refused = [](smla_family family, auto spoil) {
        const BackendArgs args = backend_args(family);
        const Backend& backend = family == SMLA_FAMILY_DSA ? kFlashMlaSparse : kFlashMlaSparseDsv4;
        const auto metadata = instance(backend, args).metadata();
        Batch batch;
        add_request(batch, 1, 300);
        add_request(batch, 5, 500);
        if (family == SMLA_FAMILY_DSA) {
            set_table(batch, kPrimary, 8, 64);
        } else {
            set_table(batch, kWindow, 8, 64);
            set_table(batch, kCompressed, 2, 64);
        }
        metadata->build(batch.view());
        std::map<std::string, std::vector<int64_t>> before;
        for (const char* name : metadata->names()) before[name] = field(*metadata, name);
        spoil(batch);
        std::string out;
        try {
            metadata->build(batch.view());
        } catch (const Error& error) {
            out = error.field;
        }
        for (const char* name : metadata->names()) EXPECT_EQ(field(*metadata, name), before[name]) << name;
        return out;
    };
    const auto latent = [&](auto spoil) { return refused(SMLA_FAMILY_DSA, spoil); };
    const auto hybrid = [&](auto spoil) { return refused(SMLA_FAMILY_HYBRID, spoil); };
    EXPECT_EQ(latent([](Batch&) {}), "");
    EXPECT_EQ(latent([](Batch& b) { b.lengths[0] = -4; }), "batch.seq_lens[0]");
    EXPECT_EQ(latent([](Batch& b) { b.lengths[1] = 4; }), "batch.seq_lens[1]");
    EXPECT_EQ(latent([](Batch& b) { b.lengths[1] = 1201; }), "batch.seq_lens[1]");
    EXPECT_EQ(latent([](Batch& b) { b.starts[1] = 7; }), "batch.query_start_loc[2]");
    EXPECT_EQ(latent([](Batch& b) { b.starts[0] = 1; }), "batch.query_start_loc[0]");
    EXPECT_EQ(latent([](Batch& b) { b.starts[2] = 25; }), "batch.query_start_loc[2]");
    EXPECT_EQ(latent([](Batch& b) { set_table(b, kPrimary, 7, 64); }), "batch.primary.block_table.shape[1]");
    EXPECT_EQ(latent([](Batch& b) { b.groups[kPrimary].page_tokens = -1; }), "batch.primary.page_tokens");
    EXPECT_EQ(latent([](Batch& b) { set_table(b, kWindow, 8, 64); }), "batch.window");
    EXPECT_EQ(latent([](Batch& b) { b.tokens = 5; }), "batch.tokens");
    EXPECT_EQ(hybrid([](Batch&) {}), "");
    EXPECT_EQ(hybrid([](Batch& b) { set_table(b, kWindow, 7, 64); }), "batch.window.block_table.shape[1]");
    EXPECT_EQ(hybrid([](Batch& b) { set_table(b, kCompressed, 1, 64); }),
              "batch.compressed.block_table.shape[1]");
    EXPECT_EQ(hybrid([](Batch& b) { b.groups[kCompressed].page_rows = 63; }), "batch.compressed.page_rows");
}

}  // namespace
}  // namespace smla::test
