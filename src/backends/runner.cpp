#include "backends/runner.h"

#include "backends/step_key.h"

#include <atomic>

namespace smla {

uint64_t unique_id() {
    static std::atomic<uint64_t> last{0};
    return ++last;
}

Runner::Runner(const Env& env, const StepPlan& known, Workspace workspace, StageRecords* records,
               const Tap* tap)
    : env_(env),
      stage_bytes_(known.stage_bytes),
      known_(&known),
      activation_limit_(known.activation_bytes),
      records_(records),
      watch_(tap) {
    if (workspace.bytes < known.total_bytes())
        fail(SMLA_WORKSPACE_TOO_SMALL, "workspace.bytes", text(workspace.bytes),
             text("at least ", known.total_bytes()));
    env_.workspace = {workspace.data, kWorkspaceHeader + stage_bytes_};
    activations_ = static_cast<char*>(workspace.data) + kWorkspaceHeader + stage_bytes_;
}

void* Runner::take(size_t bytes) {
    const size_t at = activation_bytes_;
    activation_bytes_ += round_up(bytes, kCacheLine);
    // With checks, returns an address that is never read, because checks reject null.
    if (sizing_) return checks_ ? reinterpret_cast<void*>(kCacheLine + at) : nullptr;
    if (activation_bytes_ > activation_limit_)
        fail(SMLA_INTERNAL, "activations", text(activation_bytes_), text("at most ", activation_limit_));
    return activations_ + at;
}

}  // namespace smla
