// One unit of attend: a token, a chunk of heads, a split of its valid rows.
#pragma once

#include "engines/cpu/attend/source.h"

namespace smla::cpu_attend {

struct Call {  // what all units share
    const smla_attend_args& args;
    const Plan& plan;
    const Source* sources;  // primary, extra, or both
    int source_count;
    float factor;  // factor of the products: softmax scale * q scale * log2 e
};

class Worker {
public:
    Worker(const Call& call, const Scratch& scratch) : call_(call), plan_(call.plan), scratch_(scratch) {}
    void run(int64_t token, int chunk, int split, const Partial& out);

private:
    struct Block {  // rows of one source
        int source;
        int64_t begin;  // offset in the token's list
        int count;
    };
    struct Group {  // heads of one call of a score kernel
        int first_vector, vectors;
    };

    void pack_few_queries(int64_t token);
    void pack_queries(int64_t token);
    const uint32_t* stage(int64_t token, int first, int& stride);
    void load_query(int64_t token, int head, uint32_t* words) const;
    bool next_block(Block& block) const;
    void locate(const Block& block, int buffer);
    void plan_prefetch(bool any, const Block& next, int buffer);
    // Computes scores and weights of a block; returns whether earlier values must be rescaled.
    bool weigh(const Block& block, int buffer, bool first);
    bool decode_and_score(const Block& block, int buffer);
    // Decodes keys [begin, end) of a block, padded to whole tiles at the block's end.
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
    int side_by_side(const Group& group) const;  // interleaved vectors of heads in queries and scores

    const Call& call_;
    const Plan& plan_;
    Scratch scratch_;
    Chunk chunk_{};
    Partial out_{};
    int64_t ends_[2] = {0, 0};  // end of each source's rows in the token's list
    int64_t end_ = 0;           // end of this split
    Prefetch prefetch_;
    int64_t prefetch_lines_ = 0;
    Scaling scaling_ = Scaling::words;  // scaling of the current block
    int tiles_ = 0;                     // tiles of scales in its products
};

// Joins the splits of a chunk of heads and writes out, lse and max_logits. `row` is scratch.
void finish_heads(const Call& call, int64_t token, const Chunk& chunk, int first, int last,
                  const Partial* parts, float* row);

}  // namespace smla::cpu_attend
