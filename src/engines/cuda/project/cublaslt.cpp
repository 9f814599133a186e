// project, absorb, up_project and out_project through cuBLASLt, which is loaded at run time.
#include "core/tensor.h"
#include "engines/cuda/candidates.h"
#include "engines/cuda/project/project.h"

#include <algorithm>

namespace smla {

namespace {

using Args = smla_project_args;

template <class Use>
void each_pass(const Args& args, const LtRoute& route, Use use) {
    const int64_t tokens = element_count(args.out) ? args.x.shape[0] : 0;
    for (int64_t first = 0; first < tokens; first += route.pass_tokens)
        use(first, std::min(route.pass_tokens, tokens - first));
}

using Products = std::vector<std::shared_ptr<const LtProduct>>;

// Returns a product, made on first use in the process. Returns null if it would have to be made in a capture.
std::shared_ptr<const LtProduct> product_of(const LtShape& shape, const Env& env) {
    LtProducts& products = lt_products(env.device->index());
    auto product = products.find(shape);
    return product || env.device->capturing(env.stream) ? product : products.make(shape);
}

void run_pass(const Args& args, const Env& env, const LtRoute& route, const LtProduct& product, char* scratch,
              int64_t first, int64_t tokens) {
    char* const converted = scratch + route.lt_bytes;
    char* const sums = converted + route.x_bytes;
    const Tensor x = slice(args.x, 0, first, first + tokens), out = slice(args.out, 0, first, first + tokens);
    if (route.converts) run_cuda_split(x, args.w.dtype, route.parts, converted, env);
    product.run(args.w.data, route.converts ? converted : x.data, route.direct ? out.data : sums, scratch,
                env.stream);
    if (!route.direct) run_cuda_add_parts(reinterpret_cast<const float*>(sums), route.parts, out, env);
}

void run_lt(const Args& args, const Env& env, const LtRoute& route, const Products& products) {
    Arena arena(env.workspace);
    char* scratch = route.scratch() ? arena.take<char>(route.scratch() + kLtAlignment) : nullptr;
    scratch += (kLtAlignment - reinterpret_cast<uintptr_t>(scratch) % kLtAlignment) % kLtAlignment;
    size_t pass = 0;
    each_pass(args, route, [&](int64_t first, int64_t tokens) {
        run_pass(args, env, route, *products[pass++], scratch, first, tokens);
    });
}

CallPlan<Args> plan_lt(const Args& args, const Env& env) {
    const LtRoute route = lt_route(args, env.budget);
    CallPlan<Args> plan = refuse_call<Args>(route.refusal);
    if (plan.refusal.empty() && cublaslt().library.empty()) plan.refusal = "no cuBLASLt library was found";
    if (!plan.refusal.empty()) return plan;
    if (route.scratch()) plan.scratch = kWorkspaceHeader + kLtAlignment + route.scratch();
    if (env.device->type() != SMLA_CUDA) return plan;  // a described device launches nothing
    Device::Scope scope(*env.device);
    Products products;
    each_pass(args, route, [&](int64_t first, int64_t tokens) {
        const auto product = product_of(lt_shape(args, route, first, tokens), env);
        if (!product) plan.unprepared = "a product with new shapes in a stream that is being captured";
        else if (plan.refusal.empty()) plan.refusal = product->refusal();
        products.push_back(product);
    });
    if (plan.refusal.empty())
        plan.launch = [route, products](const Args& call, const Env& on) {
            run_lt(call, on, route, products);
        };
    return plan;
}

}  // namespace

const Candidate<Args> kCublasLtProject{.name = "cuda_cublaslt_project", .plan = plan_lt};

}  // namespace smla
