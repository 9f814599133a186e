// The specification of compress: plain loops, one token at a time, in float or double.
#include "core/interrupt.h"
#include "ops/compress/entry.h"

#include <cmath>
#include <limits>

namespace smla {

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
    // Calls use(kv, score) for each state row of the window that exists, oldest first.
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
    const int64_t score_;  // from a row's kv to its scores
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
