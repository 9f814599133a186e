// Tiles of keys: selects the cache rows of each tile and copies them to shared memory.
//
// bf16 rows are swizzled in a stage: chunk c (16 bytes) of row r is at c ^ (r & 7) within its 128 bytes, so
// that the 8 rows of an ldmatrix fall into 8 different bank groups. (Padded rows also avoid conflicts, but
// their copies straddle cache lines: 5 % slower.) fp8 records are unchanged, at a distance of record_pitch.
#pragma once

#include "engines/cuda/attend/mma/config.h"
#include "engines/cuda/common/ptx/cp_async.cuh"
#include "engines/cuda/common/ptx/shared.cuh"

namespace smla::cuda_attend {

// Returns the number of 16-byte chunks of a record, without the scales that fp8_584 stores elsewhere in the
// page.
__device__ inline uint32_t chunks_of(smla_format format) {
    return uint32_t(format == SMLA_FP8_656   ? layout::Fp8_656::record
                    : format == SMLA_FP8_528 ? layout::Fp8_528::record
                    : format == SMLA_FP8_512 ? layout::Fp8_512::record
                                             : 576) /
           16;
}
static_assert(layout::Fp8_576::record == 576 && layout::Fp8_584::row == 576);

// Offset of a record's scales in shared memory. kScalesAt: four f32 after 512 codes, as in fp8_656 and
// fp8_528; the only scale of fp8_512 is stored there four times. kScalesBehindAt: after the whole row, for
// the E8M0 codes of fp8_584 or four copies of the only scale of fp8_576.
constexpr uint32_t kScalesAt = layout::Fp8_656::scales_at, kScalesBehindAt = layout::Fp8_584::row;
static_assert(layout::Fp8_528::scales_at == kScalesAt && layout::Fp8_512::record == kScalesAt &&
              layout::Fp8_576::record == kScalesBehindAt);
__device__ inline uint32_t scales_at(smla_format format) {
    return format == SMLA_FP8_576 || format == SMLA_FP8_584 ? kScalesBehindAt : kScalesAt;
}

// Parameters that a block needs to copy rows of a token from a cache. They are in shared memory, because
// registers are full and selecting between the kernel parameters of two sources takes longer than a load.
struct alignas(16) BlockSource {
    const int* list = nullptr;  // the token's row list
    const char* data = nullptr;
    int listed = 0, list_stride = 0;  // length of the list, elements between entries
    uint32_t rows_below = 0, page_tokens = 0;
    Divisor page_rows;
    uint32_t page_stride_16 = 0, row_stride = 0;    // page_stride_16: page stride / 16
    uint8_t chunks = 0, format = SMLA_FORMAT_NONE;  // 16-byte chunks of an fp8 record
    uint16_t scales_at = 0;                         // offset of the scales in shared memory
    float scale = 0;                                // scale of the whole cache, if the format has one
    int first_tile = 0;                             // tile of the list minus tile of the block

    BlockSource() = default;
    __device__ BlockSource(const Source& source, int token) : format(uint8_t(source.cache.format)) {
        if (format == SMLA_FORMAT_NONE) return;
        list = static_cast<const int*>(source.rows.data) + cuda::element(source.rows, token, 0);
        data = source.cache.data;
        listed = int(source.length(token));
        list_stride = int(source.rows.stride_elems[1]);
        rows_below = source.rows_below;
        page_rows = source.page_rows;
        page_tokens = uint32_t(source.cache.page_tokens);
        page_stride_16 = uint32_t(source.cache.page_stride / 16);
        if (format == SMLA_FP8_576 || format == SMLA_FP8_512) scale = source.cache.tensor_scale();
        chunks = uint8_t(chunks_of(source.cache.format));
        scales_at = uint16_t(cuda_attend::scales_at(source.cache.format));
        row_stride = format == SMLA_FP8_584 ? layout::Fp8_584::row : uint32_t(source.cache.row_stride);
    }
    // Place of a row in its cache. Only defined if `valid`; masked entries (-1) are not valid.
    struct Row {
        bool valid;
        uint32_t page, token;
    };
    __device__ Row split(int row) const {
        const uint32_t number = uint32_t(row), page = page_rows.quotient(number);
        const uint32_t token = number - page * page_rows.by;
        return {number < rows_below && token < page_tokens, page, token};
    }
    __device__ const char* page(const Row& row) const {
        return data + 16 * (uint64_t(row.page) * page_stride_16);
    }
    __device__ const char* record(const Row& row) const {
        return page(row) + uint64_t(row.token) * row_stride;
    }
    __device__ const char* scales(const Row& row) const {
        return page(row) + layout::Fp8_584::scales_at(page_tokens, row.token);
    }
};

// Shared memory of KeyTiles: the sources, and a ring of row numbers, which cp.async fetches a few tiles ahead
// of the rows so that no instruction waits for row numbers.
template <int Keys, int Slots>
struct TileListSmem {
    BlockSource sources[2];  // primary, extra
    int tiles, extra_from;   // tiles of the block, and the first of them from the extra source
    int rows[Slots][Keys];
};

static_assert(sizeof(BlockSource) == 64);

// The tiles of one split of a token. Tiles of the primary source precede tiles of the extra source. Each tile
// has `Keys` list entries of one source.
template <int Keys, int Slots>
class KeyTiles {
public:
    __device__ KeyTiles(const Arguments& args, TileListSmem<Keys, Slots>& tile_list, int token, int split,
                        const Divisor& splits)
        : smem_(tile_list) {
        if (threadIdx.x < 32) fill(args, token, int(threadIdx.x), split, splits);
        __syncthreads();
        count_ = tile_list.tiles, extra_from_ = tile_list.extra_from;
    }
    __device__ int count() const { return count_; }
    __device__ bool extra(int i) const { return i >= extra_from_; }
    __device__ const BlockSource& source(int i) const { return smem_.sources[extra(i)]; }

    // Starts the copy of the row number of key `key` of tile i into the ring, unless the list has ended.
    __device__ void fetch(int i, int key) const {
        const BlockSource& source = this->source(i);
        const int j = entry(i, source) + key;
        if (i < count_ && j < source.listed)
            cuda::cp_async_4(cuda::shared_address(&smem_.rows[i % Slots][key]),
                             source.list + int64_t(j) * source.list_stride);
    }
    // Returns the row of key `key` of tile i, whose row number must have arrived.
    __device__ BlockSource::Row row(int i, int key) const { return row(i, key, source(i)); }
    __device__ BlockSource::Row row(int i, int key, const BlockSource& source) const {
        BlockSource::Row out = source.split(smem_.rows[i % Slots][key]);
        out.valid = out.valid && entry(i, source) + key < source.listed;
        return out;
    }

private:
    // Lanes 0 and 1 each read one source and exchange their numbers of tiles.
    __device__ void fill(const Arguments& args, int token, int lane, int split, const Divisor& splits) {
        BlockSource source;
        if (lane < 2) source = BlockSource(args.sources[lane ? 1 : 0], token);
        const int own = (source.listed + Keys - 1) / Keys;
        const int primary = __shfl_sync(~0u, own, 0), tiles = primary + __shfl_sync(~0u, own, 1);
        if (lane > 1) return;
        const int first = begin(tiles, split, splits);
        source.first_tile = lane ? first - primary : first;
        smem_.sources[lane] = source;
        smem_.tiles = begin(tiles, split + 1, splits) - first, smem_.extra_from = primary - first;
    }
    // Returns the first tile of a split, tiles * split / splits, without overflow of the product.
    static __device__ int begin(int tiles, int split, const Divisor& splits) {
        const uint32_t each = splits.quotient(uint32_t(tiles)), rest = uint32_t(tiles) - each * splits.by;
        return int(each * uint32_t(split) + splits.quotient(rest * uint32_t(split)));
    }
    // Returns the list entry of the first key of tile i.
    static __device__ int entry(int i, const BlockSource& source) { return (i + source.first_tile) * Keys; }

    TileListSmem<Keys, Slots>& smem_;
    int count_, extra_from_;
};

// Returns the shared address of chunk `chunk` (below 8) of row `row`. Chunk + 2 j, if below 8, is at this
// address ^ 32 j; the next 128 bytes of the row follow 128 bytes later.
__device__ inline uint32_t swizzled_at(uint32_t buffer, uint32_t pitch, uint32_t row, uint32_t chunk) {
    return buffer + row * pitch + ((chunk ^ (row & 7)) << 4);
}

// Copies one of 8 threads' share of a bf16 row to `to`, the swizzled address of its first chunk. An invalid
// row becomes zeros, and `from` is not read.
template <int Width>
__device__ inline void copy_row(uint32_t to, const char* from, bool valid, uint32_t chunk) {
#pragma unroll
    for (int c = 0; c < 2 * Width; c += 128)
        cuda::cp_async_16(to + uint32_t(c), from + c + 16 * chunk, valid);
}

// Copies one of `Lanes` threads' share of an fp8 record: every Lanes-th chunk, starting at `chunk`. An
// invalid row becomes zeros, and `from` is not read.
template <int Width, int Lanes>
__device__ inline void copy_record(uint32_t to, const char* from, uint32_t chunks, bool valid,
                                   uint32_t chunk) {
    to += 16 * chunk, from += 16 * chunk;  // added once, so that the offsets below are immediates
#pragma unroll
    for (uint32_t c = 0; c < record_pitch(Width) / 16; c += Lanes)
        if (c + Lanes <= 32 || chunk + c < chunks) cuda::cp_async_16(to + 16 * c, from + 16 * c, valid);
}
static_assert(kScalesBehindAt + 16 <= record_pitch(576) && kScalesBehindAt + 8 <= record_pitch(512));
// Copies the scales that the format does not store within the record. Called by one thread.
__device__ inline void copy_scales(uint32_t to, const BlockSource& source, const BlockSource::Row& row) {
    if (source.format == SMLA_FP8_584) cuda::cp_async_8(to + kScalesBehindAt, source.scales(row), row.valid);
    else if (source.format == SMLA_FP8_576 || source.format == SMLA_FP8_512) {
        const uint32_t scale = __float_as_uint(source.scale);
        cuda::store_shared(to + source.scales_at, make_uint4(scale, scale, scale, scale));
    }
}

// Properties of a tile of fp8 records that the products need; loaded before the wait for its keys.
template <int Width>
struct RecordKind {
    uint32_t scales_at;

    RecordKind() = default;
    __device__ explicit RecordKind(const BlockSource& source) : scales_at(source.scales_at) {}
    __device__ bool e8m0() const { return Width == 512 && scales_at == kScalesBehindAt; }
    __device__ bool bf16_rope() const { return Width == 576 ? scales_at == kScalesAt : e8m0(); }
};

// The counterpart for bf16 rows, which is empty.
struct RowKind {
    RowKind() = default;
    __device__ explicit RowKind(const BlockSource&) {}
};

}  // namespace smla::cuda_attend
