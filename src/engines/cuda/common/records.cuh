// Cached records on the device: address of a row, single values, encoding of a row by warps. Offsets are in
// formats/layouts.h, scale rules in formats/scale_rules.h.
#pragma once

#include "engines/cuda/common/values.cuh"
#include "formats/format.h"
#include "formats/layouts.h"
#include "formats/scale_rules.h"

#include <algorithm>
#include <iterator>

namespace smla::cuda {

// Formats that value() and encode() support. Any other format would be read as zeros.
constexpr smla_format kDeviceFormats[] = {
    SMLA_ROW_F64,       SMLA_ROW_F32,         SMLA_ROW_BF16,    SMLA_STATE_F64,         SMLA_STATE_F32,
    SMLA_FP8_656,       SMLA_FP8_576,         SMLA_FP8_528,     SMLA_FP8_512,           SMLA_FP8_584,
    SMLA_INDEX_FP8_132, SMLA_INDEX_MXFP4_68,  SMLA_FP8_528_G32, SMLA_FP8_528_G32_SPLIT, SMLA_NVFP4_288,
    SMLA_NVFP4_352,     SMLA_NVFP4_288_SPLIT, SMLA_NVFP4_384};

// A CacheView for kernels, passed by value. The scale may be in device memory.
struct DeviceCache {
    DeviceCache() = default;
    explicit DeviceCache(const smla_cache& cache) {
        if (cache.format == SMLA_FORMAT_NONE) return;
        const CacheView view(cache);
        if (std::count(std::begin(kDeviceFormats), std::end(kDeviceFormats), cache.format) == 0)
            fail(SMLA_UNSUPPORTED, "cache.format", find_format(cache.format)->name,
                 "a format of kDeviceFormats (engines/cuda/common/records.cuh)");
        format = cache.format;
        width = view.width;
        data = view.data;
        page_tokens = view.page_tokens;
        page_rows = view.page_rows;
        capacity = view.capacity;
        page_stride = view.page_stride;
        row_stride = view.row_stride;
        scale = view.scale;
        scale_device = cache.scale_device;
        writer = cache.writer;
    }

    __device__ bool hole(int64_t row) const { return RowRange{capacity, page_rows, page_tokens}.hole(row); }
    __device__ float tensor_scale() const { return scale_device ? *scale_device : scale; }
    __device__ char* page(int64_t row) const { return data + row / page_rows * page_stride; }
    __device__ char* row_packed(int64_t row) const { return page(row) + row % page_rows * row_stride; }
    __device__ float value(int64_t row, int d) const;  // channel d of a valid row

    smla_format format = SMLA_FORMAT_NONE;
    int32_t width = 0;
    char* data = nullptr;
    int64_t page_tokens = 1, page_rows = 1, capacity = 0, page_stride = 0, row_stride = 0;
    float scale = 0;
    const float* scale_device = nullptr;
    smla_writer writer = 0;
};

__device__ inline float bf16_at(const char* at) {
    return bf16_to_f32(*reinterpret_cast<const uint16_t*>(at));
}
__device__ inline float f32_at(const char* at) { return *reinterpret_cast<const float*>(at); }
__device__ inline float e4m3_at(const char* at) { return e4m3_to_f32(*reinterpret_cast<const uint8_t*>(at)); }

template <class Layout>
__device__ float latent_value(const char* row, int d) {
    if (d >= Layout::codes) return bf16_at(row + Layout::rope_at + 2 * (d - Layout::codes));
    return e4m3_at(row + d) * f32_at(row + Layout::scales_at + 4 * (d / Layout::tile));
}

// Addresses of a token's values and scales, in formats with row-packed and page-packed layouts.
template <class Layout>
struct Parts {
    uint8_t *values, *scales;
    __device__ Parts(const DeviceCache& cache, int64_t row) {
        char* const page = cache.page(row);
        const int64_t token = row % cache.page_rows;
        char* const at = page + (Layout::split ? Layout::row_at(token) : token * cache.row_stride);
        char* const behind =
            Layout::split ? page + Layout::scales_at(cache.page_tokens, token) : at + Layout::row;
        values = reinterpret_cast<uint8_t*>(at);
        scales = reinterpret_cast<uint8_t*>(behind);
    }
};

template <class Layout>
__device__ float mxfp8_value(const DeviceCache& cache, int64_t row, int d) {
    const Parts<Layout> at(cache, row);
    return e4m3_to_f32(at.values[d]) * e8m0_to_f32(at.scales[d / Layout::tile]);
}

__device__ inline float rope_value(const uint8_t* rope, int d, layout::Nvfp4_352) {
    return e4m3_to_f32(rope[d]);
}
__device__ inline float rope_value(const uint8_t* rope, int d, layout::Nvfp4_384) {
    return bf16_to_f32(reinterpret_cast<const uint16_t*>(rope)[d]);
}
template <class Layout>
__device__ float nvfp4_value(const DeviceCache& cache, int64_t row, int d) {
    const Parts<Layout> at(cache, row);
    if constexpr (Layout::rope > 0)
        if (d >= Layout::codes) return rope_value(at.values + Layout::rope_at, d - Layout::codes, Layout{});
    return e2m1_to_f32(uint8_t(at.values[d / 2] >> (4 * (d & 1)) & 15)) *
           e4m3_to_f32(at.scales[Layout::scale_at(d / Layout::tile)]);
}

__device__ inline float DeviceCache::value(int64_t row, int d) const {
    const char* const page_at = page(row);
    const int64_t token = row % page_rows;
    const char* const at = page_at + token * row_stride;  // row-packed formats
    switch (format) {
        case SMLA_ROW_F64:
        case SMLA_STATE_F64: return float(reinterpret_cast<const double*>(at)[d]);
        case SMLA_ROW_F32:
        case SMLA_STATE_F32: return f32_at(at + 4 * d);
        case SMLA_ROW_BF16: return bf16_at(at + 2 * d);
        case SMLA_FP8_656: return latent_value<layout::Fp8_656>(at, d);
        case SMLA_FP8_528: return latent_value<layout::Fp8_528>(at, d);
        case SMLA_FP8_576:
        case SMLA_FP8_512: return e4m3_at(at + d) * tensor_scale();
        case SMLA_FP8_584: {
            using L = layout::Fp8_584;
            const char* codes = page_at + L::row_at(token);
            if (d >= L::codes) return bf16_at(codes + L::rope_at + 2 * (d - L::codes));
            const auto* scales = reinterpret_cast<const uint8_t*>(page_at + L::scales_at(page_tokens, token));
            return e4m3_at(codes + d) * e8m0_to_f32(scales[d / L::tile]);
        }
        case SMLA_INDEX_FP8_132: {
            using L = layout::IndexFp8_132;
            return e4m3_at(page_at + L::row_at(token) + d) *
                   f32_at(page_at + L::scale_at(page_tokens, token));
        }
        case SMLA_INDEX_MXFP4_68: {
            using L = layout::IndexMxfp4_68;
            const auto* codes = reinterpret_cast<const uint8_t*>(page_at + L::row_at(token));
            const auto* scales = reinterpret_cast<const uint8_t*>(page_at + L::scales_at(page_tokens, token));
            return e2m1_to_f32(uint8_t(codes[d / 2] >> (4 * (d & 1)) & 15)) *
                   e8m0_to_f32(scales[d / L::tile]);
        }
        case SMLA_FP8_528_G32: return mxfp8_value<layout::Fp8_528_g32<false>>(*this, row, d);
        case SMLA_FP8_528_G32_SPLIT: return mxfp8_value<layout::Fp8_528_g32<true>>(*this, row, d);
        case SMLA_NVFP4_288: return nvfp4_value<layout::Nvfp4_288<false>>(*this, row, d);
        case SMLA_NVFP4_288_SPLIT: return nvfp4_value<layout::Nvfp4_288<true>>(*this, row, d);
        case SMLA_NVFP4_384: return nvfp4_value<layout::Nvfp4_384>(*this, row, d);
        case SMLA_NVFP4_352: return nvfp4_value<layout::Nvfp4_352>(*this, row, d);
        default: return 0;
    }
}

// Returns the largest magnitude of n values, ignoring NaN. Called by a warp.
__device__ inline float warp_amax(const float* values, int n) {
    float largest = 0;
    for (int i = int(threadIdx.x % 32); i < n; i += 32) largest = fmaxf(largest, fabsf(values[i]));
    return warp_max(largest);  // fmaxf ignores NaN, as the formats' rule does
}

// Returns value / scale with the sign of a NaN, as on a host; a GPU's division returns one canonical NaN.
__device__ inline float scaled(float value, float scale) { return isnan(value) ? value : value / scale; }

// The warps that encode a row together; each encodes some of the row's tiles.
struct Warps {
    int index = 0, count = 1;  // number of this warp, number of warps
    __device__ int lane() const { return int(threadIdx.x % 32); }
    __device__ int thread() const { return 32 * index + lane(); }
    __device__ int threads() const { return 32 * count; }
};

__device__ inline void encode_e4m3(Warps by, const float* values, int n, float scale, char* out) {
    for (int i = by.thread(); i < n; i += by.threads()) out[i] = char(f32_to_e4m3(scaled(values[i], scale)));
}
__device__ inline void encode_bf16(Warps by, const float* values, int n, char* out) {
    for (int i = by.thread(); i < n; i += by.threads())
        reinterpret_cast<uint16_t*>(out)[i] = f32_to_bf16(values[i]);
}

template <class Layout>
__device__ void encode_latent(Warps by, const float* values, char* row) {
    for (int t = by.index; t < Layout::tiles; t += by.count) {
        const float scale = scale_rule::latent(warp_amax(values + t * Layout::tile, Layout::tile));
        encode_e4m3({}, values + t * Layout::tile, Layout::tile, scale, row + t * Layout::tile);
        if (by.lane() == 0) *reinterpret_cast<float*>(row + Layout::scales_at + 4 * t) = scale;
    }
    encode_bf16(by, values + Layout::codes, Layout::rope, row + Layout::rope_at);
}

__device__ inline void encode_584(Warps by, const float* values, char* page, int64_t page_tokens,
                                  int64_t token) {
    using L = layout::Fp8_584;
    char* codes = page + L::row_at(token);
    char* scales = page + L::scales_at(page_tokens, token);
    for (int t = by.index; t < L::tiles; t += by.count) {
        const uint8_t scale = scale_rule::e8m0(warp_amax(values + t * L::tile, L::tile));
        encode_e4m3({}, values + t * L::tile, L::tile, e8m0_to_f32(scale), codes + t * L::tile);
        if (by.lane() == 0) scales[t] = char(scale);
    }
    if (by.thread() == 0) scales[L::tiles] = 0;
    encode_bf16(by, values + L::codes, L::rope, codes + L::rope_at);
}

__device__ inline void encode_132(Warps by, const float* values, char* page, int64_t page_tokens,
                                  int64_t token) {
    using L = layout::IndexFp8_132;
    const float scale = e8m0_to_f32(scale_rule::e8m0(warp_amax(values, L::width)));
    encode_e4m3(by, values, L::width, scale, page + L::row_at(token));
    if (by.thread() == 0) *reinterpret_cast<float*>(page + L::scale_at(page_tokens, token)) = scale;
}

// e2m1 has no NaN: a tile that contains one gets the NaN scale.
__device__ inline uint8_t warp_mxfp4_scale(const float* tile, smla_writer writer = 0) {
    const bool nan = __any_sync(~0u, isnan(tile[threadIdx.x % 32]));
    const float amax = warp_amax(tile, layout::IndexMxfp4_68::tile);
    if (nan) return 255;
    return writer & SMLA_WRITER_SCALE_FLOOR ? scale_rule::mxfp4_of_floored_scale(amax)
                                            : scale_rule::mxfp4(amax);
}
__device__ inline void encode_68(Warps by, const float* values, smla_writer writer, char* page,
                                 int64_t page_tokens, int64_t token) {
    using L = layout::IndexMxfp4_68;
    static_assert(L::tile == 32);
    char* codes = page + L::row_at(token);
    char* scales = page + L::scales_at(page_tokens, token);
    for (int t = by.index; t < L::tiles; t += by.count) {
        const uint8_t code = warp_mxfp4_scale(values + t * L::tile, writer);
        const float scale = e8m0_to_f32(code);
        const int pair = t * L::tile + 2 * by.lane();
        const auto e2m1 = [&](float value) {
            return writer & SMLA_WRITER_TIES_TO_ZERO ? f32_to_e2m1_ties_to_zero(scaled(value, scale))
                                                     : f32_to_e2m1(scaled(value, scale));
        };
        if (by.lane() < L::tile / 2) codes[pair / 2] = char(e2m1(values[pair]) | e2m1(values[pair + 1]) << 4);
        if (by.lane() == 0) scales[t] = char(code);
    }
}

// Rounds a value as the cache's writer does.
__device__ inline float to_write(float value, smla_writer writer) {
    return writer & SMLA_WRITER_BF16_FIRST ? round_to_bf16(value) : value;
}

// Returns a lane's value as nvfp4_288 rounds it; 16 lanes share a scale.
__device__ inline float fp4_value(float value) {
    constexpr unsigned kGroup = layout::Nvfp4_288<false>::tile;
    static_assert(kGroup == 16);
    float amax = isnan(value) ? 0.f : fabsf(value);
    for (unsigned distance = kGroup / 2; distance; distance /= 2)
        amax = fmaxf(amax, __shfl_xor_sync(~0u, amax, int(distance)));
    const unsigned group = 0xffffu << (threadIdx.x % 32 / kGroup * kGroup);
    const bool nan = __ballot_sync(~0u, isnan(value)) & group;
    const scale_rule::Nvfp4 rule = scale_rule::kNvfp4_288;
    const float scale = e4m3_to_f32(nan ? scale_rule::kNanE4m3 : scale_rule::nvfp4(amax, rule));
    return e2m1_to_f32(scale_rule::nvfp4_code(value, scale, rule)) * scale;
}

template <class Layout>
__device__ void encode_mxfp8(Warps by, const DeviceCache& cache, int64_t row, const float* values) {
    static_assert(Layout::tile == 32);
    const Parts<Layout> at(cache, row);
    for (int t = by.index; t < Layout::tiles; t += by.count) {
        const float given = to_write(values[t * Layout::tile + by.lane()], cache.writer);
        const float value = cache.writer & SMLA_WRITER_FP4_VALUES ? fp4_value(given) : given;
        const float amax = warp_max(fmaxf(0.f, fabsf(value)));  // fmaxf ignores NaN
        const uint8_t code = cache.writer & SMLA_WRITER_SCALE_FLOOR ? scale_rule::e8m0_of_floored_scale(amax)
                                                                    : scale_rule::e8m0(amax);
        at.values[t * Layout::tile + by.lane()] = f32_to_e4m3(scaled(value, e8m0_to_f32(code)));
        if (by.lane() == 0) at.scales[t] = code;
    }
}

// Encodes one group per lane.
template <class Layout>
__device__ void encode_nvfp4_groups(Warps by, const float* values, smla_writer writer,
                                    const scale_rule::Nvfp4 rule, uint8_t* codes, uint8_t* scales) {
    for (int g = by.thread(); g < Layout::tiles; g += by.threads()) {
        const float* const group = values + g * Layout::tile;
        float amax = 0;
        bool nan = false;
        for (int i = 0; i < Layout::tile; ++i) {
            const float value = to_write(group[i], writer);
            nan = nan || isnan(value);
            amax = fmaxf(amax, fabsf(value));
        }
        const uint8_t code = nan ? scale_rule::kNanE4m3 : scale_rule::nvfp4(amax, rule);
        const float scale = e4m3_to_f32(code);
        scales[Layout::scale_at(g)] = code;
        for (int i = 0; i < Layout::tile; i += 2)
            codes[(g * Layout::tile + i) / 2] =
                uint8_t(scale_rule::nvfp4_code(to_write(group[i], writer), scale, rule) |
                        scale_rule::nvfp4_code(to_write(group[i + 1], writer), scale, rule) << 4);
    }
}
template <class Layout>
__device__ void encode_288(Warps by, const DeviceCache& cache, int64_t row, const float* values) {
    const Parts<Layout> at(cache, row);
    encode_nvfp4_groups<Layout>(by, values, cache.writer, scale_rule::kNvfp4_288, at.values, at.scales);
}
__device__ inline void encode_384(Warps by, const DeviceCache& cache, int64_t row, const float* values) {
    using L = layout::Nvfp4_384;
    const Parts<L> at(cache, row);
    encode_nvfp4_groups<L>(by, values, 0, scale_rule::kNvfp4_384, at.values, at.scales);
    if (by.thread() < L::scales - L::tiles) at.scales[L::tiles + by.thread()] = 0;
    encode_bf16(by, values + L::codes, L::rope, reinterpret_cast<char*>(at.values) + L::rope_at);
}
__device__ inline void encode_352(Warps by, const DeviceCache& cache, int64_t row, const float* values) {
    using L = layout::Nvfp4_352;
    const Parts<L> at(cache, row);
    encode_nvfp4_groups<L>(by, values, 0, scale_rule::kNvfp4_352, at.values, at.scales);
    encode_e4m3(by, values + L::codes, L::rope, 1.f, reinterpret_cast<char*>(at.values) + L::rope_at);
}

// Encodes `width` values in shared memory, which all warps can read, into one valid row.
__device__ inline void encode(Warps by, const DeviceCache& cache, int64_t row, const float* values) {
    char* const page = cache.page(row);
    const int64_t token = row % cache.page_rows;
    char* const at = page + token * cache.row_stride;
    switch (cache.format) {
        case SMLA_ROW_F32:
        case SMLA_STATE_F32:
            for (int i = by.thread(); i < cache.width; i += by.threads())
                reinterpret_cast<float*>(at)[i] = values[i];
            break;
        case SMLA_ROW_BF16: encode_bf16(by, values, cache.width, at); break;
        case SMLA_FP8_656: encode_latent<layout::Fp8_656>(by, values, at); break;
        case SMLA_FP8_528: encode_latent<layout::Fp8_528>(by, values, at); break;
        case SMLA_FP8_576:
        case SMLA_FP8_512: encode_e4m3(by, values, cache.width, cache.tensor_scale(), at); break;
        case SMLA_FP8_584: encode_584(by, values, page, cache.page_tokens, token); break;
        case SMLA_INDEX_FP8_132: encode_132(by, values, page, cache.page_tokens, token); break;
        case SMLA_INDEX_MXFP4_68: encode_68(by, values, cache.writer, page, cache.page_tokens, token); break;
        case SMLA_FP8_528_G32: encode_mxfp8<layout::Fp8_528_g32<false>>(by, cache, row, values); break;
        case SMLA_FP8_528_G32_SPLIT: encode_mxfp8<layout::Fp8_528_g32<true>>(by, cache, row, values); break;
        case SMLA_NVFP4_288: encode_288<layout::Nvfp4_288<false>>(by, cache, row, values); break;
        case SMLA_NVFP4_288_SPLIT: encode_288<layout::Nvfp4_288<true>>(by, cache, row, values); break;
        case SMLA_NVFP4_384: encode_384(by, cache, row, values); break;
        case SMLA_NVFP4_352: encode_352(by, cache, row, values); break;
        default: break;
    }
}

}  // namespace smla::cuda
