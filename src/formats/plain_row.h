// row_* and state_*: `width` contiguous values per token, with any row stride.
#pragma once

#include "formats/format.h"

namespace smla {

template <class Stored>
struct PlainRow {
    static size_t record_bytes(int32_t width) { return sizeof(Stored) * size_t(width); }

    // Loops vectorize only with the width in a local variable and no aliasing between row and values.
    template <class Real>
    static void encode(const RecordAt& at, const Real* __restrict values) {
        Stored* __restrict out = reinterpret_cast<Stored*>(at.row());
        const int32_t width = at.width;
        for (int32_t i = 0; i < width; ++i) {
            if constexpr (sizeof(Stored) == 2) out[i] = f32_to_bf16(float(values[i]));
            else out[i] = Stored(values[i]);
        }
    }
    template <class Real>
    static void decode(const RecordAt& at, Real* __restrict values) {
        const Stored* __restrict in = reinterpret_cast<const Stored*>(at.row());
        const int32_t width = at.width;
        for (int32_t i = 0; i < width; ++i) {
            if constexpr (sizeof(Stored) == 2) values[i] = Real(bf16_to_f32(in[i]));
            else values[i] = Real(in[i]);
        }
    }

    static constexpr Format make(smla_format id, const char* name, int32_t max_width, int32_t multiple) {
        return {.id = id,
                .name = name,
                .width = 0,
                .max_width = max_width,
                .width_multiple = multiple,
                .packing = Packing::row,
                .scale = ScaleKind::none,
                .values_per_scale = 0,
                .alignment = sizeof(Stored),
                .record_bytes = record_bytes,
                .page_multiple = 1,
                .writers = 0,
                .encode_f32 = encode<float>,
                .encode_f64 = encode<double>,
                .decode_f32 = decode<float>,
                .decode_f64 = decode<double>};
    }
};

}  // namespace smla
