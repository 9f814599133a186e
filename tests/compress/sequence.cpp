#include "sequence.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

namespace smla::testing {

template <class Real>
Sequence<Real>::Sequence(const Shape& shape, uint32_t seed) : shape(shape) {
    std::mt19937 engine(seed);
    std::uniform_real_distribution<float> unit(-1.f, 1.f);
    const auto fill = [&](std::vector<Real>& out, int64_t n, float scale) {
        out.resize(size_t(n));
        for (Real& v : out) v = Real(scale * unit(engine));
    };
    fill(kv, shape.tokens * shape.columns(), 2.f);
    fill(score, shape.tokens * shape.columns(), 3.f);
    fill(ape, shape.ratio * shape.columns(), 1.f);
    fill(norm, shape.width, 1.f);
    for (int64_t i = 0; i < shape.pairs; ++i)
        frequencies.push_back(std::pow(100., -double(i) / double(shape.pairs)));
}

template <class Real>
std::vector<double> Sequence<Real>::entries(bool (*hidden)(int64_t token)) const {
    std::vector<double> out;
    const int64_t ratio = shape.ratio, width = shape.width, columns = shape.columns();
    for (int64_t e = 0; e < shape.entries(); ++e) {
        std::vector<double> row(size_t(width), 0.);
        for (int64_t d = 0; d < width; ++d) {
            // (logit, value) of every token that takes part in this channel
            std::vector<std::pair<double, double>> parts;
            const auto take = [&](int64_t token, int64_t column) {
                if (token < 0 || (hidden && hidden(token))) return;
                const size_t at = size_t(token * columns + column);
                const double logit =
                    double(score[at]) + double(ape[size_t(token % ratio * columns + column)]);
                parts.push_back({logit, double(kv[at])});
            };
            for (int64_t j = 0; j < ratio; ++j) {
                if (ratio == 4) take((e - 1) * ratio + j, d);     // the window before gives its first half
                take(e * ratio + j, ratio == 4 ? width + d : d);  // this window its second
            }
            double peak = -std::numeric_limits<double>::infinity(), sum = 0;
            for (const auto& part : parts) peak = std::max(peak, part.first);
            for (const auto& part : parts) sum += std::exp(part.first - peak);
            for (const auto& part : parts) row[size_t(d)] += std::exp(part.first - peak) / sum * part.second;
        }
        double square = 0;
        for (const double v : row) square += v * v / double(width);
        for (int64_t d = 0; d < width; ++d)
            row[size_t(d)] *= double(norm[size_t(d)]) / std::sqrt(square + eps);
        for (int64_t i = 0; i < shape.pairs; ++i) {
            const double angle = double(e * ratio) * frequencies[size_t(i)];
            double &a = row[size_t(width - 2 * shape.pairs + 2 * i)],
                   &b = row[size_t(width - 2 * shape.pairs + 2 * i + 1)];
            const double x = a, y = b;
            a = x * std::cos(angle) - y * std::sin(angle);
            b = x * std::sin(angle) + y * std::cos(angle);
        }
        out.insert(out.end(), row.begin(), row.end());
    }
    return out;
}

// With unit roundoff u, |kv| <= 2 and |logit| <= 4: a stored logit is off by 4u, its difference to the peak
// by 12u in all, exp itself by 1u, so each weight by at most 17u of itself, in the sum and in the products.
// Summing n = coff * ratio of them adds n u to both, dividing 1u: the pooled value is off by at most (2 * 17
// + 2n + 2) u * 2. The norm multiplies that by its factor 1 / rms. kv is uniform in +-2: if all n rows weigh
// the same, the rms is 2 / sqrt(3n), and twice its inverse is taken here for windows that happen to cancel.
// The mean of D squares, its root and the weight add (D / 2 + 8) u of the entry, which is no larger than
// sqrt(D); the rotation adds two channels.
template <class Real>
double Sequence<Real>::tolerance() const {
    const double u = double(std::numeric_limits<Real>::epsilon()) / 2;
    const double n = double(shape.coff() * shape.ratio), width = double(shape.width);
    const double factor = std::sqrt(3 * n);
    const double pooled = (36 + 2 * n) * u * 2, relative = (width / 2 + 8) * u;
    return 1.5 * (pooled * factor + relative * std::sqrt(width));
}

namespace {
CacheShape cache_shape(smla_format format, int32_t page_tokens, int64_t pages, int32_t width,
                       int32_t interleave) {
    CacheShape shape;
    shape.format = format;
    shape.page_tokens = page_tokens;
    shape.pages = pages;
    shape.width = width_of(format) ? 0 : width;
    if (interleave) shape.page_rows = page_tokens + interleave;
    return shape;
}

std::vector<int32_t> shuffled_pages(int64_t needed, int64_t pages, std::mt19937& engine) {
    std::vector<int32_t> all(static_cast<size_t>(pages));
    std::iota(all.begin(), all.end(), 0);
    std::shuffle(all.begin(), all.end(), engine);
    all.resize(size_t(needed));
    return all;
}

int64_t pages_for(int64_t rows, int64_t page) { return rows / page + 1; }
}  // namespace

template <class Real>
Server<Real>::Server(const Sequence<Real>& sequence, const Options& options, uint32_t seed)
    : entry_rows(size_t(sequence.shape.tokens * sequence.shape.width), Real(-7)),
      state(cache_shape(kState<Real>, options.state_page,
                        2 * pages_for(sequence.shape.tokens, options.state_page),
                        int32_t(2 * sequence.shape.columns()), options.interleave)),
      cache(cache_shape(options.format, options.cache_page,
                        2 * pages_for(sequence.shape.entries(), options.cache_page),
                        int32_t(sequence.shape.width), options.interleave)),
      sequence_(sequence),
      options_(options) {
    std::mt19937 engine(seed);
    state_table = shuffled_pages(state.shape.pages / 2, state.shape.pages, engine);
    cache_table_ = shuffled_pages(cache.shape.pages / 2, cache.shape.pages, engine);
}

template <class Real>
int64_t Server<Real>::row_of_entry(int64_t entry) const {
    return cache_table_[size_t(entry / options_.cache_page)] * cache.page_rows() +
           entry % options_.cache_page;
}

template <class Real>
void Server<Real>::step(const Sequence<Real>& from, int64_t begin, int64_t end) {
    const int64_t n = end - begin, columns = from.shape.columns();
    std::vector<int32_t> positions, requests(static_cast<size_t>(n), 1);
    std::vector<int64_t> state_slots, slots;
    for (int64_t p = begin; p < end; ++p) {
        positions.push_back(int32_t(p));
        state_slots.push_back(state_table[size_t(p / options_.state_page)] * state.page_rows() +
                              p % options_.state_page);
        slots.push_back((p + 1) % from.shape.ratio == 0 ? row_of_entry(p / from.shape.ratio) : -1);
    }
    smla_save_state_args save{};
    save.struct_size = sizeof save;
    save.kv = make_tensor(from.kv.data() + begin * columns, kDtype<Real>, {n, columns});
    save.score = make_tensor(from.score.data() + begin * columns, kDtype<Real>, {n, columns});
    save.ape = make_tensor(from.ape.data(), kDtype<Real>, {from.shape.ratio, columns});
    save.positions = make_tensor(positions.data(), SMLA_I32, {n});
    save.slots = make_tensor(state_slots.data(), SMLA_I64, {n});
    save.state = state.cache;
    SaveStateOp::check(save);
    SaveStateOp::reference(save, 0, SaveStateOp::tasks(save));
    const smla_compress_args args = compress_args(positions, slots, requests, begin);
    CompressOp::check(args);
    // in two calls, the later tokens first: tasks are independent
    CompressOp::reference(args, n / 2, n);
    CompressOp::reference(args, 0, n / 2);
}

template <class Real>
smla_compress_args Server<Real>::compress_args(const std::vector<int32_t>& positions,
                                               const std::vector<int64_t>& slots,
                                               const std::vector<int32_t>& requests, int64_t begin) {
    const int64_t n = int64_t(positions.size()), width = sequence_.shape.width;
    smla_compress_args args{};
    args.struct_size = sizeof args;
    args.ratio = int32_t(sequence_.shape.ratio);
    args.hadamard = options_.hadamard;
    args.eps = sequence_.eps;
    args.state = state.cache;
    // requests 0 and 2 have no pages: only row 1 of the table may be used
    const int64_t pages = int64_t(state_table.size());
    wide_table_.assign(size_t(3 * pages), -1);
    std::copy(state_table.begin(), state_table.end(), wide_table_.begin() + pages);
    args.state_table = make_tensor(wide_table_.data(), SMLA_I32, {3, pages});
    args.request_of_token = make_tensor(requests.data(), SMLA_I32, {n});
    args.positions = make_tensor(positions.data(), SMLA_I32, {n});
    args.slots = make_tensor(slots.data(), SMLA_I64, {n});
    args.norm_weight = make_tensor(sequence_.norm.data(), kDtype<Real>, {width});
    args.frequencies = make_tensor(sequence_.frequencies.data(), SMLA_F64, {sequence_.shape.pairs});
    args.cache = cache.cache;
    args.entries = make_tensor(entry_rows.data() + begin * width, kDtype<Real>, {n, width});
    return args;
}

template <class Real>
void Server<Real>::run(const std::vector<int64_t>& chunks) {
    int64_t at = 0;
    for (const int64_t chunk : chunks) {
        const int64_t end = std::min(at + chunk, sequence_.shape.tokens);
        step(at, end);
        at = end;
    }
    step(at, sequence_.shape.tokens);
}

template <class Real>
void Server<Real>::move_pages(uint32_t seed) {
    std::mt19937 engine(seed);
    const auto move = [&](TestCache& pool, std::vector<int32_t>& table) {
        const std::vector<uint8_t> old = pool.memory;
        const std::vector<int32_t> to = shuffled_pages(int64_t(table.size()), pool.shape.pages, engine);
        std::fill(pool.memory.begin(), pool.memory.end(), pool.poison);
        for (size_t i = 0; i < table.size(); ++i)
            std::copy_n(old.data() + pool.first + table[i] * pool.page_stride, pool.page_stride,
                        pool.page(to[i]));
        table = to;
    };
    move(state, state_table);
    move(cache, cache_table_);
}

template <class Real>
std::vector<Real> Server<Real>::entry(int64_t entry) {
    std::vector<Real> out(static_cast<size_t>(sequence_.shape.width));
    cache.view().decode(row_of_entry(entry), out.data());
    return out;
}

template <class Real>
std::vector<std::vector<uint8_t>> Server<Real>::bytes_of_entries() {
    std::vector<std::vector<uint8_t>> out;
    for (int64_t e = 0; e < sequence_.shape.entries(); ++e) {
        const int64_t row = row_of_entry(e);
        std::vector<uint8_t> bytes;
        for (const auto& range : owned_bytes(options_.format, cache.width(), options_.cache_page,
                                             cache.row_stride, row % cache.page_rows()))
            bytes.insert(bytes.end(), cache.page(row / cache.page_rows()) + range.first,
                         cache.page(row / cache.page_rows()) + range.first + range.second);
        out.push_back(bytes);
    }
    return out;
}

template struct Sequence<float>;
template struct Sequence<double>;
template class Server<float>;
template class Server<double>;

}  // namespace smla::testing
