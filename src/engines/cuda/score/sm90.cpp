// score on Hopper: what its kernel takes.
#include "engines/cuda/score/run.h"
#include "formats/layouts.h"
#include "ops/score/score.h"

#include <algorithm>

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
    if (args.q.dtype != SMLA_E4M3) return text("q is ", dtype_name(args.q.dtype), ", made for e4m3");
    if (args.keys.format != SMLA_INDEX_FP8_132)
        return text("keys are ", find_format(args.keys.format)->name, ", made for index_fp8_132");
    static_assert(layout::IndexFp8_132::width == 128);  // of the kernel, and so of q
    if (args.q.shape[1] > kMostHeads) return text(args.q.shape[1], " heads, made for up to ", kMostHeads);
    if (args.q.shape[0] > INT32_MAX) return "more than 2^31 tokens";
    if (!aligned(args.q.data, {args.q.stride_elems[0], args.q.stride_elems[1]}))
        return "rows of q do not lie at multiples of 16 bytes";
    const CacheView keys(args.keys);
    if (!aligned(keys.data, {keys.page_stride})) return "pages of keys do not lie at multiples of 16 bytes";
    return {};
}

#ifndef SMLA_CUDA_SM90A
void run_score_sm90(const smla_score_args&, const ScorePart&, const Env&) {
    fail(SMLA_UNSUPPORTED, "args", "a kernel of sm_90a", "a build with code of sm_90a");
}
#endif

}  // namespace smla::cuda
