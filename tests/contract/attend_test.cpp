// Lines 1 to 4, and what lines 5 and 6 say of attention.
#include "attention.h"

#include <cmath>
#include <numbers>

namespace contract {
namespace {

constexpr int64_t kTile = 64;  // rows that a kernel is likely to take at once

CONTRACT_TEST(L1a_OneSoftmaxOverBothListsInEveryTypeAndFormat) {
    const std::vector<smla_format> k576 = {SMLA_ROW_BF16, SMLA_ROW_F32, SMLA_FP8_656, SMLA_FP8_576,
                                           SMLA_NVFP4_352};
    const std::vector<smla_format> k512 = {
        SMLA_ROW_BF16,    SMLA_ROW_F32,           SMLA_FP8_584,   SMLA_FP8_512,         SMLA_FP8_528,
        SMLA_FP8_528_G32, SMLA_FP8_528_G32_SPLIT, SMLA_NVFP4_288, SMLA_NVFP4_288_SPLIT, SMLA_NVFP4_384};
    const std::pair<smla_dtype, smla_dtype> types[] = {
        {SMLA_F32, SMLA_F16}, {SMLA_BF16, SMLA_BF16}, {SMLA_F16, SMLA_F32}, {SMLA_E4M3, SMLA_BF16}};
    uint32_t seed = 1;
    for (const int64_t width : {576, 512})
        for (const smla_format format : width == 576 ? k576 : k512) {
            const auto& [q, out] = types[seed % 4];
            Shape shape{.width = width, .format = format, .q = q, .out = out, .seed = seed++};
            if (width == 512) shape.extra_format = k512[seed % k512.size()], shape.extra_rows = 21;
            Attention problem(shape);
            problem.fill_listed();
            SCOPED_TRACE(format);
            expect_truth(problem);
        }
}

CONTRACT_TEST(L1b_DoubleIsDoubleThroughout) {
    for (const auto& [width, values] : {std::pair{100, 90}, {576, 512}, {512, 512}}) {
        Attention problem(
            {.width = width, .value_width = values, .format = SMLA_ROW_F64, .q = SMLA_F64, .out = SMLA_F64});
        problem.fill_listed();
        expect_truth(problem);
        for (const Engine& engine : engines()) {  // and whoever cannot do that says so
            const Context context(engine);
            const Scratch scratch(context, problem.workspace(context));
            EXPECT_EQ(problem.run(context, scratch.get()),
                      engine.engine == SMLA_ENGINE_CUDA ? SMLA_UNSUPPORTED : SMLA_OK);
        }
    }
}

CONTRACT_TEST(L1c_DevicePointersOverrideHostScales) {
    Attention problem({.width = 512, .format = SMLA_FP8_512, .q = SMLA_E4M3, .out = SMLA_BF16});
    problem.fill_listed();
    smla_attend_args& a = problem.with;
    const float softmax = float(a.softmax_scale), q = 0.25f, kv = 0.03f;
    for (const Engine& engine : engines()) {
        const Context context(engine);
        a.softmax_scale = double(softmax), a.q_scale = double(q), a.primary.cache.scale = kv;
        a.softmax_scale_device = a.q_scale_device = a.primary.cache.scale_device = nullptr;
        problem.memory.reset();
        run_exactly(problem, context);
        const std::vector<uint8_t> host = problem.memory.image();
        a.softmax_scale = a.q_scale = 0, a.primary.cache.scale = 0;
        a.softmax_scale_device = &softmax, a.q_scale_device = &q, a.primary.cache.scale_device = &kv;
        problem.memory.reset();
        run_exactly(problem, context);
        EXPECT_TRUE(problem.memory.image() == host) << engine.name;
    }
}

CONTRACT_TEST(L1d_AScaleThatIsMissingIsAnError) {
    Attention problem({.width = 512, .format = SMLA_FP8_512, .q = SMLA_E4M3, .out = SMLA_BF16});
    problem.fill_listed();
    smla_attend_args& a = problem.with;
    const Context context(engines().back());
    const Scratch scratch(context, problem.workspace(context));
    const double good_softmax = a.softmax_scale, good_q = a.q_scale;
    const float good_kv = a.primary.cache.scale;
    for (const double bad : {0., -1., double(NAN), double(INFINITY), 1e39, 1e-46}) {  // the last two: in f32
        a.softmax_scale = bad;
        EXPECT_TRUE(
            refused(problem.run(context, scratch.get()), SMLA_INVALID_ARGUMENT, "args.softmax_scale"));
        a.softmax_scale = good_softmax;
        a.q_scale = bad;
        EXPECT_TRUE(refused(problem.run(context, scratch.get()), SMLA_INVALID_ARGUMENT, "args.q_scale"));
        a.q_scale = good_q;
        a.primary.cache.scale = float(bad);
        EXPECT_TRUE(
            refused(problem.run(context, scratch.get()), SMLA_INVALID_ARGUMENT, "args.primary.cache.scale"));
        a.primary.cache.scale = good_kv;
    }
    // Times log2 e, or together, they are infinite in f32.
    for (const auto& [softmax, q] : {std::pair{3e38, 1.}, {1e30, 1e10}}) {
        a.softmax_scale = softmax, a.q_scale = q;
        EXPECT_TRUE(
            refused(problem.run(context, scratch.get()), SMLA_INVALID_ARGUMENT, "args.softmax_scale"));
    }
    EXPECT_TRUE(problem.memory.nothing_changed());
}

CONTRACT_TEST(L1h_AScaleThatNothingWouldReadIsAnError) {
    Attention problem({.width = 512, .format = SMLA_FP8_528});
    problem.fill_listed();
    smla_attend_args& a = problem.with;
    const Context context(engines().back());
    const Scratch scratch(context, problem.workspace(context));
    for (const double bad : {0.5, -1., double(NAN)}) {
        a.q_scale = bad;
        EXPECT_TRUE(refused(problem.run(context, scratch.get()), SMLA_INVALID_ARGUMENT, "args.q_scale"));
        a.q_scale = 1, a.primary.cache.scale = float(bad);
        EXPECT_TRUE(
            refused(problem.run(context, scratch.get()), SMLA_INVALID_ARGUMENT, "args.primary.cache.scale"));
        a.primary.cache.scale = 1;
    }
    EXPECT_TRUE(problem.memory.nothing_changed());
    EXPECT_EQ(problem.run(context, scratch.get()), SMLA_OK) << smla_last_error();  // scales of 1 say nothing
}

CONTRACT_TEST(L1e_ExactAndRoundedKeys) {
    for (const smla_precision precision :
         {SMLA_PRECISION_DEFAULT, SMLA_PRECISION_EXACT, SMLA_PRECISION_ROUNDED})
        for (const smla_format format : {SMLA_FP8_528, SMLA_FP8_512}) {
            Attention problem({.width = 512, .format = format});
            problem.with.precision = precision;
            problem.fill_listed();
            if (format == SMLA_FP8_528)  // scales that are no power of two: the two precisions differ
                for (int64_t row = 0; row < capacity(problem.with.primary.cache); ++row) {
                    char* page = static_cast<char*>(problem.with.primary.cache.data) +
                                 row / 8 * problem.with.primary.cache.page_stride_bytes;
                    for (int tile = 0; tile < 4; ++tile) {
                        float scale;
                        char* at = page + row % 8 * 528 + 512 + 4 * tile;
                        std::memcpy(&scale, at, 4);
                        scale *= 1.2345f;
                        std::memcpy(at, &scale, 4);
                    }
                }
            problem.memory.remember();
            expect_truth(problem);
        }
}

// Where holes stand: the first whole tile, the middle one, the last, everywhere but one place, scattered.
bool hole_at(int pattern, int64_t j, int64_t rows) {
    switch (pattern) {
        case 0: return j < kTile;
        case 1: return j >= kTile && j < 2 * kTile;
        case 2: return j >= rows - kTile;
        case 3: return j != rows / 2;
        default: return (j * 2654435761u >> 7) % 3 == 0;
    }
}

CONTRACT_TEST(L2a_HolesAreSkippedWhereverTheyStand) {
    constexpr int64_t rows = 3 * kTile + 5;
    for (int pattern = 0; pattern < 5; ++pattern) {
        Attention problem({.tokens = 3, .heads = 3, .rows = rows, .page_rows = 11});
        const int64_t last = capacity(problem.with.primary.cache);
        const int64_t holes[] = {
            -1, INT32_MIN, last, last + 1, 2147480000, INT32_MAX, 8 /* in the gap between two pages */, -2};
        for (int64_t t = 0; t < 3; ++t)
            for (int64_t j = 0; j < rows; ++j)
                if (hole_at(pattern, j, rows)) problem.list(t, j, holes[(t + j) % 8]);
        problem.fill_listed();
        SCOPED_TRACE(pattern);
        expect_truth(problem);
    }
}

CONTRACT_TEST(L2b_NothingPastALengthIsRead) {
    Attention problem({.tokens = 6, .heads = 3, .rows = 70, .extra_rows = 9, .extra_format = SMLA_FP8_656});
    for (const bool extra : {false, true}) {
        problem.add_lengths(extra);
        const smla_attend_source& source = problem.source(extra);
        const int64_t rows = source.rows.shape[1], lengths[] = {0, 1, rows, rows + 1, INT32_MAX, INT32_MIN};
        for (int64_t t = 0; t < 6; ++t) {
            set_int(source.lengths, t, 0, lengths[extra ? 5 - t : t]);
            // what stands past a short length looks valid, and names a row of NaN
            const int64_t poison = capacity(source.cache) - 1;
            for (int64_t j = 0; j < rows; ++j)
                if (j >= get_int(source.lengths, t) || get_int(source.rows, t, j) == poison)
                    set_int(source.rows, t, j, j >= get_int(source.lengths, t) ? poison : 0);
        }
    }
    problem.fill_listed();
    expect_truth(problem);
}

CONTRACT_TEST(L2c_DuplicatesCountAsOftenAsListed) {
    Attention problem({.rows = 9});
    const int32_t a = 3, b = 17;
    for (int64_t t = 0; t < 2; ++t)
        for (int64_t j = 0; j < 9; ++j) problem.list(t, j, j < 7 ? a : b);
    problem.fill_listed();
    expect_truth(problem);
}

CONTRACT_TEST(L3a_NoValidKeysGiveZeroAndMinusInfinityWithAnySink) {
    for (const bool sink : {false, true})
        for (const double value : {0., 1e4, -1e4, double(INFINITY), -double(INFINITY)})
            for (int kind = 0; kind < 4; ++kind) {  // no columns, holes only, lengths of zero, an empty cache
                Attention problem({.rows = kind == 0 ? 0 : 70,
                                   .extra_rows = 3,
                                   .extra_format = SMLA_FP8_656,
                                   .pages = kind == 3 ? 0 : 4});
                if (sink) problem.add_sink(value);
                if (kind == 2) problem.add_lengths(), problem.add_lengths(true);
                for (int64_t t = 0; t < 2; ++t)
                    for (int64_t j = 0; j < 70; ++j) {
                        if (kind == 1) problem.list(t, j, j % 2 ? -1 : 1 << 20);
                        if (kind < 2 && j < 3) problem.list(t, j, -1, true);
                        if (kind == 2) set_int(problem.source(j % 2).lengths, t, 0, 0);
                    }
                problem.fill_listed();
                SCOPED_TRACE(testing::Message() << "kind " << kind << " sink " << sink << " " << value);
                expect_truth(problem);
                EXPECT_EQ(get(problem.with.out, 1, 1, 1), 0);
                EXPECT_EQ(get(problem.with.lse, 1, 1), -INFINITY);
                EXPECT_EQ(get(problem.with.max_logits, 1, 1), -INFINITY);
            }
}

CONTRACT_TEST(L3c_TheLseOfATokenWithoutValidRowsIsTheCallers) {
    for (const smla_lse_base base : {SMLA_LSE_LN, SMLA_LSE_LOG2})
        for (const int64_t rows : {1, 70, 1500}) {  // splits, too
            Attention problem({.tokens = 3, .rows = rows});
            problem.with.empty_lse = SMLA_EMPTY_LSE_PLUS_INF;
            problem.with.lse_base = base;
            problem.add_sink(0.5);
            for (int64_t j = 0; j < rows; ++j) problem.list(1, j, -1);
            problem.fill_listed();
            SCOPED_TRACE(testing::Message() << rows << " rows, base " << base);
            expect_truth(problem);
            EXPECT_EQ(get(problem.with.lse, 1, 1), INFINITY);
            EXPECT_EQ(get(problem.with.max_logits, 1, 1), -INFINITY);
        }
}

CONTRACT_TEST(L3b_SinksJoinTheDenominatorAndNothingElse) {
    for (const double sink : {-double(INFINITY), -1e4, -2., 0., 3., 30., 1e4, double(INFINITY)}) {
        Attention problem({.rows = 70});
        problem.add_sink(sink);
        problem.fill_listed();
        SCOPED_TRACE(sink);
        expect_truth(problem);  // its lse knows no sink
        if (sink == INFINITY) {
            EXPECT_EQ(get(problem.with.out, 1, 1, 1), 0);
        }
    }
}

CONTRACT_TEST(L4a_LseIsNaturalOrBaseTwoAndMaxLogitsAreNatural) {
    for (const smla_lse_base base : {SMLA_LSE_LN, SMLA_LSE_LOG2}) {
        Attention problem({});
        problem.with.lse_base = base;
        problem.fill_listed();
        expect_truth(problem);
    }
    Attention problem({});  // both are optional
    problem.with.lse = problem.with.max_logits = {};
    problem.fill_listed();
    expect_truth(problem);
}

struct MergeOf {
    MergeOf(Attention& whole, int64_t parts) : call("merge", SMLA_STAGE_MERGE, smla_merge) {
        const smla_attend_args& a = whole.with;
        const int64_t t = a.q.shape[0], h = a.q.shape[1], d = a.out.shape[2];
        call.with.lse_base = a.lse_base;
        call.add(call.with.partials, SMLA_F32, {parts, t, h, d});
        call.add(call.with.lse, SMLA_F32, {parts, t, h});
        call.with.sink = a.sink;
        call.add(call.with.out, SMLA_F32, {t, h, d});
        call.add(call.with.lse_out, SMLA_F32, {t, h});
    }
    smla_tensor part(const smla_tensor& of, int64_t i) const {
        smla_tensor out = of;
        out.data = static_cast<float*>(of.data) + i * of.stride_elems[0];
        --out.ndim;
        for (int d = 0; d < out.ndim; ++d)
            out.shape[d] = of.shape[d + 1], out.stride_elems[d] = of.stride_elems[d + 1];
        return out;
    }
    CallOf<smla_merge_args> call;
};

CONTRACT_TEST(L4b_PartsOfAListMergeIntoTheWhole) {
    for (const smla_lse_base base : {SMLA_LSE_LN, SMLA_LSE_LOG2})
        for (const Engine& engine : engines()) {
            const Context context(engine);
            Attention whole({.tokens = 3, .rows = 90});
            whole.with.lse_base = base;
            whole.fill_listed();
            constexpr int64_t parts = 4, begins[] = {0, 64, 64, 65, 90};  // one of them empty
            MergeOf merge(whole, parts);
            const smla_attend_args all = whole.with;
            for (int64_t i = 0; i < parts; ++i) {
                smla_attend_args& a = whole.with = all;
                a.primary.rows.shape[1] = begins[i + 1] - begins[i];
                a.primary.rows.data =
                    static_cast<int32_t*>(a.primary.rows.data) + begins[i] * a.primary.rows.stride_elems[1];
                a.out = merge.part(merge.call.with.partials, i);
                a.lse = merge.part(merge.call.with.lse, i);
                run_exactly(whole, context);
            }
            whole.with = all;
            whole.add_sink(0.5);
            merge.call.with.sink = whole.with.sink;  // applied once, at the end
            run_exactly(merge.call, context);
            smla_attend_args joined = whole.with;
            joined.out = merge.call.with.out;
            joined.lse = merge.call.with.lse_out;
            joined.max_logits = {};
            EXPECT_TRUE(agrees(engine, joined, truth_of(joined)));
        }
}

CONTRACT_TEST(L4c_APartWithoutKeysWeighsExactlyNothing) {
    Attention shape(
        {.tokens = 2, .heads = 3, .width = 24, .value_width = 17, .format = SMLA_ROW_F32, .q = SMLA_F32});
    for (const double sink : {-double(INFINITY), 0.25, double(INFINITY)}) {
        shape.add_sink(sink);
        MergeOf one(shape, 1), three(shape, 3), none(shape, 2);
        fill_normal(one.call.with.partials, one.call.memory.rng);
        fill_normal(one.call.with.lse, one.call.memory.rng);
        for (MergeOf* each : {&three, &none})  // partials without keys stay NaN
            for (int64_t i = 0; i < each->call.with.lse.shape[0]; ++i)
                for (int64_t t = 0; t < 2; ++t)
                    for (int64_t h = 0; h < 3; ++h)
                        set(each->call.with.lse, i, t, h, (i + t + h) % 2 ? INFINITY : -INFINITY);
        for (int64_t t = 0; t < 2; ++t)
            for (int64_t h = 0; h < 3; ++h) {
                set(three.call.with.lse, 1, t, h, get(one.call.with.lse, 0, t, h));
                for (int64_t d = 0; d < 17; ++d)
                    set(three.part(three.call.with.partials, 1), t, h, d,
                        get(one.part(one.call.with.partials, 0), t, h, d));
            }
        for (const Engine& engine : engines()) {
            const Context context(engine);
            for (MergeOf* each : {&one, &three, &none}) run_exactly(each->call, context);
            for (int64_t t = 0; t < 2; ++t)
                for (int64_t h = 0; h < 3; ++h) {
                    EXPECT_EQ(get(three.call.with.lse_out, t, h), get(one.call.with.lse_out, t, h));
                    EXPECT_EQ(get(none.call.with.lse_out, t, h), -INFINITY);
                    for (int64_t d = 0; d < 17; ++d) {
                        EXPECT_EQ(get(three.call.with.out, t, h, d), get(one.call.with.out, t, h, d))
                            << engine.name;
                        EXPECT_EQ(get(none.call.with.out, t, h, d), 0) << engine.name;
                    }
                }
        }
        set(three.call.with.lse, 0, 1, 1, INFINITY);
        set(three.call.with.lse, 1, 1, 1, NAN);  // of a part that counts, beside empty ones
        for (const Engine& engine : engines()) {
            run_exactly(three.call, Context(engine));
            EXPECT_TRUE(std::isnan(get(three.call.with.lse_out, 1, 1))) << engine.name;
            EXPECT_TRUE(std::isnan(get(three.call.with.out, 1, 1, 16))) << engine.name;
            EXPECT_FALSE(std::isnan(get(three.call.with.lse_out, 1, 2))) << engine.name;
        }
    }
}

CONTRACT_TEST(L5b_ANanInAListedRowReachesOnlyItsTokens) {
    Attention problem({.tokens = 4, .rows = 80});
    const int32_t bad = 5;
    for (int64_t t = 0; t < 4; ++t)
        for (int64_t j = 0; j < 80; ++j)
            if (get_int(problem.with.primary.rows, t, j) == bad) problem.list(t, j, 6);
    problem.list(1, 70, bad);
    problem.fill_listed();
    const auto row_of_out = [&](int64_t t, int64_t h) {
        std::vector<double> row;
        for (int64_t d = 0; d < 512; ++d) row.push_back(get(problem.with.out, t, h, d));
        return row;
    };
    for (const Engine& engine : engines()) {
        const Context context(engine, {.batch_invariant = 1});
        problem.memory.reset();
        run_exactly(problem, context);
        std::vector<std::vector<double>> clean;
        for (int64_t i = 0; i < 20; ++i) clean.push_back(row_of_out(i / 5, i % 5));
        problem.memory.reset();
        static_cast<uint8_t*>(problem.with.primary.cache.data)[bad * 656] = kPoison;  // an e4m3 NaN
        run_exactly(problem, context);
        for (int64_t i = 0; i < 20; ++i) {
            const std::vector<double> now = row_of_out(i / 5, i % 5);
            if (i / 5 != 1) {
                EXPECT_EQ(now, clean[size_t(i)]) << engine.name << " token " << i / 5;
                continue;
            }
            EXPECT_TRUE(std::isnan(now[3])) << engine.name;
            EXPECT_TRUE(std::isnan(get(problem.with.lse, 1, i % 5))) << engine.name;
        }
    }
}

CONTRACT_TEST(L6a_AnyNumberOfHeads) {
    for (const int64_t heads : {1, 2, 3, 8, 16, 17, 22, 24, 32, 33, 64, 66, 72, 128, 129, 255, 256}) {
        Attention problem({.tokens = 1, .heads = heads, .rows = 5, .seed = uint32_t(heads)});
        problem.fill_listed();
        SCOPED_TRACE(heads);
        expect_truth(problem);
    }
    const Context context(engines().back());
    for (const int64_t heads : {0, 257}) {
        Attention problem({.tokens = 1, .heads = heads, .rows = 5});
        problem.fill_listed();
        EXPECT_TRUE(refused(problem.run(context, {}), SMLA_INVALID_ARGUMENT, "args.q.shape[1]"));
    }
}

CONTRACT_TEST(L6b_AnyWidthOfEachList) {
    for (const int64_t rows : {0, 1, 2, 31, 63, 64, 65, 127, 192, 257})
        for (const int64_t extra : {0, 1, 65}) {
            Attention problem({.tokens = 1,
                               .heads = 2,
                               .width = 512,
                               .rows = rows,
                               .extra_rows = extra,
                               .format = SMLA_FP8_584,
                               .extra_format = SMLA_FP8_584,
                               .seed = uint32_t(rows + extra)});
            problem.fill_listed();
            SCOPED_TRACE(testing::Message() << rows << " and " << extra);
            expect_truth(problem);
        }
}

CONTRACT_TEST(L6c_AnyPageSizeAndInterleavedPages) {
    for (const auto& [window, extra] : {std::pair(SMLA_FP8_584, SMLA_FP8_528),
                                        {SMLA_FP8_528_G32, SMLA_NVFP4_288},
                                        {SMLA_NVFP4_288_SPLIT, SMLA_FP8_528_G32_SPLIT}})
        for (const int32_t page : {1, 2, 3, 64, 100, 256})
            for (const int32_t page_rows : {0, 1000}) {
                Attention problem({.width = 512,
                                   .extra_rows = 7,
                                   .format = window,
                                   .extra_format = extra,
                                   .page_tokens = page,
                                   .page_rows = page_rows,
                                   .extra_page_tokens = page,
                                   .pages = 5});
                problem.fill_listed();
                SCOPED_TRACE(testing::Message() << "format " << window << ", pages of " << page);
                expect_truth(problem);
            }
}

CONTRACT_TEST(L6d_AnyNumberOfTokensAndAnyWidthInRowFormats) {
    for (const int64_t tokens : {1, 5, 63, 64, 65})
        for (const int64_t width : {1, 7, 64, 1024}) {
            Attention problem({.tokens = tokens,
                               .heads = 2,
                               .width = width,
                               .value_width = (width + 1) / 2,
                               .rows = 3,
                               .format = SMLA_ROW_F32,
                               .q = SMLA_F32});
            problem.fill_listed();
            SCOPED_TRACE(testing::Message() << tokens << " tokens of " << width);
            expect_truth(problem);
        }
}

// Lists long enough to be split over threads in other modes, and heads that are cut into chunks.
void expect_alone_as_in_a_batch(Attention& problem) {
    problem.add_lengths();
    set_int(problem.with.primary.lengths, 1, 0, problem.with.primary.rows.shape[1] - 40);
    problem.fill_listed();
    for (const Engine& engine : engines()) {
        if (engine.engine == SMLA_ENGINE_REFERENCE) continue;  // one token at a time by its definition
        const Context context(engine, {.threads = 3, .batch_invariant = 1});
        problem.memory.reset();
        run_exactly(problem, context);
        const std::vector<uint8_t> together = problem.memory.image();
        problem.memory.reset();
        const smla_attend_args whole = problem.with;
        for (int64_t t = 0; t < 3; ++t) {
            problem.slice_tokens(t, t + 1);
            run_exactly(problem, context);
            problem.with = whole;
        }
        EXPECT_TRUE(problem.memory.image() == together) << engine.name;
    }
}

CONTRACT_TEST(L8d_ALongListAloneHasTheBitsItHasInABatch) {
    Attention one_list({.tokens = 3, .heads = 40, .rows = 1500, .pages = 40});
    expect_alone_as_in_a_batch(one_list);
    Attention two_lists({.tokens = 3,
                         .heads = 136,
                         .width = 512,
                         .rows = 90,
                         .extra_rows = 560,
                         .format = SMLA_FP8_584,
                         .extra_format = SMLA_FP8_528});
    two_lists.add_sink(1);
    expect_alone_as_in_a_batch(two_lists);
}

}  // namespace
}  // namespace contract
