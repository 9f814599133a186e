// The rules that a GPU's kernel applies to a batch that lies there, applied here in the kernel's order, give
// the bits of the host's build, over steps that share one object. tests/gpu holds the kernel to the same.
#include "serving.h"

#include "engines/metadata_job.h"

#include <cstring>
#include <limits>

namespace smla::test {
namespace {

constexpr int32_t kDirt = -77;

// What the kernel does, one request, part and token after the other, the last first.
void run_job(const MetadataJob& job) {
    for (int64_t t = job.max_tokens; t-- > 0;) {
        place_numbers(job, t);
        if (job.window_prefill_rows)
            for (int32_t c = 0; c < job.window; ++c)
                job.window_prefill_rows[t * job.window + c] = window_prefill_row(job, t, c);
        if (job.entry_prefill_rows)
            for (int64_t c = 0; c < job.entry_columns; ++c)
                job.entry_prefill_rows[t * job.entry_columns + c] = entry_prefill_row(job, t, c);
    }
    for (int64_t r = job.max_requests + 1; r-- > 0;) place_request(job, r);
    for (int64_t p = job.schedule_parts; p-- > 0;) place_schedule_part(job, p);
}

std::vector<int32_t> values(const Tensor& field) {
    const auto* from = static_cast<const int32_t*>(field.data);
    return from ? std::vector<int32_t>(from, from + element_count(field)) : std::vector<int32_t>();
}

// Fields of an i32 tensor that the job fills: those of the metadata's own memory.
bool is_filled(const std::string& name, const Tensor& field) {
    for (const char* other :
         {"plan.", "block_table", "slot_mapping", "req_id", "token_to_req", "is_valid", "decode_swa_indices",
          "c128a_global_decode", "indexer.", "dummy", "_tensor", "cache_lens"})
        if (name.find(other) != std::string::npos) return false;
    const bool number = field.ndim == 1 && field.shape[0] == 1 && name.find("prefill_") == std::string::npos;
    return field.dtype == SMLA_I32 && !(number && name.find("num_") != std::string::npos);
}

void check(const Backend& backend, const BackendArgs& args, uint32_t seed) {
    const BackendInstance on = instance(backend, args);
    const auto metadata = on.metadata();
    Random random(seed);
    int filled = 0;
    for (int step = 0; step < 12; ++step) {
        SCOPED_TRACE(testing::Message() << backend.name << " ratio " << args.ratio << " step " << step);
        Batch batch = random_step(random, args);
        if (args.family != SMLA_FAMILY_DSA && (args.plan_groups & SMLA_GROUP_INDEX))
            set_table(batch, kIndex, args.max_seq_len, 64);
        const PlanBatch view = batch.view();
        metadata->build(view);
        if (metadata->tokens() == 0) continue;  // a GPU takes steps of one token and more
        std::map<std::string, std::vector<int32_t>> expected;
        for (const char* name : metadata->names()) {
            const Tensor& field = *metadata->find(name);
            if (is_filled(name, field)) expected[name] = values(field);
        }
        // The host's later builds rely on what its earlier ones left, so the job writes to an object of its
        // own.
        const auto there = on.metadata();
        there->build(view);
        MetadataJob job = there->job(view, there->plan());
        job.starts = static_cast<const int32_t*>(view.query_start_loc.data);
        // every element that the kernel must write, dirty
        for (const auto& [name, kept] : expected)
            std::fill_n(static_cast<int32_t*>(there->find(name)->data), kept.size(), kDirt);
        run_job(job);
        for (const auto& [name, kept] : expected) {
            const auto now = values(*there->find(name));
            if (now == std::vector<int32_t>{kDirt}) continue;  // a number: the host's
            ASSERT_EQ(now, kept) << name;
            filled += !kept.empty();
        }
    }
    EXPECT_GT(filled, args.family != SMLA_FAMILY_DSA ? 12 * 4 : 12 * 2);
}

TEST(MetadataJob, TheSameBitsAsTheHost) {
    for (const Backend* backend : all_backends())
        for (const int32_t ratio : ratios(*backend)) {
            BackendArgs args = backend_args(backend->family, ratio);
            args.kv_cache_dtype = backend->family == SMLA_FAMILY_DSA ? "fp8_ds_mla" : "auto";
            for (uint32_t seed = 1; seed <= 6; ++seed) {
                args.topk = int32_t(seed * 300);
                args.device = describe_device("cpu");
                args.device.multiprocessors = 132;  // schedules of many parts
                args.heads = int32_t(seed * seed);
                check(*backend, args, seed);
                if (testing::Test::HasFailure()) return;
            }
        }
}

// Numbers that the host would refuse are read nowhere else than within the batch, and their tokens get
// nothing.
TEST(MetadataJob, WrongLengthsArePadding) {
    const int32_t starts[] = {0, 2, 3, 6}, lengths[] = {1, std::numeric_limits<int32_t>::max(), 5};
    int32_t limit[8], seq[4] = {}, loc[5] = {}, context[8], contexts[4], cu[5];
    MetadataJob job;
    job.tokens = 7;
    job.requests = 3;
    job.max_tokens = 8;
    job.max_requests = 4;
    job.max_seq_len = 100;
    job.starts = starts;
    job.lengths = lengths;
    job.row_limit = limit;
    job.seq_lens = seq;
    job.query_start_loc = loc;
    job.token_context = context;
    job.context_lens = contexts;
    job.new_starts = cu;
    run_job(job);
    constexpr int32_t kAll = std::numeric_limits<int32_t>::max();
    EXPECT_EQ(std::vector<int32_t>(limit, limit + 8),
              (std::vector<int32_t>{0, 0, 0, kAll, kAll, kAll, 0, 0}));
    EXPECT_EQ(std::vector<int32_t>(seq, seq + 4), (std::vector<int32_t>{0, 0, 5, 0}));
    EXPECT_EQ(std::vector<int32_t>(loc, loc + 5), (std::vector<int32_t>{0, 2, 3, 6, 0}));
    EXPECT_EQ(std::vector<int32_t>(contexts, contexts + 4), (std::vector<int32_t>{0, 0, 2, 0}));
    EXPECT_EQ(std::vector<int32_t>(context, context + 8), (std::vector<int32_t>{0, 0, 0, 2, 2, 2, 0, 0}));
    EXPECT_EQ(std::vector<int32_t>(cu, cu + 5), (std::vector<int32_t>{0, 2, 3, 6, 0}));
}

}  // namespace
}  // namespace smla::test
