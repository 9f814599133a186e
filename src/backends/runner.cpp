#include "backends/runner.h"

#include "ops/tensors_of.h"

namespace smla {

Runner::Runner(const Env& env, const Runner& sized, Workspace workspace, StageRecords* records)
    : env_(env),
      budget_(sized.budget_),
      stage_bytes_(sized.stage_bytes_),
      records_(records),
      tap_(sized.tap_) {
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

void Runner::tap(const char* name, const Tensor& tensor) const {
    if (sizing_ || !tapped()) return;
    if (env_.device->type() == SMLA_CPU) return tap_->tensor(name, tensor);
    std::unique_ptr<char[]> memory;
    tap_->tensor(name, fetch(*env_.device, tensor, env_.stream, memory));
}

void Runner::show_attend(smla_attend_args args) const {
    std::vector<std::unique_ptr<char[]>> memory;
    const auto tensor = [&](Tensor& each) {
        if (present(each)) each = fetch(*env_.device, each, env_.stream, memory.emplace_back());
    };
    const auto cache = [&](smla_cache& each) {
        if (each.format == SMLA_FORMAT_NONE) return;
        const Tensor bytes =
            fetch(*env_.device, make_tensor(each.data, SMLA_U8, {int64_t(cache_bytes(each))}), env_.stream,
                  memory.emplace_back());
        each.data = bytes.data;
        each.device_type = SMLA_CPU;
    };
    if (env_.device->type() != SMLA_CPU) visit(args, tensor, cache);
    tap_->attend(args);
}

}  // namespace smla
