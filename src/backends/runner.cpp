#include "backends/runner.h"

namespace smla {

Runner::Runner(const Env& env, const Runner& sized, Workspace workspace, StageRecords* records)
    : env_(env),
      budget_(sized.budget_),
      stage_bytes_(sized.stage_bytes_),
      records_(records),
      watch_(sized.watch_.tap()) {
    if (workspace.bytes < sized.total_bytes())
        fail(SMLA_WORKSPACE_TOO_SMALL, "workspace.bytes", text(workspace.bytes),
             text("at least ", sized.total_bytes()));
    env_.workspace = {workspace.data, kWorkspaceHeader + stage_bytes_};
    activations_ = static_cast<char*>(workspace.data) + kWorkspaceHeader + stage_bytes_;
    activation_limit_ = sized.activation_bytes_;
}

void* Runner::take(size_t bytes) {
    const size_t at = activation_bytes_;
    activation_bytes_ += round_up(bytes, kCacheLine);
    if (sizing_) return nullptr;
    if (activation_bytes_ > activation_limit_)
        fail(SMLA_INTERNAL, "activations", text(activation_bytes_),
             text("at most the ", activation_limit_, " sized"));
    return activations_ + at;
}

}  // namespace smla
