// A fixed-width format from a codec, which names its Layout (layouts.h), how pages pack, what scales it has,
// its alignment, and encodes and decodes one record in float and double.
#pragma once

#include "formats/format.h"
#include "formats/fp8.h"
#include "formats/layouts.h"

namespace smla {

template <class Codec>
constexpr Format format_of(smla_format id, const char* name) {
    using Layout = typename Codec::Layout;
    return {.id = id,
            .name = name,
            .width = Layout::width,
            .max_width = Layout::width,
            .width_multiple = 1,
            .packing = Codec::packing,
            .scale = Codec::scale,
            .alignment = Codec::alignment,
            .record_bytes = [](int32_t) { return size_t(Layout::record); },
            .page_bytes =
                [](int32_t, int64_t page_tokens) {
                    if constexpr (Codec::packing == Packing::row)
                        return size_t(Layout::record) * size_t(page_tokens);
                    else return size_t(Layout::page_bytes(page_tokens));
                },
            .encode_f32 = Codec::template encode<float>,
            .encode_f64 = Codec::template encode<double>,
            .decode_f32 = Codec::template decode<float>,
            .decode_f64 = Codec::template decode<double>};
}

}  // namespace smla
