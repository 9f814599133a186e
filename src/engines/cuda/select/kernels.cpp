// The select kernels of the cuda engine, best first.
#include "engines/cuda/select/run.h"

#include "engines/cuda/candidates.h"
#include "ops/select/select.h"

namespace smla::cuda {

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

Support supports_cluster(const SelectInput& input, int64_t k, const Env& env) {
    const int64_t columns = input.end - input.begin;
    if (input.kept_scores) return {"selections that continue earlier parts are not supported"};
    if (std::string why = refuse_cluster(input.tokens, columns, k, env); !why.empty()) return {why};
    if (!cluster_pays(input.tokens, columns, env))
        return {.lower_priority = "other kernels are faster unless all clusters run concurrently"};
    return {};
}

Support supports_registers(const SelectInput& input, int64_t, const Env&) {
    if (input.kept_scores) return {"selections that continue earlier parts are not supported"};
    if (!registers_select(input)) return {text("rows of ", input.end - input.begin, " columns are too long")};
    return {};
}

Support supports_sampled(const SelectInput& input, int64_t k, const Env&) {
    return {refuse_sampled(input.end - input.begin, k)};
}

constexpr SelectKernel kKernels[] = {
    {.name = "cuda_cluster_select", .supports = supports_cluster, .run = run_select_by_cluster},
    {.name = "cuda_register_select", .supports = supports_registers, .run = run_select_by_registers},
    {.name = "cuda_sampled_select",
     .supports = supports_sampled,
     .scratch = sampled_scratch,
     .run = run_select_sampled},
    {.name = "cuda_generic_select",
     .supports = [](const SelectInput&, int64_t, const Env&) { return Support{}; },
     .run = run_select_exact}};

char* beyond_header(const Env& env) { return static_cast<char*>(env.workspace.data) + kWorkspaceHeader; }

// Only the generic kernel supports lists with ids.
CallPlan<smla_select_args> plan_ids(const smla_select_args& args, const Env& env) {
    CallPlan<smla_select_args> plan{{refuse_f64(args)}};
    if (!plan.refusal.empty()) return plan;
    plan.scratch = kWorkspaceHeader + select_ids_scratch(args, env);
    plan.launch = [](const smla_select_args& call, const Env& on) {
        run_select_ids(call, beyond_header(on), on);
    };
    return plan;
}

template <const SelectKernel& Kernel>
CallPlan<smla_select_args> plan_select(const smla_select_args& args, const Env& env) {
    using Args = smla_select_args;
    if (args.ids.ndim)
        return &Kernel == std::end(kKernels) - 1
                   ? plan_ids(args, env)
                   : refuse_call<Args>("args.ids is supported only by the generic kernel");
    CallPlan<Args> plan{{refuse_f64(args)}};
    if (!plan.refusal.empty()) return plan;
    const SelectInput input = select_input(args);
    static_cast<Support&>(plan) = Kernel.supports(input, args.indices.shape[1], env);
    if (!plan.refusal.empty()) return plan;
    const size_t scratch = kWorkspaceHeader + Kernel.scratch(input.tokens, input.columns, env);
    const bool splits = scratch > kWorkspaceHeader && (env.budget == 0 || scratch <= env.budget);
    if (splits) plan.scratch = scratch;
    else plan.scratch_of_fewer = std::min(scratch, env.budget);
    plan.launch = [splits](const Args& call, const Env& on) {
        Kernel.run(select_input(call), select_output(call), splits ? beyond_header(on) : nullptr, on);
    };
    return plan;
}

template <const SelectKernel& Kernel>
constexpr Candidate<smla_select_args> candidate() {
    return {.name = Kernel.name, .plan = plan_select<Kernel>};
}

}  // namespace

const SelectKernel* choose_select_kernel(const SelectInput& input, int64_t k, const Env& env) {
    return choose(std::span<const SelectKernel>(kKernels), Stage::select, env,
                  [&](const SelectKernel& kernel) { return kernel.supports(input, k, env); })
        .kernel;
}

size_t select_scratch(const SelectInput& input, int64_t k, const Env& env) {
    size_t bytes = 0;
    for (const SelectKernel& kernel : kKernels)
        if (env.allows(Stage::select, kernel.name) && kernel.supports(input, k, env).refusal.empty())
            bytes = std::max(bytes, kernel.scratch(input.tokens, input.end - input.begin, env));
    return bytes;
}

const Candidate<smla_select_args> kClusterSelect = candidate<kKernels[0]>();
const Candidate<smla_select_args> kRegisterSelect = candidate<kKernels[1]>();
const Candidate<smla_select_args> kSampledSelect = candidate<kKernels[2]>();
const Candidate<smla_select_args> kGenericSelect = candidate<kKernels[3]>();

}  // namespace smla::cuda
