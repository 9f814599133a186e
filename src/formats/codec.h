// Creates a fixed-width Format from a codec: a struct with its Layout (layouts.h), page packing, kind of
// scales, alignment, and encode and decode of one record in float and double.
#pragma once

#include "formats/format.h"
#include "formats/fp8.h"
#include "formats/layouts.h"

namespace smla {

template <class Layout>
constexpr int32_t page_multiple() {
    if constexpr (requires { Layout::page_multiple; }) return Layout::page_multiple;
    else return 1;
}

template <class Layout>
constexpr int32_t values_per_scale(ScaleKind scale) {
    if (scale == ScaleKind::none || scale == ScaleKind::per_tensor) return 0;
    if constexpr (requires { Layout::tile; }) return Layout::tile;
    else return Layout::width;
}

template <class Codec>
constexpr smla_writer writers_of() {
    if constexpr (requires { Codec::writers; }) return Codec::writers;
    else return 0;
}

// Writer bits of all record formats of V4.1.
inline constexpr smla_writer kEntryWriters = SMLA_WRITER_BF16_FIRST | SMLA_WRITER_BF16_POOLED;

// Return the addresses of a token's values and scales, in layouts with both arrangements.
template <class Layout>
uint8_t* values_of(const RecordAt& at) {
    return fp8::bytes(Layout::split ? at.page + Layout::row_at(at.offset) : at.row());
}
template <class Layout>
uint8_t* scales_of(const RecordAt& at) {
    return fp8::bytes(Layout::split ? at.page + Layout::scales_at(at.page_tokens, at.offset)
                                    : at.row() + Layout::row);
}

template <class Codec>
constexpr Format format_of(smla_format id, const char* name) {
    using Layout = typename Codec::Layout;
    if constexpr (Codec::packing == Packing::page) {
        constexpr int tokens = 3, multiple = page_multiple<Layout>();
        static_assert(Layout::page_bytes(tokens) ==
                      (tokens * Layout::record + multiple - 1) / multiple * multiple);
    }
    return {.id = id,
            .name = name,
            .width = Layout::width,
            .max_width = Layout::width,
            .width_multiple = 1,
            .packing = Codec::packing,
            .scale = Codec::scale,
            .values_per_scale = values_per_scale<Layout>(Codec::scale),
            .alignment = Codec::alignment,
            .record_bytes = [](int32_t) { return size_t(Layout::record); },
            .page_multiple = page_multiple<Layout>(),
            .writers = writers_of<Codec>(),
            .encode_f32 = Codec::template encode<float>,
            .encode_f64 = Codec::template encode<double>,
            .decode_f32 = Codec::template decode<float>,
            .decode_f64 = Codec::template decode<double>};
}

}  // namespace smla
