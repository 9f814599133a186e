#include "context_options.h"

#include "core/cpu_features.h"
#include "core/environment.h"
#include "core/limits.h"
#include "engines/run.h"
#include "names.h"
#include "tool.h"

#include <CLI/CLI.hpp>

#include <algorithm>

namespace smla::cli {

namespace {

smla_engine engine_of_kernel(const std::string& kernel) {
    if (kernel.find("=cuda_") == std::string::npos) return SMLA_ENGINE_CPU;
    const std::string why = why_no_engine(SMLA_ENGINE_CUDA);
    if (!why.empty())
        fail(SMLA_UNSUPPORTED, "--kernel", kernel,
             "a kernel of the cpu engine, because the cuda engine is not available (" + why + ")");
    return SMLA_ENGINE_CUDA;
}

std::vector<std::string> isa_names() {
    std::vector<std::string> names{"auto"};
    for (smla_isa each = SMLA_ISA_SCALAR; each <= kLastIsa; ++each) names.emplace_back(isa_name(each));
    return names;
}

// More threads than this take turns on the cores, so that every stage waits for all of them.
constexpr int kThreadsPerCore = 8;

CLI::Validator thread_count() {
    return CLI::Validator(
        [](std::string& value) {
            const int cores = usable_cores(), most = std::min(4096, kThreadsPerCore * cores);
            const std::string wrong = whole_number(0, most)(value);
            return wrong.empty() ? wrong
                                 : text(wrong, " (", kThreadsPerCore, " per core; this process may use ",
                                        cores, cores == 1 ? " core)" : " cores)");
        },
        "");
}

}  // namespace

void ContextOptions::add(CLI::App& command) {
    command
        .add_option("--engine", engine,
                    "auto (a GPU if there is one), reference, cpu or cuda (default: SMLA_ENGINE, else auto)")
        ->transform(one_of({engine_names().begin(), engine_names().end()}))
        ->capture_default_str()
        ->group(kGroup);
    command
        .add_option("--isa", isa,
                    "Instruction set of the cpu engine (default: SMLA_ISA, else the best of this processor)")
        ->transform(one_of(isa_names()))
        ->type_name("auto|scalar|avx2|avx512|avx512_bf16|amx|neon")
        ->group(kGroup);
    command
        .add_option("--device", device, "Number of the GPU; selects the cuda engine (default: the first GPU)")
        ->check(whole_number(0, kMostDevice))
        ->group(kGroup);
    command
        .add_option("--threads", threads,
                    "Number of threads; 0: SMLA_THREADS, else one per core that this process may use")
        ->check(thread_count())
        ->capture_default_str()
        ->group(kGroup);
    command
        .add_option(
            "--kernel", kernel,
            "Kernels to use, by name: attend=NAME,score=NAME (smla list kernels; default: SMLA_KERNEL)")
        ->group(kGroup);
    command
        .add_flag("--batch-invariant", batch_invariant,
                  "The result of a token does not depend on other tokens of the batch")
        ->group(kGroup);
}

// Returns the CUDA engine for the number of a GPU. Throws if another engine is named, or if there is no GPU.
static smla_engine engine_of_device(smla_engine named, int device) {
    if (named != SMLA_ENGINE_AUTO)
        SMLA_CHECK(named == SMLA_ENGINE_CUDA, "--device", device,
                   "--engine cuda, because only GPUs have numbers");
    else if (const std::string why = why_no_engine(SMLA_ENGINE_CUDA); !why.empty())
        fail(SMLA_UNSUPPORTED, "--device", text(device), "a GPU (" + why + ")");
    return SMLA_ENGINE_CUDA;
}

smla_context_args ContextOptions::args() const {
    smla_context_args args{};
    args.struct_size = sizeof args;
    args.version = SMLA_VERSION;
    args.engine = parse_choice("--engine", engine, {engine_names().begin(), engine_names().end()});
    if (device) args.engine = engine_of_device(args.engine, *device);
    args.device_index = device.value_or(0);
    args.isa = parse_choice("--isa", isa, isa_names());
    args.threads = threads;
    args.batch_invariant = batch_invariant;
    args.check_indices = check_indices;
    args.kernel = kernel.empty() ? nullptr : kernel.c_str();
    if (args.kernel && args.engine == SMLA_ENGINE_AUTO) args.engine = engine_of_kernel(kernel);
    return args;
}

smla_context_args ContextOptions::args_here() const {
    smla_context_args args = this->args();
    const bool about_cpu = isa != "auto" || threads != 0 || environment("SMLA_ISA");
    if (args.engine == SMLA_ENGINE_AUTO && !about_cpu && why_no_engine(SMLA_ENGINE_CUDA).empty())
        args.engine = SMLA_ENGINE_CUDA;
    return args;
}

Context ContextOptions::create(const Tool& tool) const {
    Context context(args_here());
    const bool by_itself = context.device().type() != SMLA_CPU && args().engine == SMLA_ENGINE_AUTO;
    tool.runs_on(context.description(), by_itself);
    return context;
}

}  // namespace smla::cli
