// Stage calls: a problem of the test kit, whose fields may be changed by the stage's table. What is refused
// is refused by every engine, and nothing is written; what is accepted comes out as the kit expects from the
// reference and from every kernel of another engine that takes it. SMLA_FUZZ_ENGINE: cpu (the default), cuda,
// or copies: cpu, on copies of the arguments.
#include "calls.h"
#include "change.h"
#include "fuzz.h"
#include "judge.h"

#include "api/guard.h"
#include "kit/problem.h"

#include <algorithm>
#include <set>
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
    if (smla_context_create(&args, &out) == SMLA_OK) return out;
    if (engine == SMLA_ENGINE_CUDA) std::fprintf(stderr, "fuzz: %s\n", smla_last_error());
    return nullptr;
}

struct Contexts {
    smla_context* reference = make_context(SMLA_ENGINE_REFERENCE, SMLA_ISA_AUTO);
    std::vector<smla_context*> tested;  // on a processor with every instruction set that it has
    Where where = Where::here;          // the tested ones work

    Contexts() {
        const char* const named = std::getenv("SMLA_FUZZ_ENGINE");
        const std::string_view engine = named ? named : "cpu";
        if (engine == "cuda") where = Where::gpu;
        else if (engine == "copies") where = Where::copies;
        else FUZZ_ASSERT(engine == "cpu");
        if (where == Where::gpu) tested = {make_context(SMLA_ENGINE_CUDA, SMLA_ISA_AUTO)};
        else
            for (const smla_isa isa : {SMLA_ISA_AUTO, SMLA_ISA_SCALAR, SMLA_ISA_AVX2, SMLA_ISA_AVX512})
                if (smla_context* context = make_context(SMLA_ENGINE_CPU, isa)) tested.push_back(context);
        FUZZ_ASSERT(reference && !tested.empty() && tested.front());
    }
    static const Contexts& get() {
        static const Contexts* const all = new Contexts;  // for the life of the process
        return *all;
    }
};

struct Counts {
    int64_t refused = 0, accepted = 0, kernels = 0;
} counts;

void check_status(smla_status status) {
    FUZZ_ASSERT(status != SMLA_INTERNAL && status != SMLA_OUT_OF_MEMORY);
    smla_error error;
    smla_last_error_info(&error);
    FUZZ_ASSERT(error.status == status && error.message && error.field && error.got && error.wanted);
    FUZZ_ASSERT((status == SMLA_OK) == (error.message[0] == 0));
}

class Case {
public:
    Case(const uint8_t* data, size_t size) : choose_(data, size) {
        stage_ = Stage(choose_.below(kStageCount));
        const auto& tested = Contexts::get().tested;
        tested_ = tested[size_t(choose_.below(int64_t(tested.size())))];
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
            const Changed more = change(fields(), args(), row_of(stage_).bytes, problem_->memory, choose_);
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
            FUZZ_ASSERT(!refused || size(reference, args()).status != SMLA_OK);
            return;
        }
        const smla_status expected = call(reference, Where::here);
        FUZZ_ASSERT(!refused || expected != SMLA_OK);
        if (expected != SMLA_OK) {
            FUZZ_ASSERT(!problem_->memory.changed());
            if (where_ != Where::here && !lies_in_blocks(fields(), args())) return;
            const smla_status status = call(tested_, where_);
            FUZZ_ASSERT(status == expected || (status != SMLA_OK && !on_first_device(fields(), args())));
            FUZZ_ASSERT(!problem_->memory.changed());
            ++counts.refused;
            return;
        }
        problem_->memory.reset();
        const smla_status status = call(tested_, where_);
        const bool may_refuse = where_ == Where::gpu && !on_first_device(fields(), args());
        FUZZ_ASSERT(status == SMLA_OK ||
                    ((status == SMLA_UNSUPPORTED || may_refuse) && !problem_->memory.changed()));
        ++counts.accepted;
        problem_->memory.reset();
        expect();
        run_kernels(reference->context, Where::here);
        if (!may_refuse) run_kernels(tested_->context, where_);
    }

private:
    std::span<const StageField> fields() const { return fields_of_stage(stage_); }
    void* args() const { return problem_->arguments(); }

    struct Size {
        smla_status status;
        size_t bytes;
    };
    Size size(smla_context* context, const void* args) const {
        Size out{};
        out.status = smla_workspace_size(context, smla_stage(stage_), args, budget_, &out.bytes);
        check_status(out.status);
        size_t text = 0;
        check_status(smla_explain_stage(context, smla_stage(stage_), args, nullptr, &text));
        return out;
    }

    // Through the C ABI, in a workspace of exactly the size that the library asks for.
    smla_status call(smla_context* context, Where where) const {
        const Placed placed(stage_, args(), where);
        const Size sized = size(context, placed.args());
        check_status(smla_check_stage(context, smla_stage(stage_), placed.args()));
        FUZZ_ASSERT(sized.bytes <= kMostScratch);
        const kit::Scratch scratch(placed.device(), sized.status == SMLA_OK ? sized.bytes : 0);
        const kit::GuardedMemory::Closed closed(problem_->memory);
        const Workspace workspace = scratch.get();
        const smla_status status =
            row_of(stage_).call(context, placed.args(), {workspace.data, workspace.bytes});
        check_status(status);
        placed.fetch();
        FUZZ_ASSERT(scratch.complaint().empty());
        return status;
    }

    // What may be written, and with mild values what must come of it.
    void expect() {
        for (const StageField& field : fields()) {
            if (field.kind != FieldKind::tensor) continue;
            auto& tensor = field_of<Tensor>(args(), field);
            resolve_strides(tensor);
            for (int d = 0; d < std::min(tensor.ndim, SMLA_MAX_NDIM);
                 ++d)  // one that nobody looks at may lie
                problem_->repeats |= tensor.shape[d] > 1 && tensor.stride_elems[d] == 0;
        }
        if (outputs_overlap(fields(), args())) changed_.comparable = false;
        if (where_ == Where::gpu && has_rivals()) changed_.comparable = false;
        problem_->alone = !changed_.comparable;
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

    // Two tokens with one slot, or two pages copied to one: on a GPU the last to come is kept.
    bool has_rivals() const {
        for (const StageField& field : fields()) {
            const std::string_view name = field.name.c_str();
            const bool pairs = name == "args.pairs";
            if (name != "args.slots" && !pairs) continue;
            const auto& tensor = field_of<Tensor>(args(), field);
            std::set<int64_t> seen;
            for (int64_t i = 0; i < tensor.shape[0]; ++i) {
                const int64_t to = load_int(tensor, i, pairs);
                if (to >= 0 && !seen.insert(to).second) return true;
            }
        }
        return false;
    }

    // A kernel on arguments elsewhere, as Problem::run does here.
    void run_there(Context& context, const std::string& kernel, Comparison& out) const {
        const Placed placed(stage_, args(), where_);
        Env env = context.env({});
        env.demanded[size_t(stage_)] = kernel;
        const kit::Scratch scratch(placed.device(), row_of(stage_).workspace(placed.args(), env, budget_));
        env.workspace = scratch.get();
        const std::string ran = row_of(stage_).run(placed.args(), env);
        placed.fetch();
        out.check(ran == kernel, text("ran ", ran));
        for (const std::string& complaint : {scratch.complaint(), problem_->memory.forbidden_write()})
            out.check(complaint.empty(), complaint);
    }

    void run_kernels(Context& context, Where where) {
        for (const Verdict& verdict : problem_->kernels(context.env({}))) {
            if (!verdict.refusal.empty()) continue;
            Comparison result;
            problem_->memory.reset();
            if (where == Where::here) problem_->run(context, verdict.kernel, budget_, result);
            else run_there(context, verdict.kernel, result);
            if (changed_.comparable) problem_->compare(verdict.kernel, result);
            ++counts.kernels;
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
            for (int d = 0; d < std::min(tensor.ndim, SMLA_MAX_NDIM); ++d)
                out += text(" ", tensor.stride_elems[d]);
            out += "\n";
        }
        return out;
    }

    Choices choose_;
    Stage stage_{};
    smla_context* tested_ = nullptr;
    Where where_ = Contexts::get().where;
    std::unique_ptr<Problem> problem_;
    size_t budget_ = 0;
    Changed changed_;
};

}  // namespace

bool report() {
    std::printf("calls refused alike %lld, accepted %lld; kernels compared %lld\n", (long long)counts.refused,
                (long long)counts.accepted, (long long)counts.kernels);
    return counts.refused > 0 && counts.kernels > 0;
}

}  // namespace smla::fuzz

// Long backtraces of every allocation took a third of the time.
extern "C" const char* __asan_default_options() { return "malloc_context_size=2"; }

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    smla::fuzz::Case(data, size).run();
    return 0;
}
