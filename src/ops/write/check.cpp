#include "core/hadamard.h"
#include "ops/write/write.h"

namespace smla {

namespace {
void check_write(const smla_write_args& args, uint32_t allowed) {
    check_cache("args.cache", args.cache, allowed);
    const int64_t width = CacheView(args.cache).width;
    check_tensor("args.head", args.head, kFloats, {kAny, kAny});
    const int64_t tokens = args.head.shape[0];
    int64_t given = args.head.shape[1];
    if (check_optional("args.tail", args.tail, kFloats, {tokens, kAny})) given += args.tail.shape[1];
    SMLA_CHECK(given == width,
               present(args.tail) ? "args.head.shape[1] + args.tail.shape[1]" : "args.head.shape[1]", given,
               text("the width of the cache: ", width));
    check_tensor("args.slots", args.slots, kInts, {kAny});
    SMLA_CHECK(args.slots.shape[0] <= tokens, "args.slots.shape[0]", args.slots.shape[0],
               text("at most the tokens of head: ", tokens));
}
}  // namespace

void WriteKvOp::check(const Args& args) {
    SMLA_CHECK(args.hadamard == 0, "args.hadamard", args.hadamard, "0: only indexer keys are rotated");
    check_write(args, kKvFormats);
}

void WriteIndexOp::check(const Args& args) {
    SMLA_CHECK(args.hadamard == 0 || args.hadamard == 1, "args.hadamard", args.hadamard, "0 or 1");
    check_write(args, kIndexFormats);
    const int64_t width = CacheView(args.cache).width;
    SMLA_CHECK(!args.hadamard || is_power_of_two(width), "args.cache.width", width,
               "a power of two, to rotate");
}

}  // namespace smla
