// Batches on the host: what plans and metadata keep of them, and which pages their tables must have.
#include "engines.h"
#include "kit/mapped.h"

#include "core/tensor.h"

#include <cstring>
#include <random>

namespace contract {

using smla::make_tensor;
using smla::kit::Walled;

namespace {

constexpr int32_t kHeads = 3, kListed = 6, kTokens = 7, kPadded = 8, kRequests = 3, kMostTokens = 300;

// Small layers of every kind that backends serve.
smla_backend_args layer_args(smla_family family, int32_t ratio) {
    smla_backend_args args{};
    args.struct_size = sizeof args;
    args.family = family;
    args.kv_cache_dtype = "row_f32";
    args.dtype = SMLA_F32;
    args.heads = kHeads;
    args.kv_lora_rank = 24;
    args.rope_dim = 8;
    args.head_dim = 32;
    args.window = 9;
    args.window_page_tokens = 16;
    args.page_tokens = ratio > 16 ? 256 : 16;
    args.topk = kListed;
    args.ratio = ratio;
    args.max_tokens = kPadded;
    args.max_requests = kRequests;
    args.max_seq_len = kMostTokens;
    args.softmax_scale = 0.2;
    if (family == SMLA_FAMILY_DSA) args.plan_groups = SMLA_GROUP_INDEX;
    else if (ratio > 1) args.plan_groups = SMLA_GROUP_INDEX | SMLA_GROUP_STATE | SMLA_GROUP_INDEX_STATE;
    else args.plan_groups = SMLA_GROUP_STATE;
    return args;
}

constexpr smla_plan_group smla_plan_batch::*kGroups[] = {
    &smla_plan_batch::primary, &smla_plan_batch::window, &smla_plan_batch::compressed,
    &smla_plan_batch::index,   &smla_plan_batch::state,  &smla_plan_batch::index_state};

// A batch of three requests, each of whose arrays is a mapping of its own.
class HostBatch {
public:
    HostBatch(const smla_backend_args& args, int32_t groups, bool slots) {
        view_.struct_size = sizeof view_;
        view_.tokens = kPadded;
        view_.query_start_loc = ints({0, 1, 4, kTokens});
        view_.seq_lens = ints({70, 299, 3});
        std::vector<int32_t> rope;
        for (int32_t t = 0; t < kTokens; ++t) rope.push_back(1000 + 7 * t);
        view_.rope_positions = ints(rope);
        for (size_t g = 0; g < std::size(kGroups); ++g) {
            if (!(groups & (1 << g))) continue;
            const int32_t bit = 1 << g;
            const bool entries = bit == SMLA_GROUP_COMPRESSED || (bit == SMLA_GROUP_INDEX && args.ratio > 0);
            smla_plan_group& group = view_.*kGroups[g];
            group.page_tokens = entries ? args.page_tokens / args.ratio : 16;
            const int32_t rows = entries ? kMostTokens / args.ratio : kMostTokens;
            const int32_t columns = (rows + group.page_tokens - 1) / group.page_tokens;
            std::vector<int32_t> table(size_t(kRequests * columns));
            for (size_t i = 0; i < table.size(); ++i) table[i] = int32_t(table.size() - 1 - i);
            group.block_table = ints(table);
            group.block_table.ndim = 2;
            group.block_table.shape[0] = kRequests;
            group.block_table.shape[1] = group.block_table.stride_elems[0] = columns;
            group.block_table.stride_elems[1] = 1;
            if (entries || !slots) continue;
            std::vector<int32_t> own;
            for (int32_t t = 0; t < kTokens; ++t) own.push_back(t == 2 ? -1 : 16 * t + 5);
            group.slots = ints(own);
        }
    }
    const smla_plan_batch& view() const { return view_; }
    void set_page(smla_plan_group smla_plan_batch::*group, int64_t request, int64_t column, int32_t page) {
        const smla_tensor& table = (view_.*group).block_table;
        static_cast<int32_t*>(table.data)[request * table.stride_elems[0] + column] = page;
    }
    void overwrite(int32_t garbage) {
        for (const Walled& array : arrays_)
            for (size_t i = 0; i < array.size() / sizeof garbage; ++i)
                std::memcpy(array.data() + i * sizeof garbage, &garbage, sizeof garbage);
    }
    void unmap() { arrays_.clear(); }

private:
    smla_tensor ints(const std::vector<int32_t>& values) {
        arrays_.emplace_back(values.size() * sizeof(int32_t));
        std::memcpy(arrays_.back().data(), values.data(), arrays_.back().size());
        return make_tensor(arrays_.back().data(), SMLA_I32, {int64_t(values.size())});
    }
    std::vector<Walled> arrays_;
    smla_plan_batch view_{};
};

std::vector<uint8_t> bytes_of(const smla_tensor& tensor) {
    const auto* begin = static_cast<const uint8_t*>(tensor.data);
    std::vector<uint8_t> out;
    const smla_tensor rows = tensor.ndim == 3 ? smla::reshape_rows(tensor, {tensor.shape[2]}) : tensor;
    const int64_t each = smla::dtype_bits(rows.dtype) / 8, inner = rows.ndim > 1 ? rows.shape[1] : 1;
    for (int64_t i = 0; i < rows.shape[0]; ++i) {
        const uint8_t* row = begin + i * rows.stride_elems[0] * each;
        out.insert(out.end(), row, row + inner * each);
    }
    return out;
}

// A backend, its caches full of random values, and a step of them.
class Step {
public:
    Step(smla_context* context, const char* name, const smla_backend_args& args) : context_(context) {
        made_ = smla_backend_create(context, name, &args, &backend_) == SMLA_OK;
        if (!made_) return;
        EXPECT_TRUE(succeeded(smla_backend_metadata_create(backend_, &metadata_)));
        const bool dsa = args.family == SMLA_FAMILY_DSA;
        const int64_t width = dsa ? 32 : args.head_dim;
        call_.struct_size = sizeof call_;
        call_.q = floats({kPadded, kHeads, width});
        call_.k_c = floats({kPadded, dsa ? args.kv_lora_rank : width});
        if (dsa) call_.k_pe = floats({kPadded, args.rope_dim});
        call_.out = floats({kPadded, kHeads, dsa ? args.kv_lora_rank : width});
        call_.lse = floats({kPadded, kHeads});
        for (int32_t i = 0; i < kPadded * kListed; ++i) listed_.push_back(i % kListed == 4 ? -1 : i % 3);
        call_.topk_indices = make_tensor(listed_.data(), SMLA_I32, {kPadded, kListed});
        if (!dsa && (args.ratio == 0 || args.ratio == 128)) call_.topk_indices = {};
        const auto cache = [&](smla_cache& to, int32_t page_tokens) {
            const int64_t pages = kRequests * ((kMostTokens + page_tokens - 1) / page_tokens);
            to.format = SMLA_ROW_F32;
            to.width = int32_t(width);
            to.page_tokens = page_tokens;
            to.pages = pages;
            to.data = floats({pages * page_tokens, width}).data;
        };
        if (dsa) cache(call_.kv_cache, 16);
        else cache(call_.swa_cache, 16);
        if (!dsa && args.ratio) cache(call_.kv_cache, args.page_tokens / args.ratio);
        call_.metadata = metadata_;
        before_ = floats_;
    }
    ~Step() {
        smla_backend_metadata_destroy(metadata_);
        smla_backend_destroy(backend_);
    }
    Step(const Step&) = delete;
    Step& operator=(const Step&) = delete;

    bool made() const { return made_; }
    smla_backend_metadata* metadata() const { return metadata_; }
    // Every byte that the step leaves in its outputs and caches, from the same beginning each time.
    std::vector<float> run() {
        for (size_t i = 0; i < floats_.size(); ++i)
            std::copy(before_[i].begin(), before_[i].end(), floats_[i].begin());
        size_t bytes = 0;
        EXPECT_TRUE(succeeded(smla_backend_workspace_size(backend_, &call_, &bytes)));
        const Scratch scratch(context_, bytes);
        EXPECT_TRUE(succeeded(smla_backend_forward(backend_, &call_, scratch.get(), nullptr)));
        std::vector<float> out;
        for (const std::vector<float>& each : floats_) out.insert(out.end(), each.begin(), each.end());
        return out;
    }
    std::vector<std::vector<uint8_t>> fields() const {
        const char* const* names = nullptr;
        int32_t count = 0;
        EXPECT_TRUE(succeeded(smla_backend_metadata_fields(metadata_, &names, &count)));
        std::vector<std::vector<uint8_t>> out;
        for (int32_t i = 0; i < count; ++i) {
            smla_tensor field{};
            EXPECT_TRUE(succeeded(smla_backend_metadata_field(metadata_, names[i], &field)));
            out.push_back(bytes_of(field));
        }
        return out;
    }

private:
    smla_tensor floats(std::initializer_list<int64_t> shape) {
        smla_tensor out = make_tensor(static_cast<float*>(nullptr), SMLA_F32, shape);
        std::vector<float>& values = floats_.emplace_back(size_t(smla::element_count(out)));
        for (float& value : values) value = std::uniform_real_distribution<float>(-1, 1)(random_);
        out.data = values.data();
        return out;
    }
    smla_context* context_;
    bool made_ = false;
    smla_backend* backend_ = nullptr;
    smla_backend_metadata* metadata_ = nullptr;
    smla_backend_forward_args call_{};
    std::mt19937 random_{7};
    std::vector<std::vector<float>> floats_, before_;
    std::vector<int32_t> listed_;
};

// Every backend with every kind of layer that it serves.
template <class Use>
void each_layer(const Use& use) {
    const char* const* names = nullptr;
    int32_t count = 0, used = 0;
    ASSERT_TRUE(succeeded(smla_backend_list(&names, &count)));
    const std::pair<smla_family, int32_t> layers[] = {
        {SMLA_FAMILY_DSA, 0},          {SMLA_FAMILY_HYBRID, 0},        {SMLA_FAMILY_HYBRID, 4},
        {SMLA_FAMILY_HYBRID, 128},     {SMLA_FAMILY_HYBRID_SHARED, 0}, {SMLA_FAMILY_HYBRID_SHARED, 1},
        {SMLA_FAMILY_HYBRID_SHARED, 2}};
    for (int32_t i = 0; i < count; ++i)
        for (const auto& [family, ratio] : layers) {
            SCOPED_TRACE(testing::Message() << names[i] << " ratio " << ratio);
            used += use(names[i], layer_args(family, ratio));
        }
    EXPECT_GE(used, count + 10);  // V4 and V4.1 have several kinds
}

int32_t groups_of(const smla_backend_args& args) {
    if (args.family == SMLA_FAMILY_DSA) return SMLA_GROUP_PRIMARY | args.plan_groups;
    return SMLA_GROUP_WINDOW | args.plan_groups | (args.ratio ? SMLA_GROUP_COMPRESSED : 0);
}

}  // namespace

// Arrays of a batch may change, and their memory may go, as soon as the build has returned. On a GPU: the
// metadata of host batches are sent through memory of their own (tests/gpu/backends_metadata_test.cpp).
TEST(Contract, L5d_ABatchOnTheHostMayGoWhenTheBuildReturns) {
    for (const Engine& engine : first_and_last_engine()) {
        const Context context(engine);
        each_layer([&](const char* name, const smla_backend_args& args) {
            Step step(context, name, args);
            for (const bool slots : {false, true}) {
                if (!step.made()) return false;
                HostBatch batch(args, groups_of(args), slots);
                EXPECT_TRUE(succeeded(smla_backend_metadata_build(step.metadata(), &batch.view())));
                const auto fields = step.fields();
                const std::vector<float> wanted = step.run();
                for (const int32_t garbage : {3, -1, INT32_MAX}) {
                    batch.overwrite(garbage);
                    EXPECT_TRUE(step.fields() == fields);
                    const std::vector<float> now = step.run();
                    EXPECT_EQ(std::memcmp(now.data(), wanted.data(), wanted.size() * sizeof(float)), 0)
                        << garbage;
                }
                batch.unmap();
                EXPECT_TRUE(step.fields() == fields);
                const std::vector<float> now = step.run();
                EXPECT_EQ(std::memcmp(now.data(), wanted.data(), wanted.size() * sizeof(float)), 0);
            }
            return true;
        });
    }
}

// Neither the backend nor the cache has a scale: it is not taken as 1. One that nothing would read is an
// error.
CONTRACT_TEST(L1d_AScaleThatIsMissingIsAnErrorOfABackend) {
    const Context context(engines().back());
    smla_backend_args args = layer_args(SMLA_FAMILY_HYBRID, 0);
    args.head_dim = 512;
    args.rope_dim = 64;
    const auto create = [&](const char* type, double scale, smla_backend** out) {
        args.kv_cache_dtype = type;
        args.kv_scale = scale;
        return smla_backend_create(context, "FLASHINFER_MLA_SPARSE_DSV4", &args, out);
    };
    float q[512 * kHeads] = {}, out[512 * kHeads] = {};
    smla_backend_forward_args call{};
    call.struct_size = sizeof call;
    call.q = call.out = make_tensor(q, SMLA_F32, {1, kHeads, 512});
    call.out.data = out;
    call.swa_cache.format = SMLA_FP8_512;
    call.swa_cache.page_tokens = 16;
    call.swa_cache.device_type = on_gpu() ? SMLA_CUDA : SMLA_CPU;
    for (const double scale : {0., 0.5}) {
        smla_backend* backend = nullptr;
        ASSERT_TRUE(succeeded(create("fp8_e4m3", scale, &backend)));
        size_t bytes = 0;
        const smla_status status = smla_backend_workspace_size(backend, &call, &bytes);
        if (scale == 0) EXPECT_TRUE(refused(status, SMLA_INVALID_ARGUMENT, "args.swa_cache.scale"));
        else EXPECT_TRUE(succeeded(status));
        smla_backend_destroy(backend);
        EXPECT_EQ(create("bfloat16", scale, &backend), scale == 0 ? SMLA_OK : SMLA_INVALID_ARGUMENT);
        if (scale == 0) smla_backend_destroy(backend);
        else EXPECT_TRUE(refused(SMLA_INVALID_ARGUMENT, SMLA_INVALID_ARGUMENT, "args.kv_scale"));
    }
}

// A token that is no padding has its page, or the batch is refused; of plans and of metadata.
CONTRACT_TEST(L9m_ATokenWithoutAPageIsRefusedByNameAndNothingChanges) {
    const Context context(engines().back());
    each_layer([&](const char* name, const smla_backend_args& args) {
        smla_backend* backend = nullptr;
        if (smla_backend_create(context, name, &args, &backend) != SMLA_OK) return false;
        smla_backend_metadata* metadata = nullptr;
        EXPECT_TRUE(succeeded(smla_backend_metadata_create(backend, &metadata)));
        smla_plan_args maxima{};
        maxima.struct_size = sizeof maxima;
        maxima.groups = groups_of(args);
        maxima.max_tokens = kPadded;
        maxima.max_requests = kRequests;
        maxima.max_seq_len = kMostTokens;
        maxima.window = args.family == SMLA_FAMILY_DSA ? 0 : args.window;
        maxima.ratio = args.ratio;
        smla_plan* plan = nullptr;
        EXPECT_TRUE(succeeded(smla_plan_create(&maxima, &plan)));
        HostBatch batch(args, groups_of(args), false);
        EXPECT_TRUE(succeeded(smla_plan_build(plan, &batch.view())));
        EXPECT_TRUE(succeeded(smla_backend_metadata_build(metadata, &batch.view())));
        smla_tensor position{};
        EXPECT_TRUE(succeeded(smla_plan_field(plan, "position", &position)));
        const std::vector<uint8_t> before = bytes_of(position);
        for (size_t g = 0; g < std::size(kGroups); ++g) {
            const smla_plan_group& group = batch.view().*kGroups[g];
            if (!group.page_tokens) continue;
            // the page of the last entry or token of request 1, which has 299 tokens
            const int32_t bit = 1 << g;
            const bool entries = bit == SMLA_GROUP_COMPRESSED || (bit == SMLA_GROUP_INDEX && args.ratio);
            const int64_t column = (entries ? 299 / args.ratio - 1 : 298) / group.page_tokens;
            HostBatch bad(args, groups_of(args), false);
            bad.set_page(kGroups[g], 1, column, -1);
            const char* const groups[] = {"primary", "window", "compressed", "index", "state", "index_state"};
            const std::string field =
                std::string("batch.") + groups[g] + ".block_table[1," + std::to_string(column) + "]";
            EXPECT_TRUE(refused(smla_plan_build(plan, &bad.view()), SMLA_INVALID_ARGUMENT, field));
            EXPECT_TRUE(
                refused(smla_backend_metadata_build(metadata, &bad.view()), SMLA_INVALID_ARGUMENT, field));
            EXPECT_TRUE(bytes_of(position) == before);
        }
        smla_plan_destroy(plan);
        smla_backend_metadata_destroy(metadata);
        smla_backend_destroy(backend);
        return true;
    });
}

}  // namespace contract
