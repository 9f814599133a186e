#include "core/hadamard.h"
#include "ops/compress/compress.h"

#include <cmath>

namespace smla {

namespace {

void check_channels(const smla_compress_args& args, int64_t width) {
    check_tensor("args.norm_weight", args.norm_weight, kFloats, {width});
    check_tensor("args.frequencies", args.frequencies, dtype_bit(SMLA_F64), {kAny});
    check_rows("args.frequencies", args.frequencies);
    SMLA_CHECK(2 * args.frequencies.shape[0] <= width, "args.frequencies.shape[0]", args.frequencies.shape[0],
               text("at most ", width / 2, ": pairs of the entry's ", width, " channels"));
    SMLA_CHECK(args.hadamard == 0 || args.hadamard == 1, "args.hadamard", args.hadamard, "0 or 1");
    if (args.hadamard) {
        SMLA_CHECK(kIndexFormats & format_bit(args.cache.format), "args.hadamard", 1,
                   text("0 for ", find_format(args.cache.format)->name, ": only index entries are rotated"));
        SMLA_CHECK(is_power_of_two(width), "args.hadamard", 1,
                   text("0 at width ", width, ", no power of two"));
    }
}

}  // namespace

void CompressOp::check(const Args& args) {
    SMLA_CHECK(args.ratio >= 1, "args.ratio", args.ratio, "1 or more");
    SMLA_CHECK(args.reserved == 0, "args.reserved", args.reserved, "0");
    SMLA_CHECK(args.eps > 0 && std::isfinite(args.eps), "args.eps", args.eps, "a finite number above 0");
    check_cache("args.state", args.state, kStateFormats);
    check_cache("args.cache", args.cache, kKvFormats | kIndexFormats);
    const bool f64 = args.state.format == SMLA_STATE_F64;
    SMLA_CHECK(f64 || args.cache.format != SMLA_ROW_F64, "args.cache.format", "row_f64",
               "state_f64 with row_f64");
    const int64_t width = CacheView(args.cache).width, state_width = 2 * overlap(args.ratio) * width;
    SMLA_CHECK(args.state.width == state_width, "args.state.width", args.state.width,
               text(state_width, " for entries of ", width, " channels at ratio ", args.ratio));
    check_channels(args, width);

    check_tensor("args.positions", args.positions, kInts, {kAny});
    const int64_t tokens = args.positions.shape[0];
    check_tensor("args.request_of_token", args.request_of_token, kInt32, {tokens});
    check_tensor("args.state_table", args.state_table, kInt32, {kAny, kAny});
    check_tensor("args.slots", args.slots, kInts, {kAny});
    SMLA_CHECK(args.slots.shape[0] <= tokens, "args.slots.shape[0]", args.slots.shape[0],
               text("at most ", tokens, ", the tokens of positions"));
    const uint32_t entry_types = f64 ? kFloats : kFloats & ~dtype_bit(SMLA_F64);
    check_optional_output("args.entries", args.entries, entry_types, {tokens, width});
}

}  // namespace smla
