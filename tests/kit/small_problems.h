// Small random problems in vectors; only depends on smla.hpp.
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

// attend: 9 tokens, 3 heads, width 64, 40 listed rows in a cache of 8 pages of 16 tokens.
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

// score_select: selects 16 of 4096 columns for 64 tokens.
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

// Returns the maxima of a plan for DeepSeek-V4, ratio 4: a window of 3 tokens, entries of 4 tokens.
inline smla_plan_args plan_maxima() {
    smla_plan_args args{};
    args.groups = SMLA_GROUP_WINDOW | SMLA_GROUP_COMPRESSED;
    args.max_tokens = 16;
    args.max_requests = 2;
    args.max_seq_len = 64;
    args.window = 3;
    args.ratio = 4;
    args.heads = 8;
    args.workers = 4;
    args.topk = 32;
    return args;
}

// A small latent backend with one step: a request of three tokens on pages [1, 0]. Each token attends to
// itself.
struct BackendStep {
    static smla_backend_args backend() {
        smla_backend_args args{};
        args.dtype = SMLA_F32;
        args.kv_cache_dtype = "row_f32";
        args.heads = 2;
        args.kv_lora_rank = 8;
        args.rope_dim = 2;
        args.nope_dim = 4;
        args.v_head_dim = 3;
        args.page_tokens = 4;
        args.topk = 4;
        args.max_tokens = 8;
        args.max_requests = 2;
        args.max_seq_len = 16;
        args.softmax_scale = 0.5;
        return args;
    }
    smla_plan_batch batch() {
        smla_plan_batch out{};
        out.query_start_loc = smla::tensor(starts);
        out.seq_lens = smla::tensor(lengths);
        out.primary.block_table = smla::tensor(table, {1, 2});
        out.primary.page_tokens = 4;
        return out;
    }
    smla_backend_forward_args args(const smla::Metadata& metadata) {
        smla_backend_forward_args out{};
        out.metadata = metadata.get();
        out.q = smla::tensor(q, {3, 2, 6});
        out.k_c = smla::tensor(k_c, {3, 8});
        out.k_pe = smla::tensor(k_pe, {3, 2});
        out.topk_indices = smla::tensor(topk, {3, 4});
        out.w_uk_t = smla::tensor(w_uk_t, {2, 4, 8});
        out.w_uv = smla::tensor(w_uv, {2, 8, 3});
        out.out = smla::tensor(this->out, {3, 6});
        out.kv_cache = smla::cache(memory.data(), SMLA_ROW_F32, 2, 4, 10);
        return out;
    }

    std::vector<int32_t> starts{0, 3}, lengths{3}, table{1, 0};
    std::vector<int32_t> topk{0, -1, -1, -1, 1, -1, -1, -1, 2, -1, -1, -1};
    std::vector<float> q = random_floats(3 * 2 * 6, 1), k_c = random_floats(3 * 8, 2),
                       k_pe = random_floats(3 * 2, 3), w_uk_t = random_floats(2 * 4 * 8, 4),
                       w_uv = random_floats(2 * 8 * 3, 5);
    std::vector<float> out = std::vector<float>(3 * 6, NAN), memory = std::vector<float>(2 * 4 * 10, NAN);
};
