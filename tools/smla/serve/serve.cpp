#include "serve.h"

#include "backends/registry.h"
#include "common.h"
#include "run.h"

#include <algorithm>
#include <cmath>

namespace smla::cli {

namespace {

// The two sides sum a few hundred f32 products in different orders. Their records are the same bits.
constexpr double kLimit = 1e-4;

struct Case {
    const Backend* backend;
    int32_t ratio;
};

std::vector<Case> cases(const std::string& name) {
    std::vector<Case> out;
    for (const Backend* backend : all_backends()) {
        if (name != "all" && backend != &find_backend(name)) continue;
        if (backend->family == SMLA_FAMILY_DSA) out.push_back({backend, 0});
        else
            for (const int32_t ratio : {0, 4, 128}) out.push_back({backend, ratio});
    }
    return out;
}

struct Plan {
    std::vector<TraceRequest> trace;
    int32_t longest = 0, total = 0;  // tokens
};

// Output of every token of each request, computed alone by the reference engine: in chunks, from an empty
// cache.
std::vector<std::vector<float>> alone(const ServeSpec& serving, const Plan& plan) {
    constexpr int32_t kChunk = 64;
    smla_context_args engine{};
    engine.struct_size = sizeof engine;
    engine.version = SMLA_VERSION;
    engine.engine = SMLA_ENGINE_REFERENCE;
    Context context(engine);
    ServeSpec spec = serving;
    spec.max_tokens = kChunk;
    spec.max_requests = 1;
    spec.speculative_tokens = 0;
    std::vector<int32_t> pages;
    std::vector<std::vector<int32_t>> own;
    for (const ServeGroup& group : ServeModel::groups(spec)) {
        own.emplace_back();
        for (int32_t p = 0; p < int32_t(group.pages(plan.longest + group.page_rows * group.tokens_per_row));
             ++p)
            own.back().push_back(p);
        pages.push_back(int32_t(own.back().size()));
    }
    std::vector<std::vector<float>> out;
    ServeModel model(context, spec, pages);
    for (size_t id = 0; id < plan.trace.size(); ++id) {
        out.emplace_back();
        for (int32_t at = 0; at < plan.trace[id].total(); at += kChunk) {
            ServeSlice slice{.computed = at, .pages = &own};
            for (int32_t i = at; i < std::min(at + kChunk, plan.trace[id].total()); ++i)
                slice.keys.push_back(token_key(plan.trace[id], int32_t(id), i));
            const std::vector<float> rows = model.step({slice});
            out.back().insert(out.back().end(), rows.begin(), rows.end());
        }
    }
    return out;
}

struct Outcome {
    std::string record;
    ServeCounts counts;
    int64_t compared = 0;
    double error = 0;  // largest difference, relative to the row's root mean square
};

Outcome run_case(const Case& each, const ServeOptions& options, const Plan& plan, Context& context) {
    ServeSpec spec{.backend = each.backend, .ratio = each.ratio, .kv_dtype = options.kv_dtype};
    spec.max_tokens = options.step_tokens;
    spec.max_requests = options.requests;
    spec.max_seq_len = plan.longest;
    spec.speculative_tokens = 3;
    ServeLimits limits{options.step_tokens, options.requests, {}, options.seed};
    const std::vector<ServeGroup> groups = ServeModel::groups(spec);
    for (const ServeGroup& group : groups) {
        const int64_t pages = group.pages(plan.total) * options.pool_percent / 100;
        limits.pages.push_back(int32_t(std::max(pages, group.pages(plan.longest + 256))));
    }
    const std::vector<std::vector<float>> expected = alone(spec, plan);
    ServeModel model(context, spec, limits.pages);
    ServeRun run(model, groups, plan.trace, limits);
    Outcome out;
    out.record = find_format(model.instance().format)->name;
    const auto see = [&](int32_t id, int32_t position, const float* row) {
        const float* want = expected[size_t(id)].data() + int64_t(position) * model.width();
        double worst = 0, square = 0;
        for (int64_t i = 0; i < model.width(); ++i) {
            const double difference = std::fabs(double(row[i]) - double(want[i]));
            worst = std::isnan(difference) ? INFINITY : std::max(worst, difference);
            square += double(want[i]) * double(want[i]);
        }
        const double rms = std::sqrt(square / double(model.width()));
        out.error = std::max(out.error, worst / (rms > 0 ? rms : 1));
        ++out.compared;
    };
    while (run.step(see)) {
    }
    out.counts = run.counts();
    return out;
}

}  // namespace

void ServeOptions::add(CLI::App& command) {
    constexpr const char* group = "A serving run, instead of a checkpoint";
    const auto option = [&](const char* name, auto& value, const char* text) {
        return command.add_option(name, value, text)->capture_default_str()->group(group);
    };
    option("--serve", trace,
           "Trace of requests, CSV: arrival,prompt,output,shared (examples/traces/mixed.csv)");
    option("--backend", backend, "all, or an attention backend by name");
    option("--kv-dtype", kv_dtype, "kv_cache_dtype of the backend");
    option("--step-tokens", step_tokens, "Tokens of a step, at most")->check(whole_number(4, 1 << 16));
    option("--requests", requests, "Requests of a step, at most")->check(whole_number(1, 1 << 10));
    option("--pool-percent", pool_percent, "Pages of the pool, in percent of what all requests need at once")
        ->check(whole_number(1, 1000));
    option("--seed", seed, "Seed of the speculative tokens and of which are rejected");
}

int serve(const Tool& tool, const ServeOptions& options, const ContextOptions& context_options) {
    Plan plan{.trace = read_trace(options.trace)};
    for (const TraceRequest& request : plan.trace) {
        plan.longest = std::max(plan.longest, request.total());
        plan.total += request.total();
    }
    Context context = context_options.create();
    SMLA_CHECK(context.device().type() == SMLA_CPU, "--engine", context.description(),
               "cpu or reference: a replay keeps inputs and caches on the host");
    Table table(
        {{"backend", "backend"},
         {"ratio", "ratio"},
         {"record", "record", {}, 4},
         {"steps", "steps", {}, 2},
         {"tokens", "tokens", {}, 2},
         {"decodes", "decodes", {}, 1},
         {"rejected", "rejected", {}, 1},
         {"preempted", "preempted", {}, 1},
         {"shared", "shared", {}, 1},
         {"compared", "compared", {}, 3},
         {"error", "error", [](const Document& cell) { return fmt::format("{:.1e}", cell.get<double>()); }}});
    const std::vector<Case> all = cases(options.backend);
    bool pass = true;
    Progress progress(int64_t(all.size()));
    for (const Case& each : all) {
        const Outcome out = run_case(each, options, plan, context);
        const ServeCounts& counts = out.counts;
        table.row({each.backend->name, each.ratio, out.record, counts.steps, counts.tokens, counts.decodes,
                   counts.rejected, counts.preempted, counts.shared, out.compared, out.error});
        pass = pass && out.error <= kLimit;
        progress.advance(1, each.backend->name);
    }
    if (tool.json())
        tool.print(Document{{"runs_on", context.description()},
                            {"trace", options.trace},
                            {"requests", plan.trace.size()},
                            {"tolerance", kLimit},
                            {"pass", pass},
                            {"runs", table.json()}});
    else
        tool.print(fmt::format(
            "{} requests of {} tokens, {}; every token compared with its request run alone\n\n{}\n{}\n",
            plan.trace.size(), plan.total, context.description(), table.text(),
            pass ? paint(Colour::green, "all agree") : paint(Colour::red, "SOME DIFFER")));
    return pass ? kOk : kFailedCheck;
}

}  // namespace smla::cli
