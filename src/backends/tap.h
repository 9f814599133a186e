// Observers of a step. Stages do not depend on observers: a Runner notifies a StepWatch before and after
// every stage.
#pragma once

#include "core/tensor.h"
#include "engines/context.h"
#include "engines/run.h"

#include <functional>

namespace smla {

class Runner;

// Callbacks of an observer, for verify and for tests.
struct Tap {
    // Receives a tensor that a layer usually does not expose, under its name in the golden files: "qr",
    // "topk", ...
    std::function<void(const char* name, const Tensor& tensor)> tensor;
    // Receives the arguments of attend after the stage has run.
    std::function<void(const smla_attend_args& args)> attend;
    // Receives the kernels of every call in the sizing pass, in order of preference, with their refusals.
    std::function<void(Stage stage, const std::vector<Verdict>& kernels)> kernels;
};

// Finds the named tensors of a step among the arguments of its stages.
class StepWatch {
public:
    explicit StepWatch(const Tap* tap) : tap_(tap) {}
    const Tap* tap() const { return tap_; }
    bool sees_tensors() const { return tap_ && tap_->tensor; }

    void name_entries(const char* name) { entries_ = name; }
    // Shows a tensor in the running pass. A GPU tensor is copied to the host first.
    void show(const Runner& run, const char* name, const Tensor& tensor) const;

    // Both passes call these functions, because the runner memory that they take must be sized.
    template <Stage S>
    void before(Runner& run, ArgsOf<S>& args) {
        if constexpr (S == Stage::compress) want_entries(run, args);
    }
    template <Stage S>
    void after(Runner& run, const ArgsOf<S>& args) {
        if constexpr (S == Stage::quant_index_q) show(run, "index_w", args.w_out);
        if constexpr (S == Stage::score_select) show_selection(run, args);
        if constexpr (S == Stage::score_select_blocks) show_selection(run, args);
        if constexpr (S == Stage::compress) show(run, entries_, args.entries);
        if constexpr (S == Stage::absorb) show(run, "q_nope", args.x);
        if constexpr (S == Stage::attend) show_attend(run, args), show_rotated(run, args);
    }

private:
    void want_entries(Runner& run, smla_compress_args& args) const;
    void show_selection(Runner& run, const smla_score_select_args& args) const;
    void show_selection(Runner& run, const smla_score_select_blocks_args& args) const;
    void show_logits(Runner& run, smla_score_args score, int64_t columns) const;
    void show_attend(const Runner& run, smla_attend_args args) const;
    void show_rotated(Runner& run, const smla_attend_args& args) const;

    const Tap* tap_;
    const char* entries_ = "entries";  // name of the next compress's entries
};

}  // namespace smla
