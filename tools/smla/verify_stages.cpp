// smla verify without files: problem after problem, each on every kernel of every engine, until the time is
// up.
#include "verify_stages.h"

#include "common.h"
#include "core/cpu_features.h"
#include "verify_problem.h"

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <tuple>

namespace smla::cli {

namespace {

using Clock = std::chrono::steady_clock;

// What became of one kernel.
struct Row {
    Stage stage;
    smla_engine engine;
    std::string kernel;
    int64_t ran = 0, missed = 0;
    double worst = 0;  // share of what is allowed
    std::string where, problem, first_miss, reproduce, refusal;
};

struct Setting {
    smla_isa isa;
    int32_t threads, batch_invariant;
    bool operator<(const Setting& other) const {
        return std::tie(isa, threads, batch_invariant) <
               std::tie(other.isa, other.threads, other.batch_invariant);
    }
};

bool isa_is_open(const smla_context_args& args) {
    const char* named = std::getenv("SMLA_ISA");
    return args.isa == SMLA_ISA_AUTO && (!named || !*named || std::string(named) == "auto");
}

// The contexts that problems run in: what the options leave open is drawn for each problem.
class Contexts {
public:
    explicit Contexts(const ContextOptions& options)
        : options_(options), args_(options.args()), open_isa_(isa_is_open(args_)) {}

    std::vector<smla_engine> engines() const {
        if (args_.engine != SMLA_ENGINE_AUTO) return {args_.engine};
        // a kernel demanded by name is one of the cpu engine's: the reference has one for each stage
        if (args_.kernel) return {SMLA_ENGINE_CPU};
        std::vector<smla_engine> out{SMLA_ENGINE_REFERENCE, SMLA_ENGINE_CPU};
        if (why_no_engine(SMLA_ENGINE_CUDA_MMA).empty()) out.push_back(SMLA_ENGINE_CUDA_MMA);
        return out;
    }
    Setting draw(Random& random, int64_t index) const {
        Setting out{args_.isa, args_.threads, args_.batch_invariant};
        if (open_isa_ && index > 1 && random.chance(0.3))
            out.isa = smla_isa(random.between(SMLA_ISA_SCALAR, best_isa()));
        if (!out.threads) out.threads = random.pick({1, 2, 3, 5});
        if (!out.batch_invariant) out.batch_invariant = random.chance(0.3);
        return out;
    }
    Context& get(smla_engine engine, const Setting& setting) {
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
    std::string demanded(smla_engine engine, Stage stage) {
        return get(engine, {args_.isa, 1, 0}).env({}).demanded[size_t(stage)];
    }

private:
    const ContextOptions& options_;
    smla_context_args args_;
    bool open_isa_;
    std::map<std::pair<smla_engine, Setting>, std::unique_ptr<Context>> contexts_;
};

class Verifier {
public:
    Verifier(const ContextOptions& context, const StageCheckOptions& options)
        : contexts_(context), options_(options), seed_(options.seed) {
        if (!seed_) seed_ = uint64_t(Clock::now().time_since_epoch().count()) % 1000000007 + 1;
        for (int s = 0; s < kStageCount; ++s) {
            const auto stage = Stage(s);
            if (!options.stage.empty() && parse_stage("--stage", options.stage) != stage) continue;
            stages_.push_back(stage);
            for (const smla_engine engine : contexts_.engines()) {
                const std::string demanded = contexts_.demanded(engine, stage);
                for (const std::string& name : kernel_names(stage, engine))
                    if (demanded.empty() || demanded == name) rows_.push_back({stage, engine, name});
            }
        }
    }

    void run() {
        Progress progress(1000);
        int64_t shown = 0;
        const auto start = Clock::now();
        const int64_t first = std::max<int64_t>(options_.problem, 0);
        for (int64_t index = first;; ++index) {
            for (const Stage stage : stages_) {
                const double gone = std::chrono::duration<double>(Clock::now() - start).count();
                if (index > first && gone >= options_.seconds) return;
                problem(stage, index);
                const int64_t now = std::min<int64_t>(int64_t(1000 * gone / options_.seconds), 999);
                progress.advance(std::max<int64_t>(now - shown, 0), std::string(stage_name(stage)));
                shown = std::max(shown, now);
            }
            if (options_.problem >= 0) return;
        }
    }

    const std::vector<Row>& rows() const { return rows_; }
    uint64_t seed() const { return seed_; }
    int64_t problems() const { return problems_; }

private:
    void problem(Stage stage, int64_t index) {
        Random seeds(seed_ * 0x9e3779b97f4a7c15u ^ (uint64_t(stage) << 56) ^ uint64_t(index));
        const std::unique_ptr<Problem> problem = make_problem(stage, seeds.next(), index);
        Random random(seeds.next());
        const Setting setting = contexts_.draw(random, index);
        const size_t budget = random.chance(0.7) ? 0 : size_t(random.log_between(1, 1 << 22));
        const bool twice = random.chance(0.3);
        ++problems_;
        for (Row& row : rows_) {
            if (row.stage != stage) continue;
            Context& context = contexts_.get(row.engine, setting);
            for (const Verdict& verdict : problem->kernels(context.env({}))) {
                if (verdict.kernel != row.kernel) continue;
                if (!verdict.refusal.empty()) {
                    row.refusal = verdict.refusal;
                    continue;
                }
                const std::string where = text(problem->description, "; ", context.description(),
                                               setting.batch_invariant ? ", batch-invariant" : "",
                                               budget ? text(", budget ", budget) : std::string());
                judge(row, attempt(*problem, context, row.kernel, budget, twice), where, index);
            }
        }
    }

    Comparison attempt(Problem& problem, Context& context, const std::string& kernel, size_t budget,
                       bool twice) {
        Comparison out;
        try {
            problem.memory.reset();
            problem.run(context, kernel, budget, out);
            problem.compare(kernel, out);
            if (!twice) return out;
            const std::vector<uint8_t> image = problem.memory.image();
            problem.memory.reset();
            problem.run(context, kernel, budget, out);
            out.check(problem.memory.image() == image, "gave other bits the second time");
        } catch (const Error& error) {
            out.check(false, text("threw ", error.what()));
        }
        return out;
    }

    void judge(Row& row, const Comparison& result, const std::string& problem, int64_t index) {
        ++row.ran;
        const bool miss = !(result.worst <= 1);
        if (miss && row.missed++ == 0) {
            row.first_miss = text(result.what, " (", problem, ")");
            row.reproduce = text("smla verify --seed ", seed_, " --stage ",
                                 std::string(stage_name(row.stage)), " --problem ", index);
        }
        if (result.worst < row.worst || (row.ran > 1 && result.worst == row.worst)) return;
        row.worst = result.worst;
        row.where = result.what;
        row.problem = problem;
    }

    Contexts contexts_;
    const StageCheckOptions& options_;
    uint64_t seed_;
    int64_t problems_ = 0;
    std::vector<Stage> stages_;
    std::vector<Row> rows_;
};

Document row_json(const Row& row) {
    Document out{{"stage", stage_name(row.stage)},
                 {"engine", engine_name(row.engine)},
                 {"kernel", row.kernel},
                 {"problems", row.ran}};
    if (row.ran == 0) {
        out["skipped"] = row.refusal;
        return out;
    }
    out["worst_share_of_limit"] = std::isfinite(row.worst) ? Document(row.worst) : Document();
    out["worst_at"] = row.where;
    out["worst_problem"] = row.problem;
    out["missed"] = row.missed;
    out["pass"] = row.missed == 0;
    if (row.missed) {
        out["first_miss"] = row.first_miss;
        out["reproduce"] = row.reproduce;
    }
    return out;
}

std::string rows_text(const std::vector<Row>& rows) {
    Table table({{"stage", "stage"},
                 {"engine", "engine"},
                 {"kernel", "kernel"},
                 {"problems", "problems"},
                 {"worst", "worst/limit", show_fixed(2)},
                 {"result", "result"},
                 {"of", "problem of the worst, or why it never ran"}});
    for (const Row& row : rows) {
        const std::string result = row.ran == 0 ? paint(Colour::yellow, "SKIP")
                                   : row.missed ? paint(Colour::red, "FAIL")
                                                : paint(Colour::green, "PASS");
        table.row({stage_name(row.stage), engine_name(row.engine), row.kernel, row.ran,
                   row.ran ? Document(row.worst) : Document(), result, row.ran ? row.problem : row.refusal});
    }
    std::string out = table.text();
    for (const Row& row : rows)
        if (row.missed)
            out += text(paint(Colour::red, "MISS "), std::string(stage_name(row.stage)), " ", row.kernel,
                        ", ", row.missed, " of ", row.ran, " problems: ", row.first_miss, "\n     ",
                        row.reproduce, "\n");
    return out;
}

}  // namespace

void add_stage_check_options(CLI::App& command, StageCheckOptions& options) {
    constexpr const char* group = "Without --golden: stages on random problems";
    command.add_option("--seconds", options.seconds, "How long; every stage runs at least once")
        ->check(positive_number())
        ->capture_default_str()
        ->group(group);
    command.add_option("--seed", options.seed, "Of all random numbers; 0: from the clock, and printed")
        ->check(whole_number(0, INT64_MAX))
        ->capture_default_str()
        ->group(group);
    command.add_option("--stage", options.stage, "Only this stage")->group(group);
    command.add_option("--problem", options.problem, "Only the problem of this number, as a miss names it")
        ->check(whole_number(0, INT64_MAX))
        ->group(group);
}

int verify_stages(const Tool& tool, const ContextOptions& context, const StageCheckOptions& options) {
    Verifier verifier(context, options);
    verifier.run();
    int64_t ran = 0, missed = 0, skipped = 0;
    Document rows = Document::array();
    for (const Row& row : verifier.rows()) {
        ran += row.ran;
        missed += row.missed;
        skipped += row.ran == 0;
        rows.push_back(row_json(row));
    }
    const bool pass = ran > 0 && missed == 0;
    if (tool.json())
        tool.print(Document{{"seed", verifier.seed()},
                            {"problems", verifier.problems()},
                            {"runs", ran},
                            {"missed", missed},
                            {"kernels", rows},
                            {"pass", pass}});
    else
        tool.print(text(rows_text(verifier.rows()), "seed ", verifier.seed(), ": ", verifier.problems(),
                        " problems, ", ran, " runs, ", missed, " misses, ", skipped, " kernels never ran: ",
                        pass ? paint(Colour::green, "pass") : paint(Colour::red, "FAIL"), "\n"));
    return pass ? kOk : kFailedCheck;
}

}  // namespace smla::cli
