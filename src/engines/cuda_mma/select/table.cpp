// The select kernels of the portable GPU engine, best first.
#include "engines/cuda_mma/select/run.h"

namespace smla {

namespace cuda {

SelectOutput select_output(const smla_select_args& args) {
    SelectOutput out{.indices = static_cast<int32_t*>(args.indices.data),
                     .index_stride = args.indices.stride_elems[0],
                     .k = args.indices.shape[1],
                     .relative = args.relative != 0};
    if (args.selected.ndim) {
        out.selected = static_cast<float*>(args.selected.data);
        out.selected_stride = args.selected.stride_elems[0];
    }
    if (args.counts.ndim) {
        out.counts = static_cast<int32_t*>(args.counts.data);
        out.count_stride = args.counts.stride_elems[0];
    }
    return out;
}

namespace {

SelectInput select_input(const smla_select_args& args) {
    const int64_t columns = args.scores.shape[1];
    return {.scores = args.scores.data,
            .stride = args.scores.stride_elems[0],
            .dtype = args.scores.dtype,
            .tokens = args.scores.shape[0],
            .starts = args.starts,
            .ends = args.ends,
            .columns = columns,
            .begin = 0,
            .end = columns};
}

std::string refuse_f64(const smla_select_args& args, const Env&) {
    return args.scores.dtype == SMLA_F64 ? "f64: for the reference engine" : "";
}

char* beyond_header(const Env& env) { return static_cast<char*>(env.workspace.data) + kWorkspaceHeader; }

Candidate<smla_select_args> sampled() {
    using Args = smla_select_args;
    return {.name = "cuda_mma_select_sampled",
            .refuse = [](const Args& args, const Env& env) -> std::string {
                if (args.ids.ndim) return "lists with ids";
                const std::string f64 = refuse_f64(args, env);
                return f64.empty() ? refuse_sampled(args.scores.shape[1], args.indices.shape[1]) : f64;
            },
            .workspace =
                [](const Args& args, const Env& env, size_t) {
                    return kWorkspaceHeader +
                           sampled_scratch(args.scores.shape[0], args.scores.shape[1], env);
                },
            .run =
                [](const Args& args, const Env& env) {
                    const bool split = sampled_scratch(args.scores.shape[0], args.scores.shape[1], env) > 0;
                    run_select_sampled(select_input(args), select_output(args),
                                       split ? beyond_header(env) : nullptr, env);
                }};
}

Candidate<smla_select_args> generic() {
    using Args = smla_select_args;
    return {.name = "cuda_mma_generic",
            .refuse = refuse_f64,
            .workspace =
                [](const Args& args, const Env& env, size_t) {
                    return kWorkspaceHeader + (args.ids.ndim ? select_ids_scratch(args, env) : 0);
                },
            .run =
                [](const Args& args, const Env& env) {
                    if (args.ids.ndim) run_select_ids(args, beyond_header(env), env);
                    else run_select_exact(select_input(args), select_output(args), env);
                }};
}

}  // namespace

}  // namespace cuda

template <>
std::span<const Candidate<smla_select_args>> cuda_mma_candidates<Stage::select>() {
    static const Candidate<smla_select_args> rows[] = {cuda::sampled(), cuda::generic()};
    return rows;
}

}  // namespace smla
