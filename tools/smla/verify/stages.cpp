// smla verify without files: each problem is drawn for the kernel that ran the fewest, until the time is up
// and every kernel has its share.
#include "verify/stages.h"

#include "common.h"
#include "verify/contexts.h"
#include "verify/rows.h"

#include <CLI/CLI.hpp>

#include <chrono>
#include <cmath>

namespace smla::cli {

namespace {

using Clock = std::chrono::steady_clock;
using kit::Comparison;
using kit::Problem;
using kit::Random;

constexpr double kFloorOfAMinute = 200;
constexpr double kMostOvertime =
    4;  // multiple of --seconds, because on a busy machine the floor has priority
constexpr int kMostAttempts = 3000;  // attempts to draw a problem that a kernel supports

int64_t floor_of(const StageCheckOptions& options) {
    if (options.floor) return options.floor;
    return std::max<int64_t>(1, int64_t(kFloorOfAMinute * std::min(options.seconds, 60.) / 60));
}

// FNV-1a hash of a kernel's name, which is equal on every machine.
uint64_t hash(const std::string& name) {
    uint64_t out = 0xcbf29ce484222325u;
    for (const char c : name) out = (out ^ uint8_t(c)) * 0x100000001b3u;
    return out;
}

// Identifies a problem by the kernel that it was drawn for and a number, as printed for a miss.
struct ProblemId {
    std::string kernel;
    int64_t number;

    static ProblemId parse(const std::string& id) {
        const size_t slash = id.find('/');
        const std::string digits = slash == std::string::npos ? "" : id.substr(slash + 1);
        SMLA_CHECK(slash != 0 && !digits.empty() && digits.size() < 18 &&
                       digits.find_first_not_of("0123456789") == std::string::npos,
                   "--problem", id, "KERNEL/NUMBER, as printed for a miss");
        return {id.substr(0, slash), std::stoll(digits)};
    }
};

// A problem with its context and settings.
struct Case {
    std::unique_ptr<Problem> problem;
    Stage stage{};
    Setting setting{};
    size_t budget = 0;   // scratch budget in bytes; 0: none
    bool twice = false;  // the second run must give the same bits
};

class Verifier {
public:
    Verifier(const ContextOptions& context, const StageCheckOptions& options)
        : contexts_(context), options_(options), seed_(options.seed) {
        if (!seed_) seed_ = uint64_t(Clock::now().time_since_epoch().count()) % 1000000007 + 1;
        for (int s = 0; s < kStageCount; ++s) {
            const auto stage = Stage(s);
            if (!options.stage.empty() && parse_stage("--stage", options.stage) != stage) continue;
            for (const smla_engine engine : contexts_.engines()) {
                const std::string demanded = contexts_.demanded(engine, stage);
                for (const std::string& name : kernel_names(stage, engine))
                    if (demanded.empty() || demanded == name)
                        rows_.push_back({stage, engine, name, contexts_.lacks(engine, name)});
            }
        }
    }

    void run(int64_t floor) {
        Progress progress(1000);
        int64_t shown = 0;
        for (Row* row = fewest(); row; row = fewest()) {
            const bool enough = row->ran >= floor || seconds() >= kMostOvertime * options_.seconds;
            if (row->ran > 0 && enough && seconds() >= options_.seconds) break;
            run_on_those_behind(*row);
            const int64_t now = std::min<int64_t>(int64_t(1000 * seconds() / options_.seconds), 999);
            progress.advance(std::max<int64_t>(now - shown, 0), std::string(stage_name(row->stage)));
            shown = std::max(shown, now);
        }
        taken_ = seconds();
    }

    // Runs a problem on every kernel that supports it.
    void run(const ProblemId& id) {
        bool found = false;
        for (Row& row : rows_) {
            if (row.kernel != id.kernel) continue;
            SMLA_CHECK(!found, "--problem", id.kernel,
                       "a kernel of a single stage; select the stage with --stage");
            SMLA_CHECK(row.lacks.empty(), "--problem", id.kernel,
                       "a kernel that this machine can run (" + row.lacks + ")");
            found = true;
            const Case drawn = draw(row, id.number);
            if (!drawn.problem) continue;
            for (Row& each : rows_) run_on(each, drawn, id);
        }
        SMLA_CHECK(found, "--problem", id.kernel, "a kernel of --stage and --engine (see smla list)");
        taken_ = seconds();
    }

    const std::vector<Row>& rows() const { return rows_; }
    uint64_t seed() const { return seed_; }
    int64_t problems() const { return problems_; }
    double taken() const { return taken_; }

private:
    double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

    Row* fewest() {
        Row* out = nullptr;
        for (Row& row : rows_)
            if (row.lacks.empty() && !row.unreachable && (!out || row.ran < out->ran)) out = &row;
        return out;
    }

    void run_on_those_behind(Row& row) {
        const ProblemId id{row.kernel, row.drawn++};
        const Case drawn = draw(row, id.number);
        if (!drawn.problem) {
            row.unreachable = true;
            return;
        }
        const int64_t behind = row.ran;
        for (Row& each : rows_)
            if (each.stage == row.stage && each.ran <= behind) run_on(each, drawn, id);
    }

    // Draws problems until the kernel takes one. If it takes none of kMostAttempts, either the kernel refuses
    // too much or the generator never draws its shapes.
    Case draw(Row& row, int64_t number) {
        for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
            Random seeds(seed_ * 0x9e3779b97f4a7c15u ^ hash(row.kernel) ^ (uint64_t(row.stage) << 56) ^
                         (uint64_t(attempt) << 40) ^ uint64_t(number));
            const uint64_t seed = seeds.next();
            Random random(seeds.next());
            Case out{.stage = row.stage, .setting = contexts_.draw(random, number > 1)};
            const Env env = contexts_.get(row.engine, out.setting).env({});
            const auto wanted = [&](const Problem& problem) {
                row.refusal = refusal_of(problem, row.kernel, env);
                return row.refusal.empty();
            };
            out.problem = kit::make_problem(
                row.stage, {.seed = seed, .of_model = number < 4 || attempt % 2 == 1, .wanted = wanted});
            if (!out.problem || !wanted(*out.problem)) continue;
            out.budget = random.chance(0.7) ? 0 : size_t(random.log_between(1, 1 << 22));
            out.twice = random.chance(0.3);
            ++problems_;
            return out;
        }
        return {};
    }

    static std::string refusal_of(const Problem& problem, const std::string& kernel, const Env& env) {
        for (const Verdict& verdict : problem.kernels(env))
            if (verdict.kernel == kernel) return verdict.refusal;
        fail(SMLA_INTERNAL, "verify", kernel, "a kernel of the engine's table");
    }

    void run_on(Row& row, const Case& drawn, const ProblemId& id) {
        if (row.stage != drawn.stage || !row.lacks.empty()) return;
        Context& context = contexts_.get(row.engine, drawn.setting);
        row.refusal = refusal_of(*drawn.problem, row.kernel, context.env({}));
        if (!row.refusal.empty()) return;
        const std::string where = text(drawn.problem->description, "; ", context.description(),
                                       drawn.setting.batch_invariant ? ", batch-invariant" : "",
                                       drawn.budget ? text(", budget ", drawn.budget) : std::string());
        judge(row, attempt(drawn, context, row.kernel), where, id);
    }

    Comparison attempt(const Case& drawn, Context& context, const std::string& kernel) {
        Comparison out;
        Problem& problem = *drawn.problem;
        try {
            problem.memory.reset();
            problem.run(context, kernel, drawn.budget, out);
            problem.compare(kernel, out);
            if (!drawn.twice) return out;
            const std::vector<uint8_t> image = problem.memory.image();
            problem.memory.reset();
            problem.run(context, kernel, drawn.budget, out);
            out.check(problem.memory.image() == image, "gave other bits the second time");
        } catch (const Error& error) {
            if (error.status == SMLA_OUT_OF_MEMORY) throw;  // caused by the machine, not by the kernel
            out.check(false, text("threw ", error.what()));
        }
        return out;
    }

    void judge(Row& row, const Comparison& result, const std::string& problem, const ProblemId& id) {
        ++row.ran;
        const bool miss = !(result.worst <= 1);
        if (miss && row.missed++ == 0) {
            row.first_miss = text(result.what, " (", problem, ")");
            row.reproduce =
                text("smla verify --seed ", seed_, " --stage ", std::string(stage_name(row.stage)),
                     " --problem ", id.kernel, "/", id.number);
        }
        if (result.worst < row.worst || (row.ran > 1 && result.worst == row.worst)) return;
        row.worst = result.worst;
        row.where = result.what;
        row.problem = problem;
    }

    Contexts contexts_;
    const StageCheckOptions& options_;
    const Clock::time_point start_ = Clock::now();
    uint64_t seed_;
    int64_t problems_ = 0;
    double taken_ = 0;
    std::vector<Row> rows_;
};

}  // namespace

void add_stage_check_options(CLI::App& command, StageCheckOptions& options) {
    constexpr const char* group = "Without --golden: kernels on random problems";
    command
        .add_option("--seconds", options.seconds,
                    "Duration in seconds; up to 4 times as long until every kernel has run --floor problems")
        ->check(positive_number(kMostSeconds, "seconds"))
        ->capture_default_str()
        ->group(group);
    command
        .add_option("--floor", options.floor,
                    "Fewest problems per kernel, fewer are exit code 1; 0: 200 for 60 seconds or more, in\n"
                    "proportion for less")
        ->check(whole_number(0, INT32_MAX))
        ->capture_default_str()
        ->group(group);
    command
        .add_option("--seed", options.seed,
                    "Seed of all random numbers; 0: derived from the clock and printed")
        ->check(whole_number(0, INT64_MAX))
        ->capture_default_str()
        ->group(group);
    command.add_option("--stage", options.stage, "Run only this stage")->transform(any_case())->group(group);
    command
        .add_option("--problem", options.problem,
                    "Run only this problem, KERNEL/NUMBER, as printed for a miss")
        ->transform(any_case())
        ->group(group);
}

int verify_stages(const Tool& tool, const ContextOptions& context, const StageCheckOptions& options) {
    Verifier verifier(context, options);
    const bool all = options.problem.empty();
    const int64_t floor = all ? floor_of(options) : 0;
    if (all) verifier.run(floor);
    else verifier.run(ProblemId::parse(options.problem));
    int64_t ran = 0, missed = 0, skipped = 0, below = 0;
    Document rows = Document::array();
    for (const Row& row : verifier.rows()) {
        ran += row.ran;
        missed += row.missed;
        skipped += !row.lacks.empty();
        below += row.below(floor);
        rows.push_back(row_json(row, floor));
    }
    const bool pass = ran > 0 && missed == 0 && below == 0;
    if (tool.json())
        tool.print(Document{{"seed", verifier.seed()},
                            {"seconds", verifier.taken()},
                            {"problems", verifier.problems()},
                            {"runs", ran},
                            {"missed", missed},
                            {"floor", floor},
                            {"below_floor", below},
                            {"skipped", skipped},
                            {"kernels", rows},
                            {"pass", pass}});
    else
        tool.print(
            text(rows_text(verifier.rows(), floor), "seed ", verifier.seed(), ": ", verifier.problems(),
                 " problems, ", ran, " runs in ",
                 fmt::format("{:.1f} s, {:.0f} runs/s; ", verifier.taken(),
                             double(ran) / std::max(verifier.taken(), 1e-9)),
                 missed, " misses; ", below, " kernels below the floor of ", floor, " problems, ", skipped,
                 " skipped: ", pass ? paint(Colour::green, "pass") : paint(Colour::red, "FAIL"), "\n"));
    return pass ? kOk : kFailedCheck;
}

}  // namespace smla::cli
