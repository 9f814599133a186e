#include "engines/context.h"

#include "core/cpu_features.h"
#include "engines/run.h"
#include "kit/context_args.h"
#include "linear/cublaslt.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

namespace smla {
namespace {

smla_context_args cpu_args() { return kit::context_args(SMLA_ENGINE_CPU, 2); }

// Sets a variable of the environment (null: removes it) and puts the old value back.
class Variable {
public:
    Variable(const char* name, const char* value) : name_(name) {
        if (const char* old = std::getenv(name)) old_ = old;
        if (value) setenv(name, value, 1);
        else unsetenv(name);
    }
    ~Variable() {
        if (old_.empty()) unsetenv(name_);
        else setenv(name_, old_.c_str(), 1);
    }
    Variable(const Variable&) = delete;
    Variable& operator=(const Variable&) = delete;

private:
    const char* name_;
    std::string old_;
};

void expect_refused(const smla_context_args& args, smla_status status, const char* field) {
    try {
        const Context context(args);
        ADD_FAILURE() << "accepted; " << field << " is wrong";
    } catch (const Error& error) {
        EXPECT_EQ(error.status, status) << error.what();
        EXPECT_EQ(error.field, field) << error.what();
    }
}

TEST(Context, EnvironmentForcesEachInstructionSetOfTheMachine) {
    for (const smla_isa isa : isas_here()) {
        const Variable forced("SMLA_ISA", isa_name(isa));
        const Context context(cpu_args());
        EXPECT_EQ(context.env({}).isa, isa);
        EXPECT_EQ(context.description(), std::string("cpu ") + isa_name(isa) + ", 2 threads");
    }
    for (const char* open : {static_cast<const char*>(nullptr), "", "auto"}) {
        const Variable forced("SMLA_ISA", open);
        EXPECT_EQ(Context(cpu_args()).env({}).isa, best_isa());
    }
}

TEST(Context, ArgumentsWinOverTheEnvironment) {
    smla_context_args args = cpu_args();
    args.isa = SMLA_ISA_SCALAR;
    const Variable forced("SMLA_ISA", isa_name(best_isa()));
    EXPECT_EQ(Context(args).env({}).isa, SMLA_ISA_SCALAR);
}

TEST(Context, VariablesStandForArgumentsThatAreZero) {
    smla_context_args args = cpu_args();
    args.threads = 0;
    const Variable threads("SMLA_THREADS", "3"), engine("SMLA_ENGINE", "reference");
    EXPECT_EQ(Context(args).env({}).threads(), 3);
    EXPECT_EQ(Context(cpu_args()).env({}).threads(), 2) << "an argument is stronger";
    args.engine = SMLA_ENGINE_AUTO;
    EXPECT_EQ(Context(args).engine(), SMLA_ENGINE_REFERENCE);
    args.parallel_for = [](void*, int64_t n, void (*body)(void*, int64_t), void* user) {
        for (int64_t i = 0; i < n; ++i) body(user, i);
    };
    args.engine = SMLA_ENGINE_CPU;
    EXPECT_EQ(Context(args).env({}).threads(), 3) << "bodies of the caller's pool";
    const Variable kernel("SMLA_KERNEL", "attend=cpu_generic_attend,attend=cuda_generic_attend");
    EXPECT_EQ(Context(args).env({}).demanded[size_t(Stage::attend)], "cpu_generic_attend");
    args.engine = SMLA_ENGINE_REFERENCE;
    EXPECT_EQ(Context(args).env({}).demanded[size_t(Stage::attend)], "");
    args.kernel = "attend=cpu_generic_attend";  // of another engine: an error, as it is an argument
    expect_refused(args, SMLA_INVALID_ARGUMENT, "args.kernel");
}

TEST(Context, WrongVariablesAreRefusedByName) {
    for (const auto& [name, value] : {std::pair{"SMLA_THREADS", "x"},
                                      {"SMLA_ENGINE", "gpu"},
                                      {"SMLA_LOG", "x"},
                                      {"SMLA_STEP_GRAPHS", "yes"},
                                      {"SMLA_KERNEL", "attend=none"}}) {
        const Variable wrong(name, value);
        expect_refused(kit::context_args(SMLA_ENGINE_AUTO, 0), SMLA_INVALID_ARGUMENT, name);
    }
}

TEST(EnvironmentOfTheLibraries, ANameThatCannotBeLoadedIsRefused) {
    for (const char* name : {"/nope.so", "libc.so.6"}) {
        const Variable wrong("SMLA_CUBLASLT", name);
        for (int i = 0; i < 2; ++i) {
            try {
                cublaslt();
                ADD_FAILURE() << name << " is accepted";
            } catch (const Error& error) {
                EXPECT_EQ(error.status, SMLA_INVALID_ARGUMENT);
                EXPECT_EQ(error.field, "SMLA_CUBLASLT");
            }
        }
    }
}

TEST(Context, UnknownOrMissingInstructionSetsAreRefused) {
    {
        const Variable forced("SMLA_ISA", "avx9000");
        expect_refused(cpu_args(), SMLA_INVALID_ARGUMENT, "SMLA_ISA");
    }
    smla_context_args args = cpu_args();
    for (const smla_isa isa : {-1, kLastIsa + 1}) {
        args.isa = isa;
        expect_refused(args, SMLA_INVALID_ARGUMENT, "args.isa");
    }
    const std::vector<smla_isa> here = isas_here();
    for (smla_isa isa = SMLA_ISA_SCALAR; isa <= kLastIsa; ++isa) {
        if (std::find(here.begin(), here.end(), isa) != here.end()) continue;
        args.isa = isa;
        expect_refused(args, SMLA_UNSUPPORTED, "args.isa");
    }
}

TEST(Context, WrongArgumentsAreRefusedByName) {
    smla_context_args args = cpu_args();
    args.engine = 99;
    expect_refused(args, SMLA_INVALID_ARGUMENT, "args.engine");
    args = cpu_args();
    args.device_index = -1;
    expect_refused(args, SMLA_INVALID_ARGUMENT, "args.device_index");
    if (!why_no_engine(SMLA_ENGINE_CUDA).empty()) {
        args = cpu_args();
        args.engine = SMLA_ENGINE_CUDA;
        expect_refused(args, SMLA_UNSUPPORTED, "args.engine");
    }
    args = cpu_args();
    args.threads = -1;
    expect_refused(args, SMLA_INVALID_ARGUMENT, "args.threads");
    args = cpu_args();
    args.batch_invariant = 2;
    expect_refused(args, SMLA_INVALID_ARGUMENT, "args.batch_invariant");
    args = cpu_args();
    args.allocator.free = [](void*, void*) {};
    expect_refused(args, SMLA_INVALID_ARGUMENT, "args.allocator");
}

TEST(Context, EveryKernelOfTheTablesCanBeDemandedByName) {
    int demanded = 0;
    for (int stage = 0; stage < kStageCount; ++stage)
        for (const std::string& kernel : kernel_names(Stage(stage), SMLA_ENGINE_CPU)) {
            const std::string text = std::string(kStageNames[stage]) + "=" + kernel;
            smla_context_args args = cpu_args();
            args.kernel = text.c_str();
            const Env env = Context(args).env({});
            for (int other = 0; other < kStageCount; ++other)
                EXPECT_EQ(env.demanded[size_t(other)], other == stage ? kernel : "") << text;
            ++demanded;
        }
    EXPECT_GE(demanded, kStageCount);
}

TEST(Context, UnknownDemandsAreRefused) {
    for (const char* text : {"attend", "attend=", "=cpu_generic_attend", "attend=no_such_kernel",
                             "nothing=cpu_generic_norm", "norm=cpu_generic_norm,attend=no_such_kernel",
                             "norm=cpu_generic_norm,attend=cpu_generic_attend,norm=cpu_generic_norm"}) {
        smla_context_args args = cpu_args();
        args.kernel = text;
        SCOPED_TRACE(text);
        expect_refused(args, SMLA_INVALID_ARGUMENT, "args.kernel");
    }
}

// An allocator that counts, and refuses above a limit.
struct Counted {
    int live = 0;
    size_t limit = size_t(1) << 20;
};
void* counted_alloc(void* user, size_t bytes, size_t alignment) {
    auto* counted = static_cast<Counted*>(user);
    if (bytes > counted->limit) return nullptr;
    void* memory = std::aligned_alloc(alignment, round_up(bytes, alignment));
    std::memset(memory, 0xFF, bytes);
    ++counted->live;
    return memory;
}
void counted_free(void* user, void* memory) {
    --static_cast<Counted*>(user)->live;
    std::free(memory);
}

TEST(Context, MemoryComesFromTheCallersAllocatorAndGoesBack) {
    Counted counted;
    smla_context_args args = cpu_args();
    args.allocator = {counted_alloc, counted_free, &counted};
    Context context(args);
    {
        OwnedWorkspace workspace(context);
        const Workspace small = workspace.at_least(kWorkspaceHeader);
        EXPECT_EQ(small.bytes, kWorkspaceHeader);
        EXPECT_EQ(workspace.at_least(64).data, small.data) << "what is large enough stays";
        const Workspace large = workspace.at_least(100000);
        EXPECT_GE(large.bytes, 100000u);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(large.data) % kCacheLine, 0u);
        for (size_t i = 0; i < kWorkspaceHeader; ++i)
            ASSERT_EQ(static_cast<const char*>(large.data)[i], 0) << "counters start at zero, byte " << i;
        EXPECT_EQ(counted.live, 1);
        try {
            workspace.at_least(counted.limit + 1);
            ADD_FAILURE() << "no memory, no error";
        } catch (const Error& error) {
            EXPECT_EQ(error.status, SMLA_OUT_OF_MEMORY);
        }
        EXPECT_GE(workspace.at_least(4096).bytes, 4096u) << "serves on after a failure";
    }
    EXPECT_EQ(counted.live, 0);
}

TEST(Context, TheReferenceEngineSaysSo) {
    smla_context_args args = cpu_args();
    args.engine = SMLA_ENGINE_REFERENCE;
    const Context context(args);
    EXPECT_EQ(context.engine(), SMLA_ENGINE_REFERENCE);
    EXPECT_EQ(context.description(), "reference, 1 thread");
}

}  // namespace
}  // namespace smla
