// Records that the producer decodes to bf16 rows (fp8_528_g32 and nvfp4_288, with the scales after each
// record or after all records of a page). All products are then the same as for bf16 rows.
//
// Place     cp.async copies a record to the end of its row's 1024 bytes. When the record has arrived, the 8
//           threads that copied it load it into registers and overwrite it with the decoded row, swizzled
//           like bf16 rows.
// Numbers   keys are stored as 2^-7 of their values (kDecodedUnit). The bits of an e2m1 code, moved to the
//           exponent and mantissa of bf16, are 2^-126 of its value; without the factor 2^-7, 2^126 times a
//           scale would be infinite. The softmax scale and the output factor undo 2^-7. A value of nvfp4_288
//           has 6 bits and one of fp8_528_g32 has 4, so bf16 represents them exactly, down to 2^-119. E8M0
//           code 0 (2^-127) is treated as 0, as with fp8_584.
// Columns   each 16 are stored in the order 0 8 2 10 4 12 6 14, 1 9 3 11 5 13 7 15: the halves of a word
//           contain the codes of four columns each, at the same bits. Queries have the same order
//           (order_queries). A lane's accumulators belong to the same columns as with bf16 rows, in another
//           order (`neighbours`).
// NaN       a NaN code stays NaN; a NaN scale makes its whole group NaN, including zeros, as in the codecs.
// Masks     cp.async fills the record of a masked entry (-1) with zeros, which decode to a row of zeros.
#pragma once

#include "engines/cuda/attend/mma/key_tiles.cuh"
#include "engines/cuda/common/ptx/half.cuh"
#include "engines/cuda/common/ptx/shared.cuh"

namespace smla::cuda_attend {

constexpr uint32_t kDecodedLanes = 8;  // threads that copy and decode a row

// Returns whether a lane stores the chunk of odd columns first. Lanes 4 to 7 do, so that the lanes of a store
// use different banks. A lane decodes 16 columns (two chunks) at a time: group `lane` of every 8.
__device__ inline bool odd_first(uint32_t lane) { return lane & 4; }

struct Nvfp4Group {
    using Layout = layout::Nvfp4_288<false>;

    // Returns the offset of the record in its row's 1024 bytes. Rows that are loaded together differ in
    // banks.
    static __device__ uint32_t at(uint32_t row) { return 1024 - Layout::record - 64 * (row & 1); }
    __device__ void load(uint32_t record, uint32_t step, uint32_t lane) {
        codes_ = cuda::load_shared_2(record + 8 * lane + 64 * step);
        scale_ = cuda::load_shared_byte(record + lane + Layout::row + 8 * step);
    }
    // Returns the chunk that is stored first, and the other one.
    __device__ void decode(bool odd_first, uint4& first, uint4& second) const {
        uint32_t f16, unused;
        cuda::e4m3_to_f16(scale_, f16, unused);
        const float scale = cuda::f16_low(f16) * (0x1p126f * kDecodedUnit);
        const uint32_t scales = cuda::pack_bf16(scale, scale);
        // Each half contains four neighboring codes, of columns that are 8 apart.
        const uint32_t low = __byte_perm(codes_.x, codes_.y, 0x5410),
                       high = __byte_perm(codes_.x, codes_.y, 0x7632);
        const auto chunk = [&](bool odd) {
            const auto pair = [&](uint32_t codes) {
                return cuda::times_bf16(e2m1_pair_to_tiny_bf16(codes, odd), scales);
            };
            return make_uint4(pair(low), pair(low >> 8), pair(high), pair(high >> 8));
        };
        first = chunk(odd_first), second = chunk(!odd_first);
    }

private:
    uint2 codes_;
    uint32_t scale_;
};

struct Mxfp8Group {
    using Layout = layout::Fp8_528_g32<false>;

    static __device__ uint32_t at(uint32_t) { return 1024 - Layout::record; }
    __device__ void load(uint32_t record, uint32_t step, uint32_t lane) {
        codes_ = cuda::load_shared_4(record + 16 * lane + 128 * step);
        scale_ = cuda::load_shared_byte(record + lane / 2 + Layout::row + 4 * step);
    }
    __device__ void decode(bool odd_first, uint4& first, uint4& second) const {
        const float stored = __uint_as_float(scale_ << 23);  // 255 is still infinite here
        const float scale = fmaf(stored, kDecodedUnit, stored * 0.f);
        const uint32_t scales = cuda::pack_bf16(scale, scale);
        const uint32_t order = odd_first ? 0x2301 : 0x3210;
        const auto four = [&](uint32_t low, uint32_t high, uint32_t(&even)[2], uint32_t(&odd)[2]) {
            uint32_t a[2], b[2];  // codes 0 and 1, and 2 and 3, of each word
            cuda::e4m3_to_f16(__byte_perm(low, 0, order), a[0], a[1]);
            cuda::e4m3_to_f16(__byte_perm(high, 0, order), b[0], b[1]);
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                even[i] = cuda::times_bf16(cuda::pack_bf16(cuda::f16_low(a[i]), cuda::f16_low(b[i])), scales);
                odd[i] =
                    cuda::times_bf16(cuda::pack_bf16(cuda::f16_high(a[i]), cuda::f16_high(b[i])), scales);
            }
        };
        uint32_t even[2][2], odd[2][2];
        four(codes_.x, codes_.z, even[0], odd[0]);
        four(codes_.y, codes_.w, even[1], odd[1]);
        first = make_uint4(even[0][0], even[0][1], even[1][0], even[1][1]);
        second = make_uint4(odd[0][0], odd[0][1], odd[1][0], odd[1][1]);
    }

private:
    uint4 codes_;
    uint32_t scale_;
};

// Permutes queries to the column order of decoded rows: neighbors in a left operand become columns 8 apart.
__device__ inline void order_queries(uint32_t (&a)[4]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const uint32_t low = a[r], high = a[r + 2];  // columns 2t, 2t + 1 and 2t + 8, 2t + 9
        a[r] = __byte_perm(low, high, 0x5410), a[r + 2] = __byte_perm(low, high, 0x7632);
    }
}

// Two neighboring outputs of a lane, from its accumulators of 16 columns: columns 8 b + 2 (lane % 4) and + 1
// of head lane / 4 + 8 r.
struct Pair {
    float low, high;
};
template <class T>
__device__ inline Pair neighbours(const float (&sums)[2][4], int b, int r) {
    if constexpr (T::decoded) return {T::value_unit * sums[0][2 * r + b], T::value_unit * sums[1][2 * r + b]};
    return {sums[b][2 * r], sums[b][2 * r + 1]};
}

__device__ inline bool is_nvfp4(const BlockSource& source) {
    return source.format == SMLA_NVFP4_288 || source.format == SMLA_NVFP4_288_SPLIT;
}

// Addresses of a record's values and scales; invalid for masked entries (-1).
struct RawRecord {
    const char *values, *scales;

    RawRecord() = default;
    __device__ RawRecord(const BlockSource& source, const BlockSource::Row& row) {
        using Nvfp4 = Nvfp4Group::Layout;
        using Mxfp8 = Mxfp8Group::Layout;
        const bool nvfp4 = is_nvfp4(source);
        const bool split = source.format == SMLA_NVFP4_288_SPLIT || source.format == SMLA_FP8_528_G32_SPLIT;
        const uint32_t of_row = nvfp4 ? Nvfp4::row : Mxfp8::row;
        const char* const page = source.page(row);
        values = page + uint64_t(row.token) * (split ? of_row : source.row_stride);
        scales = split ? page + uint64_t(source.page_tokens) * of_row +
                             uint64_t(row.token) * (nvfp4 ? Nvfp4::scales : Mxfp8::scales)
                       : values + of_row;
    }
    __device__ RawRecord of_lane(int lane) const {
        const auto from = [&](const char* at) {
            return reinterpret_cast<const char*>(
                __shfl_sync(~0u, reinterpret_cast<unsigned long long>(at), lane));
        };
        RawRecord out;
        out.values = from(values), out.scales = from(scales);
        return out;
    }
};

// Copies one of 8 threads' share of a record to the end of the 1024 bytes at `place`, which belong to row
// `row` of a tile. If `valid` is false, stores zeros and reads nothing.
template <class Group>
__device__ inline void copy_raw(uint32_t place, uint32_t row, const RawRecord& record, bool valid,
                                uint32_t lane) {
    constexpr uint32_t kValues = Group::Layout::row;
    const uint32_t to = place + Group::at(row) + 16 * lane;
#pragma unroll
    for (uint32_t c = 0; c < kValues; c += 16 * kDecodedLanes)
        cuda::cp_async_16(to + c, record.values + 16 * lane + c, valid);
    if (16 * lane < Group::Layout::scales) cuda::cp_async_16(to + kValues, record.scales + 16 * lane, valid);
}
__device__ inline void copy_raw_record(uint32_t place, uint32_t row, const BlockSource& source,
                                       const RawRecord& record, bool valid, uint32_t lane) {
    if (is_nvfp4(source)) copy_raw<Nvfp4Group>(place, row, record, valid, lane);
    else copy_raw<Mxfp8Group>(place, row, record, valid, lane);
}

// Decodes one of 8 threads' share of row `row` of a tile (the row modulo 8 is sufficient). All 8 threads must
// have waited for their copies and then called __syncwarp. `Steps` of the share's four groups are in
// registers together, so that no store overwrites bytes of the record that have not been read.
template <class Group, int Steps>
__device__ inline void decode_row(uint32_t place, uint32_t row, uint32_t lane) {
    static_assert(Steps == 2 || Steps == 4);
    const bool odd_first = cuda_attend::odd_first(lane);
    const uint32_t record = place + Group::at(row);
    const uint32_t to = swizzled_at(place, 0, row, 2 * (lane & 3) + odd_first) + 128 * (lane / 4);
    const uint32_t other = to ^ 16;
#pragma unroll 1
    for (uint32_t first = 0; first < 4; first += Steps) {
        Group groups[Steps];
#pragma unroll
        for (uint32_t i = 0; i < Steps; ++i) groups[i].load(record, first + i, lane);
        __syncwarp();
#pragma unroll
        for (uint32_t i = 0; i < Steps; ++i) {
            uint4 chunks[2];
            groups[i].decode(odd_first, chunks[0], chunks[1]);
            cuda::store_shared(to + 256 * (first + i), chunks[0]);
            cuda::store_shared(other + 256 * (first + i), chunks[1]);
        }
    }
}

}  // namespace smla::cuda_attend
