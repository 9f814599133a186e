#include "core/hadamard.h"
#include "ops/write/write.h"

namespace smla {

template <>
std::span<const StageField> fields_of<smla_write_args>() {
    using namespace fields;
    using Args = smla_write_args;
    static constexpr StageField table[] = {
        cache(SMLA_FIELD(cache), kKvFormats | kIndexFormats).written(),
        in(SMLA_FIELD(head), kFloats, "T Dhead"),
        in(SMLA_FIELD(tail), kFloats, "T Dtail").optional(),
        in(SMLA_FIELD(slots), kInts, "N"),
    };
    return table;
}

namespace {
void check_write(const smla_write_args& args, uint32_t formats, const CheckContext& context) {
    check_fields(args, context);
    check_format("args.cache", args.cache, formats);
    const int64_t width = CacheView(args.cache).width, tokens = args.head.shape[0];
    const int64_t given = args.head.shape[1] + (present(args.tail) ? args.tail.shape[1] : 0);
    SMLA_CHECK(given == width,
               present(args.tail) ? "args.head.shape[1] + args.tail.shape[1]" : "args.head.shape[1]", given,
               text("the width of the cache: ", width));
    SMLA_CHECK(args.slots.shape[0] <= tokens, "args.slots.shape[0]", args.slots.shape[0],
               text("at most the tokens of head: ", tokens));
}
}  // namespace

void WriteKvOp::check(const Args& args, const CheckContext& context) {
    SMLA_CHECK(args.hadamard == 0, "args.hadamard", args.hadamard, "0: only indexer keys are rotated");
    check_write(args, kKvFormats, context);
}

void WriteIndexOp::check(const Args& args, const CheckContext& context) {
    SMLA_CHECK(args.hadamard == 0 || args.hadamard == 1, "args.hadamard", args.hadamard, "0 or 1");
    check_write(args, kIndexFormats, context);
    const int64_t width = CacheView(args.cache).width;
    SMLA_CHECK(!args.hadamard || is_power_of_two(width), "args.cache.width", width,
               "a power of two, to rotate");
}

}  // namespace smla
