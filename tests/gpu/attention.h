// attend of V3.2 on a GPU, as a server captures it: its buffers stay, their contents change.
#pragma once

#include "gpu/gpu.h"

#include <random>

namespace gpu {

constexpr int64_t kTokens = 8, kHeads = 16, kRows = 2048, kPages = 64;

// The bytes of a cache whose rows are random values of `width`, as a processor writes them.
inline std::vector<uint8_t> random_records(smla_cache cache, int64_t width, std::mt19937& random) {
    std::vector<uint8_t> bytes(smla::cache_bytes(cache));
    const int64_t rows = cache.pages * cache.page_tokens;
    std::vector<float> values(size_t(rows * width));
    std::normal_distribution<float> normal;
    for (float& v : values) v = normal(random);
    std::vector<int64_t> slots(static_cast<size_t>(rows));
    for (size_t i = 0; i < slots.size(); ++i) slots[i] = int64_t(i);
    cache.data = bytes.data();
    cache.device_type = SMLA_CPU;
    const smla_write_args args{
        .head = smla::tensor(values, {rows, width}), .slots = smla::tensor(slots), .cache = cache};
    const bool index = cache.format == SMLA_INDEX_FP8_132 || cache.format == SMLA_INDEX_MXFP4_68;
    if (index) smla::Context().write_index(args);
    else smla::Context().write_kv(args);
    return bytes;
}

// Kernels of attend, by name.
constexpr const char *kRaw = "cuda_sm90_raw_attend", *kSm90 = "cuda_sm90_attend", *kMma = "cuda_mma_attend";

// A context in which attend takes that kernel, or refuses.
inline smla::Context attend_context(const std::string& kernel) {
    const std::string demand = "attend=" + kernel;
    smla_context_args args{};
    args.engine = SMLA_ENGINE_CUDA;
    args.kernel = demand.c_str();
    return smla::Context(args);
}
// Without memory yet.
inline smla_cache attend_cache(smla_format format, int64_t width, int64_t pages, int32_t page_tokens) {
    smla_cache out = smla::cache(nullptr, format, pages, page_tokens);
    if (format == SMLA_ROW_BF16) out.width = int32_t(width);
    if (format == SMLA_FP8_576 || format == SMLA_FP8_512) out.scale = 0.02f;
    return out;
}
// bf16 from 1/2 to 2, either sign.
inline std::vector<uint16_t> random_queries(size_t count, std::mt19937& random) {
    std::vector<uint16_t> out(count);
    for (uint16_t& each : out) each = uint16_t(0x3f00 + random() % 256 + (random() % 2 << 15));
    return out;
}

struct Attention {
    explicit Attention(int64_t heads = kHeads)
        : heads(heads),
          q(SMLA_BF16, {kTokens, heads, 576}),
          rows(SMLA_I32, {kTokens, kRows}),
          lengths(SMLA_I32, {kTokens}),
          out(SMLA_BF16, {kTokens, heads, 512}),
          lse(SMLA_F32, {kTokens, heads}),
          pages(SMLA_U8, {int64_t(smla::cache_bytes(smla::cache(nullptr, SMLA_FP8_656, kPages, 64)))}) {
        args.softmax_scale = 0.05;
        args.q = q.tensor();
        args.primary.cache = smla::cache(pages.tensor().data, SMLA_FP8_656, kPages, 64);
        args.primary.cache.device_type = SMLA_CUDA;
        args.primary.cache.device_index = pages.tensor().device_index;
        args.primary.rows = rows.tensor();
        args.primary.lengths = lengths.tensor();
        args.out = out.tensor();
        args.lse = lse.tensor();
        pages.set(random_records(args.primary.cache, 576, random));
    }
    // Another batch: `live` tokens with rows, the others as a server leaves them.
    void batch(int64_t live, int32_t stale_length, int32_t stale_row) {
        q.set(random_queries(q.count(), random));
        std::vector<int32_t> list(rows.count(), stale_row), length(kTokens, stale_length);
        for (int64_t t = 0; t < live; ++t) {
            length[size_t(t)] = int32_t(random() % (kRows + 1));
            for (int64_t j = 0; j < kRows; ++j)
                list[size_t(t * kRows + j)] = random() % 10 ? int32_t(random() % (kPages * 64)) : -1;
        }
        rows.set(list);
        lengths.set(length);
    }
    std::vector<uint16_t> take() {
        std::vector<uint16_t> got = out.get();
        out.poison();
        lse.poison();
        return got;
    }

    std::mt19937 random{28};
    int64_t heads;
    Array<uint16_t> q;
    Array<int32_t> rows, lengths;
    Array<uint16_t> out;
    Array<float> lse;
    Array<uint8_t> pages;
    smla_attend_args args{};
};

}  // namespace gpu
