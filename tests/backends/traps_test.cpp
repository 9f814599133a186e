// Traps of the published backends, numbered as in docs/backends/README.md, and bugs of the field (T-..) that
// need a whole backend.
#include "forward_world.h"
#include "kit/refused.h"

#include <cmath>
#include <cstring>
#include <numeric>

namespace smla::test {
namespace {

constexpr double kF32 = 1e-4;  // see forward_test.cpp

BackendArgs small(smla_family family, int32_t ratio = -1) {
    BackendArgs args = backend_args(family, ratio);
    args.heads = 3;
    args.dtype = SMLA_F32;
    args.kv_cache_dtype = "row_f32";
    args.kv_lora_rank = args.head_dim = 16;
    args.rope_dim = 4;
    args.nope_dim = 6;
    args.v_head_dim = 5;
    args.window = family == SMLA_FAMILY_DSA ? 0 : 9;
    return args;
}

void check(const WorldSpec& spec) {
    SCOPED_TRACE(testing::Message() << spec.backend->name << " seed " << spec.seed << " heads "
                                    << spec.args.heads);
    World world(spec);
    world.run();
    world.expect_close(kF32);
    world.expect_untouched();
}

std::unique_ptr<Metadata> built(const Backend& backend, const BackendArgs& args, const Batch& batch) {
    auto metadata = instance(backend, args).metadata();
    metadata->build(batch.view());
    return metadata;
}

// One decode of 300 tokens, whose newest closes neither an entry of 4 nor of 128.
Batch one_decode(int32_t ratio, int32_t length = 302, int32_t query = 1) {
    Batch batch;
    add_request(batch, query, length);
    set_table(batch, kWindow, (length + 63) / 64, 64);
    if (ratio) set_table(batch, kCompressed, (length + 255) / 256, 256 / ratio);
    return batch;
}

TEST(Traps, T06_PagesOfRatio128HoldTwoEntries) {
    Batch batch = one_decode(128);
    batch.groups[kCompressed].table = {9, 5};
    const auto metadata = built(kDsv4SparseMlaSm120, backend_args(SMLA_FAMILY_HYBRID, 128), batch);
    const auto rows = field(*metadata, "c128a_global_decode_topk_indices");
    EXPECT_EQ((std::vector<int64_t>{rows[0], rows[1], rows[2]}), (std::vector<int64_t>{18, 19, -1}));
    EXPECT_EQ(field(*metadata, "block_size"), std::vector<int64_t>{256});     // in tokens
    EXPECT_EQ(field(*metadata, "swa.block_size"), std::vector<int64_t>{64});  // real tokens
}

TEST(Traps, T07_ATokenThatClosesNoEntryStillSeesEntries) {
    const auto metadata = built(kFlashMlaSparseDsv4, backend_args(SMLA_FAMILY_HYBRID, 128), one_decode(128));
    EXPECT_EQ(field(*metadata, "slot_mapping"), std::vector<int64_t>{-1});  // the compressed one
    EXPECT_EQ(field(*metadata, "swa.is_valid_token"), std::vector<int64_t>{1});
    EXPECT_EQ(field(*metadata, "c128a_decode_topk_lens"), std::vector<int64_t>{2});
}

// Lists with gaps in front: a count is no prefix length.
TEST(Traps, T09_GapsInALongList) {
    for (const Backend* backend : {&kFlashMlaSparseDsv4, &kFlashInferMlaSparseDsv4}) {
        World world({.backend = backend, .args = small(SMLA_FAMILY_HYBRID), .seed = 3});
        const int64_t decode_tokens = field(*world.metadata, "swa.num_decode_tokens")[0];
        for (int64_t t = 0; t < decode_tokens; ++t)
            std::reverse(&world.topk.at(t, 0), &world.topk.at(t, 0) + 16);
        world.run();
        world.expect_close(kF32);
    }
}

TEST(Traps, T14_RequestsAreNumberedInTheWholeBatch) {
    Batch batch;
    add_request(batch, 1, 10);
    add_request(batch, 9, 20);
    set_table(batch, kWindow, 1, 64);
    const auto metadata = built(kDsv4SparseMlaSm120, backend_args(SMLA_FAMILY_HYBRID, 0), batch);
    EXPECT_EQ(field(*metadata, "swa.token_to_req_indices"),
              (std::vector<int64_t>{0, 1, 1, 1, 1, 1, 1, 1, 1, 1}));
    EXPECT_EQ(metadata->find("swa.block_table")->shape[0], 2);
    EXPECT_EQ(field(*metadata, "swa.prefill_swa_indices")[0], 64);  // of the second request's own page
}

TEST(Traps, T29_T30_AShortPrefillIsADecodeInEveryList) {
    BackendArgs args = backend_args(SMLA_FAMILY_HYBRID, 128);
    args.speculative_tokens = 2;
    Batch batch = one_decode(128, 302, 3);
    add_request(batch, 2, 7);  // fewer: decodes are not uniform
    add_request(batch, 4, 9);
    set_table(batch, kWindow, 5, 64);
    set_table(batch, kCompressed, 2, 2);
    const auto metadata = built(kDsv4SparseMlaSm120, args, batch);
    EXPECT_EQ(field(*metadata, "swa.num_decodes"), std::vector<int64_t>{2});
    for (const char* name : {"swa.decode_swa_indices", "swa.decode_swa_lens",
                             "c128a_global_decode_topk_indices", "c128a_decode_topk_lens"})
        EXPECT_EQ(metadata->find(name)->shape[0], 5) << name;
    for (const char* name : {"swa.prefill_swa_indices", "c128a_prefill_topk_indices"})
        EXPECT_EQ(metadata->find(name)->shape[0], 4) << name;
}

TEST(Traps, T36_AnyListWidth) {
    for (const int64_t columns : {0, 1, 15, 129, 2051}) {
        WorldSpec spec{.backend = &kFlashMlaSparse, .args = small(SMLA_FAMILY_DSA), .seed = 4};
        spec.columns = columns;
        check(spec);
        for (const Backend* backend : {&kDsv4SparseMlaSm120, &kFlashInferMlaSparseDsv4}) {
            WorldSpec hybrid{.backend = backend, .args = small(SMLA_FAMILY_HYBRID), .seed = 4};
            hybrid.columns = columns;
            check(hybrid);
        }
    }
}

// Only the columns that a request needs mean anything; the rest may name any page.
TEST(Traps, T39_UnusedTableColumnsHoldAnything) {
    const BackendArgs args = backend_args(SMLA_FAMILY_HYBRID, 128);
    Batch batch = one_decode(128);
    set_table(batch, kWindow, 9, 64);
    set_table(batch, kCompressed, 7, 2);
    const auto clean = built(kFlashMlaSparseDsv4, args, batch);
    for (const int group : {kWindow, kCompressed})
        for (size_t c = group == kWindow ? 5 : 2; c < batch.groups[size_t(group)].table.size(); ++c)
            batch.groups[size_t(group)].table[c] = c % 2 ? -1 : 2000000000;
    const auto dirty = built(kFlashMlaSparseDsv4, args, batch);
    for (const char* name : {"swa.decode_swa_indices", "c128a_global_decode_topk_indices", "slot_mapping"})
        EXPECT_EQ(field(*clean, name), field(*dirty, name)) << name;
}

// The newest token's own key is read in the step that brings it.
TEST(Traps, T43_KeysAreWrittenBeforeTheyAreRead) {
    World world({.backend = &kSparseMlaSm120, .args = small(SMLA_FAMILY_DSA), .seed = 5});
    for (int64_t r = 0, t = 0; r < world.batch.requests(); ++r)
        for (; t < world.batch.starts[size_t(r) + 1]; ++t)  // each token attends to itself alone
            for (int64_t j = 0; j < 16; ++j)
                world.topk.at(t, j) =
                    j ? -1
                      : int32_t(world.batch.lengths[size_t(r)] - (world.batch.starts[size_t(r) + 1] - t));
    world.run();
    world.expect_close(kF32);
    world.expect_written();
}

// Three tokens are tried and two rejected: the next step starts over from the first, and nothing of theirs
// counts.
TEST(Traps, T44_RejectedTokensLeaveNoTrace) {
    BackendArgs args = small(SMLA_FAMILY_HYBRID, 0);
    args.speculative_tokens = 3;
    const BackendInstance on = instance(kDsv4SparseMlaSm120, args);
    Random random(6);
    const auto steps = [&](const std::vector<std::pair<int32_t, int32_t>>& steps, Random tokens) {
        PoisonedCache window(on.format, 16, 2, 64, 0);
        std::vector<float> keys(100 * 16);
        for (float& value : keys) value = tokens.value();
        const auto metadata = on.metadata();
        std::vector<uint8_t> last;
        for (const auto& [first, query] : steps) {  // a rejected token has other keys than the right one
            Batch batch;
            add_request(batch, query, first + query);
            set_table(batch, kWindow, 2, 64);
            metadata->build(batch.view());
            Floats q(SMLA_F32, {query, 3, 16}), kv(SMLA_F32, {query, 16}), out(SMLA_F32, {query, 3, 16});
            for (int64_t t = 0; t < query; ++t)
                for (int64_t d = 0; d < 16; ++d) {
                    const bool rejected = query == 4 && t > 1;
                    kv.set(t, d, 0, rejected ? 77.f : keys[size_t((first + t) * 16 + d)]);
                    for (int64_t h = 0; h < 3; ++h) q.set(t, h, d, keys[size_t((50 + h) * 16 + d)]);
                }
            ForwardArgs call{};
            call.q = q.view();
            call.k_c = kv.view();
            call.out = out.view();
            call.swa_cache = window.cache;
            Context context(
                {.struct_size = sizeof(smla_context_args), .version = SMLA_VERSION, .threads = 1});
            OwnedWorkspace workspace(context);
            const Env env = context.env({});
            on.run(env, metadata.get(), call, workspace.at_least(on.workspace(env, call)));
            last.assign(out.bytes().end() - 3 * 16 * 4, out.bytes().end());
        }
        return last;
    };
    // 20 tokens, then 4 tried of which 2 stay, then one more; against the same tokens without a rejection
    std::vector<std::pair<int32_t, int32_t>> tried, plain;
    for (int32_t p = 0; p < 20; ++p) tried.push_back({p, 1});
    plain = tried;
    tried.push_back({20, 4});
    for (int32_t p = 20; p < 22; ++p) plain.push_back({p, 1});
    for (int32_t p = 22; p < 25; ++p) {
        tried.push_back({p, 1});
        plain.push_back({p, 1});
    }
    EXPECT_TRUE(steps(tried, random) == steps(plain, random));
}

TEST(FieldBugs, T08_T16_BackendsOverViewsOfPaddedHeads) {
    for (const Backend* backend : all_backends())
        for (uint32_t seed = 70; seed < 74; ++seed) {
            WorldSpec spec{.backend = backend, .args = small(backend->family), .seed = seed};
            spec.args.heads = 8;
            spec.view_heads = 56;  // NaN
            check(spec);
        }
}

TEST(FieldBugs, T13_BackendShapesThatFailed) {
    const struct {
        int32_t heads;
        int64_t columns;
    } shapes[] = {{16, 256}, {32, 256}, {64, 192}, {64, 1152}, {16, 512}, {8, 128}, {32, 192}, {128, 2176}};
    for (const auto& shape : shapes)
        for (const Backend* backend : {&kSparseMlaSm120, &kDsv4SparseMlaSm120}) {
            WorldSpec spec{.backend = backend, .args = small(backend->family), .seed = 80};
            spec.args.heads = shape.heads;
            spec.columns = shape.columns;
            spec.args.max_seq_len = 90;
            check(spec);
        }
}

TEST(FieldBugs, T14_BackendPageSizes) {
    for (const int32_t window_page : {64, 256})
        for (const int32_t entries : {2, 64, 128, 256})
            for (const int32_t ratio : {4, 128}) {
                WorldSpec spec{.backend = &kFlashInferMlaSparseDsv4,
                               .args = small(SMLA_FAMILY_HYBRID, ratio),
                               .seed = 81};
                spec.args.window_page_tokens = window_page;
                spec.args.page_tokens = entries * ratio;
                check(spec);
                spec.backend = &kDsv4SparseMlaSm120;
                check(spec);
            }
}

TEST(FieldBugs, T15_BackendHeadCounts) {
    for (const int32_t heads : {1, 2, 5, 8, 16, 22, 24, 32, 66, 72, 128}) {
        for (const Backend* backend : {&kFlashMlaSparse, &kFlashInferMlaSparseDsv4}) {
            WorldSpec spec{.backend = backend, .args = small(backend->family), .seed = 82};
            spec.args.heads = heads;
            spec.args.max_seq_len = 100;
            check(spec);
        }
    }
}

// Records of 512 values without rope, at the very end of memory.
TEST(FieldBugs, T17_BackendWithoutRope) {
    WorldSpec spec{.backend = &kTritonMlaSparse, .args = small(SMLA_FAMILY_DSA), .seed = 83};
    spec.args.kv_lora_rank = 512;
    spec.args.rope_dim = -1;
    for (const char* type : {"row_f32", "fp8_ds_mla", "fp8_e4m3"}) {
        spec.args.kv_cache_dtype = type;
        spec.args.kv_scale = std::string(type) == "fp8_e4m3";
        check(spec);
    }
}

TEST(FieldBugs, T24_ChunksOfManyTokens) {
    for (const int32_t tokens : {8192, 16384}) {
        BackendArgs args = small(SMLA_FAMILY_DSA);
        args.heads = 1;
        args.max_tokens = tokens;
        args.max_seq_len = tokens;
        const BackendInstance on = instance(kFlashMlaSparse, args);
        const auto metadata = on.metadata();
        Batch batch;
        add_request(batch, tokens, tokens);
        set_table(batch, kPrimary, tokens / 64, 64);
        metadata->build(batch.view());
        PoisonedCache kv(on.format, 20, tokens / 64, 64, 0);
        Floats q(SMLA_F32, {tokens, 1, 20}), k_c(SMLA_F32, {tokens, 16}), k_pe(SMLA_F32, {tokens, 4}),
            out(SMLA_F32, {tokens, 1, 16});
        Random random(84);
        q.fill(random, tokens);
        k_c.fill(random, tokens);
        k_pe.fill(random, tokens);
        Ints self(tokens, 2, -1);
        for (int32_t t = 0; t < tokens; ++t) self.at(t, 1) = t;  // each token sees itself: out is its key
        ForwardArgs call{};
        call.q = q.view();
        call.k_c = k_c.view();
        call.k_pe = k_pe.view();
        call.topk_indices = self.matrix();
        call.out = out.view();
        call.kv_cache = kv.cache;
        Context context({.struct_size = sizeof(smla_context_args), .version = SMLA_VERSION});
        OwnedWorkspace workspace(context);
        const Env env = context.env({});
        on.run(env, metadata.get(), call, workspace.at_least(on.workspace(env, call)));
        EXPECT_EQ(std::memcmp(out.bytes().data(), k_c.bytes().data(), out.bytes().size()), 0);
    }
}

TEST(FieldBugs, T25_BackendsWriteNoRowBehindTheStep) {
    for (const Backend* backend : all_backends()) {
        WorldSpec spec{.backend = backend, .args = small(backend->family), .seed = 85};
        spec.extra_rows = 500;
        check(spec);
    }
}

// Positions at and past what the table covers, and recycled ids far beyond, are holes.
TEST(FieldBugs, T26_PositionsPastTheTable) {
    WorldSpec spec{.backend = &kSparseMlaSm120, .args = small(SMLA_FAMILY_DSA), .seed = 86};
    World clean(spec), dirty(spec);
    const Group& pages = dirty.batch.groups[kPrimary];
    const int32_t beyond = int32_t(pages.columns * pages.page_tokens);
    for (int64_t t = 0; t < dirty.batch.query_tokens(); ++t)
        for (int64_t j = 0, i = 0; j < 16; ++j)
            if (dirty.topk.at(t, j) < 0)
                dirty.topk.at(t, j) =
                    std::vector<int32_t>{beyond, beyond + 1, 2147483647, -2147483647 - 1}[size_t(i++ % 4)];
    clean.run();
    dirty.run();
    EXPECT_TRUE(clean.out.bytes() == dirty.out.bytes());
}

// A rank of context parallelism holds every third token: positions come from the caller, not from the row.
TEST(FieldBugs, T27_RanksOfContextParallelism) {
    Random random(87);
    const int32_t ranks = 3, length = 50;
    Ints positions(1, 20), request({0}), table(1, 20), rows(1, 20), counts(1, 1);
    for (int64_t j = 0; j < 20; ++j) positions.at(0, j) = random.in(0, length - 1);
    for (int64_t c = 0; c < 20; ++c) table.at(0, c) = int32_t(c);
    int32_t kept = 0;
    for (int32_t rank = 0; rank < ranks; ++rank) {
        smla_request_rows_args args{};
        args.struct_size = sizeof args;
        args.page_tokens = 1;
        args.ranks = ranks;
        args.rank = rank;
        args.positions = positions.matrix();
        args.request_of_token = request.list();
        args.block_table = table.matrix();
        args.rows = rows.matrix();
        args.counts = counts.list();
        ASSERT_EQ(smla_request_rows(&args), SMLA_OK) << smla_last_error();
        for (int64_t j = 0; j < 20; ++j)
            EXPECT_EQ(rows.at(0, j), positions.at(0, j) % ranks == rank ? positions.at(0, j) / ranks : -1);
        kept += counts.at(0);
    }
    EXPECT_EQ(kept, 20);
}

// Metadata of an earlier step, of another backend or of another layer's ratio cannot be used by mistake.
TEST(FieldBugs, T36_StaleMetadata) {
    World world({.backend = &kDsv4SparseMlaSm120, .args = small(SMLA_FAMILY_HYBRID), .seed = 88});
    const Env env;
    const auto refused = [&](const Metadata* metadata) {
        return kit::refused_field([&] { world.on.run(env, metadata, world.args, {}); });
    };
    const auto of = [](const Backend& backend, const BackendArgs& args, bool build) {
        auto metadata = instance(backend, args).metadata();
        Random random(89);
        if (build) metadata->build(random_step(random, args).view());
        return metadata;
    };
    const BackendArgs mine = small(SMLA_FAMILY_HYBRID);
    EXPECT_EQ(refused(of(kDsv4SparseMlaSm120, mine, false).get()), "args.metadata");  // never built
    EXPECT_EQ(refused(of(kFlashMlaSparse, small(SMLA_FAMILY_DSA), true).get()), "args.metadata");
    EXPECT_EQ(refused(of(kFlashMlaSparseDsv4, mine, true).get()), "args.metadata");
    EXPECT_EQ(refused(of(kDsv4SparseMlaSm120, small(SMLA_FAMILY_HYBRID, 128), true).get()), "args.metadata");
    BackendArgs other = mine;
    other.window += 1;
    EXPECT_EQ(refused(of(kDsv4SparseMlaSm120, other, true).get()), "args.metadata");
    other = mine;
    other.heads += 1;
    EXPECT_EQ(refused(of(kDsv4SparseMlaSm120, other, true).get()), "args.metadata");
    EXPECT_NE(refused(of(kDsv4SparseMlaSm120, mine, true).get()), "args.metadata");
    // the same object rebuilt for another batch serves that batch
    world.run();
    world.expect_close(kF32);
    for (uint32_t seed = 90; seed < 94; ++seed) {
        World next({.backend = &kDsv4SparseMlaSm120, .args = small(SMLA_FAMILY_HYBRID), .seed = seed});
        world.metadata->build(next.batch.view());
        std::swap(world.metadata, next.metadata);
        next.run();
        next.expect_close(kF32);
        std::swap(world.metadata, next.metadata);
    }
}

// Whatever a batch holds, it is refused by a field of it or builds, and then all rows lie within reach.
TEST(BackendFuzz, Batches) {
    Random random(99);
    int built_batches = 0, refused_batches = 0;
    for (int round = 0; round < 3000; ++round) {
        const Backend& backend = *all_backends()[size_t(random.in(0, int32_t(all_backends().size()) - 1))];
        const auto kinds = ratios(backend);
        const BackendArgs args =
            backend_args(backend.family, kinds[size_t(random.in(0, int32_t(kinds.size()) - 1))]);
        const auto metadata = instance(backend, args).metadata();
        Batch batch = random_step(random, args);
        const auto spoil = [&](std::vector<int32_t>& values) {
            if (values.empty() || random.in(0, 2)) return;
            const int32_t wild[] = {-1, 0, 1, 2147483647, -2147483647 - 1, random.in(-5, 2000)};
            values[size_t(random.in(0, int32_t(values.size()) - 1))] = wild[random.in(0, 5)];
        };
        spoil(batch.starts);
        spoil(batch.lengths);
        for (Group& group : batch.groups)
            if (group.given()) {
                spoil(group.table);
                if (random.in(0, 9) == 0) group.page_tokens = random.in(-2, 90);
                if (random.in(0, 9) == 0) group.page_rows = random.in(-2, 90);
            }
        if (random.in(0, 9) == 0) batch.tokens = random.in(-3, 40);
        PlanBatch view = batch.view();
        if (random.in(0, 9) == 0) view.seq_lens.dtype = SMLA_I64;
        if (random.in(0, 9) == 0) view.query_start_loc.shape[0] += random.in(-2, 0);
        try {
            metadata->build(view);
            ++built_batches;
        } catch (const Error& error) {
            ++refused_batches;
            ASSERT_EQ(error.field.substr(0, 5), "batch") << error.what();
            continue;
        }
        for (const char* name : metadata->names()) {
            const Tensor* tensor = metadata->find(name);
            if (std::string(name).find("rows") == std::string::npos || tensor->dtype != SMLA_I32) continue;
            for (const int64_t row : field(*metadata, name)) ASSERT_GE(row, -1) << name;
        }
    }
    EXPECT_GT(built_batches, 300);
    EXPECT_GT(refused_batches, 300);
}

}  // namespace
}  // namespace smla::test
