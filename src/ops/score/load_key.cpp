#include "formats/fp8.h"
#include "formats/layouts.h"
#include "ops/score/score.h"

namespace smla {

namespace {

template <class Real>
Real load(const CacheView& keys, int64_t row, Real* codes) {
    if (keys.format->id != SMLA_INDEX_FP8_132) {  // e2m1 scales are powers of two: values are exact
        keys.decode(row, codes);
        return 1;
    }
    using Layout = layout::IndexFp8_132;
    const RecordAt at = keys.at(row);
    fp8::decode(fp8::bytes(at.page + Layout::row_at(at.offset)), Layout::width, 1.f, codes);
    return Real(fp8::load_f32(at.page + Layout::scale_at(at.page_tokens, at.offset)));
}

}  // namespace

float load_key(const CacheView& keys, int64_t row, float* codes) { return load(keys, row, codes); }
double load_key(const CacheView& keys, int64_t row, double* codes) { return load(keys, row, codes); }

}  // namespace smla
