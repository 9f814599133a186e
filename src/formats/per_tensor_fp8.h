// fp8_576 and fp8_512: values above 448 * scale saturate.
#pragma once

#include "formats/codec.h"

namespace smla {

template <class Of>
struct PerTensorFp8 {
    using Layout = Of;
    static constexpr Packing packing = Packing::row;
    static constexpr ScaleKind scale = ScaleKind::per_tensor;
    static constexpr uint32_t alignment = 1;

    template <class Real>
    static void encode(const RecordAt& at, const Real* values) {
        fp8::encode(values, Layout::width, at.scale, fp8::bytes(at.row()));
    }
    template <class Real>
    static void decode(const RecordAt& at, Real* values) {
        fp8::decode(fp8::bytes(at.row()), Layout::width, at.scale, values);
    }
};

}  // namespace smla
