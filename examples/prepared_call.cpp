// Prepared calls: the attention of a decode step, checked and planned once, runs for each of three layers,
// whose caches, queries and outputs have different addresses. Checks that plain calls return the same bits.
#include <smla/smla.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

namespace {

constexpr int64_t kTokens = 4, kHeads = 16, kListed = 64, kPages = 2, kPage = 64;

struct Layer {
    std::vector<uint16_t> q, kv, out;  // bf16
};

std::vector<Layer> layers(size_t count) {
    std::vector<Layer> all(count);
    uint32_t state = 1;
    const auto next = [&] {  // bf16 of magnitude 0.5 to 1, either sign
        state = state * 1664525u + 1013904223u;
        return uint16_t(0x3f00u | (state >> 25) | (state >> 16 & 0x8000u));
    };
    for (Layer& layer : all) {
        layer.q.resize(kTokens * kHeads * 576);
        layer.kv.resize(kPages * kPage * 576);
        layer.out.resize(kTokens * kHeads * 512);
        for (uint16_t& value : layer.q) value = next();
        for (uint16_t& value : layer.kv) value = next();
    }
    return all;
}

smla_attend_args attend_args(Layer& layer, const std::vector<int32_t>& rows) {
    smla_attend_args args{};
    args.softmax_scale = 0.05;
    args.q = smla::tensor(layer.q.data(), SMLA_BF16, {kTokens, kHeads, 576});
    args.primary.cache = smla::cache(layer.kv.data(), SMLA_ROW_BF16, kPages, kPage, 576);
    args.primary.rows = smla::tensor(rows, {kTokens, kListed});
    args.out = smla::tensor(layer.out.data(), SMLA_BF16, {kTokens, kHeads, 512});
    return args;
}

int run() {
    std::vector<Layer> model = layers(3);
    std::vector<int32_t> rows(kTokens * kListed);
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = int32_t(i * 37 % (kPages * kPage));

    smla::Context context;
    // [README.begin]
    // The arguments of the first layer fix shapes, dtypes and the address of the row lists. Each run provides
    // the addresses of q, of the cache and of out.
    const auto attend = smla::Call::of<SMLA_STAGE_ATTEND>(
        context, attend_args(model[0], rows),
        {offsetof(smla_attend_args, q.data), offsetof(smla_attend_args, primary.cache.data),
         offsetof(smla_attend_args, out.data)});
    smla::Workspace scratch = context.workspace();
    for (Layer& layer : model) attend.run({layer.q.data(), layer.kv.data(), layer.out.data()}, scratch);
    // [README.end]

    bool same = true;
    for (Layer& layer : model) {
        const std::vector<uint16_t> got = layer.out;
        context.attend(attend_args(layer, rows), scratch);
        same = same && std::memcmp(got.data(), layer.out.data(), got.size() * sizeof got[0]) == 0;
    }
    const bool differ = model[0].out != model[1].out && model[1].out != model[2].out;
    std::printf("%s: %zu layers: %s\n", context.description().c_str(), model.size(),
                same && differ ? "ok" : "WRONG");
    return same && differ ? 0 : 1;
}

}  // namespace

int main() {
    try {
        return run();
    } catch (const smla::Error& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
