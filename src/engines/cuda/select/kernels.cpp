// The select kernels of the cuda engine: what they take.
#include "engines/cuda/select/run.h"
#include "ops/select/select.h"

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
    if (args.rows.ndim) {
        out.rows = static_cast<int32_t*>(args.rows.data);
        out.row_stride = args.rows.stride_elems[0];
        out.row_table = row_table_of(args);
        out.request_of_token = static_cast<const int32_t*>(args.request_of_token.data);
        out.request_stride = args.request_of_token.stride_elems[0];
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

std::string refuse_f64(const smla_select_args& args) {
    return args.scores.dtype == SMLA_F64 ? "f64 tensors: a GPU has kernels for f32, bf16 and f16" : "";
}

char* beyond_header(const Env& env) { return static_cast<char*>(env.workspace.data) + kWorkspaceHeader; }

CallPlan<smla_select_args> plan_cluster(const smla_select_args& args, const Env& env) {
    using Args = smla_select_args;
    if (args.ids.ndim) return refuse_call<Args>("lists with ids");
    CallPlan<Args> plan = refuse_call<Args>(refuse_f64(args));
    if (!plan.refusal.empty()) return plan;
    plan.refusal = refuse_cluster(args.scores.shape[0], args.scores.shape[1], args.indices.shape[1], env);
    if (!plan.refusal.empty()) return plan;
    plan.checks_indices = true;
    plan.launch = [](const Args& call, const Env& on) {
        with_lists<Stage::select>(call, on, [&](const CallLists& lists) {
            run_select_by_cluster(select_input(call), select_output(call), lists, on);
        });
    };
    return plan;
}

const char* no_clusters(const smla_select_args& args, const Env& env) {
    if (cluster_pays(args.scores.shape[0], args.scores.shape[1], env)) return nullptr;
    return "made for few long rows, whose clusters all run at once";
}

CallPlan<smla_select_args> plan_registers(const smla_select_args& args, const Env&) {
    using Args = smla_select_args;
    if (args.ids.ndim) return refuse_call<Args>("lists with ids");
    CallPlan<Args> plan = refuse_call<Args>(refuse_f64(args));
    if (!plan.refusal.empty()) return plan;
    if (!registers_select(select_input(args)))
        return refuse_call<Args>(text("made for short rows, not for ", args.scores.shape[1], " columns"));
    plan.checks_indices = true;
    plan.launch = [](const Args& call, const Env& on) {
        with_lists<Stage::select>(call, on, [&](const CallLists& lists) {
            run_select_by_registers(select_input(call), select_output(call), lists, on);
        });
    };
    return plan;
}

CallPlan<smla_select_args> plan_sampled(const smla_select_args& args, const Env& env) {
    using Args = smla_select_args;
    if (args.ids.ndim) return refuse_call<Args>("lists with ids");
    CallPlan<Args> plan = refuse_call<Args>(refuse_f64(args));
    if (plan.refusal.empty()) plan.refusal = refuse_sampled(args.scores.shape[1], args.indices.shape[1]);
    if (!plan.refusal.empty()) return plan;
    const size_t scratch =
        kWorkspaceHeader + sampled_scratch(args.scores.shape[0], args.scores.shape[1], env);
    const bool splits = scratch > kWorkspaceHeader && (env.budget == 0 || scratch <= env.budget);
    if (splits) plan.scratch = scratch;
    else plan.scratch_of_fewer = std::min(scratch, env.budget);
    plan.checks_indices = true;
    plan.launch = [splits](const Args& call, const Env& on) {
        with_lists<Stage::select>(call, on, [&](const CallLists& lists) {
            run_select_sampled(select_input(call), select_output(call), splits ? beyond_header(on) : nullptr,
                               lists, on);
        });
    };
    return plan;
}

CallPlan<smla_select_args> plan_generic(const smla_select_args& args, const Env& env) {
    using Args = smla_select_args;
    CallPlan<Args> plan = refuse_call<Args>(refuse_f64(args));
    if (!plan.refusal.empty()) return plan;
    if (args.ids.ndim) {
        plan.scratch = kWorkspaceHeader + select_ids_scratch(args, env);
        plan.launch = [](const Args& call, const Env& on) { run_select_ids(call, beyond_header(on), on); };
        return plan;
    }
    plan.checks_indices = true;
    plan.launch = [](const Args& call, const Env& on) {
        with_lists<Stage::select>(call, on, [&](const CallLists& lists) {
            run_select_exact(select_input(call), select_output(call), lists, on);
        });
    };
    return plan;
}

}  // namespace

const Candidate<smla_select_args> kClusterSelect{
    .name = "cuda_cluster_select", .plan = plan_cluster, .last_resort = no_clusters};
const Candidate<smla_select_args> kRegisterSelect{.name = "cuda_register_select", .plan = plan_registers};
const Candidate<smla_select_args> kSampledSelect{.name = "cuda_sampled_select", .plan = plan_sampled};
const Candidate<smla_select_args> kGenericSelect{.name = "cuda_generic_select", .plan = plan_generic};

}  // namespace cuda

}  // namespace smla
