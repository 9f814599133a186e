// The specification of compress: plain loops, one token at a time, in float or double.
#include "core/hadamard.h"
#include "ops/compress/compress.h"
#include "ops/map/map.h"
#include "ops/rope/rotate.h"

#include <cmath>
#include <limits>
#include <vector>

namespace smla {

namespace {

template <class Real>
void to_bf16(std::vector<Real>& values) {
    for (Real& v : values) v = Real(round_to_bf16(float(v)));
}

template <class Real>
class Compressor {
public:
    explicit Compressor(const smla_compress_args& args)
        : args_(args),
          state_(args.state),
          cache_(args.cache),
          width_(cache_.width),
          coff_(overlap(args)),
          rounds_(cache_.format->rounds_entries()),
          row_(size_t(state_.width)),
          peak_(size_t(width_)),
          sum_(size_t(width_)),
          entry_(size_t(width_)),
          weight_(size_t(width_)) {
        if (!present(args.norm_weight)) return;
        load_row(args.norm_weight, address(args.norm_weight, 0), width_, weight_.data());
    }

    void token(int64_t t) {
        const int64_t slot = load_int(args_.slots, t), position = load_int(args_.positions, t);
        if (position < 0 || position % args_.ratio != args_.ratio - 1 || cache_.hole(slot)) return;
        pool(load_int(args_.request_of_token, t), position);
        norm();
        if (present(args_.latents))
            store_row(args_.latents, address(args_.latents, t), width_, entry_.data());
        rotate(position / args_.ratio * args_.ratio);
        if (present(args_.entries))
            store_row(args_.entries, address(args_.entries, t), width_, entry_.data());
        // Quantising writers take a bf16 row, as if one kernel had computed the entry and another stored it.
        // Rotated channels come from unrounded values, so this is their only rounding.
        if (rounds_) to_bf16(entry_);
        if (args_.hadamard) {
            hadamard(entry_.data(), width_);
            if (rounds_) to_bf16(entry_);
        }
        cache_.encode(slot, entry_.data());
    }

private:
    // Calls use(kv, score) for each state row of the window that exists, oldest first.
    template <class Use>
    void each_row(int64_t request, int64_t position, Use use) {
        const int64_t window = coff_ * args_.ratio, first = position - window + 1;
        for (int64_t j = 0; j < window; ++j) {
            const int64_t row =
                map_position(args_.state_table, request, first + j, state_.page_tokens, state_.page_rows);
            if (state_.hole(row)) continue;
            state_.decode(row, row_.data());
            // with overlap, the older half of the window went through channels [0,D), the newer through
            // [D,2D)
            const Real* kv = row_.data() + (j < window - args_.ratio ? 0 : (coff_ - 1) * width_);
            use(kv, kv + coff_ * width_);
        }
    }

    // entry[d] = sum_j softmax_j(score_j[d]) * kv_j[d]; 0 if no row exists
    void pool(int64_t request, int64_t position) {
        const size_t n = size_t(width_);
        peak_.assign(n, -std::numeric_limits<Real>::infinity());
        sum_.assign(n, Real(0));
        entry_.assign(n, Real(0));
        each_row(request, position, [&](const Real*, const Real* score) {
            for (size_t d = 0; d < n; ++d) peak_[d] = score[d] > peak_[d] ? score[d] : peak_[d];
        });
        bool any = false;
        each_row(request, position, [&](const Real* kv, const Real* score) {
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

    void norm() {
        if (!present(args_.norm_weight)) return;
        if (cache_.writer & SMLA_WRITER_BF16_POOLED) to_bf16(entry_);
        Real square = 0;
        for (const Real v : entry_) square += v * v;
        const Real factor = Real(1) / std::sqrt(square / Real(width_) + Real(args_.eps));
        for (size_t d = 0; d < entry_.size(); ++d) entry_[d] = entry_[d] * factor * weight_[d];
    }

    void rotate(int64_t position) {
        const int64_t pairs = args_.frequencies.shape[0];
        rotation_.set(static_cast<const double*>(args_.frequencies.data), pairs, position, false);
        rotation_.interleaved(entry_.data() + width_ - 2 * pairs);
    }

    const smla_compress_args& args_;
    const CacheView state_, cache_;
    const int64_t width_, coff_;
    const bool rounds_;
    std::vector<Real> row_, peak_, sum_, entry_, weight_;
    Rotation<Real> rotation_;
};

template <class Real>
void compress_tokens(const smla_compress_args& args, int64_t begin, int64_t end) {
    Compressor<Real> compressor(args);
    for (int64_t t = begin; t < end; ++t) compressor.token(t);
}

}  // namespace

void CompressOp::reference(const Args& args, int64_t begin, int64_t end) {
    if (args.state.format == SMLA_STATE_F64) compress_tokens<double>(args, begin, end);
    else compress_tokens<float>(args, begin, end);
}

}  // namespace smla
