// A step of a few norms, one after the other, in memory of any device: what tests of run_step() tell.
#pragma once

#include "backends/runner.h"
#include "backends/step_key.h"

namespace smla::test {

constexpr int64_t kNormWidth = 8;

struct NormChain {
    Tensor x{}, weight{}, out{};
    int64_t norms = 2, told = 0;  // no padding: the key has every byte

    void operator()(Runner& run) {
        ++told;
        Tensor from = x;
        for (int64_t i = 1; i <= norms; ++i) {
            const Tensor to = i == norms ? out : run.activation(SMLA_F32, {x.shape[0], 1, kNormWidth});
            run.run<Stage::norm>({.eps = 1e-6, .x = from, .weight = weight, .out = to});
            from = to;
        }
    }
};

// Runs the step; returns how often it was told.
inline int64_t run_chain(const Env& env, NormChain step, Workspace workspace, uint64_t whose = 1,
                         const Tap* tap = nullptr, size_t budget = 0, StageRecords* records = nullptr) {
    constexpr auto places = [] {
        using Args = NormChain;
        return std::array{SMLA_PLACE(x), SMLA_PLACE(weight), SMLA_PLACE(out)};
    }();
    PlanKey key(PlanUse::step, whose, budget, env);
    key.add_address(workspace.data);
    NormChain described = step;
    described.told = 0;
    key.add(described, places);
    run_step(env, &key, budget, workspace, records, tap, [&](Runner& runner) { step(runner); });
    return step.told;
}

}  // namespace smla::test
