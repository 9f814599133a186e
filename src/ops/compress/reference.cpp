// The specification of compress: plain loops, one token at a time, in float or double.
#include "core/f32_range.h"
#include "core/hadamard.h"
#include "core/interrupt.h"
#include "ops/compress/compress.h"
#include "ops/compress/entry.h"

#include <cmath>
#include <limits>

namespace smla {

namespace {

void check_channels(const smla_compress_args& args, int64_t width) {
    SMLA_CHECK(2 * args.frequencies.shape[0] <= width, "args.frequencies.shape[0]", args.frequencies.shape[0],
               text("at most ", width / 2, " (pairs of the ", width, " channels of an entry)"));
    SMLA_CHECK(args.hadamard == 0 || args.hadamard == 1, "args.hadamard", args.hadamard, "0 or 1");
    if (args.hadamard) {
        SMLA_CHECK(kIndexFormats & format_bit(args.cache.format), "args.hadamard", 1,
                   text("0 for ", find_format(args.cache.format)->name, " (only index entries are rotated)"));
        SMLA_CHECK(is_power_of_two(width), "args.hadamard", 1,
                   text("0 for a width (", width, ") that is not a power of two"));
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
               "a number that is finite and positive in f32");
    check_fields(args, context);
    const bool f64 = args.state.format == SMLA_STATE_F64;
    SMLA_CHECK(f64 || args.cache.format != SMLA_ROW_F64, "args.cache.format", "row_f64",
               "another format, because row_f64 requires state_f64");
    const int64_t width = CacheView(args.cache).width, state_width = 2 * overlap(args) * width;
    SMLA_CHECK(args.state.width == state_width, "args.state.width", args.state.width,
               text(state_width, " for entries of ", width, " channels at ratio ", args.ratio));
    check_channels(args, width);
    const int64_t tokens = args.positions.shape[0];
    SMLA_CHECK(args.slots.shape[0] <= tokens, "args.slots.shape[0]", args.slots.shape[0],
               text("at most ", tokens, " (the tokens of positions)"));
    for (const auto& [field, tensor] :
         {std::pair("args.entries", &args.entries), {"args.latents", &args.latents}})
        if (present(*tensor)) check_dtype(field, *tensor, f64 ? kFloats : kFloats & ~dtype_bit(SMLA_F64));
}

namespace {

template <class Real>
class Compressor {
public:
    explicit Compressor(const smla_compress_args& args)
        : maker_(args),
          score_(overlap(args) * maker_.width()),
          row_(size_t(maker_.state().width)),
          peak_(size_t(maker_.width())),
          sum_(peak_.size()),
          entry_(peak_.size()) {}

    void token(int64_t t) {
        if (!maker_.closes(t)) return;
        pool(t);
        maker_.finish(t, entry_.data());
    }

private:
    // Calls use(kv, score) for each existing state row of the window, oldest first.
    template <class Use>
    void each_row(int64_t t, Use use) {
        maker_.each_row(t, [&](int64_t row, int64_t kv) {
            maker_.state().decode(row, row_.data());
            use(row_.data() + kv, row_.data() + kv + score_);
        });
    }

    // entry[d] = sum_j softmax_j(score_j[d]) * kv_j[d]; 0 if no row exists
    void pool(int64_t t) {
        const size_t n = entry_.size();
        peak_.assign(n, -std::numeric_limits<Real>::infinity());
        sum_.assign(n, Real(0));
        entry_.assign(n, Real(0));
        each_row(t, [&](const Real*, const Real* score) {
            for (size_t d = 0; d < n; ++d) peak_[d] = score[d] > peak_[d] ? score[d] : peak_[d];
        });
        bool any = false;
        each_row(t, [&](const Real* kv, const Real* score) {
            any = true;
            for (size_t d = 0; d < n; ++d) {
                const Real weight = std::exp(score[d] - peak_[d]);
                sum_[d] += weight;
                entry_[d] += weight * kv[d];
            }
        });
        if (!any) return;
        for (size_t d = 0; d < n; ++d) entry_[d] /= sum_[d];
    }

    EntryMaker<Real> maker_;
    const int64_t score_;  // distance of a row's scores from its kv
    std::vector<Real> row_, peak_, sum_, entry_;
};

template <class Real>
void compress_tokens(const smla_compress_args& args, int64_t begin, int64_t end) {
    Compressor<Real> compressor(args);
    for (int64_t t = begin; t < end; ++t) {
        stop_point();
        compressor.token(t);
    }
}

}  // namespace

void CompressOp::reference(const Args& args, int64_t begin, int64_t end) {
    if (args.state.format == SMLA_STATE_F64) compress_tokens<double>(args, begin, end);
    else compress_tokens<float>(args, begin, end);
}

}  // namespace smla
