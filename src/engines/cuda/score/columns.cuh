// Lookup of the key of a column.
#pragma once

#include "engines/cuda/common/records.cuh"
#include "engines/cuda/score/logits.cuh"

#include <algorithm>

namespace smla::cuda {

// Page and offset of a column of a request. A lookup costs one division.
struct KeyColumns {
    KeyColumns(const smla_score_args& args, const CacheView& keys)
        : table(args.block_table),
          requests(args.request_of_token),
          pages(keys.pages),
          capacity(keys.capacity),
          page_tokens(uint32_t(keys.page_tokens)),
          divisor(present() ? page_tokens : uint32_t(std::min(keys.page_rows, int64_t(1) << 31))) {}
    __host__ __device__ bool present() const { return table.ndim != 0; }

    // Makes entries of the table parts of pages, `tokens` tokens each: page << bits | part.
    void divide_pages(uint32_t tokens, int bits) {
        divisor = tokens;
        part_bits = bits;
    }

    __device__ int64_t request(int64_t token) const { return present() ? load_int(requests, token) : 0; }

    struct Place {
        int64_t page = -1;  // -1: masked
        uint32_t offset = 0;
    };
    // Block table row of one request.
    struct Pages {
        const int32_t* blocks = nullptr;  // null: column j is row j
        int64_t stride = 0;
        uint32_t count = 0;
    };
    __device__ Pages pages_of(int64_t request) const {
        if (!present()) return {};
        const bool known = request >= 0 && request < table.shape[0];
        const auto* const first = static_cast<const int32_t*>(table.data);
        return {first + (known ? element(table, request) : 0), table.stride_elems[1],
                known ? uint32_t(min(table.shape[1], int64_t(INT32_MAX))) : 0u};
    }
    __device__ Place find(const Pages& of, int column) const {
        const uint32_t block = uint32_t(column) / divisor, offset = uint32_t(column) - block * divisor;
        if (!of.blocks) return {column < capacity && offset < page_tokens ? int64_t(block) : -1, offset};
        if (block >= of.count) return {};
        const int entry = __ldg(of.blocks + block * of.stride);
        const int64_t page = entry >> part_bits;
        const uint32_t part = uint32_t(entry) & ~(~0u << part_bits);
        return {page < pages ? page : -1, part * divisor + offset};
    }

    Tensor table, requests;
    int64_t pages, capacity;
    uint32_t page_tokens, divisor;
    int part_bits = 0;
};

}  // namespace smla::cuda
