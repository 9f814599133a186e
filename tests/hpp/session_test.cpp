// Layers and sessions through smla.hpp against golden files of transformers.
#include "golden.h"

#include <smla/smla.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <optional>

namespace {

using golden::Case;
using golden::Folder;

// The golden files' own tolerance for f32, against the output in f64: max |a - b| / rms(b).
constexpr double kTolerance = 5e-5;

double deviation(const std::vector<float>& y, const std::vector<double>& expected, size_t begin = 0) {
    double worst = 0, square = 0;
    for (const double value : expected) square += value * value;
    for (size_t i = 0; i < y.size(); ++i) {
        const double difference = std::fabs(double(y[i]) - expected[begin + i]);
        worst = std::isnan(difference) ? INFINITY : std::fmax(worst, difference);
    }
    return worst / std::sqrt(square / double(expected.size()));
}

class HppSession : public testing::Test {
protected:
    void open(const std::string& name) {
        golden_.emplace(name);
        golden_->write_checkpoint(folder_.path);
        hidden_ = golden_->values<float>("in.hidden");
        expected_ = golden_->values<double>("ref.y");
        out_.assign(hidden_.size(), NAN);
    }
    smla::Layer layer() const {  // outlives the context object that opened it
        smla_context_args args{};
        args.threads = 2;
        return smla::Layer(smla::Context(args), folder_.path.string(), golden_->layer());
    }
    smla_tensor rows(std::vector<float>& memory, int64_t begin, int64_t count) const {
        const int64_t width = golden_->hidden_size();
        return smla::tensor(&memory[size_t(begin * width)], {count, width});
    }

    Folder folder_;
    std::optional<Case> golden_;
    std::vector<float> hidden_, out_;
    std::vector<double> expected_;
};

TEST_F(HppSession, v32_in_chunks_gives_the_golden_output_and_selection) {
    open("D2");
    const smla::Layer layer = this->layer();
    const smla_layer_info info = layer.info();
    EXPECT_EQ(info.kind, SMLA_LAYER_DSA);
    EXPECT_EQ(info.hidden_size, golden_->hidden_size());
    EXPECT_EQ(info.heads, 4);
    // without weights: the same but for their bytes
    const std::string path = folder_.path.string();
    const smla_layer_args args{.layer = golden_->layer(), .config = path.c_str()};
    smla_layer_info described = smla::layer_info(args);
    described.weight_bytes = info.weight_bytes;
    described.borrowed_bytes = info.borrowed_bytes;
    EXPECT_EQ(std::memcmp(&described, &info, sizeof info), 0);
    const std::vector<double> frequencies = smla::rope_frequencies(args);
    ASSERT_EQ(frequencies.size(), size_t(info.rope_width / 2));
    EXPECT_EQ(frequencies[0], 1);
    EXPECT_LT(frequencies.back(), frequencies[0]);
    const smla_layer_args below{.layer = -1, .config = path.c_str()};
    EXPECT_THROW(smla::rope_frequencies(below), smla::Error);
    EXPECT_EQ(info.kv_width, 24 + 8);
    EXPECT_EQ(info.topk, 6);

    smla::Session session(layer);
    const std::vector<int32_t> topk = golden_->values<int32_t>("mid.topk");
    for (int64_t t = 0; t < golden_->tokens(); t += 7) {
        const int64_t n = std::min<int64_t>(7, golden_->tokens() - t);
        session.forward(rows(hidden_, t, n), rows(out_, t, n));
        ASSERT_EQ(session.length(), t + n);
        const smla::View<const int32_t> selected = session.topk();
        ASSERT_EQ(selected.rows(), n);
        ASSERT_EQ(selected.columns(), 6);
        for (int64_t i = 0; i < n * 6; ++i)
            EXPECT_EQ(selected[i], topk[size_t(t * 6 + i)]) << "from token " << t;
    }
    EXPECT_LE(deviation(out_, expected_), kTolerance);
    EXPECT_GT(session.cache_bytes(), 0u);
    EXPECT_GT(session.workspace_bytes(), 0u);
}

TEST_F(HppSession, v4_with_two_requests_of_one_text) {
    open("V3_S40");
    const smla::Layer layer = this->layer();
    EXPECT_EQ(layer.info().kind, SMLA_LAYER_COMPRESSED_SPARSE);
    EXPECT_EQ(layer.info().ratio, 4);
    smla_session_args args{};
    args.max_requests = 2;
    args.max_tokens = 64;
    args.page_tokens = 16;
    smla::Session session(layer, args);

    const int64_t tokens = golden_->tokens(), half = tokens / 2;
    session.forward(rows(hidden_, 0, half), rows(out_, 0, half), 1);
    EXPECT_EQ(session.length(1), half);
    EXPECT_EQ(session.length(0), 0);
    // One step: the rest of request 1, and all of request 0.
    std::vector<float> both(hidden_.begin() + half * golden_->hidden_size(), hidden_.end());
    both.insert(both.end(), hidden_.begin(), hidden_.end());
    std::vector<float> y(both.size(), NAN);
    const smla_step_request requests[] = {{1, int32_t(tokens - half)}, {0, int32_t(tokens)}};
    session.forward(requests, rows(both, 0, 2 * tokens - half), rows(y, 0, 2 * tokens - half));
    const auto middle = y.begin() + (tokens - half) * golden_->hidden_size();
    std::copy(y.begin(), middle, out_.begin() + half * golden_->hidden_size());
    EXPECT_LE(deviation(out_, expected_), kTolerance);
    EXPECT_LE(deviation({middle, y.end()}, expected_), kTolerance);

    session.end_request(1);
    EXPECT_EQ(session.length(1), 0);
    EXPECT_EQ(session.length(0), tokens);
}

TEST_F(HppSession, moves) {
    open("V1_S9");
    smla::Layer first = layer();
    smla::Layer second = std::move(first);
    EXPECT_THROW(first.info(), smla::Error);  // NOLINT: moved from
    EXPECT_EQ(second.info().kind, SMLA_LAYER_SLIDING);
    std::optional<smla::Session> session(std::in_place, second);
    session->forward(rows(hidden_, 0, 4), rows(out_, 0, 4));
    smla::Session moved = std::move(*session);
    EXPECT_THROW(session->length(), smla::Error);
    session.reset();
    second = layer();  // the session still holds the layer that it was made with
    moved.forward(rows(hidden_, 4, 5), rows(out_, 4, 5));
    EXPECT_EQ(moved.length(), 9);
    EXPECT_LE(deviation(out_, expected_), kTolerance);
    EXPECT_TRUE(moved.topk().empty());  // no indexer
    moved = smla::Session(second);      // the old session goes before its layer, which only it held
    EXPECT_EQ(moved.length(), 0);
}

TEST_F(HppSession, errors) {
    open("V1_S9");
    const smla::Context context;
    try {
        const smla::Layer layer(context, (folder_.path / "nowhere").string(), 0);
        FAIL() << "opened";
    } catch (const smla::Error& error) {
        EXPECT_EQ(error.code, SMLA_IO_ERROR) << error.what();
        EXPECT_NE(error.field.find("nowhere"), std::string::npos) << error.what();
    }
    const smla::Layer layer = this->layer();
    smla::Session session(layer);
    EXPECT_THROW(session.length(5), smla::Error);
    EXPECT_THROW(session.forward(rows(hidden_, 0, 4), rows(out_, 0, 5)), smla::Error);
    const smla_step_request one{0, 4};  // counted before any is read
    const smla_session_step step{sizeof step, INT32_MAX, &one, {}, {}, {}, {}};
    EXPECT_EQ(smla_session_forward(session.get(), &step), SMLA_INVALID_ARGUMENT);
    smla_session_args args{};
    args.kv_format = 99;
    EXPECT_THROW(smla::Session(layer, args), smla::Error);
}

// Weights in memory: the layer of the folder, bit for bit, without a copy of them.
TEST_F(HppSession, layer_from_tensors_is_that_of_the_folder) {
    for (const char* name : {"D2", "V5_csa", "V5_hca", "V5_sliding"}) {
        open(name);
        smla_context_args args{};
        args.threads = 2;
        const smla::Context context(args);
        const std::vector<Case::Stored> weights = golden_->weights();
        std::vector<smla_named_tensor> tensors;
        size_t f32_bytes = 0, bf16_bytes = 0, vectors = 0;  // vectors of bf16 are always converted
        for (const Case::Stored& each : weights) {
            smla_tensor tensor{
                each.data, each.bf16 ? SMLA_BF16 : SMLA_F32, SMLA_CPU, 0, int32_t(each.shape.size()), {}, {}};
            int64_t stride = 1;
            for (size_t i = each.shape.size(); i-- > 0; stride *= each.shape[i]) {
                tensor.shape[i] = each.shape[i];
                tensor.stride_elems[i] = stride;
            }
            tensors.push_back({each.name.c_str(), tensor});
            const bool vector = each.shape.size() == 1 || each.name.find(".ape") != std::string::npos;
            (!each.bf16 ? f32_bytes : vector ? vectors : bf16_bytes) += size_t(stride) * (each.bf16 ? 2 : 4);
        }
        for (const smla_weight_storage storage : {SMLA_WEIGHTS_CONVERTED, SMLA_WEIGHTS_AS_STORED}) {
            smla_layer_args options{};
            options.weights = storage;
            const smla::Layer folder(context, folder_.path.string(), golden_->layer(), options);
            const int64_t n = golden_->tokens();
            smla::Session(folder).forward(rows(hidden_, 0, n), rows(out_, 0, n));
            const std::vector<float> wanted = std::exchange(out_, std::vector<float>(out_.size(), NAN));
            const smla::Layer memory =
                smla::Layer::from_tensors(context, golden_->config(), tensors, golden_->layer(), options);
            smla::Session(memory).forward(rows(hidden_, 0, n), rows(out_, 0, n));
            EXPECT_EQ(out_, wanted) << name;

            const smla_layer_info info = memory.info();
            const bool stored = storage == SMLA_WEIGHTS_AS_STORED;
            EXPECT_EQ(info.kind, folder.info().kind) << name;
            EXPECT_EQ(info.weight_bytes, f32_bytes + 2 * vectors + (stored ? 1 : 2) * bf16_bytes) << name;
            EXPECT_EQ(info.borrowed_bytes, f32_bytes + (stored ? bf16_bytes : 0)) << name;
            EXPECT_EQ(folder.info().weight_bytes, info.weight_bytes) << name;
            EXPECT_EQ(folder.info().borrowed_bytes, 0u) << name;
        }

        const auto refused = [&](const std::string& config, smla_layer_args options,
                                 std::span<const smla_named_tensor> given) {
            try {
                smla::Layer::from_tensors(context, config, given, golden_->layer(), options);
            } catch (const smla::Error& error) {
                return error.field;
            }
            return std::string("accepted");
        };
        smla_layer_args both{}, two{}, unknown{};
        both.checkpoint = "nowhere";
        two.config = "nowhere";
        unknown.weights = 2;
        EXPECT_EQ(refused(golden_->config(), both, tensors), "args.checkpoint");
        EXPECT_EQ(refused(golden_->config(), two, tensors), "args.config_json");
        EXPECT_EQ(refused(golden_->config(), unknown, tensors), "args.weights");
        EXPECT_EQ(refused("{", {}, tensors).rfind("args.config_json", 0), 0u);
        EXPECT_EQ(refused(golden_->config(), {}, {}), "tensors");
        tensors[0].name = nullptr;
        EXPECT_EQ(refused(golden_->config(), {}, tensors), "args.tensors[0].name");
        tensors[0].name = tensors[1].name;
        EXPECT_NE(refused(golden_->config(), {}, tensors).find(tensors[1].name), std::string::npos);
    }
}

TEST_F(HppSession, requests_are_cut_copied_and_reordered_and_the_session_grows) {
    open("V5_csa");
    const smla::Layer layer = this->layer();
    smla_session_args args{};
    args.max_requests = 3;
    args.max_tokens = 20;
    args.page_tokens = 4;
    args.rewind_tokens = 2;
    smla::Session session(layer, args);
    args = session.args();
    EXPECT_EQ(args.max_tokens, 20);
    EXPECT_EQ(args.rewind_tokens, 2);
    EXPECT_EQ(args.kv_format, SMLA_ROW_F32);
    EXPECT_EQ(args.max_step_tokens, 512);

    std::vector<float> noise(out_.size(), NAN), ignored(out_.size());
    session.forward(rows(hidden_, 0, 12), rows(out_, 0, 12), 2);
    session.forward(rows(noise, 0, 5), rows(ignored, 0, 5), 2);
    session.truncate(12, 2);
    session.copy_request(2, 0);
    session.reorder(std::vector<int32_t>{2, 0, 1});
    EXPECT_EQ(session.length(0), 12);
    EXPECT_EQ(session.length(1), 12);
    EXPECT_EQ(session.length(2), 0);
    EXPECT_THROW(session.truncate(13), smla::Error);
    EXPECT_THROW(session.reorder(std::vector<int32_t>{3}), smla::Error);
    EXPECT_THROW(session.copy_request(0, 3), smla::Error);
    session.forward(rows(hidden_, 12, 8), rows(out_, 12, 8), 1);
    EXPECT_THROW(session.forward(rows(hidden_, 20, 20), rows(out_, 20, 20), 1), smla::Error);

    smla_session_args larger{};
    larger.max_tokens = 40;
    smla::Session clone = session.clone(larger);
    session.resize(larger);
    EXPECT_EQ(session.args().max_tokens, 40);
    EXPECT_EQ(session.args().max_requests, 3);
    EXPECT_EQ(clone.args().rewind_tokens, 2);
    clone.forward(rows(hidden_, 20, 20), rows(ignored, 20, 20), 1);
    session.forward(rows(hidden_, 20, 20), rows(out_, 20, 20), 1);
    EXPECT_TRUE(std::equal(out_.begin() + int64_t(out_.size() / 2), out_.end(),
                           ignored.begin() + int64_t(out_.size() / 2)));
    EXPECT_LE(deviation(out_, expected_), kTolerance);
    EXPECT_EQ(session.length(0), 12);

    const auto refused = [&](auto change) {
        smla_session_args wrong{};
        change(wrong);
        try {
            session.clone(wrong);
        } catch (const smla::Error& error) {
            return error.field;
        }
        return std::string("accepted");
    };
    EXPECT_EQ(refused([](auto& wrong) { wrong.max_tokens = 39; }), "args.max_tokens");
    EXPECT_EQ(refused([](auto& wrong) { wrong.kv_format = SMLA_ROW_BF16; }), "args.kv_format");
    EXPECT_EQ(refused([](auto& wrong) { wrong.index_format = SMLA_ROW_BF16; }), "args.index_format");
    EXPECT_EQ(refused([](auto& wrong) { wrong.page_tokens = 8; }), "args.page_tokens");
    EXPECT_EQ(refused([](auto& wrong) { wrong.kv_scale = 2; }), "args.kv_scale");
    EXPECT_EQ(refused([](auto& wrong) { wrong.kv_writer = SMLA_WRITER_BF16_FIRST; }), "args.kv_writer");
    EXPECT_EQ(refused([](auto& wrong) { wrong.max_tokens = 40; }), "accepted");
}

TEST_F(HppSession, a_format_with_one_scale_per_cache_needs_it) {
    open("D1");
    const smla::Layer layer = this->layer();
    for (const smla_format format : {SMLA_FP8_576, SMLA_FP8_512}) {
        smla_session_args args{};
        args.kv_format = format;
        try {
            smla::Session session(layer, args);
            ADD_FAILURE() << "accepted";
        } catch (const smla::Error& error) {
            EXPECT_EQ(error.field, "args.kv_scale");
            EXPECT_NE(error.wanted.find("has one scale"), std::string::npos) << error.what();
        }
    }
}

// The same layer as an inference engine would run it: own plan, own caches.
TEST_F(HppSession, layer_over_the_callers_caches) {
    open("D2");
    const smla::Context context;
    const smla::Layer layer(context, folder_.path.string(), golden_->layer());
    const smla_layer_info info = layer.info();
    ASSERT_EQ(info.plan_groups, SMLA_GROUP_PRIMARY | SMLA_GROUP_INDEX);

    const int32_t tokens = int32_t(golden_->tokens()), page_tokens = 8, pages = 5;
    smla_plan_args maxima{};
    maxima.groups = info.plan_groups;
    maxima.max_tokens = maxima.max_seq_len = tokens;
    maxima.max_requests = 1;
    maxima.topk = info.topk;
    smla::Plan plan(maxima);
    std::vector<int32_t> starts{0, tokens}, lengths{tokens}, table{3, 0, 4, 1, 2};
    smla_plan_batch batch{};
    batch.query_start_loc = smla::tensor(starts);
    batch.seq_lens = smla::tensor(lengths);
    batch.primary = batch.index = {smla::tensor(table, {1, pages}), {}, page_tokens, 0};
    plan.build(batch);

    smla_layer_step step{};
    step.plan = plan.get();
    step.hidden = rows(hidden_, 0, tokens);
    step.out = rows(out_, 0, tokens);
    step.primary.cache = smla::cache(nullptr, SMLA_ROW_F32, pages, page_tokens, info.kv_width);
    step.index.cache = smla::cache(nullptr, SMLA_ROW_F32, pages, page_tokens, info.index_width);
    std::vector<float> kv(smla::cache_bytes(step.primary.cache) / sizeof(float), NAN), keys(kv.size(), NAN);
    step.primary.cache.data = kv.data();
    step.index.cache.data = keys.data();
    step.primary.block_table = step.index.block_table = smla::tensor(table, {1, pages});
    smla::Workspace workspace = context.workspace();
    layer.forward(step, workspace);
    EXPECT_LE(deviation(out_, expected_), kTolerance);
    EXPECT_GE(workspace.bytes(), layer.workspace_size(step));

    const std::vector<float> first = std::exchange(out_, std::vector<float>(out_.size(), NAN));
    step.out = rows(out_, 0, tokens);
    layer.forward(step, workspace.get());
    EXPECT_EQ(out_, first);
}

}  // namespace
