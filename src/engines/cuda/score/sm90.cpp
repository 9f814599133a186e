// Support checks of the score kernels for Hopper.
#include "engines/cuda/score/run.h"
#include "engines/cuda/score/sm90/pages/rows.h"
#include "formats/layouts.h"
#include "ops/score/score.h"

#include <algorithm>
#include <bit>

namespace smla::cuda {

namespace {

constexpr int kMostHeads = 64;

#ifdef SMLA_CUDA_SM90A
constexpr bool kBuilt = true;
#else
constexpr bool kBuilt = false;
#endif

bool aligned(const void* data, std::initializer_list<int64_t> strides) {
    return reinterpret_cast<uintptr_t>(data) % 16 == 0 &&
           std::all_of(strides.begin(), strides.end(), [](int64_t s) { return s % 16 == 0; });
}

}  // namespace

std::string refuse_score_sm90(const smla_score_args& args, const Env& env) {
    if (!kBuilt) return "this build has no code for sm_90a";
    if (env.device->facts().capability != 90)
        return text("it requires sm_90; the device is sm_", env.device->facts().capability);
    const bool mxfp4 = args.keys.format == SMLA_INDEX_MXFP4_68;
    if (!mxfp4 && args.keys.format != SMLA_INDEX_FP8_132)
        return text("keys must be index_fp8_132 or index_mxfp4_68, got ",
                    find_format(args.keys.format)->name);
    static_assert(layout::IndexFp8_132::width == 128 &&
                  layout::IndexMxfp4_68::width == 128);  // therefore also the width of q
    const smla_dtype wanted = mxfp4 ? SMLA_E2M1 : SMLA_E4M3;
    if (args.q.dtype != wanted)
        return text("these keys require q in ", dtype_name(wanted), ", got ", dtype_name(args.q.dtype));
    const int64_t heads = args.q.shape[1], most = kMostHeads;
    if (heads > most) return text(heads, " heads exceed the limit of ", most);
    // a padded head would multiply zeros by possibly infinite keys
    if (mxfp4 && heads != most / 2 && heads != most)
        return text("mxfp4 keys require ", most / 2, " or ", most, " heads, got ", heads);
    if (args.q.shape[0] > INT32_MAX) return "calls of 2^31 tokens or more are not supported";
    const int64_t bits = dtype_bits(wanted);
    if (!aligned(args.q.data, {args.q.stride_elems[0] * bits / 8, args.q.stride_elems[1] * bits / 8}))
        return "rows of q must be aligned to 16 bytes";
    const CacheView keys(args.keys);
    if (!aligned(keys.data, {keys.page_stride})) return "pages of keys must be aligned to 16 bytes";
    return {};
}

std::string refuse_score_pages(const smla_score_args& args, const Env& env) {
    if (std::string refusal = refuse_score_sm90(args, env); !refusal.empty()) return refusal;
    if (env.batch_invariant)
        return "batch-invariant mode uses cuda_sm90_score, whose summation order is different";
    const int64_t heads = args.q.shape[1], tokens = args.q.shape[0];
    if (heads <= 16 || heads % 4 != 0) return text("it requires 20 to 64 heads in steps of 4, got ", heads);
    if (const sm90::pages::Rows rows(args); !rows.fit)
        return text("16-bit products limit the rows per request to ", rows.rows, ", got ",
                    rows_of_request(args, {}));
    const CacheView keys(args.keys);
    if (keys.pages == 0) return "the cache has no pages";
    const bool table = args.block_table.ndim != 0;
    if ((table || keys.pages > 1) &&
        (keys.page_tokens < 64 || !std::has_single_bit(uint64_t(keys.page_tokens))))
        return text("the page size must be a power of two of at least 64 tokens, got ", keys.page_tokens);
    if (!table && keys.pages > 1 && keys.page_rows != keys.page_tokens)
        return "without a block table, pages must be contiguous";
    // a tensor map excludes repeated, overlapping or reordered heads or tokens
    const int64_t head = args.q.stride_elems[1], token = args.q.stride_elems[0];
    if (head < layout::IndexFp8_132::width || (tokens > 1 && token < heads * head))
        return "tokens and heads of q must not overlap or be reordered";
    if (!aligned(args.w.data, {args.w.stride_elems[0] * 4}) || args.w.stride_elems[1] != 1)
        return "rows of w must be aligned to 16 bytes";
    return {};
}

#ifndef SMLA_CUDA_SM90A
void run_score_pages(const smla_score_args&, const ScorePart&, const Env&) {
    fail(SMLA_UNSUPPORTED, "args", "a kernel for sm_90a", "a build with code for sm_90a");
}
void run_score_sm90(const smla_score_args&, const ScorePart&, const Env&) {
    fail(SMLA_UNSUPPORTED, "args", "a kernel for sm_90a", "a build with code for sm_90a");
}
#endif

}  // namespace smla::cuda
