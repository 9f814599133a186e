#include "engines/cpu/score/tiles.h"

namespace smla {

void ScoreScratch::take(Arena& arena, const ScoreKernel& kernel, int block_rows, int heads, int width) {
    const size_t rows = size_t(block_rows), padded = size_t(kernel.padded_heads(heads));
    const size_t stride = size_t(kernel.stride(width));
    queries = arena.take<uint32_t>(rows * padded * size_t(kernel.words(width)));
    weights = arena.take<float>(rows * padded);
    packed = arena.take<int64_t>(rows);
    query_rows = arena.take<uint32_t>(padded * stride);
    for (uint32_t*& each : keys) each = arena.take<uint32_t>(size_t(kernel.tile) * stride);
    sums = arena.take<float>(size_t(kernel.tile) * size_t(kernel.lanes));
    logits = arena.take<float>(size_t(kernel.tile));
}

size_t score_scratch_bytes(const ScoreKernel& kernel, int block_rows, int heads, int width) {
    Arena arena;
    ScoreScratch().take(arena, kernel, block_rows, heads, width);
    return arena.used() - kWorkspaceHeader;
}

int score_block_rows(const ScoreKernel& kernel, int64_t tokens, int heads, int width, int threads,
                     size_t budget) {
    constexpr size_t kQueryBytes = 256 << 10;
    int rows = int(std::clamp<int64_t>(tokens, 1, kMaxBlockRows));
    const size_t row_bytes = size_t(kernel.padded_heads(heads)) * size_t(kernel.words(width)) * 4;
    while (rows > 1 && size_t(rows) * row_bytes > kQueryBytes) --rows;
    const auto total = [&] {
        return kWorkspaceHeader + size_t(threads) * score_scratch_bytes(kernel, rows, heads, width);
    };
    while (budget != 0 && rows > 1 && total() > budget) --rows;
    return rows;
}

KeyTile& ScoreTiles::begin_tile(ScoreScratch& scratch, Pipeline& line) const {
    KeyTile& tile = line.tile(0);
    uint32_t* keys = scratch.keys[line.buffer];
    if (!line.decoded[line.buffer]) kernel_.decode(spans_.kind(), tile.rows, tile.n(), width_, stride_, keys);
    line.decoded[line.buffer] = true;
    // Kernels score several keys at a time, so words past the end are set, but their logits are unused.
    const int end = std::min(tile.n() + kernel_.keys - 1, kernel_.tile);
    std::fill(keys + int64_t(tile.n()) * stride_, keys + int64_t(end) * stride_, 0u);
    spans_.load_scales(tile);
    return tile;
}

void ScoreTiles::score(ScoreScratch& scratch, int slot, int64_t token, Pipeline& line) const {
    if (scratch.packed[slot] != token) pack(scratch, slot, token);
    const int padded = kernel_.padded_heads(heads_), other = line.buffer ^ 1;
    const TileQuery query{scratch.queries + int64_t(slot) * padded * words_,
                          scratch.weights + int64_t(slot) * padded, heads_, words_, stride_};
    TilesAhead ahead;
    if (!line.decoded[other]) {
        ahead.kind = spans_.kind();
        ahead.rows = line.tile(1).rows;
        ahead.n = line.tile(1).n();
        ahead.width = width_;
        ahead.out = scratch.keys[other];
    }
    if (!line.fetched) {
        ahead.fetch = line.tile(2).rows;
        ahead.fetch_rows = line.tile(2).n();
        ahead.fetch_bytes = spans_.row_bytes();
        line.fetched = true;
    }
    const KeyTile& tile = line.tile(0);
    if (kernel_.score(query, scratch.keys[line.buffer], tile.scales, tile.n(), ahead, scratch.sums,
                      scratch.logits))
        line.decoded[other] = true;
    for (uint64_t holes = tile.holes; holes != 0; holes &= holes - 1)
        scratch.logits[std::countr_zero(holes)] = -std::numeric_limits<float>::infinity();
}

void ScoreTiles::pack(ScoreScratch& scratch, int slot, int64_t token) const {
    const int padded = kernel_.padded_heads(heads_);
    ValueRow rows[kMaxIndexHeads];
    for (int h = 0; h < heads_; ++h) rows[h] = query_row(args_, token, h);
    kernel_.decode(query_kind(args_), rows, heads_, width_, stride_, scratch.query_rows);
    std::fill(scratch.query_rows + int64_t(heads_) * stride_, scratch.query_rows + int64_t(padded) * stride_,
              0u);
    uint32_t* const packed = scratch.queries + int64_t(slot) * padded * words_;
    for (int h = 0; h < padded; h += kernel_.lanes) {
        const int first = h / kernel_.block * kernel_.block;
        kernel_.transpose(scratch.query_rows + int64_t(h) * stride_, stride_, words_,
                          packed + int64_t(first) * words_ + (h - first),
                          std::min(kernel_.block, padded - first));
    }
    float* w = scratch.weights + int64_t(slot) * padded;
    load_row(args_.w, address(args_.w, token), heads_, w);
    std::fill(w + heads_, w + padded, 0.f);
    scratch.packed[slot] = token;
}

}  // namespace smla
