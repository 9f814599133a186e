"""The mutants of scripts/mutants: each breaks one line, and the test named beside it must fail.

A test is `BINARY FILTER` of GoogleTest, `smla ARGUMENTS` or `python PYTEST-ARGUMENTS`.
The file is one table, so it is not split.
"""

from typing import NamedTuple


class Mutant(NamedTuple):
    name: str
    file: str
    old: str  # in the file exactly once
    new: str
    test: str


def verify(stage, seconds=3):
    return f"smla verify --engine cpu --seed 1 --seconds {seconds} --stage {stage}"


MUTANTS = [
    # kernels of the cpu engine
    Mutant(
        "a large sink overflows",
        "src/engines/cpu/attend/finish.cpp",
        "std::max(0., sink - peak)",
        "0. * (sink - peak)",
        verify("attend"),
    ),
    Mutant(
        "only the last split counts",
        "src/engines/cpu/attend/finish.cpp",
        "sums.total += weight",
        "sums.total = weight",
        verify("attend"),
    ),
    Mutant(
        "log2 lse in natural units",
        "src/engines/cpu/attend/finish.cpp",
        "args.lse_base == SMLA_LSE_LOG2 ? std::numbers::log2e : 1.",
        "1.",
        verify("attend"),
    ),
    Mutant(
        "a split loses its last key",
        "src/engines/cpu/attend/worker.cpp",
        "total * (split + 1) / plan_.splits;",
        "total * (split + 1) / plan_.splits - (split + 1 < plan_.splits);",
        "test_attend *",
    ),
    Mutant(
        "pairs without a key keep old weights on tiles",
        "src/engines/cpu/attend/micro_amx.cpp",
        "for (int pair = pairs; pair < padded; ++pair)",
        "for (int pair = pairs; pair < pairs; ++pair)",
        "test_attend Amx.*",
    ),
    Mutant(
        "values of padded keys reach tiles",
        "src/engines/cpu/attend/micro_amx.cpp",
        "pads_values = true;",
        "pads_values = false;",
        "test_attend Amx.*",
    ),
    Mutant(
        "sums on tiles are never rescaled",
        "src/engines/cpu/attend/micro_amx.cpp",
        "if (args.carry == Carry::rescale) rescale",
        "if (false) rescale",
        "test_attend Amx.*",
    ),
    Mutant(
        "a tile of heads overwrites the next dims",
        "src/engines/cpu/attend/plan.h",
        "round_up(size_t(heads_of_chunk), size_t(micro.lanes))",
        "heads_of_chunk",
        "test_attend Amx.*",
    ),
    Mutant(
        "kernels on tiles ask for no permission",
        "src/engines/cpu/attend/kernels.cpp",
        "return bf16.empty() ? why_no_tiles() : bf16;",
        "return bf16;",
        "test_engines KernelOrder.*",
    ),
    Mutant(
        "the AMX emulator sums pairs in order",
        "tests/kit/amx_multiply_avx512.cpp",
        "odd = _mm512_fmadd_ps(__m512(left & high_half), __m512(right & high_half), odd);",
        "even = _mm512_fmadd_ps(__m512(left & high_half), __m512(right & high_half), even);",
        "test_core AmxEmulator.*",
    ),
    Mutant(
        "pages counted in tokens",
        "src/engines/cpu/attend/source.cpp",
        "row / uint64_t(view_.page_rows);",
        "row / uint64_t(view_.page_tokens);",
        verify("attend"),
    ),
    Mutant(
        "keys are never rounded",
        "src/engines/cpu/attend/source.cpp",
        "rounded_ = rounds_keys(args, view_);",
        "rounded_ = rounds_keys(args, view_) && false;",
        "test_contract Contract.L1*",
    ),
    Mutant(
        "score reads the page past the last",
        "src/engines/cpu/score/key_spans.cpp",
        "page < keys_.pages ? page",
        "page <= keys_.pages ? page",
        verify("score"),
    ),
    Mutant(
        "score reads past a block table",
        "src/engines/cpu/score/key_spans.cpp",
        "block >= args_.block_table.shape[1]",
        "block > args_.block_table.shape[1]",
        verify("score"),
    ),
    Mutant(
        "the threshold is one key too high",
        "src/engines/cpu/select/top_k.cpp",
        "if (reached == k) return int32_t(middle);",
        "if (reached == k) return int32_t(middle) + 1;",
        verify("select"),
    ),
    Mutant(
        "listed ties go to the larger id",
        "src/engines/cpu/select/run.cpp",
        "a.key > b.key : a.id != b.id ? a.id < b.id : a.column < b.column;\n        });\n        std::sort",
        "a.key > b.key : a.id != b.id ? a.id > b.id : a.column < b.column;\n        });\n        std::sort",
        verify("select"),
    ),
    Mutant(
        "few tokens write whole blocks",
        "src/engines/cpu/project/few_tokens.cpp",
        "rows = std::min(kBlock, outer - first);",
        "rows = kBlock;",
        verify("project"),
    ),
    Mutant(
        "rows of a short weight block",
        "src/engines/cpu/project/cblas.cpp",
        "rows, out + t * rows);",
        "rows, out + t * block);",
        verify("project"),
    ),
    Mutant(
        "rows that share elements go to BLAS as if they lay behind each other",
        "src/engines/cpu/project/cblas.cpp",
        "return rows > 1 && stride < width;",
        "return rows > 1 && stride < width && false;",
        "test_contract Fields.RowsOfAProduct*",
    ),
    # checks
    Mutant(
        "outputs may meet along three dimensions",
        "src/core/tensor.cpp",
        "    check_all_apart(field, tensor);",
        "    if (false) check_all_apart(field, tensor);",
        "test_contract Fields.OutputsWhoseSteps*",
    ),
    Mutant(
        "one head too many",
        "src/ops/attend/check.cpp",
        "heads <= kMaxHeads,",
        "heads <= kMaxHeads + 1,",
        "test_contract Contract.L6a*",
    ),
    Mutant(
        "a row at the capacity is read",
        "src/ops/attend/check.cpp",
        "row >= 0 && row < cache.capacity;",
        "row >= 0 && row <= cache.capacity;",
        verify("attend"),
    ),
    Mutant(
        "a scale that is 0 in f32",
        "src/ops/attend/check.cpp",
        "scale >= F32::denorm_min()",
        "scale > 0",
        "test_contract Contract.L1d*",
    ),
    Mutant(
        "outputs that begin in another tensor",
        "src/ops/field.cpp",
        "return output.begin == other.begin || (",
        "return (",
        "test_contract Contract.L9l*",
    ),
    Mutant(
        "a length may be K + 1",
        "src/ops/check_data.cpp",
        "source.lengths, 0, source.rows.shape[1]);",
        "source.lengths, 0, source.rows.shape[1] + 1);",
        "test_contract Contract.L9g*",
    ),
    Mutant(
        "every dtype is allowed",
        "src/core/tensor.cpp",
        "kDtypeCount && (allowed & dtype_bit(tensor.dtype)),",
        "kDtypeCount && (allowed | dtype_bit(tensor.dtype)),",
        "test_contract Contract.L9a*",
    ),
    # formats
    Mutant(
        "e2m1 pairs are swapped",
        "src/formats/index_mxfp4_68.cpp",
        "f32_to_e2m1(float(values[i + 1]) / scale) << 4",
        "f32_to_e2m1(float(values[i]) / scale) << 4",
        "test_formats *",
    ),
    Mutant(
        "a NaN block has a finite scale",
        "src/formats/index_mxfp4_68.cpp",
        "return kNanScale;",
        "return 254;",
        "test_formats *",
    ),
    Mutant(
        "the last channel is not in the scale",
        "src/formats/index_fp8_132.cpp",
        "fp8::amax(values, Layout::width)",
        "fp8::amax(values, Layout::width - 1)",
        "test_cache_stages WriteIndex*",
    ),
    Mutant(
        "every writer floors the magnitude",
        "src/formats/mx_fp8.h",
        "at.writer & SMLA_WRITER_SCALE_FLOOR ?",
        "false ?",
        "test_formats MxRecords.*",
    ),
    Mutant(
        "a session forgets its writer",
        "src/layers/session_pages.cpp",
        "cache.writer = options_.caches.kv_writer",
        "cache.writer = 0",
        "test_layers SessionWriters.*",
    ),
    Mutant(
        "a layer that is read gets another's hidden states",
        "tools/smla/common/chain.cpp",
        "each.hidden = hidden[i]",
        "each.hidden = hidden[0]",
        "test_cli CliSharedLayers.*",
    ),
    Mutant(
        "a group of e2m1 hides its NaN",
        "src/formats/nv_fp4.h",
        "if (std::isnan(group[i])) return",
        "if (false) return",
        "test_formats MxRecords.*",
    ),
    Mutant(
        "nvfp4_352 divides by its scale",
        "src/formats/scale_rules.h",
        "kNvfp4_352{true, true,",
        "kNvfp4_352{true, false,",
        "test_formats MxRecords.*",
    ),
    Mutant(
        "latents are rotated",
        "src/ops/compress/reference.cpp",
        "        norm();\n        if (present(args_.latents))",
        "        norm(), rotate(position);\n        if (present(args_.latents))",
        "test_compress CompressPairs.*",
    ),
    Mutant(
        "latent caches without rope in V4",
        "src/formats/fits.cpp",
        "if (id == SMLA_FP8_528 && hybrid)",
        "if (id == SMLA_FP8_528 && !hybrid)",
        "test_backends *",
    ),
    # the batch plan
    Mutant(
        "tokens of the last step stay",
        "src/plan/build.cpp",
        "t < tokens; ++t) place_token",
        "t < size_.query_tokens; ++t) place_token",
        "test_plan *",
    ),
    Mutant(
        "rows past 2^31 wrap",
        "src/plan/pages.cpp",
        "block >= 0 && base + run - 1 <= kMaxRow",
        "block >= 0 && base <= kMaxRow",
        "test_plan *",
    ),
    Mutant(
        "splits where blocks suffice",
        "src/plan/split.cpp",
        "blocks * 4 >= workers",
        "blocks * 4 > workers",
        "test_plan *",
    ),
    # backends
    Mutant(
        "row 0 is not counted",
        "src/backends/maps/request_rows.cpp",
        "found += row >= 0;",
        "found += row > 0;",
        "test_backends *",
    ),
    Mutant(
        "Blackwell gets the Triton backend",
        "src/backends/registry.cpp",
        "if (major == 9 || major == 10)",
        "if (major == 9)",
        "test_backends *",
    ),
    Mutant(
        "fewer index rows than tokens",
        "src/backends/forward/dsa.cpp",
        'check_rows_of_step("args.topk_indices", args.topk_indices, shape.tokens);',
        'check_rows_of_step("args.topk_indices", args.topk_indices, 0);',
        "test_backends *",
    ),
    Mutant(
        "a backend of V3.2 has no precision",
        "src/backends/forward/dsa.cpp",
        "step.precision = on.config.args.precision;",
        "",
        "python tests/python/test_backends.py -k precision",
    ),
    Mutant(
        "a backend of V4 has no precision",
        "src/backends/forward/hybrid.cpp",
        "step.precision = model.precision;",
        "",
        "python tests/python/test_backends.py -k precision",
    ),
    # plans that are kept
    Mutant(
        "steps of other parts share a plan",
        "src/backends/instance.cpp",
        "const bool keeps = key.add_numbers(fields.batch.parts);",
        "const bool keeps = true;",
        "smla run --serve examples/traces/mixed.csv",
    ),
    Mutant(
        "a replayed step may run other stages",
        "src/backends/runner.h",
        "known_->calls[next_].stage == S;",
        "true;",
        "test_backends StepPlans.*",
    ),
    Mutant(
        "a kept plan forgets the alignment of memory",
        "src/engines/plan_cache.cpp",
        "return reinterpret_cast<Pointer>(bits % kAlignment + (bits ? kAlignment : 0));",
        "return reinterpret_cast<Pointer>(uintptr_t(bits ? kAlignment : 0));",
        "test_backends StepPlans.*",
    ),
    # metadata of a batch on a GPU
    Mutant(
        "a decode schedule leaves blocks out",
        "src/engines/metadata_job.h",
        "(blocks + kOverhead + parts - 1) / parts",
        "(blocks + kOverhead) / parts",
        "test_backends MetadataJob.*",
    ),
    Mutant(
        "a request of wrong length has tokens",
        "src/engines/metadata_job.h",
        "!has_tokens(job, request_of(job.starts, job.requests, t))",
        "false",
        "test_backends MetadataJob.*",
    ),
    # defaults
    Mutant(
        "another default of the surface",
        "src/layers/session.h",
        "int32_t max_step_tokens = 512;",
        "int32_t max_step_tokens = 256;",
        "test_layers ZeroDefaults.*",
    ),
    # Python
    Mutant(
        "capacity counts gaps",
        "python/smla/cache.py",
        "max(0, (self.pages - 1) *",
        "max(0, self.pages *",
        "python tests/python/test_cache.py",
    ),
    Mutant(
        "bf16 is taken for f16",
        "python/smla/_arrays/dlpack.py",
        "(4, 16): Dtype.BF16,",
        "(4, 16): Dtype.F16,",
        "python tests/python/test_dlpack.py",
    ),
    Mutant(
        "a cache may be a row short",
        "python/smla/cache.py",
        "return (self.abi.page_tokens - 1) *",
        "return (self.abi.page_tokens - 2) *",
        "python tests/python/test_cache.py",
    ),
    # faults of the machine
    Mutant(
        "a child of fork waits for its parent's threads",
        "src/core/thread_pool.cpp",
        "if (birthplace_.here()) return crew_->run(tasks, body);",
        "return crew_->run(tasks, body);",
        "test_faults Threads.AChildOfForkComputes*",
    ),
    Mutant(
        "exit does not wait for a product",
        "src/linear/cblas_room.cpp",
        "empty_.wait(lock, [&] { return inside_ == 0; });",
        "",
        "test_faults Threads.AProcessEnds*",
    ),
    Mutant(
        "JSON is not taken apart",
        "src/model/json.cpp",
        "{ take_apart(*this); }",
        "{ if (false) take_apart(*this); }",
        "test_faults Allocation.OfALayer",
    ),
    Mutant(
        "a cut file is read through its mapping",
        "src/model/mapped_file.cpp",
        "if (!mapped) return {bytes.memory",
        "if (mapped || !mapped) return {bytes.memory",
        "test_model Untrusted.*",
    ),
    # score_select_blocks
    Mutant(
        "the newest block may fall out",
        "src/engines/cpu/score_select_blocks/run.cpp",
        "if (candidate == all.count - 1 && all.has_newest()) best = kInfinity;",
        "",
        verify("score_select_blocks"),
    ),
    Mutant(
        "a block listed twice counts twice",
        "src/ops/score_select_blocks/check.cpp",
        "return std::unique(out, out + n) - out;",
        "return n;",
        "test_index ScoreSelectBlocks.OnlyListedKeysAreRead",
    ),
    Mutant(
        "blocks past the window are taken for blocks",
        "src/ops/score_select_blocks/check.cpp",
        "if (block >= 0 && block < blocks) out[n++]",
        "if (block >= 0 && block <= blocks) out[n++]",
        verify("score_select_blocks"),
    ),
    Mutant(
        "a slice leaves its first block out",
        "src/engines/cpu/score_select_blocks/run.cpp",
        "const int64_t begin = all.count * slice / plan_.slices, end =",
        "const int64_t begin = all.count * slice / plan_.slices + (slice > 0), end =",
        "test_index ScoreSelectBlocks.SlicesThreadsAndBudgetsChangeNoBit",
    ),
    Mutant(
        "a NaN hides the rest of its block",
        "src/engines/cpu/score_select_blocks/run.cpp",
        "if (logits[j] > best || std::isnan(best)) best = logits[j];",
        "if (logits[j] > best) best = logits[j];",
        verify("score_select_blocks"),
    ),
    # layers of DeepSeek-V4.1
    Mutant(
        "entries' index keys are rotated at their last token",
        "src/layers/hybrid.cpp",
        "        rotate(back, 1);",
        "        rotate(back, 0);",
        "test_layers Goldens.EveryCombinationPasses",
    ),
    Mutant(
        "index keys are made of rotated entries",
        "src/backends/step.cpp",
        "    run.tap(\"entries\", reshape_rows(rotated, {width}));",
        "    run.run<Stage::rope>({.first = int32_t(width - 2 * step.frequencies.shape[0]), .x = latents, "
        ".positions = batch.position, .frequencies = step.frequencies});",
        "test_layers Goldens.EveryCombinationPasses",
    ),
    Mutant(
        "a layer after the candidate source looks everywhere",
        "src/layers/hybrid.cpp",
        "else out.blocks = step.candidates;",
        "",
        "test_layers Goldens.EveryCombinationPasses",
    ),
    Mutant(
        "the entries of the first source serve all",
        "src/model/config.cpp",
        "return *std::prev(std::upper_bound(layers.begin(), layers.end(), layer));",
        "return layers.front() + 0 * layer;",
        "test_model Config.DeepseekV41",
    ),
    Mutant(
        "queries of V4.1 are normed per head",
        "src/layers/hybrid.cpp",
        "if (!config_.hybrid->sharing) norm(run, q, {});",
        "norm(run, q, {});",
        "test_layers Goldens.EveryCombinationPasses",
    ),
]
