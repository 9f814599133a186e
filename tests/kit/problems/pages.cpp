// Problems of the stages that use page tables: gather, copy_pages, map.
#include "formats/layouts.h"
#include "kit/problem.h"
#include "ops/map/map.h"

#include <cmath>
#include <cstring>
#include <map>

namespace smla::kit {

namespace {

// Fills a table with pages below `pages` and some invalid entries.
void fill_table(const Tensor& table, Random& random, int64_t pages) {
    const double bad = random.pick({0., 0.1, 1.});
    each_index(table, [&](int64_t r, int64_t b, int64_t, int64_t) {
        set_int(table, r, b,
                random.chance(bad) ? random.pick<int64_t>({-1, INT32_MIN, pages, INT32_MAX})
                                   : random.between(0, pages - 1));
    });
}

// Writes records of random values to every row of the cache.
void fill_records(const smla_cache& cache, Random& random) {
    const CacheView view(cache);
    std::vector<float> values(static_cast<size_t>(view.width));
    for (int64_t row = 0; row < view.capacity; ++row) {
        if (view.hole(row)) continue;
        for (float& value : values) value = float(random.normal());
        view.encode(row, values.data());
    }
}

// A dequantized value is one product, rounded to f32, then to the type of out; raw bytes are copied.
class GatherProblem : public ProblemOf<Stage::gather> {
public:
    explicit GatherProblem(const Draw& draw) : ProblemOf(draw) {
        args.raw = random.chance(0.2);
        const auto format = args.raw
                                ? SMLA_INDEX_FP8_132
                                : random.pick<smla_format>(
                                      {SMLA_ROW_F32, SMLA_ROW_BF16, SMLA_FP8_656, SMLA_FP8_576, SMLA_FP8_584,
                                       SMLA_FP8_512, SMLA_FP8_528, SMLA_INDEX_FP8_132, SMLA_INDEX_MXFP4_68,
                                       SMLA_FP8_528_G32, SMLA_FP8_528_G32_SPLIT, SMLA_NVFP4_288,
                                       SMLA_NVFP4_288_SPLIT, SMLA_NVFP4_384, SMLA_NVFP4_352});
        const int32_t own = find_format(format)->width;
        const int64_t width = own ? own : random.log_between(1, 600), requests = random.between(0, 4);
        const auto page_tokens = int32_t(random.log_between(1, 70));
        args.cache = memory.cache({format, width, random.between(1, 5), page_tokens});
        fill_records(args.cache, random);
        args.block_table = memory.tensor(SMLA_I32, {requests, random.between(0, 4)}, Inner::any);
        fill_table(args.block_table, random, args.cache.pages);
        if (random.chance(0.6)) args.starts = memory.tensor(SMLA_I32, {requests}, Inner::any);
        args.cu = memory.tensor(SMLA_I32, {requests + 1}, Inner::any);
        int64_t rows = random.between(0, 3);
        set_int(args.cu, 0, 0, rows);  // rows below cu[0] have no request
        for (int64_t r = 0; r < requests; ++r) {
            if (present(args.starts)) set_int(args.starts, r, 0, random.between(-2, 2 * page_tokens));
            rows += random.chance(0.2) ? 0 : random.log_between(1, 60);
            set_int(args.cu, r + 1, 0, rows);
        }
        rows += random.between(0, 3);
        const auto out = args.raw ? SMLA_E4M3 : random.pick<smla_dtype>({SMLA_F32, SMLA_BF16, SMLA_F16});
        args.out = memory.tensor(out, {rows, width}, args.raw ? Inner::dense : Inner::any);
        if (args.raw) args.scales = memory.tensor(SMLA_F32, {rows}, Inner::any);
        description = text(find_format(format)->name, " of ", width, args.raw ? " raw" : "", ", ", requests,
                           " requests, ", rows, " rows, out ", dtype_name(out), ", pages of ", page_tokens);
        expect();
    }

    void compare(const std::string&, Comparison& out) const override {
        out.equal("scales", args.scales, scales_.values);
        if (args.raw) return out.equal("out", args.out, out_.values);
        out.close("out", args.out, out_.values, [&](size_t i) {
            return (kF32 + rounding(args.out.dtype)) * std::fabs(out_.values[i]) +
                   smallest_step(args.out.dtype);
        });
    }

    void expect() override {
        memory.allow_nothing();
        allow();
        memory.remember();
        smla_gather_args exact = args;
        GatherOp::check(args);
        if (args.raw) {
            GatherOp::reference(args, 0, GatherOp::tasks(args));
            out_ = Doubles(args.out);
            scales_ = Doubles(args.scales);
            memory.reset();
            return;
        }
        out_ = Doubles::like(args.out);
        exact.out = out_.tensor();
        GatherOp::check(exact);
        GatherOp::reference(exact, 0, GatherOp::tasks(exact));
    }

private:
    // Allows the rows of the requests or, if cu does not ascend, the rows that the reference's loops write.
    void allow() {
        const int64_t last = args.cu.shape[0] - 1;
        bool ascends = load_int(args.cu, 0) >= 0 && load_int(args.cu, last) <= args.out.shape[0];
        for (int64_t r = 0; r < last; ++r)
            ascends = ascends && load_int(args.cu, r) <= load_int(args.cu, r + 1);
        for (const Tensor* each : {&args.out, &args.scales}) {
            if (!present(*each) || element_count(*each) == 0) continue;
            if (ascends) memory.allow(slice(*each, 0, load_int(args.cu, 0), load_int(args.cu, last)));
            else
                memory.allow_written(each->data,
                                     [&] { GatherOp::reference(args, 0, GatherOp::tasks(args)); });
        }
    }

    Doubles out_, scales_;
};

// Records are copied unchanged; bytes between records are not written.
class CopyPagesProblem : public ProblemOf<Stage::copy_pages> {
public:
    explicit CopyPagesProblem(const Draw& draw) : ProblemOf(draw) {
        const auto format = random.pick<smla_format>(
            {SMLA_ROW_F32, SMLA_ROW_BF16, SMLA_FP8_656, SMLA_FP8_576, SMLA_FP8_584, SMLA_FP8_512,
             SMLA_FP8_528, SMLA_INDEX_FP8_132, SMLA_INDEX_MXFP4_68, SMLA_STATE_F32, SMLA_FP8_528_G32,
             SMLA_FP8_528_G32_SPLIT, SMLA_NVFP4_288, SMLA_NVFP4_288_SPLIT, SMLA_NVFP4_384, SMLA_NVFP4_352});
        const Format& known = *find_format(format);
        const int64_t width = known.width ? known.width : random.log_between(1, 300) * known.width_multiple;
        const auto page_tokens = int32_t(random.log_between(1, 40));
        args.source = memory.cache({format, width, random.between(1, 5), page_tokens});
        args.target = memory.cache({format, width, random.between(1, 9), page_tokens});
        args.target.scale = args.source.scale;
        fill_records(args.source, random);
        const int64_t pairs = random.between(0, 6);
        args.pairs = memory.tensor(SMLA_I32, {pairs, 2}, Inner::any);
        // two copies to one page would race, so each target occurs once
        std::vector<int64_t> targets;
        for (int64_t page = 0; page < args.target.pages; ++page) targets.push_back(page);
        for (int64_t i = 0; i < pairs; ++i) {
            int64_t to = -1;
            if (!targets.empty() && random.chance(0.8)) {
                const auto at = random.between(0, int64_t(targets.size()) - 1);
                to = targets[size_t(at)];
                targets.erase(targets.begin() + at);
            } else {
                to = random.pick<int64_t>({-1, INT32_MIN, args.target.pages, INT32_MAX});
            }
            const int64_t bad = random.pick<int64_t>({-1, INT32_MIN, args.source.pages, INT32_MAX});
            set_int(args.pairs, i, 0, random.chance(0.1) ? bad : random.between(0, args.source.pages - 1));
            set_int(args.pairs, i, 1, to);
        }
        description = text(known.name, " of ", width, ", ", pairs, " pairs, pages of ", page_tokens);
        expect();
    }

    void expect() override {
        memory.allow_nothing();
        CopyPagesOp::check(args);
        memory.allow_written(args.target, [&] { CopyPagesOp::reference(args, 0, args.pairs.shape[0]); });
        memory.remember();
        find_rows();
    }

    void compare(const std::string&, Comparison& out) const override {
        const CacheView target(args.target);
        std::vector<double> row(static_cast<size_t>(target.width));
        for (const auto& [number, want] : rows_) {
            target.decode(number, row.data());
            const std::string name = text("target row ", number);
            out.equal(name.c_str(), make_tensor(row.data(), SMLA_F64, {target.width}), want);
        }
        out.equal_bytes("target", memory.image(args.target), bytes_);
    }

private:
    // Computes the values of decoded records from the pairs, and every byte from the reference.
    void find_rows() {
        rows_.clear();
        const CacheView source(args.source), target(args.target);
        for (int64_t i = 0; i < args.pairs.shape[0]; ++i) {
            const int64_t from = load_int(args.pairs, i, 0), to = load_int(args.pairs, i, 1);
            if (from < 0 || from >= source.pages || to < 0 || to >= target.pages) continue;
            for (int64_t token = 0; token < source.page_tokens; ++token) {
                std::vector<double>& row = rows_[to * target.page_rows + token];
                row.resize(size_t(source.width));
                source.decode(from * source.page_rows + token, row.data());
            }
        }
        CopyPagesOp::reference(args, 0, args.pairs.shape[0]);
        bytes_ = memory.image(args.target);
        memory.reset();
    }

    std::map<int64_t, std::vector<double>> rows_;
    std::vector<uint8_t> bytes_;
};

class MapProblem : public ProblemOf<Stage::map> {
public:
    explicit MapProblem(const Draw& draw) : ProblemOf(draw) {
        const int64_t tokens = random.between(0, 9), k = random.chance(0.05) ? 0 : random.log_between(1, 700);
        const int64_t requests = random.between(0, 4), blocks = random.between(0, 20);
        args.page_tokens = int32_t(random.log_between(1, 130));
        if (random.chance(0.3)) args.page_rows = args.page_tokens + int32_t(random.between(0, 200));
        args.positions = memory.tensor(SMLA_I32, {tokens, k}, Inner::any);
        args.request_of_token = memory.tensor(SMLA_I32, {tokens}, Inner::any);
        args.block_table = memory.tensor(SMLA_I32, {requests, blocks}, Inner::any);
        fill_table(args.block_table, random, random.pick<int64_t>({1, 50, INT32_MAX / 200}));
        const int64_t reach = blocks * args.page_tokens;
        each_index(args.positions, [&](int64_t t, int64_t j, int64_t, int64_t) {
            const bool bad = random.chance(0.1);
            set_int(args.positions, t, j,
                    bad ? random.pick<int64_t>({-1, INT32_MIN, reach, INT32_MAX}) : random.between(0, reach));
        });
        for (int64_t t = 0; t < tokens; ++t)
            set_int(args.request_of_token, t, 0,
                    random.chance(0.1) ? random.pick<int64_t>({-1, INT32_MIN, requests, INT32_MAX})
                                       : random.between(0, requests));
        if (random.chance(0.4)) args.pool_tokens = int32_t(random.log_between(1, 20));
        const bool tail = random.chance(args.pool_tokens ? 0.8 : 0.1);
        if (tail) args.visible_tokens = memory.tensor(SMLA_I32, {tokens}, Inner::any);
        for (int64_t t = 0; tail && t < tokens; ++t)
            set_int(args.visible_tokens, t, 0,
                    random.chance(0.1) ? random.pick<int64_t>({-1, INT32_MIN, INT32_MAX})
                                       : random.between(0, reach));
        for (int64_t t = 0; tail && t < tokens; ++t)  // few pools, then masked entries
            for (int64_t j = random.between(0, k); j < k; ++j) set_int(args.positions, t, j, -1);
        const int64_t pool = std::max(args.pool_tokens, 1), columns = k * pool + (tail ? pool - 1 : 0);
        const bool in_place = columns == k && random.chance(0.3);
        args.rows = in_place ? args.positions : memory.tensor(SMLA_I32, {tokens, columns}, Inner::any);
        if (random.chance(0.7)) args.counts = memory.tensor(SMLA_I32, {tokens}, Inner::any);
        if (random.chance(0.7)) args.lengths = memory.tensor(SMLA_I32, {tokens}, Inner::any);
        if (random.chance(0.3)) args.limits = memory.tensor(SMLA_I32, {tokens}, Inner::any);
        for (int64_t t = 0; present(args.limits) && t < tokens; ++t)
            set_int(
                args.limits, t, 0,
                random.chance(0.2) ? random.pick<int64_t>({INT32_MIN, INT32_MAX}) : random.between(0, k + 1));
        description = text("T", tokens, " K", k, args.pool_tokens ? text(" pools of ", args.pool_tokens) : "",
                           ", ", requests, " requests, pages of ", args.page_tokens,
                           args.rows.data == args.positions.data ? ", in place" : "");
        expect();
    }

    void expect() override {
        memory.allow_nothing();
        for (const Tensor* each : {&args.rows, &args.counts, &args.lengths}) memory.allow(*each);
        memory.remember();
        MapOp::check(args);
        const std::vector<int32_t> pools = rows_of_pools();
        MapOp::reference(args, 0, MapOp::tasks(args));
        rows_ = Doubles(args.rows);
        if (args.pool_tokens) rows_.values.assign(pools.begin(), pools.end());
        counts_ = Doubles(args.counts);
        lengths_ = Doubles(args.lengths);
        memory.reset();
    }

    void compare(const std::string&, Comparison& out) const override {
        out.equal("rows", args.rows, rows_.values);
        out.equal("counts", args.counts, counts_.values);
        out.equal("lengths", args.lengths, lengths_.values);
    }

private:
    // Computes each token's list of positions, then looks up the rows.
    std::vector<int32_t> rows_of_pools() const {
        std::vector<int32_t> out;
        for (int64_t t = 0; args.pool_tokens && t < args.positions.shape[0]; ++t) {
            int64_t limit = args.positions.shape[1];
            if (present(args.limits)) limit = std::min(limit, load_int(args.limits, t));
            std::vector<int64_t> list;
            for (int64_t j = 0; j < limit; ++j) {
                const int64_t pool = load_int(args.positions, t, j);
                for (int64_t i = 0; i < args.pool_tokens; ++i)
                    list.push_back(pool < 0 ? -1 : pool * args.pool_tokens + i);
            }
            if (present(args.visible_tokens)) {
                while (!list.empty() && list.back() < 0) list.pop_back();
                const int64_t visible = load_int(args.visible_tokens, t);
                for (int64_t p = visible / args.pool_tokens * args.pool_tokens; p < visible; ++p)
                    list.push_back(p);
            }
            list.resize(size_t(args.rows.shape[1]), -1);
            for (const int64_t position : list)
                out.push_back(map_position(args.block_table, load_int(args.request_of_token, t), position,
                                           args.page_tokens, args.page_rows));
        }
        return out;
    }

    Doubles rows_, counts_, lengths_;
};

}  // namespace

std::unique_ptr<Problem> make_gather(Stage, const Draw& draw) {
    return std::make_unique<GatherProblem>(draw);
}
std::unique_ptr<Problem> make_copy_pages(Stage, const Draw& draw) {
    return std::make_unique<CopyPagesProblem>(draw);
}
std::unique_ptr<Problem> make_map(Stage, const Draw& draw) { return std::make_unique<MapProblem>(draw); }

}  // namespace smla::kit
