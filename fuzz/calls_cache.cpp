#include "calls.h"

namespace smla::fuzz {

namespace {

constexpr smla_format kAnyFormat[] = {
    SMLA_ROW_F32,           SMLA_ROW_BF16,  SMLA_FP8_656,         SMLA_FP8_576,        SMLA_FP8_584,
    SMLA_FP8_512,           SMLA_FP8_528,   SMLA_INDEX_FP8_132,   SMLA_INDEX_MXFP4_68, SMLA_FP8_528_G32,
    SMLA_FP8_528_G32_SPLIT, SMLA_NVFP4_288, SMLA_NVFP4_288_SPLIT, SMLA_NVFP4_384,      SMLA_NVFP4_352};

smla_cache make_cache(World& world, int32_t& width) {
    const smla_format format = kAnyFormat[world.choose.below(std::size(kAnyFormat))];
    const int32_t own = find_format(format)->width;
    width = own ? own : int32_t(world.choose.between(1, 70));
    return world.cache(format, width);
}

smla_dtype any_float(World& world) { return world.choose.any({SMLA_F32, SMLA_BF16, SMLA_F16}); }
smla_dtype any_int(World& world) { return world.choose.any({SMLA_I32, SMLA_I64}); }

Tensor make_slots(World& world, int64_t tokens, const smla_cache& cache) {
    const int64_t capacity = CacheView(cache).capacity;
    return world.indices(any_int(world), {world.choose.between(0, tokens)}, -1,
                         std::max<int64_t>(capacity - 1, 0));
}

}  // namespace

void make(World& world, smla_write_args& args) {
    int32_t width = 0;
    args.cache = make_cache(world, width);
    const int64_t tokens = world.choose.between(0, kTokens);
    const int64_t tail = world.choose.flag() ? world.choose.between(0, width) : 0;
    args.hadamard = world.choose.any({0, 0, 1});
    args.head = world.values(any_float(world), {tokens, width - tail});
    if (tail > 0) args.tail = world.values(any_float(world), {tokens, tail});
    args.slots = make_slots(world, tokens, args.cache);
    if (args.hadamard) world.ignore(args.cache);  // the rotation may round elsewhere
}

void make(World& world, smla_save_state_args& args) {
    Choices& choose = world.choose;
    const int64_t tokens = choose.between(0, kTokens), width = choose.between(1, 40),
                  ratio = choose.between(1, 9);
    args.kv = world.values(any_float(world), {tokens, width});
    args.score = world.values(any_float(world), {tokens, width});
    if (choose.below(4)) args.ape = world.values(SMLA_F32, {ratio, width});
    args.positions = world.indices(any_int(world), {tokens}, 0, 50);
    args.state = world.cache(SMLA_STATE_F32, int32_t(2 * width));
    args.slots = make_slots(world, tokens, args.state);
}

void make(World& world, smla_compress_args& args) {
    Choices& choose = world.choose;
    int32_t width = 0;
    args.cache = make_cache(world, width);
    args.ratio = choose.any({1, 2, 4, 4, 8, 16});
    args.hadamard = choose.any({0, 0, 0, 1});
    args.eps = 0.25;
    args.state = world.cache(SMLA_STATE_F32, 2 * width * (args.ratio == 4 ? 2 : 1));
    const int64_t tokens = choose.between(0, kTokens), requests = choose.between(0, 3),
                  blocks = choose.between(0, 6);
    args.state_table =
        world.indices(SMLA_I32, {requests, blocks}, 0, std::max<int64_t>(args.state.pages - 1, 0));
    args.request_of_token = world.indices(SMLA_I32, {tokens}, 0, std::max<int64_t>(requests - 1, 0));
    args.positions = world.indices(any_int(world), {tokens}, 0, 40);
    args.slots = make_slots(world, tokens, args.cache);
    args.norm_weight = world.values(any_float(world), {width});
    args.frequencies = world.values(SMLA_F64, {choose.between(0, width / 2)});
    // A pooled value (up to 2) differs by the exponential; the norm multiplies by at most 1 / sqrt(eps) = 2,
    // the weight by 2, the rotation by sqrt(2).
    const smla_dtype entries = any_float(world);
    args.entries = world.output(entries, {tokens, width}, 16 * (0x1p-16 + rounding(entries)));
    world.ignore(args.cache);  // codes of values on the edge of two
    if (choose.below(4) == 0) args.entries = {};
    if (choose.flag())
        args.latents = world.output(entries, {tokens, width}, 16 * (0x1p-16 + rounding(entries)));
}

void make(World& world, smla_gather_args& args) {
    Choices& choose = world.choose;
    int32_t width = 0;
    args.cache = make_cache(world, width);
    args.raw = args.cache.format == SMLA_INDEX_FP8_132 && choose.flag();
    const int64_t requests = choose.between(0, kTokens), blocks = choose.between(0, 6),
                  rows = choose.between(0, 30);
    args.block_table =
        world.indices(SMLA_I32, {requests, blocks}, 0, std::max<int64_t>(args.cache.pages - 1, 0));
    if (choose.flag()) args.starts = world.indices(SMLA_I32, {requests}, 0, 10);
    args.cu = world.prefix_sums(requests, rows);
    args.out = world.output(args.raw ? SMLA_E4M3 : any_float(world), {rows, width});
    if (args.raw) args.scales = world.output(SMLA_F32, {rows});
}

void make(World& world, smla_copy_pages_args& args) {
    int32_t width = 0;
    args.source = make_cache(world, width);
    args.target = args.source;
    if (world.choose.flag()) {
        args.target = world.cache(args.source.format, width);
        args.target.scale = args.source.scale;
    }
    const int64_t pages = std::max<int64_t>(std::max(args.source.pages, args.target.pages) - 1, 0);
    args.pairs = world.indices(SMLA_I32, {world.choose.between(0, 6), 2}, 0, pages);
}

}  // namespace smla::fuzz
