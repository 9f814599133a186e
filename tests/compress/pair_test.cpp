// DeepSeek-V4.1: entries of pairs without ape, their latents before the rope, tokens in steps that begin
// anywhere. Against the model's definition in double, with caches of its own.
#include "formats/test_cache.h"
#include "kit/refused.h"
#include "ops/compress/compress.h"
#include "ops/ops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace smla::testing {
namespace {

constexpr int64_t kTokens = 13, kWidth = 12, kPairs = 3, kEntries = kTokens / 2;
constexpr double kUntouched = -77;

// Projections of one request, of that size.
struct Pairs {
    std::vector<double> kv, gate, norm, frequencies;

    explicit Pairs(double size) {
        std::mt19937 engine(7);
        std::normal_distribution<double> normal;
        for (int64_t i = 0; i < kTokens * kWidth; ++i) {
            kv.push_back(double(float(size * normal(engine))));
            gate.push_back(double(float(3 * normal(engine))));
        }
        for (int64_t d = 0; d < kWidth; ++d) norm.push_back(double(float(1 + 0.2 * normal(engine))));
        for (int64_t i = 0; i < kPairs; ++i) frequencies.push_back(std::pow(160000., -double(i) / kPairs));
    }
    // lat = rms(sum of a pair's kv, weighted by the softmax of their gates): one exponential, not two.
    std::vector<double> latent(int64_t e) const {
        std::vector<double> out;
        double square = 0;
        for (int64_t d = 0; d < kWidth; ++d) {
            const size_t a = size_t(2 * e * kWidth + d), b = a + size_t(kWidth);
            const double second = 1 / (1 + std::exp(gate[a] - gate[b]));
            out.push_back(kv[a] * (1 - second) + kv[b] * second);
            square += out.back() * out.back() / kWidth;
        }
        for (int64_t d = 0; d < kWidth; ++d) out[size_t(d)] *= norm[size_t(d)] / std::sqrt(square + 1e-20);
        return out;
    }
    std::vector<double> entry(int64_t e) const {
        std::vector<double> out = latent(e);
        for (int64_t i = 0; i < kPairs; ++i) {
            double &x = out[size_t(kWidth - 2 * kPairs + 2 * i)],
                   &y = out[size_t(kWidth - 2 * kPairs + 2 * i + 1)];
            const double angle = double(2 * e) * frequencies[size_t(i)], a = x, b = y;
            x = a * std::cos(angle) - b * std::sin(angle);
            y = b * std::cos(angle) + a * std::sin(angle);
        }
        return out;
    }
};

CacheShape plain(smla_format format, int32_t width, int32_t page_tokens, int64_t pages) {
    CacheShape shape = shape_of(format, page_tokens, pages);
    shape.width = width;
    return shape;
}

template <class Real>
class Server {
public:
    static constexpr bool f64 = sizeof(Real) == 8;
    static constexpr smla_dtype kType = f64 ? SMLA_F64 : SMLA_F32;

    explicit Server(const Pairs& pairs)
        : state(plain(f64 ? SMLA_STATE_F64 : SMLA_STATE_F32, 2 * kWidth, 3, 6)),
          cache(plain(f64 ? SMLA_ROW_F64 : SMLA_ROW_F32, kWidth, 4, 3)),
          latents(size_t(kTokens * kWidth), Real(kUntouched)),
          entries(latents),
          kv_(pairs.kv.begin(), pairs.kv.end()),
          gate_(pairs.gate.begin(), pairs.gate.end()),
          norm_(pairs.norm.begin(), pairs.norm.end()),
          frequencies_(pairs.frequencies) {}

    void step(int64_t begin, int64_t end) {
        std::vector<int32_t> positions, state_slots, slots, requests(size_t(end - begin), 0);
        for (int64_t p = begin; p < end; ++p) {
            positions.push_back(int32_t(p));
            state_slots.push_back(table_[size_t(p / 3)] * 3 + int32_t(p % 3));
            slots.push_back(int32_t(p / 2));  // also of tokens that close nothing
        }
        const int64_t n = end - begin;
        smla_save_state_args save{};
        save.kv = make_tensor(kv_.data() + begin * kWidth, kType, {n, kWidth});
        save.score = make_tensor(gate_.data() + begin * kWidth, kType, {n, kWidth});
        save.positions = make_tensor(positions.data(), SMLA_I32, {n});
        save.slots = make_tensor(state_slots.data(), SMLA_I32, {n});
        save.state = state.cache;
        SaveStateOp::check(save);
        SaveStateOp::reference(save, 0, n);
        smla_compress_args args{};
        args.ratio = 2;
        args.eps = 1e-20;
        args.state = state.cache;
        args.cache = cache.cache;
        args.state_table = make_tensor(table_.data(), SMLA_I32, {1, int64_t(table_.size())});
        args.request_of_token = make_tensor(requests.data(), SMLA_I32, {n});
        args.positions = save.positions;
        args.slots = make_tensor(slots.data(), SMLA_I32, {n});
        args.norm_weight = make_tensor(norm_.data(), kType, {kWidth});
        args.frequencies = make_tensor(frequencies_.data(), SMLA_F64, {kPairs});
        args.latents = make_tensor(latents.data() + begin * kWidth, kType, {n, kWidth});
        args.entries = make_tensor(entries.data() + begin * kWidth, kType, {n, kWidth});
        CompressOp::check(args);
        CompressOp::reference(args, n / 2, n);
        CompressOp::reference(args, 0, n / 2);
    }

    TestCache state, cache;
    std::vector<Real> latents, entries;  // [T,D]

private:
    std::vector<Real> kv_, gate_, norm_;
    std::vector<double> frequencies_;
    const std::vector<int32_t> table_{4, 0, 5, 2, 1};
};

template <class Real>
void expect_pairs(double size) {
    const Pairs pairs(size);
    Server<Real> whole(pairs), steps(pairs);
    whole.step(0, kTokens);
    for (const auto& [begin, end] : {std::pair(0, 1), {1, 4}, {4, 7}, {7, 7}, {7, 8}, {8, 13}})
        steps.step(begin, end);  // odd starts read the even token's row
    EXPECT_EQ(steps.entries, whole.entries);
    EXPECT_EQ(steps.latents, whole.latents);
    std::vector<int64_t> rows;
    // a value: 12 products, an exponential and a dozen roundings of what is below 4
    const double tolerance = sizeof(Real) == 8 ? 1e-13 : 4e-5;
    for (int64_t t = 0; t < kTokens; ++t) {
        const Real *latent = &whole.latents[size_t(t * kWidth)], *entry = &whole.entries[size_t(t * kWidth)];
        if (t % 2 == 0) {  // closes nothing: untouched
            for (int64_t d = 0; d < kWidth; ++d)
                EXPECT_TRUE(latent[d] == Real(kUntouched) && entry[d] == Real(kUntouched)) << t;
            continue;
        }
        rows.push_back(t / 2);
        const std::vector<double> want = pairs.latent(t / 2), rotated = pairs.entry(t / 2);
        std::vector<Real> stored(kWidth);
        whole.cache.view().decode(t / 2, stored.data());
        for (int64_t d = 0; d < kWidth; ++d) {
            EXPECT_NEAR(double(latent[d]), want[size_t(d)], tolerance) << t << " " << d;
            EXPECT_NEAR(double(entry[d]), rotated[size_t(d)], tolerance) << t << " " << d;
            EXPECT_EQ(stored[size_t(d)], entry[d]);
        }
    }
    EXPECT_EQ(rows.size(), size_t(kEntries));
    whole.cache.expect_untouched_except(rows);
}

TEST(CompressPairs, EntriesAndLatents) {
    expect_pairs<double>(1);
    expect_pairs<float>(1);
}

// Rows of 1e-9: an eps of 1e-6 would make them zeros. In f32 the squares are above its smallest normal
// number.
TEST(CompressPairs, TinyLatentsKeepTheirSize) {
    expect_pairs<double>(1e-9);
    expect_pairs<float>(1e-9);
    const Pairs pairs(1e-9);
    double square = 0;
    for (const double v : pairs.latent(0)) square += v * v / kWidth;
    EXPECT_GT(square, 0.5);
}

TEST(CompressPairs, LatentsAreRefusedByTheirField) {
    const Pairs pairs(1);
    TestCache state(plain(SMLA_STATE_F32, 2 * kWidth, 3, 2)), cache(plain(SMLA_ROW_F32, kWidth, 4, 1));
    std::vector<float> norm(kWidth, 1.f), latents(size_t(2 * kWidth));
    const std::vector<int32_t> numbers{0, 1};
    const auto refused = [&](smla_tensor given) -> std::string {
        smla_compress_args args{};
        args.ratio = 2;
        args.eps = 1e-20;
        args.state = state.cache;
        args.cache = cache.cache;
        args.state_table = make_tensor(numbers.data(), SMLA_I32, {1, 2});
        args.request_of_token = args.positions = args.slots = make_tensor(numbers.data(), SMLA_I32, {2});
        args.norm_weight = make_tensor(norm.data(), SMLA_F32, {kWidth});
        args.frequencies = make_tensor(pairs.frequencies.data(), SMLA_F64, {kPairs});
        args.latents = given;
        return kit::refused_field([&] { CompressOp::check(args); });
    };
    EXPECT_EQ(refused({}), "");
    EXPECT_EQ(refused(make_tensor(latents.data(), SMLA_F32, {2, kWidth})), "");
    EXPECT_EQ(refused(make_tensor(latents.data(), SMLA_F32, {2, kWidth - 1})), "args.latents.shape");
    EXPECT_EQ(refused(make_tensor(latents.data(), SMLA_F32, {1, kWidth})), "args.latents.shape");
    EXPECT_EQ(refused(make_tensor(latents.data(), SMLA_F64, {2, kWidth})), "args.latents.dtype");
    EXPECT_EQ(refused(make_tensor(latents.data(), SMLA_I32, {2, kWidth})), "args.latents.dtype");
}

}  // namespace
}  // namespace smla::testing
