// Byte layouts of all formats, which the encoders and decoders in this folder and the specialized kernels of
// the engines use. Kernels are templates over a layout type and contain no offsets.
//   record    total bytes per token, without page padding
//   *_at      byte offset in the row (row-packed) or in the page (page-packed: functions of page_tokens and
//   the token)
#pragma once

#include <cstddef>
#include <cstdint>

namespace smla::layout {

// fp8_656 and fp8_528: 512 e4m3 | 4 f32 scales, one per 128 codes | Rope unscaled bf16 values (fp8_656).
template <int Rope>
struct LatentFp8 {
    static constexpr int codes = 512, tile = 128, tiles = codes / tile, rope = Rope, width = codes + rope;
    static constexpr int scales_at = codes, rope_at = scales_at + 4 * tiles;
    static constexpr int record = rope_at + 2 * rope;
};
using Fp8_656 = LatentFp8<64>;
using Fp8_528 = LatentFp8<0>;
static_assert(Fp8_656::width == 576 && Fp8_656::record == 656 && Fp8_656::rope_at == 528);
static_assert(Fp8_528::width == 512 && Fp8_528::record == 528);

// fp8_576 and fp8_512: rows of e4m3 codes, with one scale for the whole cache (value = code * scale).
template <int Width>
struct PerTensorFp8 {
    static constexpr int width = Width, record = Width;
    static constexpr int rope_at = 512;  // after the latent's codes; fp8_512 has no rope part
};
using Fp8_576 = PerTensorFp8<576>;
using Fp8_512 = PerTensorFp8<512>;

// fp8_584 (V4): all rows of the page (448 e4m3 | 64 bf16 rope), then for each token 7 E8M0 scales, one per 64
// codes, and a zero byte, so that a reader can load 8 bytes. A token's bytes are not contiguous.
struct Fp8_584 {
    static constexpr int codes = 448, tile = 64, tiles = codes / tile, rope = 64, width = codes + rope;
    static constexpr int rope_at = codes;         // offset in the token's row
    static constexpr int row = codes + 2 * rope;  // bytes of a row
    static constexpr int scales = tiles + 1;      // bytes of scales per token, including the zero byte
    static constexpr int record = row + scales;
    static constexpr int page_multiple = row;  // packed pages are padded to whole rows
    static constexpr int64_t row_at(int64_t token) { return token * row; }
    static constexpr int64_t scales_at(int64_t page_tokens, int64_t token) {
        return page_tokens * row + token * scales;
    }
    static constexpr int64_t page_bytes(int64_t page_tokens) {
        return (page_tokens * record + page_multiple - 1) / page_multiple * page_multiple;
    }
};
static_assert(Fp8_584::width == 512 && Fp8_584::row == 576 && Fp8_584::record == 584);
static_assert(Fp8_584::page_bytes(64) == 37440 && Fp8_584::page_bytes(2) == 1728);

// index_fp8_132 (index keys): all rows of the page (128 e4m3), then one f32 scale per token.
struct IndexFp8_132 {
    static constexpr int width = 128, row = width, record = row + 4;
    static constexpr int64_t row_at(int64_t token) { return token * row; }
    static constexpr int64_t scale_at(int64_t page_tokens, int64_t token) {
        return page_tokens * row + token * 4;
    }
    static constexpr int64_t page_bytes(int64_t page_tokens) { return page_tokens * record; }
};
static_assert(IndexFp8_132::record == 132 && IndexFp8_132::page_bytes(64) == 8448);

// index_mxfp4_68 (index keys): all rows of the page (128 e2m1, two per byte with the even channel in the low
// nibble), then for each token 4 E8M0 scales, one per 32 channels.
struct IndexMxfp4_68 {
    static constexpr int width = 128, tile = 32, tiles = width / tile, row = width / 2, record = row + tiles;
    static constexpr int64_t row_at(int64_t token) { return token * row; }
    static constexpr int64_t scales_at(int64_t page_tokens, int64_t token) {
        return page_tokens * row + token * tiles;
    }
    static constexpr int64_t page_bytes(int64_t page_tokens) { return page_tokens * record; }
};
static_assert(IndexMxfp4_68::record == 68 && IndexMxfp4_68::page_bytes(64) == 4352);

// A row of values and its scales: together, or (Split) with all rows of a page before all scales.
template <int Row, int Scales, bool Split, int Multiple = 1>
struct RowAndScales {
    static constexpr bool split = Split;
    static constexpr int row = Row, scales = Scales, record = row + scales;
    static constexpr int page_multiple = Split ? Multiple : 1;
    static constexpr int64_t row_at(int64_t token) { return token * row; }
    static constexpr int64_t scales_at(int64_t page_tokens, int64_t token) {
        return page_tokens * row + token * scales;
    }
    static constexpr int64_t page_bytes(int64_t page_tokens) {
        return (page_tokens * record + page_multiple - 1) / page_multiple * page_multiple;
    }
};

// fp8_528_g32* (V4.1): 512 e4m3, including the rope part | 16 E8M0 scales, one per 32 codes. _split stores
// all rows of the page, then the scales of each token; a packed page is padded to whole rows.
template <bool Split>
struct Fp8_528_g32 : RowAndScales<512, 16, Split, 512> {
    static constexpr int width = 512, tile = 32, tiles = width / tile;
};
static_assert(Fp8_528_g32<true>::record == 528 && Fp8_528_g32<true>::page_bytes(64) == 33792 &&
              Fp8_528_g32<true>::page_bytes(5) == 3072 && Fp8_528_g32<false>::page_bytes(5) == 2640);

// nvfp4_288* (V4.1): 512 e2m1, including the rope part, two per byte with the even channel in the low nibble
// | 32 e4m3 scales, one per 16 codes. _split stores all rows of the page, then the scales of each token; a
// packed page is padded to whole rows.
template <bool Split>
struct Nvfp4_288 : RowAndScales<256, 32, Split, 256> {
    static constexpr int width = 512, codes = width, tile = 16, tiles = codes / tile, rope = 0;
    static constexpr int scale_at(int group) { return group; }
};
static_assert(Nvfp4_288<true>::record == 288 && Nvfp4_288<true>::page_bytes(64) == 18432 &&
              Nvfp4_288<true>::page_bytes(5) == 1536);

// nvfp4_384 (V4): all rows of the page (448 e2m1 | 64 bf16 rope), then for each token 28 e4m3 scales, one per
// 16 codes, and 4 zero bytes.
struct Nvfp4_384 : RowAndScales<352, 32, true> {
    static constexpr int width = 512, codes = 448, tile = 16, tiles = codes / tile, rope = 64;
    static constexpr int rope_at = codes / 2;
    static constexpr int scale_at(int group) { return group; }
};
static_assert(Nvfp4_384::rope_at + 2 * Nvfp4_384::rope == Nvfp4_384::row && Nvfp4_384::record == 384);

// nvfp4_352 (V3.2): 512 e2m1 | 64 unscaled e4m3 rope values | 32 e4m3 scales, one per 16 codes. The scale of
// group g is at byte 8 (g mod 4) + g / 4.
struct Nvfp4_352 : RowAndScales<320, 32, false> {
    static constexpr int width = 576, codes = 512, tile = 16, tiles = codes / tile, rope = 64;
    static constexpr int rope_at = codes / 2;
    static constexpr int scale_at(int group) { return 8 * (group % 4) + group / 4; }
};
static_assert(Nvfp4_352::rope_at + Nvfp4_352::rope == Nvfp4_352::row && Nvfp4_352::record == 352);

// state_f32 and state_f64 store the state of a compressor: kv [width/2], then score + ape [width/2].
constexpr int64_t state_score_at(int64_t width) { return width / 2; }  // in values

}  // namespace smla::layout
