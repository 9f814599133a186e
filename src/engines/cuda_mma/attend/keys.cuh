// The listed rows of a token on their way into shared memory: 32 at a time, holes and empty tiles left out, by
// cp.async; bf16 rows go straight into a buffer, fp8 records into raw bytes that become bf16 later.
#pragma once

#include "engines/cuda_common/ptx/cp_async.cuh"
#include "engines/cuda_common/ptx/math.cuh"
#include "engines/cuda_common/ptx/mma.cuh"
#include "engines/cuda_mma/attend/arguments.cuh"
#include "engines/cuda_mma/attend/tile.cuh"

namespace smla::cuda_attend {

// A tile of 32 listed rows; lane i of every warp knows where the i-th lies.
struct Keys {
    uint32_t mask = 0;    // bit i: no hole; 0: no more tiles
    bool extra = false;   // of the second source
    int64_t page_at = 0;  // bytes
    int token = -1;       // in its page; -1: a hole
};

// How many rows of a token count, and where the second source's tiles begin. In shared memory: the registers
// are the sums'.
struct Lists {
    int length, extra_length, first_extra;

    __device__ Lists(const Arguments& args, int64_t token)
        : length(length_of(args.sources[0], token)),
          extra_length(length_of(args.sources[1], token)),
          first_extra((length + kKeys - 1) / kKeys) {}
    __device__ int64_t tiles() const { return first_extra + (extra_length + kKeys - 1) / kKeys; }

private:
    static __device__ int length_of(const Source& source, int64_t token) {
        return source.cache.format == SMLA_FORMAT_NONE ? 0 : int(source.length(token));
    }
};

// Walks tiles [at, end) of a token, primary source first. Rows are loaded one tile ahead.
class Cursor {
public:
    __device__ Cursor(const Arguments& args, const Lists& lists, int token, int at, int end)
        : lists_(lists), token_(token), at_(at), end_(end), ahead_(load(args)) {}

    __device__ Keys next(const Arguments& args) {
        Keys keys;
        while (at_ < end_) {
            keys.extra = at_ >= lists_.first_extra;
            const int row = ahead_;
            ++at_;
            ahead_ = load(args);
            keys.token = -1;
            if (keys.extra) place(args.sources[1], row, keys);
            else place(args.sources[0], row, keys);
            keys.mask = __ballot_sync(~0u, keys.token >= 0);
            if (keys.mask) break;
        }
        return keys;
    }

private:
    __device__ int load(const Arguments& args) const {
        if (at_ >= end_) return -1;
        const bool extra = at_ >= lists_.first_extra;
        const int j = (at_ - (extra ? lists_.first_extra : 0)) * kKeys + int(threadIdx.x % 32);
        if (j >= (extra ? lists_.extra_length : lists_.length)) return -1;
        return extra ? row(args.sources[1].rows, j) : row(args.sources[0].rows, j);
    }
    __device__ int row(const Tensor& rows, int j) const {
        return static_cast<const int32_t*>(rows.data)[cuda::element(rows, token_, j)];
    }
    static __device__ void place(const Source& source, int row, Keys& keys) {
        const DeviceCache& cache = source.cache;
        if (row < 0 || row >= cache.capacity) return;
        const uint32_t page = source.page_of(uint32_t(row));
        const uint32_t token = uint32_t(row) - page * uint32_t(cache.page_rows);
        keys.page_at = page * cache.page_stride;
        if (token < uint32_t(cache.page_tokens)) keys.token = int(token);
    }

    const Lists& lists_;
    int token_, at_, end_;
    int ahead_;  // this lane's row of tile at_
};

// Rows are copied by 8 lanes each: thread / 8 is the row (and the one threads / 8 later), thread % 8 the place
// in each 128 bytes. In a buffer, the 16-byte piece c of row r lies at (c ^ (r & 7)) within its 128 bytes, so
// that the 8 rows of an ldmatrix meet 8 different banks.
template <class T>
struct Filler {
    static __device__ int row_of(int i) { return int(threadIdx.x) / 8 + i * (T::threads / 8); }
    static __device__ int piece() { return int(threadIdx.x) % 8; }

    static __device__ void copy_bf16(const Arguments& args, const Keys& keys, uint32_t buffer) {
        const DeviceCache& cache = args.sources[keys.extra].cache;
#pragma unroll
        for (int i = 0; i < T::rows_per_thread; ++i) {
            const int r = row_of(i);
            const int token = __shfl_sync(~0u, keys.token, r);
            const int64_t page_at = __shfl_sync(~0u, keys.page_at, r);
            const char* from = cache.data + page_at + token * cache.row_stride + 16 * piece();
            const uint32_t to = buffer + uint32_t(r * T::row + ((piece() ^ (r & 7)) << 4));
#pragma unroll
            for (int c = 0; c < T::row; c += 128)
                cuda::cp_async_16(to + uint32_t(c), from + c, token >= 0);  // a hole's address is not used
        }
    }

    // A record as it is, 16 bytes at a time; the scales of fp8_584 behind its row.
    static __device__ void copy_raw(const Arguments& args, const Keys& keys, uint32_t raw) {
        const DeviceCache& cache = args.sources[keys.extra].cache;
        const bool v4 = cache.format == SMLA_FP8_584;
        const int64_t stride = v4 ? layout::Fp8_584::row : cache.row_stride;
        const int pieces = record_bytes(cache.format) / 16;
#pragma unroll
        for (int i = 0; i < T::rows_per_thread; ++i) {
            const int r = row_of(i);
            const int token = __shfl_sync(~0u, keys.token, r);
            const int64_t page_at = __shfl_sync(~0u, keys.page_at, r);
            const char* const page = cache.data + page_at;
            const char* from = page + token * stride + 16 * piece();  // a hole's is not used
            const uint32_t to = raw + uint32_t(r * kRawRow + 16 * piece());
#pragma unroll
            for (int c = 0; c < kRawRow / 16; c += 8)
                if (piece() + c < pieces)
                    cuda::cp_async_16(to + uint32_t(16 * c), from + 16 * c, token >= 0);
            if (v4 && piece() == 0)
                cuda::cp_async_8(raw + uint32_t(r * kRawRow + layout::Fp8_584::row),
                                 page + layout::Fp8_584::scales_at(cache.page_tokens, token),
                                 token >= 0);
        }
    }

    // The bytes that this thread's 8 lanes copied become bf16. The caller has waited for them.
    static __device__ void decode(const Arguments& args, bool extra, const char* raw, char* buffer) {
        const DeviceCache& cache = args.sources[extra].cache;
        const smla_format format = cache.format;
        const bool plain = format == SMLA_FP8_576 || format == SMLA_FP8_512;
        const float tensor_scale = plain ? cache.tensor_scale() : 0.f;
#pragma unroll 1
        for (int i = 0; i < T::rows_per_thread; ++i) {
            const int r = row_of(i);
            const char* const from = raw + r * kRawRow + 16 * piece();
            char* const to = buffer + r * T::row;
            uint4 codes[4];
#pragma unroll
            for (int c = 0; c < 4; ++c) codes[c] = *reinterpret_cast<const uint4*>(from + 128 * c);
            float scales[4] = {tensor_scale, tensor_scale, tensor_scale, tensor_scale};
            if (!plain) load_scales(format, raw + r * kRawRow, scales);
            const bool v4 = format == SMLA_FP8_584;  // its last 64 values are rope
#pragma unroll
            for (int c = 0; c < 4; ++c)
                if (c < 3 || !v4 || piece() < 4) decode_piece(codes[c], scales[c], to, r & 7, piece() + 8 * c);
            if (format == SMLA_FP8_576 && piece() < 4)
                decode_piece(*reinterpret_cast<const uint4*>(from + 512), tensor_scale, to, r & 7, piece() + 32);
            if (!v4 && format != SMLA_FP8_656) continue;
            const int rope_at = v4 ? layout::Fp8_584::rope_at : layout::Fp8_656::rope_at;
            const int column = v4 ? layout::Fp8_584::codes : layout::Fp8_656::codes;
            *reinterpret_cast<uint4*>(to + 2 * column + ((piece() ^ (r & 7)) << 4)) =
                *reinterpret_cast<const uint4*>(from + rope_at);
        }
    }

private:
    static __device__ int record_bytes(smla_format format) {
        return format == SMLA_FP8_656   ? layout::Fp8_656::record
               : format == SMLA_FP8_528 ? layout::Fp8_528::record
               : format == SMLA_FP8_512 ? layout::Fp8_512::record
                                        : 576;
    }
    // Of this thread's four pieces.
    static __device__ void load_scales(smla_format format, const char* record, float (&scales)[4]) {
        if (format == SMLA_FP8_584) {
            const uint2 bytes = *reinterpret_cast<const uint2*>(record + layout::Fp8_584::row);
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                const uint32_t pair = (c < 2 ? bytes.x : bytes.y) >> (16 * (c & 1));
                scales[c] = e8m0_to_f32(uint8_t(piece() < 4 ? pair : pair >> 8));
            }
            return;
        }
        const float4 all = *reinterpret_cast<const float4*>(record + layout::Fp8_656::scales_at);
        scales[0] = all.x, scales[1] = all.y, scales[2] = all.z, scales[3] = all.w;
    }
    // 16 codes become pieces 2p and 2p + 1 of a row. Lanes take turns with the two, so that the stores of 8
    // lanes meet 8 different places.
    static __device__ void decode_piece(const uint4& codes, float scale, char* row, int swizzle, int p) {
        uint4 first, second;
        decode_word(codes.x, scale, first.x, first.y);
        decode_word(codes.y, scale, first.z, first.w);
        decode_word(codes.z, scale, second.x, second.y);
        decode_word(codes.w, scale, second.z, second.w);
        const bool swap = p & 4;
        char* const group = row + (p / 4) * 128;
        const int at = (2 * (p & 3)) ^ swizzle;  // piece 2p + 1 lies at `at ^ 1`
        *reinterpret_cast<uint4*>(group + ((at ^ int(swap)) << 4)) = swap ? second : first;
        *reinterpret_cast<uint4*>(group + ((at ^ int(!swap)) << 4)) = swap ? first : second;
    }
    static __device__ void decode_word(uint32_t codes, float scale, uint32_t& low, uint32_t& high) {
        uint32_t a, b;
        cuda::e4m3_to_f16(codes, a, b);
        low = cuda::pack_bf16(cuda::f16_low(a) * scale, cuda::f16_high(a) * scale);
        high = cuda::pack_bf16(cuda::f16_low(b) * scale, cuda::f16_high(b) * scale);
    }
};

}  // namespace smla::cuda_attend
