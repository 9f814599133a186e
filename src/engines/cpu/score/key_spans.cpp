#include "engines/cpu/score/key_spans.h"

#include "formats/fp8.h"
#include "formats/layouts.h"

#include <cstring>

namespace smla {

namespace {

alignas(64) constexpr uint8_t kZeros[4096] = {};  // a row of 1024 f32

ValueBytes kind_of(smla_format format) {
    switch (format) {
        case SMLA_INDEX_FP8_132: return ValueBytes::e4m3;
        case SMLA_INDEX_MXFP4_68: return ValueBytes::e2m1;
        case SMLA_ROW_BF16: return ValueBytes::bf16;
        default: return ValueBytes::f32;
    }
}

}  // namespace

KeySpans::KeySpans(const smla_score_args& args)
    : args_(args), keys_(args.keys), kind_(kind_of(args.keys.format)), paged_(present(args.block_table)) {
    constexpr int kBits[] = {8, 4, 16, 32};  // by ValueBytes
    row_bytes_ = keys_.width * kBits[int(kind_)] / 8;
}

int64_t KeySpans::request(int64_t token) const {
    if (!paged_) return 0;
    const int64_t request = load_int(args_.request_of_token, token);
    return request >= 0 && request < args_.block_table.shape[0] ? request : -1;
}

int64_t KeySpans::page_of(int64_t request, int64_t block) const {
    int64_t page = block;
    if (paged_) {
        if (request < 0 || block >= args_.block_table.shape[1]) return -1;
        page = load_int(args_.block_table, request, block);
    }
    return page >= 0 && page < keys_.pages ? page : -1;
}

void KeySpans::append(int64_t request, ColumnWindow columns, KeyTile& tile) const {
    // Without a block table, columns are cache rows, and page i starts at row i * page_rows.
    const int64_t page_columns = paged_ ? keys_.page_tokens : keys_.page_rows;
    int64_t block = columns.begin / page_columns, offset = columns.begin % page_columns;
    int at = tile.n();
    tile.columns.end += columns.end - columns.begin;
    for (const int n = tile.n(); at < n; ++block, offset = 0) {
        const int span = int(std::min<int64_t>(n - at, page_columns - offset));
        const int64_t page = page_of(request, block);
        const int64_t tokens = page < 0 ? 0 : std::clamp<int64_t>(keys_.page_tokens - offset, 0, span);
        if (tokens > 0) locate_in_page(page, offset, int(tokens), at, tile);
        if (at == 0) tile.of_one_page = int(tokens);
        for (int j = at + int(tokens); j < at + span; ++j) {
            tile.rows[j] = {kZeros, kZeros};
            tile.holes |= uint64_t(1) << j;
        }
        at += span;
    }
}

void KeySpans::locate_in_page(int64_t page, int64_t offset, int n, int at, KeyTile& tile) const {
    char* data = keys_.data + page * keys_.page_stride;
    ValueRow* rows = tile.rows + at;
    const auto each = [&](auto row, auto scale) {
        for (int j = 0; j < n; ++j)
            rows[j] = {fp8::bytes(data + row(offset + j)), fp8::bytes(data + scale(offset + j))};
    };
    const int64_t page_tokens = keys_.page_tokens, row_stride = keys_.row_stride;
    if (kind_ == ValueBytes::e4m3) {
        using Layout = layout::IndexFp8_132;
        each(Layout::row_at, [=](int64_t token) { return Layout::scale_at(page_tokens, token); });
    } else if (kind_ == ValueBytes::e2m1) {
        using Layout = layout::IndexMxfp4_68;
        each(Layout::row_at, [=](int64_t token) { return Layout::scales_at(page_tokens, token); });
    } else {
        const auto row = [=](int64_t token) { return token * row_stride; };
        each(row, row);
    }
}

void KeySpans::load_scales(KeyTile& tile) const {
    if (kind_ == ValueBytes::e4m3) {
        const int first = tile.of_one_page;
        if (first > 0) std::memcpy(tile.scales, tile.rows[0].scales, size_t(first) * sizeof(float));
        for (int j = first; j < tile.n(); ++j)
            std::memcpy(tile.scales + j, tile.rows[j].scales, sizeof(float));
        std::fill(tile.scales + tile.n(), tile.scales + kScoreTile, 0.f);
    } else {
        std::fill(tile.scales, tile.scales + kScoreTile, 1.f);
    }
}

ValueBytes query_kind(const smla_score_args& args) {
    switch (args.q.dtype) {
        case SMLA_E4M3: return ValueBytes::e4m3;
        case SMLA_E2M1: return ValueBytes::e2m1;
        case SMLA_BF16: return ValueBytes::bf16;
        default: return ValueBytes::f32;
    }
}

ValueRow query_row(const smla_score_args& args, int64_t token, int64_t head) {
    ValueRow row{fp8::bytes(address(args.q, token, head)), nullptr};
    if (present(args.q_scales)) row.scales = fp8::bytes(address(args.q_scales, token, head));
    return row;
}

}  // namespace smla
