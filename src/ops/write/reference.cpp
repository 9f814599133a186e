// The specification of write_kv and write_index: one token at a time, in float or double, then the format's
// encoder.
#include "core/hadamard.h"
#include "ops/write/write.h"

#include <vector>

namespace smla {

namespace {
template <class Real>
void write_tokens(const smla_write_args& args, int64_t begin, int64_t end) {
    const CacheView cache(args.cache);
    const int64_t head = args.head.shape[1];
    std::vector<Real> row(size_t(cache.width));
    for (int64_t t = begin; t < end; ++t) {
        const int64_t slot = load_int(args.slots, t);
        if (cache.hole(slot)) continue;
        load_row(args.head, address(args.head, t), head, row.data());
        if (present(args.tail))
            load_row(args.tail, address(args.tail, t), cache.width - head, row.data() + head);
        if (args.hadamard) hadamard(row.data(), cache.width);
        cache.encode(slot, row.data());
    }
}
}  // namespace

void WriteOp::reference(const Args& args, int64_t begin, int64_t end) {
    const bool f64 = args.head.dtype == SMLA_F64 || (present(args.tail) && args.tail.dtype == SMLA_F64);
    if (f64) write_tokens<double>(args, begin, end);
    else write_tokens<float>(args, begin, end);
}

}  // namespace smla
