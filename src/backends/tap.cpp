#include "backends/tap.h"

#include "backends/runner.h"
#include "ops/attend/attend.h"
#include "ops/field.h"
#include "ops/score_select_blocks/score_select_blocks.h"

namespace smla {

namespace {

smla_dtype plain_dtype(const Tensor& like) { return like.dtype == SMLA_F64 ? SMLA_F64 : SMLA_F32; }

}  // namespace

void StepWatch::show(const Runner& run, const char* name, const Tensor& tensor) const {
    if (run.sizing() || !sees_tensors()) return;
    const Env& env = run.env();
    if (env.device->type() == SMLA_CPU) return tap_->tensor(name, tensor);
    std::unique_ptr<char[]> memory;
    tap_->tensor(name, fetch(*env.device, tensor, env.stream, memory));
}

// Requests the entries in memory; otherwise the stage writes them only to the cache.
void StepWatch::want_entries(Runner& run, smla_compress_args& args) const {
    if (!sees_tensors()) return;
    args.entries = run.activation(args.state.format == SMLA_STATE_F64 ? SMLA_F64 : SMLA_F32,
                                  {args.positions.shape[0], CacheView(args.cache).width});
}

// Computes the logits again for the observer, because the step never stores them.
void StepWatch::show_logits(Runner& run, smla_score_args score, int64_t columns) const {
    score.fill = 1;
    score.logits = run.activation(plain_dtype(score.w), {score.q.shape[0], columns});
    run.run<Stage::score>(score);
    show(run, "index_score", score.logits);
}

void StepWatch::show_selection(Runner& run, const smla_score_select_args& args) const {
    if (!sees_tensors()) return;
    show_logits(run, args.score, args.columns);
    show(run, "topk", args.select.indices);
}

void StepWatch::show_selection(Runner& run, const smla_score_select_blocks_args& args) const {
    if (!sees_tensors()) return;
    show_logits(run, score_args_of(args), args.columns);
    show(run, "topk", args.indices);
    if (present(args.best_blocks)) show(run, "candidates", args.best_blocks);
}

// Shows attend's output before its inverse rotation, by rotating it forward.
void StepWatch::show_rotated(Runner& run, const smla_attend_args& args) const {
    if (!sees_tensors() || !present(args.out_positions)) return;
    smla_rope_args forward = rotation_of_out(args);
    forward.inverse = 0;
    forward.out =
        run.activation(plain_dtype(args.out), {args.out.shape[0], args.out.shape[1], args.out.shape[2]});
    run.run<Stage::rope>(forward);
    show(run, "core_rotated", forward.out);
}

void StepWatch::show_attend(const Runner& run, smla_attend_args args) const {
    if (run.sizing() || !tap_ || !tap_->attend) return;
    const Env& env = run.env();
    std::vector<std::unique_ptr<char[]>> memory;
    const auto tensor = [&](Tensor& each) {
        if (present(each)) each = fetch(*env.device, each, env.stream, memory.emplace_back());
    };
    const auto cache = [&](smla_cache& each) {
        if (each.format == SMLA_FORMAT_NONE) return;
        const Tensor bytes = fetch(*env.device, make_tensor(each.data, SMLA_U8, {int64_t(cache_bytes(each))}),
                                   env.stream, memory.emplace_back());
        each.data = bytes.data;
        each.device_type = SMLA_CPU;
    };
    if (env.device->type() != SMLA_CPU) visit(args, tensor, cache);
    tap_->attend(args);
}

}  // namespace smla
