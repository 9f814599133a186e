// The specification of write_kv and write_index: one token at a time, in float or double, then the format's
// encoder.
#include "core/f32_range.h"
#include "core/hadamard.h"
#include "core/interrupt.h"
#include "ops/norm/norm_row.h"
#include "ops/ops.h"
#include "ops/rope/rope.h"
#include "ops/rope/rotate.h"

#include <vector>

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
        in(SMLA_FIELD(norm_weight), kFloats, "Dhead").optional(),
        in(SMLA_FIELD(norm_bias), kFloats, "Dhead").optional(),
        in(SMLA_FIELD(positions), kInts, "T").optional(),
        in(SMLA_FIELD(frequencies), dtype_bit(SMLA_F64), "n").rows().exactly_if(offsetof(Args, positions)),
        out(SMLA_FIELD(values), kFloats, "T *").optional(),
    };
    return table;
}

namespace {

bool is_f64(const Tensor& tensor) { return present(tensor) && tensor.dtype == SMLA_F64; }

void check_norm(const smla_write_args& args) {
    SMLA_CHECK(args.norm_kind == SMLA_NORM_RMS || args.norm_kind == SMLA_NORM_LAYER, "args.norm_kind",
               args.norm_kind, "rms (0) or layer (1)");
    SMLA_CHECK(!present(args.norm_weight) || is_positive_f32(args.eps), "args.eps", args.eps,
               "a number that is finite and positive in f32");
    SMLA_CHECK(!present(args.norm_bias) || (present(args.norm_weight) && args.norm_kind == SMLA_NORM_LAYER),
               "args.norm_bias", "present", "absent (a bias requires norm_weight and norm_kind layer)");
}

void check_write(const smla_write_args& args, uint32_t formats, const CheckContext& context) {
    SMLA_CHECK(args.reserved == 0, "args.reserved", args.reserved, "0");
    check_rope_style("args.rope_style", args.rope_style);
    check_norm(args);
    check_fields(args, context);
    check_format("args.cache", args.cache, formats);
    const int64_t width = CacheView(args.cache).width, tokens = args.head.shape[0];
    const int64_t given = args.head.shape[1] + (present(args.tail) ? args.tail.shape[1] : 0);
    SMLA_CHECK(given == width,
               present(args.tail) ? "args.head.shape[1] + args.tail.shape[1]" : "args.head.shape[1]", given,
               text(width, " (the width of the cache)"));
    SMLA_CHECK(args.slots.shape[0] <= tokens, "args.slots.shape[0]", args.slots.shape[0],
               text("at most ", tokens, " (the tokens of head)"));
    check_rotation("args.rope_first", args.rope_first, args.frequencies, width);
    if (!present(args.values)) return;
    SMLA_CHECK(args.values.shape[1] == width, "args.values.shape[1]", args.values.shape[1],
               text(width, " (the width of the cache)"));
    if (!is_f64(args.head) && !is_f64(args.tail))
        check_dtype("args.values", args.values, kFloats & ~dtype_bit(SMLA_F64));
}

}  // namespace

void WriteKvOp::check(const Args& args, const CheckContext& context) {
    SMLA_CHECK(args.hadamard == 0, "args.hadamard", args.hadamard,
               "0 (only index keys have a Hadamard rotation)");
    check_write(args, kKvFormats, context);
}

void WriteIndexOp::check(const Args& args, const CheckContext& context) {
    SMLA_CHECK(args.hadamard == 0 || args.hadamard == 1, "args.hadamard", args.hadamard, "0 or 1");
    check_write(args, kIndexFormats, context);
    const int64_t width = CacheView(args.cache).width;
    SMLA_CHECK(!args.hadamard || is_power_of_two(width), "args.cache.width", width,
               "a power of two (required by the Hadamard rotation)");
}

namespace {

// Makes a token's row from its tensors, for the encoder.
template <class Real>
class RowMaker {
public:
    explicit RowMaker(const smla_write_args& args)
        : args_(args),
          weight_(values_of<Real>(args.norm_weight)),
          bias_(values_of<Real>(args.norm_bias)),
          row_(size_t(CacheView(args.cache).width)) {}

    Real* row_of(int64_t token) {
        const int64_t head = args_.head.shape[1], width = int64_t(row_.size());
        load_row(args_.head, address(args_.head, token), head, row_.data());
        if (present(args_.tail))
            load_row(args_.tail, address(args_.tail, token), width - head, row_.data() + head);
        if (present(args_.norm_weight))
            norm_row<Real>({row_.data(), size_t(head)}, args_.norm_kind == SMLA_NORM_LAYER, args_.eps,
                           weight_, bias_);
        if (present(args_.positions)) rotate(token);
        if (present(args_.values)) store_row(args_.values, address(args_.values, token), width, row_.data());
        if (args_.hadamard) hadamard(row_.data(), width);
        return row_.data();
    }

private:
    void rotate(int64_t token) {
        rotation_.set(static_cast<const double*>(args_.frequencies.data), args_.frequencies.shape[0],
                      load_int(args_.positions, token), false);
        Real* const first = row_.data() + args_.rope_first;
        if (args_.rope_style == SMLA_ROPE_HALF) rotation_.half(first);
        else rotation_.interleaved(first);
    }

    const smla_write_args& args_;
    const std::vector<Real> weight_, bias_;
    std::vector<Real> row_;
    Rotation<Real> rotation_;
};

template <class Real>
void write_tokens(const smla_write_args& args, int64_t begin, int64_t end) {
    const CacheView cache(args.cache);
    RowMaker<Real> maker(args);
    for (int64_t t = begin; t < end; ++t) {
        stop_point();
        const int64_t slot = load_int(args.slots, t);
        const bool hole = cache.hole(slot);
        if (hole && !present(args.values)) continue;
        const Real* const row = maker.row_of(t);
        if (!hole) cache.encode(slot, row);
    }
}

void write(const smla_write_args& args, int64_t begin, int64_t end) {
    const bool f64 = args.head.dtype == SMLA_F64 || (present(args.tail) && args.tail.dtype == SMLA_F64);
    if (f64) write_tokens<double>(args, begin, end);
    else write_tokens<float>(args, begin, end);
}

}  // namespace

void WriteKvOp::reference(const Args& args, int64_t begin, int64_t end) { write(args, begin, end); }
void WriteIndexOp::reference(const Args& args, int64_t begin, int64_t end) { write(args, begin, end); }

}  // namespace smla
