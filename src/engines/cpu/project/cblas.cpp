// project, absorb, up_project, out_project on a CPU. Weights keep their stored dtype; bf16 and f16 weights
// are widened block by block into scratch, so that a layer stores them once.
#include "linear/cblas.h"
#include "core/interrupt.h"
#include "engines/cpu/candidates.h"
#include "engines/cpu/tasks.h"
#include "linear/cblas_room.h"
#include "ops/ops.h"

namespace smla {

namespace {

using Args = smla_project_args;

// A block of widened weights is 1 MiB of f32, about one core's L2. With many tokens a block has at least as
// many rows as there are tokens, up to kMostBlockTokens, because BLAS packs all of x for each block. With the
// 16 rows of 16,384 columns that 1 MiB holds, 512 tokens take three times as long as with f32 weights.
constexpr int64_t kBlockElements = 1 << 18, kMostBlockTokens = 512;

// Returns whether rows share elements, as a repeated row does. BLAS requires a leading dimension of at least
// the width.
bool overlap(int64_t rows, int64_t stride, int64_t width) { return rows > 1 && stride < width; }
bool copies_x(const Args& args) {
    return args.x.dtype != SMLA_F32 || overlap(args.x.shape[0], args.x.stride_elems[0], args.x.shape[2]);
}
bool along_inner(const Args& args) { return args.w.stride_elems[2] == 1 || args.w.shape[2] <= 1; }
bool widened(const Args& args) {
    if (args.w.dtype != SMLA_F32) return true;
    const int64_t outer = args.w.shape[1], inner = args.w.shape[2];
    return along_inner(args) ? overlap(outer, args.w.stride_elems[1], inner)
                             : overlap(inner, args.w.stride_elems[2], outer);
}
int64_t block_rows(const Args& args, bool for_tokens) {
    if (!widened(args)) return args.w.shape[1];
    const int64_t cached = kBlockElements / std::max<int64_t>(args.w.shape[2], 1);
    const int64_t wanted = for_tokens ? std::min(args.x.shape[0], kMostBlockTokens) : 1;
    return std::min(std::max(cached, wanted), std::max<int64_t>(args.w.shape[1], 1));
}

struct Scratch {
    float *x, *w, *out;
};

Scratch carve(Arena& arena, const Args& args, int64_t block_rows, int threads) {
    const size_t tokens = size_t(args.x.shape[0]), inner = size_t(args.x.shape[2]),
                 block = size_t(block_rows);
    const size_t workers = args.x.shape[1] > 1 ? size_t(threads) : 1;
    Scratch s{};
    if (copies_x(args)) s.x = arena.take<float>(workers * tokens * inner);
    if (widened(args)) s.w = arena.take<float>(workers * block * inner);
    if (args.out.dtype != SMLA_F32) s.out = arena.take<float>(workers * tokens * block);
    return s;
}

// Rows [first, first + rows) of one group's weight, as B of a row-major product.
struct Operand {
    const float* data;
    int64_t lead;
    bool transposed;  // [rows, inner]; else [inner, rows]
};

Operand weight_block(const Args& args, int64_t g, int64_t first, int64_t rows, float* scratch) {
    const int64_t inner = args.w.shape[2], outer_stride = args.w.stride_elems[1],
                  inner_stride = args.w.stride_elems[2];
    const char* at = address(args.w, g, first);
    const bool transposed = along_inner(args);
    if (!widened(args)) {
        const int64_t lead = transposed ? outer_stride : inner_stride;
        return {reinterpret_cast<const float*>(at), std::max(lead, transposed ? inner : rows), transposed};
    }
    if (transposed) {
        for (int64_t n = 0; n < rows; ++n)
            load_row(args.w, address(args.w, g, first + n), inner, scratch + n * inner);
        return {scratch, inner, true};
    }
    Tensor across = args.w;  // read along the outer dimension, which is contiguous
    across.stride_elems[2] = outer_stride;
    for (int64_t k = 0; k < inner; ++k)
        load_row(across, address(args.w, g, first, k), rows, scratch + k * rows);
    return {scratch, rows, false};
}

void multiply_group(const Args& args, int64_t g, int64_t block, const Scratch& s, int64_t worker) {
    const int64_t tokens = args.x.shape[0], inner = args.x.shape[2], outer = args.w.shape[1];
    const float* x = reinterpret_cast<const float*>(address(args.x, 0, g));
    int64_t x_lead = args.x.stride_elems[0];
    if (s.x) {
        float* rows = s.x + worker * tokens * inner;
        for (int64_t t = 0; t < tokens; ++t) load_row(args.x, address(args.x, t, g), inner, rows + t * inner);
        x = rows;
        x_lead = inner;
    }
    for (int64_t first = 0; first < outer; first += block) {
        stop_point();
        const int64_t rows = std::min(block, outer - first);
        const Operand w = weight_block(args, g, first, rows, s.w ? s.w + worker * block * inner : nullptr);
        float* out = s.out ? s.out + worker * tokens * block
                           : reinterpret_cast<float*>(address(args.out, 0, g, first));
        const int64_t out_lead = s.out ? rows : std::max(args.out.stride_elems[0], rows);
        constexpr int row_major = 101, no_transpose = 111, transpose = 112;
        const auto lead = [](int64_t of, int64_t width) { return int(std::max({of, width, int64_t(1)})); };
        const Cblas& library = cblas();
        const CblasCaller caller(library);
        library.sgemm(row_major, no_transpose, w.transposed ? transpose : no_transpose, int(tokens),
                      int(rows), int(inner), 1.f, x, lead(x_lead, inner), w.data, lead(w.lead, 1), 0.f, out,
                      int(out_lead));
        if (s.out)
            for (int64_t t = 0; t < tokens; ++t)
                store_row(args.out, address(args.out, t, g, first), rows, out + t * rows);
    }
}

std::string refuse_cblas(const Args& args, const Env&) {
    if (!cblas().sgemm) return cblas().why_none;
    for (const Tensor* tensor : {&args.x, &args.w, &args.out})
        if (tensor->dtype == SMLA_F64) return "f64 tensors are supported only by cpu_generic_project";
    constexpr int64_t limit = int64_t(1) << 31;  // CBLAS uses int for sizes
    for (const Tensor* tensor : {&args.x, &args.w, &args.out})
        for (int i = 0; i < 3; ++i)
            if (tensor->shape[i] >= limit || tensor->stride_elems[i] >= limit)
                return "dimensions and strides of 2^31 or more are not supported";
    return "";
}

void run_cblas(const Args& args, int64_t block, const Env& env) {
    const int64_t groups = args.x.shape[1];
    if (args.x.shape[0] == 0 || args.w.shape[1] == 0) return;
    Arena arena(env.workspace);
    const Scratch s = carve(arena, args, block, env.threads());
    if (groups == 1 || !env.pool) {
        for (int64_t g = 0; g < groups; ++g) multiply_group(args, g, block, s, 0);
    } else {
        env.pool->run(groups, [&](int64_t g, int worker) { multiply_group(args, g, block, s, worker); });
    }
}

size_t scratch_bytes(const Args& args, int64_t block, int threads) {
    Arena arena;
    carve(arena, args, block, threads);
    return arena.used();
}

CallPlan<Args> plan_cblas(const Args& args, const Env& env) {
    std::string refusal = refuse_cblas(args, env);
    if (!refusal.empty()) return refuse_call<Args>(std::move(refusal));
    // In batch-invariant mode blocks do not depend on the tokens; only the library's own rounding may.
    int64_t block = block_rows(args, !env.batch_invariant);
    const size_t whole = scratch_bytes(args, block, env.threads());
    if (env.budget && whole > env.budget) block = block_rows(args, false);
    CallPlan<Args> plan;
    plan.scratch = scratch_bytes(args, block, env.threads());
    // Blocks may be larger in calls with fewer tokens.
    if (env.budget) plan.scratch_of_fewer = std::min(whole, env.budget);
    plan.launch = [block](const Args& call, const Env& on) { run_cblas(call, block, on); };
    return plan;
}

// Runs the op's loops, divided by rows of the weight so that one token also uses every thread.
void run_loops(const Args& args, const Env& env) {
    const int64_t outer = args.w.shape[1],
                  parts = env.pool ? std::clamp<int64_t>(outer / 16, 1, 8 * env.threads()) : 1;
    const auto part = [&](int64_t i, int) {
        Args piece = args;
        piece.w = slice(args.w, 1, outer * i / parts, outer * (i + 1) / parts);
        piece.out = slice(args.out, 2, outer * i / parts, outer * (i + 1) / parts);
        ProjectOp::reference(piece, 0, args.x.shape[0]);
    };
    run_tasks(env, parts, part);
}

}  // namespace

const Candidate<Args> cpu::kCblasProject{.name = "cpu_cblas_project", .plan = plan_cblas};
const Candidate<Args> cpu::kLoopsProject{.name = "cpu_generic_project", .plan = [](const Args&, const Env&) {
                                             CallPlan<Args> plan;
                                             plan.launch = run_loops;
                                             return plan;
                                         }};

}  // namespace smla
