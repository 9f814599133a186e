#include "core/interrupt.h"
#include "ops/rope/rope.h"
#include "ops/rope/rotate.h"

namespace smla {

template <>
std::span<const StageField> fields_of<smla_rope_args>() {
    using namespace fields;
    using Args = smla_rope_args;
    static constexpr StageField table[] = {
        in(SMLA_FIELD(x), kFloats, "T G D").rows(),
        in(SMLA_FIELD(positions), kInts, "T"),
        in(SMLA_FIELD(frequencies), dtype_bit(SMLA_F64), "n").rows(),
        out(SMLA_FIELD(out), kFloats, "T G *").rows().optional().or_in_place_of(offsetof(Args, x)),
    };
    return table;
}

void check_rope_style(const char* field, smla_rope_style style) {
    SMLA_CHECK(style == SMLA_ROPE_INTERLEAVED || style == SMLA_ROPE_HALF, field, style,
               "interleaved (0) or half (1)");
}

void check_rotation(const char* field, int64_t first, const Tensor& frequencies, int64_t width) {
    const int64_t rotated = present(frequencies) ? 2 * frequencies.shape[0] : 0;
    SMLA_CHECK(rotated <= width, "args.frequencies.shape[0]", frequencies.shape[0],
               text("at most ", width / 2, " (pairs of the ", width, " channels)"));
    SMLA_CHECK(first >= 0 && first <= width - rotated, field, first,
               text("0 to ", width - rotated, " (", rotated, " of ", width, " channels are rotated)"));
}

void RopeOp::check(const Args& args, const CheckContext& context) {
    check_rope_style("args.style", args.style);
    SMLA_CHECK(args.inverse == 0 || args.inverse == 1, "args.inverse", args.inverse, "0 or 1");
    check_fields(args, context);
    check_rotation("args.first", args.first, args.frequencies, args.x.shape[2]);
    const int64_t rotated = 2 * args.frequencies.shape[0];
    if (!present(args.out)) return check_apart("args.x", args.x);  // in place
    SMLA_CHECK(args.out.shape[2] == rotated || args.out.shape[2] == args.x.shape[2], "args.out.shape[2]",
               args.out.shape[2],
               text(rotated, " (the rotated channels) or ", args.x.shape[2], " (whole rows)"));
}

namespace {

template <class Real>
void rotate_tokens(const smla_rope_args& args, int64_t begin, int64_t end) {
    const int64_t pairs = args.frequencies.shape[0], width = args.x.shape[2];
    const auto* frequencies = static_cast<const double*>(args.frequencies.data);
    const bool elsewhere = present(args.out), whole = elsewhere && args.out.shape[2] == width;
    // channels read of each row, and the offset of the rotated ones among them
    const int64_t skip = whole ? 0 : args.first, count = whole ? width : 2 * pairs, first = args.first - skip;
    const int64_t skip_bytes = skip * dtype_bits(args.x.dtype) / 8;
    Rotation<Real> rotation;
    std::vector<Real> row(static_cast<size_t>(count));
    for (int64_t t = begin; t < end; ++t) {
        stop_point();
        rotation.set(frequencies, pairs, load_int(args.positions, t), args.inverse != 0);
        for (int64_t g = 0; g < args.x.shape[1]; ++g) {
            char* at = address(args.x, t, g) + skip_bytes;
            load_row(args.x, at, count, row.data());
            if (args.style == SMLA_ROPE_HALF) rotation.half(row.data() + first);
            else rotation.interleaved(row.data() + first);
            if (elsewhere) store_row(args.out, address(args.out, t, g), count, row.data());
            else store_row(args.x, at, count, row.data());
        }
    }
}

}  // namespace

void RopeOp::reference(const Args& args, int64_t begin, int64_t end) {
    const smla_dtype result = present(args.out) ? args.out.dtype : args.x.dtype;
    if (result == SMLA_F64) rotate_tokens<double>(args, begin, end);
    else rotate_tokens<float>(args, begin, end);
}

}  // namespace smla
