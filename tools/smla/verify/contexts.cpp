#include "verify/contexts.h"

#include "core/cpu_features.h"
#include "engines/run.h"
#include "linear/cblas.h"
#include "linear/cublaslt.h"

#include <cstdlib>

namespace smla::cli {

namespace {

bool isa_is_open(const smla_context_args& args) {
    const char* named = std::getenv("SMLA_ISA");
    return args.isa == SMLA_ISA_AUTO && (!named || !*named || std::string(named) == "auto");
}

bool begins(const std::string& name, const std::string& with) { return name.rfind(with, 0) == 0; }

// A kernel's name contains its requirement: cpu_avx512_bf16_attend, cuda_sm90_attend.
smla_isa isa_of_name(const std::string& kernel) {
    for (smla_isa isa = kLastIsa; isa > SMLA_ISA_SCALAR; --isa)
        if (begins(kernel, text("cpu_", isa_name(isa), "_"))) return isa;
    return SMLA_ISA_SCALAR;
}
int capability_of_name(const std::string& kernel) {
    constexpr std::string_view prefix = "cuda_sm";
    return begins(kernel, std::string(prefix)) ? std::atoi(kernel.c_str() + prefix.size()) : 0;
}

}  // namespace

// The argument struct points into the options for its kernel's name.
Contexts::Contexts(const ContextOptions& options) : args_(options.args()), open_isa_(isa_is_open(args_)) {}

std::vector<smla_engine> Contexts::engines() const {
    if (args_.engine != SMLA_ENGINE_AUTO) return {args_.engine};
    std::vector<smla_engine> out{SMLA_ENGINE_REFERENCE, SMLA_ENGINE_CPU};
    if (why_no_engine(SMLA_ENGINE_CUDA).empty()) out.push_back(SMLA_ENGINE_CUDA);
    return out;
}

Setting Contexts::draw(kit::Random& random, bool any_isa) const {
    Setting out{args_.isa, args_.threads, args_.batch_invariant};
    const std::vector<smla_isa> here = isas_here();
    if (open_isa_ && any_isa && random.chance(0.3))
        out.isa = here[size_t(random.between(0, int64_t(here.size()) - 1))];
    if (!out.threads) out.threads = random.pick({1, 2, 3, 5});
    if (!out.batch_invariant) out.batch_invariant = random.chance(0.3);
    return out;
}

Context& Contexts::get(smla_engine engine, const Setting& setting) {
    auto& context = contexts_[{engine, setting}];
    if (!context) {
        smla_context_args args = args_;
        args.engine = engine;
        args.isa = setting.isa;
        args.threads = setting.threads;
        args.batch_invariant = setting.batch_invariant;
        context = std::make_unique<Context>(args);
    }
    return *context;
}

std::string Contexts::demanded(smla_engine engine, Stage stage) {
    return strongest(engine).env({}).demanded[size_t(stage)];
}

std::string Contexts::lacks(smla_engine engine, const std::string& kernel) {
    const Env env = strongest(engine).env({});
    const smla_isa isa = isa_of_name(kernel);
    if (std::string why = why_no_isa(isa, env.isa); !why.empty()) return why;
    if (isa == SMLA_ISA_AMX && !why_no_tiles().empty()) return why_no_tiles();
    const int wanted = capability_of_name(kernel), here = env.device->facts().capability;
    if (wanted && here / 10 != wanted / 10) return text("requires sm_", wanted, "; the GPU is sm_", here);
    if (begins(kernel, "cpu_cblas") && !cblas().sgemm) return cblas().why_none;
    if (begins(kernel, "cuda_cublaslt") && cublaslt().library.empty()) return "no cuBLASLt library was found";
    return "";
}

}  // namespace smla::cli
