// Problems of compress.
#include "core/hadamard.h"
#include "kit/problem.h"
#include "ops/map/map.h"

#include <smla/formats.h>

#include <cmath>
#include <set>

namespace smla::kit {

namespace {

smla_format pick_entry_format(Random& random) {
    std::vector<smla_format> out;
    for (const Format* format : all_formats())
        if ((kKvFormats | kIndexFormats) & ~format_bit(SMLA_ROW_F64) & format_bit(format->id))
            out.push_back(format->id);
    return out[size_t(random.between(0, int64_t(out.size()) - 1))];
}

// Expected entry of a token, from a separate model in double, with the error bound of f32.
struct Entry {
    int64_t token;
    std::vector<double> want, bound;
    std::vector<double> latent, latent_bound;  // before the rotation
};

class CompressProblem : public ProblemOf<Stage::compress> {
public:
    explicit CompressProblem(const Draw& draw) : ProblemOf(draw) {
        const int64_t tokens = random.chance(0.05) ? 0 : random.log_between(1, 30),
                      requests = random.between(1, 4);
        const smla_format format = pick_entry_format(random);
        const Format& known = *find_format(format);
        width_ = known.width ? known.width : random.log_between(1, 200) * known.width_multiple;
        args.ratio = int32_t(random.pick<int64_t>({4, 4, small() ? 8 : 128, 1, 3}));
        if (format_bit(format) & kIndexFormats && is_power_of_two(width_)) args.hadamard = random.chance(0.5);
        args.no_overlap = random.chance(0.3);
        args.eps = random.pick({1e-6, 1e-3});
        score_shift_ = random.pick({0.f, 0.f, 300.f, -300.f});
        coff_ = args.ratio == 4 && !args.no_overlap ? 2 : 1;
        args.cache = memory.cache({format, width_, random.between(1, 4), int32_t(random.log_between(1, 40))});
        const int64_t span = random.log_between(args.ratio, 4 * args.ratio + 20),  // positions of a request
            page = random.log_between(1, 16), blocks = (span + page - 1) / page;
        args.state = memory.cache({SMLA_STATE_F32, 2 * coff_ * width_, requests * blocks, int32_t(page)});
        args.state_table = memory.tensor(SMLA_I32, {requests, blocks});
        fill_table();
        make_tokens(tokens, requests, span);
        if (random.chance(0.7)) {
            args.norm_weight =
                memory.tensor(random.pick<smla_dtype>({SMLA_F32, SMLA_BF16}), {width_}, Inner::any);
            fill_normal(args.norm_weight, random, 1);
        }
        const int64_t pairs = random.between(0, std::min<int64_t>(width_ / 2, 32));
        args.frequencies = memory.tensor(SMLA_F64, {pairs});
        for (int64_t i = 0; i < pairs; ++i)
            set_value(args.frequencies, i, 0, 0, 0, std::pow(10000., -double(i) / double(pairs)));
        if (random.chance(0.8)) args.entries = memory.tensor(SMLA_F32, {tokens, width_}, Inner::any);
        if (random.chance(0.4)) args.latents = memory.tensor(SMLA_F32, {tokens, width_}, Inner::any);
        expect();
        description = text("T", tokens, " ratio ", args.ratio, " to ", known.name, " of ", width_,
                           args.hadamard ? ", rotated" : "", ", ", entries_.size(), " entries");
    }

    // Compares the entry, then the cache, which must have the format's bytes of that entry.
    void compare(const std::string&, Comparison& out) const override {
        const CacheView cache(args.cache);
        size_t bytes = 0;
        smla_cache_bytes(&args.cache, &bytes);
        std::vector<uint8_t> own(bytes);
        smla_cache copy = args.cache;
        copy.data = own.data();
        const CacheView expected(copy);
        std::vector<double> got(static_cast<size_t>(width_)), want(got.size());
        for (const Entry& entry : entries_) {
            const int64_t slot = load_int(args.slots, entry.token);
            if (overwritten(entry)) continue;
            cache.decode(slot, got.data());
            for (int64_t d = 0; present(args.latents) && d < width_; ++d)
                out.near(load_one<double>(args.latents, entry.token, d), entry.latent[size_t(d)],
                         entry.latent_bound[size_t(d)] + 1e-37,
                         text("latent of token ", entry.token, " channel ", d));
            if (args.hadamard) compare_rotated(entry, got, out);
            if (!present(args.entries)) {
                if (args.hadamard) continue;
                if (cache.format->scale != ScaleKind::none) continue;
                const smla_dtype type = args.cache.format == SMLA_ROW_BF16 ? SMLA_BF16 : SMLA_F32;
                for (size_t d = 0; d < got.size(); ++d)
                    note(entry, d, got[d], rounding(type) * std::fabs(entry.want[d]) + 1e-37, out);
                continue;
            }
            std::vector<float> row(got.size());
            for (size_t d = 0; d < row.size(); ++d) {
                load_row(args.entries, address(args.entries, entry.token, int64_t(d)), 1, &row[d]);
                note(entry, d, row[d], 1e-37, out);
                if (cache.format->rounds_entries()) row[d] = round_to_bf16(row[d]);
            }
            if (args.hadamard) continue;  // the rotation's order of sums depends on the kernel
            expected.encode(slot, row.data());
            expected.decode(slot, want.data());
            for (size_t d = 0; d < got.size(); ++d)
                out.check(got[d] == want[d] || (std::isnan(got[d]) && std::isnan(want[d])),
                          text("entry of token ", entry.token, " channel ", d, " is cached as ", got[d],
                               ", wanted ", want[d]));
        }
    }

    void expect() override {
        width_ = CacheView(args.cache).width;
        coff_ = args.ratio == 4 && !args.no_overlap ? 2 : 1;
        memory.allow_nothing();
        find_entries();
        allow();
        memory.remember();
    }

private:
    // Returns whether a later token has the same slot.
    bool overwritten(const Entry& entry) const {
        return std::any_of(entries_.begin() + (&entry - entries_.data()) + 1, entries_.end(),
                           [&](const Entry& later) {
                               return load_int(args.slots, later.token) == load_int(args.slots, entry.token);
                           });
    }
    // After the inverse rotation, the cached row equals the entry except for roundings, whose L2 norm the
    // rotation keeps. The error of a value is half a step of its format's grid, whose scale is at most twice
    // the smallest scale that fits the tile's largest magnitude M: e4m3 max(|x| / 16, M / 448 / 2^9), e2m1
    // max(|x| / 4, M / 12).
    void compare_rotated(const Entry& entry, std::vector<double> got, Comparison& out) const {
        std::vector<double> rotated = entry.want;
        hadamard(rotated.data(), width_);
        hadamard(got.data(), width_);
        double norm = 0, bound = 0, error = 0, largest = 6e-4;  // lower bounds of scales
        for (size_t d = 0; d < got.size(); ++d) {
            norm += entry.want[d] * entry.want[d];
            bound += entry.bound[d] * entry.bound[d];
            error += (got[d] - entry.want[d]) * (got[d] - entry.want[d]);
            largest = std::max(largest, std::fabs(rotated[d]));
        }
        const double step = largest * std::sqrt(double(width_));
        double rounded = rounding(args.cache.format == SMLA_ROW_F32 ? SMLA_F32 : SMLA_BF16) * std::sqrt(norm);
        if (find_format(args.cache.format)->rounds_entries()) rounded *= 2;  // before and after the rotation
        if (args.cache.format == SMLA_INDEX_FP8_132) rounded += std::sqrt(norm) / 16 + step / 448 / 512;
        if (args.cache.format == SMLA_INDEX_MXFP4_68) rounded += std::sqrt(norm) / 4 + step / 12;
        if (!std::isfinite(norm)) return;
        out.note(std::sqrt(error), std::sqrt(bound) + rounded + 2 * sum_error(width_) * std::sqrt(norm),
                 text("entry of token ", entry.token, ", rotated back"));
    }
    void note(const Entry& entry, size_t d, double got, double more, Comparison& out) const {
        out.near(
            got, entry.want[d], entry.bound[d] + more,
            text("entry of token ", entry.token, " channel ", d, " is ", got, ", wanted ", entry.want[d]));
    }

    // Uses every page once, in any order; some pages are missing.
    void fill_table() {
        const int64_t blocks = args.state_table.shape[1], pages = args.state.pages;
        std::vector<int64_t> order(static_cast<size_t>(pages));
        for (int64_t i = 0; i < pages; ++i) {
            const auto other = size_t(random.between(0, i));
            order[size_t(i)] = order[other];
            order[other] = i;
        }
        for (int64_t i = 0; i < pages; ++i) {
            const int64_t gone = random.pick<int64_t>({-1, pages, INT32_MAX});
            set_int(args.state_table, i / blocks, i % blocks, random.chance(0.05) ? gone : order[size_t(i)]);
        }
    }

    void make_tokens(int64_t tokens, int64_t requests, int64_t span) {
        const auto ints = [&] { return random.pick<smla_dtype>({SMLA_I32, SMLA_I64}); };
        args.request_of_token = memory.tensor(SMLA_I32, {tokens}, Inner::any);
        args.positions = memory.tensor(ints(), {tokens}, Inner::any);
        const int64_t n = random.chance(0.2) ? random.between(0, tokens) : tokens;
        args.slots = memory.tensor(ints(), {n}, Inner::any);
        const CacheView cache(args.cache);
        std::set<int64_t> used;
        for (int64_t t = 0; t < tokens; ++t) {
            set_int(args.request_of_token, t, 0, random.between(0, requests - 1));
            const bool closes = random.chance(0.7);
            const int64_t group = random.between(0, std::max<int64_t>(span / args.ratio, 1) - 1);
            set_int(args.positions, t, 0,
                    closes ? group * args.ratio + args.ratio - 1 : random.between(-1, span - 1));
            if (t >= n) continue;
            const int64_t slot = random.between(0, cache.capacity - 1);
            set_int(args.slots, t, 0,
                    random.chance(0.1) || !used.insert(slot).second
                        ? random.pick<int64_t>({-1, cache.capacity})
                        : slot);
        }
    }

    // Fills the state rows that a window reads; all others stay NaN.
    void fill_row(const CacheView& state, int64_t row) {
        std::vector<float> values(static_cast<size_t>(state.width));
        state.decode(row, values.data());
        if (!std::isnan(values[0])) return;
        for (float& v : values) v = float(2 * random.normal());
        for (size_t d = values.size() / 2; d < values.size(); ++d) values[d] += score_shift_;
        state.encode(row, values.data());
    }

    void find_entries() {
        entries_.clear();
        const CacheView state(args.state), cache(args.cache);
        for (int64_t t = 0; t < args.slots.shape[0]; ++t) {
            const int64_t position = load_int(args.positions, t);
            if (position < 0 || position % args.ratio != args.ratio - 1 ||
                cache.hole(load_int(args.slots, t)))
                continue;
            Entry entry = pooled(state, t, position);
            normed(entry);
            entry.latent = entry.want;
            entry.latent_bound = entry.bound;
            rotated(entry, position / args.ratio * args.ratio);
            entries_.push_back(std::move(entry));
        }
    }

    // The error of a weight is that of its exponent's roundings and of the exponential; the errors of sums
    // depend on their length.
    Entry pooled(const CacheView& state, int64_t token, int64_t position) {
        const int64_t rows = coff_ * args.ratio;
        const auto n = size_t(width_);
        std::vector<std::vector<double>> found;  // kv, then score of each row
        std::vector<int64_t> half;
        for (int64_t j = 0; j < rows; ++j) {
            const int64_t row = map_position(args.state_table, load_int(args.request_of_token, token),
                                             position - rows + 1 + j, state.page_tokens, state.page_rows);
            if (state.hole(row)) continue;
            fill_row(state, row);
            found.emplace_back(size_t(state.width));
            state.decode(row, found.back().data());
            half.push_back(coff_ == 2 && j >= args.ratio ? 1 : 0);
        }
        Entry out{token, std::vector<double>(n, 0), std::vector<double>(n, 0), {}, {}};
        for (size_t d = 0; d < n; ++d) {
            double peak = -std::numeric_limits<double>::infinity(), sum = 0, value = 0, size = 0;
            const auto kv = [&](size_t j) { return found[j][size_t(half[j]) * n + d]; };
            const auto score = [&](size_t j) { return found[j][size_t(coff_ + half[j]) * n + d]; };
            for (size_t j = 0; j < found.size(); ++j) peak = std::max(peak, score(j));
            for (size_t j = 0; j < found.size(); ++j) {
                const double weight = std::exp(score(j) - peak);
                sum += weight;
                value += weight * kv(j);
                size += weight * std::fabs(kv(j));
            }
            if (found.empty()) continue;
            out.want[d] = value / sum;
            out.bound[d] = (0x1p-20 + 2 * sum_error(rows)) * size / sum;
        }
        return out;
    }

    void normed(Entry& entry) const {
        if (!present(args.norm_weight)) return;
        const Doubles weight(args.norm_weight);
        if (args.cache.writer & SMLA_WRITER_BF16_POOLED)
            for (size_t d = 0; d < entry.want.size(); ++d)
                entry.bound[d] += rounding(SMLA_BF16) * (std::fabs(entry.want[d]) + entry.bound[d]);
        double square = 0, spoilt = 0;
        for (size_t d = 0; d < entry.want.size(); ++d) {
            square += entry.want[d] * entry.want[d] / double(width_);
            spoilt += (2 * std::fabs(entry.want[d]) + entry.bound[d]) * entry.bound[d] / double(width_);
        }
        const double under = square + args.eps, factor = 1 / std::sqrt(under);
        const double relative = spoilt / under + sum_error(width_) + 4 * kF32;
        for (size_t d = 0; d < entry.want.size(); ++d) {
            const double y = entry.want[d] * factor * weight.values[d];
            entry.bound[d] = entry.bound[d] * factor * std::fabs(weight.values[d]) + relative * std::fabs(y);
            entry.want[d] = y;
        }
    }

    void rotated(Entry& entry, int64_t position) const {
        const Doubles frequencies(args.frequencies);
        const size_t pairs = frequencies.values.size(), first = size_t(width_) - 2 * pairs;
        for (size_t i = 0; i < pairs; ++i) {
            double &a = entry.want[first + 2 * i], &b = entry.want[first + 2 * i + 1];
            double &bound_a = entry.bound[first + 2 * i], &bound_b = entry.bound[first + 2 * i + 1];
            const double angle = double(position) * frequencies.values[i], c = std::cos(angle),
                         s = std::sin(angle), x = a, y = b;
            a = x * c - y * s;
            b = y * c + x * s;
            bound_a = bound_b = bound_a + bound_b + 4 * kF32 * (std::fabs(x) + std::fabs(y));
        }
    }

    // Allows the rows that the reference's loops write.
    void allow() {
        const Tensor entries = args.entries, latents = args.latents;
        args.entries = args.latents = Tensor{};
        CompressOp::check(args);
        memory.allow_written(args.cache, [&] { CompressOp::reference(args, 0, CompressOp::tasks(args)); });
        args.entries = entries;
        args.latents = latents;
        CompressOp::check(args);
        for (const Entry& entry : entries_)
            for (const Tensor* each : {&entries, &latents})
                if (present(*each)) memory.allow(*each, entry.token, 0, width_);
    }

    int64_t width_ = 0, coff_ = 1;
    float score_shift_ = 0;  // of all scores: without subtracting the maximum, exponentials would overflow
    std::vector<Entry> entries_;
};

}  // namespace

std::unique_ptr<Problem> make_compress(Stage, const Draw& draw) {
    return std::make_unique<CompressProblem>(draw);
}

}  // namespace smla::kit
