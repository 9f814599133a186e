#include "calls.h"

#include <cmath>

namespace smla::fuzz {

namespace {

int32_t random_width(World& world, smla_format format) {
    const int32_t own = find_format(format)->width;
    return own ? own : int32_t(world.choose.between(1, 80));
}

smla_attend_source make_source(World& world, smla_format format, int32_t width, int64_t tokens) {
    smla_attend_source out{};
    out.cache = world.cache(format, width);
    const int64_t listed = world.choose.between(0, 40);
    const int64_t capacity = CacheView(out.cache).capacity;
    out.rows = world.indices(SMLA_I32, {tokens, listed}, -1, std::max<int64_t>(capacity - 1, 0));
    if (world.choose.flag()) out.lengths = world.indices(SMLA_I32, {tokens}, 0, listed);
    return out;
}

constexpr smla_format kFormats[] = {
    SMLA_ROW_F32,         SMLA_ROW_BF16,  SMLA_FP8_656,     SMLA_FP8_576,           SMLA_FP8_584,
    SMLA_FP8_512,         SMLA_FP8_528,   SMLA_FP8_528_G32, SMLA_FP8_528_G32_SPLIT, SMLA_NVFP4_288,
    SMLA_NVFP4_288_SPLIT, SMLA_NVFP4_384, SMLA_NVFP4_352};

}  // namespace

void make(World& world, smla_attend_args& args) {
    Choices& choose = world.choose;
    const smla_format format = kFormats[choose.below(std::size(kFormats))];
    const int32_t width = random_width(world, format);
    const int64_t tokens = choose.between(0, kTokens), heads = choose.between(1, 20);
    const int64_t value_width = choose.flag() ? std::min(width, 512) : choose.between(1, width);
    args.precision = choose.any({0, 1, 2});
    args.lse_base = choose.any({0, 1});
    args.softmax_scale = choose.any({0.0625f, 0.03125f, 0.1f});
    const smla_dtype q = choose.any({SMLA_F32, SMLA_BF16, SMLA_F16, SMLA_E4M3});
    const smla_dtype out = q == SMLA_E4M3 ? SMLA_BF16 : choose.any({SMLA_F32, SMLA_BF16, SMLA_F16});
    args.q_scale = q == SMLA_E4M3 ? 0.5f : 0;
    args.q = world.values(q, {tokens, heads, width});
    const int64_t kind = choose.below(3);  // one source, the other, both
    if (kind != 1) args.primary = make_source(world, format, width, tokens);
    if (kind != 0) args.extra = make_source(world, format, width, tokens);
    if (choose.flag())
        args.sink = choose.flag() ? world.values(SMLA_F32, {heads}) : world.hostile(SMLA_F32, {heads});
    // Logits are exact (world.h). A probability differs by the exponential (2^-20) and, on a bf16 kernel, by
    // its rounding (2^-8, in the weight and in the sum); the result is a mean of values up to 2, then
    // rounded. lse differs by the rounding of the sum, and by f32 at its size (less than 400).
    args.out = world.output(out, {tokens, heads, value_width}, 2 * (0x1p-7 + rounding(out)));
    if (choose.flag()) args.lse = world.output(SMLA_F32, {tokens, heads}, 0x1p-6);
    if (choose.flag()) args.max_logits = world.output(SMLA_F32, {tokens, heads}, 1e-3);
}

void make(World& world, smla_merge_args& args) {
    Choices& choose = world.choose;
    const int64_t parts = choose.between(0, 5), tokens = choose.between(0, kTokens),
                  heads = choose.between(1, 9);
    const int64_t width = choose.between(1, 70);
    const smla_dtype out = choose.any({SMLA_F32, SMLA_BF16, SMLA_F16});
    args.lse_base = choose.any({0, 1});
    args.partials = world.values(choose.any({SMLA_F32, SMLA_BF16, SMLA_F16}), {parts, tokens, heads, width});
    args.lse = world.values(SMLA_F32, {parts, tokens, heads});
    if (args.lse.data && choose.flag() && element_count(args.lse) > 0)  // a part without rows
        *static_cast<float*>(args.lse.data) = -INFINITY;
    if (choose.flag()) args.sink = world.values(SMLA_F32, {heads});
    args.out = world.output(out, {tokens, heads, width}, 2 * (0x1p-18 + rounding(out)));
    if (choose.flag()) args.lse_out = world.output(SMLA_F32, {tokens, heads}, 0x1p-16);
}

}  // namespace smla::fuzz
