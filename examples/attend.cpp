// Sparse attention from C++ over an fp8 cache: writes tokens, and attends to two of them with one query.
// Checks the result, and that an invalid call throws an error.
#include <smla/smla.hpp>

#include <cmath>
#include <cstdio>
#include <vector>

namespace {

constexpr int64_t kTokens = 100, kHeads = 2, kWidth = 576, kValues = 512;

// Returns channel d of softmax(scale * q . k) V over the two listed rows, in double.
double expected(const std::vector<float>& q, const std::vector<float>& kv, int64_t first, int64_t second,
                double scale, int64_t head, int64_t d) {
    double dot[2] = {0, 0};
    const int64_t token[2] = {first, second};
    for (int j = 0; j < 2; ++j)
        for (int64_t i = 0; i < kWidth; ++i)
            dot[j] += double(q[size_t(head * kWidth + i)]) * double(kv[size_t(token[j] * kWidth + i)]);
    const double weight = 1 / (1 + std::exp(scale * (dot[1] - dot[0])));
    return weight * double(kv[size_t(first * kWidth + d)]) +
           (1 - weight) * double(kv[size_t(second * kWidth + d)]);
}

int run() {
    // e4m3 represents these multiples of 1/4 exactly, so unquantized values have the same result.
    std::vector<float> kv(kTokens * kWidth), q(kHeads * kWidth), out(kHeads * kValues), lse(kHeads);
    for (size_t i = 0; i < kv.size(); ++i) kv[i] = float(int(i * 7919 % 15) - 7) / 4;
    for (size_t i = 0; i < q.size(); ++i) q[i] = float(int(i * 104729 % 15) - 7) / 4;
    std::vector<int64_t> slots(kTokens);
    for (int64_t t = 0; t < kTokens; ++t) slots[size_t(t)] = kTokens - 1 - t;  // in any order

    // [README.begin]
    smla::Context context;

    smla_write_args write{};  // writes kv [100,576] to two pages of DeepSeek-V3.2's fp8 records
    write.cache = smla::cache(nullptr, SMLA_FP8_656, /*pages*/ 2, /*page_tokens*/ 64);
    std::vector<char> pages(smla::cache_bytes(write.cache));
    write.cache.data = pages.data();
    write.head = smla::tensor(kv, {100, 576});
    write.slots = smla::tensor(slots);
    context.write_kv(write);

    const std::vector<int32_t> rows{3, -1, 42};  // rows to attend to; negative entries are masked
    smla_attend_args attend{};
    attend.softmax_scale = 0.05;
    attend.q = smla::tensor(q, {1, 2, 576});  // one token, two heads
    attend.primary.cache = write.cache;
    attend.primary.rows = smla::tensor(rows, {1, 3});
    attend.out = smla::tensor(out, {1, 2, 512});
    attend.lse = smla::tensor(lse, {1, 2});
    context.attend(attend);  // throws smla::Error with field, got and wanted
    // [README.end]

    double worst = 0;
    for (int64_t h = 0; h < kHeads; ++h)
        for (int64_t d = 0; d < kValues; ++d)
            worst = std::fmax(worst, std::fabs(double(out[size_t(h * kValues + d)]) -
                                               expected(q, kv, slots[3], slots[42], 0.05, h, d)));
    // Keys and dot products are exact (multiples of 1/16 below 2^20), so f32 rounds only scale * dot, which
    // is at most 89. The error is 2 * 89 * 2^-24 in an exponent, a quarter of that in a weight, times the
    // distance of two values (3.5). The error of exp is smaller.
    const bool right = worst < 2 * 3.5 / 4 * 2 * 89 * 0x1p-24;
    std::printf("%s: largest error %.1e: %s\n", context.description().c_str(), worst, right ? "ok" : "WRONG");

    try {
        attend.softmax_scale = -1;
        context.attend(attend);
    } catch (const smla::Error& error) {
        std::printf("expected error: %s\n", error.what());
        return right && error.field.find("softmax_scale") != std::string::npos ? 0 : 1;
    }
    return 1;
}

}  // namespace

int main() {
    try {
        return run();
    } catch (const smla::Error& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
