// Rows of keys on their way into shared memory, by cp.async: bf16 as they are, fp8 records as raw bytes that
// become bf16 later. In a buffer, the 16-byte piece c of row r lies at c ^ (r & 7) within its 128 bytes, so
// that the 8 rows of an ldmatrix meet 8 different banks; padded rows do so too, but their copies straddle
// lines (5 % slower).
#pragma once

#include "engines/cuda_common/ptx/math.cuh"
#include "engines/cuda_common/ptx/mma.cuh"
#include "engines/cuda_common/ptx/shared.cuh"
#include "engines/cuda_mma/attend/keys.cuh"
#include "engines/cuda_mma/attend/tile.cuh"

namespace smla::cuda_attend {

// Where piece `piece`, below 8, of a row's first 128 bytes lies. Piece + 2 j, while below 8 too, lies at this
// address ^ 32 j; the next 128 bytes, 128 on.
__device__ inline uint32_t piece_at(uint32_t buffer, uint32_t pitch, uint32_t row, uint32_t piece) {
    return buffer + row * pitch + ((piece ^ (row & 7)) << 4);
}

// A thread's place among those that share the rows of a tile.
struct Lane {
    uint32_t row, piece;
};

// An eighth of a row, 16 bytes at a time: `to` is where its first piece lies. A hole's address is not used:
// zeros.
template <int Width>
__device__ inline void copy_row(uint32_t to, const char* from, bool valid, uint32_t piece) {
#pragma unroll
    for (int c = 0; c < 2 * Width; c += 128)
        cuda::cp_async_16(to + uint32_t(c), from + c + 16 * piece, valid);
}
// And of a record, with the scales of fp8_584 behind its row.
template <int Lanes>
__device__ inline void copy_record(uint32_t to, const Reader& reader, const Reader::Row& row,
                                   uint32_t piece) {
    const uint32_t pieces = uint32_t(reader.format == SMLA_FP8_656   ? layout::Fp8_656::record
                                     : reader.format == SMLA_FP8_528 ? layout::Fp8_528::record
                                     : reader.format == SMLA_FP8_512 ? layout::Fp8_512::record
                                                                     : 576) /
                            16;
    const char* const from = reader.record(row) + 16 * piece;
#pragma unroll
    for (uint32_t c = 0; c < kRawPitch / 16; c += Lanes)
        if (c < 32 || piece + c < pieces) cuda::cp_async_16(to + 16 * (c + piece), from + 16 * c, row.valid);
    if (reader.format == SMLA_FP8_584 && piece == 0)
        cuda::cp_async_8(to + layout::Fp8_584::row, reader.scales(row), row.valid);
}

// Raw bytes of one record that become a row of bf16, by `Lanes` threads, 8 values at a time: unit u is values
// 8u to 8u + 7.
template <int Lanes>
class Decoder {
public:
    // This thread's share of the record at `from`. `to` is where piece `piece` % 8 of its row lies.
    __device__ Decoder(const Arguments& args, bool extra, smla_format format, uint32_t piece, uint32_t from,
                       uint32_t to)
        : format_(format),
          piece_(piece),
          from_(from),
          to_(to + piece / 8 * 128),
          tiles_of_128_(format_ == SMLA_FP8_656 || format_ == SMLA_FP8_528),
          scales_(from_ + (tiles_of_128_ ? layout::Fp8_656::scales_at : kScalesAt + piece_ / 8 * 4)) {
        if (tiles_of_128_) return;
        for (uint32_t i = piece_; i < 8; i += Lanes)
            cuda::store_shared(
                from_ + kScalesAt + 4 * i,
                format_ == SMLA_FP8_584
                    ? e8m0_to_f32(uint8_t(cuda::load_shared_byte(from_ + layout::Fp8_584::row + i)))
                    : args.sources[extra].cache.tensor_scale());
        __syncwarp();
    }
    __device__ void run() const {
        constexpr int kBatch = 4;  // loads first: a store of a unit may alias them
        const uint4 rope = load_rope();
#pragma unroll
        for (int first = 0; first < 64 / Lanes; first += kBatch) {
            Codes codes[kBatch];
#pragma unroll
            for (int i = 0; i < kBatch; ++i) codes[i] = load(first + i);
#pragma unroll
            for (int i = 0; i < kBatch; ++i) convert(to_ + uint32_t(16 * (first + i) * Lanes), codes[i]);
        }
        store_last(rope);
    }

private:
    struct Codes {
        uint2 bytes;
        float scale;
    };
    // Unit `Lanes * i + piece`.
    __device__ Codes load(int i) const {
        const uint32_t scale = uint32_t(Lanes * i / 8) >> (tiles_of_128_ ? 1 : 0);
        return {cuda::load_shared_2(from_ + 8 * (i * Lanes + piece_)),
                cuda::load_shared_f32(scales_ + 4 * scale)};
    }
    static __device__ void convert(uint32_t to, const Codes& codes) {
        uint4 out;
        decode_word(codes.bytes.x, codes.scale, out.x, out.y);
        decode_word(codes.bytes.y, codes.scale, out.z, out.w);
        cuda::store_shared(to, out);
    }
    // Rope, 8 pieces of 16 bytes; fp8_584 has it within the first 512 values, where what is made of bytes
    // that are no codes is overwritten.
    __device__ bool has_rope() const { return format_ == SMLA_FP8_584 || format_ == SMLA_FP8_656; }
    __device__ uint4 load_rope() const {
        if (!has_rope() || piece_ >= 8) return {};
        const uint32_t at = format_ == SMLA_FP8_584 ? layout::Fp8_584::rope_at : layout::Fp8_656::rope_at;
        return cuda::load_shared_4(from_ + at + 16 * piece_);
    }
    // What is no code of the first 512 values, if anything is.
    __device__ void store_last(const uint4& rope) const {
        if (piece_ >= 8) return;
        const uint32_t column = format_ == SMLA_FP8_584 ? layout::Fp8_584::codes : 512;
        if (has_rope()) cuda::store_shared(to_ + 2 * column, rope);
        else if (format_ == SMLA_FP8_576)
            convert(to_ + 2 * column,
                    {cuda::load_shared_2(from_ + 512 + 8 * piece_), cuda::load_shared_f32(scales_)});
    }
    static_assert(Lanes % 8 == 0 && 2 * layout::Fp8_584::codes % 128 == 0);

    static __device__ void decode_word(uint32_t codes, float scale, uint32_t& low, uint32_t& high) {
        uint32_t a, b;
        cuda::e4m3_to_f16(codes, a, b);
        low = cuda::pack_bf16(cuda::f16_low(a) * scale, cuda::f16_high(a) * scale);
        high = cuda::pack_bf16(cuda::f16_low(b) * scale, cuda::f16_high(b) * scale);
    }
    // Behind the bytes of formats that do not keep f32 scales: one for each 64 values.
    static constexpr int kScalesAt = 592;
    static_assert(kScalesAt >= layout::Fp8_584::record && kScalesAt + 32 <= kRawPitch);

    const smla_format format_;
    const uint32_t piece_, from_, to_;
    const bool tiles_of_128_;
    const uint32_t scales_;  // of this lane's first unit
};

}  // namespace smla::cuda_attend
