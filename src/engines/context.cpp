#include "engines/context.h"

#include "core/cpu_features.h"
#include "core/environment.h"
#include "core/huge_pages.h"
#include "core/interrupt.h"
#include "core/library_threads.h"
#include "core/log.h"
#include "engines/plan_cache.h"
#include "engines/run.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace smla {

namespace {

smla_engine choose_engine(smla_engine asked) {
    SMLA_CHECK(asked >= SMLA_ENGINE_AUTO && asked <= SMLA_ENGINE_CUDA, "args.engine", asked,
               "auto (0), reference (1), cpu (2) or cuda (3)");
    if (const char* named = asked == SMLA_ENGINE_AUTO ? environment("SMLA_ENGINE") : nullptr)
        while (strcasecmp(engine_name(asked), named) != 0) ++asked;
    return asked == SMLA_ENGINE_AUTO ? SMLA_ENGINE_CPU : asked;
}

smla_isa choose_isa(smla_isa asked) {
    const smla_isa best = best_isa();
    const char* const field = asked == SMLA_ISA_AUTO ? "SMLA_ISA" : "args.isa";
    if (asked == SMLA_ISA_AUTO) {
        const char* named = environment("SMLA_ISA");
        if (named) asked = isa_from_name(named);
        if (asked == SMLA_ISA_AUTO) return best;
    }
    SMLA_CHECK(asked >= SMLA_ISA_SCALAR && asked <= kLastIsa, "args.isa", asked, text("0 to ", kLastIsa));
    const std::vector<smla_isa> here = isas_here();
    if (std::find(here.begin(), here.end(), asked) == here.end())
        fail(SMLA_UNSUPPORTED, field, isa_name(asked), text(isa_names(here), " (supported by this machine)"));
    return asked;
}

// Compares the name's prefix with the names of engines, because this build may lack the other engine.
bool is_of_another_engine(const std::string& kernel, smla_engine engine) {
    for (smla_engine other = SMLA_ENGINE_REFERENCE; other <= SMLA_ENGINE_CUDA; ++other)
        if (other != engine && kernel.rfind(text(engine_name(other), "_"), 0) == 0) return true;
    return false;
}

// Reads "attend=NAME,score=NAME" from a field of the arguments, or from an environment variable, which may
// name kernels of other engines.
void parse_demands(const char* field, std::string_view list, bool of_any_engine, Env& env) {
    while (!list.empty()) {
        const size_t comma = list.find(',');
        const std::string_view item = list.substr(0, comma);
        list = comma == std::string_view::npos ? std::string_view() : list.substr(comma + 1);
        const size_t equal = item.find('=');
        const std::string_view stage = item.substr(0, equal);
        int index = 0;
        while (index < kStageCount && kStageNames[index] != stage) ++index;
        SMLA_CHECK(equal != std::string_view::npos && index < kStageCount, field, std::string(item),
                   "stage=kernel, where stage is a stage of the pipeline");
        const std::string kernel(item.substr(equal + 1));
        if (of_any_engine && is_of_another_engine(kernel, env.engine)) continue;
        SMLA_CHECK(env.demanded[size_t(index)].empty(), field, std::string(item),
                   text("one kernel for ", std::string(stage), "; the list already has ",
                        env.demanded[size_t(index)]));
        const std::vector<std::string> known = kernel_names(Stage(index), env.engine);
        SMLA_CHECK(std::ranges::find(known, kernel) != known.end(), field, std::string(item),
                   "one of " + joined(known));
        env.demanded[size_t(index)] = kernel;
    }
}

void* default_allocate(void*, size_t bytes, size_t alignment) { return allocate_block(bytes, alignment); }
void default_free(void*, void* memory) { std::free(memory); }

}  // namespace

Context::Context(const smla_context_args& args) {
    check_environment(
        {args.engine ? "SMLA_ENGINE" : "", args.isa ? "SMLA_ISA" : "", args.threads ? "SMLA_THREADS" : ""});
    SMLA_CHECK(args.threads >= 0 && args.threads <= 4096, "args.threads", args.threads,
               "0 (all cores) to 4096");
    SMLA_CHECK(args.batch_invariant == 0 || args.batch_invariant == 1, "args.batch_invariant",
               args.batch_invariant, "0 or 1");
    SMLA_CHECK(args.check_indices == 0 || args.check_indices == 1, "args.check_indices", args.check_indices,
               "0 or 1");
    const bool custom = args.allocator.alloc || args.allocator.free;
    SMLA_CHECK(!custom || (args.allocator.alloc && args.allocator.free), "args.allocator",
               "only one of alloc and free", "both or neither");
    allocator_ = custom ? args.allocator : smla_allocator{default_allocate, default_free, nullptr};

    env_.engine = choose_engine(args.engine);
    env_.isa = choose_isa(args.isa);
    env_.batch_invariant = args.batch_invariant != 0;
    env_.check_indices = args.check_indices != 0;
    SMLA_CHECK(args.device_index >= 0, "args.device_index", args.device_index, "0 or more");
    if (args.kernel) parse_demands("args.kernel", args.kernel, false, env_);
    else if (const char* named = environment("SMLA_KERNEL")) parse_demands("SMLA_KERNEL", named, true, env_);
    const int threads = args.threads ? args.threads : environment_number("SMLA_THREADS").value_or(0);
    if (env_.engine == SMLA_ENGINE_CUDA) {
        const LibraryThreads starting;  // signal mask of the driver's threads
        gpu_ = open_cuda_device(args.device_index);
        env_.device = gpu_.get();
        env_.records_steps = environment_number("SMLA_STEP_GRAPHS").value_or(1) != 0;
        pool_ = std::make_unique<ThreadPool>(1);
        description_ = text("cuda ", gpu_->facts().name, ", sm_", gpu_->facts().capability);
    } else if (env_.engine == SMLA_ENGINE_REFERENCE) {
        pool_ = std::make_unique<ThreadPool>(1);
        description_ = "reference, 1 thread";
    } else {
        pool_ = args.parallel_for
                    ? std::make_unique<ThreadPool>(args.parallel_for, args.parallel_for_pool, threads)
                    : std::make_unique<ThreadPool>(threads);
        description_ = text("cpu ", isa_name(env_.isa), ", ", pool_->threads(),
                            pool_->threads() == 1 ? " thread" : " threads");
    }
    env_.pool = pool_.get();
    env_.slow_bf16_dots = slow_bf16_dots();
    plans_ = std::make_unique<PlanCache>();
    env_.plans = plans_.get();
    log_line(LogLevel::info, text("context: ", description_));
}

Context::~Context() = default;
Context::Context(Context&&) noexcept = default;

Env Context::env(Workspace workspace, smla_stream stream) const {
    Env out = env_;
    out.workspace = workspace;
    out.stream = stream;
    return out;
}

void* Context::allocate(size_t bytes) {
    if (device().type() != SMLA_CPU) return device().allocate(bytes);
    void* memory = call_back("args.allocator.alloc", [&] {
        return allocator_.alloc(allocator_.user, bytes ? bytes : kCacheLine, kCacheLine);
    });
    if (!memory)
        fail(SMLA_OUT_OF_MEMORY, "allocator", text("null for ", bytes, " bytes"), "a pointer to memory");
    return memory;
}

void Context::release(void* memory) {
    if (!memory) return;
    if (device().type() != SMLA_CPU) device().release(memory);
    else allocator_.free(allocator_.user, memory);
}

void Context::init_workspace(Workspace workspace, smla_stream stream) const {
    SMLA_CHECK(workspace.bytes == 0 || device().reaches(workspace.data), "workspace.data", "host memory",
               text("memory of cuda:", device().index()));
    if (device().type() == SMLA_CPU) ask_for_huge_pages(workspace.data, workspace.bytes);
    device().fill(workspace.data, 0, std::min(workspace.bytes, kWorkspaceHeader), stream);
}

Workspace OwnedWorkspace::at_least(size_t bytes) {
    if (bytes <= memory_.bytes) return memory_;
    context_.release(memory_.data);
    memory_ = {};
    memory_ = {context_.allocate(bytes), bytes};
    context_.init_workspace(memory_, nullptr);
    return memory_;
}

}  // namespace smla
