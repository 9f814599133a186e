// Contexts, workspaces, errors, and stage calls through smla.hpp against the C calls and the reference
// engine.
#include "kit/small_problems.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <optional>
#include <thread>

namespace {

template <class Handle>
constexpr bool moves_only =
    std::is_nothrow_move_constructible_v<Handle>&& std::is_nothrow_move_assignable_v<Handle> &&
    !std::is_copy_constructible_v<Handle> && !std::is_copy_assignable_v<Handle>;
static_assert(moves_only<smla::Context> && moves_only<smla::Workspace> && moves_only<smla::Plan>);
static_assert(moves_only<smla::Layer> && moves_only<smla::Session> && moves_only<smla::Call>);
static_assert(std::is_base_of_v<std::exception, smla::Error>);

smla_context_args on(smla_engine engine) {
    smla_context_args args{};
    args.engine = engine;
    args.threads = 2;
    return args;
}

TEST(HppContext, version_of_headers_and_library) {
    EXPECT_EQ(smla::header_version, smla::library_version());
    EXPECT_EQ(smla::header_version.major, SMLA_VERSION_MAJOR);
    EXPECT_EQ(smla::header_version.minor, SMLA_VERSION_MINOR);
    EXPECT_EQ(smla::header_version.patch, SMLA_VERSION_PATCH);
    smla_context_args args = on(SMLA_ENGINE_CPU);
    const int32_t patch = SMLA_VERSION % 100;  // another patch version has the same ABI
    for (const int32_t same : {SMLA_VERSION - patch, SMLA_VERSION - patch + 99}) {
        args.version = same;
        EXPECT_NO_THROW(smla::Context{args}) << same;
    }
    const int32_t minor = SMLA_VERSION_MAJOR > 0 ? SMLA_VERSION + 10000 : SMLA_VERSION + 100;
    for (const int32_t other : {SMLA_VERSION + 10000, SMLA_VERSION - 10000, minor, -SMLA_VERSION, -1}) {
        args.version = other;
        try {
            const smla::Context context(args);
            ADD_FAILURE() << "headers of version " << other << " were accepted";
        } catch (const smla::Error& error) {
            EXPECT_EQ(error.field, "args.version");
            EXPECT_EQ(error.got, std::to_string(other));
        }
    }
    args.struct_size = sizeof args;
    args.version = 0;  // C: not filled in
    smla_context* none = nullptr;
    EXPECT_EQ(smla_context_create(&args, &none), SMLA_INVALID_ARGUMENT);
    EXPECT_EQ(none, nullptr);
}

TEST(HppContext, rope_names_the_field_that_does_not_fit) {
    const smla::Context context(on(SMLA_ENGINE_CPU));
    std::vector<float> x(8);
    const std::vector<int32_t> positions(1);
    const std::vector<double> frequencies(5, 1.);
    const auto refused = [&](int64_t pairs, int32_t first) {
        try {
            context.rope({.first = first,
                          .x = smla::tensor(x, {1, 1, 8}),
                          .positions = smla::tensor(positions),
                          .frequencies = smla::tensor(std::span(frequencies).first(size_t(pairs)))});
        } catch (const smla::Error& error) {
            return error.field + ": " + error.wanted;
        }
        return std::string();
    };
    EXPECT_EQ(refused(4, 0), "");
    EXPECT_EQ(refused(5, 0), "args.frequencies.shape[0]: at most 4 (pairs of the 8 channels)");
    EXPECT_EQ(refused(3, 3), "args.first: 0 to 2 (6 of 8 channels are rotated)");
    EXPECT_EQ(refused(3, INT32_MAX), "args.first: 0 to 2 (6 of 8 channels are rotated)");
    EXPECT_EQ(refused(3, -1), "args.first: 0 to 2 (6 of 8 channels are rotated)");
}

TEST(HppContext, demands_are_refused_in_visible_text) {
    smla_context_args args = on(SMLA_ENGINE_CPU);
    for (const char* const kernel : {"norm=cpu_generic_norm,norm=cpu_generic_norm", "no\nrm=\x1b[2J"}) {
        args.kernel = kernel;
        try {
            const smla::Context context(args);
            ADD_FAILURE() << kernel;
        } catch (const smla::Error& error) {
            EXPECT_EQ(error.field, "args.kernel");
            EXPECT_EQ(error.got.find_first_of("\n\x1b"), std::string::npos);
            EXPECT_EQ(std::string(error.what()).find_first_of("\n\x1b"), std::string::npos);
        }
    }
}

TEST(HppContext, errors_carry_code_field_got_wanted) {
    const smla::Context context(on(SMLA_ENGINE_CPU));
    Problem problem;
    smla_attend_args args = problem.args();
    args.softmax_scale = -2;
    try {
        context.attend(args);
        FAIL() << "a negative scale was accepted";
    } catch (const smla::Error& error) {
        EXPECT_EQ(error.code, SMLA_INVALID_ARGUMENT);
        EXPECT_EQ(error.field, "args.softmax_scale");
        EXPECT_EQ(error.got, "-2");
        EXPECT_NE(error.wanted.find("positive"), std::string::npos);
        for (const std::string* part : {&error.field, &error.got, &error.wanted})
            EXPECT_NE(std::string(error.what()).find(*part), std::string::npos);
        const smla::Error copy = error;
        EXPECT_STREQ(copy.what(), error.what());
    }
    EXPECT_NO_THROW(context.attend(problem.args()));  // nothing is left of it
}

TEST(HppContext, equals_the_c_call_and_the_reference) {
    const smla::Context cpu(on(SMLA_ENGINE_CPU)), reference(on(SMLA_ENGINE_REFERENCE));
    Problem through_header, through_c;
    cpu.attend(through_header.args());

    smla_attend_args args = through_c.args();
    args.struct_size = sizeof args;
    smla::Workspace workspace = cpu.workspace();
    workspace.reserve(cpu.workspace_size<SMLA_STAGE_ATTEND>(args));
    ASSERT_EQ(smla_attend(cpu.get(), &args, workspace.get(), nullptr), SMLA_OK);
    EXPECT_EQ(through_header.out, through_c.out);
    EXPECT_EQ(through_header.lse, through_c.lse);

    Problem exact;
    reference.attend(exact.args());
    // Both engines sum in f32: 64 products of values below 1 err by at most 64 * 64 * 2^-24 in a score, the
    // scale is 0.2, outputs are averages of values below 1: twice 0.2 * 2.4e-4, and rounding.
    for (size_t i = 0; i < exact.out.size(); ++i)
        EXPECT_NEAR(through_header.out[i], exact.out[i], 2 * 0.2 * 2.5e-4);
    for (size_t i = 0; i < exact.lse.size(); ++i)
        EXPECT_NEAR(through_header.lse[i], exact.lse[i], 2 * 0.2 * 2.5e-4);
    EXPECT_NE(exact.out, std::vector<float>(exact.out.size(), 0.f));
}

TEST(HppContext, the_three_forms_of_a_call_give_the_same_bits) {
    const smla::Context context(on(SMLA_ENGINE_CPU));
    Problem own, grown, raw;
    context.attend(own.args());
    smla::Workspace workspace = context.workspace();
    EXPECT_EQ(workspace.bytes(), 0u);
    context.attend(grown.args(), workspace);
    EXPECT_GE(workspace.bytes(), context.workspace_size<SMLA_STAGE_ATTEND>(raw.args()));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(workspace.get().data) % 64, 0u);
    context.attend(raw.args(), workspace.get());
    EXPECT_EQ(own.out, grown.out);
    EXPECT_EQ(own.out, raw.out);
    // and nothing moves the second time
    const void* before = workspace.get().data;
    context.attend(grown.args(), workspace);
    EXPECT_EQ(workspace.get().data, before);
}

TEST(HppContext, calls_without_a_workspace_take_turns) {
    const smla::Context context(on(SMLA_ENGINE_CPU));
    Problem alone;
    context.attend(alone.args());
    std::vector<Problem> problems(4);
    std::vector<std::thread> threads;
    for (Problem& problem : problems)
        threads.emplace_back([&] {
            for (int i = 0; i < 20; ++i) context.attend(problem.args());
        });
    for (std::thread& thread : threads) thread.join();
    for (const Problem& problem : problems) EXPECT_EQ(problem.out, alone.out);
}

TEST(HppContext, moves) {
    smla::Context first(on(SMLA_ENGINE_CPU));
    smla_context* const handle = first.get();
    smla::Workspace workspace = first.workspace();
    smla::Context second = std::move(first);
    EXPECT_EQ(second.get(), handle);
    Problem problem;
    second.attend(problem.args());
    second.attend(problem.args(), workspace);

    try {
        first.attend(problem.args());  // NOLINT: what a moved-from handle does is the point
        FAIL() << "a context that was moved from ran a call";
    } catch (const smla::Error& error) {
        EXPECT_EQ(error.field, "context");
    }
    EXPECT_THROW(first.attend(problem.args(), workspace), smla::Error);
    EXPECT_THROW(first.read_error(), smla::Error);

    smla::Workspace moved = std::move(workspace);
    EXPECT_EQ(workspace.bytes(), 0u);  // NOLINT
    EXPECT_EQ(workspace.get().data, nullptr);
    second.attend(problem.args(), moved);
    first = smla::Context(on(SMLA_ENGINE_REFERENCE));
    EXPECT_NO_THROW(first.attend(problem.args()));
    EXPECT_NE(first.description(), second.description());
}

TEST(HppContext, a_workspace_outlives_its_context_object) {
    smla::Workspace workspace = smla::Context(on(SMLA_ENGINE_CPU)).workspace();
    workspace.reserve(100000);
    EXPECT_GE(workspace.bytes(), 100000u);
    EXPECT_EQ(workspace.bytes() % 64, 0u);
}

TEST(HppContext, raw_workspace_too_small) {
    const smla::Context context(on(SMLA_ENGINE_CPU));
    Problem problem;
    const size_t wanted = context.workspace_size<SMLA_STAGE_ATTEND>(problem.args());
    ASSERT_GT(wanted, 4096u);
    smla::Workspace small = context.workspace();
    small.reserve(4096);
    try {
        context.attend(problem.args(), small.get());
        FAIL() << "4 KiB were enough";
    } catch (const smla::Error& error) {
        EXPECT_EQ(error.code, SMLA_WORKSPACE_TOO_SMALL);
        EXPECT_EQ(error.got, "4096");
    }
}

TEST(HppContext, explain_names_the_kernel_that_runs) {
    const smla::Context context(on(SMLA_ENGINE_REFERENCE));
    Problem problem;
    const std::string json = context.explain<SMLA_STAGE_ATTEND>(problem.args());
    ASSERT_FALSE(json.empty());
    EXPECT_EQ(json.front(), '{');
    EXPECT_EQ(json.back(), '}');
    EXPECT_NE(json.find("\"stage\":\"attend\""), std::string::npos);
    EXPECT_NE(json.find("\"chosen\":true"), std::string::npos);
}

TEST(HppContext, explain_follows_a_demand) {
    smla_context_args args = on(SMLA_ENGINE_CPU);
    args.kernel = "select=cpu_generic_select";
    const smla::Context context(args);
    std::vector<float> scores(64);
    std::vector<int32_t> indices(4);
    smla_select_args select{};
    select.scores = smla::tensor(scores, {1, 64});
    select.indices = smla::tensor(indices, {1, 4});
    bool another = false;  // could run, and comes first in the list
    const auto told = nlohmann::json::parse(context.explain<SMLA_STAGE_SELECT>(select));
    for (const auto& row : told["candidates"]) {
        EXPECT_EQ(row["chosen"], row["kernel"] == "cpu_generic_select") << row;
        EXPECT_EQ(row["refusal"] == "", row["kernel"] == "cpu_generic_select") << row;
        another = another || row["refusal"] == "the context allows only cpu_generic_select";
    }
    EXPECT_TRUE(another);
}

TEST(HppContext, check_data_finds_the_bad_row) {
    const smla::Context context(on(SMLA_ENGINE_CPU));
    Problem problem;
    EXPECT_NO_THROW(context.check_data<SMLA_STAGE_ATTEND>(problem.args()));
    problem.rows[7] = 1 << 20;
    try {
        context.check_data<SMLA_STAGE_ATTEND>(problem.args());
        FAIL() << "a row outside the cache passed";
    } catch (const smla::Error& error) {
        EXPECT_EQ(error.code, SMLA_DATA_ERROR);
        EXPECT_NE(error.got.find(std::to_string(1 << 20)), std::string::npos) << error.what();
    }
}

TEST(HppContext, the_error_word_survives_growth_and_is_taken_once) {
    smla_context_args args = on(SMLA_ENGINE_CPU);
    args.check_indices = 1;
    const smla::Context context(args);
    Problem problem;
    problem.rows[7] = 1 << 20;
    smla::Workspace workspace = context.workspace();
    EXPECT_FALSE(context.read_error(workspace));
    context.attend(problem.args(), workspace);
    workspace.reserve(workspace.bytes() + (1 << 20));
    const auto word = context.read_error(workspace);
    ASSERT_TRUE(word);
    EXPECT_EQ(word->kind, SMLA_BAD_ROW);
    EXPECT_EQ(word->stage, SMLA_STAGE_ATTEND);
    EXPECT_EQ(word->token, 7 / Problem::listed);
    EXPECT_EQ(word->column, 7 % Problem::listed);
    EXPECT_EQ(word->value, 1 << 20);
    EXPECT_FALSE(context.read_error(workspace));

    context.attend(problem.args());  // in the context's own
    EXPECT_TRUE(context.read_error());
    EXPECT_FALSE(context.read_error());
}

TEST(HppContext, every_stage_is_a_member_and_names_its_own_refusal) {
    const smla::Context context(on(SMLA_ENGINE_CPU));
    smla::Workspace workspace = context.workspace();
    int stages = 0;
    const auto refuses = [&](auto&& call, const char* name) {
        ++stages;
        try {
            call();
            ADD_FAILURE() << name << " accepted empty arguments";
        } catch (const smla::Error& error) {
            EXPECT_EQ(error.code, SMLA_INVALID_ARGUMENT) << name << ": " << error.what();
            EXPECT_FALSE(error.field.empty()) << name;
        }
    };
#define SMLA_TEST_STAGE(name, stage, args_type)                           \
    static_assert(std::is_same_v<smla::StageArgs<stage>, args_type>);     \
    refuses([&] { context.name(args_type{}); }, #name);                   \
    refuses([&] { context.name(args_type{}, workspace); }, #name);        \
    refuses([&] { context.name(args_type{}, smla_workspace{}); }, #name); \
    refuses([&] { context.workspace_size<stage>(args_type{}); }, #name);  \
    refuses([&] { context.explain<stage>(args_type{}); }, #name);
    SMLA_HPP_STAGES(SMLA_TEST_STAGE)
#undef SMLA_TEST_STAGE
    EXPECT_EQ(stages, 5 * SMLA_STAGE_COUNT);
}

// Stages that share an argument struct, and so could stand for each other.
TEST(HppContext, stages_are_numbered_as_they_are_named) {
    const smla::Context context(on(SMLA_ENGINE_CPU));
    const auto names = [](const std::string& json, const std::string& name) {
        EXPECT_NE(json.find("\"stage\":\"" + name + "\""), std::string::npos) << json;
    };
    std::vector<float> x(4), w(4), out(4);
    smla_project_args product{};
    product.x = smla::tensor(x, {2, 1, 2});
    product.w = smla::tensor(w, {1, 2, 2});
    product.out = smla::tensor(out, {2, 1, 2});
    names(context.explain<SMLA_STAGE_PROJECT>(product), "project");
    names(context.explain<SMLA_STAGE_ABSORB>(product), "absorb");
    names(context.explain<SMLA_STAGE_UP_PROJECT>(product), "up_project");
    names(context.explain<SMLA_STAGE_OUT_PROJECT>(product), "out_project");
    std::vector<int32_t> positions(2);
    std::vector<double> frequencies(1);
    smla_rope_args rope{};
    rope.x = product.x;
    rope.positions = smla::tensor(positions);
    rope.frequencies = smla::tensor(frequencies);
    names(context.explain<SMLA_STAGE_ROPE>(rope), "rope");
    names(context.explain<SMLA_STAGE_INVERSE_ROPE>(rope), "inverse_rope");
    smla_write_args write{};
    write.head = smla::tensor(x, {2, 2});
    write.slots = smla::tensor(positions);
    write.cache = smla::cache(w.data(), SMLA_ROW_F32, 1, 2, 2);
    names(context.explain<SMLA_STAGE_WRITE_KV>(write), "write_kv");
    names(context.explain<SMLA_STAGE_WRITE_INDEX>(write), "write_index");
}

TEST(HppContext, sizes_need_no_memory) {
    const smla::Context context(on(SMLA_ENGINE_CPU));
    Problem problem;
    smla_attend_args args = problem.args();
    const size_t bytes = context.workspace_size<SMLA_STAGE_ATTEND>(args);
    for (void** data :
         {&args.q.data, &args.primary.cache.data, &args.primary.rows.data, &args.out.data, &args.lse.data})
        *data = nullptr;
    EXPECT_EQ(context.workspace_size<SMLA_STAGE_ATTEND>(args), bytes);
    try {
        context.attend(args);
        FAIL() << "a call without memory ran";
    } catch (const smla::Error& error) {
        EXPECT_EQ(error.code, SMLA_INVALID_ARGUMENT);
        EXPECT_EQ(error.got, "null");
    }
}

TEST(HppContext, a_budget_bounds_scratch) {
    const smla::Context context(on(SMLA_ENGINE_CPU));
    ScoreProblem problem;
    smla::Workspace all = context.workspace(), bounded = context.workspace(64 << 10);
    context.score_select(problem.args(), all);
    const std::vector<int32_t> unbounded = problem.indices;
    problem.indices.assign(problem.indices.size(), -7);
    context.score_select(problem.args(), bounded);
    EXPECT_LT(bounded.bytes(), all.bytes());
    EXPECT_EQ(problem.indices, unbounded);
}

TEST(HppCall, runs_a_stage_in_other_memory_and_keeps_its_context) {
    Problem problem, other;
    const smla_attend_args args = problem.args();
    std::optional<smla::Context> context(on(SMLA_ENGINE_CPU));
    context->attend(args);
    const std::vector<float> wanted = problem.out;
    smla::Workspace workspace = context->workspace();
    using A = smla_attend_args;
    const auto call = smla::Call::of<SMLA_STAGE_ATTEND>(
        *context, args, {offsetof(A, q.data), offsetof(A, primary.cache.data), offsetof(A, out.data)});
    context.reset();
    problem.out.assign(wanted.size(), 0);
    call.run({other.q.data(), other.keys.data(), other.out.data()}, workspace);
    EXPECT_EQ(other.out, wanted);
    EXPECT_EQ(problem.out, std::vector<float>(wanted.size()));
    EXPECT_GE(workspace.bytes(), call.bytes());
    call.run({other.q.data(), other.keys.data(), problem.out.data()}, workspace.get());
    EXPECT_EQ(problem.out, wanted);
    for (const size_t count : {2, 4}) {
        try {
            if (count == 2) call.run({nullptr, nullptr}, workspace);
            else call.run({nullptr, nullptr, nullptr, nullptr}, workspace);
            ADD_FAILURE() << count;
        } catch (const smla::Error& error) {
            EXPECT_EQ(error.field, "addresses");
        }
    }
}

}  // namespace
