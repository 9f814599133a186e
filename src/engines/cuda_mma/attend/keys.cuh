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

// One source as a block's copies need it; in shared memory, because the registers are the sums' and choosing
// between two sources' parameters takes longer than a load.
struct alignas(16) Reader {
    const int* list = nullptr;  // row numbers of the token
    const char* data = nullptr;
    int listed = 0, list_stride = 0;  // those that count
    uint32_t rows_below = 0, page_rows = 1, page_tokens = 0, multiplier = 1, shift = 0;
    uint32_t page_stride_16 = 0, row_stride = 0;  // page stride in units of 16 bytes
    uint32_t pieces = 0;                          // of a record of fp8 codes
    smla_format format = SMLA_FORMAT_NONE;
    float scale = 0;  // of a cache that has one for all

    Reader() = default;
    __device__ Reader(const Source& source, int token) : format(source.cache.format) {
        if (format == SMLA_FORMAT_NONE) return;
        list = static_cast<const int*>(source.rows.data) + cuda::element(source.rows, token, 0);
        data = source.cache.data;
        listed = int(source.length(token));
        list_stride = int(source.rows.stride_elems[1]);
        rows_below = source.rows_below;
        page_rows = uint32_t(source.cache.page_rows), page_tokens = uint32_t(source.cache.page_tokens);
        multiplier = source.multiplier, shift = source.shift;
        page_stride_16 = uint32_t(source.cache.page_stride / 16);
        if (format == SMLA_FP8_576 || format == SMLA_FP8_512) scale = source.cache.tensor_scale();
        pieces = pieces_of(format);
        row_stride = format == SMLA_FP8_584 ? layout::Fp8_584::row : uint32_t(source.cache.row_stride);
    }
    // A row that is no hole: whether it is one, its page and the token in it.
    struct Row {
        bool valid;
        uint32_t page, token;
    };
    __device__ Row split(int row) const {
        // row / page_rows for row < 2^31: division by an invariant integer (Granlund and Montgomery 1994,
        // figure 4.1)
        const uint32_t number = uint32_t(row);
        const uint32_t page = (__umulhi(number, multiplier) + number) >> shift;
        const uint32_t token = number - page * page_rows;
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
    Reader readers[2];  // primary, extra
    int rows[Slots][Keys];
};

static_assert(sizeof(Reader) == 64);

// Tiles of a token that are one split's, primary source first: `Keys` listed rows each, of one source.
template <int Keys, int Slots>
class Tiles {
public:
    __device__ Tiles(const Arguments& args, Board<Keys, Slots>& board, int token, int split, int splits)
        : board_(board) {
        if (threadIdx.x < 2) board.readers[threadIdx.x] = Reader(args.sources[threadIdx.x ? 1 : 0], token);
        __syncthreads();
        const int first_extra = (board.readers[0].listed + Keys - 1) / Keys;
        const int64_t tiles = first_extra + (board.readers[1].listed + Keys - 1) / Keys;
        in_primary_ = int(tiles * split / splits);
        count_ = int(tiles * (split + 1) / splits) - in_primary_;
        in_extra_ = in_primary_ - first_extra;
    }
    __device__ int count() const { return count_; }
    __device__ bool extra(int i) const { return i + in_extra_ >= 0; }
    __device__ const Reader& reader(int i) const { return board_.readers[extra(i)]; }

    // Row `key` of tile i is on its way to its slot; nothing past the end of a list.
    __device__ void fetch(int i, int key) const {
        const int j = place(i) + key;
        const Reader& reader = this->reader(i);
        if (i < count_ && j < reader.listed)
            cuda::cp_async_4(cuda::shared_address(&board_.rows[i % Slots][key]),
                             reader.list + int64_t(j) * reader.list_stride);
    }
    // Key `key` of tile i, whose row number has arrived.
    __device__ Reader::Row row(int i, int key) const { return row(i, key, reader(i)); }
    __device__ Reader::Row row(int i, int key, const Reader& reader) const {
        Reader::Row out = reader.split(board_.rows[i % Slots][key]);
        out.valid = out.valid && place(i) + key < reader.listed;
        return out;
    }

private:
    // Of the first key of tile i in its list.
    __device__ int place(int i) const { return (i + (extra(i) ? in_extra_ : in_primary_)) * Keys; }

    Board<Keys, Slots>& board_;
    int count_, in_primary_, in_extra_;  // tiles; what turns one's number into that of its source
};

}  // namespace smla::cuda_attend
