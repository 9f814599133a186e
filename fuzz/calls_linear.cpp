#include "calls.h"

namespace smla::fuzz {

namespace {
smla_dtype any_float(World& world) { return world.choose.any({SMLA_F32, SMLA_BF16, SMLA_F16}); }
}  // namespace

void make(World& world, smla_norm_args& args) {
    Choices& choose = world.choose;
    const int64_t tokens = choose.between(0, kTokens), groups = choose.between(0, 4),
                  width = choose.between(0, 70);
    args.kind = choose.any({SMLA_NORM_RMS, SMLA_NORM_LAYER});
    args.eps = choose.any({0.25, 1.});
    args.x = world.values(any_float(world), {tokens, groups, width});
    if (choose.flag()) args.weight = world.values(any_float(world), {width});
    if (args.kind == SMLA_NORM_LAYER && choose.flag()) args.bias = world.values(any_float(world), {width});
    const smla_dtype out = any_float(world);
    // up to 4 (a deviation from the mean) / sqrt(eps) * 2 + 2 in size
    args.out = world.output(out, {tokens, groups, width}, 18 * (0x1p-18 + rounding(out)));
}

void make(World& world, smla_rope_args& args) {
    Choices& choose = world.choose;
    const int64_t tokens = choose.between(0, kTokens), groups = choose.between(0, 4),
                  width = choose.between(0, 70);
    const int64_t pairs = choose.between(0, width / 2);
    args.style = choose.any({SMLA_ROPE_INTERLEAVED, SMLA_ROPE_HALF});
    args.inverse = choose.any({0, 1});
    args.first = int32_t(choose.between(0, width - 2 * pairs));
    const smla_dtype dtype = any_float(world), out = any_float(world);
    args.x = world.output(dtype, {tokens, groups, width}, 4 * (0x1p-18 + rounding(dtype)));
    const Tensor source = world.values(dtype, {tokens, groups, width});
    for (int64_t t = 0; t < tokens; ++t)
        for (int64_t g = 0; g < groups; ++g)
            for (int64_t d = 0; d < width; ++d) {
                const float value = load_one<float>(source, t, g, d);
                store_row(args.x, address(args.x, t, g, d), 1, &value);
            }
    args.positions = world.indices(choose.any({SMLA_I32, SMLA_I64}), {tokens}, 0, 1 << 20);
    args.frequencies = world.values(SMLA_F64, {pairs});
    if (choose.below(3) == 0) {
        const int64_t given = choose.flag() ? width : 2 * pairs;
        args.out = world.output(out, {tokens, groups, given}, 4 * (0x1p-18 + rounding(out)));
    }
}

void make(World& world, smla_project_args& args) {
    Choices& choose = world.choose;
    const int64_t tokens = choose.between(0, kTokens), groups = choose.between(0, 4);
    const int64_t in = choose.between(0, 90), out = choose.between(0, 90);
    args.x = world.values(any_float(world), {tokens, groups, in});
    if (choose.flag()) {
        args.w = world.values(any_float(world), {groups, out, in});
    } else {  // a transposed view
        args.w = world.values(any_float(world), {groups, in, out});
        std::swap(args.w.shape[1], args.w.shape[2]);
        std::swap(args.w.stride_elems[1], args.w.stride_elems[2]);
    }
    args.out = world.output(any_float(world), {tokens, groups, out});  // exact sums
}

}  // namespace smla::fuzz
