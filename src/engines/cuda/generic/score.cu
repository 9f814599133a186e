// score for any heads, width up to 1024, key format, query dtype and strides; not optimized.
//
// A warp computes a column, with the key's values in shared memory: the dot product of one head after
// another, each over the lanes, then the key's scale. A block has 8 warps; the grid is tokens x groups of 64
// columns. About 2 loads and a conversion per product limit it to 10 to 50 GFLOP/s per multiprocessor.
#include "engines/cuda/common/launch.cuh"
#include "engines/cuda/score/columns.cuh"
#include "engines/cuda/score/logit.cuh"

namespace smla::cuda {

namespace {

constexpr int kWarps = 8, kColumns = 64;  // per block

struct GenericScore {
    ScoreInputs inputs;
    KeyColumns place;
    Windows window;
    Logits logits;  // starting at column window.begin
    int fill;
};

__global__ void __launch_bounds__(kWarps * 32) score_generic(const __grid_constant__ GenericScore task) {
    extern __shared__ float shared[];
    follow_grid_before();
    const unsigned columns = unsigned(task.window.end - task.window.begin);
    const unsigned groups = (columns + kColumns - 1) / kColumns;
    const int64_t token = blockIdx.x / groups;
    const int first = task.window.begin + int(blockIdx.x % groups * kColumns), warp = int(threadIdx.x / 32);
    const int count = min(kColumns, task.window.end - first);
    float* const key = shared + warp * task.inputs.keys.width;
    const Window window = task.window(token);
    const KeyColumns::Pages pages = task.place.pages_of(task.place.request(token));
    const int64_t at = token * task.logits.stride - task.window.begin;
    for (int i = warp; i < count; i += kWarps) {
        const int j = first + i;
        float value = -INFINITY;
        if (window.has(j)) {
            const KeyColumns::Place place = task.place.find(pages, j);
            if (place.page >= 0) {
                const float scale =
                    load_key(task.inputs.keys, place.page * task.inputs.keys.page_rows + place.offset, key);
                value = logit(task.inputs, token, key, scale);
                __syncwarp();  // before the next key is loaded
            }
        } else if (!task.fill) {
            continue;
        }
        if (threadIdx.x % 32 == 0) store_logit(task.logits, at + j, value);
    }
}

}  // namespace

void run_score_generic(const smla_score_args& args, const ScorePart& part, const Env& env) {
    const CacheView keys(args.keys);
    const GenericScore task{.inputs = {args.q, args.q_scales, args.w, DeviceCache(args.keys)},
                            .place = KeyColumns(args, keys),
                            .window = Windows(args.starts, args.ends, part.columns, part.begin, part.end),
                            .logits = part.logits,
                            .fill = args.fill};
    const int64_t blocks = args.q.shape[0] * ceil_div(part.end - part.begin, kColumns);
    launch_early(score_generic, blocks, kWarps * 32, kWarps * size_t(keys.width) * sizeof(float), env, task);
}

}  // namespace smla::cuda
