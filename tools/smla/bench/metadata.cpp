// smla bench --case metadata: time to build a backend's metadata for a step of many decodes.
#include "backends/metadata/metadata.h"
#include "backends/registry.h"
#include "measure.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

namespace smla::cli {

namespace {

// The memory of a batch of one-token requests.
struct Decodes {
    std::vector<int32_t> starts, lengths;
    struct Group {
        std::vector<int32_t> table;
        std::vector<int64_t> slots;
        PlanGroup view{};
    } primary, window, compressed;
    PlanBatch batch{};

    Decodes(int32_t requests, int32_t context)
        : starts(size_t(requests) + 1), lengths(size_t(requests), context) {
        std::iota(starts.begin(), starts.end(), 0);
        batch.struct_size = sizeof batch;
        batch.query_start_loc = make_tensor(starts.data(), SMLA_I32, {requests + 1});
        batch.seq_lens = make_tensor(lengths.data(), SMLA_I32, {requests});
    }
    void add(Group& group, int64_t rows, int32_t page_tokens, bool slots) {
        const int64_t requests = batch.seq_lens.shape[0], columns = ceil_div(rows, page_tokens);
        group.table.resize(size_t(requests * columns));
        std::iota(group.table.begin(), group.table.end(), 0);
        std::shuffle(group.table.begin(), group.table.end(), std::mt19937(1));
        group.view.block_table = make_tensor(group.table.data(), SMLA_I32, {requests, columns});
        group.view.page_tokens = page_tokens;
        if (!slots) return;
        group.slots.assign(size_t(requests), 7);
        group.view.slots = make_tensor(group.slots.data(), SMLA_I64, {requests});
    }
};

BackendArgs metadata_args(const Backend& backend, const MetadataCase& test) {
    const bool shared = backend.family == SMLA_FAMILY_HYBRID_SHARED;
    BackendArgs args{};
    args.struct_size = sizeof args;
    args.family = backend.family;
    args.heads = shared ? 64 : 128;
    args.topk = shared ? 512 : 2048;
    args.ratio = test.ratio;
    args.max_tokens = args.max_requests = test.requests;
    args.max_seq_len = test.context;
    args.softmax_scale = 1;
    args.kv_cache_dtype = "fp8_ds_mla";
    return args;
}

}  // namespace

Measured Bench::metadata(const MetadataCase& test) {
    const Backend& backend = find_backend(test.backend);
    const BackendInstance on(backend, resolve_config(metadata_args(backend, test)));
    const auto metadata = on.metadata();
    Decodes step(test.requests, test.context);
    if (!on.config.hybrid()) {
        step.add(step.primary, test.context, backend.page_tokens, true);
        step.batch.primary = step.primary.view;
    } else {
        step.add(step.window, test.context, on.config.args.window_page_tokens, true);
        step.batch.window = step.window.view;
        if (test.ratio > 0) {
            step.add(step.compressed, test.context / test.ratio, backend.page_tokens / test.ratio, false);
            step.batch.compressed = step.compressed.view;
        }
    }
    Measured out{.stage = "metadata", .name = test.name, .kernel = test.backend};
    out.error = std::numeric_limits<double>::quiet_NaN();
    constexpr int32_t kSteps = 64;
    // the host builds it for every engine; each step is one token longer
    out.set(Stopwatch(options_, context_, Stopwatch::Clock::host).repeats([&](int64_t i) {
        std::fill(step.lengths.begin(), step.lengths.end(), test.context - kSteps + int32_t(i % kSteps));
        metadata->build(step.batch);
    }));
    return out;
}

std::vector<MetadataCase> metadata_cases(bool quick) {
    const int32_t requests = quick ? 64 : 512, context = quick ? 16384 : 131072;
    const auto named = [&](const char* what, const char* backend, int32_t ratio) {
        return MetadataCase{text(what, ", ", requests, " requests x ", context), backend, requests, context,
                            ratio};
    };
    constexpr const char *v4 = "FLASHMLA_SPARSE_DSV4", *v41 = "FLASHMLA_SPARSE_DSV41",
                         *flashinfer =
                             "FLASHINFER_MLA_SPARSE_DSV41";  // also includes the lengths of both lists
    return {named("V3.2", "FLASHMLA_SPARSE", 0),
            named("V4 window", v4, 0),
            named("V4 ratio 4", v4, 4),
            named("V4 ratio 128", v4, 128),
            named("V4.1 window", v41, 0),
            named("V4.1 ratio 1", v41, 1),
            named("V4.1 ratio 2", v41, 2),
            named("V4.1 FlashInfer window", flashinfer, 0),
            named("V4.1 FlashInfer ratio 1", flashinfer, 1),
            named("V4.1 FlashInfer ratio 2", flashinfer, 2)};
}

}  // namespace smla::cli
