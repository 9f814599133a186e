"""The mutants of scripts/cuda_mutants: each breaks one line of src/engines/cuda, and its test must fail.

A test is `test_gpu FILTER` of GoogleTest or `smla ARGUMENTS`. For each mutant, only one file is compiled: the
changed file, or `unit` if the changed file is a header. Other files that include the header are not compiled
again. This file is one table, so it is not split.
"""

from typing import NamedTuple

CUDA = "src/engines/cuda/"
FEW, MANY = CUDA + "attend/mma/few/kernel.cu", CUDA + "attend/mma/many/kernel.cu"
SM90, RAW = CUDA + "attend/sm90/kernel.cu", CUDA + "attend/sm90/raw/kernel.cu"
SCORE, PAGES = CUDA + "score/sm90/kernel.cu", CUDA + "score/sm90/pages/kernel.cu"


class Mutant(NamedTuple):
    name: str
    file: str
    old: str  # must be in the file exactly once
    new: str
    test: str
    unit: str = ""  # the file to compile, if `file` is a header


def verify(stage, seconds=10):
    return f"smla verify --engine cuda --seed 1 --seconds {seconds} --floor 1 --stage {stage}"


MUTANTS = [
    # attend: mma kernels and the combination of splits
    Mutant(
        "mma sums are not rescaled",
        CUDA + "attend/mma/softmax.cuh",
        "sum[r] *= rescale[r];",
        "",
        "test_gpu CudaAttend.LogitsOfAnySize",
        MANY,
    ),
    Mutant(
        "mma with few heads weighs half the keys",
        CUDA + "attend/mma/softmax.cuh",
        "i < 2 * Groups; ++i",
        "i < Groups; ++i",
        "test_gpu CudaAttend.FormatsAndHeads",
        FEW,
    ),
    Mutant(
        "the fourth e8m0 scale of four is wrong",
        CUDA + "attend/mma/codes.cuh",
        "codes << (23 - 8 * i) : codes >> 1;",
        "codes << (23 - 8 * i) : codes >> 2;",
        "test_gpu CudaAttend.FormatsAndHeads",
        MANY,
    ),
    Mutant(
        "decoded groups of 32 share the wrong scale",
        CUDA + "attend/mma/decoded_rows.cuh",
        "record + lane / 2 + Layout::row",
        "record + lane / 4 + Layout::row",
        "test_gpu CudaAttend.FormatsAndHeads",
        MANY,
    ),
    Mutant(
        "decoded e2m1 values are half as large",
        CUDA + "attend/mma/decoded_rows.cuh",
        "0x1p126f * kDecodedUnit",
        "0x1p125f * kDecodedUnit",
        "test_gpu CudaAttend.FormatsAndHeads",
        FEW,
    ),
    Mutant(
        "tiles of the extra source skip its first rows",
        CUDA + "attend/mma/key_tiles.cuh",
        "source.first_tile = lane ? first - primary : first;",
        "source.first_tile = first;",
        "test_gpu CudaAttend.HolesLengthsSinkTwoSources",
        MANY,
    ),
    Mutant(
        "the mma epilogue ignores the sink",
        CUDA + "attend/epilogue.cuh",
        "finish(peak2 * kLn2, sum, sink_of(args, h));",
        "finish(peak2 * kLn2, sum, -INFINITY);",
        "test_gpu CudaAttend.HolesLengthsSinkTwoSources",
        MANY,
    ),
    Mutant(
        "mma outputs lose their factor",
        CUDA + "attend/epilogue.cuh",
        "return __uint_as_float(of) * factor[i]; };",
        "return __uint_as_float(of); };",
        "test_gpu CudaAttend.FormatsAndHeads",
        FEW,
    ),
    Mutant(
        "combined log2 lse is in natural units",
        CUDA + "attend/arguments.cuh",
        "args.log2 ? lse * kLog2E : lse;",
        "lse;",
        "test_gpu CudaAttend.HolesLengthsSinkTwoSources",
        CUDA + "attend/combine.cu",
    ),
    Mutant(
        "combine adds unweighted sums of splits",
        CUDA + "attend/combine.cu",
        "sum += weight == 0 ? 0.f : weight * own[i].sum;",
        "sum += own[i].sum;",
        "test_gpu CudaAttend.Edges",
    ),
    Mutant(
        "combine loses the sums of its second group",
        CUDA + "attend/combine.cu",
        "for (int g = 1; g < groups; ++g)",
        "for (int g = 2; g < groups; ++g)",
        "test_gpu CudaAttend.Edges",
    ),
    Mutant(
        "combine: a warp loads one chunk of a row again",
        CUDA + "attend/combine.cu",
        "sums[(split + i) * stride + c * Lanes];",
        "sums[(split + i) * stride + (c & 2) * Lanes];",
        "test_gpu Sm90Attend.*",
    ),
    Mutant(
        "combined outputs are rotated forward",
        CUDA + "attend/combine.cu",
        "cuda::turn_of(-frequency *",
        "cuda::turn_of(frequency *",
        verify("attend", 20),
    ),
    Mutant(
        "generic sums are not rescaled",
        CUDA + "generic/attend.cu",
        "running.sum *= shrink;",
        "",
        "test_gpu CudaAttend.GenericTakesAnything",
    ),
    # attend: sm90 kernels
    Mutant(
        "sm90 sums are not rescaled",
        CUDA + "attend/sm90/consumer.cuh",
        "sum[r] *= factor;",
        "",
        "test_gpu Sm90Attend.QueriesAndLogitsOfAnySize",
        SM90,
    ),
    Mutant(
        "sm90 masks odd keys of half the heads",
        CUDA + "attend/sm90/consumer.cuh",
        "s_[4 * i + 1] = s_[4 * i + 3] = -INFINITY;",
        "s_[4 * i + 1] = -INFINITY;",
        "test_gpu Sm90Attend.HolesLengthsSinks",
        SM90,
    ),
    Mutant(
        "sm90 loses the sums of a warpgroup",
        CUDA + "attend/sm90/epilogue.cuh",
        "cuda::load_shared_f32(at + kSumsAt) + cuda::load_shared_f32(at + kSumsAt + 256);",
        "cuda::load_shared_f32(at + kSumsAt);",
        "test_gpu Sm90Attend.HeadsRowsAndOutputs",
        SM90,
    ),
    Mutant(
        "sm90 starts the extra source too late",
        CUDA + "attend/sm90/row_cursor.cuh",
        "(first_ - (index ? primary_ : 0)) * kKeys",
        "first_ * kKeys",
        "test_gpu Sm90Attend.HeadsRowsAndOutputs",
        SM90,
    ),
    Mutant(
        "sm90 takes any scale for one of f16",
        CUDA + "attend/sm90/conversion.cuh",
        "return holds(bits.x) & holds(bits.y) & holds(bits.z) & holds(bits.w);",
        "return true;",
        "test_gpu Sm90Attend.ScalesOfAnySize",
        SM90,
    ),
    Mutant(
        "raw blocks mask half the keys only",
        CUDA + "attend/sm90/raw/consumer.cuh",
        "(warp_ < 2 ? valid.x : valid.y) >>",
        "valid.x >>",
        "test_gpu Sm90Attend.EveryBlockOverRawRecords",
        RAW,
    ),
    Mutant(
        "raw blocks keep large scales in f16",
        CUDA + "attend/sm90/raw/consumer.cuh",
        "scale <= kMostScale",
        "scale <= INFINITY",
        "test_gpu Sm90Attend.ScalesOfAnySize",
        RAW,
    ),
    Mutant(
        "raw blocks add warpgroups without their peaks",
        CUDA + "attend/sm90/raw/epilogue.cuh",
        "return cuda::exp2_fast(peak_of(in_block, group) - joined_peak(in_block));",
        "return 1;",
        "test_gpu Sm90Attend.EveryBlockOverRawRecords",
        RAW,
    ),
    # score
    Mutant(
        "mma logits keep negative products",
        CUDA + "score/tile.cu",
        "float twice = x + fabsf(x);",
        "float twice = 2 * x;",
        verify("score"),
    ),
    Mutant(
        "mma logits go to the other key of a pair",
        CUDA + "score/tile.cu",
        "return (odd ? b : a) + __shfl_xor_sync(~0u, odd ? a : b, 1);",
        "return (odd ? a : b) + __shfl_xor_sync(~0u, odd ? b : a, 1);",
        verify("score"),
    ),
    Mutant(
        "the column behind a window stays as it was",
        CUDA + "score/logits.cuh",
        "after = empty ? last : max(window.end, first);",
        "after = empty ? last : max(window.end + 1, first);",
        "test_gpu Sm90Score.WindowsAndHoles",
        SCORE,
    ),
    Mutant(
        "pages: masked keys have logits",
        CUDA + "score/sm90/pages/consumer.cuh",
        "hole = own_scale_ >= end;",
        "hole = false;",
        "test_gpu Sm90PagesScore.WindowsAndHoles",
        PAGES,
    ),
    Mutant(
        "pages: odd heads of the second key are lost",
        CUDA + "score/sm90/pages/consumer.cuh",
        "sums[1] += odd[1];",
        "",
        "test_gpu Sm90PagesScore.IsWithinTheBound",
        PAGES,
    ),
    Mutant(
        "block maxima leave out the newest block's rule",
        CUDA + "score_select/blocks.cu",
        "if (part.end == window.end) best = INFINITY;",
        "",
        verify("score_select_blocks"),
    ),
    # select
    Mutant(
        "registers: only one of equal scores wins",
        CUDA + "select/registers.cu",
        "shared.of_members = {key, mine.need - above};",
        "shared.of_members = {key, 1};",
        verify("select"),
    ),
    Mutant(
        "registers: winners of a bin are left out",
        CUDA + "select/registers.cu",
        "if (key > cut.key) mine.wins |= one;",
        "",
        verify("select"),
    ),
    Mutant(
        "cluster: places ignore other blocks",
        CUDA + "select/cluster.cu",
        "above = (before & 0xffff) + __reduce_add_sync(~0u, of_block & 0xffff),",
        "above = before & 0xffff,",
        verify("select"),
    ),
    Mutant(
        "cluster: the highest differing bit is forgotten",
        CUDA + "select/cluster.cu",
        "return 32 - __clz(int(least ^ best));",
        "return max(31 - __clz(int(least ^ best)), 0);",
        verify("select"),
    ),
    Mutant(
        "sampled: winners of a bin are in reverse order",
        CUDA + "select/sampled.cu",
        "place += shared.places[other] < number;",
        "place += shared.places[other] > number;",
        verify("select"),
    ),
    Mutant(
        "ids: elements without an id take part",
        CUDA + "generic/select.cu",
        "if (number >= 0) f(",
        "f(",
        "test_gpu GpuSelect.ElementsWithoutAnIdTakeNoPart",
    ),
    # caches, linear stages and maps
    Mutant(
        "write: the mean is a sum",
        CUDA + "generic/write.cu",
        "mean = warp_sum(mean) / float(width);",
        "mean = warp_sum(mean);",
        verify("write_index"),
    ),
    Mutant(
        "compress: the halves of a window overlap by a row",
        CUDA + "generic/compress.cu",
        "i * p.groups < window.rows - p.ratio ? 0",
        "i * p.groups <= window.rows - p.ratio ? 0",
        verify("compress"),
    ),
    Mutant(
        "compress: threads of a cluster pool rows twice",
        CUDA + "generic/compress.cu",
        "j < count; j += shares * step)",
        "j < count; j += step)",
        "test_gpu GpuCompress.BitsDoNotDependOnHowManyTokensACallHas",
    ),
    Mutant(
        "map: limits are ignored",
        CUDA + "generic/map.cu",
        "entry >= 0 && first + i * kThreads < limit;",
        "entry >= 0;",
        verify("map"),
    ),
    Mutant(
        "map: the tail starts a token late",
        CUDA + "generic/map.cu",
        "p.pool.tail_token(visible, j - behind);",
        "p.pool.tail_token(visible, j - behind + 1);",
        verify("map"),
    ),
    Mutant(
        "project: loops leave out the tail of a sum",
        CUDA + "generic/project.cu",
        "k0 < tokens.inner; k0 += kDepth",
        "k0 + kDepth <= tokens.inner; k0 += kDepth",
        verify("project"),
    ),
    Mutant(
        "project: only the first split of a sum counts",
        CUDA + "project/few_tokens.cu",
        "for (int s = 0; s < p.splits; ++s) sum +=",
        "for (int s = 0; s < 1; ++s) sum +=",
        verify("project"),
    ),
    Mutant(
        "project: low bits of activations are lost",
        CUDA + "project/mma/product.cuh",
        "low -= __uint_as_float(__float_as_uint(low) & 0xffff0000u);",
        "low = 0;",
        "test_gpu GpuMmaProject.EveryBitOfAnActivationCounts",
        CUDA + "project/mma/many.cu",
    ),
    Mutant(
        "project: infinities are split",
        CUDA + "project/mma/product.cuh",
        "if (zero == 0) return",
        "if (zero == 0 || true) return",
        "test_gpu GpuMmaProject.InfinitiesAndNanStayInTheirToken",
        CUDA + "project/mma/few.cu",
    ),
    Mutant(
        "inverse_rope turns forward",
        CUDA + "generic/rope.cu",
        "p.inverse ? -turn.y : turn.y;",
        "turn.y;",
        verify("inverse_rope"),
    ),
    Mutant(
        "merge: log2 lse is in natural units",
        CUDA + "generic/merge.cu",
        "weights.lse / args.unit);",
        "weights.lse);",
        verify("merge"),
    ),
    Mutant(
        "gather: requests share their first position",
        CUDA + "generic/gather.cu",
        "start + out_row - load_int(p.cu, request));",
        "start + out_row);",
        verify("gather"),
    ),
    # plans, metadata and the error word
    Mutant(
        "plan: all tokens are those of decodes",
        CUDA + "common/plan.cu",
        "p.out.batch_split[2] = decode_tokens;",
        "p.out.batch_split[2] = tokens;",
        "test_gpu GpuPlan.RandomStepsOneAfterTheOther",
    ),
    Mutant(
        "plan: rows of the step before stay",
        CUDA + "common/plan.cu",
        "p.reach[0] > p.tokens ? p.reach[0] : int32_t(p.tokens);",
        "int32_t(p.tokens);",
        "test_gpu GpuPlan.RandomStepsOneAfterTheOther",
    ),
    Mutant(
        "metadata: the last request has no numbers",
        CUDA + "common/metadata.cu",
        "r <= p.max_requests; r += kThreads",
        "r + 1 < p.max_requests; r += kThreads",
        "test_gpu GpuBackendMetadata.ABatchOnTheGpu",
    ),
    Mutant(
        "error word: blocks are not counted anew",
        CUDA + "common/check_indices.cu",
        "place->arrived = 0;",
        "",
        "test_gpu GpuCheckIndices.TheFirstOfManyBlocks",
    ),
    Mutant(
        "error word: a later error replaces an unread one",
        CUDA + "common/check_indices.cu",
        " && place->word.kind == SMLA_BAD_NONE;",
        ";",
        "test_gpu GpuCheckIndices.TheFirstOfManyBlocks",
    ),
]
