// Driver of the products of a few tokens on tiles: packs x into tiles once, then divides groups and blocks of
// outputs among the threads.
#include "engines/cpu/candidates.h"
#include "engines/cpu/generic.h"
#include "ops/ops.h"

#if defined(__x86_64__)

#include "core/cpu_features.h"
#include "engines/cpu/project/few_tiles.h"
#include "engines/cpu/tasks.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace smla::cpu_project {

namespace {

using Args = smla_project_args;

constexpr int64_t kUnitsPerThread = 4, kLeastOutputs = 32;
constexpr int64_t kLeastTokens = 5;  // with fewer tokens, cpu_avx512_few_project is as fast
constexpr int64_t kMostRows = 2 * kTileRows;

bool along_inner(const Args& args) { return args.w.stride_elems[2] == 1 || args.x.shape[2] <= 1; }

// Rows of tiles per token of x: f32 and f16 are split into three bf16.
int64_t parts(const Args& args) { return args.x.dtype == SMLA_BF16 ? 1 : 3; }
int64_t tile_rows(const Args& args) {
    return ceil_div(std::max<int64_t>(args.x.shape[0], 1) * parts(args), kTileRows) * kTileRows;
}

// Returns why the kernel does not support such tensors with any number of tokens; empty if it does.
std::string refuse_tensors(const Args& args, const Env& env) {
    if (std::string why = why_no_isa(SMLA_ISA_AMX, env.isa); !why.empty()) return why;
    if (args.w.dtype != SMLA_BF16) return text(dtype_name(args.w.dtype), " weights are not supported");
    if (args.x.dtype == SMLA_F64 || args.out.dtype == SMLA_F64)
        return "f64 tensors are supported only by cpu_generic_project";
    if (env.batch_invariant) return "batch-invariant mode excludes kernels for a limited number of tokens";
    if (along_inner(args) && args.w.stride_elems[1] % 2)
        return "odd row strides of weights are not supported";
    return why_no_tiles();
}
std::string refuse_tokens(const Args& args) {
    const int64_t tokens = args.x.shape[0], most = kMostRows / parts(args);
    if (tokens >= kLeastTokens && tokens <= most) return "";
    return text(tokens, " tokens are outside the supported range of ", kLeastTokens, " to ", most);
}

int64_t padded(const Args& args) { return ceil_div(args.x.shape[2], kStep) * kStep; }
int64_t x_values(const Args& args) { return padded(args) * tile_rows(args); }  // values of a group
int64_t x_room(const Args& args) { return padded(args) * kMostRows; }          // for any number of tokens

// Packs x of a group as FewTiles::x; part p of token t is row p * tokens + t. `rows` is scratch of the same
// size, `row` scratch of one row if x is f16.
void pack_x(const Args& args, int64_t group, float* row, uint16_t* rows, uint16_t* out) {
    const int64_t inner = args.x.shape[2], tokens = args.x.shape[0], width = padded(args);
    if (!along_inner(args)) rows = out;
    std::memset(rows, 0, size_t(x_values(args)) * sizeof(uint16_t));
    for (int64_t t = 0; t < tokens; ++t) {
        const char* const from = address(args.x, t, group);
        if (args.x.dtype == SMLA_BF16) {
            std::memcpy(rows + t * width, from, size_t(inner) * sizeof(uint16_t));
            continue;
        }
        const bool f16 = args.x.dtype == SMLA_F16;
        if (f16) load_row(args.x, from, inner, row);
        split_row(f16 ? row : reinterpret_cast<const float*>(from), inner, rows + t * width, tokens * width);
    }
    if (rows != out) pair_columns(rows, tile_rows(args), width, out);
}

struct Scratch {
    uint16_t *x, *rows;  // buffers for the groups of a pass
    float* row;
};
// The size does not depend on the tokens, so that a workspace sized for too many serves fewer.
Scratch carve(Arena& arena, const Args& args, int64_t groups) {
    const auto values = size_t(groups * x_room(args));
    Scratch s{};
    s.x = arena.take<uint16_t>(values);
    s.rows = arena.take<uint16_t>(along_inner(args) ? values : 0);
    s.row = arena.take<float>(args.x.dtype == SMLA_F16 ? size_t(groups * args.x.shape[2]) : 0);
    return s;
}
size_t scratch_bytes(const Args& args, int64_t groups) {
    Arena arena;
    carve(arena, args, groups);
    return arena.used();
}

int64_t unit_outputs(const Args& args, const Env& env) {
    int64_t outputs = kUnitOutputs;
    while (outputs > kLeastOutputs &&
           args.w.shape[0] * ceil_div(args.w.shape[1], outputs) < kUnitsPerThread * env.threads())
        outputs /= 2;
    return outputs;
}

// Adds the parts of each token. If the first part's sum is not finite it is the result, because a weight may
// be infinite, and zeros of the other parts would make it NaN.
void store(const Args& args, int64_t group, int64_t first, int64_t outputs, float* sums) {
    const int64_t tokens = args.x.shape[0];
    for (int64_t t = 0; t < tokens; ++t) {
        float* const out = sums + t * kUnitOutputs;
        for (int64_t part = 1; part < parts(args); ++part)
            for (int64_t n = 0; n < outputs; ++n)
                out[n] += std::isfinite(out[n]) ? out[part * tokens * kUnitOutputs + n] : 0.f;
        store_row(args.out, address(args.out, t, group, first), outputs, out);
    }
}

// `pass` is the number of groups whose x is packed at a time.
void run(const Args& args, const Env& env, int64_t pass) {
    const int64_t groups = args.w.shape[0], outer = args.w.shape[1], most = unit_outputs(args, env);
    if (element_count(args.out) == 0) return;
    Arena arena(env.workspace);
    const Scratch s = carve(arena, args, pass);
    const bool pairs = along_inner(args);
    const int64_t blocks = ceil_div(outer, most), room = x_room(args);
    for (int64_t begin = 0; begin < groups; begin += pass) {
        const int64_t some = std::min(pass, groups - begin);
        run_tasks(env, some, [&](int64_t i, int) {
            pack_x(args, begin + i, s.row + i * args.x.shape[2], s.rows + i * room, s.x + i * room);
        });
        run_tasks(env, some * blocks, [&](int64_t unit, int) {
            const int64_t i = unit / blocks, g = begin + i;
            const int64_t first = unit % blocks * most, outputs = std::min(most, outer - first);
            alignas(64) float sums[kMostRows * kUnitOutputs];
            multiply_few_tiles({.w = reinterpret_cast<const uint16_t*>(address(args.w, g, first)),
                                .w_stride = args.w.stride_elems[pairs ? 1 : 2],
                                .x = s.x + i * room,
                                .out = sums,
                                .inner = args.x.shape[2],
                                .outputs = outputs,
                                .tiles = int(tile_rows(args) / kTileRows),
                                .along_inner = pairs});
            store(args, g, first, outputs, sums);
        });
    }
}

CallPlan<Args> plan(const Args& args, const Env& env) {
    CallPlan<Args> plan = refuse_call<Args>(refuse_tensors(args, env));
    if (!plan.refusal.empty()) return plan;
    int64_t pass = std::max<int64_t>(args.w.shape[0], 1);
    while (env.budget && pass > 1 && scratch_bytes(args, pass) > env.budget) pass /= 2;
    plan.scratch = scratch_bytes(args, pass);
    plan.refusal = refuse_tokens(args);
    if (plan.refusal.empty()) plan.launch = [pass](const Args& call, const Env& on) { run(call, on, pass); };
    return plan;
}

}  // namespace

}  // namespace smla::cpu_project

namespace smla::cpu {

const Candidate<smla_project_args> kAmxProject{.name = "cpu_amx_few_project", .plan = cpu_project::plan};

}  // namespace smla::cpu

#endif
