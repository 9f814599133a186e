#include "index/cases.h"

#include "kit/refused.h"
#include "ops/select/select.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

namespace smla::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
const float kNan = std::nanf("");

// The definition: a stable sort in double by score descending, NaN last, column ascending.
Selection oracle(const std::vector<float>& row, int64_t k, int64_t begin, int64_t end,
                 bool relative = false) {
    std::vector<int32_t> order;
    for (int64_t j = begin; j < end; ++j) order.push_back(int32_t(j));
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
        const double x = row[size_t(a)], y = row[size_t(b)];
        return std::isnan(y) ? !std::isnan(x) : x > y;
    });
    order.resize(std::min<size_t>(order.size(), size_t(k)));
    std::sort(order.begin(), order.end());
    Selection out;
    out.counts = {int32_t(order.size())};
    for (const int32_t column : order) {
        out.indices.push_back(relative ? int32_t(column - begin) : column);
        out.selected.push_back(row[size_t(column)]);
    }
    out.indices.resize(size_t(k), -1);
    out.selected.resize(size_t(k), -kInfinity);
    return out;
}

const std::vector<std::string>& all_kernels() {
    static const std::vector<std::string> names = [] {
        smla_select_args args{};
        args.scores = make_tensor(static_cast<void*>(nullptr), SMLA_F32, {0, 0});
        args.indices = make_tensor(static_cast<void*>(nullptr), SMLA_I32, {0, 0});
        return runnable_kernels<Stage::select>(args);
    }();
    return names;
}

using Fill = std::function<float(int64_t column, int64_t columns, std::mt19937& random)>;
struct Distribution {
    const char* name;
    Fill value;
};

float normal(std::mt19937& random) { return std::normal_distribution<float>()(random); }
float from_bits(uint32_t bits) { return std::bit_cast<float>(bits); }

const std::vector<Distribution>& distributions() {
    static const std::vector<Distribution> list = {
        {"normal", [](int64_t, int64_t, std::mt19937& r) { return normal(r); }},
        {"shifted up", [](int64_t, int64_t, std::mt19937& r) { return normal(r) + 100; }},
        {"shifted down", [](int64_t, int64_t, std::mt19937& r) { return normal(r) - 100; }},
        {"tiny", [](int64_t, int64_t, std::mt19937& r) { return normal(r) * 1e-4f; }},
        {"large", [](int64_t, int64_t, std::mt19937& r) { return normal(r) * 1e4f; }},
        {"any bits", [](int64_t, int64_t, std::mt19937& r) { return from_bits(uint32_t(r())); }},
        {"all equal", [](int64_t, int64_t, std::mt19937&) { return 1.5f; }},
        {"two values", [](int64_t, int64_t, std::mt19937& r) { return r() % 2 ? 1.f : -1.f; }},
        {"ints to 32", [](int64_t, int64_t, std::mt19937& r) { return float(r() % 33); }},
        {"ints to 4096", [](int64_t, int64_t, std::mt19937& r) { return float(r() % 4097); }},
        {"a quarter binade",
         [](int64_t, int64_t, std::mt19937& r) { return 1.f + float(r() % 2007041) * 0x1p-23f; }},
        {"next floats from 1",
         [](int64_t j, int64_t, std::mt19937&) { return from_bits(0x3f800000u + uint32_t(j)); }},
        {"next floats",
         [](int64_t j, int64_t, std::mt19937&) { return from_bits(0x3805ed27u + uint32_t(j)); }},
        {"ascending", [](int64_t j, int64_t, std::mt19937&) { return float(j); }},
        {"descending", [](int64_t j, int64_t, std::mt19937&) { return -float(j); }},
        {"saw tooth", [](int64_t j, int64_t, std::mt19937&) { return float(j % 64); }},
        {"signed zeros",
         [](int64_t, int64_t, std::mt19937& r) {
             return r() % 3 ? (r() % 2 ? 0.f : -0.f) : float(r() % 3) - 1;
         }},
        {"denormals",
         [](int64_t, int64_t, std::mt19937& r) {
             return from_bits((r() % 2 ? 0x80000000u : 0) | uint32_t(r() % 5000));
         }},
        {"infinities and NaN",
         [](int64_t, int64_t, std::mt19937& r) {
             const float odd[] = {kInfinity, -kInfinity, kNan, -kNan, 0.f};
             return r() % 2 ? odd[r() % 5] : normal(r);
         }},
        {"NaN", [](int64_t, int64_t, std::mt19937&) { return kNan; }},
        {"mostly NaN", [](int64_t, int64_t, std::mt19937& r) { return r() % 50 ? kNan : normal(r); }},
        {"-infinity", [](int64_t, int64_t, std::mt19937&) { return -kInfinity; }},
        {"NaN first", [](int64_t j, int64_t n, std::mt19937& r) { return 2 * j < n ? kNan : normal(r); }},
        {"+infinity", [](int64_t j, int64_t n, std::mt19937&) { return 4 * j < n ? 1.f : kInfinity; }},
        {"relu", [](int64_t, int64_t, std::mt19937& r) { return r() % 40 ? 0.f : std::fabs(normal(r)); }},
    };
    return list;
}

std::vector<float> make_row(const Distribution& distribution, int64_t columns, uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<float> row;
    for (int64_t j = 0; j < columns; ++j) row.push_back(distribution.value(j, columns, random));
    return row;
}

void expect_oracle(const std::vector<float>& row, int64_t k, const std::string& what) {
    const Selection want = oracle(row, k, 0, int64_t(row.size()));
    const Tensor scores = make_tensor(row.data(), SMLA_F32, {1, int64_t(row.size())});
    for (const std::string& kernel : all_kernels()) {
        if (kernel == "cpu_generic_select" && row.size() > 9000)
            continue;  // the reference sorts; small sizes do for it
        Runner runner;
        runner.demand<Stage::select>(kernel);
        EXPECT_TRUE(run_select(scores, k, runner.env) == want)
            << kernel << ": " << what << " N " << row.size() << " k " << k;
    }
}

TEST(Select, EveryKernelIsTheOracleOnEveryDistribution) {
    struct Size {
        int64_t columns, k;
    };
    const Size sizes[] = {{0, 3},       {1, 1},       {1, 7},        {31, 32},     {32, 32},    {33, 32},
                          {64, 31},     {500, 1},     {700, 2},      {2049, 2048}, {8191, 512}, {8192, 512},
                          {8300, 2047}, {9000, 2100}, {40000, 2048}, {70001, 64}};
    uint32_t seed = 1;
    for (const Distribution& distribution : distributions())
        for (const Size& size : sizes)
            expect_oracle(make_row(distribution, size.columns, seed++), size.k, distribution.name);
}

// T-46: more equal scores, or scores in one coarse bucket, than any staging buffer holds.
TEST(Select, CrowdsAtTheBoundaryLoseNobody) {
    for (const int64_t crowd : {4095, 4096, 4097, 16383, 16384, 16385}) {
        std::mt19937 random{uint32_t(crowd)};
        std::vector<float> row(20000);
        for (float& score : row) score = -1 - std::fabs(normal(random));
        std::vector<int32_t> places(row.size());
        for (size_t j = 0; j < places.size(); ++j) places[j] = int32_t(j);
        std::shuffle(places.begin(), places.end(), random);
        for (int64_t i = 0; i < crowd; ++i)
            row[size_t(places[size_t(i)])] = 1.f + float(random() % 2000000) * 0x1p-23f;
        for (int64_t i = crowd; i < crowd + 5; ++i) row[size_t(places[size_t(i)])] = 7;
        expect_oracle(row, 2048, "one bucket");
        for (int64_t i = 0; i < crowd; ++i) row[size_t(places[size_t(i)])] = 1;
        expect_oracle(row, 2048, "one value");
    }
}

// Once a buffer has been cut, the least better score still enters, and an equal one does not.
TEST(Select, TheNextFloatAboveTheFloorWins) {
    const float denormal = from_bits(1), most = std::numeric_limits<float>::max();
    const std::pair<float, float> steps[] = {{1.f, std::nextafter(1.f, 2.f)},
                                             {-1.f, std::nextafter(-1.f, 0.f)},
                                             {0.f, denormal},
                                             {-0.f, denormal},
                                             {-denormal, -0.f},
                                             {-denormal, 0.f},
                                             {-kInfinity, -most},
                                             {kNan, -kInfinity},
                                             {most, kInfinity}};
    for (const auto& step : steps) {
        std::vector<float> row(
            8000, step.first);  // k = 1 holds 6,145 at once, and the row is too short for a sample
        expect_oracle(row, 1, "equal");
        row[7000] = step.second;
        EXPECT_EQ(oracle(row, 1, 0, 8000).indices[0], 7000);
        expect_oracle(row, 1, "one step above " + std::to_string(step.first));
    }
}

// The k best of the first buffer are all of it that is not NaN, and its floor has to let the rest in.
TEST(Select, AFloorBetweenNanAndMinusInfinityKeepsNobodyOut) {
    for (const int64_t k : {1, 4, 1000})
        for (const float least : {-kInfinity, -std::numeric_limits<float>::max(), 0.f, kInfinity}) {
            std::vector<float> row(8000, kNan);  // too short for a sample
            std::fill(row.begin(), row.begin() + k, least);
            for (size_t j = 7500; j < row.size(); ++j) row[j] = float(j % 100);
            expect_oracle(row, k, "scores behind NaN");
        }
}

// Long rows are filtered by a floor from evenly spaced vectors of 16; here these vectors are not like the
// rest.
TEST(Select, AMisleadingSampleChangesNothing) {
    constexpr int64_t kColumns = 65536, kBlocks = 256, kTop = 2048;
    for (const bool high : {true, false}) {
        std::mt19937 random(7);
        std::vector<float> row(static_cast<size_t>(kColumns));
        for (int64_t j = 0; j < kColumns; ++j) {
            const bool sampled = j % (kColumns / kBlocks) < 16;
            row[size_t(j)] = normal(random) + (sampled && (j / 256) % 4 == 0 ? (high ? 50.f : -50.f) : 0.f);
            if (sampled && !high) row[size_t(j)] -= 50;
        }
        expect_oracle(row, kTop, high ? "sample too high" : "sample too low");
    }
}

TEST(Select, WindowsAreClampedAndNothingOutsideIsRead) {
    constexpr int64_t kTokens = 9, kColumns = 300, kTop = 40;
    std::mt19937 random(11);
    std::vector<int32_t> starts = {0, 3, 100, 299, 300, -5, 250, 9, 17},
                         ends = {300, 50, 100, 300, 300, 10, 20, 2000, 90};
    std::vector<float> scores(size_t(kTokens * kColumns), kNan);
    std::vector<float> poisoned = scores;
    for (int64_t t = 0; t < kTokens; ++t)
        for (int64_t j = 0; j < kColumns; ++j) {
            const bool inside = j >= starts[size_t(t)] && j < ends[size_t(t)];
            if (inside)
                scores[size_t(t * kColumns + j)] = poisoned[size_t(t * kColumns + j)] = normal(random);
            else poisoned[size_t(t * kColumns + j)] = kInfinity;
        }
    for (const bool relative : {false, true})
        for (const std::string& kernel : all_kernels()) {
            Runner runner;
            runner.demand<Stage::select>(kernel);
            for (const auto* row : {&scores, &poisoned}) {
                const Selection got = run_select(make_tensor(row->data(), SMLA_F32, {kTokens, kColumns}),
                                                 kTop, runner.env, &starts, &ends, relative);
                for (int64_t t = 0; t < kTokens; ++t) {
                    const std::vector<float> one(row->begin() + t * kColumns,
                                                 row->begin() + (t + 1) * kColumns);
                    const int64_t begin = std::clamp<int64_t>(starts[size_t(t)], 0, kColumns);
                    const int64_t end = std::clamp<int64_t>(ends[size_t(t)], begin, kColumns);
                    const Selection want = oracle(one, kTop, begin, end, relative);
                    const Selection part{
                        {got.indices.begin() + t * kTop, got.indices.begin() + (t + 1) * kTop},
                        {got.counts[size_t(t)]},
                        {got.selected.begin() + t * kTop, got.selected.begin() + (t + 1) * kTop}};
                    EXPECT_TRUE(part == want) << kernel << " row " << t << " relative " << relative;
                }
            }
        }
}

TEST(Select, SixteenBitScoresFollowTheSameOrder) {
    for (const smla_dtype dtype : {SMLA_BF16, SMLA_F16})
        for (const int64_t columns : {100, 9001}) {
            std::mt19937 random(13);
            std::vector<uint16_t> codes(static_cast<size_t>(columns));
            std::vector<float> values;
            for (uint16_t& code : codes) {  // bf16 of normals: many ties; the rest is any bits, NaN too
                const float value = normal(random);
                code = random() % 4 == 0    ? uint16_t(random())
                       : dtype == SMLA_BF16 ? f32_to_bf16(value)
                                            : f32_to_f16(value);
                values.push_back(dtype == SMLA_BF16 ? bf16_to_f32(code) : f16_to_f32(code));
            }
            const Selection want = oracle(values, 64, 0, columns);
            for (const std::string& kernel : all_kernels()) {
                Runner runner;
                runner.demand<Stage::select>(kernel);
                const Selection got =
                    run_select(make_tensor(codes.data(), dtype, {1, columns}), 64, runner.env);
                EXPECT_EQ(got.indices, want.indices) << kernel << " " << dtype_name(dtype);
                EXPECT_EQ(got.counts, want.counts);
            }
        }
}

TEST(Select, DoubleScoresAreComparedInDouble) {
    const std::vector<double> row = {1, 1 + 1e-15, 1 + 2e-15, -0.0, 0.0};
    std::vector<int32_t> indices(2);
    std::vector<double> selected(2);
    smla_select_args args{};
    args.scores = make_tensor(row.data(), SMLA_F64, {1, 5});
    args.indices = make_tensor(indices.data(), SMLA_I32, {1, 2});
    args.selected = make_tensor(selected.data(), SMLA_F64, {1, 2});
    EXPECT_STREQ(run_stage<Stage::select>(args, Runner().env), "cpu_generic_select");
    EXPECT_EQ(indices, (std::vector<int32_t>{1, 2}));
    EXPECT_EQ(selected, (std::vector<double>{1 + 1e-15, 1 + 2e-15}));
}

// Lists of several ranks: k of each, some short, merged into the k best by global id.
TEST(Select, ListsWithIdsMerge) {
    constexpr int64_t kRanks = 5, kTop = 300, kColumns = kRanks * kTop;
    std::mt19937 random(17);
    for (const bool ties : {false, true}) {
        std::vector<int32_t> ids(size_t(kColumns), -1);
        std::vector<float> scores(size_t(kColumns), kInfinity);  // of holes: must not matter
        std::vector<std::pair<float, int32_t>> valid;
        for (int64_t j = 0; j < kColumns; ++j) {
            if (j % kTop >= 200 + j / kTop * 10) continue;  // ranks keep 200, 210 ... entries
            ids[size_t(j)] = int32_t((j * 7919) % 100003);
            scores[size_t(j)] = ties ? float(random() % 4) : normal(random);
            valid.emplace_back(scores[size_t(j)], ids[size_t(j)]);
        }
        std::sort(valid.begin(), valid.end(), [](const auto& a, const auto& b) {
            return a.first != b.first ? a.first > b.first : a.second < b.second;
        });
        valid.resize(size_t(kTop));
        std::sort(valid.begin(), valid.end(),
                  [](const auto& a, const auto& b) { return a.second < b.second; });
        for (const std::string& kernel : all_kernels()) {
            std::vector<int32_t> indices(size_t(kTop + 1), -99);
            std::vector<float> selected(size_t(kTop + 1), kCanary);
            int32_t count = 0;
            smla_select_args args{};
            args.scores = make_tensor(scores.data(), SMLA_F32, {1, kColumns});
            args.ids = make_tensor(ids.data(), SMLA_I32, {1, kColumns});
            args.indices = make_tensor(indices.data(), SMLA_I32, {1, kTop});
            args.selected = make_tensor(selected.data(), SMLA_F32, {1, kTop});
            args.counts = make_tensor(&count, SMLA_I32, {1});
            Runner runner;
            runner.demand<Stage::select>(kernel);
            run_stage<Stage::select>(args, runner.env);
            EXPECT_EQ(count, kTop);
            for (size_t i = 0; i < size_t(kTop); ++i) {
                ASSERT_EQ(indices[i], valid[i].second) << kernel << " entry " << i << " ties " << ties;
                ASSERT_EQ(selected[i], valid[i].first) << kernel << " entry " << i;
            }
            EXPECT_EQ(indices.back(), -99);
            EXPECT_EQ(selected.back(), kCanary);
        }
    }
}

TEST(Select, NothingToSelect) {
    for (const std::string& kernel : all_kernels()) {
        Runner runner;
        runner.demand<Stage::select>(kernel);
        const std::vector<float> row = {1, 2, 3};
        EXPECT_EQ(run_select(make_tensor(row.data(), SMLA_F32, {1, 3}), 0, runner.env).counts,
                  std::vector<int32_t>{0});
        EXPECT_EQ(run_select(make_tensor(row.data(), SMLA_F32, {1, 0}), 2, runner.env).indices,
                  (std::vector<int32_t>{-1, -1}));
        EXPECT_TRUE(run_select(make_tensor(row.data(), SMLA_F32, {0, 3}), 2, runner.env).indices.empty());
    }
}

TEST(Select, BitsDoNotDependOnThreadsBatchOrScratch) {
    constexpr int64_t kTokens = 7, kColumns = 20000, kTop = 500;
    std::vector<float> scores;
    for (int64_t t = 0; t < kTokens; ++t) {
        const std::vector<float> row = make_row(distributions()[size_t(t * 3)], kColumns, uint32_t(t));
        scores.insert(scores.end(), row.begin(), row.end());
    }
    const Tensor all = make_tensor(scores.data(), SMLA_F32, {kTokens, kColumns});
    smla_select_args args{};
    args.scores = all;
    args.indices = make_tensor(static_cast<void*>(nullptr), SMLA_I32, {kTokens, kTop});
    for (const smla_isa isa : isas_here()) {
        const Selection want = run_select(all, kTop, Runner(isa).env);
        for (const int threads : {2, 4}) EXPECT_TRUE(run_select(all, kTop, Runner(isa, threads).env) == want);
        const size_t least = stage_workspace<Stage::select>(args, Runner(isa).env, 1);
        EXPECT_LT(least, stage_workspace<Stage::select>(args, Runner(isa).env, 0));
        EXPECT_TRUE(run_select(all, kTop, Runner(isa, 1, least).env) == want) << "in " << least << " bytes";
        for (int64_t t = 0; t < kTokens; ++t) {
            const Selection one = run_select(slice(all, 0, t, t + 1), kTop, Runner(isa).env);
            EXPECT_TRUE(std::equal(one.indices.begin(), one.indices.end(), want.indices.begin() + t * kTop));
        }
    }
}

TEST(Select, BadArgumentsAreRefusedByName) {
    const std::vector<float> row = {1, 2, 3};
    const auto refusal = [&](const std::function<void(smla_select_args&)>& change) {
        std::vector<int32_t> indices(2, -99);
        smla_select_args args{};
        args.scores = make_tensor(row.data(), SMLA_F32, {1, 3});
        args.indices = make_tensor(indices.data(), SMLA_I32, {1, 2});
        change(args);
        const std::string field = kit::refused_field([&] { run_stage<Stage::select>(args, Runner().env); });
        EXPECT_TRUE(field.empty() || indices == (std::vector<int32_t>{-99, -99})) << field;
        return field;
    };
    EXPECT_EQ(refusal([](smla_select_args&) {}), "");
    EXPECT_EQ(refusal([](smla_select_args& a) { a.relative = 3; }), "args.relative");
    EXPECT_EQ(refusal([](smla_select_args& a) { a.scores.dtype = SMLA_I32; }), "args.scores.dtype");
    EXPECT_EQ(refusal([](smla_select_args& a) { a.scores.stride_elems[1] = 2; }),
              "args.scores.stride_elems[1]");
    EXPECT_EQ(refusal([](smla_select_args& a) { a.indices.shape[0] = 2; }), "args.indices.shape");
    EXPECT_EQ(refusal([](smla_select_args& a) { a.selected = a.scores; }), "args.selected.shape");
    EXPECT_EQ(refusal([](smla_select_args& a) { a.counts = a.indices; }), "args.counts.shape");
    EXPECT_EQ(refusal([](smla_select_args& a) {
                  a.ids = make_tensor(a.scores.data, SMLA_I32, {1, 3});
                  a.relative = 1;
              }),
              "args.relative");
}

}  // namespace
}  // namespace smla::test
