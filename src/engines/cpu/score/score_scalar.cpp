// score in the order of the specification: the same bits as the reference. Heads are vectors of four, which
// every target of this project has in registers.
#include "core/e4m3_table.h"
#include "core/numbers.h"
#include "engines/cpu/score/kernel.h"

#include <cstring>

namespace smla {

namespace {

typedef float Four __attribute__((vector_size(16)));
constexpr int kLanes = 8, kKeys = 4;  // heads in two vectors, against four keys
static_assert(kScoreTile % kKeys == 0 && kKeys <= kScoreKeys);

void dots(const float* q, int words, const float* keys, int stride, Four (&acc)[kKeys][2]) {
    for (auto& each : acc) each[0] = each[1] = Four{0, 0, 0, 0};
    for (int i = 0; i < words; ++i) {
        Four head[2];
        std::memcpy(head, q + i * kLanes, sizeof head);
        for (int j = 0; j < kKeys; ++j) {
            const float value = keys[j * stride + i];
            const Four key = {value, value, value, value};
            acc[j][0] += head[0] * key;
            acc[j][1] += head[1] * key;
        }
    }
}

bool score_tile(const TileQuery& query, const uint32_t* key_words, const float* scales, int n,
                const TilesAhead& ahead, float* sums, float* logits) {
    const float* keys = reinterpret_cast<const float*>(key_words);
    for (int j = 0; j < n; j += kKeys) {
        fetch_ahead(ahead, j, kKeys);
        for (int i = 0; i < kKeys; ++i) sums[i] = 0;
        for (int h = 0; h < query.heads; h += kLanes) {
            Four acc[kKeys][2];
            dots(reinterpret_cast<const float*>(query.packed) + int64_t(h) * query.words, query.words,
                 keys + int64_t(j) * query.stride, query.stride, acc);
            float products[kKeys][kLanes];
            std::memcpy(products, acc, sizeof products);
            const int heads = query.heads - h < kLanes ? query.heads - h : kLanes;
            for (int lane = 0; lane < heads; ++lane)
                for (int i = 0; i < kKeys; ++i) {
                    const float dot = products[i][lane];
                    sums[i] += query.w[h + lane] * (dot <= 0 ? 0.f : dot);  // a NaN passes
                }
        }
        for (int i = 0; i < kKeys; ++i) logits[j + i] = sums[i] * scales[j + i];
    }
    return false;
}

// [heads][stride] words -> [block of 8 heads][word][lane], zero where there is no head
void pack_heads(const uint32_t* decoded, int heads, int words, int stride, uint32_t* packed) {
    for (int h = 0; h < heads; h += kLanes)
        for (int i = 0; i < words; ++i)
            for (int lane = 0; lane < kLanes; ++lane)
                *packed++ = h + lane < heads ? decoded[int64_t(h + lane) * stride + i] : 0;
}

void decode_row(ValueBytes kind, const ValueRow& row, int width, float* out) {
    if (kind == ValueBytes::e4m3) {
        for (int d = 0; d < width; ++d) out[d] = kE4m3Values[row.values[d]];
    } else if (kind == ValueBytes::bf16) {
        for (int d = 0; d < width; ++d) {
            uint16_t bits;
            std::memcpy(&bits, row.values + 2 * d, 2);
            out[d] = bf16_to_f32(bits);
        }
    } else {
        float values[16];
        for (int d = 0; d < width; ++d) {
            if (d % 32 == 0)
                for (int code = 0; code < 16; ++code)
                    values[code] = e2m1_to_f32(uint8_t(code)) * e8m0_to_f32(row.scales[d / 32]);
            out[d] = values[row.values[d / 2] >> (4 * (d & 1)) & 15];
        }
    }
}

void decode(ValueBytes kind, const ValueRow* rows, int n, int width, int stride, uint32_t* out) {
    for (int j = 0; j < n; ++j, out += stride) {
        if (kind == ValueBytes::f32) std::memcpy(out, rows[j].values, size_t(width) * 4);
        else decode_row(kind, rows[j], width, reinterpret_cast<float*>(out));
    }
}

}  // namespace

extern const ScoreKernel kScoreScalar = {.name = "cpu_scalar_f32_score",
                                         .isa = SMLA_ISA_SCALAR,
                                         .lanes = kLanes,
                                         .bf16_operands = false,
                                         .decode = decode,
                                         .pack = pack_heads,
                                         .score = score_tile};

}  // namespace smla
