// Layers of weights in memory: bit for bit those of a file, borrowed where nothing has to be converted.
#include "random_layer.h"

#include <cstring>
#include <functional>

namespace smla::layers_test {
namespace {

constexpr int64_t kHidden = 256;
constexpr int32_t kTokens = 140;  // past an entry of ratio 128

std::vector<float> serve(const Layer& layer) {
    Context context = make_context();
    SessionOptions options;
    options.max_tokens = options.max_step_tokens = kTokens;
    Session session(context, layer, options);
    const std::vector<double> values = random_hidden(kTokens, kHidden, 5);
    std::vector<float> hidden(values.begin(), values.end()), out(hidden.size(), NAN);
    const StepRequest request{0, kTokens};
    std::vector<int32_t> topk;
    Session::Step step;
    step.requests = {&request, 1};
    step.hidden = make_tensor(hidden.data(), SMLA_F32, {kTokens, kHidden});
    step.out = make_tensor(out.data(), SMLA_F32, {kTokens, kHidden});
    if (layer.kind() == LayerKind::dsa_shared) {
        for (int32_t t = 0; t < kTokens; ++t) append_newest(topk, layer, t, 6);
        step.forced_topk = make_tensor(topk.data(), SMLA_I32, {kTokens, 6});
    }
    session.forward(step);
    return out;
}

LayerPrecision storage(bool as_stored) {
    LayerPrecision out;
    out.as_stored = as_stored;
    return out;
}

std::unique_ptr<Layer> from_memory(const RandomWeights& weights, const std::vector<NamedTensor>& tensors,
                                   bool as_stored) {
    return open_layer(Checkpoint::from_tensors(tensors, "tensors"), weights.config, weights.layer,
                      storage(as_stored));
}

size_t bytes_of(const std::vector<NamedTensor>& tensors, std::initializer_list<smla_dtype> dtypes) {
    size_t bytes = 0;
    for (const NamedTensor& each : tensors)
        if (each.name.find("scale") == std::string::npos &&
            std::find(dtypes.begin(), dtypes.end(), each.tensor.dtype) != dtypes.end())
            bytes += span_bytes(each.tensor);
    return bytes;
}

TEST(Tensors, LayersOfMemoryAreThoseOfAFile) {
    for (const KindOfLayer& kind : kKinds)
        for (const smla_dtype dtype : {SMLA_F32, SMLA_BF16, SMLA_F16, SMLA_F64, SMLA_E4M3})
            for (const bool as_stored : {false, true}) {
                SCOPED_TRACE(text(kind.name, ", ", dtype_name(dtype), as_stored ? ", as stored" : ""));
                RandomWeights weights(kind.config(kHidden), kind.layer, dtype);
                const auto file =
                    open_layer(weights.checkpoint(), weights.config, weights.layer, storage(as_stored));
                // among other tensors of a model, which nobody asks for
                std::vector<NamedTensor> tensors = weights.tensors;
                tensors.push_back({"lm_head.weight", Tensor{}});
                tensors.push_back({"model.layers.9.mask", Tensor{nullptr, 77, SMLA_CUDA, 3, 2, {-1}, {}}});
                const auto memory = from_memory(weights, tensors, as_stored);
                EXPECT_EQ(memory->borrowed_bytes(), as_stored
                                                        ? bytes_of(weights.tensors, {SMLA_F32, SMLA_BF16})
                                                        : bytes_of(weights.tensors, {SMLA_F32}));
                EXPECT_EQ(memory->weight_bytes(), file->weight_bytes());
                EXPECT_EQ(file->borrowed_bytes(), 0u);
                const std::vector<float> out = serve(*memory);
                EXPECT_EQ(out, serve(*file));
                EXPECT_TRUE(std::all_of(out.begin(), out.end(), [](float y) { return std::isfinite(y); }));
            }
}

// Rows apart from each other, and columns apart.
TEST(Tensors, OtherLayoutsAreCopiedAndGiveTheSameBits) {
    for (const KindOfLayer& kind : kKinds)
        for (const smla_dtype dtype : {SMLA_F32, SMLA_BF16, SMLA_E4M3}) {
            SCOPED_TRACE(text(kind.name, ", ", dtype_name(dtype)));
            RandomWeights weights(kind.config(kHidden), kind.layer, dtype);
            const std::vector<float> wanted = serve(*from_memory(weights, weights.tensors, true));
            std::deque<std::vector<char>> memory;
            std::vector<NamedTensor> tensors;
            for (size_t i = 0; i < weights.tensors.size(); ++i) {
                const Tensor& dense = weights.tensors[i].tensor;
                const int64_t rows = dense.ndim == 2 ? dense.shape[0] : 1;
                const int64_t columns = dense.shape[dense.ndim - 1], size = dtype_bits(dense.dtype) / 8;
                Tensor odd = dense;
                const bool across = i % 3 == 1;
                odd.stride_elems[dense.ndim - 1] = across ? rows : 1;
                if (dense.ndim == 2) odd.stride_elems[0] = across ? 1 : columns + 5;
                else odd.stride_elems[0] = 2;
                std::vector<char>& at =
                    memory.emplace_back(size_t(rows * (2 * columns + 5) * size), char(-1));
                odd.data = at.data();
                const char* from = static_cast<const char*>(dense.data);
                for (int64_t r = 0; r < rows; ++r)
                    for (int64_t c = 0; c < columns; ++c) {
                        const int64_t to =
                            dense.ndim == 2 ? r * odd.stride_elems[0] + c * odd.stride_elems[1] : 2 * c;
                        std::memcpy(at.data() + to * size, from + (r * columns + c) * size, size_t(size));
                    }
                tensors.push_back({weights.tensors[i].name, odd});
            }
            const auto copied = from_memory(weights, tensors, true);
            EXPECT_EQ(copied->borrowed_bytes(), 0u);
            for (std::vector<char>& each : memory) std::fill(each.begin(), each.end(), char(-1));
            EXPECT_EQ(serve(*copied), wanted);
        }
}

TEST(Tensors, WhatIsWrittenToBorrowedWeightsCounts) {
    RandomWeights weights(dsa_config(kHidden), 0, SMLA_BF16);
    const auto layer = from_memory(weights, weights.tensors, true);
    const std::vector<float> before = serve(*layer);
    for (const NamedTensor& each : weights.tensors)
        if (each.name.find("o_proj") != std::string::npos)
            std::memset(each.tensor.data, 0, span_bytes(each.tensor));
    const std::vector<float> after = serve(*layer);
    EXPECT_NE(before, after);
    EXPECT_TRUE(std::all_of(after.begin(), after.end(), [](float y) { return y == 0; }));
}

std::string message_of(const RandomWeights& weights, const std::vector<NamedTensor>& tensors) {
    try {
        from_memory(weights, tensors, true);
    } catch (const Error& error) {
        EXPECT_EQ(error.status, SMLA_DATA_ERROR);
        return error.what();
    }
    return "accepted";
}

// The very text that a file with the same faults gives.
TEST(Tensors, EveryMissingOrMisshapenTensorIsListedAsOfAFile) {
    for (const KindOfLayer& kind : kKinds) {
        RandomWeights weights(kind.config(kHidden), kind.layer);
        std::vector<NamedTensor> damaged;
        for (size_t i = 0; i < weights.tensors.size(); ++i) {
            if (i % 4 == 2) continue;
            damaged.push_back(weights.tensors[i]);
            if (i % 4 == 3) damaged.back().tensor.shape[0] -= 1;
        }
        weights.tensors.swap(damaged);
        std::string file;
        try {
            open_layer(weights.checkpoint(), weights.config, weights.layer, storage(true));
        } catch (const Error& error) {
            file = error.what();
        }
        std::string memory = message_of(weights, weights.tensors);
        file.erase(0, file.find(": layer "));
        memory.erase(0, memory.find(": layer "));
        EXPECT_EQ(memory, file);
        for (size_t i = 0; i < damaged.size(); ++i)
            EXPECT_EQ(memory.find(damaged[i].name) != std::string::npos, i % 4 >= 2) << damaged[i].name;
    }
}

TEST(Tensors, MemoryThatCannotBeReadIsAnErrorOfItsTensor) {
    RandomWeights weights(dsa_config(kHidden), 0);
    const auto spoilt = [&](const std::function<void(Tensor&)>& spoil) {
        std::vector<NamedTensor> tensors = weights.tensors;
        for (NamedTensor& each : tensors)
            if (each.name.find("o_proj") != std::string::npos) spoil(each.tensor);
        return message_of(weights, tensors);
    };
    const auto has = [](const std::string& text, const char* part) {
        return text.find(part) != std::string::npos && text.find("o_proj") != std::string::npos;
    };
    EXPECT_EQ(spoilt([](Tensor&) {}), "accepted");
    EXPECT_PRED2(has, spoilt([](Tensor& t) { t.data = nullptr; }), "null");
    EXPECT_PRED2(has, spoilt([](Tensor& t) { t.data = static_cast<char*>(t.data) + 1; }), "aligned");
    EXPECT_PRED2(has, spoilt([](Tensor& t) { t.device_type = SMLA_CUDA; }), "host memory");
    EXPECT_PRED2(has, spoilt([](Tensor& t) { t.dtype = SMLA_I32; }), "\"I32\"");
    EXPECT_PRED2(has, spoilt([](Tensor& t) { t.dtype = 0; }), "dtype 0");
    EXPECT_PRED2(has, spoilt([](Tensor& t) { t.ndim = 0; }), "absent");
    EXPECT_PRED2(has, spoilt([](Tensor& t) { t.shape[1] = int64_t(1) << 62; }), "shape");
    EXPECT_PRED2(has, spoilt([](Tensor& t) { static_cast<float*>(t.data)[1] = NAN; }), "[0, 1]");
    const std::vector<NamedTensor> twice{weights.tensors[0], weights.tensors[0]};
    EXPECT_THROW(Checkpoint::from_tensors(twice, "tensors"), Error);
}

}  // namespace
}  // namespace smla::layers_test
