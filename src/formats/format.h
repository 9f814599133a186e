// A record format: the bytes of one cached token and how a page packs them. layouts.h has every byte offset,
// one file per format its page rule, encode and decode; nothing else knows a byte. format.cpp lists them all.
#pragma once

#include "core/tensor.h"
#include "core/workspace.h"
#include "formats/row_range.h"

#include <smla/types.h>

#include <span>

namespace smla {

// Where one token lives. A row-packed record is at page + offset * row_stride; the parts of a page-packed one
// follow from offset and page_tokens.
struct RecordAt {
    char* page;
    int64_t offset;  // token in its page
    int64_t page_tokens;
    int64_t row_stride;  // bytes; row-packed formats
    int32_t width;
    float scale;  // per-tensor formats
    smla_writer writer;

    char* row() const { return page + offset * row_stride; }
};

enum class Packing { row, page };
enum class ScaleKind { none, per_tensor, f32_tile, e8m0_tile, e4m3_tile };

struct Format {
    smla_format id;
    const char* name;
    int32_t width;  // 0: the cache says, 1..max_width
    int32_t max_width;
    int32_t width_multiple;
    Packing packing;
    ScaleKind scale;
    int32_t values_per_scale;               // of the scales in a record; 0: it has none
    uint32_t alignment;                     // of data, page stride and row stride, in bytes
    size_t (*record_bytes)(int32_t width);  // per token, without page padding
    int32_t page_multiple;                  // packed pages are padded to a multiple of so many bytes
    smla_writer writers;                    // bits that a cache may choose
    // Values are in the order of the dequantised row. encode rounds as the format's writer rule says.
    void (*encode_f32)(const RecordAt&, const float* values);
    void (*encode_f64)(const RecordAt&, const double* values);
    void (*decode_f32)(const RecordAt&, float* values);
    void (*decode_f64)(const RecordAt&, double* values);

    // Whether compressed entries are always rounded to bf16 before they are quantised. Formats with
    // SMLA_WRITER_BF16_FIRST leave that to the cache.
    bool rounds_entries() const { return scale != ScaleKind::none && !(writers & SMLA_WRITER_BF16_FIRST); }
    size_t page_bytes(int32_t at_width, int64_t page_tokens) const {  // packed page stride
        const size_t records = record_bytes(at_width) * size_t(page_tokens), multiple = size_t(page_multiple);
        return (records + multiple - 1) / multiple * multiple;
    }
};

std::span<const Format* const> all_formats();
const Format* find_format(smla_format id);  // null if unknown
// Also by the aliases bf16_576, bf16_512, bf16 and f32; not by fp8_ds_mla, which names two records.
const Format* find_format(std::string_view name);
constexpr uint32_t format_bit(smla_format id) { return 1u << id; }
template <class... Ids>
constexpr uint32_t formats(Ids... each) {
    return (format_bit(each) | ...);
}
constexpr uint32_t kRowFormats = formats(SMLA_ROW_F64, SMLA_ROW_F32, SMLA_ROW_BF16);
constexpr uint32_t kE2m1Formats =
    formats(SMLA_NVFP4_288, SMLA_NVFP4_288_SPLIT, SMLA_NVFP4_384, SMLA_NVFP4_352);
constexpr uint32_t kKvFormats = kRowFormats |
                                formats(SMLA_FP8_656, SMLA_FP8_576, SMLA_FP8_584, SMLA_FP8_512, SMLA_FP8_528,
                                        SMLA_FP8_528_G32, SMLA_FP8_528_G32_SPLIT) |
                                kE2m1Formats;
constexpr uint32_t kIndexFormats = kRowFormats | formats(SMLA_INDEX_FP8_132, SMLA_INDEX_MXFP4_68);
constexpr uint32_t kStateFormats = formats(SMLA_STATE_F32, SMLA_STATE_F64);
std::string format_list(uint32_t allowed);  // "row_f64, row_f32, ..."

// Throws unless the cache is of an allowed format with sane pages, strides, scale and memory.
void check_cache(const char* field, const smla_cache& cache, uint32_t allowed,
                 const CheckContext& context = {});
// The format alone: for a rule that depends on the stage.
void check_format(const char* field, const smla_cache& cache, uint32_t allowed);
// What a cache's width has to be; empty: it is.
std::string why_not_cache_width(const Format& format, int32_t width);
// What a cache's host scale has to be; empty: it is.
std::string why_not_scale(const Format& format, float scale);
size_t packed_page_bytes(const smla_cache& cache);  // what page_stride_bytes = 0 stands for
size_t cache_bytes(const smla_cache& cache);        // from the first page to the end of the last
// The same without the padding of the last page: bytes that a call may read or write.
size_t touched_bytes(const smla_cache& cache);

// The scale that calls read from the host's memory behind a pointer; null: there is none, or it is a
// device's.
const float* scale_in_memory(const smla_cache& cache);

// A checked cache, resolved: defaults filled in.
struct CacheView {
    explicit CacheView(const smla_cache& cache);

    const Format* format;
    char* data;
    int32_t width;
    int64_t page_tokens, page_rows, pages, capacity;
    int64_t page_stride, row_stride;  // bytes
    float scale;                      // the host's number
    const float* scale_device;  // instead, if not null: of a cache in host memory whose format has a scale
    smla_writer writer;

    float tensor_scale() const { return scale_device ? *scale_device : scale; }

    RowRange range() const { return {capacity, page_rows, page_tokens}; }
    bool hole(int64_t row) const { return range().hole(row); }
    RecordAt at(int64_t row) const {  // row is not a hole
        const int64_t page = row / page_rows;
        return {data + page * page_stride,
                row - page * page_rows,
                page_tokens,
                row_stride,
                width,
                tensor_scale(),
                writer};
    }
    void decode(int64_t row, float* values) const { format->decode_f32(at(row), values); }
    void decode(int64_t row, double* values) const { format->decode_f64(at(row), values); }
    void encode(int64_t row, const float* values) const { format->encode_f32(at(row), values); }
    void encode(int64_t row, const double* values) const { format->encode_f64(at(row), values); }
};

// One definition per format file.
extern const Format kRowF64, kRowF32, kRowBf16;
extern const Format kFp8_656, kFp8_576, kFp8_584, kFp8_512, kFp8_528;
extern const Format kFp8_528_g32, kFp8_528_g32Split;
extern const Format kNvfp4_288, kNvfp4_288Split, kNvfp4_384, kNvfp4_352;
extern const Format kIndexFp8_132, kIndexMxfp4_68;
extern const Format kStateF32, kStateF64;

}  // namespace smla
