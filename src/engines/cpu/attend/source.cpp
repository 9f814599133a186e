#include "engines/cpu/attend/source.h"

#include "formats/layouts.h"

#include <bit>

namespace smla::cpu_attend {

Source::Source(const smla_attend_args& args, const smla_attend_source& source, const Micro& micro)
    : source_(&source), view_(source.cache), decoder_(micro.decoder(source.cache.format, view_.width)) {
    rounded_ = rounds_keys(args, view_);
    split_ = source.cache.format == SMLA_FP8_584;
    flat_ = view_.format->packing == Packing::row && view_.page_stride == view_.page_rows * view_.row_stride;
    if (std::has_single_bit(uint64_t(view_.page_rows)))
        page_shift_ = std::countr_zero(uint64_t(view_.page_rows));
    row_bytes_ = split_ ? layout::Fp8_584::row : int(view_.format->record_bytes(view_.width));
    row_lines_ = row_bytes_ / int(kCacheLine) + 1;
    const bool tiled = view_.format->scale == ScaleKind::f32_tile;
    const int tile = tiled ? view_.format->values_per_scale : view_.width;
    tiles_ = (tiled ? layout::Fp8_656::codes : view_.width) / tile;
    tile_words_ = tile / micro.values_per_word;
}

int64_t Source::valid(int64_t token, int32_t* rows) const { return valid_rows(*source_, view_, token, rows); }

void Source::locate(const int32_t* rows, int count, KeyAddress* out) const {
    if (flat_) {
        for (int i = 0; i < count; ++i) out[i] = {view_.data + rows[i] * view_.row_stride, nullptr};
        return;
    }
    for (int i = 0; i < count; ++i) {
        const uint32_t row = uint32_t(rows[i]);
        const int64_t page = page_shift_ >= 0 ? row >> page_shift_ : row / uint64_t(view_.page_rows);
        const int64_t offset = row - page * view_.page_rows;
        char* at = view_.data + page * view_.page_stride;
        // The last branch includes page-packed formats without a decoder here, whose address is only
        // prefetched.
        if (split_)
            out[i] = {at + layout::Fp8_584::row_at(offset),
                      at + layout::Fp8_584::scales_at(view_.page_tokens, offset)};
        else out[i] = {at + offset * view_.row_stride, nullptr};
    }
}

bool Source::decode(const int32_t* rows, const DecodeArgs& args) const {
    if (decoder_.rows) return decoder_.rows(args);
    decode_any(rows, args);
    return true;
}

// Decodes with the format's own decoder, to f32 words of any width.
void Source::decode_any(const int32_t* rows, const DecodeArgs& args) const {
    for (int k = 0; k < args.padded; ++k) {
        float* out = reinterpret_cast<float*>(args.keys_out + k * args.row_words);
        int filled = 0;
        if (k < args.count) {
            view_.decode(rows[k], out);
            filled = args.width;
            if (args.rounded)
                for (int d = 0; d < args.width; ++d) out[d] = round_to_bf16(out[d]);
        }
        for (int64_t d = filled; d < args.row_words; ++d)
            out[d] = 0.f;  // the last value tile extends past the width
    }
}

}  // namespace smla::cpu_attend
