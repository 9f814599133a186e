// The tables of the smaller stages: names, refusals in words, scratch.
#include "formats/format.h"
#include "support.h"

#include <gtest/gtest.h>

#include <cstring>

namespace smla {
namespace {

template <Stage S>
const Candidate<ArgsOf<S>>& generic() {
    const auto table = cuda_candidates<S>();
    EXPECT_FALSE(table.empty());
    for (const auto& candidate : table)
        EXPECT_EQ(std::string(candidate.name).rfind("cuda_", 0), 0u) << candidate.name;
    return table.back();
}

template <Stage S>
void takes(const ArgsOf<S>& args) {
    FactsOnly device;
    const Env env = facts_env(device);
    EXPECT_EQ(generic<S>().refuse(args, env), "") << stage_name(S);
    EXPECT_EQ(generic<S>().workspace(args, env, 0), kWorkspaceHeader) << stage_name(S);
}
template <Stage S>
void refuses(const ArgsOf<S>& args, const char* why) {
    FactsOnly device;
    EXPECT_EQ(generic<S>().refuse(args, facts_env(device)), why) << stage_name(S);
}
constexpr char kF64[] = "f64 tensors are not supported on a GPU";

smla_cache cache_of(smla_format format, int32_t width) {
    smla_cache cache{};
    cache.format = format;
    cache.width = width;
    cache.page_tokens = 64;
    cache.pages = 4;
    return cache;
}

TEST(CudaTables, Norm) {
    smla_norm_args args{};
    args.x = args.out = shaped(SMLA_BF16, {3, 2, 70000});
    takes<Stage::norm>(args);
    args.weight = shaped(SMLA_F64, {70000});
    refuses<Stage::norm>(args, kF64);
}

// A table of candidates names whole blocks of pages, and cuda_mma_score alone reads it.
TEST(CudaTables, CandidateBlocksOfATable) {
    const auto& streamed = cuda_candidates<Stage::score_select_blocks>().front();
    ASSERT_STREQ(streamed.name, "cuda_streamed_score_select_blocks");
    FactsOnly device;
    Env env = facts_env(device);
    smla_score_select_blocks_args args{};
    args.columns = 256;
    args.block_size = 8;
    args.q = shaped(SMLA_E4M3, {3, 32, 128});
    args.w = shaped(SMLA_F32, {3, 32});
    args.keys = cache_of(SMLA_INDEX_FP8_132, 128);
    args.keys.page_rows = 64;
    args.ends = shaped(SMLA_I32, {3});
    args.blocks = shaped(SMLA_I32, {3, 5});
    args.indices = shaped(SMLA_I32, {3, 4});
    EXPECT_EQ(streamed.refuse(args, env), "");
    env.demanded[size_t(Stage::score)] = "cuda_generic_score";
    EXPECT_EQ(streamed.refuse(args, env),
              "args.blocks requires cuda_mma_score, which the context does not allow");
    smla_score_select_blocks_args all = args;
    all.blocks = {};
    EXPECT_EQ(streamed.refuse(all, env), "") << "score does what was demanded of it";
    all.q = shaped(SMLA_BF16, {3, 32, 128});
    env.demanded[size_t(Stage::score)] = "cuda_sm90_score";
    EXPECT_EQ(streamed.refuse(all, env),
              "the score kernel that the context allows does not support these arguments");
    env.demanded[size_t(Stage::score)] = "cuda_mma_score";
    EXPECT_EQ(streamed.refuse(args, env), "");
    args.block_size = 24;
    EXPECT_EQ(streamed.refuse(args, env), "pages of 64 tokens are not divisible into blocks of 24");
    args.block_size = 8;
    args.keys.pages = INT32_MAX / 8 + 1;
    EXPECT_NE(streamed.refuse(args, env).find("pages exceed the limit of the block table"),
              std::string::npos);
    args.starts = shaped(SMLA_I32, {3});
    EXPECT_EQ(streamed.refuse(args, env), "args.starts is not supported");
}

TEST(CudaTables, RopeFrequenciesAreF64AndNoReasonToRefuse) {
    smla_rope_args args{};
    args.x = shaped(SMLA_F32, {3, 128, 192});
    args.positions = shaped(SMLA_I64, {3});
    args.frequencies = shaped(SMLA_F64, {32});
    takes<Stage::rope>(args);
    takes<Stage::inverse_rope>(args);
    args.out = shaped(SMLA_F64, {3, 128, 192});
    refuses<Stage::rope>(args, kF64);
    args.frequencies = shaped(SMLA_F64, {4097});
    refuses<Stage::rope>(args, "4097 rotated pairs exceed the limit of 4096");
}

TEST(CudaTables, QuantIndexQ) {
    smla_quant_index_q_args args{};
    args.q = shaped(SMLA_BF16, {3, 64, 1024});
    args.w = shaped(SMLA_F32, {3, 64});
    args.q_out = shaped(SMLA_E4M3, {3, 64, 1024});
    args.w_out = shaped(SMLA_F32, {3, 64});
    takes<Stage::quant_index_q>(args);
    args.q = shaped(SMLA_BF16, {3, 64, 1025});
    refuses<Stage::quant_index_q>(args, "rows of 1025 values are wider than the limit of 1024");
}

TEST(CudaTables, CachesOfF64AreForTheReference) {
    smla_write_args write{};
    write.head = shaped(SMLA_F32, {3, 576});
    write.slots = shaped(SMLA_I64, {3});
    write.cache = cache_of(SMLA_FP8_656, 0);
    takes<Stage::write_kv>(write);
    takes<Stage::write_index>(write);
    write.cache = cache_of(SMLA_ROW_F64, 576);
    refuses<Stage::write_kv>(write, kF64);

    smla_save_state_args save{};
    save.kv = save.score = shaped(SMLA_F32, {3, 512});
    save.state = cache_of(SMLA_STATE_F32, 1024);
    takes<Stage::save_state>(save);
    save.state.format = SMLA_STATE_F64;
    refuses<Stage::save_state>(save, kF64);

    smla_compress_args compress{};
    compress.state = cache_of(SMLA_STATE_F32, 1024);
    compress.cache = cache_of(SMLA_FP8_584, 0);
    compress.frequencies = shaped(SMLA_F64, {32});
    takes<Stage::compress>(compress);
    compress.norm_weight = shaped(SMLA_F64, {512});
    refuses<Stage::compress>(compress, kF64);

    smla_gather_args gather{};
    gather.cache = cache_of(SMLA_INDEX_MXFP4_68, 0);
    gather.out = shaped(SMLA_F16, {10, 128});
    takes<Stage::gather>(gather);
    gather.out.dtype = SMLA_F64;
    refuses<Stage::gather>(gather, kF64);
}

TEST(CudaTables, ScoreOnHopperSaysWhatItDoesNotTake) {
    if (!has_code_for(90)) GTEST_SKIP() << "this build has no code for sm_90a";
    const auto& kernel = cuda_candidates<Stage::score>()[1];
    ASSERT_STREQ(kernel.name, "cuda_sm90_score");
    FactsOnly device;
    const Env env = facts_env(device);
    smla_score_args good{};
    good.q = shaped(SMLA_E4M3, {3, 64, 128});
    good.w = shaped(SMLA_F32, {3, 64});
    good.keys = cache_of(SMLA_INDEX_FP8_132, 0);
    good.ends = shaped(SMLA_I32, {3});
    good.logits = shaped(SMLA_F32, {3, 200});
    EXPECT_EQ(kernel.refuse(good, env), "");
    smla_score_args args = good;
    args.q.dtype = SMLA_BF16;
    EXPECT_EQ(kernel.refuse(args, env), "these keys require q in e4m3, got bf16");
    args = good;
    args.keys = cache_of(SMLA_ROW_BF16, 128);
    EXPECT_EQ(kernel.refuse(args, env), "keys must be index_fp8_132 or index_mxfp4_68, got row_bf16");
    args = good;
    args.keys = cache_of(SMLA_INDEX_MXFP4_68, 0);
    EXPECT_EQ(kernel.refuse(args, env), "these keys require q in e2m1, got e4m3");
    args.q = shaped(SMLA_E2M1, {3, 64, 128});
    EXPECT_EQ(kernel.refuse(args, env), "");
    args.q = shaped(SMLA_E2M1, {3, 48, 128});
    EXPECT_EQ(kernel.refuse(args, env), "mxfp4 keys require 32 or 64 heads, got 48");
    args = good;
    args.q = shaped(SMLA_E4M3, {3, 65, 128});
    EXPECT_EQ(kernel.refuse(args, env), "65 heads exceed the limit of 64");
    args = good;
    args.q.stride_elems[1] = 136;
    EXPECT_EQ(kernel.refuse(args, env), "rows of q must be aligned to 16 bytes");
    args = good;
    args.keys.page_tokens = 5;
    EXPECT_EQ(kernel.refuse(args, env), "pages of keys must be aligned to 16 bytes");
}

TEST(CudaTables, ScoreOverPagesOnHopperSaysWhatItDoesNotTake) {
    if (!has_code_for(90)) GTEST_SKIP() << "this build has no code for sm_90a";
    const auto& kernel = cuda_candidates<Stage::score>()[0];
    ASSERT_STREQ(kernel.name, "cuda_sm90_pages_score");
    FactsOnly device;
    Env env = facts_env(device);
    smla_score_args good{};
    good.q = shaped(SMLA_E4M3, {6, 64, 128});
    good.w = shaped(SMLA_F32, {6, 64});
    good.keys = cache_of(SMLA_INDEX_FP8_132, 0);
    good.block_table = shaped(SMLA_I32, {3, 4});
    good.request_of_token = shaped(SMLA_I32, {6});
    good.ends = shaped(SMLA_I32, {6});
    good.logits = shaped(SMLA_F32, {6, 200});
    good.precision = SMLA_PRECISION_ROUNDED;
    const auto refusal = [&](auto change) {
        smla_score_args args = good;
        change(args);
        return kernel.refuse(args, env);
    };
    const auto rows_of_each = [](int rows) {
        return text("16-bit products limit the rows per request to 1, got ", rows);
    };
    using Args = smla_score_args;
    EXPECT_EQ(refusal([](Args&) {}), "");
    EXPECT_EQ(refusal([](Args& a) { a.precision = SMLA_PRECISION_EXACT; }), rows_of_each(2));
    EXPECT_EQ(refusal([](Args& a) { a.block_table.shape[0] = 2; }), "");
    EXPECT_EQ(refusal([](Args& a) { a.precision = SMLA_PRECISION_EXACT, a.block_table.shape[0] = 6; }), "");
    EXPECT_EQ(refusal([](Args& a) { a.block_table = {}, a.precision = SMLA_PRECISION_EXACT; }),
              rows_of_each(6));
    const auto many = [](Args& a) {
        a.q = shaped(SMLA_E4M3, {2050, 64, 128});
        a.w = shaped(SMLA_F32, {2050, 64});
    };
    EXPECT_EQ(refusal(many), "");
    const auto no_table = [&](Args& a) { many(a), a.block_table = {}; };
    EXPECT_EQ(refusal(no_table), "");
    EXPECT_EQ(refusal([&](Args& a) { no_table(a), a.keys.page_rows = 65; }),
              "without a block table, pages must be contiguous");
    EXPECT_EQ(refusal([&](Args& a) { no_table(a), a.keys.page_tokens = 96; }),
              "the page size must be a power of two of at least 64 tokens, got 96");
    EXPECT_EQ(refusal([&](Args& a) { no_table(a), a.keys.page_tokens = 96, a.keys.pages = 1; }), "");
    EXPECT_EQ(refusal([](Args& a) {
                  a.q = shaped(SMLA_E4M3, {6, 16, 128});
              }),
              "it requires 20 to 64 heads in steps of 4, got 16");
    EXPECT_EQ(refusal([](Args& a) {
                  a.q = shaped(SMLA_E4M3, {6, 33, 128});
              }),
              "it requires 20 to 64 heads in steps of 4, got 33");
    EXPECT_EQ(refusal([](Args& a) { a.keys.page_tokens = 192; }),
              "the page size must be a power of two of at least 64 tokens, got 192");
    const std::string order = "tokens and heads of q must not overlap or be reordered";
    EXPECT_EQ(refusal([](Args& a) { a.q.stride_elems[0] = 0; }), order);   // tokens repeat
    EXPECT_EQ(refusal([](Args& a) { a.q.stride_elems[1] = 0; }), order);   // heads repeat
    EXPECT_EQ(refusal([](Args& a) { a.q.stride_elems[1] = 64; }), order);  // heads overlap
    EXPECT_EQ(refusal([](Args& a) { a.q.stride_elems[0] = 128, a.q.stride_elems[1] = 6 * 128; }), order);
    EXPECT_EQ(refusal([](Args& a) { a.q.shape[0] = 1, a.q.stride_elems[0] = 0; }), "");
    EXPECT_EQ(refusal([](Args& a) { a.keys.pages = 0; }), "the cache has no pages");
    EXPECT_EQ(refusal([](Args& a) { a.w.stride_elems[0] = 66; }), "rows of w must be aligned to 16 bytes");
    EXPECT_EQ(refusal([](Args& a) {
                  a.keys = cache_of(SMLA_INDEX_MXFP4_68, 0);
                  a.q = shaped(SMLA_E2M1, {6, 64, 128});
              }),
              rows_of_each(2));
    EXPECT_EQ(refusal([](Args& a) {
                  a.keys = cache_of(SMLA_INDEX_MXFP4_68, 0);
                  a.q = shaped(SMLA_E2M1, {6, 64, 128});
                  a.block_table.shape[0] = 6;
              }),
              "");
    env.batch_invariant = true;
    EXPECT_EQ(refusal([](Args&) {}),
              "batch-invariant mode uses cuda_sm90_score, whose summation order is different");
}

// Why the mma kernel for keys of 512 refuses a call of these caches; an extra one may be missing.
std::string refusal_of_mma(const smla_cache& primary, const smla_cache& extra) {
    FactsOnly device;
    smla_attend_args args{};
    args.q = shaped(SMLA_BF16, {3, 64, 512});
    args.out = shaped(SMLA_BF16, {3, 64, 512});
    args.primary.cache = primary, args.extra.cache = extra;
    args.primary.rows = shaped(SMLA_I32, {3, 128});
    if (extra.format) args.extra.rows = shaped(SMLA_I32, {3, 512});
    for (const auto& candidate : cuda_candidates<Stage::attend>())
        if (std::strcmp(candidate.name, "cuda_mma_attend") == 0)
            return candidate.refuse(args, facts_env(device));
    return "no such kernel";
}

TEST(CudaTables, MmaTakesRecordsOfV41BesideEachOther) {
    constexpr smla_format kV41[] = {SMLA_FP8_528_G32, SMLA_FP8_528_G32_SPLIT, SMLA_NVFP4_288,
                                    SMLA_NVFP4_288_SPLIT};
    for (const smla_format primary : kV41) {
        EXPECT_EQ(refusal_of_mma(cache_of(primary, 0), {}), "");
        for (const smla_format extra : kV41)
            EXPECT_EQ(refusal_of_mma(cache_of(primary, 0), cache_of(extra, 0)), "");
        for (const smla_format other : {SMLA_ROW_BF16, SMLA_FP8_584, SMLA_FP8_528})
            EXPECT_EQ(refusal_of_mma(cache_of(primary, 0), cache_of(other, other == SMLA_ROW_BF16 ? 512 : 0)),
                      text("caches of ", find_format(primary)->name, " and ", find_format(other)->name,
                           " cannot be combined"));
        smla_cache odd = cache_of(primary, 0);
        odd.page_stride_bytes = 64 * 528 + 8;
        EXPECT_EQ(refusal_of_mma(odd, {}), "primary pages and rows must be aligned to 16 bytes");
    }
}

TEST(CudaTables, BytesAndIntegersAreNeverRefused) {
    smla_copy_pages_args copy{};
    copy.source = copy.target = cache_of(SMLA_ROW_F64, 7);
    takes<Stage::copy_pages>(copy);
    takes<Stage::map>({});
}

}  // namespace
}  // namespace smla
