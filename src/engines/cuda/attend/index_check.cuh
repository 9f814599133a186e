// check_indices of attend: the last blocks of a launch scan the lists of the call, beside the others.
//
// A scan of its own in front of attend (common/check_indices.cu) made calls of one token 20 % longer, and
// those from fp8 records 5 to 11 %, though it takes 3 us. Here nothing is launched, and nothing waits:
// kernels follow no bad row. The code is short, because attend's own nearly fills the instruction caches: 58
// KB of scan that never ran cost every call from fp8 records 8 to 12 us (docs/kernels/log/cuda_attend.md).
#pragma once

#include "engines/cuda/attend/arguments.cuh"
#include "engines/cuda/common/error_place.cuh"
#include "engines/cuda/common/ptx/grid.cuh"

#include <algorithm>

namespace smla::cuda_attend {

// Entries of a list that a warp looks at. Few blocks scan: H200, one token of 128 heads over bf16 rows, 8
// blocks cost 6.6 %, one costs 2.8 %, and blocks that return at once cost as much as those that scan.
constexpr uint32_t kSegment = 1024;

struct IndexCheck {
    ErrorPlace* place = nullptr;
    unsigned first = ~0u, blocks = 0;  // the blocks of the grid that scan: the last ones

    // Behind `others` blocks of `threads` threads. A multiple of `cluster`; none without check_indices.
    static IndexCheck of(const smla_attend_args& args, int64_t others, int threads, const Env& env,
                         int64_t cluster = 1) {
        if (!env.check_indices || others == 0) return {};
        int64_t segments = 1;
        for (const smla_attend_source* source : {&args.primary, &args.extra})
            if (source->cache.format != SMLA_FORMAT_NONE)
                segments += source->rows.shape[0] * ceil_div(source->rows.shape[1], int64_t(kSegment));
        const int64_t wanted = ceil_div(segments, int64_t(threads / 32)),
                      most = env.device->facts().multiprocessors;
        return {.place = error_place(env.workspace),
                .first = unsigned(others),
                .blocks = unsigned(ceil_div(std::min(wanted, most), cluster) * cluster)};
    }
    __device__ bool is_mine() const { return __builtin_expect(blockIdx.x >= first, false); }
};

// A bad entry of a list, or a bad length. Numbers order them as index_scan() does: lengths, then rows, of the
// primary source, then of the extra one; tokens; columns.
struct BadEntry {
    bool extra, row;
    int64_t token, column;

    __device__ unsigned long long number() const {
        return (unsigned long long)(2 * extra + row) << 62 | (unsigned long long)token << 31 |
               (unsigned long long)column;
    }
    static __device__ BadEntry of(unsigned long long number) {
        return {(number >> 63) != 0, (number >> 62 & 1) != 0, int64_t(number >> 31 & 0x7fffffff),
                int64_t(number & 0x7fffffff)};
    }
    __device__ smla_error_word word(const Source& source) const {
        if (row)
            return {extra ? SMLA_BAD_EXTRA_ROW : SMLA_BAD_ROW, SMLA_STAGE_ATTEND, token, column,
                    static_cast<const int*>(source.rows.data)[cuda::element(source.rows, token, column)]};
        return {extra ? SMLA_BAD_EXTRA_LENGTH : SMLA_BAD_LENGTH, SMLA_STAGE_ATTEND, token, kNoColumn,
                cuda::load_int(source.lengths, token)};
    }
};

// A warp's share of the lists of one source: segments of a token's list.
class ListCheck {
public:
    __device__ explicit ListCheck(const Source& source) : source_(source), listed_(uint32_t(source.listed)) {
        const Tensor& rows = source.rows;
        vectors_ = rows.stride_elems[1] == 1 && rows.stride_elems[0] % 4 == 0 && listed_ % 4 == 0 &&
                   reinterpret_cast<uintptr_t>(rows.data) % 16 == 0;
        gaps_ = source.page_rows.by != uint32_t(source.cache.page_tokens);
    }

    // The first bad entry of those that this lane looks at, as a number; ~0: none. The warp is one of
    // `warps`.
    __device__ unsigned long long first(bool extra, int64_t tokens, uint32_t warp, uint32_t warps) const {
        const uint32_t lane = threadIdx.x % 32;
        if (cuda::present(source_.lengths))
#pragma unroll 1
            for (int64_t token = warp * 32 + lane; token < tokens; token += warps * 32) {
                const int64_t length = cuda::load_int(source_.lengths, token);
                if (length < 0 || length > source_.listed) return BadEntry{extra, false, token, 0}.number();
            }
        const uint32_t segments = (listed_ + kSegment - 1) / kSegment;
        int64_t token = 0;
        uint32_t segment = warp;
#pragma unroll 1
        for (;;) {
            const uint32_t whole = segment / max(segments, 1u);
            token += whole, segment -= whole * segments;
            if (segments == 0 || token >= tokens) return ~0ull;
            const uint32_t column = bad_column(token, segment * kSegment);
            // what is past the length does not count, and the lane's other entries lie behind it
            if (column != kNone && column < source_.length(token))
                return BadEntry{extra, true, token, column}.number();
            segment += warps;
        }
    }

private:
    static constexpr uint32_t kNone = ~0u;

    // The first of the lane's entries of a segment that names no row.
    __device__ uint32_t bad_column(int64_t token, uint32_t first) const {
        const int* const list =
            static_cast<const int*>(source_.rows.data) + token * source_.rows.stride_elems[0];
        const uint32_t end = min(first + kSegment, listed_), lane = threadIdx.x % 32;
        if (!vectors_) {
#pragma unroll 1
            for (uint32_t j = first + lane; j < end; j += 32)
                if (bad(list[j * source_.rows.stride_elems[1]])) return j;
            return kNone;
        }
#pragma unroll 1
        for (uint32_t j = first + 4 * lane; j < end; j += 256) {
            const int4 one = *reinterpret_cast<const int4*>(list + j),
                       two = j + 128 < end ? *reinterpret_cast<const int4*>(list + j + 128)
                                           : make_int4(-1, -1, -1, -1);
            if (!(doubtful(one) | doubtful(two))) continue;
#pragma unroll 1
            for (uint32_t k = 0; k < 8; ++k) {
                const uint32_t at = j + k / 4 * 128 + k % 4;
                if (at < end && bad(list[at])) return at;
            }
        }
        return kNone;
    }
    __device__ bool bad(int row) const { return row != -1 && !source_.has(row); }
    // May be true for good rows, but for no bad one false.
    __device__ bool doubtful(const int4& four) const {
        const int least = min(min(four.x, four.y), min(four.z, four.w)),
                  most = max(max(four.x, four.y), max(four.z, four.w));
        return least < -1 || int64_t(most) >= int64_t(source_.rows_below) || gaps_;
    }

    const Source& source_;
    const uint32_t listed_;
    bool vectors_, gaps_;  // gaps: rows between the tokens of two pages
};

// The whole of a block that scans. It lets `combine`, where that follows, start early.
__device__ inline void check_lists(const Arguments& args, const IndexCheck& check) {
    cuda::wait_for_grid_before();  // most kernels start early
    cuda::start_next_grid();
    const uint32_t warps = blockDim.x / 32, warp = (blockIdx.x - check.first) * warps + threadIdx.x / 32;
    unsigned long long bad = ~0ull;
#pragma unroll 1
    for (int s = 0; s < 2; ++s) {
        const Source& source = args.sources[s];
        if (source.cache.format == SMLA_FORMAT_NONE) continue;
        bad = min(bad, ListCheck(source).first(s == 1, args.q.shape[0], warp, check.blocks * warps));
    }
    cuda::note_first(check.place, check.blocks, bad != ~0ull, bad, [&](unsigned long long number) {
        const BadEntry found = BadEntry::of(number);
        check.place->word = found.word(args.sources[found.extra]);
    });
}

}  // namespace smla::cuda_attend
