// One unit of attend: a token, a chunk of heads, a split of its valid rows.
#pragma once

#include "engines/cpu/attend/source.h"

namespace smla::cpu_attend {

struct Call {  // what all units share
    const smla_attend_args& args;
    const Plan& plan;
    const Source* sources;  // primary, extra: those that are there
    int source_count;
    float factor;  // of the products: softmax scale * q scale * log2 e
};

class Worker {
public:
    Worker(const Call& call, const Scratch& scratch) : call_(call), plan_(call.plan), scratch_(scratch) {}
    void run(int64_t token, int chunk, int split, const Partial& out);

private:
    struct Block {  // rows of one source
        int source;
        int64_t begin;  // in the token's list
        int count;
    };
    struct Group {  // heads that a score kernel takes at once
        int first_vector, vectors;
    };

    void pack_few_queries(int64_t token);
    void pack_queries(int64_t token);
    const uint32_t* stage(int64_t token, int first, int& stride);
    void load_query(int64_t token, int head, uint32_t* words) const;
    bool next_block(Block& block) const;
    void locate(const Block& block, int buffer);
    void plan_prefetch(bool any, const Block& next, int buffer);
    // Scores and weights of a block; returns whether earlier values must be rescaled.
    bool weigh(const Block& block, int buffer, bool first);
    bool decode_and_score(const Block& block, int buffer);
    // Keys [begin, end) of a block, padded to whole tiles where the block ends.
    bool decode(const Block& block, int buffer, int begin, int end);
    void score(const Source& source, const Group& group, const Block& block, int begin, int end);
    int padded(const Block& block, const Group& group, int begin, int end) const {
        return end < block.count ? end - begin : plan_.padded(end, group.vectors) - begin;
    }
    bool softmax(const Group& group, int count, bool first);
    void accumulate(const Block& block, Carry carry);
    int groups() const { return int(ceil_div(chunk_.vectors, plan_.micro.group_vectors)); }
    Group group(int index) const;
    uint32_t* keys_at(int begin) const;
    int64_t score_stride(const Group& group) const;
    int side_by_side(const Group& group) const;  // vectors of heads, in queries and scores

    const Call& call_;
    const Plan& plan_;
    Scratch scratch_;
    Chunk chunk_{};
    Partial out_{};
    int64_t ends_[2] = {0, 0};  // where the rows of each source end in the token's list
    int64_t end_ = 0;           // of this split
    Prefetch prefetch_;
    int64_t prefetch_lines_ = 0;
    Scaling scaling_ = Scaling::words;  // of the block at hand
    int tiles_ = 0;                     // of scales that its products apply
};

// The result of a chunk of heads from its splits: out, lse, max_logits. `row` is scratch.
void finish_heads(const Call& call, int64_t token, const Chunk& chunk, int first, int last,
                  const Partial* parts, float* row);

}  // namespace smla::cpu_attend
