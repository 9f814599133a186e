// The specification of write_kv and write_index: one token at a time, in float or double, then the format's
// encoder.
#include "core/hadamard.h"
#include "core/interrupt.h"
#include "ops/norm/norm_row.h"
#include "ops/rope/rotate.h"
#include "ops/write/write.h"

#include <vector>

namespace smla {

namespace {

// What becomes of a token's row between its tensors and the encoder.
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

}  // namespace

void WriteOp::reference(const Args& args, int64_t begin, int64_t end) {
    const bool f64 = args.head.dtype == SMLA_F64 || (present(args.tail) && args.tail.dtype == SMLA_F64);
    if (f64) write_tokens<double>(args, begin, end);
    else write_tokens<float>(args, begin, end);
}

}  // namespace smla
