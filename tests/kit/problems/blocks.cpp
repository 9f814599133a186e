// Problems of score_select_blocks. The expected selection is computed by plain loops, from logits in double
// if all orders of summation give equal logits, and from the bits of the score stage in the same context.
#include "kit/problems/score.h"

#include "ops/score/score.h"

#include <cmath>
#include <set>

namespace smla::kit {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Expected results of one token.
struct Chosen {
    std::vector<double> indices, selected, maxima, blocks;
    double count = 0;
};

// NaN ranks below -inf, and -inf below all other scores; of equal scores, the lower number ranks first.
struct Ranked {
    double score;
    int64_t number;
    bool operator<(const Ranked& other) const {
        const bool a = std::isnan(score), b = std::isnan(other.score);
        if (a != b) return b;
        if (!a && score != other.score) return score > other.score;
        return number < other.number;
    }
};

std::vector<Ranked> best_of(std::vector<Ranked> list, size_t k) {
    std::sort(list.begin(), list.end());
    list.resize(std::min(list.size(), k));
    std::sort(list.begin(), list.end(), [](const Ranked& a, const Ranked& b) { return a.number < b.number; });
    return list;
}

class BlocksProblem : public ProblemOf<Stage::score_select_blocks> {
public:
    explicit BlocksProblem(const Draw& draw) : ProblemOf(draw), inputs_(*this, score_, of_model(), small()) {
        take_inputs();
        args.columns = int32_t(inputs_.columns);
        args.block_size = int32_t(random.pick<int64_t>({1, 3, 8, 8, 16, 64, random.between(1, 200)}));
        args.relative = random.chance(0.3);
        const int64_t tokens = inputs_.tokens, blocks = ceil_div(args.columns, args.block_size);
        const int64_t k =
            random.chance(0.5) ? random.log_between(1, 2048) : random.between(0, inputs_.columns + 9);
        if (random.chance(0.7))
            args.blocks = memory.tensor(SMLA_I32, {tokens, random.between(0, blocks + 9)}, Inner::any);
        args.indices = memory.tensor(SMLA_I32, {tokens, k});
        if (random.chance(0.7)) args.selected = memory.tensor(SMLA_F32, {tokens, k});
        if (random.chance(0.7)) args.counts = memory.tensor(SMLA_I32, {tokens}, Inner::any);
        if (random.chance(0.6)) args.block_maxima = memory.tensor(SMLA_F32, {tokens, blocks});
        if (random.chance(0.6))
            args.best_blocks = memory.tensor(SMLA_I32, {tokens, random.between(0, blocks + 3)});
        description +=
            text(", blocks of ", args.block_size, ", k ", k, present(args.blocks) ? ", listed" : "");
        if (unwanted()) return;
        inputs_.fill(*this, score_);
        if (present(args.blocks)) fill_blocks(blocks);
        expect();
    }

    void expect() override {
        give_inputs();
        memory.allow_nothing();
        for (const Tensor* each :
             {&args.indices, &args.selected, &args.counts, &args.block_maxima, &args.best_blocks})
            memory.allow(*each);
        memory.remember();
        inputs_.expect(*this, score_, args.columns, false);
        memory.reset();
    }

    void run(Context& context, const std::string& kernel, size_t budget, Comparison& out) override {
        ProblemOf::run(context, kernel, budget, out);
        if (alone) return;
        // Computes the logits of the score stage in the same context. The generic kernels of both stages have
        // the same bits; so do kernels with candidates in a table and the score kernel that reads tables.
        smla_score_args score = score_;
        score.precision = SMLA_PRECISION_EXACT;  // the precision of this stage
        std::vector<float> memory(size_t(inputs_.tokens * inputs_.columns) + 1);
        score.logits = make_tensor(memory.data(), SMLA_F32, {inputs_.tokens, inputs_.columns});
        Env env = context.env({});
        if (kernel.find("generic") != std::string::npos)
            env.demanded[size_t(Stage::score)] = kernel_names(Stage::score, env.engine).back();
        else if (kernel == "cuda_streamed_score_select_blocks" && present(args.blocks))
            env.demanded[size_t(Stage::score)] = "cuda_mma_score";
        run_placed<Stage::score>(score, env);
        compare_with(std::vector<double>(memory.begin(), memory.end()), out);
    }

    void compare(const std::string&, Comparison& out) const override {
        if (inputs_.exact) compare_with(inputs_.logits.values, out);
    }

private:
    void take_inputs() {
        args.q = score_.q;
        args.q_scales = score_.q_scales;
        args.w = score_.w;
        args.keys = score_.keys;
        args.block_table = score_.block_table;
        args.request_of_token = score_.request_of_token;
        args.starts = score_.starts;
        args.ends = score_.ends;
    }

    void give_inputs() {
        score_.q = args.q;
        score_.q_scales = args.q_scales;
        score_.w = args.w;
        score_.keys = args.keys;
        score_.block_table = args.block_table;
        score_.request_of_token = args.request_of_token;
        score_.starts = args.starts;
        score_.ends = args.ends;
    }

    // Draws masked entries, duplicates and blocks beyond the window, in any order.
    void fill_blocks(int64_t blocks) {
        each_index(args.blocks, [&](int64_t t, int64_t i, int64_t, int64_t) {
            int64_t block = random.between(0, std::max<int64_t>(blocks - 1, 0));
            if (random.chance(0.1))
                block = random.pick<int64_t>({-1, INT32_MIN, INT32_MAX, blocks, blocks - 1});
            set_int(args.blocks, t, i, block);
        });
    }

    Chosen expect(const std::vector<double>& logits, int64_t t) const {
        const ColumnWindow window = clamp_window(args.starts, args.ends, t, args.columns);
        const int64_t size = args.block_size, blocks = ceil_div(window.end - window.begin, size);
        std::set<int64_t> listed;
        if (!present(args.blocks))
            for (int64_t b = 0; b < blocks; ++b) listed.insert(b);
        for (int64_t i = 0; present(args.blocks) && i < args.blocks.shape[1]; ++i)
            if (const int64_t b = load_int(args.blocks, t, i); b >= 0 && b < blocks) listed.insert(b);
        std::vector<Ranked> columns, maxima;
        Chosen out;
        out.maxima.assign(size_t(ceil_div(args.columns, size)), -kInfinity);
        for (const int64_t b : listed) {
            Ranked best{std::nan(""), 0};
            for (int64_t i = 0; i < size && window.begin + b * size + i < window.end; ++i) {
                const int64_t column = window.begin + b * size + i;
                columns.push_back({logits[size_t(t * inputs_.columns + column)], column});
                if (columns.back() < Ranked{best.score, column}) best.score = columns.back().score;
            }
            if (b == blocks - 1) best.score = kInfinity;
            out.maxima[size_t(b)] = best.score;
            maxima.push_back({best.score, b});
        }
        for (const Ranked& each : best_of(columns, size_t(args.indices.shape[1]))) {
            out.indices.push_back(double(each.number - (args.relative ? window.begin : 0)));
            out.selected.push_back(each.score);
        }
        out.count = double(out.indices.size());
        choose_blocks(maxima, blocks - 1, out);
        return out;
    }

    // Selects the newest block first, then the best of the others.
    void choose_blocks(std::vector<Ranked> maxima, int64_t newest, Chosen& out) const {
        auto room = size_t(present(args.best_blocks) ? args.best_blocks.shape[1] : 0);
        const bool has_newest = !maxima.empty() && maxima.back().number == newest && room > 0;
        if (has_newest) {
            maxima.pop_back();
            --room;
        }
        for (const Ranked& each : best_of(maxima, room)) out.blocks.push_back(double(each.number));
        if (has_newest) out.blocks.push_back(double(newest));
    }

    void compare_with(const std::vector<double>& logits, Comparison& out) const {
        std::vector<double> indices, selected, counts, maxima, blocks;
        const auto append = [](std::vector<double>& to, const std::vector<double>& from, const Tensor& shape,
                               double rest) {
            if (!present(shape)) return;
            to.insert(to.end(), from.begin(), from.end());
            to.insert(to.end(), size_t(shape.shape[1]) - from.size(), rest);
        };
        for (int64_t t = 0; t < inputs_.tokens; ++t) {
            const Chosen want = expect(logits, t);
            append(indices, want.indices, args.indices, -1);
            append(selected, want.selected, args.selected, -kInfinity);
            append(maxima, want.maxima, args.block_maxima, -kInfinity);
            append(blocks, want.blocks, args.best_blocks, -1);
            if (present(args.counts)) counts.push_back(want.count);
        }
        out.equal("indices", args.indices, indices);
        out.equal("selected", args.selected, selected);
        out.equal("counts", args.counts, counts);
        out.equal("block_maxima", args.block_maxima, maxima);
        out.equal("best_blocks", args.best_blocks, blocks);
    }

    smla_score_args score_{};
    ScoreInputs inputs_;
};

}  // namespace

std::unique_ptr<Problem> make_score_select_blocks(Stage, const Draw& draw) {
    return std::make_unique<BlocksProblem>(draw);
}

}  // namespace smla::kit
