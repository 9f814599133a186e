// project, absorb, up_project, out_project: cuBLASLt, loaded at run time, then loops that take everything.
#include "core/tensor.h"
#include "engines/cuda_common/check.h"
#include "engines/cuda_mma/candidates.h"
#include "engines/cuda_mma/project/project.h"

#include <algorithm>

namespace smla {

namespace {

using Args = smla_project_args;

// Calls use(first, tokens) for each pass over tokens.
template <class Use>
void each_pass(const Args& args, const LtRoute& route, Use use) {
    const int64_t tokens = element_count(args.out) ? args.x.shape[0] : 0;
    for (int64_t first = 0; first < tokens; first += route.pass_tokens)
        use(first, std::min(route.pass_tokens, tokens - first));
}

// What is not "none" may be a capture of another stream that this thread must not disturb.
bool capturing(const Env& env) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    const cudaError_t result = cudaStreamIsCapturing(stream_of(env.stream), &status);
    if (result != cudaSuccess) cudaGetLastError();
    return result != cudaSuccess || status != cudaStreamCaptureStatusNone;
}

// Null: not made yet, and this is no time to make it.
std::shared_ptr<const LtProduct> product_of(const LtShape& shape, const Env& env) {
    LtProducts& products = lt_products(env.device->index());
    auto product = products.find(shape);
    return product || capturing(env) ? product : products.make(shape);
}

// Makes the products of a route, outside of captures; without one the run fails.
std::string prepare(const Args& args, const LtRoute& route, const Env& env) {
    std::string refusal;
    each_pass(args, route, [&](int64_t first, int64_t tokens) {
        if (!refusal.empty()) return;
        const auto product = product_of(lt_shape(args, route, first, tokens), env);
        if (product) refusal = product->refusal();
    });
    return refusal;
}

// Asking makes the products that a run will need: a call that was sized, explained or run with these shapes
// is prepared. Asked without a workspace, for one of any size and for none.
std::string refuse_lt(const Args& args, const Env& env) {
    const LtRoute route = lt_route(args, env.workspace.bytes);
    if (!route.refusal.empty()) return route.refusal;
    if (cublaslt().library.empty()) return "no cuBLASLt library was found at run time";
    if (env.device->type() != SMLA_CUDA) return "";
    Device::Scope scope(*env.device);
    if (env.workspace.bytes == 0) prepare(args, lt_route(args, env.workspace.budget()), env);
    return prepare(args, route, env);
}

size_t workspace_lt(const Args& args, const Env&, size_t budget) {
    const size_t scratch = lt_route(args, budget).scratch();
    return scratch ? kWorkspaceHeader + kLtAlignment + scratch : kWorkspaceHeader;
}

void run_pass(const Args& args, const Env& env, const LtRoute& route, char* scratch, int64_t first,
              int64_t tokens) {
    const auto product = product_of(lt_shape(args, route, first, tokens), env);
    if (!product)
        fail(SMLA_UNSUPPORTED, "args", "a product of new shapes in a stream that is being captured",
             "shapes that were run once, or sized, before the capture");
    if (!product->refusal().empty()) fail(SMLA_UNSUPPORTED, "args", product->refusal(), "a larger workspace");
    char* const converted = scratch + route.lt_bytes;
    char* const sums = converted + route.x_bytes;
    const Tensor x = slice(args.x, 0, first, first + tokens), out = slice(args.out, 0, first, first + tokens);
    if (route.converts) run_cuda_split(x, args.w.dtype, route.parts, converted, env);
    product->run(args.w.data, route.converts ? converted : x.data, route.direct ? out.data : sums, scratch,
                 env.stream);
    if (!route.direct) run_cuda_add_parts(reinterpret_cast<const float*>(sums), route.parts, out, env);
}

void run_lt(const Args& args, const Env& env) {
    const LtRoute route = lt_route(args, env.workspace.budget());
    Arena arena(env.workspace);
    char* scratch = route.scratch() ? arena.take<char>(route.scratch() + kLtAlignment) : nullptr;
    scratch += (kLtAlignment - reinterpret_cast<uintptr_t>(scratch) % kLtAlignment) % kLtAlignment;
    each_pass(args, route,
              [&](int64_t first, int64_t tokens) { run_pass(args, env, route, scratch, first, tokens); });
}

constexpr Candidate<Args> kTable[] = {
    {.name = "cuda_mma_cublaslt", .refuse = refuse_lt, .workspace = workspace_lt, .run = run_lt},
    {.name = "cuda_mma_loops",
     .refuse = [](const Args& args, const Env&) { return refuse_f64(args); },
     .workspace = no_scratch<Args>,
     .run = run_cuda_project_loops},
};

}  // namespace

template <>
std::span<const Candidate<Args>> cuda_mma_candidates<Stage::project>() {
    return kTable;
}
template <>
std::span<const Candidate<Args>> cuda_mma_candidates<Stage::absorb>() {
    return kTable;
}
template <>
std::span<const Candidate<Args>> cuda_mma_candidates<Stage::up_project>() {
    return kTable;
}
template <>
std::span<const Candidate<Args>> cuda_mma_candidates<Stage::out_project>() {
    return kTable;
}

}  // namespace smla
