// Prepared calls (smla/prepared_call.h): lines 7i and 7j; smla_run_stage: line 7b.
#include "attention.h"
#include "calls.h"

#include <atomic>
#include <cstdlib>
#include <thread>

namespace contract {
namespace {

// Offsets of all addresses in the arguments of a call; each run provides all of them.
std::vector<size_t> addresses_in(const Call& call) {
    std::vector<size_t> out;
    for (const TensorField& each : call.tensors)
        if (each.tensor->ndim) out.push_back(each.field->offset);
    for (const CacheField& each : call.caches) {
        if (each.cache->format == SMLA_FORMAT_NONE) continue;
        out.push_back(each.field->offset);
        if (each.cache->scale_device) out.push_back(each.field->offset + offsetof(smla_cache, scale_device));
    }
    return out;
}

class Prepared {
public:
    Prepared(smla_context* context, smla_stage stage, const void* args, std::vector<size_t> moving)
        : moving_(std::move(moving)) {
        EXPECT_TRUE(succeeded(
            smla_call_create(context, stage, args, moving_.data(), int32_t(moving_.size()), 0, &call_)));
        EXPECT_TRUE(succeeded(smla_call_bytes(call_, &bytes)));
    }
    ~Prepared() { smla_call_destroy(call_); }
    Prepared(const Prepared&) = delete;
    Prepared& operator=(const Prepared&) = delete;

    std::vector<const void*> addresses_of(const void* args) const {
        std::vector<const void*> out(moving_.size());
        for (size_t i = 0; i < out.size(); ++i)
            std::memcpy(&out[i], static_cast<const char*>(args) + moving_[i], sizeof out[i]);
        return out;
    }
    smla_status run(const std::vector<const void*>& addresses, smla_workspace workspace) const {
        return smla_call_run(call_, addresses.data(), workspace, nullptr);
    }

    size_t bytes = 0;

private:
    std::vector<size_t> moving_;
    smla_call* call_ = nullptr;
};

// Runs body(call, engine, context) for every kind of call on every engine.
template <class Body>
void on_every_call(const Body& body) {
    for (const NamedMaker& maker : all_calls())
        for (const Engine& engine : engines()) {
            const std::unique_ptr<Call> call = make(maker);
            SCOPED_TRACE(call->name + " on " + engine.name);
            const Context context(engine);
            body(*call, context);
            if (testing::Test::HasFatalFailure()) return;
        }
}

// Host memory that is aligned to exactly 16 bytes.
std::shared_ptr<void> aligned_to_16(size_t bytes) {
    const std::shared_ptr<void> block(std::aligned_alloc(256, (bytes / 256 + 2) * 256), std::free);
    return {block, static_cast<char*>(block.get()) + 16};
}

CONTRACT_TEST(L7i_APreparedCallGivesTheBitsOfThePlainCallWhereverItsMemoryIs) {
    on_every_call([](Call& call, smla_context* context) {
        run_exactly(call, context);
        const std::vector<uint8_t> wanted = call.memory.image();
        call.memory.reset();
        const Placed first(call, context, call.args());
        const Prepared prepared(context, call.stage, first.args(), addresses_in(call));
        EXPECT_EQ(prepared.bytes, call.workspace(context));
        for (const bool moves : {false, true}) {
            call.memory.reset();
            const Placed placed(call, context, call.args(), moves && !on_gpu() ? aligned_to_16 : nullptr);
            const Scratch scratch(context, prepared.bytes);
            ASSERT_TRUE(succeeded(prepared.run(prepared.addresses_of(placed.args()), scratch.get())));
            placed.fetch();
            EXPECT_TRUE(scratch.clean());
            EXPECT_TRUE(call.memory.image() == wanted) << "in other memory: " << moves;
        }
    });
}

CONTRACT_TEST(L7b_RunStageRefusesFewerBytesThanTheSizeAndElseGivesTheBitsOfTheCall) {
    on_every_call([](Call& call, smla_context* context) {
        run_exactly(call, context);
        const std::vector<uint8_t> wanted = call.memory.image();
        call.memory.reset();
        const Placed placed(call, context, call.args());
        const Scratch scratch(context, call.workspace(context));
        smla_workspace less = scratch.get();
        less.bytes -= 1;
        EXPECT_TRUE(refused(smla_run_stage(context, call.stage, placed.args(), 0, less, nullptr),
                            SMLA_WORKSPACE_TOO_SMALL, "workspace.bytes"));
        EXPECT_TRUE(call.memory.nothing_changed());
        ASSERT_TRUE(succeeded(smla_run_stage(context, call.stage, placed.args(), 0, scratch.get(), nullptr)));
        placed.fetch();
        EXPECT_TRUE(scratch.clean());
        EXPECT_TRUE(call.memory.image() == wanted);
    });
}

CONTRACT_TEST(L7j_APreparedCallRefusesTheAddressesThatThePlainCallRefuses) {
    CONTRACT_SKIP_ON_GPU("the checks are those of the host");
    on_every_call([](Call& call, smla_context* context) {
        const std::vector<size_t> moving = addresses_in(call);
        const Prepared prepared(context, call.stage, call.args(), moving);
        const Scratch scratch(context, prepared.bytes);
        const std::vector<const void*> addresses = prepared.addresses_of(call.args());
        const auto expect_as_plain = [&](size_t i, const void* address) {
            const auto* const begin = static_cast<const char*>(call.args());
            std::vector<char> args(begin, begin + *call.struct_size());
            std::memcpy(args.data() + moving[i], &address, sizeof address);
            const smla_status wanted = call.run_with(context, args.data(), scratch.get());
            const std::string message = smla_last_error();
            call.memory.reset();
            std::vector<const void*> changed = addresses;
            changed[i] = address;
            EXPECT_EQ(prepared.run(changed, scratch.get()), wanted) << moving[i];
            EXPECT_EQ(smla_last_error(), message);
            if (wanted != SMLA_OK) {
                EXPECT_TRUE(call.memory.nothing_changed());
            }
            call.memory.reset();
        };
        for (size_t i = 0; i < moving.size(); ++i) {
            std::vector<const void*> changed = addresses;
            changed[i] = nullptr;
            EXPECT_TRUE(refused(prepared.run(changed, scratch.get()), SMLA_INVALID_ARGUMENT,
                                "addresses[" + std::to_string(i) + "]"));
            EXPECT_TRUE(call.memory.nothing_changed());
        }
        for (const TensorField& each : call.tensors) {
            const size_t i = size_t(std::ranges::find(moving, each.field->offset) - moving.begin());
            if (i == moving.size()) continue;
            const size_t item = size_t(smla::dtype_bits(each.tensor->dtype)) / 8;
            if (item > 1) expect_as_plain(i, static_cast<const char*>(addresses[i]) + 1);
            if (!each.field->is_output) continue;
            for (size_t j = 0; j < moving.size(); ++j)
                if (j != i) expect_as_plain(i, addresses[j]);
            expect_as_plain(i, scratch.data());
        }
        EXPECT_TRUE(refused(smla_call_run(nullptr, addresses.data(), scratch.get(), nullptr),
                            SMLA_INVALID_ARGUMENT, "call"));
    });
}

TEST(Contract, L7j_WhatCannotBePreparedIsRefusedByName) {
    const Context context(reference_engine());
    Attention problem({});
    problem.fill_listed();
    const size_t q = offsetof(smla_attend_args, q.data), out = offsetof(smla_attend_args, out.data);
    smla_call* call = reinterpret_cast<smla_call*>(&problem);
    const auto expect_refused = [&](const char* field, smla_stage stage, std::vector<size_t> moving) {
        const smla_status status =
            smla_call_create(context, stage, &problem.with, moving.data(), int32_t(moving.size()), 0, &call);
        EXPECT_TRUE(refused(status, SMLA_INVALID_ARGUMENT, field));
        EXPECT_EQ(call, nullptr);
    };
    const size_t scale = offsetof(smla_attend_args, primary.cache.scale_device);
    expect_refused("moving[1]", SMLA_STAGE_ATTEND, {q, q});
    expect_refused("moving[1]", SMLA_STAGE_ATTEND, {out, q + 8});                             // a dtype
    expect_refused("moving[0]", SMLA_STAGE_ATTEND, {size_t(1) << 40});                        // far outside
    expect_refused("moving[0]", SMLA_STAGE_ATTEND, {offsetof(smla_attend_args, sink.data)});  // absent
    expect_refused("moving[0]", SMLA_STAGE_ATTEND, {scale});                                  // absent
    expect_refused("moving[0]", SMLA_STAGE_ATTEND, {offsetof(smla_attend_args, softmax_scale_device)});
    expect_refused("stage", SMLA_STAGE_COUNT, {});
    expect_refused("args.struct_size", SMLA_STAGE_MERGE, {});  // attend's arguments
    problem.with.out.shape[1] += 1;
    expect_refused("args.out.shape", SMLA_STAGE_ATTEND, {q});
    problem.with.out.shape[1] -= 1;
    EXPECT_TRUE(refused(smla_call_create(context, SMLA_STAGE_ATTEND, &problem.with, nullptr, 1, 0, &call),
                        SMLA_INVALID_ARGUMENT, "moving"));
    EXPECT_TRUE(refused(smla_call_create(context, SMLA_STAGE_ATTEND, &problem.with, &q, -1, 0, &call),
                        SMLA_INVALID_ARGUMENT, "moving_count"));
    EXPECT_TRUE(refused(smla_call_create(context, SMLA_STAGE_ATTEND, &problem.with, &q, 1, 0, nullptr),
                        SMLA_INVALID_ARGUMENT, "out"));
    const Prepared prepared(context, SMLA_STAGE_ATTEND, &problem.with, {q});
    size_t bytes = 0;
    EXPECT_TRUE(refused(smla_call_bytes(nullptr, &bytes), SMLA_INVALID_ARGUMENT, "call"));
    smla_call_destroy(nullptr);
}

TEST(Contract, L7j_AScaleInHostMemoryIsReadAndCheckedInEveryRun) {
    char codes[512] = {};
    codes[3] = 0x38;  // 1 in e4m3
    float scale = 1, rows[512] = {};
    int32_t table = 0, cu[2] = {0, 1};
    smla_gather_args args{};
    args.struct_size = sizeof args;
    args.cache.data = codes;
    args.cache.format = SMLA_FP8_512;
    args.cache.page_tokens = 1;
    args.cache.pages = 1;
    args.cache.scale_device = &scale;
    args.block_table = smla_dense(&table, SMLA_I32, 2, 1, 1, 0, 0);
    args.cu = smla_dense(cu, SMLA_I32, 1, 2, 0, 0, 0);
    args.out = smla_dense(rows, SMLA_F32, 2, 1, 512, 0, 0);
    for (const Engine& engine : engines()) {
        const Context context(engine);
        scale = 1;
        const Prepared prepared(context, SMLA_STAGE_GATHER, &args, {});
        for (const float value : {1.f, 2.f, 0.f, 3.f}) {
            scale = value;
            const smla_status status = prepared.run({}, {});
            if (value == 0) {
                EXPECT_TRUE(refused(status, SMLA_INVALID_ARGUMENT, "args.cache.scale_device"));
            } else {
                EXPECT_TRUE(succeeded(status));
                EXPECT_EQ(rows[3], value) << engine.name;
            }
        }
    }
}

TEST(Contract, L7i_ThreadsRunOnePreparedCallAtOnce) {
    constexpr int kThreads = 4, kRuns = 50;
    for (const Engine& engine : engines()) {
        const Context context(engine);
        std::vector<std::unique_ptr<Attention>> problems;
        for (uint32_t seed = 0; seed < kThreads; ++seed) {
            problems.push_back(std::make_unique<Attention>(Shape{.seed = seed + 1}));
            problems.back()->fill_listed();
        }
        const std::vector<size_t> moving = addresses_in(*problems[0]);
        const Prepared prepared(context, SMLA_STAGE_ATTEND, &problems[0]->with, moving);
        std::vector<std::vector<uint8_t>> wanted;
        for (const auto& problem : problems) {
            run_exactly(*problem, context);
            wanted.push_back(problem->memory.image());
            problem->memory.reset();
        }
        std::atomic<int> wrong = 0;
        std::vector<std::thread> threads;
        for (size_t i = 0; i < kThreads; ++i)
            threads.emplace_back([&, i] {
                Attention& mine = *problems[i];
                const Scratch scratch(context, prepared.bytes);
                for (int run = 0; run < kRuns; ++run) {
                    mine.memory.reset();
                    if (prepared.run(prepared.addresses_of(&mine.with), scratch.get()) != SMLA_OK) ++wrong;
                    if (mine.memory.image() != wanted[i]) ++wrong;
                }
            });
        for (std::thread& thread : threads) thread.join();
        EXPECT_EQ(wrong, 0) << engine.name;
    }
}

CONTRACT_TEST(L7i_APreparedCallNotesTheFirstBadIndexLikeThePlainCall) {
    Attention problem({.tokens = 3});
    problem.fill_listed();
    problem.list(1, 5, 1 << 20);
    for (const Engine& engine : engines()) {
        const Context context(engine, {.check_indices = 1});
        const Placed placed(problem, context, problem.args());
        const Prepared prepared(context, SMLA_STAGE_ATTEND, placed.args(), addresses_in(problem));
        const Scratch scratch(context, prepared.bytes);
        ASSERT_TRUE(succeeded(prepared.run(prepared.addresses_of(placed.args()), scratch.get())));
        smla_error_word word{};
        ASSERT_TRUE(succeeded(smla_read_error(context, scratch.get(), nullptr, &word)));
        EXPECT_EQ(word.kind, SMLA_BAD_ROW) << engine.name;
        EXPECT_EQ(word.token, 1);
        EXPECT_EQ(word.column, 5);
    }
}

}  // namespace
}  // namespace contract
