// Stage calls through the C ABI, with hostile indices and spoilt fields: no engine crashes or touches memory
// outside its arguments, and what the reference engine accepts the cpu engine computes alike.
#include "calls.h"
#include "core/stage.h"

#include <algorithm>
#include <cstring>

namespace smla::fuzz {
namespace {

smla_context* make_context(smla_engine engine, smla_isa isa) {
    smla_context_args args{};
    args.struct_size = sizeof args;
    args.version = SMLA_VERSION;
    args.engine = engine;
    args.isa = isa;
    args.threads = 1;  // in order: of two tokens with one slot the later one is kept, on either engine
    smla_context* out = nullptr;
    return smla_context_create(&args, &out) == SMLA_OK ? out : nullptr;
}

struct Contexts {
    smla_context* reference = make_context(SMLA_ENGINE_REFERENCE, SMLA_ISA_AUTO);
    std::vector<smla_context*> cpu;  // every instruction set that the machine has

    Contexts() {
        for (const smla_isa isa : {SMLA_ISA_SCALAR, SMLA_ISA_AVX2, SMLA_ISA_AVX512, SMLA_ISA_AVX512_BF16})
            if (smla_context* context = make_context(SMLA_ENGINE_CPU, isa)) cpu.push_back(context);
        FUZZ_ASSERT(reference && !cpu.empty());
    }
    static const Contexts& get() {
        static const Contexts* const all = new Contexts;  // for the life of the process
        return *all;
    }
};

// Scratch of exactly the size that the library asks for, dirty but for what init zeroes.
class Scratch {
public:
    Scratch(smla_context* context, size_t bytes)
        : data_(bytes ? static_cast<char*>(::operator new (bytes, std::align_val_t{64})) : nullptr),
          bytes_(bytes) {
        if (data_) std::memset(data_, 0xff, bytes_);
        FUZZ_ASSERT(smla_workspace_init(context, get(), nullptr) == SMLA_OK);
    }
    ~Scratch() { ::operator delete (data_, std::align_val_t{64}); }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    smla_workspace get() const { return {data_, bytes_}; }

private:
    char* data_;
    size_t bytes_;
};

void check_status(smla_status status) {
    FUZZ_ASSERT(status != SMLA_INTERNAL && status != SMLA_OUT_OF_MEMORY);
    smla_error error;
    smla_last_error_info(&error);
    FUZZ_ASSERT(error.status == status && error.message && error.field && error.got && error.wanted);
    FUZZ_ASSERT((status == SMLA_OK) == (error.message[0] == 0));
}

template <class Args>
using Call = smla_status (*)(smla_context*, const Args*, smla_workspace, smla_stream);

template <class Args>
smla_status run(smla_context* context, smla_stage stage, Call<Args> call, const Args& args, size_t budget) {
    size_t bytes = 0;
    const smla_status sized = smla_workspace_size(context, stage, &args, budget, &bytes);
    check_status(sized);
    const Scratch scratch(context, sized == SMLA_OK ? bytes : 0);
    size_t text = 0;
    check_status(smla_explain_stage(context, stage, &args, nullptr, &text));
    check_status(smla_check_stage(context, stage, &args));
    const smla_status status = call(context, &args, scratch.get(), nullptr);
    check_status(status);
    return status;
}

template <class Args>
struct Made {
    World world;
    Args args{};
    bool spoilt = false;
    size_t budget = 0;

    Made(const uint8_t* data, size_t size) : world(data, size) {
        const int64_t spoil = world.choose.below(3);
        if (world.choose.below(4) == 0) budget = size_t(world.choose.below(20000));
        args.struct_size = sizeof args;
        make(world, args);
        spoilt = spoil == 0 && world.spoil(&args, sizeof args);
    }
};

template <class Args>
void differ(smla_stage stage, Call<Args> call, const uint8_t* data, size_t size, int64_t cpu) {
    const Contexts& contexts = Contexts::get();
    smla_context* const engine = contexts.cpu[size_t(cpu) % contexts.cpu.size()];
    Made<Args> a(data, size), b(data, size);
    const smla_status expected = run(contexts.reference, stage, call, a.args, a.budget);
    const smla_status status = run(engine, stage, call, b.args, b.budget);
    // f64 runs on the reference engine only
    FUZZ_ASSERT(status == expected || (expected == SMLA_OK && status == SMLA_UNSUPPORTED));
    if (a.spoilt || status != SMLA_OK) return;
    if (!World::same(a.world, b.world)) {
        std::fprintf(stderr, "stage %d on %s\n", int(stage), smla_context_description(engine));
        std::abort();
    }
}

}  // namespace
}  // namespace smla::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size < 2) return 0;
    const int64_t stage = data[0] % SMLA_STAGE_COUNT, cpu = data[1] % 4;
    int64_t index = 0;
#define SMLA_CASE(name, args_type) \
    if (stage == index++)          \
        smla::fuzz::differ<args_type>(smla_stage(stage), smla_##name, data + 2, size - 2, cpu);
    SMLA_STAGES(SMLA_CASE)
#undef SMLA_CASE
    return 0;
}
