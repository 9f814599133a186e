// copy_pages: copies the records of whole pages byte by byte, without the gaps between rows or pages.
//
// A page is one piece of bytes if its rows are dense, otherwise one piece per row. A warp copies up to
// kSegment bytes of a piece, 16 at a time if both ends are aligned, otherwise 4 or 1. Limit: memory; a page
// of 64 V3.2 records (42 KB) needs 11 warps.
#include "engines/cuda/common/launch.cuh"
#include "engines/cuda/common/values.cuh"
#include "engines/cuda/generic/generic.h"
#include "formats/format.h"

namespace smla::cuda {

namespace {

constexpr int kWarps = 4;
constexpr int64_t kSegment = 4096;

// Source or destination of the copy.
struct Side {
    char* data;
    int64_t pages, page_stride, piece_stride;
};
struct CopyParams {
    Side source, target;
    Tensor pairs;
    int64_t pieces, piece_bytes, segments;  // per page; bytes and segments per piece
};

template <class Word>
__device__ int64_t copy_words(const char* in, char* out, int64_t from, int64_t bytes) {
    const int64_t words = bytes / int64_t(sizeof(Word));
    for (int64_t i = from / int64_t(sizeof(Word)) + threadIdx.x % 32; i < words; i += 32)
        reinterpret_cast<Word*>(out)[i] = reinterpret_cast<const Word*>(in)[i];
    return words * int64_t(sizeof(Word));
}

__device__ void copy_segment(const char* in, char* out, int64_t bytes) {
    const auto both = reinterpret_cast<uintptr_t>(in) | reinterpret_cast<uintptr_t>(out);
    int64_t done = 0;
    if (both % sizeof(uint4) == 0) done = copy_words<uint4>(in, out, 0, bytes);
    if (both % sizeof(uint32_t) == 0) done = copy_words<uint32_t>(in, out, done, bytes);
    copy_words<char>(in, out, done, bytes);
}

__global__ void __launch_bounds__(32 * kWarps) copy_pages_kernel(const __grid_constant__ CopyParams p) {
    follow_grid_before();
    const int64_t work = int64_t(blockIdx.x) * kWarps + threadIdx.x / 32, of_page = p.pieces * p.segments;
    const int64_t pair = work / of_page, piece = work % of_page / p.segments, segment = work % p.segments;
    if (pair >= p.pairs.shape[0]) return;
    const int64_t from = load_int(p.pairs, pair, 0), to = load_int(p.pairs, pair, 1);
    if (from < 0 || from >= p.source.pages || to < 0 || to >= p.target.pages) return;
    const char* const in = p.source.data + from * p.source.page_stride;
    char* const out = p.target.data + to * p.target.page_stride;
    if (in == out) return;
    const int64_t begin = segment * kSegment;
    copy_segment(in + piece * p.source.piece_stride + begin, out + piece * p.target.piece_stride + begin,
                 min(kSegment, p.piece_bytes - begin));
}

}  // namespace

void run_cuda_copy_pages(const smla_copy_pages_args& args, const Env& env) {
    const CacheView source(args.source), target(args.target);
    const int64_t record = int64_t(source.format->record_bytes(source.width));
    const bool dense = source.format->packing == Packing::page ||
                       (source.row_stride == record && target.row_stride == record);
    CopyParams p{};
    p.source = {source.data, source.pages, source.page_stride, source.row_stride};
    p.target = {target.data, target.pages, target.page_stride, target.row_stride};
    p.pairs = args.pairs;
    p.pieces = dense ? 1 : source.page_tokens;
    p.piece_bytes = dense ? record * source.page_tokens : record;
    p.segments = ceil_div(p.piece_bytes, kSegment);
    const int64_t warps = args.pairs.shape[0] * p.pieces * p.segments;
    launch_early(copy_pages_kernel, ceil_div(warps, kWarps), 32 * kWarps, 0, env, p);
}

}  // namespace smla::cuda
