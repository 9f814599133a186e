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
    if (!kBuilt) return "this build has no code of sm_90a";
    if (env.device->facts().capability != 90)
        return text("for sm_90, the device is sm_", env.device->facts().capability);
    const bool mxfp4 = args.keys.format == SMLA_INDEX_MXFP4_68;
    if (!mxfp4 && args.keys.format != SMLA_INDEX_FP8_132)
        return text("keys are ", find_format(args.keys.format)->name,
                    ", made for index_fp8_132 and index_mxfp4_68");
    static_assert(layout::IndexFp8_132::width == 128 &&
                  layout::IndexMxfp4_68::width == 128);  // therefore also the width of q
    const smla_dtype wanted = mxfp4 ? SMLA_E2M1 : SMLA_E4M3;
    if (args.q.dtype != wanted)
        return text("q is ", dtype_name(args.q.dtype), ", made for ", dtype_name(wanted), " with these keys");
    const int64_t heads = args.q.shape[1], most = kMostHeads;
    if (heads > most) return text(heads, " heads, made for up to ", most);
    // a padded head would multiply zeros by possibly infinite keys
    if (mxfp4 && heads != most / 2 && heads != most)
        return text(heads, " heads, made for ", most / 2, " and ", most, " with mxfp4");
    if (args.q.shape[0] > INT32_MAX) return "more than 2^31 tokens";
    const int64_t bits = dtype_bits(wanted);
    if (!aligned(args.q.data, {args.q.stride_elems[0] * bits / 8, args.q.stride_elems[1] * bits / 8}))
        return "rows of q do not lie at multiples of 16 bytes";
    const CacheView keys(args.keys);
    if (!aligned(keys.data, {keys.page_stride})) return "pages of keys do not lie at multiples of 16 bytes";
    return {};
}

std::string refuse_score_pages(const smla_score_args& args, const Env& env) {
    if (std::string refusal = refuse_score_sm90(args, env); !refusal.empty()) return refusal;
    if (env.batch_invariant) return "batch-invariant: sums in another order than those of cuda_sm90_score";
    const int64_t heads = args.q.shape[1], tokens = args.q.shape[0];
    if (heads <= 16 || heads % 4 != 0) return text(heads, " heads, made for 20 to 64 in steps of 4");
    if (const sm90::pages::Rows rows(args); !rows.fit)
        return text(rows_of_request(args, {}), " rows of each request, made for ", rows.rows,
                    " with products of 16 bits");
    const CacheView keys(args.keys);
    if (keys.pages == 0) return "no pages";
    const bool table = args.block_table.ndim != 0;
    if ((table || keys.pages > 1) &&
        (keys.page_tokens < 64 || !std::has_single_bit(uint64_t(keys.page_tokens))))
        return text("pages of ", keys.page_tokens, " tokens, made for 64, 128, ...");
    if (!table && keys.pages > 1 && keys.page_rows != keys.page_tokens)
        return "no block table, and pages do not lie one behind the other";
    // a tensor map excludes repeated, overlapping or reordered heads or tokens
    const int64_t head = args.q.stride_elems[1], token = args.q.stride_elems[0];
    if (head < layout::IndexFp8_132::width || (tokens > 1 && token < heads * head))
        return "tokens of q do not lie one behind the other, or heads of a token";
    if (!aligned(args.w.data, {args.w.stride_elems[0] * 4}) || args.w.stride_elems[1] != 1)
        return "rows of w do not lie at multiples of 16 bytes";
    return {};
}

#ifndef SMLA_CUDA_SM90A
void run_score_pages(const smla_score_args&, const ScorePart&, const Env&) {
    fail(SMLA_UNSUPPORTED, "args", "a kernel of sm_90a", "a build with code of sm_90a");
}
void run_score_sm90(const smla_score_args&, const ScorePart&, const Env&) {
    fail(SMLA_UNSUPPORTED, "args", "a kernel of sm_90a", "a build with code of sm_90a");
}
#endif

}  // namespace smla::cuda
