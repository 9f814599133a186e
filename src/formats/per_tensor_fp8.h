// fp8_576 and fp8_512: plain rows of e4m3, value = code * scale, one scale for the whole cache. Larger values
// saturate.
#pragma once

#include "formats/format.h"
#include "formats/fp8.h"
#include "formats/layouts.h"

namespace smla {

template <class Layout>
struct PerTensorFp8Format {
    static size_t record_bytes(int32_t) { return Layout::record; }
    static size_t page_bytes(int32_t, int64_t page_tokens) {
        return size_t(Layout::record) * size_t(page_tokens);
    }

    template <class Real>
    static void encode(const RecordAt& at, const Real* values) {
        fp8::encode(values, Layout::width, at.scale, fp8::bytes(at.row()));
    }
    template <class Real>
    static void decode(const RecordAt& at, Real* values) {
        fp8::decode(fp8::bytes(at.row()), Layout::width, at.scale, values);
    }

    static constexpr Format make(smla_format id, const char* name) {
        return {.id = id,
                .name = name,
                .width = Layout::width,
                .max_width = Layout::width,
                .width_multiple = 1,
                .packing = Packing::row,
                .scale = ScaleKind::per_tensor,
                .alignment = 1,
                .record_bytes = record_bytes,
                .page_bytes = page_bytes,
                .encode_f32 = encode<float>,
                .encode_f64 = encode<double>,
                .decode_f32 = decode<float>,
                .decode_f64 = decode<double>};
    }
};

}  // namespace smla
