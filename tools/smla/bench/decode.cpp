// smla bench --case decode: the inner step of one token or of one token of each of some requests, as a whole,
// by stage, and the sum of its stages. On a GPU the whole is one captured graph that is replayed, as an
// engine's decode step is.
#include "measure.h"
#include "model_info.h"
#include "model_step.h"
#include "oracle.h"

#include <limits>

namespace smla::cli {

namespace {

double flops_of(Stage stage, const TokenFlops& flops) {
    switch (stage) {
        case Stage::absorb: return flops.absorb;
        case Stage::score_select: return flops.score;
        case Stage::attend: return flops.attend;
        case Stage::up_project: return flops.up_project;
        default: return 0.0;
    }
}

}  // namespace

// Times a GPU's stages one by one. The whole step is timed without waiting between stages.
void Bench::time_parts(const ModelStep& step, const StepPlan& plan, Workspace workspace,
                       std::array<std::vector<double>, kStageCount>& seconds) const {
    for (auto& each : seconds) each.clear();
    for (int i = 0; i < 10; ++i) {
        StageRecords records{};
        Runner runner(context_.env({}), plan, workspace, &records, nullptr);
        runner.wait_for_each_stage();
        step.run(runner);
        for (size_t stage = 0; stage < records.size(); ++stage)
            seconds[stage].push_back(records[stage].seconds);
    }
}

// One recording of the step per variant of `input`; none where the device records nothing.
std::vector<std::unique_ptr<Recording>> Bench::record(const ModelStep& step, const StepPlan& plan,
                                                      Workspace workspace, Tensor& input,
                                                      const std::vector<Tensor>& variants) const {
    std::vector<std::unique_ptr<Recording>> out;
    for (const Tensor& variant : variants) {
        input = variant;
        auto recording = context_.device().record([&](smla_stream stream) {
            Env env = context_.env({});
            env.stream = stream;
            Runner runner(env, plan, workspace, nullptr, nullptr);
            step.run(runner);
        });
        if (!recording) return {};
        out.push_back(std::move(recording));
    }
    return out;
}

// The stages that ran, as rows of the table below the whole step.
std::vector<Measured> Bench::parts(const StageRecords& records,
                                   const std::array<std::vector<double>, kStageCount>& seconds,
                                   const Measured& total, const TokenFlops& flops) {
    std::vector<Measured> out;
    for (int stage = 0; stage < kStageCount; ++stage) {
        const StageRecord& record = records[size_t(stage)];
        if (record.calls == 0) continue;
        Measured each{.stage = std::string(kStageNames[stage]),
                      .name = total.name,
                      .kernel = record.kernel,
                      .part = true};
        each.seconds = median_of(seconds[size_t(stage)]);
        each.repeats = seconds[size_t(stage)];
        each.flops = flops_of(Stage(stage), flops);
        const bool bf16 = stage == int(Stage::attend) || stage == int(Stage::score_select);
        const Unit* const unit = unit_of(each.kernel, bf16 ? SMLA_BF16 : SMLA_F32, context_);
        if (unit && each.flops > 0) {
            each.unit = unit->name;
            each.peak_flops = peak_of(*unit, context_);
        }
        each.error = std::numeric_limits<double>::quiet_NaN();
        out.push_back(each);
    }
    return out;
}

std::vector<Measured> Bench::decode(const DecodeCase& test) {
    StepShape shape;
    shape.requests = test.tokens;
    shape.context = test.context;
    shape.caches = choose_caches(test.config, "auto", "auto", 64);
    ModelStep step = model_step(test.config, int(test.layers.first), shape);
    Memory memory;
    fill(step, shape, memory, filling_, 30);
    PlacedMemory placed(context_.device());
    place(step, placed);

    const Env env = context_.env({});
    Runner sizing(env, 0, nullptr);
    step.run(sizing);
    const Workspace workspace = workspace_.at_least(sizing.total_bytes());
    const StepPlan plan = sizing.plan();
    // new index queries each time, because rows selected by the previous call are still cached
    Tensor& index_q = step.hybrid ? step.hybrid_step.indexer.q : step.dsa.indexer.q;
    Memory queries;
    std::vector<Tensor> variants(8, index_q);
    Filler filler(queries, filling_, 31);
    for (Tensor& each : variants) {
        each.device_type = SMLA_CPU;
        filler.values(each);
        placed.take(each);
    }

    Measured total{.stage = "decode", .name = test.name};
    StageRecords last{};
    std::array<std::vector<double>, kStageCount> seconds;
    const auto run = [&](int64_t i) {
        StageRecords records{};
        index_q = variants[size_t(i) % variants.size()];
        Runner runner(env, plan, workspace, &records, nullptr);
        step.run(runner);
        if (i > 0)
            for (size_t stage = 0; stage < records.size(); ++stage)
                seconds[stage].push_back(records[stage].seconds);
        last = records;
    };
    run(0);
    const auto recordings = record(step, plan, workspace, index_q, variants);
    // Wall time, because a CBLAS library has its own threads.
    total.set(Stopwatch(options_, context_, Stopwatch::Clock::wall).repeats([&](int64_t i) {
        if (recordings.empty()) run(i);
        else recordings[size_t(i) % recordings.size()]->replay(nullptr);
    }));

    if (gpu()) time_parts(step, plan, workspace, seconds);

    Tap tap;
    tap.attend = [&](const smla_attend_args& args) { total.error = attend_error(args, 0, 2); };
    Runner tapped(env, 0, &tap);
    step.run(tapped);
    const StepPlan tapped_plan = tapped.plan();
    Runner looking(env, tapped_plan, workspace_.at_least(tapped.total_bytes()), nullptr, &tap);
    step.run(looking);

    std::vector<Measured> out =
        parts(last, seconds, total, token_flops(test.config, test.layers, test.context));
    Measured sum{.stage = "sum", .name = test.name, .part = true, .repeats = total.repeats};
    sum.error = std::numeric_limits<double>::quiet_NaN();
    for (Measured& each : out) {
        each.flops *= double(test.tokens);
        sum.seconds += each.seconds;
        sum.flops += each.flops;
    }
    total.flops = sum.flops;
    out.insert(out.begin(), total);
    out.push_back(sum);
    return out;
}

}  // namespace smla::cli
