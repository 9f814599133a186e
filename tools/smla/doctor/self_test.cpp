#include "self_test.h"

#include "engines/placed.h"
#include "engines/run.h"
#include "oracle.h"
#include "problems.h"

#include <limits>

namespace smla::cli {

namespace {

// Relative L2 errors against double.
// bf16 arithmetic rounds the softmax weights and the output: each at most 2^-8 of what it rounds.
constexpr double kBf16Limit = 2.0 / 256;
// f32: logits of about 50 x 2^-24 error each (D products of |logit| <= 50, errors growing with their root),
// an exponential of a few 1e-6, sums: 1e-5 in all, with room for other orders of summation.
constexpr double kF32Limit = 4e-5;
// Products of fp8 codes are exact in f32, sums of 128 and of 64 are not: steps of 2^-24, growing with the
// root.
constexpr double kScoreLimit = 2e-6;

struct Test {
    Stage stage;
    const char* problem;
    double limit;
    std::string (*run)(Context&, double* error);  // returns the name of the kernel
};

template <Stage S>
std::string run_on(Context& context, const ArgsOf<S>& args) {
    OwnedWorkspace workspace(context);
    const Placed<ArgsOf<S>> placed(context.device(), args);
    const size_t bytes = stage_workspace<S>(placed.args, context.env({}), 0);
    std::string kernel = run_stage<S>(placed.args, context.env(workspace.at_least(bytes)));
    context.device().wait(nullptr);
    placed.copy_back();
    return kernel;
}

std::string attend(Context& context, AttendShape shape, double* error) {
    shape.tokens = 2;
    Memory memory;
    Filler filler(memory, context.pool(), 11);
    smla_attend_args args = attend_args(shape);
    filler.fill(args);
    auto* rows = static_cast<int32_t*>(args.primary.rows.data);
    rows[0] = rows[17] = -1;  // masked entries, and a shorter second token
    rows[40] = INT32_MAX;
    static_cast<int32_t*>(args.primary.lengths.data)[1] = 33;
    std::string kernel = run_on<Stage::attend>(context, args);
    *error = std::max(attend_error(args, 0, shape.heads), attend_error(args, 1, shape.heads));
    return kernel;
}

AttendShape latent(smla_format format, smla_dtype dtype, int64_t width) {
    return {.heads = 16,
            .width = width,
            .primary = {.format = format, .listed = 200, .pool_rows = 640},
            .q = dtype,
            .out = dtype};
}

AttendShape two_caches(smla_format format, smla_dtype dtype) {
    AttendShape shape = latent(format, dtype, 512);
    shape.primary.listed = 128;
    shape.extra = {.format = format, .listed = 96, .pool_rows = 256, .page_tokens = 2};
    shape.sink = true;
    return shape;
}

std::string score(Context& context, const ScoreShape& shape, double* error) {
    Memory memory;
    Filler filler(memory, context.pool(), 12);
    smla_score_args args = score_args(shape);
    filler.fill(args);
    std::string kernel = run_on<Stage::score>(context, args);
    *error = 0;
    for (int64_t t = 0; t < shape.tokens; ++t)
        *error = std::max(*error, score_error(args, t, 0, shape.columns));
    return kernel;
}

std::string select(Context& context, double* error) {
    Memory memory;
    Filler filler(memory, context.pool(), 13);
    smla_select_args args = select_args({.tokens = 2, .columns = 9000, .topk = 512});
    filler.fill(args);
    auto* scores = static_cast<float*>(args.scores.data);
    for (int64_t j = 0; j < 9000; j += 2) scores[j] = 0;  // ties, as produced by relu
    std::string kernel = run_on<Stage::select>(context, args);
    *error = double(wrong_indices(args, 0) + wrong_indices(args, 1));
    return kernel;
}

std::string score_select(Context& context, double* error) {
    Memory memory;
    Filler filler(memory, context.pool(), 14);
    smla_score_select_args args = score_select_args({.tokens = 2, .columns = 1500}, 256);
    filler.fill(args);
    std::string kernel = run_on<Stage::score_select>(context, args);
    *error = std::max(selection_error(args, 0), selection_error(args, 1));
    return kernel;
}

std::string merge(Context& context, double* error) {
    Memory memory;
    Filler filler(memory, context.pool(), 15);
    smla_merge_args args = merge_args({.partials = 3, .tokens = 2, .heads = 16, .value_width = 512});
    filler.fill(args);
    static_cast<float*>(args.lse.data)[5] = -std::numeric_limits<float>::infinity();  // an empty part
    std::string kernel = run_on<Stage::merge>(context, args);
    *error = merge_error(args);
    return kernel;
}

std::string project(Context& context, double* error) {
    Memory memory;
    Filler filler(memory, context.pool(), 16);
    smla_project_args args{};
    args.struct_size = sizeof args;
    args.x = absent_data(SMLA_F32, {3, 2, 512});
    args.w = absent_data(SMLA_BF16, {2, 96, 512});
    args.out = absent_data(SMLA_F32, {3, 2, 96});
    for (Tensor* each : {&args.x, &args.w, &args.out}) filler.values(*each);
    std::string kernel = run_on<Stage::project>(context, args);
    *error = project_error(args);
    return kernel;
}

constexpr Test kTests[] = {
    {Stage::attend, "V3.2, fp8_656, bf16", kBf16Limit,
     [](Context& c, double* e) { return attend(c, latent(SMLA_FP8_656, SMLA_BF16, 576), e); }},
    {Stage::attend, "V3.2, fp8_656, f32", kF32Limit,
     [](Context& c, double* e) { return attend(c, latent(SMLA_FP8_656, SMLA_F32, 576), e); }},
    {Stage::attend, "V3.2, bf16_576, bf16", kBf16Limit,
     [](Context& c, double* e) { return attend(c, latent(SMLA_ROW_BF16, SMLA_BF16, 576), e); }},
    {Stage::attend, "V3.2, fp8_576, bf16", kBf16Limit,
     [](Context& c, double* e) { return attend(c, latent(SMLA_FP8_576, SMLA_BF16, 576), e); }},
    {Stage::attend, "NoPE, fp8_528, bf16", kBf16Limit,
     [](Context& c, double* e) { return attend(c, latent(SMLA_FP8_528, SMLA_BF16, 512), e); }},
    {Stage::attend, "V4, fp8_584, bf16, sink", kBf16Limit,
     [](Context& c, double* e) { return attend(c, two_caches(SMLA_FP8_584, SMLA_BF16), e); }},
    {Stage::attend, "V4, bf16_512, f32, sink", kF32Limit,
     [](Context& c, double* e) { return attend(c, two_caches(SMLA_ROW_BF16, SMLA_F32), e); }},
    {Stage::score, "index_fp8_132", kScoreLimit,
     [](Context& c, double* e) { return score(c, {.tokens = 2, .columns = 700}, e); }},
    {Stage::score, "index_mxfp4_68", kScoreLimit,
     [](Context& c, double* e) {
         return score(c, {.tokens = 2, .columns = 700, .q = SMLA_E2M1, .format = SMLA_INDEX_MXFP4_68}, e);
     }},
    {Stage::score, "row_f32", kScoreLimit,
     [](Context& c, double* e) {
         return score(c, {.tokens = 2, .columns = 300, .q = SMLA_F32, .format = SMLA_ROW_F32}, e);
     }},
    {Stage::select, "512 of 9000, ties", 0, select},
    {Stage::score_select, "256 of 1500, index_fp8_132", kScoreLimit, score_select},
    {Stage::merge, "3 partials, one empty", 1e-6, merge},  // a few f32 roundings of 2^-24
    {Stage::project, "bf16 weights", 1e-5, project},       // sums of 512 products in f32
};

}  // namespace

int self_test_count() { return int(sizeof kTests / sizeof kTests[0]); }

std::vector<SelfTestResult> self_test(Context& context,
                                      const std::function<void(const std::string&)>& progress) {
    std::vector<SelfTestResult> out;
    for (const Test& test : kTests) {
        SelfTestResult result{std::string(stage_name(test.stage)),     test.problem, "",
                              std::numeric_limits<double>::infinity(), test.limit,   ""};
        try {
            result.kernel = test.run(context, &result.error);
        } catch (const Error& error) {
            if (error.status == SMLA_OUT_OF_MEMORY) throw;
            result.failure = error.what();
            result.skipped =
                error.status == SMLA_UNSUPPORTED && !context.env({}).demanded[size_t(test.stage)].empty();
        }
        out.push_back(result);
        progress(result.stage);
    }
    return out;
}

}  // namespace smla::cli
