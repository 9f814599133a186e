// Objects that serve one call at a time: a call that finds one in use is refused and changes nothing. A
// context whose tasks run in the test's own loop lets the test call the library while a call is under way.
#include "golden.h"

#include <smla/smla.hpp>

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

namespace {

using golden::Case;
using golden::Folder;

// Runs tasks one after the other, and `meanwhile` once, within a call.
struct Loop {
    std::function<void()> meanwhile;
    int calls = 0;

    smla::Context context() {
        smla_context_args args{};
        args.threads = 2;
        args.parallel_for = [](void* pool, int64_t count, void (*body)(void*, int64_t), void* user) {
            Loop& self = *static_cast<Loop*>(pool);
            if (const auto run = std::exchange(self.meanwhile, nullptr)) ++self.calls, run();
            for (int64_t i = 0; i < count; ++i) body(user, i);
        };
        args.parallel_for_pool = this;
        return smla::Context(args);
    }
};

// The field that is refused as in use; "" if the call is accepted.
template <class Call>
std::string in_use(Call call) {
    try {
        call();
    } catch (const smla::Error& error) {
        EXPECT_EQ(error.code, SMLA_INVALID_ARGUMENT) << error.what();
        EXPECT_EQ(error.got, "an object that another thread is using") << error.what();
        return error.field;
    }
    return "";
}

struct Opened {
    explicit Opened(const char* name) : golden(name) { golden.write_checkpoint(folder.path); }

    Case golden;
    Folder folder;
    Loop loop;
    smla::Context context = loop.context();
    const int64_t width = golden.hidden_size();
    std::vector<float> hidden = std::vector<float>(size_t(8 * width), 0.5f);
    std::vector<float> out = hidden;

    smla::Layer layer(int32_t number) const { return {context, folder.path.string(), number}; }
    void forward(smla::Session& session, int32_t request = 0, int64_t tokens = 2) {
        session.forward(smla::tensor(hidden.data(), {tokens, width}),
                        smla::tensor(out.data(), {tokens, width}), request);
    }
};

TEST(InUse, a_session_refuses_every_call_during_a_step) {
    Opened on("D2");
    const smla::Layer layer = on.layer(on.golden.layer());
    smla_session_args args{};
    args.max_requests = 2;
    smla::Session session(layer, args);
    on.forward(session, 1);
    const int32_t order[] = {1, 0};
    const std::function<void()> calls[] = {[&] { on.forward(session, 1); },
                                           [&] { session.topk(); },
                                           [&] { session.length(); },
                                           [&] { session.end_request(1); },
                                           [&] { session.truncate(1, 1); },
                                           [&] { session.copy_request(1, 0); },
                                           [&] { session.reorder(order); },
                                           [&] { session.clone(); },
                                           [&] { session.resize({}); },
                                           [&] { session.args(); },
                                           [&] { session.cache_bytes(); },
                                           [&] {
                                               smla_tensor blocks{};
                                               smla::check(smla_session_candidates(session.get(), &blocks));
                                           }};
    int refused = 0;
    for (const auto& call : calls) {
        on.loop.meanwhile = [&] { refused += in_use(call) == "session"; };
        on.forward(session);
    }
    EXPECT_EQ(on.loop.calls, int(std::size(calls)));
    EXPECT_EQ(refused, int(std::size(calls)));
    EXPECT_EQ(session.length(0), 2 * int32_t(std::size(calls)));
    EXPECT_EQ(session.length(1), 2);  // no refused call has changed it
}

TEST(InUse, a_refused_or_failed_call_leaves_a_session_free) {
    Opened on("D2");
    const smla::Layer layer = on.layer(on.golden.layer());
    smla::Session session(layer);
    EXPECT_THROW(session.truncate(3), smla::Error);
    EXPECT_THROW(on.forward(session, 7), smla::Error);
    on.forward(session);
    EXPECT_EQ(session.length(), 2);
}

TEST(InUse, a_session_whose_entries_are_being_read_can_be_read_and_not_changed) {
    Opened on("V41_share");
    const smla::Layer writes = on.layer(1), reads = on.layer(3);
    smla::Session source(writes);
    smla_session_args args{};
    args.entries_of = source.get();
    smla::Session reader(reads, args);
    std::string during_source, changed, read, made;
    on.loop.meanwhile = [&] {
        during_source = in_use([&] { on.forward(reader); });
        made = in_use([&] { smla::Session another(reads, args); });
    };
    on.forward(source);
    EXPECT_EQ(during_source, "session.entries_of");
    EXPECT_EQ(made, "args.entries_of");
    on.loop.meanwhile = [&] {
        changed = in_use([&] { on.forward(source); });
        read = in_use([&] { source.length(); });
    };
    on.forward(reader);
    EXPECT_EQ(changed, "session");
    EXPECT_EQ(read, "");
    source.resize({.max_tokens = 8192});  // leaves another session in its place
    on.loop.meanwhile = [&] { during_source = in_use([&] { on.forward(reader); }); };
    on.forward(source);
    EXPECT_EQ(during_source, "session.entries_of");
    EXPECT_EQ(on.loop.calls, 3);
}

TEST(InUse, a_plan_that_a_step_reads_can_be_read_and_not_built) {
    Opened on("D2");
    const smla::Layer layer = on.layer(on.golden.layer());
    const smla_layer_info info = layer.info();
    smla_plan_args maxima{};
    maxima.groups = info.plan_groups;
    maxima.max_tokens = maxima.max_seq_len = 8;
    maxima.max_requests = 1;
    maxima.topk = info.topk;
    smla::Plan plan(maxima);
    std::vector<int32_t> starts{0, 8}, lengths{8}, table{0};
    smla_plan_batch batch{};
    batch.query_start_loc = smla::tensor(starts);
    batch.seq_lens = smla::tensor(lengths);
    batch.primary = batch.index = {smla::tensor(table, {1, 1}), {}, 8, 0};
    plan.build(batch);

    smla_layer_step step{};
    step.plan = plan.get();
    step.hidden = smla::tensor(on.hidden, {8, on.width});
    step.out = smla::tensor(on.out, {8, on.width});
    step.primary.cache = smla::cache(nullptr, SMLA_ROW_F32, 1, 8, info.kv_width);
    step.index.cache = smla::cache(nullptr, SMLA_ROW_F32, 1, 8, info.index_width);
    std::vector<float> kv(size_t(8 * info.kv_width)), keys(size_t(8 * info.index_width));
    step.primary.cache.data = kv.data();
    step.index.cache.data = keys.data();
    step.primary.block_table = step.index.block_table = smla::tensor(table, {1, 1});
    smla::Workspace workspace = on.context.workspace();
    std::string built, read;
    on.loop.meanwhile = [&] {
        built = in_use([&] { plan.build(batch); });
        read = in_use([&] {
            smla_tensor field{};
            smla::check(smla_plan_field(plan.get(), "position", &field));
        });
    };
    layer.forward(step, workspace);
    EXPECT_EQ(on.loop.calls, 1);
    EXPECT_EQ(built, "plan");
    EXPECT_EQ(read, "");
    plan.build(batch);
}

TEST(InUse, metadata_that_a_step_reads_can_be_read_and_not_built) {
    Loop loop;
    const smla::Context context = loop.context();
    smla_backend_args args{};
    args.dtype = SMLA_F32;
    args.kv_cache_dtype = "row_f32";
    args.heads = 8;
    args.kv_lora_rank = 8;
    args.rope_dim = args.nope_dim = args.v_head_dim = 4;
    args.page_tokens = args.topk = 4;
    args.max_tokens = args.max_seq_len = 8;
    args.max_requests = 1;
    args.softmax_scale = 0.5;
    const smla::Backend backend(context, args);
    smla::Metadata metadata = backend.metadata();
    std::vector<int32_t> starts{0, 8}, lengths{8}, table{0, 1}, topk(8 * 4, 0);
    smla_plan_batch batch{};
    batch.query_start_loc = smla::tensor(starts);
    batch.seq_lens = smla::tensor(lengths);
    batch.primary = {smla::tensor(table, {1, 2}), {}, 4, 0};
    metadata.build(batch);
    std::vector<float> q(8 * 8 * 12), out(8 * 8 * 8), memory(2 * 4 * 12);
    smla_backend_forward_args step{};
    step.metadata = metadata.get();
    step.q = smla::tensor(q, {8, 8, 12});
    step.topk_indices = smla::tensor(topk, {8, 4});
    step.out = smla::tensor(out, {8, 8 * 8});
    step.kv_cache = smla::cache(memory.data(), SMLA_ROW_F32, 2, 4, 12);
    smla::Workspace workspace = context.workspace();
    std::string built, read;
    loop.meanwhile = [&] {
        built = in_use([&] { metadata.build(batch); });
        read = in_use([&] {
            smla_tensor field{};
            smla::check(smla_backend_metadata_field(metadata.get(), "seq_lens", &field));
        });
    };
    backend.forward(step, workspace);
    EXPECT_EQ(loop.calls, 1);
    EXPECT_EQ(built, "metadata");
    EXPECT_EQ(read, "");
    metadata.build(batch);
}

// A session of each thread over one layer, one context and its threads: the bits of a session alone.
TEST(InUse, threads_that_share_a_layer) {
    Opened on("D2");
    const smla::Layer layer(smla::Context{smla_context_args{.threads = 2}}, on.folder.path.string(),
                            on.golden.layer());
    const auto run = [&] {
        std::vector<float> hidden = on.golden.values<float>("in.hidden"), out(hidden.size());
        smla::Session session(layer);
        session.forward(smla::tensor(hidden, {on.golden.tokens(), on.width}),
                        smla::tensor(out, {on.golden.tokens(), on.width}));
        return out;
    };
    const std::vector<float> alone = run();
    std::vector<std::thread> threads;
    std::atomic<int> same = 0;
    for (int k = 0; k < 4; ++k)
        threads.emplace_back([&] {
            for (int i = 0; i < 4; ++i) same += run() == alone;
        });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(same, 16);
}

// Threads that step requests of their own: a step runs whole, or is refused and changes nothing.
TEST(InUse, threads_that_share_a_session) {
    Opened on("D2");
    constexpr int kThreads = 4, kSteps = 40;
    const smla::Layer layer(smla::Context{smla_context_args{.threads = 2}}, on.folder.path.string(),
                            on.golden.layer());
    smla_session_args args{};
    args.max_requests = kThreads;
    smla::Session session(layer, args);
    int done[kThreads] = {};
    std::vector<std::thread> threads;
    for (int32_t k = 0; k < kThreads; ++k)
        threads.emplace_back([&, k] {
            std::vector<float> hidden(size_t(on.width), 0.5f), out(hidden);
            for (int i = 0; i < kSteps; ++i)
                done[k] += in_use([&] {
                               session.forward(smla::tensor(hidden, {1, on.width}),
                                               smla::tensor(out, {1, on.width}), k);
                           }).empty();
        });
    for (std::thread& thread : threads) thread.join();
    int all = 0;
    for (int32_t k = 0; k < kThreads; ++k) {
        EXPECT_EQ(session.length(k), done[k]);
        all += done[k];
    }
    EXPECT_GT(all, 0);
}

}  // namespace
