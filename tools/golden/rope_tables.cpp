// Compares the RoPE tables of the file with the rotation of the layers.
#include "golden/compare.h"

namespace smla::golden {

std::vector<Checked> check_rope_tables(Context& context, const Golden& golden, size_t layer,
                                       smla_dtype dtype) {
    const GoldenLayer& at = golden.layers[layer];
    const std::string cosine = "mid.rope_cos" + at.suffix, sine = "mid.rope_sin" + at.suffix;
    if (!golden.has(cosine) && !golden.has(sine)) return {};
    std::vector<double> frequencies = rope_frequencies(at.config.common.rope_dim, at.config.rope(at.index));
    const int64_t tokens = golden.tokens, pairs = int64_t(frequencies.size());
    std::vector<int32_t> positions(static_cast<size_t>(tokens));
    for (int64_t t = 0; t < tokens; ++t) positions[size_t(t)] = int32_t(t);
    if (golden.has("in.position_ids")) {
        const std::vector<double> given =
            golden.values("in.position_ids");  // [B,S]: rows of the first sequence
        std::copy_n(given.begin(), tokens, positions.begin());
    }
    std::vector<double> units(size_t(tokens * pairs * 2));
    std::vector<float> narrow(units.size());
    for (size_t i = 0; i < units.size(); i += 2) units[i] = narrow[i] = 1;
    void* const data = dtype == SMLA_F64 ? static_cast<void*>(units.data()) : narrow.data();

    Device& device = context.device();
    const PlacedTensor x = place(device, make_tensor(data, dtype, {tokens, 1, 2 * pairs})),
                       at_positions = place(device, make_tensor(positions.data(), SMLA_I32, {tokens})),
                       turns = place(device, make_tensor(frequencies.data(), SMLA_F64, {pairs}));
    run_stage<Stage::rope>({.struct_size = sizeof(smla_rope_args),
                            .x = x.view,
                            .positions = at_positions.view,
                            .frequencies = turns.view},
                           context.env({}));
    std::unique_ptr<char[]> memory;
    const Tensor rotated = fetch(device, x.view, nullptr, memory);

    std::vector<double> row(size_t(2 * pairs)), seen[2];
    for (int64_t t = 0; t < tokens; ++t) {
        load_row(rotated, address(rotated, t, 0), 2 * pairs, row.data());
        for (size_t i = 0; i < row.size(); ++i) seen[i % 2].push_back(row[i]);
    }
    std::vector<Checked> out;
    for (int i = 0; i < 2; ++i)
        if (const std::string& name = i ? sine : cosine; golden.has(name))
            out.push_back(
                {name, compare(seen[i], golden.values(name)).max, golden.tolerance.f32_intermediate, "max"});
    return out;
}

}  // namespace smla::golden
