// Problems of the stages that write cached tokens: write_kv, write_index, save_state.
#include "kit/problems/row.h"

#include <cmath>
#include <cstring>
#include <map>
#include <set>

namespace smla::kit {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

smla_format pick_format(Random& random, uint32_t allowed) {
    std::vector<smla_format> out;
    for (const Format* format : all_formats())
        if (allowed & format_bit(format->id)) out.push_back(format->id);
    return out[size_t(random.between(0, int64_t(out.size()) - 1))];
}

int64_t pick_width(Random& random, smla_format format) {
    const Format& known = *find_format(format);
    if (known.width) return known.width;
    if (random.chance(0.3)) return random.pick<int64_t>({128, 512, 576});
    return random.log_between(1, 512) * known.width_multiple;
}

int64_t pick_hole(Random& random, const CacheView& cache, smla_dtype dtype) {
    if (dtype == SMLA_I64 && random.chance(0.3))
        return random.pick<int64_t>({INT64_MIN, INT64_MAX, int64_t(1) << 32, -(int64_t(1) << 32)});
    return random.pick<int64_t>(
        {-1, INT32_MIN, cache.capacity, INT32_MAX, cache.page_tokens - cache.page_rows - 1});
}

// Draws N <= tokens slots of different rows, some of them masked.
Tensor make_slots(Problem& problem, const smla_cache& cache, int64_t tokens) {
    Random& random = problem.random;
    const CacheView view(cache);
    const int64_t n = random.chance(0.3) ? random.between(0, tokens) : tokens;
    Tensor out = problem.memory.tensor(random.pick<smla_dtype>({SMLA_I64, SMLA_I32}), {n}, Inner::any);
    const double holes = random.pick({0., 0.2, 1.});
    std::set<int64_t> used;  // two tokens with one slot would race
    for (int64_t t = 0; t < n; ++t) {
        int64_t slot = random.between(0, view.capacity - 1);
        if (random.chance(holes) || !used.insert(slot).second) slot = pick_hole(random, view, out.dtype);
        set_int(out, t, 0, slot);
    }
    return out;
}

smla_dtype pick_float(Random& random) { return random.pick<smla_dtype>({SMLA_F32, SMLA_BF16, SMLA_F16}); }

// Draws values like those of projections; some tokens are all zero, huge, tiny or not finite.
void fill_activations(const Tensor& tensor, Random& random, bool specials) {
    fill_normal(tensor, random, random.pick({0.01, 1., 100.}));
    for (int64_t t = 0; t < tensor.shape[0] && specials; ++t) {
        if (!random.chance(0.15)) continue;
        const double value = random.pick({0., 1e-30, 1e30, std::nan(""), kInfinity, -kInfinity});
        const bool whole = random.chance(0.5) && std::isfinite(value);
        for (int64_t d = 0; d < tensor.shape[1]; ++d)
            if (whole || random.chance(0.02)) set_value(tensor, t, d, 0, 0, value);
    }
}

// The writer's rule determines the bytes of a row, which must equal those of the reference in double. A
// Hadamard rotation is summed in f32 first, which may change a code by one step; then, values are compared
// instead. For a row that is normed or rotated by position, `values` is compared, and the bytes are compared
// with those that the reference computes from `values`.
template <Stage S>
class WriteProblem : public ProblemOf<S> {
public:
    explicit WriteProblem(const Draw& draw) : ProblemOf<S>(draw) {
        constexpr bool index = S == Stage::write_index;
        Random& random = this->random;
        HostileMemory& memory = this->memory;
        smla_write_args& args = this->args;
        const smla_format format =
            pick_format(random, (index ? kIndexFormats : kKvFormats) & ~format_bit(SMLA_ROW_F64));
        const int64_t tokens = random.chance(0.05) ? 0 : random.log_between(1, 40);
        int64_t width = pick_width(random, format);
        args.hadamard = index && random.chance(0.4);
        if (args.hadamard && !find_format(format)->width) width = int64_t(1) << random.between(0, 9);
        args.cache = memory.cache({format, width, random.between(1, 4), int32_t(random.log_between(1, 70))});
        const int64_t head = random.chance(0.4) ? width : random.between(0, width);
        const bool norms = head > 0 && random.chance(0.3), rotates = width > 1 && random.chance(0.3),
                   specials = !args.hadamard && !norms && !rotates;
        args.head = memory.tensor(pick_float(random), {tokens, head}, Inner::any);
        fill_activations(args.head, random, specials);
        if (head < width) {
            args.tail = memory.tensor(pick_float(random), {tokens, width - head}, Inner::any);
            fill_activations(args.tail, random, specials);
        }
        if (!specials && head > 0 && tokens > 0 && random.chance(0.2))
            set_value(args.head, random.between(0, tokens - 1), random.between(0, head - 1), 0, 0,
                      std::nan(""));
        args.slots = make_slots(*this, args.cache, tokens);
        if (norms) draw_norm();
        if (rotates) draw_rotation_of(width);
        if (norms || rotates || random.chance(0.1))
            args.values = memory.tensor(specials || random.chance(0.8) ? SMLA_F32 : pick_float(random),
                                        {tokens, width}, Inner::any);
        this->description = text("T", tokens, " ", find_format(format)->name, " of ", width, ", head ", head,
                                 " ", dtype_name(args.head.dtype), norms ? ", normed" : "",
                                 rotates ? ", turned" : "", args.hadamard ? ", rotated" : "");
        expect();
    }

    void compare(const std::string&, Comparison& out) const override {
        const smla_write_args& args = this->args;
        std::vector<uint8_t> bytes = bytes_;
        std::vector<double> rows = rows_;
        if (present(args.values)) {
            Tensor written = args.values;  // rows of padding are not written
            written.shape[0] = args.slots.shape[0];
            out.close("values", written, want_,
                      [&](size_t i) { return bound_[i] + stored(args.values.dtype, want_[i]); });
            if (args.values.dtype != SMLA_F32) return;  // the last bits of the row are unknown
            smla_write_args given = args;
            const Doubles values(args.values);
            given.head = values.tensor();
            given.tail = given.norm_weight = given.norm_bias = given.positions = given.frequencies =
                given.values = Tensor{};
            given.rope_first = 0;
            bytes = bytes_of(given);
            if (args.hadamard) rows = rows_of(given);
        }
        if (!args.hadamard) return out.equal_bytes("cache", this->memory.image(this->args.cache), bytes);
        compare_rotated(rows, out);
    }

    void expect() override {
        this->memory.allow_nothing();
        smla_write_args exact = this->args;
        const Doubles head(exact.head), tail(exact.tail);
        exact.head = head.tensor();
        exact.tail = tail.tensor();
        exact.values = Tensor{};
        OpOf<S>::check(exact);
        const auto write = [&] { OpOf<S>::reference(exact, 0, OpOf<S>::tasks(exact)); };
        this->memory.allow_written(exact.cache, write);
        if (present(this->args.values)) {
            Tensor written = this->args.values;
            written.shape[0] = this->args.slots.shape[0];
            this->memory.allow(written);
        }
        this->memory.remember();
        before_ = this->memory.image(exact.cache);
        bytes_ = bytes_of(exact);
        if (exact.hadamard) rows_ = rows_of(exact);
        expect_values();
    }

private:
    void draw_norm() {
        Random& random = this->random;
        smla_write_args& args = this->args;
        const int64_t head = args.head.shape[1];
        args.norm_kind = random.pick<smla_norm_kind>({SMLA_NORM_RMS, SMLA_NORM_LAYER});
        args.eps = random.pick({1e-6, 1e-5, 1e-3});
        args.norm_weight = this->memory.tensor(pick_float(random), {head}, Inner::any);
        fill_normal(args.norm_weight, random, 1);
        if (args.norm_kind == SMLA_NORM_RMS || random.chance(0.3)) return;
        args.norm_bias = this->memory.tensor(pick_float(random), {head}, Inner::any);
        fill_normal(args.norm_bias, random, 1);
    }
    void draw_rotation_of(int64_t width) {
        smla_write_args& args = this->args;
        const int64_t pairs = this->random.between(0, std::min<int64_t>(width / 2, 40));
        draw_rotation(*this, args.head.shape[0], pairs, args.positions, args.frequencies);
        args.rope_style =
            this->random.template pick<smla_rope_style>({SMLA_ROPE_INTERLEAVED, SMLA_ROPE_HALF});
        args.rope_first = int32_t(this->random.between(0, width - 2 * pairs));
    }

    // Returns the bytes of the cache after the reference, in double, has written it.
    std::vector<uint8_t> bytes_of(smla_write_args exact) const {
        std::vector<uint8_t> bytes = before_;
        const uint8_t* const begin = block_around(exact.cache.data).payload.begin;
        if (exact.cache.data)
            exact.cache.data = bytes.data() + (static_cast<uint8_t*>(exact.cache.data) - begin);
        OpOf<S>::reference(exact, 0, OpOf<S>::tasks(exact));
        return bytes;
    }
    // Returns the rows in double, by slot.
    std::vector<double> rows_of(smla_write_args exact) const {
        const CacheView cache(exact.cache);
        std::vector<double> rows(size_t(cache.pages * cache.page_rows * cache.width), 0.);
        exact.cache = smla_cache{};
        exact.cache.format = SMLA_ROW_F64;
        exact.cache.width = cache.width;
        exact.cache.page_tokens = int32_t(cache.page_tokens);
        exact.cache.page_rows = int32_t(cache.page_rows);
        exact.cache.pages = cache.pages;
        exact.cache.row_stride_bytes = cache.width * 8;
        exact.cache.page_stride_bytes = cache.page_rows * cache.width * 8;
        exact.cache.data = rows.data();
        OpOf<S>::reference(exact, 0, OpOf<S>::tasks(exact));
        return rows;
    }

    // Computes the expected `values`.
    void expect_values() {
        const smla_write_args& args = this->args;
        want_.clear();
        bound_.clear();
        if (!present(args.values)) return;
        const Doubles head(args.head), tail(args.tail), weight(args.norm_weight), bias(args.norm_bias),
            frequencies(args.frequencies);
        const auto of_head = size_t(args.head.shape[1]),
                   of_tail = size_t(CacheView(args.cache).width) - of_head;
        for (size_t t = 0; t < size_t(args.slots.shape[0]); ++t) {
            std::vector<double> exact(head.values.begin() + int64_t(t * of_head),
                                      head.values.begin() + int64_t((t + 1) * of_head));
            for (size_t d = 0; d < of_tail; ++d) exact.push_back(tail.values[t * of_tail + d]);
            BoundedRow row(exact);
            if (present(args.norm_weight))
                row.norm(*this, of_head,
                         {args.norm_kind == SMLA_NORM_LAYER, args.eps, weight.values, bias.values});
            if (present(args.positions))
                row.rotate({frequencies.values, args.rope_first, args.rope_style == SMLA_ROPE_HALF},
                           double(load_int(args.positions, int64_t(t))));
            want_.insert(want_.end(), row.want.begin(), row.want.end());
            bound_.insert(bound_.end(), row.bound.begin(), row.bound.end());
        }
    }

    // The rotation adds D values of either sign: sum_error(D) of their size |row|, because the rotation keeps
    // the norm. Then the format rounds by half a step of its grid. A scale is at most twice the smallest
    // scale that fits the largest magnitude M of its tile, so the step at x is at most
    //   e4m3   max(|x| 2^-3, 2 M / 448 * 2^-9)      e2m1   max(|x| / 2, 2 M / 6 / 2)
    void compare_rotated(const std::vector<double>& rows, Comparison& out) const {
        const smla_write_args& args = this->args;
        const CacheView cache(args.cache);
        const int64_t tile = args.cache.format == SMLA_INDEX_MXFP4_68 ? 32 : cache.width;
        std::vector<double> got(static_cast<size_t>(cache.width));
        for (int64_t t = 0; t < args.slots.shape[0]; ++t) {
            const int64_t slot = load_int(args.slots, t);
            if (cache.hole(slot)) continue;
            cache.decode(slot, got.data());
            const double* want = rows.data() + slot * cache.width;
            double norm = 0;
            for (int64_t d = 0; d < cache.width; ++d) norm += want[d] * want[d];
            if (!std::isfinite(norm)) continue;
            const double sums = this->sum_error(cache.width) * std::sqrt(norm);
            for (int64_t d = 0; d < cache.width; ++d) {
                double largest = 0;
                for (int64_t e = d / tile * tile; e < (d / tile + 1) * tile; ++e)
                    largest = std::max(largest, std::fabs(want[e]));
                double step = 2 * rounding(args.cache.format == SMLA_ROW_BF16 ? SMLA_BF16 : SMLA_F32) *
                              std::fabs(want[d]);
                if (args.cache.format == SMLA_INDEX_FP8_132)
                    step = std::max(std::fabs(want[d]) / 8, std::max(largest, 1e-4) / 448 * 0x1p-8);
                const double floor = args.cache.writer & SMLA_WRITER_SCALE_FLOOR ? 6e-4 : 0;
                if (args.cache.format == SMLA_INDEX_MXFP4_68)
                    step = std::max(std::fabs(want[d]) / 2, std::max(largest, floor) / 6);
                out.note(std::fabs(got[size_t(d)] - want[d]), step / 2 + 2 * sums + 1e-37,
                         text("row ", slot, " channel ", d, " is ", got[size_t(d)], ", wanted ", want[d]));
            }
        }
    }

    std::vector<uint8_t> before_, bytes_;
    std::vector<double> rows_, want_, bound_;
};

// score + ape is one addition, rounded once, and has the bits of the rounded sum in double.
class SaveStateProblem : public ProblemOf<Stage::save_state> {
public:
    explicit SaveStateProblem(const Draw& draw) : ProblemOf(draw) {
        const int64_t tokens = random.chance(0.05) ? 0 : random.log_between(1, 40),
                      width = random.log_between(1, 1024);
        const int64_t ratio = random.pick<int64_t>({4, 128, 1, 7});
        args.kv = memory.tensor(pick_float(random), {tokens, width}, Inner::any);
        args.score = memory.tensor(pick_float(random), {tokens, width}, Inner::any);
        if (random.chance(0.8)) args.ape = memory.tensor(SMLA_F32, {ratio, width}, Inner::any);
        for (const Tensor* each : {&args.kv, &args.score}) fill_activations(*each, random, true);
        if (present(args.ape)) fill_normal(args.ape, random, 1);
        args.positions = memory.tensor(random.pick<smla_dtype>({SMLA_I32, SMLA_I64}), {tokens}, Inner::any);
        for (int64_t t = 0; t < tokens; ++t)
            set_int(args.positions, t, 0,
                    random.chance(0.05) ? random.pick<int64_t>({-1, INT32_MIN})
                                        : random.log_between(1, 1 << 20) - 1);
        args.state = memory.cache(
            {SMLA_STATE_F32, 2 * width, random.between(1, 6), int32_t(random.log_between(1, 16))});
        args.slots = make_slots(*this, args.state, tokens);
        description = text("T", tokens, " of ", width, ", ratio ", ratio, ", kv ", dtype_name(args.kv.dtype));
        expect();
    }

    void expect() override {
        memory.allow_nothing();
        SaveStateOp::check(args);
        memory.allow_written(args.state, [&] { SaveStateOp::reference(args, 0, args.slots.shape[0]); });
        memory.remember();
        find_rows();
    }

    void compare(const std::string&, Comparison& out) const override {
        const CacheView state(args.state);
        std::vector<double> row(static_cast<size_t>(state.width));
        for (const auto& [slot, want] : rows_) {
            state.decode(slot, row.data());
            const std::string name = text("row ", slot);
            out.equal(name.c_str(), make_tensor(row.data(), SMLA_F64, {state.width}), want);
        }
    }

private:
    void find_rows() {
        rows_.clear();
        const CacheView state(args.state);
        const int64_t width = args.kv.shape[1], ratio = std::max<int64_t>(args.ape.shape[0], 1);
        const Doubles kv(args.kv), score(args.score), ape(args.ape);
        const auto added = [&](size_t i) { return present(args.ape) ? ape.values[i] : -0.; };
        for (int64_t t = 0; t < args.slots.shape[0]; ++t) {
            const int64_t slot = load_int(args.slots, t), position = load_int(args.positions, t);
            if (state.hole(slot) || position < 0) continue;
            std::vector<double>& row = rows_[slot];
            row.clear();  // of two tokens with one slot, the later is kept, on one thread
            for (int64_t d = 0; d < width; ++d) row.push_back(kv.values[size_t(t * width + d)]);
            for (int64_t d = 0; d < width; ++d)
                row.push_back(double(float(score.values[size_t(t * width + d)] +
                                           added(size_t(position % ratio * width + d)))));
        }
    }

    std::map<int64_t, std::vector<double>> rows_;  // by slot
};

}  // namespace

std::unique_ptr<Problem> make_write(Stage stage, const Draw& draw) {
    if (stage == Stage::write_kv) return std::make_unique<WriteProblem<Stage::write_kv>>(draw);
    return std::make_unique<WriteProblem<Stage::write_index>>(draw);
}
std::unique_ptr<Problem> make_save_state(Stage, const Draw& draw) {
    return std::make_unique<SaveStateProblem>(draw);
}

}  // namespace smla::kit
