// score with f32 operands on the 4-lane registers of 64-bit Arm.
#include "engines/cpu/score/kernel.h"

#include <cstring>

#include <arm_neon.h>

namespace smla {

namespace score_neon {

constexpr int kLanes = 4, kBlock = 16;  // heads per register and per pass over a tile

// `Keys` keys against 4 * Groups heads; the relu'd and weighted products join sums[key][4 lanes].
template <int Groups, int Keys>
inline void score_block(const float* q, const float* w, uint32x4_t last, int words, const float* keys,
                        int stride, bool first, float* sums) {
    float32x4_t acc[Keys][Groups];
#pragma GCC unroll 16
    for (int j = 0; j < Keys; ++j)
#pragma GCC unroll 16
        for (int g = 0; g < Groups; ++g) acc[j][g] = vdupq_n_f32(0.f);
    for (int i = 0; i < words; ++i) {
        float32x4_t head[Groups];
#pragma GCC unroll 16
        for (int g = 0; g < Groups; ++g) head[g] = vld1q_f32(q + (i * Groups + g) * kLanes);
#pragma GCC unroll 16
        for (int j = 0; j < Keys; ++j) {
            const float32x4_t key = vld1q_dup_f32(keys + j * stride + i);
#pragma GCC unroll 16
            for (int g = 0; g < Groups; ++g) acc[j][g] = vfmaq_f32(acc[j][g], head[g], key);
        }
    }
    const float32x4_t zero = vdupq_n_f32(0.f);
#pragma GCC unroll 16
    for (int j = 0; j < Keys; ++j) {
        float32x4_t sum = first ? zero : vld1q_f32(sums + kLanes * j);
#pragma GCC unroll 16
        for (int g = 0; g < Groups; ++g) {
            const float32x4_t relu = vmaxq_f32(zero, acc[j][g]);  // a NaN stays one
            const float32x4_t more = vfmaq_f32(sum, relu, vld1q_f32(w + kLanes * g));
            // Padded heads stay out: zero times an infinite key would be NaN.
            sum = g + 1 < Groups ? more : vbslq_f32(last, more, sum);
        }
        vst1q_f32(sums + kLanes * j, sum);
    }
}

template <int Groups, int Keys>
inline void score_groups(const TileQuery& query, int head, const float* q, const float* keys, int n,
                         const TilesAhead& ahead, float* sums) {
    static_assert(kScoreTile % Keys == 0 && Keys <= kScoreKeys);
    constexpr uint32_t numbers[4] = {0, 1, 2, 3};
    const uint32_t left = uint32_t(query.heads - head - kLanes * (Groups - 1));
    const uint32x4_t last = vcltq_u32(vld1q_u32(numbers), vdupq_n_u32(left));
    for (int j = 0; j < n; j += Keys) {
        if (head == 0) fetch_ahead(ahead, j, Keys);
        score_block<Groups, Keys>(q, query.w + head, last, query.words, keys + int64_t(j) * query.stride,
                                  query.stride, head == 0, sums + kLanes * j);
    }
}

bool score_tile(const TileQuery& query, const uint32_t* key_words, const float* scales, int n,
                const TilesAhead& ahead, float* sums, float* logits) {
    const float* q = reinterpret_cast<const float*>(query.packed);
    const float* keys = reinterpret_cast<const float*>(key_words);
    for (int h = 0; h < query.heads; h += kBlock) {
        const int heads = query.heads - h < kBlock ? query.heads - h : kBlock,
                  groups = (heads + kLanes - 1) / kLanes;
        switch (groups) {  // at most 24 accumulators, of 32 registers
            case 4: score_groups<4, 6>(query, h, q, keys, n, ahead, sums); break;
            case 3: score_groups<3, 8>(query, h, q, keys, n, ahead, sums); break;
            case 2: score_groups<2, 12>(query, h, q, keys, n, ahead, sums); break;
            default: score_groups<1, 16>(query, h, q, keys, n, ahead, sums); break;
        }
        q += int64_t(query.words) * groups * kLanes;
    }
    for (int j = 0; j < n; ++j) logits[j] = vaddvq_f32(vld1q_f32(sums + kLanes * j)) * scales[j];
    return false;
}

// [heads][stride] words -> [block of 16 heads][word][lane], zero where there is no head
void pack_heads(const uint32_t* decoded, int heads, int words, int stride, uint32_t* packed) {
    for (int h = 0; h < heads; h += kBlock) {
        const int block = heads - h < kBlock ? heads - h : kBlock,
                  lanes = (block + kLanes - 1) / kLanes * kLanes;
        for (int i = 0; i < words; ++i)
            for (int lane = 0; lane < lanes; ++lane)
                *packed++ = lane < block ? decoded[int64_t(h + lane) * stride + i] : 0;
    }
}

// The code's bits in the exponent and mantissa of an f32 are the value times 2^-120, subnormals included.
inline float32x4_t e4m3(uint32x4_t code) {
    const uint32x4_t magnitude = vandq_u32(code, vdupq_n_u32(0x7f));
    const uint32x4_t sign = vshlq_n_u32(vandq_u32(code, vdupq_n_u32(0x80)), 24);
    const float32x4_t value =
        vmulq_f32(vreinterpretq_f32_u32(vorrq_u32(vshlq_n_u32(magnitude, 20), sign)), vdupq_n_f32(0x1p120f));
    return vbslq_f32(vceqq_u32(magnitude, vdupq_n_u32(0x7f)), vdupq_n_f32(__builtin_nanf("")), value);
}

// Bits 0 to 2 of a code choose the magnitude, bit 3 is the sign.
inline float32x4_t e2m1(uint32x4_t code, uint32_t scale_code) {
    constexpr float magnitudes[8] = {0.f, 0.5f, 1.f, 1.5f, 2.f, 3.f, 4.f, 6.f};
    const uint32_t bits = scale_code == 0 ? 0x00400000u : scale_code == 255 ? 0x7fc00000u : scale_code << 23;
    const uint32x4_t which = vandq_u32(code, vdupq_n_u32(7));
    const float chosen[4] = {magnitudes[vgetq_lane_u32(which, 0)], magnitudes[vgetq_lane_u32(which, 1)],
                             magnitudes[vgetq_lane_u32(which, 2)], magnitudes[vgetq_lane_u32(which, 3)]};
    const uint32x4_t sign = vshlq_n_u32(vandq_u32(code, vdupq_n_u32(8)), 28);
    const uint32x4_t value = veorq_u32(vreinterpretq_u32_f32(vld1q_f32(chosen)), sign);
    return vmulq_f32(vreinterpretq_f32_u32(value), vreinterpretq_f32_u32(vdupq_n_u32(bits)));
}

float32x4_t load4(ValueBytes kind, const ValueRow& row, int d) {
    if (kind == ValueBytes::bf16) {
        uint16_t values[4];
        std::memcpy(values, row.values + 2 * d, sizeof values);
        return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(values), 16));
    }
    if (kind == ValueBytes::e4m3) {
        uint32_t four;
        std::memcpy(&four, row.values + d, sizeof four);
        return e4m3(vmovl_u16(vget_low_u16(vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(four))))));
    }
    uint16_t bytes;  // e2m1: four codes, the even channel in the low nibble
    std::memcpy(&bytes, row.values + d / 2, sizeof bytes);
    constexpr int32_t shifts[4] = {0, -4, -8, -12};
    return e2m1(vshlq_u32(vdupq_n_u32(bytes), vld1q_s32(shifts)), row.scales[d / 32]);
}

void decode(ValueBytes kind, const ValueRow* rows, int n, int width, int stride, uint32_t* out) {
    for (int j = 0; j < n; ++j, out += stride) {
        if (kind == ValueBytes::f32) {
            std::memcpy(out, rows[j].values, size_t(width) * 4);
            continue;
        }
        float* row = reinterpret_cast<float*>(out);
        const int whole = width / 4 * 4, bytes = kind == ValueBytes::bf16 ? 2 : 1;
        for (int d = 0; d < whole; d += 4) vst1q_f32(row + d, load4(kind, rows[j], d));
        if (whole == width) continue;  // e2m1 widths are multiples of 32
        uint8_t rest[8] = {};
        std::memcpy(rest, rows[j].values + whole * bytes, size_t(width - whole) * size_t(bytes));
        vst1q_f32(row + whole, load4(kind, {rest, nullptr}, 0));
    }
}

}  // namespace score_neon

extern const ScoreKernel kScoreNeon = {.name = "cpu_neon_f32_score",
                                       .isa = SMLA_ISA_NEON,
                                       .lanes = score_neon::kLanes,
                                       .bf16_operands = false,
                                       .decode = score_neon::decode,
                                       .pack = score_neon::pack_heads,
                                       .score = score_neon::score_tile};

}  // namespace smla
