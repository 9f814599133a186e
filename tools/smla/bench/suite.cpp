#include "suite.h"

#include <algorithm>
#include <iterator>

namespace smla::cli {

namespace {

constexpr const char* kQuick[] = {"decode b1 sq1 H128 K2048", "decode V4 b2 sq2 H64 K128+512",
                                  "T1 N131072 k2048"};

// Peers: FlashMLA of September 2026 and DeepGEMM 54e2261, each in the cases of its tests, and torch.topk of
// PyTorch 2.11. Kernels round like the peers.
class Suite {
public:
    void decode(int64_t requests, int64_t each, int64_t heads, int64_t rows, double peer_us) {
        AttendCase test = latent_case(SMLA_FP8_656, requests * each, heads, rows);
        test.name = text("decode b", requests, " sq", each, " H", heads, " K", rows);
        attend(test, peer_us);
    }
    void decode_v4(int64_t requests, int64_t each, int64_t heads, int64_t rows, double peer_us) {
        AttendCase test = window_case(SMLA_FP8_584, requests * each, heads, rows);
        test.name = text("decode V4 b", requests, " sq", each, " H", heads, " K128+", rows);
        attend(test, peer_us);
    }
    // 4096 tokens over the same `keys` rows of bf16.
    void prefill(int64_t heads, int64_t width, int64_t rows, int64_t keys, double peer_us) {
        AttendCase test = latent_case(SMLA_ROW_BF16, 4096, heads, rows);
        test.shape.width = width;
        test.shape.primary.pool_rows = keys;
        test.name = text("prefill T4096 H", heads, " ", width, " K", rows, " of ", keys);
        attend(test, peer_us);
    }
    // One request's tokens, each over the keys before it.
    void score_causal(int64_t tokens, int64_t columns, double peer_us) {
        const ScoreCase test = score_of(text("T", tokens, " N", columns, " causal"), tokens, columns, tokens);
        score(test, peer_us);
    }
    void score_paged(int64_t requests, int64_t columns, int64_t next_n, double peer_us) {
        score(score_of(text("B", requests, " N", columns, " next_n ", next_n), requests * next_n, columns,
                       next_n),
              peer_us);
    }
    void select(int64_t tokens, int64_t columns, double peer_us) {
        const SelectCase test{text("T", tokens, " N", columns, " k2048"),
                              {.tokens = tokens, .columns = columns, .topk = 2048}};
        add("select", test.name, "torch.topk", peer_us, [test](Bench& bench) { return bench.select(test); });
    }
    void score_select(int64_t tokens, int64_t columns, double peer_us) {
        const ScoreCase scores =
            score_of(text("T", tokens, " N", columns, " causal, k2048"), tokens, columns, tokens);
        const FusedCase test{scores.name, scores.shape, 2048};
        add("score_select", test.name, "DeepGEMM, torch.topk", peer_us,
            [test](Bench& bench) { return bench.score_select(test); });
    }
    // A matrix product by the BLAS of this GPU, which shows the attainable rate; measured like the cases.
    void product(int64_t n) {
        const ProjectCase test{.name = text("bf16 product ", n, " x ", n, " x ", n),
                               .tokens = n,
                               .groups = 1,
                               .inner = n,
                               .outer = n,
                               .along_n = false,
                               .x = SMLA_BF16};
        add("project", test.name, "", 0, [test](Bench& bench) { return bench.project(test); });
    }
    std::vector<SuiteCase> take() { return std::move(cases_); }

private:
    void add(const char* stage, const std::string& name, const char* peer, double peer_us,
             std::function<Measured(Bench&)> run) {
        cases_.push_back({stage, name, peer, peer_us, std::move(run)});
    }
    void attend(AttendCase test, double peer_us) {
        test.shape.precision = SMLA_PRECISION_ROUNDED;
        add("attend", test.name, "FlashMLA", peer_us, [test](Bench& bench) { return bench.attend(test); });
    }
    void score(const ScoreCase& test, double peer_us) {
        add("score", test.name, "DeepGEMM", peer_us, [test](Bench& bench) { return bench.score(test); });
    }
    static ScoreCase score_of(const std::string& name, int64_t tokens, int64_t columns, int64_t per_request) {
        return {name,
                {.tokens = tokens,
                 .columns = columns,
                 .tokens_per_request = per_request,
                 .precision = SMLA_PRECISION_ROUNDED}};
    }

    std::vector<SuiteCase> cases_;
};

}  // namespace

std::vector<SuiteCase> hopper_suite(bool quick) {
    Suite suite;
    suite.product(quick ? 256 : 8192);
    suite.decode(128, 2, 128, 2048, 414.4);
    suite.decode(64, 2, 128, 2048, 211.5);
    suite.decode(128, 1, 128, 2048, 212.2);
    suite.decode(16, 1, 128, 2048, 46.9);
    suite.decode(4, 1, 128, 2048, 26.0);
    suite.decode(1, 1, 128, 2048, 23.4);
    suite.decode(256, 1, 64, 2048, 240.2);
    suite.decode(128, 1, 64, 2048, 126.2);
    suite.decode(128, 1, 16, 2048, 126.1);
    suite.decode(128, 1, 8, 2048, 126.2);
    suite.decode(16, 1, 16, 2048, 37.3);
    suite.decode_v4(128, 2, 64, 512, 99.1);
    suite.decode_v4(256, 2, 64, 512, 186.4);
    suite.decode_v4(128, 2, 128, 1024, 241.3);
    suite.decode_v4(2, 2, 64, 512, 19.4);
    suite.decode(148, 2, 128, 16384, 3464);
    suite.decode(148, 2, 64, 16384, 1925.5);
    suite.prefill(128, 576, 2048, 8192, 3754.6);
    suite.prefill(128, 576, 2048, 32768, 3961.9);
    suite.prefill(128, 576, 2048, 131072, 4230.7);
    suite.prefill(64, 576, 2048, 32768, 2021.9);
    suite.prefill(64, 512, 512, 8192, 561.1);
    suite.prefill(64, 512, 512, 65536, 634);
    suite.prefill(128, 512, 1024, 8192, 1903.1);
    suite.prefill(128, 512, 1024, 65536, 2028.2);
    suite.score_causal(2048, 8192, 221);
    suite.score_causal(2048, 65536, 1912);
    suite.score_causal(8192, 8192, 500);
    suite.score_causal(8192, 65536, 8320);
    suite.score_paged(256, 8192, 1, 80);
    suite.score_paged(256, 65536, 1, 558);
    suite.score_paged(256, 8192, 2, 86);
    suite.score_paged(256, 65536, 2, 584);
    suite.select(2048, 8192, 310);
    suite.select(2048, 65536, 1726);
    suite.select(256, 65536, 289);
    suite.select(64, 131072, 154);
    suite.select(1, 131072, 97);
    suite.score_select(2048, 65536, 3638);
    std::vector<SuiteCase> cases = suite.take();
    if (quick)
        std::erase_if(cases, [](const SuiteCase& each) {
            return each.stage != "project" &&
                   std::find(std::begin(kQuick), std::end(kQuick), each.name) == std::end(kQuick);
        });
    return cases;
}

}  // namespace smla::cli
