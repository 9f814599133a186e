#include "core/f32_range.h"
#include "core/hadamard.h"
#include "ops/compress/compress.h"

namespace smla {

namespace {

void check_channels(const smla_compress_args& args, int64_t width) {
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

template <>
std::span<const StageField> fields_of<smla_compress_args>() {
    using namespace fields;
    using Args = smla_compress_args;
    static constexpr StageField table[] = {
        cache(SMLA_FIELD(state), kStateFormats),
        cache(SMLA_FIELD(cache), kKvFormats | kIndexFormats, "D").written(),
        in(SMLA_FIELD(norm_weight), kFloats, "D").optional(),
        in(SMLA_FIELD(frequencies), dtype_bit(SMLA_F64), "n").rows(),
        in(SMLA_FIELD(positions), kInts, "T"),
        in(SMLA_FIELD(request_of_token), kInt32, "T"),
        in(SMLA_FIELD(state_table), kInt32, "R MB"),
        in(SMLA_FIELD(slots), kInts, "N"),
        out(SMLA_FIELD(entries), kFloats, "T D").optional(),
        out(SMLA_FIELD(latents), kFloats, "T D").optional(),
    };
    return table;
}

void CompressOp::check(const Args& args, const CheckContext& context) {
    SMLA_CHECK(args.ratio >= 1, "args.ratio", args.ratio, "1 or more");
    SMLA_CHECK(args.no_overlap == 0 || args.no_overlap == 1, "args.no_overlap", args.no_overlap, "0 or 1");
    SMLA_CHECK(!present(args.norm_weight) || is_positive_f32(args.eps), "args.eps", args.eps,
               "a finite number above 0, also in f32");
    check_fields(args, context);
    const bool f64 = args.state.format == SMLA_STATE_F64;
    SMLA_CHECK(f64 || args.cache.format != SMLA_ROW_F64, "args.cache.format", "row_f64",
               "state_f64 with row_f64");
    const int64_t width = CacheView(args.cache).width, state_width = 2 * overlap(args) * width;
    SMLA_CHECK(args.state.width == state_width, "args.state.width", args.state.width,
               text(state_width, " for entries of ", width, " channels at ratio ", args.ratio));
    check_channels(args, width);
    const int64_t tokens = args.positions.shape[0];
    SMLA_CHECK(args.slots.shape[0] <= tokens, "args.slots.shape[0]", args.slots.shape[0],
               text("at most ", tokens, ", the tokens of positions"));
    for (const auto& [field, tensor] :
         {std::pair("args.entries", &args.entries), {"args.latents", &args.latents}})
        if (present(*tensor)) check_dtype(field, *tensor, f64 ? kFloats : kFloats & ~dtype_bit(SMLA_F64));
}

}  // namespace smla
