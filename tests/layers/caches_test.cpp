// The caches of a step of a layer: what does not fit the layer or its plan is refused under the step's names,
// before anything is written.
#include "layer_of_kind.h"
#include "layers/cache_layout.h"

#include <algorithm>
#include <array>
#include <functional>

namespace smla::layers_test {
namespace {

constexpr int32_t kTokens = 20, kPage = 8, kPages = 4;

struct GroupOfStep {
    int32_t bit;
    const char* name;
    smla_layer_cache smla_layer_step::*cache;
    smla_plan_group smla_plan_batch::*planned;
};
constexpr GroupOfStep kGroups[] = {
    {SMLA_GROUP_PRIMARY, "primary", &smla_layer_step::primary, &smla_plan_batch::primary},
    {SMLA_GROUP_WINDOW, "window", &smla_layer_step::window, &smla_plan_batch::window},
    {SMLA_GROUP_COMPRESSED, "compressed", &smla_layer_step::compressed, &smla_plan_batch::compressed},
    {SMLA_GROUP_INDEX, "index", &smla_layer_step::index, &smla_plan_batch::index},
    {SMLA_GROUP_STATE, "state", &smla_layer_step::state, &smla_plan_batch::state},
    {SMLA_GROUP_INDEX_STATE, "index_state", &smla_layer_step::index_state, &smla_plan_batch::index_state}};

// One request's first tokens. All that a step may write is kept under `memory`.
class FirstStep {
public:
    explicit FirstStep(const LayerOfKind& layer) : layer_(layer) {
        make_plan();
        for (const CacheNeed& need : cache_needs(layer.config(), layer.index(), {}))
            for (const GroupOfStep& group : kGroups)
                if (group.bit == need.group) make_cache(step.*group.cache, need);
        step.plan = plan_;
        step.hidden = floats(hidden_);
        step.out = floats(out_);
        if (layer.info.kind == SMLA_LAYER_DSA_SHARED) {
            topk_.assign(size_t(kTokens) * 6, -1);
            for (int32_t t = 0; t < kTokens; ++t) topk_[size_t(t) * 6] = 0;
            step.forced_topk = make_tensor(topk_.data(), SMLA_I32, {kTokens, 6});
        }
        size_t bytes = 0;
        EXPECT_EQ(smla_layer_workspace_size(layer.get(), &step, 0, &bytes), SMLA_OK) << smla_last_error();
        scratch_.resize(bytes / sizeof(Line) + 1);
        workspace = {scratch_.data(), bytes};
        EXPECT_EQ(smla_workspace_init(layer.context(), workspace, nullptr), SMLA_OK) << smla_last_error();
    }
    ~FirstStep() { smla_plan_destroy(plan_); }
    FirstStep(const FirstStep&) = delete;

    // The field that is refused; "" if the step ran.
    std::string forward(const smla_layer_step& with) const {
        if (smla_layer_forward(layer_.get(), &with, 0, workspace, nullptr) == SMLA_OK) return "";
        smla_error error{};
        smla_last_error_info(&error);
        return error.field;
    }
    // Whether nothing has been written since the step was made.
    bool untouched() const {
        for (const std::vector<uint8_t>& cache : caches_)
            for (const uint8_t byte : cache)
                if (byte != 0) return false;
        return std::all_of(out_.begin(), out_.end(), [](float value) { return value == 7; });
    }

    smla_layer_step step{.struct_size = sizeof step};
    smla_workspace workspace{};

private:
    static Tensor floats(std::vector<float>& values) {
        return make_tensor(values.data(), SMLA_F32, {kTokens, kHidden});
    }
    void make_plan() {
        smla_plan_args args = layer_.plan_args();
        args.max_tokens = kTokens;
        ASSERT_EQ(smla_plan_create(&args, &plan_), SMLA_OK) << smla_last_error();
        smla_plan_batch batch{.struct_size = sizeof batch};
        batch.query_start_loc = make_tensor(starts_.data(), SMLA_I32, {2});
        batch.seq_lens = make_tensor(&starts_[1], SMLA_I32, {1});
        for (const GroupOfStep& group : kGroups)
            if (args.groups & group.bit) {
                (batch.*group.planned).block_table = make_tensor(table_.data(), SMLA_I32, {1, kPages});
                (batch.*group.planned).page_tokens = kPage;
            }
        ASSERT_EQ(smla_plan_build(plan_, &batch), SMLA_OK) << smla_last_error();
    }
    void make_cache(smla_layer_cache& out, const CacheNeed& need) {
        out.cache.format = need.format;
        out.cache.width = need.width;
        out.cache.pages = kPages;
        out.cache.page_tokens = kPage;
        caches_.emplace_back(size_t(kPages) * find_format(need.format)->page_bytes(need.width, kPage));
        out.cache.data = caches_.back().data();
        out.block_table = make_tensor(table_.data(), SMLA_I32, {1, kPages});
    }

    struct alignas(64) Line {
        std::array<char, 64> bytes;
    };
    const LayerOfKind& layer_;
    smla_plan* plan_ = nullptr;
    std::array<int32_t, 2> starts_{0, kTokens};
    std::array<int32_t, kPages> table_{2, 0, 3, 1};
    std::vector<float> hidden_ = std::vector<float>(size_t(kTokens) * kHidden, 0.5f);
    std::vector<float> out_ = std::vector<float>(size_t(kTokens) * kHidden, 7.0f);
    std::vector<int32_t> topk_;
    std::deque<std::vector<uint8_t>> caches_;
    std::vector<Line> scratch_;
};

template <class Test>
void with_every_kind(const Test& test) {
    for (const KindOfLayer& kind : kKinds) {
        SCOPED_TRACE(kind.name);
        const LayerOfKind layer(kind);
        test(layer, FirstStep(layer));
    }
}

// The step, changed, is refused for `field`.
void expect_refused(const FirstStep& first, const std::string& field,
                    const std::function<void(smla_layer_step&)>& spoil) {
    smla_layer_step spoilt = first.step;
    spoil(spoilt);
    EXPECT_EQ(first.forward(spoilt), field);
}

TEST(LayerCaches, ThatDoNotFitAreRefusedBeforeAnythingIsWritten) {
    with_every_kind([&](const LayerOfKind&, const FirstStep& first) {
        for (const GroupOfStep& group : kGroups) {
            if ((first.step.*group.cache).cache.format == SMLA_FORMAT_NONE) continue;
            const std::string name = text("step.", group.name, ".cache");
            const auto refused = [&](const char* member, auto spoil) {
                expect_refused(first, name + member,
                               [&](smla_layer_step& step) { spoil((step.*group.cache).cache); });
            };
            refused(".format", [](smla_cache& cache) { cache = {}; });
            refused(".data", [](smla_cache& cache) { cache.data = nullptr; });
            refused(".width", [](smla_cache& cache) { cache.width += 4; });
            refused(".pages", [](smla_cache& cache) { cache.pages = -1; });
            refused(".page_tokens", [](smla_cache& cache) { cache.page_tokens /= 2; });
            refused(".page_rows", [](smla_cache& cache) { cache.page_rows = 2 * kPage; });
        }
        EXPECT_TRUE(first.untouched());
        EXPECT_EQ(first.forward(first.step), "") << smla_last_error();
        EXPECT_FALSE(first.untouched());
    });
}

TEST(LayerCaches, OfGroupsThatTheLayerLacksAreNotLookedAt) {
    with_every_kind([&](const LayerOfKind& layer, const FirstStep& first) {
        smla_layer_step step = first.step;
        for (const GroupOfStep& group : kGroups)
            if (!(layer.info.plan_groups & group.bit)) {
                smla_cache& cache = (step.*group.cache).cache;
                cache.format = 99;
                cache.pages = -5;
                cache.data = step.out.data;
            }
        EXPECT_EQ(first.forward(step), "") << smla_last_error();
    });
}

TEST(LayerCaches, ABlockTableWithoutMemoryIsRefusedBeforeAnythingIsWritten) {
    int refused = 0;
    with_every_kind([&](const LayerOfKind& layer, const FirstStep& first) {
        for (const GroupOfStep& group : kGroups) {
            if ((first.step.*group.cache).cache.format == SMLA_FORMAT_NONE) continue;
            if (group.bit == SMLA_GROUP_WINDOW || layer.info.kind == SMLA_LAYER_HEAVILY_COMPRESSED)
                continue;  // listed by the plan
            smla_layer_step step = first.step;
            (step.*group.cache).block_table.data = nullptr;
            EXPECT_NE(first.forward(step), "") << group.name;
            ++refused;
        }
        EXPECT_TRUE(first.untouched());
    });
    EXPECT_GE(refused, 8);
}

TEST(LayerCaches, ResultsLieInMemoryOfTheirOwn) {
    with_every_kind([&](const LayerOfKind&, const FirstStep& first) {
        const auto refused = [&](void* memory, const std::string& other) {
            expect_refused(first, "step.out.data", [=](smla_layer_step& step) { step.out.data = memory; });
            smla_error error{};
            smla_last_error_info(&error);
            EXPECT_EQ(std::string(error.got).rfind("memory that overlaps " + other, 0), 0u) << error.got;
        };
        refused(first.workspace.data, "the workspace");
        for (const GroupOfStep& group :
             kGroups)  // the output may also reach into another cache or the workspace
            if (void* const cache = (first.step.*group.cache).cache.data) refused(cache, "");
        EXPECT_TRUE(first.untouched());
        smla_layer_step in_place = first.step;
        in_place.out = in_place.hidden;
        EXPECT_EQ(first.forward(in_place), "") << smla_last_error();
    });
}

}  // namespace
}  // namespace smla::layers_test
