// Records that become bf16 rows on their way (fp8_528_g32 and nvfp4_288, values and scales together or by
// page): all products are then those of bf16 rows.
//
// Place     cp.async puts a record into the end of its row's own 1024 bytes. When it has arrived, the 8
// threads
//           that copied it take it into registers and write the row over it, swizzled like copied rows.
// Numbers   keys are 2^-7 of their values (kDecodedUnit), because the bits of an e2m1 code, moved to where
// bf16
//           has exponent and mantissa, are 2^-126 of its value: with the unit, 2^126 times any e4m3 scale is
//           finite. The softmax scale and the output make up for it. A value of nvfp4_288 has 6 bits and one
//           of fp8_528_g32 has 4, so bf16 holds them exactly, down to 2^-126; E8M0 0 (2^-127) counts as 0, as
//           with fp8_584.
// NaN       a code of e4m3 keeps its own, and a scale makes NaN of its group, zeros too: as the codecs have
// it. Zeros     a record that is not read becomes zeros, which are a row of zeros.
#pragma once

#include "engines/cuda/attend/mma/key_tiles.cuh"
#include "engines/cuda/common/ptx/half.cuh"
#include "engines/cuda/common/ptx/shared.cuh"

namespace smla::cuda_attend {

constexpr uint32_t kDecodedLanes = 8;  // threads that copy and decode a row

// Eight e2m1 codes, the first in the lowest nibble, times a pair of equal scales that are 2^126 times too
// large.
__device__ inline uint4 decode_e2m1(uint32_t codes, uint32_t scales) {
    const uint32_t odd = codes >> 4;
    const auto pair = [&](uint32_t k) {  // codes 2 k and 2 k + 1
        const uint32_t each = __byte_perm(codes, odd, 0x4400 + 0x1111 * k) & 0x000f000fu;
        // once with the magnitude at bit 6, once with the sign at bit 15
        return cuda::times_bf16(each * 0x1040u & 0x81c081c0u, scales);
    };
    return make_uint4(pair(0), pair(1), pair(2), pair(3));
}

// Eight e4m3 codes times a pair of equal scales.
__device__ inline uint4 decode_e4m3(const uint2& codes, uint32_t scales) {
    uint4 out;
    cuda::e4m3_pairs<cuda::Half::bf16>(codes.x, out.x, out.y);
    cuda::e4m3_pairs<cuda::Half::bf16>(codes.y, out.z, out.w);
    out.x = cuda::times_bf16(out.x, scales), out.y = cuda::times_bf16(out.y, scales);
    out.z = cuda::times_bf16(out.z, scales), out.w = cuda::times_bf16(out.w, scales);
    return out;
}

// A lane takes 16 values at once, two chunks of 16 bytes of the row: group `lane` of every 8. So that the
// lanes of an access fall into different banks, some load and store their second chunk first (`swapped`), and
// records of nvfp4_288 lie 64 bytes lower in odd rows.

struct Nvfp4Group {
    using Layout = layout::Nvfp4_288<false>;

    // Where the record lies in the place of its row.
    static __device__ uint32_t at(uint32_t row) { return 1024 - Layout::record - 64 * (row & 1); }
    static __device__ uint32_t swapped(uint32_t row, uint32_t lane) { return (lane >> 2 ^ row >> 1) & 1; }
    __device__ void load(uint32_t record, uint32_t step, uint32_t lane, uint32_t swapped) {
        const uint32_t from = record + 8 * lane + 4 * swapped, other = from ^ 4;
        codes_[0] = cuda::load_shared(from + 64 * step), codes_[1] = cuda::load_shared(other + 64 * step);
        scale_ = cuda::load_shared_byte(record + lane + Layout::row + 8 * step);
    }
    __device__ uint32_t scales() const {
        uint32_t pair, unused;
        cuda::e4m3_to_f16(scale_, pair, unused);
        const float scale = cuda::f16_low(pair) * (0x1p126f * kDecodedUnit);
        return cuda::pack_bf16(scale, scale);
    }
    __device__ uint4 chunk(int i, uint32_t scales) const { return decode_e2m1(codes_[i], scales); }

private:
    uint32_t codes_[2], scale_;
};

struct Mxfp8Group {
    using Layout = layout::Fp8_528_g32<false>;

    static __device__ uint32_t at(uint32_t) { return 1024 - Layout::record; }
    static __device__ uint32_t swapped(uint32_t row, uint32_t lane) { return (lane >> 2 ^ row) & 1; }
    __device__ void load(uint32_t record, uint32_t step, uint32_t lane, uint32_t swapped) {
        const uint32_t from = record + 16 * lane + 8 * swapped, other = from ^ 8;
        codes_[0] = cuda::load_shared_2(from + 128 * step);
        codes_[1] = cuda::load_shared_2(other + 128 * step);
        scale_ = cuda::load_shared_byte(record + lane / 2 + Layout::row + 4 * step);
    }
    __device__ uint32_t scales() const {
        const float stored = __uint_as_float(scale_ << 23);  // 255 is infinite so far
        const float scale = fmaf(stored, kDecodedUnit, stored * 0.f);
        return cuda::pack_bf16(scale, scale);
    }
    __device__ uint4 chunk(int i, uint32_t scales) const { return decode_e4m3(codes_[i], scales); }

private:
    uint2 codes_[2];
    uint32_t scale_;
};

__device__ inline bool is_nvfp4(const BlockSource& source) {
    return source.format == SMLA_NVFP4_288 || source.format == SMLA_NVFP4_288_SPLIT;
}

// Where a record's values and its scales lie. Of a row that is no hole; else no address that may be read.
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

// One of 8 threads' share of a record, into the end of the place of row `row` of a tile. If not `valid`,
// zeros; nothing is read then.
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

// One of 8 threads' share of row `row` of a tile (the row modulo 8 will do), of which all 8 have waited for
// their copies, with __syncwarp. `Steps` of its four groups are in registers at once: what is written lies on
// no record's bytes that are still to be read.
template <class Group, int Steps>
__device__ inline void decode_row(uint32_t place, uint32_t row, uint32_t lane) {
    static_assert(Steps == 2 || Steps == 4);
    const uint32_t swapped = Group::swapped(row, lane), record = place + Group::at(row);
    const uint32_t to = swizzled_at(place, 0, row, 2 * (lane & 3) + swapped) + 128 * (lane / 4);
    const uint32_t other = to ^ 16;
#pragma unroll 1
    for (uint32_t first = 0; first < 4; first += Steps) {
        Group groups[Steps];
#pragma unroll
        for (uint32_t i = 0; i < Steps; ++i) groups[i].load(record, first + i, lane, swapped);
        __syncwarp();
#pragma unroll
        for (uint32_t i = 0; i < Steps; ++i) {
            const uint32_t scales = groups[i].scales();
            cuda::store_shared(to + 256 * (first + i), groups[i].chunk(0, scales));
            cuda::store_shared(other + 256 * (first + i), groups[i].chunk(1, scales));
        }
    }
}

}  // namespace smla::cuda_attend
