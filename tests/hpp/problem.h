// Small random problems over vectors.
#pragma once

#include <smla/smla.hpp>

#include <cmath>
#include <random>
#include <string>
#include <vector>

inline std::vector<float> random_floats(size_t count, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<float> out(count);
    for (float& value : out) value = float(int(random() % 2001) - 1000) / 1000;
    return out;
}

// attend: 9 tokens, 3 heads, 64 wide, 40 listed rows of a cache of 8 pages of 16.
struct Problem {
    static constexpr int64_t tokens = 9, heads = 3, width = 64, listed = 40, pages = 8, page_tokens = 16;

    Problem() {
        std::mt19937 random(5);
        for (int32_t& row : rows) row = random() % 5 ? int32_t(random() % (pages * page_tokens)) : -1;
    }
    smla_attend_args args() {
        smla_attend_args out{};
        out.softmax_scale = 0.2;
        out.q = smla::tensor(q, {tokens, heads, width});
        out.primary.cache = smla::cache(keys.data(), SMLA_ROW_F32, pages, page_tokens, width);
        out.primary.rows = smla::tensor(rows, {tokens, listed});
        out.out = smla::tensor(this->out, {tokens, heads, width});
        out.lse = smla::tensor(lse, {tokens, heads});
        return out;
    }

    std::vector<float> q = random_floats(tokens * heads * width, 1);
    std::vector<float> keys = random_floats(pages * page_tokens * width, 2);
    std::vector<int32_t> rows = std::vector<int32_t>(tokens * listed);
    std::vector<float> out = std::vector<float>(tokens * heads * width, NAN);
    std::vector<float> lse = std::vector<float>(tokens * heads, NAN);
};

// score_select: 64 tokens over 4096 columns, the 16 best.
struct ScoreProblem {
    static constexpr int64_t tokens = 64, heads = 4, width = 32, columns = 4096, topk = 16;

    smla_score_select_args args() {
        smla_score_select_args out{};
        out.columns = columns;
        out.score.q = smla::tensor(q, {tokens, heads, width});
        out.score.w = smla::tensor(w, {tokens, heads});
        out.score.keys = smla::cache(keys.data(), SMLA_ROW_F32, 1, columns, width);
        out.score.ends = smla::tensor(ends);
        out.select.indices = smla::tensor(indices, {tokens, topk});
        return out;
    }

    std::vector<float> q = random_floats(tokens * heads * width, 3), w = random_floats(tokens * heads, 4);
    std::vector<float> keys = random_floats(columns * width, 6);
    std::vector<int32_t> ends = std::vector<int32_t>(tokens, columns);
    std::vector<int32_t> indices = std::vector<int32_t>(tokens * topk);
};
