// Stage calls: a problem of the test kit, whose fields may be changed by the stage's table. What is refused
// is refused by every engine, and nothing is written; what is accepted comes out as the kit expects from the
// reference and from every kernel of the cpu engine that takes it.
#include "change.h"
#include "fuzz.h"
#include "judge.h"

#include "api/guard.h"
#include "engines/run.h"
#include "kit/problem.h"

#include <algorithm>
#include <vector>

namespace smla::fuzz {
namespace {

using kit::Comparison;
using kit::Problem;

constexpr size_t kMostScratch = size_t(16) << 20;

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
        for (const smla_isa isa : {SMLA_ISA_AUTO, SMLA_ISA_SCALAR, SMLA_ISA_AVX2, SMLA_ISA_AVX512})
            if (smla_context* context = make_context(SMLA_ENGINE_CPU, isa)) cpu.push_back(context);
        FUZZ_ASSERT(reference && !cpu.empty());
    }
    static const Contexts& get() {
        static const Contexts* const all = new Contexts;  // for the life of the process
        return *all;
    }
};

void check_status(smla_status status) {
    FUZZ_ASSERT(status != SMLA_INTERNAL && status != SMLA_OUT_OF_MEMORY);
    smla_error error;
    smla_last_error_info(&error);
    FUZZ_ASSERT(error.status == status && error.message && error.field && error.got && error.wanted);
    FUZZ_ASSERT((status == SMLA_OK) == (error.message[0] == 0));
}

struct StageRow {
    smla_status (*call)(smla_context*, const void*, smla_workspace);
    size_t bytes;  // of its arguments
};
constexpr StageRow kStages[] = {
#define SMLA_ROW(name, type)                                                              \
    {[](smla_context* context, const void* args, smla_workspace workspace) {              \
         return smla_##name(context, static_cast<const type*>(args), workspace, nullptr); \
     },                                                                                   \
     sizeof(type)},
    SMLA_STAGES(SMLA_ROW)
#undef SMLA_ROW
};

class Case {
public:
    Case(const uint8_t* data, size_t size) : choose_(data, size) {
        stage_ = Stage(choose_.below(kStageCount));
        const auto& cpu = Contexts::get().cpu;
        cpu_ = cpu[size_t(choose_.below(int64_t(cpu.size())))];
        const int64_t kind = choose_.below(8);
        uint64_t seed = 0;
        for (int i = 0; i < 3; ++i) seed = seed << 8 | choose_.byte();
        problem_ = kit::make_problem(
            stage_, {.seed = seed, .of_model = kind == 0, .small = true, .walls = (kind & 1) != 0});
        if (choose_.below(4) == 0) budget_ = size_t(choose_.below(20000));
        if (choose_.below(3) == 0)
            for (int64_t i = choose_.below(4); i >= 0; --i) spoil_contents(fields(), args(), choose_);
        if (choose_.below(3) == 0) return;
        for (int64_t i = choose_.below(4) / 2; i >= 0; --i) {
            const Changed more =
                change(fields(), args(), kStages[size_t(stage_)].bytes, problem_->memory, choose_);
            changed_.comparable = changed_.comparable && more.comparable;
            changed_.runnable = changed_.runnable && more.runnable;
        }
    }

    void run() {
        problem_->memory.remember();
        static const bool show = std::getenv("SMLA_FUZZ_SHOW");  // of an input that fails: what it is
        if (show)
            std::fprintf(stderr, "%s of %s%s", stage_name(stage_).data(), problem_->description.c_str(),
                         spelt_out().c_str());
        const bool refused = contradicts_table(fields(), args());
        smla_context* const reference = Contexts::get().reference;
        if (!changed_.runnable || !fits(fields(), args())) {
            FUZZ_ASSERT(!refused || size(reference).status != SMLA_OK);
            return;
        }
        const smla_status expected = call(reference);
        FUZZ_ASSERT(!refused || expected != SMLA_OK);
        if (expected != SMLA_OK) {
            FUZZ_ASSERT(!problem_->memory.changed());
            FUZZ_ASSERT(call(cpu_) == expected && !problem_->memory.changed());
            return;
        }
        problem_->memory.reset();
        const smla_status status = call(cpu_);
        FUZZ_ASSERT(status == SMLA_OK || (status == SMLA_UNSUPPORTED && !problem_->memory.changed()));
        problem_->memory.reset();
        expect();
        run_kernels(reference->context);
        run_kernels(cpu_->context);
    }

private:
    std::span<const StageField> fields() const { return fields_of_stage(stage_); }
    void* args() const { return problem_->arguments(); }

    struct Size {
        smla_status status;
        size_t bytes;
    };
    Size size(smla_context* context) const {
        Size out{};
        out.status = smla_workspace_size(context, smla_stage(stage_), args(), budget_, &out.bytes);
        check_status(out.status);
        size_t text = 0;
        check_status(smla_explain_stage(context, smla_stage(stage_), args(), nullptr, &text));
        return out;
    }

    // Through the C ABI, in a workspace of exactly the size that the library asks for.
    smla_status call(smla_context* context) const {
        const Size sized = size(context);
        check_status(smla_check_stage(context, smla_stage(stage_), args()));
        FUZZ_ASSERT(sized.bytes <= kMostScratch);
        const kit::Scratch scratch(host_device(), sized.status == SMLA_OK ? sized.bytes : 0);
        const kit::GuardedMemory::Closed closed(problem_->memory);
        const Workspace workspace = scratch.get();
        const smla_status status =
            kStages[size_t(stage_)].call(context, args(), {workspace.data, workspace.bytes});
        check_status(status);
        FUZZ_ASSERT(scratch.complaint().empty());
        return status;
    }

    // What may be written, and with mild values what must come of it.
    void expect() {
        problem_->alone = !changed_.comparable;
        for (const StageField& field : fields())
            if (field.kind == FieldKind::tensor) resolve_strides(field_of<Tensor>(args(), field));
        if (stage_ == Stage::inverse_rope) static_cast<smla_rope_args*>(args())->inverse = 1;
        if (changed_.comparable) return problem_->expect();
        problem_->memory.allow_nothing();
        for (const StageField& field : fields()) {
            if (!field.is_written) continue;
            if (field.kind == FieldKind::tensor) problem_->memory.allow(written_by(field));
            else if (void* const data = field_of<smla_cache>(args(), field).data)
                problem_->memory.allow_all_of(data);
        }
    }

    // An output that is left out may be another field's, in place.
    const Tensor& written_by(const StageField& output) const {
        const auto& own = field_of<Tensor>(args(), output);
        for (const StageField& field : fields())
            if (!present(own) && field.offset == output.in_place_of) return field_of<Tensor>(args(), field);
        return own;
    }

    void run_kernels(Context& context) {
        for (const Verdict& verdict : problem_->kernels(context.env({}))) {
            if (!verdict.refusal.empty()) continue;
            Comparison result;
            problem_->memory.reset();
            problem_->run(context, verdict.kernel, budget_, result);
            if (changed_.comparable) problem_->compare(verdict.kernel, result);
            if (result.worst <= 1) continue;
            std::fprintf(stderr, "%s on %s: %s, %g times what is allowed\n%s%s", verdict.kernel.c_str(),
                         context.description().c_str(), result.what.c_str(), result.worst,
                         problem_->description.c_str(), spelt_out().c_str());
            std::abort();
        }
    }

    // The arguments, a line for each field that is there.
    std::string spelt_out() const {
        std::string out = "\n";
        for (const StageField& field : fields()) {
            if (field.kind == FieldKind::cache) {
                const auto& cache = field_of<smla_cache>(args(), field);
                if (cache.format != SMLA_FORMAT_NONE)
                    out += text(field.name.c_str(), ": format ", cache.format, ", ", cache.pages,
                                " pages of ", cache.page_tokens, ", ", cache.page_rows, " rows apart\n");
            }
            if (field.kind != FieldKind::tensor) continue;
            const auto& tensor = field_of<Tensor>(args(), field);
            if (!present(tensor)) continue;
            out += text(field.name.c_str(), ": ", describe(tensor), ", strides");
            for (int d = 0; d < tensor.ndim; ++d) out += text(" ", tensor.stride_elems[d]);
            out += "\n";
        }
        return out;
    }

    Choices choose_;
    Stage stage_{};
    smla_context* cpu_ = nullptr;
    std::unique_ptr<Problem> problem_;
    size_t budget_ = 0;
    Changed changed_;
};

}  // namespace
}  // namespace smla::fuzz

// Long backtraces of every allocation took a third of the time.
extern "C" const char* __asan_default_options() { return "malloc_context_size=2"; }

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    smla::fuzz::Case(data, size).run();
    return 0;
}
