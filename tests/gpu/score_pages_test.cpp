// score over whole pages on Hopper, against double precision: heads that fill no step, few rows of a request
// and many, pages of several sizes and without a table, requests of different lengths, windows, holes, NaN,
// rows whose neighbours have another request, tokens that outnumber the blocks or a launch; the same bits
// alone and in a batch.
#include "formats/layouts.h"
#include "gpu/hopper_score.h"
#include "index/cases.h"
#include "index/expected.h"
#include "kit/problem.h"

#include <cmath>
#include <limits>

namespace smla::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class Sm90PagesScore : public HopperScore {
protected:
    Sm90PagesScore() : HopperScore("cuda_sm90_pages_score") {}
};

struct Rows {
    int64_t heads, of_request;
    smla_precision precision = SMLA_PRECISION_ROUNDED;
    smla_format format = SMLA_INDEX_FP8_132;

    double allowed(const Want& want) const {
        return want.bound + (precision == SMLA_PRECISION_ROUNDED ? want.rounded : 0);
    }
};
constexpr smla_precision kExact = SMLA_PRECISION_EXACT;
constexpr smla_format kMxfp4 = SMLA_INDEX_MXFP4_68;
constexpr Rows kRows[] = {{20, 1},
                          {32, 1},
                          {32, 3},
                          {32, 4},
                          {36, 1},
                          {52, 2},
                          {64, 1},
                          {64, 2},
                          {20, 7},
                          {20, 17},
                          {32, 9},
                          {32, 16},
                          {40, 9},
                          {64, 3},
                          {64, 5},
                          {64, 8},
                          {64, 21},
                          {20, 2, kExact},
                          {32, 1, kExact},
                          {32, 2, kExact},
                          {40, 1, kExact},
                          {64, 1, kExact},
                          {32, 1, kExact, kMxfp4},
                          {32, 2, kExact, kMxfp4},
                          {64, 1, kExact, kMxfp4}};

// Fewer requests where each has many rows: the CPU computes what is wanted.
int64_t fewer(int64_t requests, const Rows& rows) { return std::max<int64_t>(1, requests / rows.of_request); }

ScoreShape shape_of(const Rows& rows, int64_t requests) {
    ScoreShape shape;
    shape.heads = rows.heads;
    shape.requests = requests;
    shape.tokens = requests * rows.of_request;
    shape.precision = rows.precision;
    shape.format = rows.format;
    shape.q = rows.format == kMxfp4 ? SMLA_E2M1 : SMLA_E4M3;
    shape.odd_scales = rows.heads != 32 && rows.format != kMxfp4;
    shape.page_tokens = rows.heads == 36 ? 256 : rows.heads == 52 ? 128 : 64;
    shape.seed = uint32_t(rows.heads + requests);
    return shape;
}

std::string described(const ScoreShape& shape) {
    return text(find_format(shape.format)->name, shape.precision == kExact ? " exact" : " rounded", " H ",
                shape.heads, " T ", shape.tokens, " R ", shape.requests, " N ", shape.columns, " pages of ",
                shape.page_tokens);
}

// Requests of lengths from 0 to all columns; the rows of one end one column after the other.
void set_lengths(ScoreCase& test, int64_t of_request) {
    const ScoreShape& shape = test.shape;
    for (int64_t t = 0; t < shape.tokens; ++t) {
        const int64_t request = t / of_request;
        const int64_t length = shape.columns * ((request * 7 + 3) % 5) / 4;
        test.requests[size_t(t)] = int32_t(request);
        test.ends[size_t(t)] = int32_t(std::max<int64_t>(0, length - of_request + 1 + t % of_request));
    }
}

TEST_F(Sm90PagesScore, IsWithinTheBound) {
    for (const Rows& rows : kRows)
        for (const int64_t requests : {1, 7, 150}) {
            ScoreShape shape = shape_of(rows, fewer(requests, rows));
            shape.columns = requests == 150 ? 150 : 1000;
            ScoreCase test(shape);
            set_lengths(test, rows.of_request);
            const std::vector<float> got = run_score(test, env());
            double worst = 0, product = 0, squares = 0;
            for (int64_t t = 0; t < shape.tokens; ++t)
                for (int64_t j = 0; j < shape.columns; ++j) {
                    const double is = got[size_t(t * shape.columns + j)];
                    if (j >= test.ends[size_t(t)]) {
                        ASSERT_EQ(is, -kInfinity) << described(shape) << " " << t << " " << j;
                        continue;
                    }
                    const Want want = logit_of(test, t, test.row(test.requests[size_t(t)], j));
                    worst = std::max(worst, std::fabs(is - want.logit) / rows.allowed(want));
                    product += is * want.logit;
                    squares += (is * is + want.logit * want.logit) / 2;
                }
            ASSERT_LE(worst, 1) << described(shape);
            ASSERT_LT(1 - product / squares, 5e-6) << described(shape);  // DeepGEMM's own measure and limit
        }
}

TEST_F(Sm90PagesScore, WholeNumbersGiveTheBitsOfTheReference) {
    for (const Rows& rows : kRows)
        for (const int64_t requests : {1, 5, 300})
            for (const bool fill : {false, true}) {
                if (fill && requests > 5) continue;
                ScoreShape shape = shape_of(rows, fewer(requests, rows));
                shape.columns = requests == 300 ? 130 : 2000;
                shape.exact = true;
                shape.odd_scales = false;
                ScoreCase test(shape);
                set_lengths(test, rows.of_request);
                const std::vector<float> got = run_score(test, env(), fill),
                                         want = reference_score(test, fill);
                ASSERT_TRUE(same_bits(got, want))
                    << described(shape) << ": " << first_difference(got, want, shape.columns);
                const std::vector<uint16_t> halves = run_score_to_bf16(test, env(), fill);
                for (size_t i = 0; i < want.size(); ++i)
                    ASSERT_EQ(halves[i], f32_to_bf16(want[i])) << described(shape) << " " << i;
            }
}

TEST_F(Sm90PagesScore, WindowsAndHoles) {
    for (const Rows& rows : kRows)
        for (const bool fill : {true, false}) {
            if (!fill && rows.of_request > 5) continue;
            ScoreShape shape = shape_of(rows, 12);
            shape.columns = 330;
            shape.page_tokens = 64;
            ScoreCase test(shape);
            const ScoreCase each(shape);
            const int32_t requests[] = {0, 0, 3, 1, 1, 0, -1, 12, 0, 11, 0, 1 << 30};
            const int32_t starts[] = {0, 5, 47, 64, 100, 200, -9, 330, 320, 7, 0, 290};
            const int32_t ends[] = {330, 5, 150, 128, 90, 250, 3, 400, 2147483647, 8, -4, 301};
            for (size_t t = 0; t < size_t(shape.tokens); ++t) {
                test.requests[t] = requests[t % 12];
                test.starts[t] = starts[t * 5 % 12];
                test.ends[t] = ends[t * 5 % 12];
            }
            test.table[1] = -1;                                  // columns 64 to 127 of request 0
            test.table[7 * 1 + 5] = int32_t(test.keys().pages);  // columns 320 and on of request 1
            const std::vector<float> got = run_score(test, env(), fill);
            for (int64_t t = 0; t < shape.tokens; ++t) {
                const int32_t request = test.requests[size_t(t)];
                for (int64_t j = 0; j < shape.columns; ++j) {
                    const bool known = request >= 0 && request < 12;
                    const bool inside = j >= test.starts[size_t(t)] && j < test.ends[size_t(t)];
                    const bool hole =
                        !known || (request == 0 && j / 64 == 1) || (request == 1 && j / 64 == 5);
                    const float is = got[size_t(t * shape.columns + j)];
                    if (!inside || hole) {
                        ASSERT_EQ(is, inside || fill ? -kInfinity : kCanary)
                            << described(shape) << " " << t << " " << j;
                        continue;
                    }
                    const Want want = logit_of(test, t, each.row(request, j));
                    ASSERT_LE(std::fabs(is - want.logit), rows.allowed(want))
                        << described(shape) << " " << t << " " << j;
                }
            }
        }
}

// Neither the other rows of a batch nor how it is cut change a row's bits.
TEST_F(Sm90PagesScore, ARowAloneHasTheBitsItHasInABatch) {
    for (const Rows& rows : kRows) {
        ScoreShape shape = shape_of(rows, fewer(20, rows));
        shape.columns = 700;
        ScoreCase test(shape);
        for (size_t t = 0; t < test.requests.size(); ++t)
            test.requests[t] = int32_t(t) / int32_t(rows.of_request);
        expect_tokens_alone(test, std::max<int64_t>(7, shape.tokens / 3), described(shape));
    }
}

// Blocks use each stage many times. Of a call with 96 tiles and more per block the last ones are drawn; with
// half of its requests none are. The bits stay the same.
TEST_F(Sm90PagesScore, LongCalls) {
    for (const Rows& rows : {Rows{64, 1}, Rows{64, 2}, Rows{32, 4}, Rows{64, 8}, Rows{64, 1, kExact},
                             Rows{32, 2, kExact}, Rows{64, 1, kExact, kMxfp4}}) {
        ScoreCase test(shape_of(rows, 20));
        lengthen(test, 48'000);
        const auto set_ends = [&](int64_t half) {  // 2: both
            for (int64_t t = 0; t < test.shape.tokens; ++t) {
                const bool seen = half == 2 || t / rows.of_request % 2 == half;
                test.ends[size_t(t)] = seen ? int32_t(48'000 - 37 * t) : 0;
            }
        };
        set_ends(2);
        const std::vector<float> all = run_score(test, env());
        expect_again(test, all, described(test.shape));
        for (const int64_t half : {0, 1}) {
            set_ends(half);
            const std::vector<float> some = run_score(test, env());
            for (int64_t t = 0; t < test.shape.tokens; ++t) {
                if (t / rows.of_request % 2 != half) continue;
                const auto first = t * test.shape.columns, last = first + test.shape.columns;
                EXPECT_TRUE(std::equal(all.begin() + first, all.begin() + last, some.begin() + first))
                    << described(test.shape) << " row " << t;
            }
        }
    }
}

// Prompts beside requests that decode: units of one row to all.
TEST_F(Sm90PagesScore, RequestsOfAnyNumberOfRows) {
    for (const int64_t heads : {32, 64}) {
        ScoreShape shape = shape_of({heads, 7}, 60);
        shape.columns = 900;
        shape.exact = true;
        shape.odd_scales = false;
        ScoreCase test(shape);
        int32_t request = 0;
        for (int64_t t = 0, first = 0; t < shape.tokens; ++t) {
            const int64_t rows = request * request % 23 % 5 == 0 ? 1 : request % 11 * 2 + 1;
            if (t == first + rows) ++request, first = t;
            test.requests[size_t(t)] = request;
            test.ends[size_t(t)] = std::max<int32_t>(0, request * 89 % 901 - int32_t(t - first));
        }
        const std::vector<float> got = run_score(test, env()), want = reference_score(test);
        ASSERT_TRUE(same_bits(got, want))
            << described(shape) << ": " << first_difference(got, want, shape.columns);
    }
}

// More tokens than threads, most of which see nothing; more than one launch takes.
TEST_F(Sm90PagesScore, ThousandsOfTokens) {
    struct Tokens {
        Rows rows;
        int64_t tokens;
    };
    for (const auto& [rows, tokens] : {Tokens{{64, 2}, 2048}, Tokens{{32, 3}, 4096}, Tokens{{64, 7}, 8192},
                                       Tokens{{64, 11}, 2048}, Tokens{{32, 40}, 9100}}) {
        const int64_t requests = ceil_div(tokens, rows.of_request);
        ScoreShape shape = shape_of(rows, requests);
        shape.tokens = tokens;
        shape.columns = 70;
        shape.exact = true;
        shape.odd_scales = false;
        ScoreCase test(shape);
        for (size_t t = 0; t < test.requests.size(); ++t) {
            test.requests[t] = int32_t(int64_t(t) / rows.of_request);
            test.ends[t] = t % 100 < 90 ? 0 : int32_t(t % 71);
        }
        const std::vector<float> got = run_score(test, env()), want = reference_score(test);
        ASSERT_TRUE(same_bits(got, want))
            << described(shape) << ": " << first_difference(got, want, shape.columns);
        for (int32_t& end : test.ends) end = 0;
        for (const float logit : run_score(test, env())) ASSERT_EQ(logit, -kInfinity);
    }
}

// Column j is row j: pages one behind the other, or one of any size, whose end may be no multiple of 16
// bytes; columns beyond are holes.
TEST_F(Sm90PagesScore, WithoutABlockTable) {
    for (const Rows& rows : kRows)
        for (const int64_t page_tokens : {64, 256, 1, 63, 1000, 1037, 1038}) {
            ScoreShape shape = shape_of(rows, 1);
            shape.paged = false;
            shape.exact = true;
            shape.odd_scales = false;
            shape.page_tokens = page_tokens;
            const bool one_page = page_tokens % 64 != 0;
            shape.columns = one_page ? page_tokens : 700;
            ScoreCase test(shape);
            smla_score_args args = test.args();
            const int64_t columns = shape.columns + 100;
            // kernels ask for a stride that is a multiple of 16; nothing lies behind the only page
            if (one_page) args.keys.page_stride_bytes = ceil_div(touched_bytes(args.keys), 16) * 16;
            for (int64_t t = 0; t < shape.tokens; ++t)
                test.ends[size_t(t)] = int32_t(std::max<int64_t>(0, columns - 3 * t));
            std::vector<float> logits[2];
            for (const char* kernel : {"cuda_generic_score", kernel_}) {
                Env env = this->env();
                env.demanded[size_t(Stage::score)] = kernel;
                std::vector<float>& out = logits[kernel == kernel_];
                out.assign(size_t(shape.tokens * columns), kCanary);
                args.logits = make_tensor(out.data(), SMLA_F32, {shape.tokens, columns});
                kit::run_placed<Stage::score>(args, env);
            }
            ASSERT_TRUE(same_bits(logits[1], logits[0]))
                << described(shape) << ": " << first_difference(logits[1], logits[0], columns);
        }
}

TEST_F(Sm90PagesScore, NanReachesItsColumnAndNothingElse) {
    for (const Rows& rows : kRows) {
        ScoreShape shape = shape_of(rows, 1);
        ScoreCase test(shape);
        const std::vector<float> want = run_score(test, env());
        std::vector<float> key(size_t(shape.width));
        test.keys().decode(test.row(0, 33), key.data());
        key[5] = std::nanf("");
        test.keys().encode(test.row(0, 33), key.data());
        const std::vector<float> got = run_score(test, env());
        for (size_t i = 0; i < got.size(); ++i) {
            if (i % size_t(shape.columns) == 33) EXPECT_TRUE(std::isnan(got[i])) << "relu hid a NaN";
            else EXPECT_EQ(got[i], want[i]) << i;
        }
    }
}

// Parts of the columns, as a small workspace asks for them, begin anywhere.
TEST_F(Sm90PagesScore, ScoreSelectInParts) {
    constexpr int64_t k = 100;
    for (const Rows& rows : {Rows{64, 1}, Rows{64, 2}, Rows{64, 19}, Rows{64, 1, kExact}}) {
        ScoreShape shape = shape_of(rows, 5);
        shape.columns = 9000;
        ScoreCase test(shape);
        set_lengths(test, rows.of_request);
        std::vector<float> logits = run_score(test, env());
        const Selection want = run_select(make_tensor(logits.data(), SMLA_F32, {shape.tokens, shape.columns}),
                                          k, Runner().env, &test.starts, &test.ends);
        for (const size_t budget : {size_t(0), size_t(100) << 10, size_t(20) << 10}) {
            Selection got{std::vector<int32_t>(size_t(shape.tokens * k)),
                          std::vector<int32_t>(size_t(shape.tokens)),
                          std::vector<float>(size_t(shape.tokens * k))};
            smla_score_select_args args{};
            args.struct_size = sizeof args;
            args.columns = int32_t(shape.columns);
            args.score = test.args();
            args.select.indices = make_tensor(got.indices.data(), SMLA_I32, {shape.tokens, k});
            args.select.counts = make_tensor(got.counts.data(), SMLA_I32, {shape.tokens});
            args.select.selected = make_tensor(got.selected.data(), SMLA_F32, {shape.tokens, k});
            Env env = this->env();
            const Placed<smla_score_select_args> placed(*env.device, args);
            const kit::Scratch scratch(*env.device, stage_workspace<Stage::score_select>(args, env, budget));
            env.workspace = scratch.get();
            run_stage<Stage::score_select>(placed.args, env);
            env.device->wait(nullptr);
            placed.copy_back();
            EXPECT_TRUE(got == want) << described(shape) << " budget " << budget;
        }
    }
}

// Infinite products of mxfp4: relu of -inf is 0.
TEST_F(Sm90PagesScore, InfiniteProducts) {
    constexpr size_t kByte = 2;  // of channel 5, the high half
    constexpr char kOne = 0x20, kFour = 0x60, kMinusFour = char(0xe0), kTo127 = char(0xfe), kTo0 = 0x7f;
    const ScoreShape shape = shape_of({64, 1, kExact, kMxfp4}, 2);
    ScoreCase test(shape);
    using Layout = layout::IndexMxfp4_68;
    for (int64_t t = 0; t < shape.tokens; ++t) {
        test.requests[size_t(t)] = int32_t(t);
        for (int64_t j = 0; j < shape.columns; ++j) {
            const RecordAt at = test.keys().at(test.row(t, j));
            char* const codes = at.page + Layout::row_at(at.offset);
            std::memset(codes, 0, Layout::row);
            codes[kByte] = kOne;
            std::memset(at.page + Layout::scales_at(at.page_tokens, at.offset), kTo127, Layout::tiles);
        }
    }
    std::memset(test.q_scales.data(), kTo0, size_t(shape.tokens * shape.heads * 4));
    for (int64_t i = 0; i < shape.tokens * shape.heads; ++i) {
        char* const codes = reinterpret_cast<char*>(test.q_bytes.data()) + i * 64;
        std::memset(codes, 0, 64);
        codes[kByte] = i < shape.heads || i % 2 ? kMinusFour : kFour;  // token 0: no positive product
        test.w[size_t(i)] = 0.01f;
    }
    const std::vector<float> got = run_score(test, env());
    for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], i < size_t(shape.columns) ? 0 : kInfinity) << i;
}

// Precision rounded multiplies otherwise: else nothing above would test it.
TEST_F(Sm90PagesScore, RoundedIsNotExact) {
    const std::vector<float> exact = run_score(ScoreCase(shape_of({64, 1, kExact}, 3)), env());
    EXPECT_FALSE(same_bits(run_score(ScoreCase(shape_of({64, 1}, 3)), env()), exact));
}

// How many rows a group has depends on the rows per request of the whole block table.
TEST_F(Sm90PagesScore, GroupsOfEverySizeGiveTheSameBits) {
    for (const int64_t heads : {32, 64}) {
        ScoreShape shape = shape_of({heads, 1}, 96);
        shape.columns = 300;
        const ScoreCase test(shape);
        const std::vector<int32_t> runs = [] {
            std::vector<int32_t> out;
            for (int32_t t = 0; t < 96; ++t) out.push_back(t / 20);
            return out;
        }();
        std::vector<float> first;
        for (const int64_t requests : {96, 48, 32, 24, 19, 16, 6}) {
            smla_score_args args = test.args();
            args.request_of_token = make_tensor(runs.data(), SMLA_I32, {shape.tokens});
            args.block_table.shape[0] = requests;
            std::vector<float> logits(size_t(shape.tokens * shape.columns), kCanary);
            args.logits = make_tensor(logits.data(), SMLA_F32, {shape.tokens, shape.columns});
            kit::run_placed<Stage::score>(args, env());
            if (first.empty()) first = logits;
            ASSERT_TRUE(same_bits(first, logits))
                << heads << " heads, " << requests << ": " << first_difference(first, logits, shape.columns);
        }
    }
}

}  // namespace
}  // namespace smla::test
