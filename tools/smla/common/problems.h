// Arguments of stage calls, made from shapes: without memory for explain, with random values for self-tests
// and benchmarks. All random values follow from the seed.
#pragma once

#include "core/thread_pool.h"
#include "formats/format.h"

#include <smla/stages.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace smla::cli {

// One list of rows and the cache that it points into.
struct ListShape {
    smla_format format = SMLA_FORMAT_NONE;
    int64_t listed = 0;     // K
    int64_t pool_rows = 0;  // rows of the cache, rounded up to whole pages
    int32_t page_tokens = 64;
};

struct AttendShape {
    int64_t tokens = 1, heads = 128, width = 576, value_width = 512;
    ListShape primary, extra;
    smla_dtype q = SMLA_BF16, out = SMLA_BF16;
    bool sink = false;
    smla_precision precision = SMLA_PRECISION_DEFAULT;
};

struct ScoreShape {
    int64_t tokens = 1, heads = 64, width = 128, columns = 0;
    smla_dtype q = SMLA_E4M3;
    smla_format format = SMLA_INDEX_FP8_132;
    int32_t page_tokens = 64;
    // Tokens that share a request's keys: the last one sees all, the one before all but one, and so on.
    int64_t tokens_per_request = 1;
    smla_precision precision = SMLA_PRECISION_DEFAULT;
    int64_t requests() const { return ceil_div(tokens, tokens_per_request); }
};

struct SelectShape {
    int64_t tokens = 1, columns = 0, topk = 2048;
};

struct MergeShape {
    int64_t partials = 2, tokens = 1, heads = 128, value_width = 512;
};

// A tensor for checks, which want a data pointer: a non-null address that nothing may read or write.
Tensor absent_data(smla_dtype dtype, std::initializer_list<int64_t> shape);
smla_cache cache_of(smla_format format, int64_t width, int64_t rows, int32_t page_tokens);
smla_attend_args attend_args(const AttendShape& shape);
// Keys lie in pages behind a block table. Those of a single request of several tokens are contiguous instead.
smla_score_args score_args(const ScoreShape& shape);
smla_select_args select_args(const SelectShape& shape);
smla_score_select_args score_select_args(const ScoreShape& shape, int64_t topk);
smla_merge_args merge_args(const MergeShape& shape);

// Zeroed memory, aligned to 64 bytes; large blocks lie on huge pages if the system has them.
class Memory {
public:
    void* take(size_t bytes);
    void back(Tensor& tensor);  // does nothing for an absent tensor
    void back(smla_cache& cache);

private:
    struct Free {
        void operator()(void* data) const;
    };
    std::vector<std::unique_ptr<void, Free>> blocks_;
};

// Allocates the arguments' tensors and fills the inputs: normal values; lists of distinct rows, shuffled.
class Filler {
public:
    // Fillers with different seeds below 2^32 share no values: a query that equals a key would have all of
    // the softmax weight.
    Filler(Memory& memory, ThreadPool& pool, uint64_t seed)
        : memory_(memory), pool_(pool), seed_(seed << 32) {}

    void fill(smla_attend_args& args);
    void fill(smla_score_args& args);
    void fill(smla_select_args& args);
    void fill(smla_score_select_args& args);
    void fill(smla_merge_args& args);
    void inputs(smla_score_args& args);  // all but the logits

    void values(Tensor& tensor, float spread = 1);  // floats, e4m3, e2m1 or scales, of any shape
    void records(smla_cache& cache, float spread = 1);
    void rows(Tensor& rows, const smla_cache& cache);    // [T,K] i32
    void table(Tensor& table, const smla_cache& cache);  // [R,MB] i32: every page once, shuffled
    void constant(Tensor& tensor, int32_t value);        // i32

private:
    void requests(smla_score_args& args, int64_t columns);  // request and end of each token
    uint64_t next_seed() { return ++seed_ * 0x9e3779b97f4a7c15u; }

    Memory& memory_;
    ThreadPool& pool_;
    uint64_t seed_;
};

}  // namespace smla::cli
