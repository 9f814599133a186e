#include "core/huge_pages.h"
#include "kit/random.h"
#include "problems.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <numeric>

namespace smla::cli {

using kit::Random;

void Memory::Free::operator()(void* data) const { std::free(data); }

void* Memory::take(size_t bytes) {
    void* data = allocate_block(std::max<size_t>(bytes, 1), kCacheLine);
    if (!data) throw std::bad_alloc();
    blocks_.emplace_back(data);
    std::memset(data, 0, bytes);
    return data;
}

void Memory::back(Tensor& tensor) {
    if (present(tensor))
        tensor.data = take((size_t(element_count(tensor)) * size_t(dtype_bits(tensor.dtype)) + 7) / 8);
}

void Memory::back(smla_cache& cache) {
    if (cache.format != SMLA_FORMAT_NONE) cache.data = take(cache_bytes(cache));
}

void Filler::values(Tensor& tensor, float spread) {
    memory_.back(tensor);
    if (!present(tensor)) return;
    Random random{next_seed()};
    const int64_t count = element_count(tensor);
    auto* bytes = static_cast<uint8_t*>(tensor.data);
    switch (tensor.dtype) {
        case SMLA_E4M3:
            for (int64_t i = 0; i < count; ++i) bytes[i] = f32_to_e4m3(spread * random.rough_normal());
            break;
        case SMLA_E2M1:
            for (int64_t i = 0; i < count / 2; ++i) bytes[i] = uint8_t(random.next());
            break;
        case SMLA_E8M0:
            for (int64_t i = 0; i < count; ++i) bytes[i] = uint8_t(126 + random.below(3));
            break;
        default: {
            const Tensor flat = reshape(tensor, {count});
            std::vector<float> row(size_t(std::min<int64_t>(count, 4096)));
            for (int64_t first = 0; first < count; first += 4096) {
                const int64_t n = std::min<int64_t>(4096, count - first);
                for (int64_t i = 0; i < n; ++i) row[size_t(i)] = spread * random.rough_normal();
                store_row(flat, address(flat, first), n, row.data());
            }
        }
    }
}

void Filler::records(smla_cache& cache, float spread) {
    memory_.back(cache);
    if (cache.format == SMLA_FORMAT_NONE) return;
    const CacheView view(cache);
    const uint64_t seed = next_seed();
    pool_.run(view.pages, [&](int64_t page, int) {
        Random random{seed + uint64_t(page) * 0x2545f4914f6cdd1du};
        std::vector<float> values(static_cast<size_t>(view.width));
        for (int64_t offset = 0; offset < view.page_tokens; ++offset) {
            for (float& value : values) value = spread * random.rough_normal();
            view.encode(page * view.page_rows + offset, values.data());
        }
    });
}

void Filler::rows(Tensor& rows, const smla_cache& cache) {
    memory_.back(rows);
    if (!present(rows)) return;
    const CacheView view(cache);
    std::vector<int32_t> all(static_cast<size_t>(view.capacity));
    std::iota(all.begin(), all.end(), 0);
    Random random{next_seed()};
    for (int64_t t = 0; t < rows.shape[0]; ++t) {
        auto* row = reinterpret_cast<int32_t*>(address(rows, t));
        for (int64_t j = 0; j < rows.shape[1]; ++j) {  // lists longer than the cache repeat its rows
            const size_t from = size_t(j) % all.size();
            std::swap(all[from], all[from + random.below(all.size() - from)]);
            row[j] = all[from];
        }
    }
}

void Filler::table(Tensor& table, const smla_cache& cache) {
    memory_.back(table);
    if (!present(table)) return;
    std::vector<int32_t> pages(static_cast<size_t>(cache.pages));
    std::iota(pages.begin(), pages.end(), 0);
    Random random{next_seed()};
    for (size_t i = pages.size(); i > 1; --i) std::swap(pages[i - 1], pages[random.below(i)]);
    auto* entries = static_cast<int32_t*>(table.data);
    for (int64_t i = 0; i < element_count(table); ++i) entries[i] = pages[size_t(i) % pages.size()];
}

void Filler::constant(Tensor& tensor, int32_t value) {
    memory_.back(tensor);
    auto* values = static_cast<int32_t*>(tensor.data);
    if (present(tensor)) std::fill(values, values + element_count(tensor), value);
}

void Filler::requests(smla_score_args& args, int64_t columns) {
    const int64_t tokens = args.q.shape[0];
    const int64_t each = ceil_div(tokens, present(args.block_table) ? args.block_table.shape[0] : 1);
    for (Tensor* tensor : {&args.request_of_token, &args.ends}) memory_.back(*tensor);
    for (int64_t t = 0; t < tokens; ++t) {
        if (present(args.request_of_token))
            static_cast<int32_t*>(args.request_of_token.data)[t] = int32_t(t / each);
        static_cast<int32_t*>(args.ends.data)[t] = int32_t(columns - each + 1 + t % each);
    }
}

void Filler::fill(smla_attend_args& args) {
    values(args.q, 3);  // sharp enough that some rows weigh much more than others
    for (smla_attend_source* source : {&args.primary, &args.extra}) {
        if (source->cache.format == SMLA_FORMAT_NONE) continue;
        records(source->cache);
        rows(source->rows, source->cache);
        constant(source->lengths, int32_t(source->rows.shape[1]));
    }
    values(args.sink);
    memory_.back(args.out);
    memory_.back(args.lse);
    memory_.back(args.max_logits);
}

void Filler::inputs(smla_score_args& args) {
    values(args.q, 8);
    values(args.q_scales);
    values(args.w, 0.01f);
    records(args.keys);
    table(args.block_table, args.keys);
}

void Filler::fill(smla_score_args& args) {
    inputs(args);
    requests(args, args.logits.shape[1]);
    memory_.back(args.logits);
}

void Filler::fill(smla_select_args& args) {
    values(args.scores);
    memory_.back(args.indices);
    memory_.back(args.selected);
    memory_.back(args.counts);
}

void Filler::fill(smla_score_select_args& args) {
    inputs(args.score);
    requests(args.score, args.columns);
    memory_.back(args.select.indices);
    memory_.back(args.select.selected);
    memory_.back(args.select.counts);
}

void Filler::fill(smla_merge_args& args) {
    values(args.partials);
    values(args.lse, 2);
    values(args.sink);
    memory_.back(args.out);
    memory_.back(args.lse_out);
}

}  // namespace smla::cli
