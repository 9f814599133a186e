// The listed rows of a token: where they lie, a tile at a time, holes and empty tiles left out.
#pragma once

#include "engines/cuda_common/ptx/cp_async.cuh"
#include "engines/cuda_mma/attend/arguments.cuh"

namespace smla::cuda_attend {

// Of 16 bytes in a record, without the scales of fp8_584, which lie apart.
__device__ inline uint32_t pieces_of(smla_format format) {
    return uint32_t(format == SMLA_FP8_656   ? layout::Fp8_656::record
                    : format == SMLA_FP8_528 ? layout::Fp8_528::record
                    : format == SMLA_FP8_512 ? layout::Fp8_512::record
                                             : 576) /
           16;
}
static_assert(layout::Fp8_576::record == 576 && layout::Fp8_584::row == 576);

// Where a record's scales lie in shared memory: four f32 behind 512 codes, where those of fp8_656 and fp8_528
// are, or behind the whole row: fp8_584's E8M0 codes, fp8_576's only scale. fp8_512's only one is made four.
constexpr uint32_t kScalesAt = layout::Fp8_656::scales_at, kScalesBehindAt = layout::Fp8_584::row;
static_assert(layout::Fp8_528::scales_at == kScalesAt && layout::Fp8_512::record == kScalesAt &&
              layout::Fp8_576::record == kScalesBehindAt);
__device__ inline uint32_t scales_at(smla_format format) {
    return format == SMLA_FP8_576 || format == SMLA_FP8_584 ? kScalesBehindAt : kScalesAt;
}

// One source as a block's copies need it; in shared memory, because the registers are the sums' and choosing
// between two sources' parameters takes longer than a load.
struct alignas(16) Reader {
    const int* list = nullptr;  // row numbers of the token
    const char* data = nullptr;
    int listed = 0, list_stride = 0;  // those that count
    uint32_t rows_below = 0, page_tokens = 0;
    Divisor page_rows;
    uint32_t page_stride_16 = 0, row_stride = 0;    // page stride in units of 16 bytes
    uint8_t pieces = 0, format = SMLA_FORMAT_NONE;  // pieces of 16 bytes in a record of fp8 codes
    uint16_t scales_at = 0;                         // in a record in shared memory
    float scale = 0;                                // of a cache that has one for all
    int first_tile = 0;                             // of the source: what the block's first one is

    Reader() = default;
    __device__ Reader(const Source& source, int token) : format(uint8_t(source.cache.format)) {
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
        pieces = uint8_t(pieces_of(source.cache.format));
        scales_at = uint16_t(cuda_attend::scales_at(source.cache.format));
        row_stride = format == SMLA_FP8_584 ? layout::Fp8_584::row : uint32_t(source.cache.row_stride);
    }
    // A row that is no hole: whether it is one, its page and the token in it.
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

// What a block's tiles share: its sources, and row numbers of tiles to come in some slots. They are fetched
// some tiles ahead of their rows, by cp.async, so that no instruction waits for them.
template <int Keys, int Slots>
struct Board {
    Reader readers[2];      // primary, extra
    int tiles, extra_from;  // of the block: how many, the first of the extra source
    int rows[Slots][Keys];
};

static_assert(sizeof(Reader) == 64);

// Tiles of a token that are one split's, primary source first: `Keys` listed rows each, of one source.
template <int Keys, int Slots>
class Tiles {
public:
    __device__ Tiles(const Arguments& args, Board<Keys, Slots>& board, int token, int split,
                     const Divisor& splits)
        : board_(board) {
        if (threadIdx.x < 32) fill_board(args, token, int(threadIdx.x), split, splits);
        __syncthreads();
        count_ = board.tiles, extra_from_ = board.extra_from;
    }
    __device__ int count() const { return count_; }
    __device__ bool extra(int i) const { return i >= extra_from_; }
    __device__ const Reader& reader(int i) const { return board_.readers[extra(i)]; }

    // Row `key` of tile i is on its way to its slot; nothing past the end of a list.
    __device__ void fetch(int i, int key) const {
        const Reader& reader = this->reader(i);
        const int j = place(i, reader) + key;
        if (i < count_ && j < reader.listed)
            cuda::cp_async_4(cuda::shared_address(&board_.rows[i % Slots][key]),
                             reader.list + int64_t(j) * reader.list_stride);
    }
    // Key `key` of tile i, whose row number has arrived.
    __device__ Reader::Row row(int i, int key) const { return row(i, key, reader(i)); }
    __device__ Reader::Row row(int i, int key, const Reader& reader) const {
        Reader::Row out = reader.split(board_.rows[i % Slots][key]);
        out.valid = out.valid && place(i, reader) + key < reader.listed;
        return out;
    }

private:
    // Lanes 0 and 1 each know a source, and hear of the other how many tiles it has.
    __device__ void fill_board(const Arguments& args, int token, int lane, int split, const Divisor& splits) {
        Reader reader;
        if (lane < 2) reader = Reader(args.sources[lane ? 1 : 0], token);
        const int own = (reader.listed + Keys - 1) / Keys;
        const int primary = __shfl_sync(~0u, own, 0), tiles = primary + __shfl_sync(~0u, own, 1);
        if (lane > 1) return;
        const int first = begin(tiles, split, splits);
        reader.first_tile = lane ? first - primary : first;
        board_.readers[lane] = reader;
        board_.tiles = begin(tiles, split + 1, splits) - first, board_.extra_from = primary - first;
    }
    // First tile of a split: tiles * split / splits, without the product.
    static __device__ int begin(int tiles, int split, const Divisor& splits) {
        const uint32_t each = splits.quotient(uint32_t(tiles)), rest = uint32_t(tiles) - each * splits.by;
        return int(each * uint32_t(split) + splits.quotient(rest * uint32_t(split)));
    }
    // Of the first key of tile i in its list.
    static __device__ int place(int i, const Reader& reader) { return (i + reader.first_tile) * Keys; }

    Board<Keys, Slots>& board_;
    int count_, extra_from_;
};

}  // namespace smla::cuda_attend
