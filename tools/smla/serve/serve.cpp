#include "serve.h"

#include "common.h"

#include <CLI/CLI.hpp>

namespace smla::cli {

void ServeOptions::add(CLI::App& command) {
    const auto option = [&](const char* name, auto& value, const char* text) {
        return command.add_option(name, value, text)->capture_default_str()->group(kGroup);
    };
    option("--serve", trace,
           "Trace of requests, CSV: arrival,prompt,output,shared (examples/traces/mixed.csv)");
    option("--backend", backend, "all, or an attention backend by name");
    option("--kv-dtype", settings.kv_dtype, "kv_cache_dtype of the backend")->transform(any_case());
    option("--step-tokens", settings.step_tokens, "Tokens of a step, at most")
        ->check(whole_number(4, 1 << 16));
    option("--requests", settings.requests, "Requests of a step, at most")->check(whole_number(1, 1 << 10));
    option("--pool-percent", settings.pool_percent,
           "Pages of the pool, in percent of what all requests need at once")
        ->check(whole_number(1, 1000));
    option("--seed", seed, "Seed of the speculative tokens and of which are rejected")
        ->check(whole_number(0, INT64_MAX));
}

int serve(const Tool& tool, const ServeOptions& options, const ContextOptions& context_options) {
    check_cache_type("--kv-dtype", options.settings.kv_dtype);
    const std::vector<TraceRequest> trace = read_trace(options.trace);
    int64_t total = 0;
    for (const TraceRequest& request : trace) total += request.total();
    Context context = context_options.create(tool);
    const auto scientific = [](const Document& cell) { return fmt::format("{:.1e}", cell.get<double>()); };
    Table table({{"backend", "backend"},
                 {"ratio", "ratio"},
                 {"lists", "lists", {}, 4},
                 {"record", "record", {}, 4},
                 {"steps", "steps", {}, 2},
                 {"tokens", "tokens", {}, 2},
                 {"decodes", "decodes", {}, 1},
                 {"rejected", "rejected", {}, 1},
                 {"preempted", "preempted", {}, 1},
                 {"shared", "shared", {}, 1},
                 {"compared", "compared", {}, 3},
                 {"restricted", "restricted", {}, 4},
                 {"error", "error", scientific},
                 {"limit", "limit", scientific, 6}});
    const std::vector<ServeCase> all = serve_cases(options.backend);
    bool pass = true;
    Progress progress(int64_t(all.size()));
    for (const ServeCase& each : all) {
        const ServeCheck check(each, options.settings, trace, context.device());
        const ServeOutcome out = check.run(context, options.seed);
        const ServeCounts& counts = out.counts;
        table.row({each.backend->name, each.ratio, out.lists.empty() ? Document() : Document(out.lists),
                   out.record, counts.steps, counts.tokens, counts.decodes, counts.rejected, counts.preempted,
                   counts.shared, out.compared, each.indexed ? Document(out.restricted) : Document(),
                   out.error, out.limit});
        pass = pass && out.error <= out.limit;
        progress.advance(1, each.backend->name);
    }
    if (tool.json())
        tool.print(Document{{"runs_on", context.description()},
                            {"trace", options.trace},
                            {"requests", trace.size()},
                            {"pass", pass},
                            {"runs", table.json()}});
    else
        tool.print(fmt::format(
            "{} requests of {} tokens, {}; every token compared with its request run alone\n\n{}\n{}\n",
            trace.size(), total, context.description(), table.text(),
            pass ? paint(Colour::green, "all agree") : paint(Colour::red, "SOME DIFFER")));
    return pass ? kOk : kFailedCheck;
}

}  // namespace smla::cli
