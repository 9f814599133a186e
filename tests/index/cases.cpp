#include "index/cases.h"

#include "formats/layouts.h"
#include "kit/problem.h"
#include "ops/score/score.h"
#include "ops/score_select/score_select.h"
#include "ops/select/select.h"

#include <algorithm>
#include <cmath>

namespace smla::test {

namespace {

// Small integers have exact dot products in any order; otherwise what a normalised projection looks like.
double random_value(std::mt19937& random, bool exact) {
    if (exact) return double(std::uniform_int_distribution<int>(-2, 2)(random));
    return std::normal_distribution<double>()(random);
}

}  // namespace

ScoreCase::ScoreCase(const ScoreShape& wanted) : shape(wanted) {
    std::mt19937 random(shape.seed);
    make_query(random);
    make_keys(random);
    starts.assign(size_t(shape.tokens), 0);
    ends.assign(size_t(shape.tokens), int32_t(shape.columns));
    for (int64_t t = 0; t < shape.tokens; ++t)
        requests.push_back(int32_t(t * shape.requests / std::max<int64_t>(1, shape.tokens)));
}

void ScoreCase::make_query(std::mt19937& random) {
    const int64_t heads = shape.heads, width = shape.width, row = heads * width;
    q_bytes = Bytes(size_t(shape.tokens * row * dtype_bits(shape.q) / 8));
    q_scales = Bytes(size_t(shape.tokens * row / 32));
    q.assign(size_t(shape.tokens), std::vector<double>(size_t(row)));
    for (int64_t t = 0; t < shape.tokens; ++t)
        for (int64_t i = 0; i < row; ++i) {
            const int64_t at = t * row + i;
            double value = random_value(random, shape.exact);
            uint8_t* byte = reinterpret_cast<uint8_t*>(q_bytes.data()) + at * dtype_bits(shape.q) / 8;
            if (shape.q == SMLA_F32) {
                reinterpret_cast<float*>(q_bytes.data())[at] = float(value);
                value = float(value);
            } else if (shape.q == SMLA_BF16) {
                reinterpret_cast<uint16_t*>(q_bytes.data())[at] = f32_to_bf16(float(value));
                value = bf16_to_f32(f32_to_bf16(float(value)));
            } else if (shape.q == SMLA_E4M3) {
                *byte = f32_to_e4m3(float(value));
                value = e4m3_to_f32(*byte);
            } else {
                uint8_t& scale = reinterpret_cast<uint8_t*>(q_scales.data())[at / 32];
                if (at % 32 == 0) scale = uint8_t(127 + (shape.exact ? 0 : int(random() % 7) - 3));
                const uint8_t code = f32_to_e2m1(float(value));
                *byte = at % 2 ? uint8_t((*byte & 15) | code << 4) : code;
                value = double(e2m1_to_f32(code)) * e8m0_to_f32(scale);
            }
            q[size_t(t)][size_t(i)] = value;
        }
    for (int64_t i = 0; i < shape.tokens * heads; ++i) {
        const double value = random_value(random, false);
        w.push_back(shape.exact ? float(std::copysign(std::exp2(double(random() % 3)), value))
                                : float(value));
    }
}

void ScoreCase::make_keys(std::mt19937& random) {
    const int64_t blocks = std::max<int64_t>(1, ceil_div(shape.columns, shape.page_tokens));
    const int64_t used = shape.paged ? shape.requests * blocks : blocks;
    cache_.format = shape.format;
    cache_.width = int32_t(shape.width);
    cache_.page_tokens = int32_t(shape.page_tokens);
    cache_.page_rows = int32_t(shape.page_rows);
    cache_.pages = used + (shape.paged ? 2 : 0);  // two pages that no request owns
    key_bytes = Bytes(cache_bytes(cache_));
    cache_.data = key_bytes.data();
    std::vector<int32_t> pages(size_t(cache_.pages));
    for (size_t page = 0; page < pages.size(); ++page) pages[page] = int32_t(page);
    if (shape.paged) std::shuffle(pages.begin(), pages.end(), random);
    // One block more than any request has: what stands there is read by nobody.
    for (int64_t r = 0; r < shape.requests; ++r) {
        for (int64_t b = 0; b < blocks; ++b) table.push_back(pages[size_t(r * blocks + b)]);
        table.push_back(r % 2 ? -77 : pages.back());
    }
    const CacheView view(cache_);
    std::vector<double> row(size_t(shape.width));
    for (int64_t b = 0; b < used; ++b)
        for (int64_t offset = 0; offset < shape.page_tokens; ++offset) {
            for (double& value : row) value = random_value(random, shape.exact);
            const int64_t at = (shape.paged ? pages[size_t(b)] : b) * view.page_rows + offset;
            view.encode(at, row.data());
            if (!shape.odd_scales) continue;
            using Layout = layout::IndexFp8_132;
            const float scale = std::uniform_real_distribution<float>(0.001f, 0.01f)(random);
            std::memcpy(view.at(at).page + Layout::scale_at(shape.page_tokens, offset), &scale, sizeof scale);
        }
}

smla_score_args ScoreCase::args() const {
    smla_score_args args{};
    args.struct_size = sizeof args;
    args.q = make_tensor(q_bytes.data(), shape.q, {shape.tokens, shape.heads, shape.width});
    if (shape.q == SMLA_E2M1)
        args.q_scales =
            make_tensor(q_scales.data(), SMLA_E8M0, {shape.tokens, shape.heads, shape.width / 32});
    args.w = make_tensor(w.data(), SMLA_F32, {shape.tokens, shape.heads});
    args.keys = cache_;
    if (shape.paged) {
        args.block_table =
            make_tensor(table.data(), SMLA_I32, {shape.requests, int64_t(table.size()) / shape.requests});
        args.request_of_token = make_tensor(requests.data(), SMLA_I32, {shape.tokens});
    }
    args.starts = make_tensor(starts.data(), SMLA_I32, {shape.tokens});
    args.ends = make_tensor(ends.data(), SMLA_I32, {shape.tokens});
    args.precision = shape.precision;
    return args;
}

int64_t ScoreCase::row(int64_t request, int64_t column) const {
    const CacheView view = keys();
    int64_t row = column;
    if (shape.paged) {
        const int64_t blocks = int64_t(table.size()) / shape.requests, block = column / shape.page_tokens;
        if (request < 0 || request >= shape.requests || block >= blocks) return -1;
        const int32_t page = table[size_t(request * blocks + block)];
        if (page < 0 || page >= view.pages) return -1;
        row = page * view.page_rows + column % shape.page_tokens;
    }
    return view.hole(row) ? -1 : row;
}

Runner::Runner(smla_isa isa, int threads, size_t workspace_bytes)
    : pool_(std::make_shared<ThreadPool>(threads)),
      workspace_(std::make_shared<Bytes>(workspace_bytes / kCacheLine * kCacheLine)) {
    env.isa = isa;
    env.pool = pool_.get();
    env.workspace = {workspace_->data(), workspace_->size()};
}

namespace {

// Stored: float, or the bits of bf16.
template <class Stored, class Score>
std::vector<Stored> scored(const ScoreCase& test, bool fill, const Score& score) {
    const auto canary = sizeof(Stored) == 4 ? Stored(kCanary) : Stored(f32_to_bf16(kCanary));
    const int64_t tokens = test.shape.tokens, columns = test.shape.columns;
    // Rows are further apart than they are long: the gap and a row before and after must stay as they are.
    const int64_t stride = columns + 3;
    std::vector<Stored> memory(size_t((tokens + 2) * stride), canary), out;
    smla_score_args args = test.args();
    args.fill = fill;
    args.logits =
        make_tensor(memory.data() + stride, sizeof(Stored) == 4 ? SMLA_F32 : SMLA_BF16, {tokens, columns});
    args.logits.stride_elems[0] = stride;
    score(args);
    for (int64_t i = 0; i < int64_t(memory.size()); ++i) {
        const int64_t t = i / stride - 1, j = i % stride;
        if (t >= 0 && t < tokens && j < columns) out.push_back(memory[size_t(i)]);
        else EXPECT_EQ(memory[size_t(i)], canary) << "row " << t << " column " << j;
    }
    return out;
}

Tensor optional(const std::vector<int32_t>* values) {
    return values ? make_tensor(values->data(), SMLA_I32, {int64_t(values->size())}) : Tensor{};
}

template <class Select>
Selection selection(int64_t tokens, int64_t k, const Select& select) {
    constexpr int64_t kGap = 5;
    Selection out;
    std::vector<int32_t> indices(size_t(tokens * (k + kGap)), -99);
    std::vector<float> selected(size_t(tokens * (k + kGap)), kCanary);
    out.counts.assign(size_t(tokens), -5);
    smla_select_args args{};
    args.indices = make_tensor(indices.data(), SMLA_I32, {tokens, k});
    args.selected = make_tensor(selected.data(), SMLA_F32, {tokens, k});
    args.indices.stride_elems[0] = args.selected.stride_elems[0] = k + kGap;
    args.counts = make_tensor(out.counts.data(), SMLA_I32, {tokens});
    select(args);
    for (int64_t i = 0; i < tokens * (k + kGap); ++i) {
        if (i % (k + kGap) < k) {
            out.indices.push_back(indices[size_t(i)]);
            out.selected.push_back(selected[size_t(i)]);
        } else {
            EXPECT_EQ(indices[size_t(i)], -99);
            EXPECT_EQ(selected[size_t(i)], kCanary);
        }
    }
    return out;
}

template <class Stored>
std::vector<Stored> run_score_to(const ScoreCase& test, const Env& env, bool fill) {
    return scored<Stored>(test, fill, [&](const smla_score_args& args) {
        if (env.engine == SMLA_ENGINE_CUDA) kit::run_placed<Stage::score>(args, env);
        else run_stage<Stage::score>(args, env);
    });
}

}  // namespace

std::vector<float> run_score(const ScoreCase& test, const Env& env, bool fill) {
    return run_score_to<float>(test, env, fill);
}

std::vector<uint16_t> run_score_to_bf16(const ScoreCase& test, const Env& env, bool fill) {
    return run_score_to<uint16_t>(test, env, fill);
}

std::vector<float> reference_score(const ScoreCase& test, bool fill) {
    return scored<float>(test, fill, [&](const smla_score_args& args) {
        ScoreOp::check(args);
        ScoreOp::reference(args, 0, ScoreOp::tasks(args));
    });
}

Selection run_select(const Tensor& scores, int64_t k, const Env& env, const std::vector<int32_t>* starts,
                     const std::vector<int32_t>* ends, bool relative) {
    return selection(scores.shape[0], k, [&](smla_select_args& args) {
        args.scores = scores;
        args.starts = optional(starts);
        args.ends = optional(ends);
        args.relative = relative;
        run_stage<Stage::select>(args, env);
    });
}

Selection run_score_select(const ScoreCase& test, int64_t k, const Env& env, bool relative) {
    return selection(test.shape.tokens, k, [&](smla_select_args& args) {
        smla_score_select_args fused{};
        fused.columns = int32_t(test.shape.columns);
        fused.score = test.args();
        fused.select = args;
        fused.select.relative = relative;
        run_stage<Stage::score_select>(fused, env);
    });
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::string first_difference(const std::vector<float>& a, const std::vector<float>& b, int64_t columns) {
    if (a.size() != b.size()) return "sizes differ";
    for (size_t i = 0; i < a.size(); ++i)
        if (std::memcmp(&a[i], &b[i], sizeof(float)) != 0)
            return "row " + std::to_string(int64_t(i) / columns) + " column " +
                   std::to_string(int64_t(i) % columns) + ": " + std::to_string(a[i]) + " and " +
                   std::to_string(b[i]);
    return "no difference";
}

}  // namespace smla::test
