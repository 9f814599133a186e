// Calls that reach every part: a stage on the pool, and a session of a golden file's layer through CBLAS.
#pragma once

#include "hpp/golden.h"
#include "kit/small_problems.h"

#include <smla/smla.hpp>

#include <vector>

namespace faults {

inline smla::Context context(int threads) {
    smla_context_args args{};
    args.threads = threads;
    return smla::Context(args);
}

// The bits of attend's output.
inline std::vector<float> attend(const smla::Context& context) {
    Problem problem;
    smla::Workspace workspace = context.workspace();
    context.attend(problem.args(), workspace);
    return problem.out;
}

class Model {
public:
    Model() { case_.write_checkpoint(folder_.path); }
    smla::Layer layer(const smla::Context& context) const {
        return smla::Layer(context, folder_.path.string(), case_.layer());
    }
    // The output of all tokens in one step of a new session.
    std::vector<float> forward(const smla::Layer& layer) const {
        std::vector<float> hidden = case_.values<float>("in.hidden"), out(hidden.size());
        smla::Session session(layer);
        const int64_t tokens = case_.tokens(), width = case_.hidden_size();
        session.forward(smla::tensor(hidden, {tokens, width}), smla::tensor(out, {tokens, width}));
        return out;
    }
    const golden::fs::path& folder() const { return folder_.path; }

private:
    golden::Case case_{"D2"};
    golden::Folder folder_;
};

}  // namespace faults
