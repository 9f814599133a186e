// cuBLASLt's description of a product: dtypes, strides, passes over tokens, scratch. No CUDA calls.
#include "core/tensor.h"
#include "engines/cuda/project/project.h"

#include <algorithm>

namespace smla {

namespace {

using Args = smla_project_args;

constexpr size_t kConvertedBytes = size_t(128) << 20;  // limit per pass of converted x and parts of sums
constexpr size_t kLeastScratch = size_t(1) << 20, kMostScratch = size_t(32) << 20;  // for the library
constexpr int64_t kSplits = 8;  // parts of a sum over K whose f32 results the library may keep in its scratch

size_t aligned(int64_t bytes) { return round_up(size_t(bytes), kLtAlignment); }

// Returns whether k is contiguous in w [G,N,K]; then the library sees [K,N] column-major and transposes.
bool along_k(const Tensor& w) { return w.stride_elems[2] == 1 || w.shape[2] <= 1; }

int64_t lead_of_weight(const Tensor& w) {
    if (along_k(w)) return w.shape[1] > 1 ? w.stride_elems[1] : w.shape[2];
    return w.stride_elems[2];
}
int64_t lead_of_tokens(const Tensor& t) { return t.shape[0] > 1 ? t.stride_elems[0] : t.shape[2]; }

std::string refuse_dtypes(const Args& args) {
    for (const Tensor* tensor : {&args.x, &args.w, &args.out})
        if (tensor->dtype == SMLA_F64) return "f64 tensors are not supported on a GPU";
    if (args.w.dtype == SMLA_F16 && args.x.dtype != SMLA_F16)
        return text("f16 weights require x in f16, got ", dtype_name(args.x.dtype));
    return "";
}

std::string refuse_strides(const Args& args) {
    if (args.w.shape[2] == 0) return "the inner dimension is 0";
    const int64_t rows = along_k(args.w) ? args.w.shape[2] : args.w.shape[1];
    if (lead_of_weight(args.w) < rows) return "rows of w overlap";
    if (lead_of_tokens(args.x) < args.x.shape[2]) return "rows of x overlap";
    if (lead_of_tokens(args.out) < args.out.shape[2]) return "rows of out overlap";
    return "";
}

int parts_of(const Args& args) {
    if (args.w.dtype != SMLA_BF16) return 1;
    return args.x.dtype == SMLA_F32 ? 3 : args.x.dtype == SMLA_F16 ? 2 : 1;
}

// Bytes per token of converted x and of sums.
struct PerToken {
    int64_t x, sum;
};
PerToken per_token(const Args& args, const LtRoute& route) {
    const int64_t groups = args.w.shape[0];
    return {route.converts ? route.parts * groups * args.w.shape[2] * dtype_bits(args.w.dtype) / 8 : 0,
            route.direct ? 0 : route.parts * groups * args.w.shape[1] * int64_t(sizeof(float))};
}

void fit(const Args& args, LtRoute& route, size_t budget) {
    const PerToken each = per_token(args, route);
    const int64_t tokens = args.x.shape[0], bytes = each.x + each.sum;
    const auto set_tokens = [&](int64_t count) {
        route.pass_tokens = bytes ? std::clamp<int64_t>(count, 1, tokens) : tokens;
        route.x_bytes = aligned(each.x * route.pass_tokens);
        route.sum_bytes = aligned(each.sum * route.pass_tokens);
    };
    set_tokens(bytes ? int64_t(kConvertedBytes) / bytes : tokens);
    const int64_t results = route.parts * route.pass_tokens * args.w.shape[0] * args.w.shape[1];
    route.lt_bytes =
        std::clamp(aligned(kSplits * results * int64_t(sizeof(float))), kLeastScratch, kMostScratch);
    if (budget == 0) return;
    const size_t room = budget - std::min(budget, kWorkspaceHeader + kLtAlignment);
    if (route.scratch() <= room) return;
    if (route.lt_bytes + aligned(each.x) + aligned(each.sum) > room) route.lt_bytes = 0;
    const int64_t left = int64_t(room) - int64_t(route.lt_bytes);
    for (set_tokens(std::min(left / std::max<int64_t>(bytes, 1), route.pass_tokens));
         route.pass_tokens > 1 && route.scratch() > room;)  // x_bytes and sum_bytes are rounded up
        set_tokens(route.pass_tokens - 1);
}

LtType lt_type(smla_dtype dtype) {
    return dtype == SMLA_BF16 ? LtType::bf16 : dtype == SMLA_F16 ? LtType::f16 : LtType::f32;
}

// Returns the largest power of two up to 16 that divides the address; 16 for null, if only sizes matter.
int32_t alignment_of(const void* data) {
    const auto address = reinterpret_cast<uintptr_t>(data) | 16;
    return int32_t(address & (~address + 1));
}

}  // namespace

LtRoute lt_route(const Args& args, size_t budget) {
    LtRoute route;
    route.refusal = refuse_dtypes(args);
    if (route.refusal.empty()) route.refusal = refuse_strides(args);
    if (!route.refusal.empty()) return route;
    route.converts = args.x.dtype != args.w.dtype;
    route.parts = parts_of(args);
    route.direct = route.parts == 1 && (args.out.dtype == SMLA_F32 || args.out.dtype == args.w.dtype);
    if (element_count(args.out) == 0) return route;
    fit(args, route, budget);
    return route;
}

LtShape lt_shape(const Args& args, const LtRoute& route, int64_t first, int64_t tokens) {
    const int64_t groups = args.w.shape[0], outer = args.w.shape[1], inner = args.w.shape[2];
    LtShape shape;
    shape.type = lt_type(args.w.dtype);
    shape.out_type = route.direct ? lt_type(args.out.dtype) : LtType::f32;
    shape.transposed = along_k(args.w);
    shape.m = outer;
    shape.n = route.parts * tokens;
    shape.k = inner;
    shape.batch = groups;
    shape.lead_a = lead_of_weight(args.w);
    shape.lead_b = route.converts ? groups * inner : lead_of_tokens(args.x);
    shape.lead_d = route.direct ? lead_of_tokens(args.out) : groups * outer;
    if (groups > 1) {
        shape.step_a = args.w.stride_elems[0];
        shape.step_b = route.converts ? inner : args.x.stride_elems[1];
        shape.step_d = route.direct ? args.out.stride_elems[1] : outer;
    }
    shape.align_a = alignment_of(args.w.data);
    if (!route.converts) shape.align_b = alignment_of(address(args.x, first));
    if (route.direct) shape.align_d = alignment_of(address(args.out, first));
    shape.workspace = route.lt_bytes;
    return shape;
}

}  // namespace smla
