// V4.1's index sources in a serving run: the first names candidate blocks, those after it select within them.
// Their queries, weights and keys are small whole numbers, so every engine has the same scores, ties too.
#pragma once

#include <cstdint>
#include <vector>

namespace smla::cli {

constexpr int32_t kIndexSources = 3;  // all layers read the entries and index keys of the first
constexpr int32_t kIndexHeads = 2, kIndexWidth = 128;
constexpr int32_t kBlockSize = 8, kBlocks = 8;  // 64 entries; a few hundred tokens see many more

// Input of an index source's scores: one number of a token.
float index_query(uint64_t key, int32_t source, int64_t i);   // i < kIndexHeads * kIndexWidth
float index_weight(uint64_t key, int32_t source, int64_t i);  // i < kIndexHeads
float index_key(uint64_t key, int64_t i);  // i < kIndexWidth, for the token that completes an entry

// Computes the lists of a whole text by plain loops, without caches, stages or formats.
struct PlainLists {
    std::vector<std::vector<int32_t>> of_source;  // [S,topk] each, ascending, then -1
    std::vector<bool> restricted;                 // [S]: whether a list would differ without blocks
};
PlainLists plain_lists(const std::vector<uint64_t>& text, int32_t ratio, int32_t topk);

}  // namespace smla::cli
