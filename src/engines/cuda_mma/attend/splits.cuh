// The splits of a token's rows: how the mma kernel leaves them, and what joins them.
#pragma once

#include "engines/cuda_common/ptx/mma.cuh"
#include "engines/cuda_common/ptx/shared.cuh"
#include "engines/cuda_mma/attend/arguments.cuh"
#include "engines/cuda_mma/attend/schedule.h"

namespace smla::cuda_attend {

struct Cut {
    int head_tiles, splits;
    Parts parts;
};

// Where a block stands. Made anew where it is needed: registers.
struct Place {
    int part, token, head;  // token * splits + split; the first head of the block
    __device__ Place(const Cut& cut, int heads) {
        const unsigned block = cuda::keep(blockIdx.x);
        part = int(block / unsigned(cut.head_tiles));
        token = part / cut.splits;
        head = int(block % unsigned(cut.head_tiles)) * heads;
    }
};

// Two neighbours of a row of the output.
__device__ inline void store_pair(const Tensor& out, int64_t at, float low, float high) {
    if (out.dtype == SMLA_F32) {
        *reinterpret_cast<float2*>(static_cast<float*>(out.data) + at) = make_float2(low, high);
    } else {
        const uint32_t bf16 = cuda::pack_bf16(low, high), f16 = cuda::pack_f16(low, high);
        *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(out.data) + at) =
            out.dtype == SMLA_BF16 ? bf16 : f16;
    }
}

// What one head comes to: its statistics, to the scratch of splits or to lse and max_logits; what its sums
// are to be multiplied with: in a split 1, or 0 where it had no keys.
__device__ inline float finish_head(const Arguments& args, const Cut& cut, const Place& place, int64_t h,
                                    bool any, float peak2, float largest, float sum) {
    Totals totals = {any ? 1.f : 0.f, -INFINITY};
    if (cut.splits > 1) {
        cut.parts.statistics[place.part * args.q.shape[1] + h] = {peak2, sum, largest, totals.factor};
        return totals.factor;
    }
    if (any) totals = finish(peak2 * kLn2, sum, sink_of(args, h));
    store_statistics(args, place.token, h, totals.lse, largest * args.scale());
    return totals.factor;
}

// Where the sums of one head go, times its factor: to the output, or to the scratch of splits, where a split
// without keys leaves nothing.
class HeadRow {
public:
    __device__ HeadRow(const Arguments& args, const Cut& cut, const Place& place, int in_block, float factor)
        : out_(args.out), whole_(cut.splits == 1), factor_(factor) {
        const int64_t h = place.head + in_block, heads = args.q.shape[1];
        real_ = h < heads && (whole_ || factor != 0);
        out_at_ = whole_ && real_ ? cuda::element(args.out, place.token, h) : 0;
        sums_ = cut.parts.sums + (place.part * heads + h) * kValueWidth;
    }
    // Of the columns `column` and + 1.
    __device__ void store(int column, float low, float high) const {
        if (!real_) return;
        low *= factor_, high *= factor_;
        if (whole_) store_pair(out_, out_at_ + column, low, high);
        else *reinterpret_cast<float2*>(sums_ + column) = make_float2(low, high);
    }

private:
    const Tensor& out_;
    const bool whole_;
    const float factor_;
    bool real_;
    int64_t out_at_;
    float* sums_;
};

// Instances: widths of 576 and 512, fp8 records or bf16 rows. few.cu: 16 heads; many/many.cu: 32 or 64.
template <int Width, bool Coded>
void launch_few(const smla_attend_args& args, const Schedule& schedule, const Cut& cut, const Env& env);
template <int Width, bool Coded>
void launch_many(const smla_attend_args& args, const Schedule& schedule, const Cut& cut, const Env& env);

void join_splits(const smla_attend_args& args, const Cut& cut, const Env& env);

}  // namespace smla::cuda_attend
