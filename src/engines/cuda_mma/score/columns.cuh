// The place of a column's key.
#pragma once

#include "engines/cuda_common/records.cuh"
#include "engines/cuda_mma/score/run.h"
#include "engines/cuda_mma/score/windows.cuh"

namespace smla::cuda {

// Which record holds a column of a request. One division per look-up.
struct KeyColumns {
    KeyColumns(const smla_score_args& args, const CacheView& keys)
        : table(args.block_table),
          requests(args.request_of_token),
          pages(keys.pages),
          capacity(keys.capacity),
          page_tokens(uint32_t(keys.page_tokens)),
          divisor(present() ? page_tokens : uint32_t(keys.page_rows)) {}
    __host__ __device__ bool present() const { return table.ndim != 0; }

    __device__ int64_t request(int64_t token) const { return present() ? load_int(requests, token) : 0; }
    struct Place {
        int64_t page = -1;  // -1: a hole
        uint32_t offset = 0;
    };
    __device__ Place find(int64_t request, int column) const {
        const uint32_t block = uint32_t(column) / divisor, offset = uint32_t(column) - block * divisor;
        if (!present()) return {column < capacity && offset < page_tokens ? int64_t(block) : -1, offset};
        if (request < 0 || request >= table.shape[0] || block >= table.shape[1]) return {};
        const int64_t page = load_int(table, request, block);
        return {page < pages ? page : -1, offset};
    }

    Tensor table, requests;
    int64_t pages, capacity;
    uint32_t page_tokens, divisor;
};

}  // namespace smla::cuda
