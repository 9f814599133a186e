// A record format: the bytes of a cached token and their arrangement in a page. layouts.h has all byte
// offsets. Each format has a file with its page rule, encode and decode. format.cpp lists all formats.
#pragma once

#include "core/tensor.h"
#include "core/workspace.h"
#include "formats/row_range.h"

#include <smla/types.h>

#include <span>

namespace smla {

// Location of one token. A row-packed record is at page + offset * row_stride; offset and page_tokens
// determine the parts of a page-packed record.
struct RecordAt {
    char* page;
    int64_t offset;  // token in its page
    int64_t page_tokens;
    int64_t row_stride;  // in bytes, for row-packed formats
    int32_t width;
    float scale;  // for per-tensor formats
    smla_writer writer;

    char* row() const { return page + offset * row_stride; }
};

enum class Packing { row, page };
enum class ScaleKind { none, per_tensor, f32_tile, e8m0_tile, e4m3_tile };

struct Format {
    smla_format id;
    const char* name;
    int32_t width;  // 0: set by the cache, 1..max_width
    int32_t max_width;
    int32_t width_multiple;
    Packing packing;
    ScaleKind scale;
    int32_t values_per_scale;               // 0: records have no scales
    uint32_t alignment;                     // alignment of data, page stride and row stride, in bytes
    size_t (*record_bytes)(int32_t width);  // bytes per token, without page padding
    int32_t page_multiple;                  // packed pages are padded to a multiple of this many bytes
    smla_writer writers;                    // writer bits that a cache may set
    // Values are in the order of the dequantized row. encode rounds by the format's writer rule.
    void (*encode_f32)(const RecordAt&, const float* values);
    void (*encode_f64)(const RecordAt&, const double* values);
    void (*decode_f32)(const RecordAt&, float* values);
    void (*decode_f64)(const RecordAt&, double* values);

    // Returns whether compressed entries are always rounded to bf16 before quantization. For formats with
    // SMLA_WRITER_BF16_FIRST, the cache's writer bits decide.
    bool rounds_entries() const { return scale != ScaleKind::none && !(writers & SMLA_WRITER_BF16_FIRST); }
    size_t page_bytes(int32_t at_width, int64_t page_tokens) const {  // packed page stride
        const size_t records = record_bytes(at_width) * size_t(page_tokens), multiple = size_t(page_multiple);
        return (records + multiple - 1) / multiple * multiple;
    }
};

std::span<const Format* const> all_formats();
const Format* find_format(smla_format id);  // null if unknown
// Also accepts the aliases bf16_576, bf16_512, bf16 and f32, but not fp8_ds_mla, which names two records.
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

// Throws unless the cache has an allowed format and valid pages, strides, scale and memory.
void check_cache(const char* field, const smla_cache& cache, uint32_t allowed,
                 const CheckContext& context = {});
// Checks only the format, for a rule that depends on the stage.
void check_format(const char* field, const smla_cache& cache, uint32_t allowed);
// Returns the requirement that a cache's width violates, or an empty text.
std::string why_not_cache_width(const Format& format, int32_t width);
// Returns the requirement that a cache's host scale violates, or an empty text.
std::string why_not_scale(const Format& format, float scale);
size_t packed_page_bytes(const smla_cache& cache);  // the page stride if page_stride_bytes is 0
size_t cache_bytes(const smla_cache& cache);        // bytes from the first page to the end of the last
// Bytes that a call may read or write: all bytes except the padding of the last page.
size_t touched_bytes(const smla_cache& cache);

// Returns the scale that calls read from host memory, or null if there is none or it is on a device.
const float* scale_in_memory(const smla_cache& cache);

// A checked cache, with defaults filled in.
struct CacheView {
    explicit CacheView(const smla_cache& cache);

    const Format* format;
    char* data;
    int32_t width;
    int64_t page_tokens, page_rows, pages, capacity;
    int64_t page_stride, row_stride;  // bytes
    float scale;                      // ignored if scale_device is set
    const float* scale_device;        // optional: replaces `scale` for a cache in host memory
    smla_writer writer;

    float tensor_scale() const { return scale_device ? *scale_device : scale; }

    RowRange range() const { return {capacity, page_rows, page_tokens}; }
    bool hole(int64_t row) const { return range().hole(row); }
    RecordAt at(int64_t row) const {  // row is valid
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

// Each format file defines one of these.
extern const Format kRowF64, kRowF32, kRowBf16;
extern const Format kFp8_656, kFp8_576, kFp8_584, kFp8_512, kFp8_528;
extern const Format kFp8_528_g32, kFp8_528_g32Split;
extern const Format kNvfp4_288, kNvfp4_288Split, kNvfp4_384, kNvfp4_352;
extern const Format kIndexFp8_132, kIndexMxfp4_68;
extern const Format kStateF32, kStateF64;

}  // namespace smla
