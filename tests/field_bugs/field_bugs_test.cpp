// Bugs of published sparse attention code, as tests; docs/field_bugs.md tells what each one is and where the
// others are.
#include "contract/attention.h"

#include <algorithm>
#include <cmath>

namespace contract {
namespace {

TEST(FieldBugs, T15_EveryHeadCount) {
    for (int64_t heads = 1; heads <= 130; ++heads) {
        Attention problem({.tokens = 1, .heads = heads, .rows = 3, .seed = uint32_t(heads)});
        problem.fill_listed();
        SCOPED_TRACE(heads);
        expect_truth(problem);
        if (testing::Test::HasFatalFailure()) return;
    }
}

TEST(FieldBugs, T22_PagesOfOtherLayersLieBetween) {
    for (const smla_format format : {SMLA_FP8_584, SMLA_FP8_512, SMLA_ROW_BF16}) {
        Attention problem({.width = 512, .format = format, .page_tokens = 64});
        smla_cache& cache = problem.with.primary.cache;
        // three more layers' pages in each stride: poison to this one
        cache.pages = 3;
        cache.page_stride_bytes *= 4;
        fill_int(problem.with.primary.rows,
                 [&](int64_t t, int64_t j) { return (37 * t + 11 * j) % (3 * 64); });
        problem.fill_listed();
        expect_truth(problem);
    }
}

TEST(FieldBugs, T25_FewerTokensThanTheBuffersHold) {
    Attention problem({.tokens = 9, .heads = 8, .rows = 70});
    problem.fill_listed();
    const smla_attend_args whole = problem.with;
    for (const Engine& engine : engines())
        for (const int64_t tokens : {0, 1, 5}) {
            const Context context(engine);
            problem.memory.reset();
            problem.slice_tokens(0, tokens);
            run_exactly(problem, context);
            EXPECT_TRUE(agrees(engine, problem.with, truth_of(problem.with)));
            problem.with = whole;
            for (int64_t t = tokens; t < 9; ++t)
                for (int64_t h = 0; h < 8; ++h) {
                    EXPECT_TRUE(std::isnan(get(whole.lse, t, h)) && std::isnan(get(whole.max_logits, t, h)));
                    for (int64_t d = 0; d < 512; ++d) ASSERT_TRUE(std::isnan(get(whole.out, t, h, d))) << t;
                }
        }
}

TEST(FieldBugs, T26_RowsAtAndPastTheCapacity) {
    Attention problem({.tokens = 1, .rows = 8});
    const smla_cache& cache = problem.with.primary.cache;
    const int64_t last = capacity(cache) - 1,
                  rows[] = {last, last + 1, last + 2, 1 << 28, INT32_MAX, -1, 0, last};
    for (int64_t j = 0; j < 8; ++j) problem.list(0, j, rows[j]);
    problem.fill_listed();
    expect_truth(problem);
    const Context context(engines().back());
    EXPECT_TRUE(refused(smla_check_stage(context, SMLA_STAGE_ATTEND, &problem.with), SMLA_DATA_ERROR,
                        "args.primary.rows[0,1]"));
    EXPECT_EQ(std::string(last_error().got), std::to_string(last + 1));
    for (int64_t j = 1; j < 5; ++j) problem.list(0, j, last);
    EXPECT_TRUE(succeeded(smla_check_stage(context, SMLA_STAGE_ATTEND, &problem.with)));
}

// Context parallel ranks hold every W-th token: what a token is comes from its arguments, not from its place.
TEST(FieldBugs, T27_EveryThirdTokenOfABatch) {
    constexpr int64_t tokens = 11, ranks = 3;
    for (const NamedMaker& maker : all_calls())
        for (const Engine* engine : {&engines().front(), &engines().back()}) {
            const std::unique_ptr<Call> batch = make(maker, tokens), strided = make(maker, tokens);
            if (batch->through_blas || !batch->has_tokens) continue;
            const Context context(*engine, {.threads = 3, .batch_invariant = 1});
            run_exactly(*batch, context);
            for (int64_t rank = 0; rank < ranks; ++rank) {
                std::vector<smla_tensor> whole;
                for (const TensorField& field : strided->tensors) whole.push_back(*field.tensor);
                strided->stride_tokens(rank, ranks);
                run_exactly(*strided, context);
                for (size_t i = 0; i < whole.size(); ++i) *strided->tensors[i].tensor = whole[i];
            }
            EXPECT_TRUE(strided->memory.image() == batch->memory.image())
                << maker.name << " on " << engine->name;
        }
}

TEST(FieldBugs, T42_ARowAloneAndInABatchOf32) {
    Attention problem({.tokens = 32, .heads = 8, .rows = 1100, .pages = 40, .seed = 42});
    problem.add_lengths();
    for (int64_t t = 0; t < 32; ++t) set_int(problem.with.primary.lengths, t, 0, 1100 - 31 * t);
    problem.fill_listed();
    const smla_attend_args whole = problem.with;
    for (const Engine& engine : engines()) {
        if (engine.engine == SMLA_ENGINE_REFERENCE) continue;
        const Context context(engine, {.threads = 2, .batch_invariant = 1});
        problem.memory.reset();
        run_exactly(problem, context);
        const std::vector<uint8_t> together = problem.memory.image();
        problem.memory.reset();
        for (int64_t t = 0; t < 32; ++t) {
            problem.slice_tokens(t, t + 1);
            run_exactly(problem, context);
            problem.with = whole;
        }
        EXPECT_TRUE(problem.memory.image() == together) << engine.name;
    }
}

// The k best by score, ties to the lowest column, as columns ascending.
std::vector<int64_t> best_columns(const std::vector<double>& scores, size_t k) {
    std::vector<int64_t> order(scores.size());
    for (size_t j = 0; j < order.size(); ++j) order[j] = int64_t(j);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
        const double x = scores[size_t(a)], y = scores[size_t(b)];
        if (std::isnan(x) || std::isnan(y)) return !std::isnan(x) && std::isnan(y);
        return x > y;
    });
    order.resize(std::min(k, order.size()));
    std::sort(order.begin(), order.end());
    return order;
}

TEST(FieldBugs, T46_ThousandsOfEqualScores) {
    constexpr int64_t columns = 20000, k = 2048;
    CallOf<smla_select_args> call("select", SMLA_STAGE_SELECT, smla_select);
    smla_select_args& a = call.with;
    call.add(a.scores, SMLA_F32, {5, columns});
    call.add(a.indices, SMLA_I32, {5, k});
    call.add(a.counts, SMLA_I32, {5});
    std::vector<std::vector<double>> rows(5, std::vector<double>(columns));
    for (int64_t j = 0; j < columns; ++j) {
        rows[0][size_t(j)] = 1.5;                                    // all equal
        rows[1][size_t(j)] = j % 3 == 0 ? 0.25 : -1;                 // 6667 winners for 2048 places
        rows[2][size_t(j)] = double(j % 5000 < 4500) - (j == 77);    // two crowds
        rows[3][size_t(j)] = 1 + double(j * 7919 % columns) * 1e-7;  // few bits apart
        rows[4][size_t(j)] = j % 7 == 3 ? NAN : j % 2 ? 0. : -0.;    // -0 = +0, NaN last
    }
    for (int64_t t = 0; t < 5; ++t)
        for (int64_t j = 0; j < columns; ++j) {
            set(a.scores, t, j, 0, rows[size_t(t)][size_t(j)]);
            rows[size_t(t)][size_t(j)] = get(a.scores, t, j);  // as stored
        }
    call.memory.remember();
    for (const Engine& engine : engines()) {
        const Context context(engine);
        call.memory.reset();
        run_exactly(call, context);
        for (int64_t t = 0; t < 5; ++t) {
            const std::vector<int64_t> want = best_columns(rows[size_t(t)], k);
            ASSERT_EQ(get_int(a.counts, t), k);
            for (int64_t i = 0; i < k; ++i)
                ASSERT_EQ(get_int(a.indices, t, i), want[size_t(i)]) << engine.name << " " << t;
        }
    }
}

TEST(FieldBugs, T46_ARowAsWideAsAMillion) {
    constexpr int64_t columns = 1 << 20, k = 2048;
    CallOf<smla_select_args> call("select", SMLA_STAGE_SELECT, smla_select);
    smla_select_args& a = call.with;
    call.add_normal(a.scores, SMLA_BF16, {1, columns});  // many ties
    call.add(a.indices, SMLA_I32, {1, k});
    std::vector<double> scores;
    for (int64_t j = 0; j < columns; ++j) scores.push_back(get(a.scores, 0, j));
    const std::vector<int64_t> want = best_columns(scores, k);
    const Context context(engines().back());
    run_exactly(call, context);
    for (int64_t i = 0; i < k; ++i) ASSERT_EQ(get_int(a.indices, 0, i), want[size_t(i)]) << i;
}

// What an output of the indexer holds for a token without columns.
void expect_empty(const std::string& name, const smla_tensor& tensor, int64_t t, bool filled) {
    const auto is = [&](const char* last) { return name.substr(name.rfind('.') + 1) == last; };
    if (is("counts")) {
        EXPECT_EQ(get_int(tensor, t), 0);
    }
    for (int64_t j = 0; tensor.ndim == 2 && j < tensor.shape[1]; ++j) {
        if (is("logits") && filled) {
            ASSERT_EQ(get(tensor, t, j), -INFINITY);
        } else if (is("logits")) {
            ASSERT_TRUE(std::isnan(get(tensor, t, j))) << "untouched";
        } else if (is("indices")) {
            ASSERT_EQ(get_int(tensor, t, j), -1);
        }
    }
}

TEST(FieldBugs, T47_RowsOfNoColumnsAmongOthers) {
    for (const NamedMaker& maker : index_calls()) {
        const std::unique_ptr<Call> call = make(maker, 6);
        if (call->stage == SMLA_STAGE_QUANT_INDEX_Q) continue;
        for (const TensorField& field : call->tensors)
            if (field.name == "args.ends" || field.name == "args.score.ends")
                fill_int(*field.tensor, [](int64_t t, int64_t) { return t == 3 ? 50 : 0; });
        call->memory.remember();
        const bool fills = call->name == "score_paged" || call->name == "score_e2m1";
        for (const Engine& engine : engines()) {
            SCOPED_TRACE(std::string(maker.name) + " on " + engine.name);
            const Context context(engine);
            call->memory.reset();
            run_exactly(*call, context);
            for (const TensorField& field : call->tensors)
                for (int64_t t = 0; t < 6; ++t)
                    if (t != 3) expect_empty(field.name, *field.tensor, t, fills);
        }
    }
}

}  // namespace
}  // namespace contract
