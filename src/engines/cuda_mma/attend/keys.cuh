// The listed rows of a token on their way into shared memory: 32 at a time, holes and empty tiles left out,
// by cp.async; bf16 rows go straight into a buffer, fp8 records into raw bytes that become bf16 later.
#pragma once

#include "engines/cuda_common/ptx/cp_async.cuh"
#include "engines/cuda_common/ptx/math.cuh"
#include "engines/cuda_common/ptx/mma.cuh"
#include "engines/cuda_mma/attend/arguments.cuh"
#include "engines/cuda_mma/attend/tile.cuh"

namespace smla::cuda_attend {

// One source as a block's copies need it; in shared memory, because the registers are the sums' and choosing
// between two sources' parameters takes longer than a load.
struct alignas(16) Reader {
    const int* list = nullptr;  // row numbers of the token
    const char* data = nullptr;
    int listed = 0, list_stride = 0;  // those that count
    uint32_t rows_below = 0, page_rows = 1, page_tokens = 0, multiplier = 1, shift = 0;
    uint32_t page_stride_16 = 0, row_stride = 0;  // page stride in units of 16 bytes
    smla_format format = SMLA_FORMAT_NONE;

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

// The tiles of a block: `Keys` listed rows each, of one source. Four slots: rows are fetched some tiles ahead
// of their copy, by cp.async, so that no instruction waits for them.
template <int Keys>
struct Board {
    Reader readers[2];  // primary, extra
    int rows[4][Keys];
};

static_assert(sizeof(Reader) == 64);

// Tiles of a token that are one split's, primary source first.
template <int Keys>
class Tiles {
public:
    __device__ Tiles(const Arguments& args, Board<Keys>& board, int token, int split, int splits)
        : board_(board) {
        if (threadIdx.x < 2) board.readers[threadIdx.x] = Reader(args.sources[threadIdx.x ? 1 : 0], token);
        __syncthreads();
        const int first_extra = (board.readers[0].listed + Keys - 1) / Keys;
        const int64_t tiles = first_extra + (board.readers[1].listed + Keys - 1) / Keys;
        begin_ = int(tiles * split / splits);
        count_ = int(tiles * (split + 1) / splits) - begin_;
        primary_ = first_extra - begin_;
    }
    __device__ int count() const { return count_; }
    __device__ bool extra(int i) const { return i >= primary_; }
    __device__ const Reader& reader(int i) const { return board_.readers[extra(i)]; }

    // Row `key` of tile i is on its way to its slot; nothing past the end of a list.
    __device__ void fetch(int i, int key) const {
        const int j = place(i) + key;
        const Reader& reader = this->reader(i);
        if (i < count_ && j < reader.listed)
            cuda::cp_async_4(cuda::shared_address(&board_.rows[i % 4][key]),
                             reader.list + int64_t(j) * reader.list_stride);
    }
    // Key `key` of tile i, whose row number has arrived.
    __device__ Reader::Row row(int i, int key) const {
        const Reader& reader = this->reader(i);
        Reader::Row out = reader.split(board_.rows[i % 4][key]);
        out.valid = out.valid && place(i) + key < reader.listed;
        return out;
    }

private:
    // Of the first key of tile i in its list.
    __device__ int place(int i) const { return (extra(i) ? i - primary_ : i + begin_) * Keys; }

    Board<Keys>& board_;
    int begin_, count_, primary_;  // first tile of the split; tiles in all, of the primary source
};

// Rows are copied by 8 lanes each: thread / 8 is the row (and the one kCopiers / 8 later), thread % 8 the
// place in each 128 bytes. In a buffer, the 16-byte piece c of row r lies at (c ^ (r & 7)) within its 128
// bytes, so that the 8 rows of an ldmatrix meet 8 different banks.
template <class T>
struct Filler {
    static __device__ int row_of(int i) { return int(threadIdx.x) % kCopiers / 8 + i * (kCopiers / 8); }
    static __device__ int piece() { return int(threadIdx.x) % 8; }

    // Row i of this thread; returns whether it is no hole.
    static __device__ bool copy_bf16(const Tiles<T::keys>& tiles, int tile, int i, uint32_t buffer) {
        const int r = row_of(i);
        const Reader::Row row = tiles.row(tile, derive_here(r));
        const char* const from = tiles.reader(tile).record(row) + 16 * piece();
        const uint32_t to = buffer + uint32_t(r * T::row + ((piece() ^ (r & 7)) << 4));
#pragma unroll
        for (int c = 0; c < T::row; c += 128)
            cuda::cp_async_16(to + uint32_t(c), from + c, row.valid);  // a hole's address is not used
        return row.valid;
    }

    // A record as it is, 16 bytes at a time; the scales of fp8_584 behind its row.
    static __device__ bool copy_raw(const Tiles<T::keys>& tiles, int tile, int i, uint32_t raw) {
        const int r = row_of(i);
        const Reader& reader = tiles.reader(tile);
        const Reader::Row row = tiles.row(tile, derive_here(r));
        const int pieces = record_bytes(reader.format) / 16;
        const char* const from = reader.record(row) + 16 * piece();
        const uint32_t to = raw + uint32_t(r * kRawRow + 16 * piece());
#pragma unroll
        for (int c = 0; c < kRawRow / 16; c += 8)
            if (c < 32 || piece() + c < pieces)
                cuda::cp_async_16(to + uint32_t(16 * c), from + 16 * c, row.valid);
        if (reader.format == SMLA_FP8_584 && piece() == 0)
            cuda::cp_async_8(raw + uint32_t(r * kRawRow + layout::Fp8_584::row), reader.scales(row),
                             row.valid);
        return row.valid;
    }

    // Raw bytes of one row that become bf16, 64 values at a time: lane l of the row's 8 has values 8l to 8l
    // + 7. The 8 lanes are those that copied the row, and they have waited for it.
    class Decoder {
    public:
        __device__ void begin(const Arguments& args, const Tiles<T::keys>& tiles, int tile, int i, char* raw,
                              char* buffer) {
            const int r = row_of(i);
            format_ = tiles.reader(tile).format;
            from_ = raw + r * kRawRow;
            to_ = buffer + r * T::row + ((piece() ^ (r & 7)) << 4);
            tiles_of_128_ = format_ == SMLA_FP8_656 || format_ == SMLA_FP8_528;
            scales_ = from_ + (tiles_of_128_ ? layout::Fp8_656::scales_at : kScalesAt);
            if (tiles_of_128_) return;
            const float scale = format_ == SMLA_FP8_584
                                    ? e8m0_to_f32(uint8_t(from_[layout::Fp8_584::row + piece()]))
                                : tiles.extra(tile) ? args.sources[1].cache.tensor_scale()
                                                    : args.sources[0].cache.tensor_scale();
            *reinterpret_cast<float*>(from_ + kScalesAt + 4 * piece()) = scale;
            __syncwarp();
        }
        // Values 64c to 64c + 63. The last 64 of 512 are rope in fp8_584: finish() mends them.
        struct Codes {
            uint2 bytes;
            float scale;
        };
        __device__ Codes load(int c) const {
            return {*reinterpret_cast<const uint2*>(from_ + 64 * c + 8 * piece()),
                    *reinterpret_cast<const float*>(scales_ + 4 * (tiles_of_128_ ? c / 2 : c))};
        }
        __device__ void convert(int c, const Codes& codes) const {
            uint4 out;
            decode_word(codes.bytes.x, codes.scale, out.x, out.y);
            decode_word(codes.bytes.y, codes.scale, out.z, out.w);
            *reinterpret_cast<uint4*>(to_ + 128 * c) = out;
        }
        __device__ void finish() const {
            if (format_ == SMLA_FP8_576) {
                Codes last = load(0);  // for the scale
                last.bytes = *reinterpret_cast<const uint2*>(from_ + 512 + 8 * piece());
                convert(8, last);
            }
            const bool v4 = format_ == SMLA_FP8_584;
            if (!v4 && format_ != SMLA_FP8_656) return;
            const int rope_at = v4 ? layout::Fp8_584::rope_at : layout::Fp8_656::rope_at;
            const int column = v4 ? layout::Fp8_584::codes : layout::Fp8_656::codes;
            *reinterpret_cast<uint4*>(to_ + 2 * column) =
                *reinterpret_cast<const uint4*>(from_ + rope_at + 16 * piece());
        }

    private:
        // Behind the bytes of formats that do not keep f32 scales: one for each 64 values.
        static constexpr int kScalesAt = 592;
        static_assert(kScalesAt >= layout::Fp8_584::record && kScalesAt + 32 <= kRawRow);

        static __device__ void decode_word(uint32_t codes, float scale, uint32_t& low, uint32_t& high) {
            uint32_t a, b;
            cuda::e4m3_to_f16(codes, a, b);
            low = cuda::pack_bf16(cuda::f16_low(a) * scale, cuda::f16_high(a) * scale);
            high = cuda::pack_bf16(cuda::f16_low(b) * scale, cuda::f16_high(b) * scale);
        }

        smla_format format_;
        bool tiles_of_128_;
        char *from_, *to_, *scales_;
    };

    // Row i of this thread, raw bytes to a buffer.
    static __device__ void decode_row(const Arguments& args, const Tiles<T::keys>& tiles, int tile, int i,
                                      char* raw, char* buffer) {
        Decoder decoder;
        decoder.begin(args, tiles, tile, i, raw, buffer);
#pragma unroll
        for (int half = 0; half < 8; half += 4) {  // loads first: a store of a piece may alias them
            typename Decoder::Codes codes[4];
#pragma unroll
            for (int c = 0; c < 4; ++c) codes[c] = decoder.load(half + c);
#pragma unroll
            for (int c = 0; c < 4; ++c) decoder.convert(half + c, codes[c]);
        }
        decoder.finish();
    }

private:
    static __device__ int record_bytes(smla_format format) {
        return format == SMLA_FP8_656   ? layout::Fp8_656::record
               : format == SMLA_FP8_528 ? layout::Fp8_528::record
               : format == SMLA_FP8_512 ? layout::Fp8_512::record
                                        : 576;
    }
};

}  // namespace smla::cuda_attend
