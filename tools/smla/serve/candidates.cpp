#include "candidates.h"

#include "noise.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace smla::cli {

namespace {

int32_t whole(uint64_t key, int64_t what, int64_t i, int32_t least, int32_t most) {
    return least + int32_t(drawn(key, uint64_t(what), uint64_t(i)) % uint64_t(most - least + 1));
}

// Returns the `k` elements of `from` with the highest scores in ascending order; ties favor the lowest.
std::vector<int32_t> best(std::vector<int32_t> from, const std::vector<int32_t>& scores, size_t k) {
    const size_t n = std::min(k, from.size());
    std::partial_sort(from.begin(), from.begin() + int64_t(n), from.end(), [&](int32_t a, int32_t b) {
        const int32_t more = scores[size_t(a)], less = scores[size_t(b)];
        return more != less ? more > less : a < b;
    });
    from.resize(n);
    std::sort(from.begin(), from.end());
    return from;
}

std::vector<int32_t> first(int64_t n) {
    std::vector<int32_t> out(static_cast<size_t>(n));
    std::iota(out.begin(), out.end(), 0);
    return out;
}

// Returns the blocks with the highest scores, which always include the newest block.
std::vector<int32_t> best_blocks(const std::vector<int32_t>& scores) {
    std::vector<int32_t> maxima;
    for (size_t at = 0; at < scores.size(); at += kBlockSize)
        maxima.push_back(
            *std::max_element(scores.begin() + int64_t(at),
                              scores.begin() + int64_t(std::min(at + kBlockSize, scores.size()))));
    if (maxima.empty()) return {};
    maxima.back() = std::numeric_limits<int32_t>::max();
    return best(first(int64_t(maxima.size())), maxima, kBlocks);
}

std::vector<int32_t> columns_of(const std::vector<int32_t>& blocks, int32_t columns) {
    std::vector<int32_t> out;
    for (const int32_t block : blocks)
        for (int32_t c = block * kBlockSize; c < std::min((block + 1) * kBlockSize, columns); ++c)
            out.push_back(c);
    return out;
}

// Returns the scores of entries [0, columns) for one token.
std::vector<int32_t> scores_of(uint64_t token, int32_t source, const std::vector<int32_t>& keys,
                               int32_t columns) {
    std::vector<int32_t> query, out(static_cast<size_t>(columns));
    for (int32_t i = 0; i < kIndexHeads * kIndexWidth; ++i)
        query.push_back(int32_t(index_query(token, source, i)));
    for (int32_t head = 0; head < kIndexHeads; ++head) {
        const int32_t weight = int32_t(index_weight(token, source, head));
        const int32_t* const q = query.data() + head * kIndexWidth;
        for (int32_t c = 0; c < columns; ++c) {
            const int32_t* const key = keys.data() + int64_t(c) * kIndexWidth;
            out[size_t(c)] += weight * std::max(0, std::inner_product(q, q + kIndexWidth, key, 0));
        }
    }
    return out;
}

}  // namespace

float index_query(uint64_t key, int32_t source, int64_t i) {
    return float(whole(key, 200 + source, i, -2, 2));
}
float index_weight(uint64_t key, int32_t source, int64_t i) {
    return float(whole(key, 300 + source, i, -1, 3));
}
float index_key(uint64_t key, int64_t i) { return float(whole(key, 400, i, -3, 3)); }

PlainLists plain_lists(const std::vector<uint64_t>& text, int32_t ratio, int32_t topk) {
    const int32_t tokens = int32_t(text.size());
    PlainLists out;
    out.of_source.resize(kIndexSources);
    out.restricted.resize(text.size());
    std::vector<int32_t> keys;  // index keys of the entries completed so far
    for (int32_t t = 0; t < tokens; ++t) {
        const int32_t columns = (t + 1) / ratio;
        if ((t + 1) % ratio == 0)
            for (int64_t i = 0; i < kIndexWidth; ++i) keys.push_back(int32_t(index_key(text[size_t(t)], i)));
        const std::vector<int32_t> all = first(columns);
        std::vector<int32_t> within = all;  // until the first source has selected blocks
        for (int32_t source = 0; source < kIndexSources; ++source) {
            const std::vector<int32_t> scores = scores_of(text[size_t(t)], source, keys, columns);
            std::vector<int32_t> list = best(within, scores, size_t(topk));
            if (source == 0) within = columns_of(best_blocks(scores), columns);
            else if (list != best(all, scores, size_t(topk))) out.restricted[size_t(t)] = true;
            list.resize(size_t(topk), -1);
            std::vector<int32_t>& lists = out.of_source[size_t(source)];
            lists.insert(lists.end(), list.begin(), list.end());
        }
    }
    return out;
}

}  // namespace smla::cli
