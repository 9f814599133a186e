#include "engines.h"

#include "engines/candidate.h"
#include "kit/amx_emulator.h"
#include "kit/context_args.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace contract {

namespace {

constexpr const char* kIsaNames[] = {"auto", "scalar", "avx2", "avx512", "avx512_bf16", "amx", "neon"};

bool gpu_suite_runs = false;

smla_status create(const Engine& engine, const Options& options, smla_context** out) {
    smla_context_args args = smla::kit::context_args(engine.engine, options.threads);
    args.isa = engine.isa;
    args.batch_invariant = options.batch_invariant;
    args.check_indices = options.check_indices;
    args.kernel = options.kernel;
    return smla_context_create(&args, out);
}

std::vector<Engine> list_engines() {
    std::vector<Engine> out{reference_engine()};
    smla::kit::emulate_amx();  // where it cannot, there is no such engine
    const char* named = std::getenv("SMLA_ISA");
    if (named && *named && std::strcmp(named, "auto") != 0) {
        out.push_back({std::string("cpu_") + named, SMLA_ENGINE_CPU, SMLA_ISA_AUTO});
        return out;
    }
    for (smla_isa isa = SMLA_ISA_SCALAR; isa <= SMLA_ISA_NEON; ++isa) {
        const Engine engine{std::string("cpu_") + kIsaNames[isa], SMLA_ENGINE_CPU, isa};
        smla_context* context = nullptr;
        const smla_status status = create(engine, {}, &context);
        smla_context_destroy(context);
        if (status == SMLA_OK) out.push_back(engine);
    }
    return out;
}

}  // namespace

Engine reference_engine() { return {"reference", SMLA_ENGINE_REFERENCE, SMLA_ISA_AUTO}; }

const std::vector<Engine>& engines() {
    static const std::vector<Engine> host = list_engines();
    static const std::vector<Engine> gpu{{"cuda", SMLA_ENGINE_CUDA, SMLA_ISA_AUTO}};
    return on_gpu() ? gpu : host;
}

std::vector<Engine> first_and_last_engine() {
    if (engines().size() == 1) return engines();
    return {engines().front(), engines().back()};
}

void ContractGpu::SetUp() {
    smla_context* context = nullptr;
    const smla_status status = create({"cuda", SMLA_ENGINE_CUDA, SMLA_ISA_AUTO}, {}, &context);
    smla_context_destroy(context);
    if (status != SMLA_OK) GTEST_SKIP() << "no GPU: " << smla_last_error();
    gpu_suite_runs = true;
}
void ContractGpu::TearDown() { gpu_suite_runs = false; }

bool on_gpu() { return gpu_suite_runs; }

bool is_on_gpu(smla_context* context) {
    return context && std::strncmp(smla_context_description(context), "cuda", 4) == 0;
}

Context::Context(const Engine& engine, const Options& options) {
    EXPECT_TRUE(succeeded(create(engine, options, &context_)));
}

smla_error last_error() {
    smla_error out;
    smla_last_error_info(&out);
    return out;
}

testing::AssertionResult succeeded(smla_status status) {
    if (status == SMLA_OK) return testing::AssertionSuccess();
    return testing::AssertionFailure() << smla_last_error();
}

testing::AssertionResult refused(smla_status status, smla_status wanted, const std::string& field) {
    if (status == SMLA_OK) return testing::AssertionFailure() << "accepted; " << field << " is wrong";
    const smla_error error = last_error();
    const std::string message = error.message, got_field = error.field;
    if (status != wanted || error.status != wanted)
        return testing::AssertionFailure() << "status " << smla_status_name(status) << ": " << message;
    if (got_field != field)
        return testing::AssertionFailure() << "not the field " << field << ": " << message;
    const std::string got = error.got, must = error.wanted;
    const std::string text = must.empty() ? got : "got " + got + ", wanted " + must;
    if (got.empty() || message.find(got_field + ": " + text) == std::string::npos)
        return testing::AssertionFailure() << "the text does not say all: " << message;
    return testing::AssertionSuccess();
}

Scratch::Scratch(smla_context* context, size_t bytes, uint8_t dirt)
    : bytes_(bytes), memory_(is_on_gpu(context) ? gpu() : smla::host_device(), bytes, dirt) {
    memory_.fill_header(0xFF);
    EXPECT_TRUE(succeeded(smla_workspace_init(context, get(), nullptr)));
}

testing::AssertionResult Scratch::clean() const {
    const std::string complaint = memory_.complaint();
    return complaint.empty() ? testing::AssertionSuccess() : testing::AssertionFailure() << complaint;
}

}  // namespace contract
