// Decides which calls each attend kernel of the cuda engine supports, and which is the fastest for a call.
#include "engines/cuda/attend/run.h"

namespace smla {

namespace {

using namespace cuda_attend;
using Args = smla_attend_args;

bool is_aligned(const void* data, int64_t bytes) {
    return reinterpret_cast<uintptr_t>(data) % uintptr_t(bytes) == 0;
}
// Returns whether every row of a tensor [T,H,D] starts at a multiple of `bytes`.
bool rows_are_aligned(const Tensor& tensor, int64_t bytes) {
    const int64_t each = dtype_bits(tensor.dtype) / 8;
    return is_aligned(tensor.data, bytes) && tensor.stride_elems[0] * each % bytes == 0 &&
           tensor.stride_elems[1] * each % bytes == 0;
}

// Returns why asynchronous copies cannot read a cache; empty if they can.
std::string refuse_source(const char* name, const smla_attend_source& source, int tile_keys) {
    constexpr int64_t kCopyBytes = 16;
    const CacheView view(source.cache);
    if (!is_aligned(view.data, kCopyBytes) || view.page_stride % kCopyBytes ||
        (view.format->packing == Packing::row && view.row_stride % kCopyBytes))
        return text(name, " pages and rows must be aligned to ", kCopyBytes, " bytes");
    return source.rows.shape[1] > INT32_MAX - tile_keys
               ? text("the ", name, " lists have more than 2^31 columns")
               : "";
}

std::string refuse_widths(const Args& args) {
    if ((args.q.shape[2] == 576 || args.q.shape[2] == 512) && args.out.shape[2] == kValueWidth) return "";
    return text("it requires keys of width 512 or 576 and values of width ", kValueWidth, ", got ",
                args.q.shape[2], " and ", args.out.shape[2]);
}

// Returns why the kernels for Hopper do not support a call; empty if they do.
std::string refuse_sm90(const Args& args, const Env& env) {
#ifndef SMLA_CUDA_SM90A
    return "this build has no code for sm_90a";
#endif
    if (env.device->facts().capability != 90)
        return text("it requires sm_90; the device is sm_", env.device->facts().capability);
    if (args.q.dtype != SMLA_BF16) return text("q must be bf16, got ", dtype_name(args.q.dtype));
    if (std::string why = refuse_widths(args); !why.empty()) return why;
    if (!rows_are_aligned(args.q, 16) || !rows_are_aligned(args.out, 16))
        return "rows of q and out must be aligned to 16 bytes";
    for (const auto& [name, source] : {std::pair("primary", &args.primary), {"extra", &args.extra}}) {
        if (!has_cache(*source)) continue;
        if (std::string why = refuse_source(name, *source, 64); !why.empty()) return why;
        const CacheView view(source->cache);
        if (source->cache.pages * (view.page_stride / 8) >= UINT32_MAX)
            return text("the ", name,
                        " cache has 32 GiB or more");  // latent_producer.cuh uses units of 8 bytes
    }
    return "";
}

// Returns the format of 512 latent values, with or without rope, that has an f32 scale per 128 values.
smla_format scaled_format(const Args& args) { return args.q.shape[2] == 512 ? SMLA_FP8_528 : SMLA_FP8_656; }

std::string refuse_raw(const Args& args, const Env& env) {
    if (std::string why = refuse_sm90(args, env); !why.empty()) return why;
    const smla_format first = args.primary.cache.format,
                      one_scale = args.q.shape[2] == 512 ? SMLA_FP8_512 : SMLA_FP8_576;
    if ((first == one_scale || first == scaled_format(args)) && !has_cache(args.extra)) return "";
    return text("it requires a single cache of ", find_format(one_scale)->name, " or ",
                find_format(scaled_format(args))->name, " records");
}

std::string refuse_decoding(const Args& args, const Env& env) {
    if (std::string why = refuse_sm90(args, env); !why.empty()) return why;
    const smla_format first = args.primary.cache.format, second = args.extra.cache.format;
    const auto both = [&](smla_format format) {
        return (first == format || !first) && (second == format || !second);
    };
    const bool unscaled = both(SMLA_ROW_BF16) || (args.q.shape[2] == 512 && both(SMLA_FP8_584));
    const int few = unscaled ? kFewHeads : kSomeHeads;
    if (args.q.shape[1] <= few) return text("it requires more than ", few, " heads");
    if (unscaled) return "";
    if (first != scaled_format(args) || second)
        return args.q.shape[2] == 512
                   ? "it requires bf16 rows, fp8_584 records, or a single cache of fp8_528 records"
                   : "it requires bf16 rows, or a single cache of fp8_656 records";
    return args.precision == SMLA_PRECISION_ROUNDED
               ? ""
               : "it rounds keys to 16 bits, which precision exact does not allow";
}

std::string refuse_mma_source(const char* name, const smla_attend_source& source) {
    const smla_cache& cache = source.cache;
    if (!has_cache(source)) return "";
    if (cache.format == SMLA_ROW_F32) return "row_f32 keys cannot be converted to 16 bits exactly";
    if (!has_shape(kMma, cache.format))
        return text(find_format(cache.format)->name, " keys are not supported");
    if (std::string why = refuse_source(name, source, 32); !why.empty()) return why;
    const CacheView view(cache);
    const int64_t between = source.rows.stride_elems[1];
    if (view.page_stride / 16 > UINT32_MAX || view.row_stride > UINT32_MAX || between != int32_t(between))
        return text("a stride of the ", name,
                    " pages, rows or lists exceeds 32 bits");  // BlockSource has 32 bits
    return "";
}

// Operands are 16-bit floats, so q must be bf16, or e4m3, which bf16 represents exactly.
std::string refuse_mma(const Args& args, const Env& env) {
    if (args.q.dtype != SMLA_BF16 && args.q.dtype != SMLA_E4M3)
        return text("q must be bf16, got ", dtype_name(args.q.dtype));
    if (std::string why = refuse_widths(args); !why.empty()) return why;
    for (const auto& [name, source] : {std::pair("primary", &args.primary), {"extra", &args.extra}})
        if (std::string why = refuse_mma_source(name, *source); !why.empty()) return why;
    const smla_format first = args.primary.cache.format, second = args.extra.cache.format;
    if (first && second && key_form(first) != key_form(second))
        return text("caches of ", find_format(first)->name, " and ", find_format(second)->name,
                    " cannot be combined");
    if (first && second && has_bf16_rope(first) != has_bf16_rope(second))
        return "caches with and without bf16 RoPE values cannot be combined";
    // Neighboring values are loaded and stored as one pair.
    if ((args.q.dtype == SMLA_BF16 && !rows_are_aligned(args.q, 4)) ||
        !rows_are_aligned(args.out, dtype_bits(args.out.dtype) / 4))
        return "rows of q and out must be aligned to pairs of values";
    const int width = int(args.q.shape[2]);
    const size_t needed = std::max(shared_bytes(kManyHeads, width, KeyForm::codes),
                                   shared_bytes(kManyHeads, width, KeyForm::rows));
    if (needed > env.device->facts().shared_bytes)
        return text("it requires ", needed, " bytes of shared memory; the device has ",
                    env.device->facts().shared_bytes);
    return "";
}

// A kernel with block shapes.
struct BlockKernel {
    const char* name;
    std::string (*refuse)(const Args&, const Env&);
};
constexpr BlockKernel kRawKernel{kSm90Raw, refuse_raw}, kDecodingKernel{kSm90, refuse_decoding},
    kMmaKernel{kMma, refuse_mma};

// Returns why another kernel is better for a call that `kernel` supports; empty if none is. In
// batch-invariant mode, one kernel must process calls of any number of tokens.
std::string lower_priority(const BlockKernel& kernel, const Best& best, const Args& args, const Env& env) {
    if (&kernel == &kMmaKernel) return "";
    const bool raw = &kernel == &kRawKernel;
    const BlockKernel& other = raw ? kDecodingKernel : kRawKernel;
    if (other.refuse(args, env).empty()) {
        if (env.batch_invariant)
            return raw ? text("batch-invariant mode uses ", kSm90, " for more than ", kSomeHeads, " heads")
                       : "";
        if (best_schedule(other.name, args, env).cycles >= best.cycles) return "";
        return text(other.name, " is faster for these numbers of tokens, heads and rows");
    }
    if (env.batch_invariant || best.all_tiles >= best.schedule.shape->least_tiles) return "";
    return text(kMma, " is faster for these numbers of tokens and rows");
}

template <const BlockKernel& K>
CallPlan<Args> plan(const Args& args, const Env& env) {
    CallPlan<Args> plan = refuse_call<Args>(K.refuse(args, env));
    if (!plan.refusal.empty()) return plan;
    const Best best = best_schedule(K.name, args, env);
    const Schedule schedule = best.schedule;
    if (schedule.blocks() > INT32_MAX)
        return refuse_call<Args>(text(schedule.blocks(), " tasks exceed the limit of 2^31 - 1"));
    plan.lower_priority = lower_priority(K, best, args, env);
    plan.scratch = schedule.workspace();
    plan.scratch_of_fewer = env.batch_invariant ? 0 : most_workspace(args, env);
    plan.rotates_out = schedule.splits > 1;
    plan.launch = [schedule](const Args& call, const Env& on) {
        each_launch(call, schedule, [&](const Args& part, const Schedule& part_schedule) {
            schedule.shape->run(part, part_schedule, on);
        });
    };
    return plan;
}

}  // namespace

const Candidate<Args> cuda_attend::kSm90RawAttend{.name = kSm90Raw, .plan = plan<kRawKernel>};
const Candidate<Args> cuda_attend::kSm90Attend{.name = kSm90, .plan = plan<kDecodingKernel>};
const Candidate<Args> cuda_attend::kMmaAttend{.name = kMma, .plan = plan<kMmaKernel>};

}  // namespace smla
