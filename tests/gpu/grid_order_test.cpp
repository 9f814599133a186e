// Calls that run beside the call before (Env::beside): the same results, an end after that call, and a start
// after all calls before it. A long product runs while a call would go wrong.
#include "engines/context.h"
#include "gpu/needs_gpu.h"
#include "kit/context_args.h"
#include "kit/problem.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

namespace smla::test {

namespace {

constexpr Stage kBesideStages[] = {Stage::rope,       Stage::project,     Stage::absorb,
                                   Stage::write_kv,   Stage::write_index, Stage::quant_index_q,
                                   Stage::save_state, Stage::compress};
constexpr uint64_t kProblems = 24;  // of each stage

kit::Draw draw(uint64_t seed) { return {.seed = seed, .of_model = seed % 2 == 0, .small = seed % 3 == 0}; }

// A problem's call, with its memory on the GPU.
class Call {
public:
    virtual ~Call() = default;
    // Whether the GPU got anything to do.
    virtual bool launch(Env env) = 0;
};

template <Stage S>
class CallOf : public Call {
public:
    CallOf(const Env& env, std::unique_ptr<kit::Problem> problem)
        : problem_(std::move(problem)),
          placed_(*env.device, *static_cast<const ArgsOf<S>*>(problem_->arguments())),
          scratch_(*env.device, stage_workspace<S>(placed_.args, env, 0)) {}
    bool launch(Env env) override {
        bool launched = false;
        env.launched = &launched;
        env.workspace = scratch_.get();
        run_stage<S>(placed_.args, env);
        return launched;
    }

private:
    std::unique_ptr<kit::Problem> problem_;
    Placed<ArgsOf<S>> placed_;
    kit::Scratch scratch_;
};

// Null: no kernel of the engine takes that problem.
std::unique_ptr<Call> make_call(Stage stage, uint64_t seed, const Env& env) {
    std::unique_ptr<kit::Problem> problem = kit::make_problem(stage, draw(seed));
    const std::vector<Verdict> kernels = problem->kernels(env);
    if (std::none_of(kernels.begin(), kernels.end(), [](const Verdict& each) { return each.chosen; }))
        return nullptr;
    switch (stage) {
#define SMLA_CALL(name, args) \
    case Stage::name: return std::make_unique<CallOf<Stage::name>>(env, std::move(problem));
        SMLA_STAGES(SMLA_CALL)
#undef SMLA_CALL
    }
    return nullptr;
}

// Sums of many ones in few blocks, which let the next grid start at once; and a copy of the sums.
class LongProduct {
public:
    explicit LongProduct(const Env& env)
        : env_(env),
          x_(kTokens * kSum, 1.f),
          w_(kOutputs * kSum, f32_to_bf16(1.f)),
          sums_(kTokens * kOutputs),
          copied_(sums_.size()),
          product_(*env.device, product_args()),
          copy_(*env.device, copy_args()) {
        copy_.args.x.data = product_.args.out.data;
    }

    void poison() const {
        env_.device->fill(product_.args.out.data, 0xff, sums_.size() * sizeof(float), nullptr);
        env_.device->fill(copy_.args.out.data, 0xff, sums_.size() * sizeof(float), nullptr);
    }
    void launch(const Env& env) const { run_stage<Stage::project>(product_.args, env); }
    void copy(Env env, bool beside) const {
        env.beside = beside;
        run_stage<Stage::rope>(copy_.args, env);
    }
    // How many of the copied sums are right.
    size_t right() {
        copy_.copy_back();
        return size_t(std::count(copied_.begin(), copied_.end(), float(kSum)));
    }
    size_t count() const { return sums_.size(); }

private:
    static constexpr size_t kTokens = 16, kOutputs = 64, kSum = 1 << 18;

    smla_project_args product_args() {
        smla_project_args args{};
        args.struct_size = sizeof args;
        args.x = make_tensor(x_.data(), SMLA_F32, {int64_t(kTokens), 1, int64_t(kSum)});
        args.w = make_tensor(w_.data(), SMLA_BF16, {1, int64_t(kOutputs), int64_t(kSum)});
        args.out = make_tensor(sums_.data(), SMLA_F32, {int64_t(kTokens), 1, int64_t(kOutputs)});
        return args;
    }
    smla_rope_args copy_args() {
        smla_rope_args args{};
        args.struct_size = sizeof args;
        args.x = make_tensor(sums_.data(), SMLA_F32, {int64_t(kTokens), 1, int64_t(kOutputs)});
        args.positions = make_tensor(positions_, SMLA_I32, {int64_t(kTokens)});
        args.frequencies = make_tensor(no_frequencies_, SMLA_F64, {0});
        args.out = make_tensor(copied_.data(), SMLA_F32, {int64_t(kTokens), 1, int64_t(kOutputs)});
        return args;
    }

    Env env_;
    std::vector<float> x_;
    std::vector<uint16_t> w_;
    std::vector<float> sums_, copied_;
    int32_t positions_[kTokens] = {};
    double no_frequencies_[1] = {};
    Placed<smla_project_args> product_;
    Placed<smla_rope_args> copy_;
};

class GpuGridOrder : public testing::Test {
protected:
    void SetUp() override {
        SMLA_NEEDS_GPU();
        context = std::make_unique<Context>(kit::context_args(SMLA_ENGINE_CUDA));
    }

    std::unique_ptr<Context> context;
};

TEST_F(GpuGridOrder, CallsBesideOthersGiveWhatTheyGiveAlone) {
    int runs = 0;
    for (const Stage stage : kBesideStages)
        for (uint64_t seed = 0; seed < 2 * kProblems; ++seed) {
            const auto problem = kit::make_problem(stage, draw(seed));
            problem->expect();
            problem->beside = true;
            for (const Verdict& each : problem->kernels(context->env({}))) {
                if (!each.refusal.empty()) continue;
                kit::Comparison out;
                problem->run(*context, each.kernel, 0, out);
                problem->compare(each.kernel, out);
                EXPECT_LE(out.worst, 1) << each.kernel << ", " << problem->description << ": " << out.what;
                ++runs;
            }
        }
    EXPECT_GT(runs, int(kProblems) * int(std::size(kBesideStages)));
}

// What follows a call waits for that call alone.
TEST_F(GpuGridOrder, ACallBesideAnotherEndsAfterIt) {
    const Env env = context->env({});
    LongProduct before(env);
    int runs = 0;
    for (const Stage stage : kBesideStages)
        for (uint64_t seed = 0; seed < kProblems; ++seed) {
            const auto call = make_call(stage, seed, env);
            if (!call) continue;
            const auto launch = [&](smla_stream stream) {
                Env on = env;
                on.stream = stream;
                before.launch(on);
                Env beside = on;
                beside.beside = true;
                const bool launched = call->launch(beside);
                before.copy(on, false);
                return launched;
            };
            before.poison();
            if (!launch(nullptr)) continue;
            ASSERT_EQ(before.right(), before.count()) << stage_name(stage) << ", seed " << seed;
            before.poison();
            env.device->record([&](smla_stream stream) { launch(stream); })->replay(nullptr);
            ASSERT_EQ(before.right(), before.count()) << stage_name(stage) << " replayed, seed " << seed;
            ++runs;
        }
    EXPECT_GT(runs, int(kProblems));
}

// A call beside another reads what was written before that one, whatever stage that is.
TEST_F(GpuGridOrder, ACallBesideAnotherStartsAfterAllBefore) {
    const Env env = context->env({});
    LongProduct before(env);
    int runs = 0;
    for (int stage = 0; stage < kStageCount; ++stage)
        for (uint64_t seed = 0; seed < kProblems; ++seed) {
            const auto call = make_call(Stage(stage), seed, env);
            if (!call) continue;
            before.poison();
            before.launch(env);
            const bool launched = call->launch(env);
            before.copy(env, launched);
            runs += launched;
            ASSERT_EQ(before.right(), before.count()) << stage_name(Stage(stage)) << ", seed " << seed;
        }
    EXPECT_GT(runs, int(kProblems));
}

}  // namespace

}  // namespace smla::test
