// Every kernel of the machine against the oracle: formats, dims, heads, row counts, types.
#include "support.h"

namespace attend_test {
namespace {

constexpr smla_format k576[] = {SMLA_ROW_BF16, SMLA_ROW_F32, SMLA_FP8_656, SMLA_FP8_576, SMLA_NVFP4_352};
constexpr smla_format k512[] = {
    SMLA_ROW_BF16,    SMLA_ROW_F32,           SMLA_FP8_584,   SMLA_FP8_512,         SMLA_FP8_528,
    SMLA_FP8_528_G32, SMLA_FP8_528_G32_SPLIT, SMLA_NVFP4_288, SMLA_NVFP4_288_SPLIT, SMLA_NVFP4_384};

Spec spec_of(smla_format format, int64_t width, int64_t k) {
    Spec spec;
    spec.width = width;
    spec.primary.format = format;
    spec.primary.k = k;
    return spec;
}

class Formats : public testing::TestWithParam<std::pair<smla_format, int>> {};

TEST_P(Formats, ExactAndRounded) {
    for (const smla_precision precision : {SMLA_PRECISION_EXACT, SMLA_PRECISION_ROUNDED})
        for (const smla_dtype q : {SMLA_BF16, SMLA_F32, SMLA_F16, SMLA_E4M3}) {
            Spec spec = spec_of(GetParam().first, GetParam().second, 101);
            spec.precision = precision;
            spec.q = q;
            spec.out = q == SMLA_E4M3 || q == SMLA_BF16 ? SMLA_BF16 : q;
            spec.primary.holes = 0.1;
            spec.primary.lengths = true;
            spec.sink = true;
            spec.seed = uint32_t(precision * 10 + q);
            check_all(spec);
            if (spec.primary.format != SMLA_FP8_656 && spec.primary.format != SMLA_FP8_528) continue;
            spec.primary.odd_scales = false;  // bf16 kernels add powers of two to the exponents
            check_all(spec);
        }
}

std::vector<std::pair<smla_format, int>> format_widths() {
    std::vector<std::pair<smla_format, int>> out;
    for (const smla_format f : k576) out.emplace_back(f, 576);
    for (const smla_format f : k512) out.emplace_back(f, 512);
    return out;
}
INSTANTIATE_TEST_SUITE_P(All, Formats, testing::ValuesIn(format_widths()), [](const auto& info) {
    return text(find_format(info.param.first)->name, "_", info.param.second);
});

TEST(Kernels, EveryHeadCount) {
    for (const int64_t heads : {1, 2, 7, 8, 16, 17, 22, 24, 32, 33, 48, 66, 72, 128, 129, 200, 256}) {
        Spec spec = spec_of(SMLA_FP8_656, 576, 37);
        spec.tokens = 1;
        spec.heads = heads;
        spec.seed = uint32_t(heads);
        check_all(spec);
    }
}

TEST(Kernels, LogitsOfAnySize) {
    with_huge_logits({4, 64}, {SMLA_ROW_BF16, SMLA_ROW_F32, SMLA_FP8_656},
                     [](Problem& problem) { check_all(problem); });
}

TEST(Kernels, AnyDims) {  // row formats of any width
    for (const auto& [width, value_width] : {std::pair<int64_t, int64_t>{1, 1},
                                             {3, 2},
                                             {40, 32},
                                             {63, 63},
                                             {65, 64},
                                             {100, 97},
                                             {192, 128},
                                             {320, 256},
                                             {448, 384},
                                             {448, 448},
                                             {576, 500},
                                             {1024, 1024}}) {
        for (const smla_format format : {SMLA_ROW_F32, SMLA_ROW_BF16})
            for (const smla_dtype q : {SMLA_F32, SMLA_BF16})
                for (const int64_t heads : {5, 33}) {
                    Spec spec = spec_of(format, width, heads == 5 ? 23 : 150);
                    spec.value_width = value_width;
                    spec.heads = heads;
                    spec.q = q;
                    check_all(spec);
                }
    }
}

TEST(Kernels, TwoSourcesOfDifferentFormatsAndPages) {
    for (const smla_format window : k512)
        for (const smla_format compressed : k512) {
            Spec spec = spec_of(window, 512, 70);
            spec.primary.page_tokens = 256;
            spec.primary.pages = 2;
            spec.extra.format = compressed;
            spec.extra.k = 130;
            spec.extra.page_tokens = 2;
            spec.extra.pages = 100;
            spec.primary.lengths = spec.extra.lengths = true;
            spec.primary.holes = spec.extra.holes = 0.2;
            spec.sink = true;
            spec.tokens = 3;
            check_all(spec);
        }
}

TEST(Kernels, SplitsOverThreads) {  // one token: rows, then heads, are cut; many tokens: neither
    ThreadPool pool(3);
    for (const int64_t tokens : {1, 2, 4, 7}) {
        Spec spec = spec_of(SMLA_FP8_656, 576, 800);
        spec.tokens = tokens;
        spec.heads = 40;
        spec.primary.lengths = tokens == 2;
        check_all(spec, &pool);
        spec.primary.k = 100;
        spec.heads = 130;
        check_all(spec, &pool);
    }
}

}  // namespace
}  // namespace attend_test
