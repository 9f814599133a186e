// The listed rows of a token on their way into shared memory: 32 at a time, holes and empty tiles left out,
// by cp.async; bf16 rows go straight into a buffer, fp8 records into raw bytes that become bf16 later.
#pragma once

#include "engines/cuda_common/ptx/cp_async.cuh"
#include "engines/cuda_common/ptx/math.cuh"
#include "engines/cuda_common/ptx/mma.cuh"
#include "engines/cuda_mma/attend/arguments.cuh"
#include "engines/cuda_mma/attend/tile.cuh"

namespace smla::cuda_attend {

// The tiles of a block: 32 listed rows each, of one source. In shared memory, because the registers are the
// sums'. Four slots: rows are fetched three iterations before their tile is multiplied, by cp.async, so that
// no instruction waits for them.
struct Board {
    static constexpr int kSlots = 4;
    int rows[kSlots][kKeys];
    int length, extra_length;  // rows of the token that count
    int part, token, head;     // token * splits + split; the first head of the block
    int begin;                 // first tile of the split
};
static_assert(sizeof(Board) <= kBoardBytes);

// Tiles of a token that are one split's, primary source first.
class Tiles {
public:
    __device__ Tiles(const Arguments& args, Board& board, int splits) : args_(args), board_(board) {
        if (threadIdx.x < 2)
            (threadIdx.x ? board.extra_length : board.length) =
                length_of(threadIdx.x ? args.sources[1] : args.sources[0], board.token);
        const int split = board.part % splits;
        __syncthreads();
        const int64_t tiles = first_extra() + (board.extra_length + kKeys - 1) / kKeys;
        const int begin = int(tiles * split / splits);
        count_ = int(tiles * (split + 1) / splits) - begin;
        primary_ = first_extra() - begin;
        if (threadIdx.x == 0) board.begin = begin;
        __syncthreads();
    }
    __device__ int count() const { return count_; }
    __device__ bool extra(int i) const { return i >= primary_; }
    __device__ int row(int i, int key) const { return board_.rows[i % Board::kSlots][key]; }

    // By one warp: the rows of tile i are on their way to their slot; -1 past the end of a list.
    __device__ void fetch(int i) const {
        const int lane = threadIdx.x % 32;
        int& to = board_.rows[i % Board::kSlots][lane];
        const int* from = nullptr;
        if (i < count_) {
            const bool second = extra(i);
            const int j = (second ? i - primary_ : i + board_.begin) * kKeys + lane;
            if (j < (second ? board_.extra_length : board_.length))
                from = second ? listed(args_.sources[1].rows, j) : listed(args_.sources[0].rows, j);
        }
        if (from) cuda::cp_async_4(cuda::shared_address(&to), from);
        else to = -1;
    }
    // Bit k: key k of tile i is no hole.
    __device__ uint32_t mask(int i) const {
        const int row = this->row(i, threadIdx.x % 32);
        uint32_t page, token;
        const bool valid = extra(i) ? args_.sources[1].split_row(row, page, token)
                                    : args_.sources[0].split_row(row, page, token);
        return __ballot_sync(~0u, valid);
    }

private:
    static __device__ int length_of(const Source& source, int token) {
        return source.cache.format == SMLA_FORMAT_NONE ? 0 : int(source.length(token));
    }
    __device__ int first_extra() const { return (board_.length + kKeys - 1) / kKeys; }
    __device__ const int* listed(const Tensor& rows, int j) const {
        return static_cast<const int32_t*>(rows.data) + cuda::element(rows, board_.token, j);
    }

    const Arguments& args_;
    Board& board_;
    int count_, primary_;  // tiles in all, of the primary source
};

// Rows are copied by 8 lanes each: thread / 8 is the row (and the one threads / 8 later), thread % 8 the
// place in each 128 bytes. In a buffer, the 16-byte piece c of row r lies at (c ^ (r & 7)) within its 128
// bytes, so that the 8 rows of an ldmatrix meet 8 different banks.
template <class T>
struct Filler {
    static __device__ int row_of(int i) { return int(threadIdx.x) / 8 + i * (T::threads / 8); }
    static __device__ int piece() { return int(threadIdx.x) % 8; }

    static __device__ void copy_bf16(const Arguments& args, const Tiles& tiles, int tile, uint32_t buffer) {
        const bool extra = tiles.extra(tile);
#pragma unroll
        for (int i = 0; i < T::rows_per_thread; ++i) {
            const int r = row_of(i), row = tiles.row(tile, derive_here(r));
            const Place place = extra ? place_of(args.sources[1], row) : place_of(args.sources[0], row);
            const char* const from = place.record + 16 * piece();
            const uint32_t to = buffer + uint32_t(r * T::row + ((piece() ^ (r & 7)) << 4));
#pragma unroll
            for (int c = 0; c < T::row; c += 128)
                cuda::cp_async_16(to + uint32_t(c), from + c, place.valid);  // a hole's address is not used
        }
    }

    // A record as it is, 16 bytes at a time; the scales of fp8_584 behind its row.
    static __device__ void copy_raw(const Arguments& args, const Tiles& tiles, int tile, uint32_t raw) {
        const bool extra = tiles.extra(tile);
        const smla_format format = format_of(args, extra);
        const int pieces = record_bytes(format) / 16;
#pragma unroll
        for (int i = 0; i < T::rows_per_thread; ++i) {
            const int r = row_of(i), row = tiles.row(tile, derive_here(r));
            const Place place = extra ? place_of(args.sources[1], row) : place_of(args.sources[0], row);
            const char* const from = place.record + 16 * piece();
            const uint32_t to = raw + uint32_t(r * kRawRow + 16 * piece());
#pragma unroll
            for (int c = 0; c < kRawRow / 16; c += 8)
                if (c < 32 || piece() + c < pieces)
                    cuda::cp_async_16(to + uint32_t(16 * c), from + 16 * c, place.valid);
            if (format == SMLA_FP8_584 && piece() == 0)
                cuda::cp_async_8(raw + uint32_t(r * kRawRow + layout::Fp8_584::row), place.scales,
                                 place.valid);
        }
    }

    // Raw bytes of one row that become bf16, 64 values at a time: lane l of the row's 8 has values 8l to 8l
    // + 7. The 8 lanes are those that copied the row, and they have waited for it.
    class Decoder {
    public:
        __device__ void begin(const Arguments& args, bool extra, int i, char* raw, char* buffer) {
            const int r = row_of(i);
            format_ = format_of(args, extra);
            from_ = raw + r * kRawRow;
            to_ = buffer + r * T::row + ((piece() ^ (r & 7)) << 4);
            tiles_of_128_ = format_ == SMLA_FP8_656 || format_ == SMLA_FP8_528;
            scales_ = from_ + (tiles_of_128_ ? layout::Fp8_656::scales_at : kScalesAt);
            if (tiles_of_128_) return;
            const float scale = format_ == SMLA_FP8_584
                                    ? e8m0_to_f32(uint8_t(from_[layout::Fp8_584::row + piece()]))
                                : extra ? args.sources[1].cache.tensor_scale()
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

private:
    struct Place {
        const char *record, *scales;
        bool valid;
    };
    static __device__ Place place_of(const Source& source, int row) {
        const DeviceCache& cache = source.cache;
        uint32_t page, token;
        const bool valid = source.split_row(row, page, token);
        const char* const at = cache.data + page * cache.page_stride;
        if (T::coded && cache.format == SMLA_FP8_584)
            return {at + layout::Fp8_584::row_at(token),
                    at + layout::Fp8_584::scales_at(cache.page_tokens, token), valid};
        return {at + token * cache.row_stride, nullptr, valid};
    }
    static __device__ smla_format format_of(const Arguments& args, bool extra) {
        return extra ? args.sources[1].cache.format : args.sources[0].cache.format;
    }
    static __device__ int record_bytes(smla_format format) {
        return format == SMLA_FP8_656   ? layout::Fp8_656::record
               : format == SMLA_FP8_528 ? layout::Fp8_528::record
               : format == SMLA_FP8_512 ? layout::Fp8_512::record
                                        : 576;
    }
};

}  // namespace smla::cuda_attend
