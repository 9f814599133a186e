#include "ops/compress/entry.h"

#include "core/hadamard.h"
#include "ops/norm/norm_row.h"

namespace smla {

namespace {

template <class Real>
void to_bf16(Real* values, int64_t n) {
    for (int64_t i = 0; i < n; ++i) values[i] = Real(round_to_bf16(float(values[i])));
}

}  // namespace

template <class Real>
EntryMaker<Real>::EntryMaker(const smla_compress_args& args)
    : args_(args),
      state_(args.state),
      cache_(args.cache),
      rounds_(cache_.format->rounds_entries()),
      weight_(values_of<Real>(args.norm_weight)) {}

template <class Real>
void EntryMaker<Real>::finish(int64_t token, Real* entry) {
    norm(entry);
    if (present(args_.latents)) store_row(args_.latents, address(args_.latents, token), width(), entry);
    rotate(load_int(args_.positions, token) / args_.ratio * args_.ratio, entry);
    if (present(args_.entries)) store_row(args_.entries, address(args_.entries, token), width(), entry);
    // Writers of quantized formats read a bf16 row, as if one kernel had computed the entry and another
    // stored it. Rotated channels come from unrounded values, so this is their only rounding.
    if (rounds_) to_bf16(entry, width());
    if (args_.hadamard) {
        hadamard(entry, width());
        if (rounds_) to_bf16(entry, width());
    }
    cache_.encode(load_int(args_.slots, token), entry);
}

template <class Real>
void EntryMaker<Real>::norm(Real* entry) const {
    if (!present(args_.norm_weight)) return;
    if (cache_.writer & SMLA_WRITER_BF16_POOLED) to_bf16(entry, width());
    norm_row<Real>({entry, weight_.size()}, false, args_.eps, weight_, {});
}

template <class Real>
void EntryMaker<Real>::rotate(int64_t position, Real* entry) {
    const int64_t pairs = args_.frequencies.shape[0];
    rotation_.set(static_cast<const double*>(args_.frequencies.data), pairs, position, false);
    rotation_.interleaved(entry + width() - 2 * pairs);
}

template class EntryMaker<float>;
template class EntryMaker<double>;

}  // namespace smla
