#include "core/environment.h"

#include "core/status.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>

namespace smla {

namespace {

using Kind = EnvironmentVariable::Kind;

constexpr const char* kAtContext = "when a context is created";
constexpr EnvironmentVariable kVariables[] = {
    {"SMLA_ENGINE", "auto, reference, cpu, cuda", "Engine of contexts that are created with auto.",
     kAtContext, Kind::choice},
    {"SMLA_ISA", "auto, scalar, avx2, avx512, avx512_bf16, amx, neon",
     "Instruction set of contexts of the cpu engine that are created with auto.", kAtContext, Kind::choice},
    {"SMLA_THREADS", "0 (one per usable core) to 4096",
     "Number of threads of cpu contexts that are created with 0.", kAtContext, Kind::number, 0, 4096},
    {"SMLA_KERNEL", "stage=kernel,... (names: smla list kernels)",
     "Kernels of contexts that are created without a list of kernels. Kernels of other engines are ignored.",
     kAtContext},
    {"SMLA_BACKEND", "a name or alias (smla list backends)", "Attention backend if the caller names none.",
     "when a backend is chosen"},
    {"SMLA_LOG", "0 (errors), 1 (and warnings) or 2 (and information)",
     "Level of lines logged to stderr if the program sets no log function. Unset: none.", kAtContext,
     Kind::number, 0, 2},
    {"SMLA_CBLAS", "a library with cblas_sgemm, or empty",
     "BLAS library of the cpu engine. Empty: none; smla's own loops run. Unset: an installed library, "
     "OpenBLAS first.",
     "at the first projection that needs it"},
    {"SMLA_CUBLASLT", "a cuBLASLt library, or empty",
     "cuBLASLt of the cuda engine. Empty: none; smla's own kernels run. Unset: the installed library.",
     "at the first projection that needs it"},
    {"SMLA_STEP_GRAPHS", "0 or 1",
     "0: the cuda engine launches the kernels of a step one by one instead of as a graph, for profilers.",
     kAtContext, Kind::number, 0, 1},
    {"SMLA_PRETEND_CAPABILITY", "20 to 999",
     "For tests: the cuda engine treats the GPU as one of this compute capability.", kAtContext, Kind::number,
     20, 999},
    {"SMLA_LIBRARY", "path of libsmla.so",
     "Python: library to load. Unset: the library in the wheel, else in build/release/lib of the clone, else "
     "of the system.",
     "when Python imports smla"},
    {"SMLA_TOOL", "path of the program smla",
     "Python: program that smla.doctor, smla.bench, smla.capacity and smla.explain run.", "at the call"},
    {"SMLA_VLLM_INDEXER", "0 or 1",
     "vLLM plug-in: whether smla replaces vLLM's sparse indexer. Unset: if the GPU requires it.",
     "when vLLM loads the plug-in, and when a context is created", Kind::number, 0, 1},
};

const EnvironmentVariable& find(const char* name) {
    for (const EnvironmentVariable& each : kVariables)
        if (std::strcmp(each.name, name) == 0) return each;
    fail(SMLA_INTERNAL, "environment", name, "a variable of the table");
}

bool accepted(const EnvironmentVariable& variable, const char* value) {
    if (variable.kind == Kind::number) return environment_number(variable.name).has_value();
    if (variable.kind == Kind::choice)
        return !std::strchr(value, ',') &&
               strcasestr(text(", ", variable.values, ", ").c_str(), text(", ", value, ", ").c_str());
    return true;
}

}  // namespace

std::span<const EnvironmentVariable> environment_variables() { return kVariables; }

const char* environment(const char* name) {
    const char* const value = std::getenv(find(name).name);
    return value && *value ? value : nullptr;
}

std::optional<int> environment_number(const char* name) {
    const EnvironmentVariable& variable = find(name);
    const char* const value = environment(name);
    if (!value) return {};
    const char* const end = value + std::strlen(value);
    int number = 0;
    const auto read = std::from_chars(value, end, number);
    if (read.ec != std::errc() || read.ptr != end || number < variable.least || number > variable.most)
        return {};
    return number;
}

void check_environment(std::initializer_list<std::string_view> unused) {
    for (const EnvironmentVariable& each : kVariables)
        if (std::find(unused.begin(), unused.end(), each.name) == unused.end())
            if (const char* const value = environment(each.name); value && !accepted(each, value))
                fail(SMLA_INVALID_ARGUMENT, each.name, value, each.values);
}

}  // namespace smla
