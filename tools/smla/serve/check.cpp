#include "check.h"

#include "backends/gate.h"
#include "backends/registry.h"
#include "names.h"

#include <algorithm>
#include <cmath>

namespace smla::cli {

namespace {

// Returns the output of every token of each request, computed alone by the reference engine in chunks, from
// an empty cache.
std::vector<std::vector<float>> alone(ServeSpec spec, const std::vector<TraceRequest>& trace,
                                      const std::vector<PlainLists>& lists, int32_t longest) {
    constexpr int32_t kChunk = 64;
    smla_context_args engine{};
    engine.struct_size = sizeof engine;
    engine.version = SMLA_VERSION;
    engine.engine = SMLA_ENGINE_REFERENCE;
    Context context(engine);
    spec.max_tokens = kChunk;
    spec.max_requests = 1;
    spec.speculative_tokens = 0;
    std::vector<int32_t> pages;
    std::vector<std::vector<int32_t>> own;
    for (const ServeGroup& group : ServeModel::groups(spec)) {
        own.emplace_back();
        for (int32_t p = 0; p < int32_t(group.pages(longest + group.page_rows * group.tokens_per_row)); ++p)
            own.back().push_back(p);
        pages.push_back(int32_t(own.back().size()));
    }
    std::vector<std::vector<float>> out;
    ServeModel model(context, spec, pages);
    for (size_t id = 0; id < trace.size(); ++id) {
        out.emplace_back();
        for (int32_t at = 0; at < trace[id].total(); at += kChunk) {
            ServeSlice slice{.computed = at, .pages = &own};
            if (spec.indexed) slice.lists = &lists[id].of_source;
            for (int32_t i = at; i < std::min(at + kChunk, trace[id].total()); ++i)
                slice.keys.push_back(token_key(trace[id], int32_t(id), i));
            const std::vector<float> rows = model.step({slice});
            out.back().insert(out.back().end(), rows.begin(), rows.end());
        }
    }
    return out;
}

}  // namespace

std::vector<ServeCase> serve_cases(const std::string& name) {
    std::vector<ServeCase> out;
    for (const Backend* backend : all_backends()) {
        if (lower_case(name) != "all" && backend != &find_backend(name)) continue;
        for (const int32_t ratio : find_family(backend->family)->ratios) {
            out.push_back({backend, ratio});
            if (backend->family == SMLA_FAMILY_HYBRID_SHARED && ratio > 0)
                out.push_back({backend, ratio, true});
        }
    }
    return out;
}

ServeCheck::ServeCheck(const ServeCase& each, const ServeSettings& settings,
                       const std::vector<TraceRequest>& trace, const Device& device)
    : spec_{.backend = each.backend,
            .ratio = each.ratio,
            .indexed = each.indexed,
            .kv_dtype = settings.kv_dtype,
            .device = device_info(device)},
      settings_(settings),
      trace_(trace) {
    for (const TraceRequest& request : trace) {
        longest_ = std::max(longest_, request.total());
        total_ += request.total();
    }
    spec_.max_tokens = settings.step_tokens;
    spec_.max_requests = settings.requests;
    spec_.max_seq_len = longest_;
    spec_.speculative_tokens = 3;
    for (size_t id = 0; each.indexed && id < trace.size(); ++id) {
        std::vector<uint64_t> text;
        for (int32_t i = 0; i < trace[id].total(); ++i) text.push_back(token_key(trace[id], int32_t(id), i));
        lists_.push_back(plain_lists(text, each.ratio, kServeTopk));
    }
    alone_ = alone(spec_, trace_, lists_, longest_);
}

ServeOutcome ServeCheck::run(Context& context, uint64_t seed) const {
    ServeLimits limits{settings_.step_tokens, settings_.requests, {}, seed};
    const std::vector<ServeGroup> groups = ServeModel::groups(spec_);
    for (const ServeGroup& group : groups) {
        const int64_t pages = group.pages(total_) * settings_.pool_percent / 100;
        limits.pages.push_back(int32_t(std::max(pages, group.pages(longest_ + 256))));
    }
    ServeModel model(context, spec_, limits.pages);
    ServeRun run(model, groups, trace_, limits);
    ServeOutcome out;
    out.record = record_names(*spec_.backend, model.instance().config);
    const bool by_loops = context.engine() == SMLA_ENGINE_REFERENCE ||
                          context.env({}).demanded[size_t(Stage::compress)] == "cpu_generic_compress";
    const bool computed = spec_.ratio > 0 && !by_loops;
    if (computed && find_format(model.instance().entry_format)->scale != ScaleKind::none)
        out.limit = kServeCodeLimit;
    if (reads_selection(model.instance().config.kind())) out.lists = spec_.indexed ? "in blocks" : "given";
    const auto see = [&](int32_t id, int32_t position, const float* row) {
        const float* want = alone_[size_t(id)].data() + int64_t(position) * model.width();
        double worst = 0, square = 0;
        for (int64_t i = 0; i < model.width(); ++i) {
            const double difference = std::fabs(double(row[i]) - double(want[i]));
            worst = std::isnan(difference) ? INFINITY : std::max(worst, difference);
            square += double(want[i]) * double(want[i]);
        }
        const double rms = std::sqrt(square / double(model.width()));
        out.error = std::max(out.error, worst / (rms > 0 ? rms : 1));
        ++out.compared;
        out.restricted += spec_.indexed && lists_[size_t(id)].restricted[size_t(position)];
    };
    while (run.step(see)) {
    }
    out.counts = run.counts();
    return out;
}

}  // namespace smla::cli
