// FlashMLA's prefill: both caches gathered into a workspace, combined rows over it, and the attention that
// the backend gives over pages.
#include "backends/maps/rows.h"
#include "engines/run.h"
#include "forward_world.h"

#include <algorithm>

namespace smla::test {
namespace {

constexpr int32_t kWidth = 20, kWindowTokens = 9;

template <Stage S>
void run_one(Context& context, ArgsOf<S> args) {
    args.struct_size = sizeof args;
    OwnedWorkspace workspace(context);
    run_stage<S>(args, context.env(workspace.at_least(stage_workspace<S>(args, context.env({}), 0))));
}

// The prefill part of a step as FlashMLA sees it: one workspace, both caches of each request side by side.
class GatheredPrefill {
public:
    GatheredPrefill(Context& context, const World& world)
        : context_(context), world_(world), ratio_(world.on.config.args.ratio) {
        decodes_ = number("swa.num_decodes");
        first_ = number("swa.num_decode_tokens");
        requests_ = number("swa.num_prefills");
        tokens_ = number("swa.num_prefill_tokens");
        lengths_ = field(*world.metadata, "swa.prefill_seq_lens");
        gathers_ = field(*world.metadata, "swa.prefill_gather_lens");
        if (requests_ == 0) return;
        entries_ = ratio_ ? *std::max_element(lengths_.begin(), lengths_.end()) / ratio_ : 0;
        stride_ = entries_ + *std::max_element(gathers_.begin(), gathers_.end());
        space_ = Floats(SMLA_F32, {requests_ * stride_, kWidth});
        for (int64_t r = 0; r < requests_; ++r) {
            const int64_t length = lengths_[size_t(r)], gathered = gathers_[size_t(r)];
            if (ratio_) gather(world.kv, kCompressed, r, 0, length / ratio_, r * stride_);
            gather(world.window, kWindow, r, length - gathered, gathered, r * stride_ + entries_);
        }
    }

    int64_t requests() const { return requests_; }
    int64_t tokens() const { return tokens_; }
    int64_t first() const { return first_; }

    Floats attend() {
        const bool listed = reads_selection(world_.on.config.kind());
        const int32_t topk = listed ? 16 : int32_t(entries_);
        Ints selected(tokens_, std::max(topk, 1)), rows(tokens_, topk + kWindowTokens), lens(tokens_, 1);
        for (int64_t t = 0; t < tokens_; ++t)
            for (int32_t c = 0; c < topk; ++c) selected.at(t, c) = listed ? world_.topk.at(first_ + t, c) : c;
        Ints starts(requests_ + 1, 1), lengths(requests_, 1), gathers(requests_, 1);
        for (int64_t r = 0; r <= requests_; ++r) starts.at(r) = world_.batch.starts[size_t(decodes_ + r)];
        for (int64_t r = 0; r < requests_; ++r) {
            lengths.at(r) = int32_t(lengths_[size_t(r)]);
            gathers.at(r) = int32_t(gathers_[size_t(r)]);
        }
        smla_combined_rows_args args{};
        args.window = kWindowTokens;
        args.ratio = ratio_;
        args.topk = topk;
        args.stride = int32_t(stride_);
        args.entries = int32_t(entries_);
        args.selected = selected.matrix();
        args.query_start_loc = starts.list();
        args.seq_lens = lengths.list();
        args.gather_lens = gathers.list();
        args.rows = rows.matrix();
        args.lens = lens.list();
        combined_rows(args);
        Floats out(SMLA_F32, {tokens_, 3, kWidth});
        smla_attend_args attend{};
        attend.softmax_scale = world_.on.config.args.softmax_scale;
        attend.q = slice(world_.args.q, 0, first_, first_ + tokens_);
        attend.primary.cache.data = space_.view().data;
        attend.primary.cache.format = SMLA_ROW_F32;
        attend.primary.cache.width = kWidth;
        attend.primary.cache.page_tokens = 1;
        attend.primary.cache.pages = requests_ * stride_;
        attend.primary.rows = rows.matrix();
        attend.primary.lengths = lens.list();
        attend.sink = world_.args.sink;
        attend.out = out.view();
        run_one<Stage::attend>(context_, attend);
        return out;
    }

private:
    int64_t number(const char* name) const { return field(*world_.metadata, name)[0]; }

    void gather(const PoisonedCache& cache, int group, int64_t r, int64_t start, int64_t count, int64_t to) {
        const Group& pages = world_.batch.groups[size_t(group)];
        const Ints starts({int32_t(start)}), cu({0, int32_t(count)});
        Ints table(1, pages.columns);
        for (int64_t c = 0; c < pages.columns; ++c)
            table.at(0, c) = pages.table[size_t((decodes_ + r) * pages.columns + c)];
        smla_gather_args args{};
        args.cache = cache.cache;
        args.block_table = table.matrix();
        args.starts = starts.list();
        args.cu = cu.list();
        args.out = slice(space_.view(), 0, to, to + count);
        run_one<Stage::gather>(context_, args);
    }

    Context& context_;
    const World& world_;
    int32_t ratio_;
    int64_t decodes_, first_, requests_, tokens_, entries_ = 0, stride_ = 0;
    std::vector<int64_t> lengths_, gathers_;
    Floats space_;
};

TEST(BackendGather, CombinedRowsOverAWorkspaceGiveTheSameAttention) {
    Context context({.struct_size = sizeof(smla_context_args), .version = SMLA_VERSION, .threads = 1});
    int compared = 0;
    for (const Backend* backend : {&kFlashMlaSparseDsv4, &kFlashMlaSparseDsv41})
        for (uint32_t seed = 300; seed < 360; ++seed) {
            const int32_t ratio = ratios(*backend)[seed % 3];
            SCOPED_TRACE(testing::Message() << backend->name << " ratio " << ratio << " seed " << seed);
            World world({.backend = backend, .args = small_args(*backend, ratio), .seed = seed});
            if (!world.batch.groups[kWindow].slots.empty()) continue;  // combined rows know no invalid tokens
            world.run();
            GatheredPrefill prefill(context, world);
            if (prefill.requests() == 0) continue;
            const Floats out = prefill.attend();
            // the same rows in another order: sums differ by roundings of 2^-24 of values below 1
            for (int64_t t = 0; t < prefill.tokens(); ++t)
                for (int64_t h = 0; h < 3; ++h)
                    for (int64_t d = 0; d < kWidth; ++d)
                        ASSERT_NEAR(out.at(t, h, d), world.out.at(prefill.first() + t, h, d), 1e-5);
            ++compared;
        }
    EXPECT_GT(compared, 30);
}

}  // namespace
}  // namespace smla::test
