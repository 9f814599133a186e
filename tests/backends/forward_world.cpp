#include "forward_world.h"
#include "kit/context_args.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace smla::test {

Floats::Floats(smla_dtype dtype, std::vector<int64_t> shape, int64_t extra) {
    shape[0] += extra;
    int64_t elements = 1;
    for (const int64_t n : shape) elements *= n;
    memory_.assign(size_t(elements * dtype_bits(dtype) / 8), 0xff);
    view_.dtype = dtype;
    view_.ndim = int32_t(shape.size());
    view_.data = memory_.data();
    int64_t stride = 1;
    for (size_t i = shape.size(); i-- > 0; stride *= shape[i]) {
        view_.shape[i] = shape[i];
        view_.stride_elems[i] = stride;
    }
}

double Floats::at(int64_t i, int64_t j, int64_t k) const { return load_one<double>(view_, i, j, k); }

void Floats::set(int64_t i, int64_t j, int64_t k, float value) {
    char* to = address(view_, i, j, k);
    if (view_.dtype == SMLA_E4M3) *reinterpret_cast<uint8_t*>(to) = f32_to_e4m3(value);
    else store_row(view_, to, 1, &value);
}

void Floats::fill(Random& random, int64_t rows, float scale) {
    const int64_t j_end = view_.ndim > 1 ? view_.shape[1] : 1, k_end = view_.ndim > 2 ? view_.shape[2] : 1;
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < j_end; ++j)
            for (int64_t k = 0; k < k_end; ++k) set(i, j, k, scale * random.value());
}

PoisonedCache::PoisonedCache(smla_format format, int64_t width, int64_t pages, int32_t page_tokens,
                             float scale) {
    cache.format = format;
    cache.width = find_format(format)->width ? 0 : int32_t(width);
    cache.pages = pages;
    cache.page_tokens = page_tokens;
    cache.scale = find_format(format)->scale == ScaleKind::per_tensor ? scale : 0;
    memory.assign(cache_bytes(cache), 0xff);
    cache.data = memory.data();
}
void PoisonedCache::write(int64_t row, const std::vector<float>& values) const {
    CacheView(cache).encode(row, values.data());
}
std::vector<double> PoisonedCache::read(int64_t row) const {
    const CacheView view(cache);
    std::vector<double> out(size_t(view.width));
    view.decode(row, out.data());
    return out;
}

World::World(const WorldSpec& given) : spec(given), on(instance(*given.backend, given.args)), topk(0, 0) {
    Random random(spec.seed);
    on.context = spec.context;
    batch = spec.decodes ? decode_step(random, on.config.args, spec.decodes)
                         : random_step(random, on.config.args);
    metadata = on.metadata();
    metadata->build(batch.view());
    make_caches(random);
    make_inputs(random);
    out_before_ = out.bytes();
    kv_before_ = kv.memory;
    window_before_ = window.memory;
}

int64_t World::row(int group, int64_t request, int64_t position) const {
    const Group& pages = batch.groups[size_t(group)];
    return int64_t(pages.table[size_t(request * pages.columns + position / pages.page_tokens)]) *
               pages.page_tokens +
           position % pages.page_tokens;
}

// Everything that requests hold is there before the step, the step's own tokens with other values.
void World::make_caches(Random& random) {
    const auto& model = on.config.args;
    const bool hybrid = on.config.hybrid();
    const int64_t width = on.config.head_size();
    const auto fill = [&](int group, PoisonedCache& cache, int64_t ratio) {
        const Group& pages = batch.groups[size_t(group)];
        cache = PoisonedCache(group == kCompressed ? on.entry_format : on.format, width,
                              batch.requests() * pages.columns, pages.page_tokens, float(model.kv_scale));
        std::vector<float> values(static_cast<size_t>(width));
        for (int64_t r = 0; r < batch.requests(); ++r)
            for (int64_t p = 0; p < batch.lengths[size_t(r)] / ratio; ++p) {
                for (float& value : values) value = random.value();
                cache.write(row(group, r, p), values);
            }
    };
    if (!hybrid) return fill(kPrimary, kv, 1);
    fill(kWindow, window, 1);
    if (model.ratio) fill(kCompressed, kv, model.ratio);
}

void World::make_inputs(Random& random) {
    const auto& model = on.config.args;
    const bool hybrid = on.config.hybrid();
    const int64_t tokens = batch.tokens ? batch.tokens : batch.query_tokens(), heads = model.heads,
                  real = batch.query_tokens(), width = on.config.head_size();
    const int64_t latent = model.kv_lora_rank, rope = model.rope_dim, nope = model.nope_dim;
    const auto make = [&](Floats& floats, smla_dtype dtype, std::vector<int64_t> shape, float scale) {
        floats = Floats(dtype, std::move(shape), spec.extra_rows);
        floats.fill(random, real, scale);
    };
    const float sharp = model.dtype == SMLA_E4M3 ? 16.f : 3.f;
    const bool whole = hybrid || (spec.latent_out && !spec.pair);
    const int64_t query_width = whole ? width : spec.pair ? latent : nope + rope;
    make(q, model.dtype, {tokens, heads + spec.view_heads, query_width}, sharp);
    for (int64_t t = 0; t < real; ++t)
        for (int64_t h = heads; h < heads + spec.view_heads; ++h)
            for (int64_t d = 0; d < query_width; ++d) q.set(t, h, d, NAN);
    if (spec.pair) make(q_pe, model.dtype, {tokens, heads, rope}, sharp);
    const smla_dtype keys = model.dtype == SMLA_E4M3 ? SMLA_BF16 : model.dtype;
    make(k_c, keys, {tokens, hybrid ? width : latent}, 1);
    if (!hybrid && rope) make(k_pe, keys, {tokens, 1, rope}, 1);
    const bool absorbed = hybrid || spec.pair || spec.latent_out;
    if (!absorbed) {
        w_uk_t = Floats(model.dtype, {heads, nope, latent});
        w_uk_t.fill(random, heads, 0.3f);
    }
    if (!hybrid && !spec.latent_out) {
        w_uv = Floats(keys, {heads, latent, model.v_head_dim});
        w_uv.fill(random, heads, 0.3f);
    }
    if (hybrid && spec.sink) {
        sink = Floats(SMLA_F32, {heads + spec.padded_heads});
        sink.fill(random, heads, 2);
    }
    const int64_t value = hybrid || spec.latent_out ? (hybrid ? width : latent) : model.v_head_dim;
    out = Floats(spec.out, {tokens, heads + spec.padded_heads + spec.view_heads, value}, spec.extra_rows);
    lse = Floats(model.dtype == SMLA_F64 ? SMLA_F64 : SMLA_F32, {tokens, heads}, spec.extra_rows);
    // lists: some of what the token sees, each once, holes anywhere, what looks right for padding
    const int64_t columns = spec.columns;
    topk = Ints(tokens + spec.extra_rows, columns, 0);
    for (int64_t r = 0, t = 0; r < batch.requests(); ++r)
        for (; t < batch.starts[size_t(r) + 1]; ++t) {
            const int64_t position = batch.lengths[size_t(r)] - (batch.starts[size_t(r) + 1] - t);
            const int64_t visible = hybrid ? (model.ratio ? (position + 1) / model.ratio : 0) : position + 1;
            for (int64_t j = 0; j < columns; ++j)
                topk.at(t, j) = visible && random.in(0, 4) ? random.in(0, int32_t(visible) - 1) : -1;
            // FlashInfer's lengths of prefill count columns, so lists of entries begin with what is visible
            if (hybrid)
                std::stable_sort(&topk.at(t, 0), &topk.at(t, 0) + columns,
                                 [](int32_t a, int32_t b) { return (a >= 0) > (b >= 0); });
            if (hybrid && visible < columns)
                for (int64_t j = visible; j < columns; ++j) topk.at(t, j) = -1;
        }
    args.struct_size = sizeof args;
    args.metadata = nullptr;
    args.q = slice(q.view(), 1, 0, heads);
    args.q_pe = q_pe.view();
    if (!spec.written) {
        args.k_c = k_c.view();
        args.k_pe = k_pe.view();
    }
    if (reads_selection(on.config.kind())) args.topk_indices = topk.matrix();
    args.w_uk_t = w_uk_t.view();
    args.w_uv = w_uv.view();
    args.sink = sink.view();
    args.out = slice(out.view(), 1, 0, heads + spec.padded_heads);
    args.lse = lse.view();
    args.kv_cache = kv.cache;
    args.swa_cache = window.cache;
}

void World::run(smla_engine engine) {
    Context context(kit::context_args(engine, 2));
    const size_t bytes = on.workspace(context.env({}), args);
    const std::vector<uint8_t> out_before = out.bytes(), lse_before = lse.bytes();
    // exactly what was asked for, all of it dirty but the counters
    std::vector<uint8_t> memory(bytes + 64 + 256);
    auto* aligned = reinterpret_cast<uint8_t*>(round_up(reinterpret_cast<uintptr_t>(memory.data()), 64));
    for (const bool again : {false, true}) {  // the second time with the plan of the first
        if (again) out.restore(out_before), lse.restore(lse_before);
        std::fill(memory.begin(), memory.end(), uint8_t(0xff));
        std::memset(aligned, 0, kWorkspaceHeader);
        on.run(context.env({}), metadata.get(), args, {aligned, bytes});
        EXPECT_TRUE(
            std::all_of(aligned + bytes, memory.data() + memory.size(), [](uint8_t b) { return b == 0xff; }));
    }
}

std::vector<double> World::key(int group, int64_t request, int64_t position) const {
    return (group == kCompressed || group == kPrimary ? kv : window).read(row(group, request, position));
}

// Dequantised rows that a token attends to.
std::vector<std::vector<double>> World::attended(int64_t token, int64_t request, int64_t position) const {
    const auto& model = on.config.args;
    std::vector<std::vector<double>> out;
    if (!on.config.hybrid()) {
        for (const int32_t p : topk.row(token))
            if (p >= 0) out.push_back(key(kPrimary, request, p));
        return out;
    }
    const Group& slots = batch.groups[kWindow];
    if (!slots.slots.empty() && slots.slots[size_t(token)] < 0) return out;  // not valid: nothing
    for (int64_t p = std::max<int64_t>(0, position - model.window + 1); p <= position; ++p)
        out.push_back(key(kWindow, request, p));
    const int64_t visible = model.ratio ? (position + 1) / model.ratio : 0;
    if (on.config.kind() == LayerKind::heavily_compressed)
        for (int64_t c = 0; c < visible; ++c) out.push_back(key(kCompressed, request, c));
    if (reads_selection(on.config.kind()))
        for (const int32_t c : topk.row(token))
            if (c >= 0) out.push_back(key(kCompressed, request, c));
    return out;
}

std::vector<double> World::query(int64_t token, int64_t head) const {
    const auto& model = on.config.args;
    std::vector<double> out;
    const auto add = [&](const Floats& floats, int64_t begin, int64_t end) {
        for (int64_t d = begin; d < end; ++d) out.push_back(floats.at(token, head, d));
    };
    if (on.config.hybrid() || (spec.latent_out && !spec.pair)) {
        add(q, 0, on.config.head_size());
        if (model.dtype == SMLA_E4M3)
            for (double& value : out) value *= model.q_scale;
        return out;
    }
    if (spec.pair) {
        add(q, 0, model.kv_lora_rank);
        add(q_pe, 0, model.rope_dim);
        return out;
    }
    for (int64_t l = 0; l < model.kv_lora_rank; ++l) {
        double sum = 0;
        for (int64_t p = 0; p < model.nope_dim; ++p) sum += q.at(token, head, p) * w_uk_t.at(head, p, l);
        out.push_back(sum);
    }
    add(q, model.nope_dim, model.nope_dim + model.rope_dim);
    return out;
}

void World::expect_close(double bound) const {
    const auto& model = on.config.args;
    const bool hybrid = on.config.hybrid();
    const int64_t values = hybrid ? model.head_dim : model.kv_lora_rank;
    for (int64_t r = 0, t = 0; r < batch.requests(); ++r)
        for (; t < batch.starts[size_t(r) + 1]; ++t) {
            const int64_t position = batch.lengths[size_t(r)] - (batch.starts[size_t(r) + 1] - t);
            const auto rows = attended(t, r, position);
            for (int64_t h = 0; h < model.heads; ++h) {
                const std::vector<double> query_row = query(t, h);
                std::vector<double> scores;
                double most = -INFINITY, sum = 0;
                for (const auto& each : rows) {
                    double dot = 0;
                    for (size_t d = 0; d < query_row.size(); ++d) dot += query_row[d] * each[d];
                    scores.push_back(dot * model.softmax_scale);
                    most = std::max(most, scores.back());
                }
                for (double& score : scores) sum += score = std::exp(score - most);
                const double log_sum = rows.empty() ? -INFINITY : most + std::log(sum);
                const double total = hybrid && spec.sink ? sum + std::exp(sink.at(h) - most) : sum;
                std::vector<double> core(size_t(values), 0), size(size_t(values), 0);
                for (size_t j = 0; j < rows.size(); ++j)
                    for (int64_t d = 0; d < values; ++d) {
                        core[size_t(d)] += scores[j] / total * rows[j][size_t(d)];
                        size[size_t(d)] += scores[j] / total * std::abs(rows[j][size_t(d)]);
                    }
                if (rows.empty()) ASSERT_EQ(lse.at(t, h), -INFINITY) << t;
                else ASSERT_NEAR(lse.at(t, h), log_sum, 4 * bound * (1 + std::abs(log_sum))) << t;
                const int64_t outputs = hybrid || spec.latent_out ? values : model.v_head_dim;
                for (int64_t v = 0; v < outputs; ++v) {
                    double want = 0, weight = 1e-9;
                    if (hybrid || spec.latent_out) {
                        want = core[size_t(v)];
                        weight += size[size_t(v)];
                    } else {
                        for (int64_t l = 0; l < values; ++l) {
                            want += core[size_t(l)] * w_uv.at(h, l, v);
                            weight += size[size_t(l)] * std::abs(w_uv.at(h, l, v));
                        }
                    }
                    ASSERT_NEAR(out.at(t, h, v), want, bound * weight)
                        << "token " << t << " head " << h << " value " << v;
                }
            }
        }
}

void World::expect_written() const {
    const bool hybrid = on.config.hybrid();
    const int group = hybrid ? kWindow : kPrimary;
    const std::vector<int64_t>& slots = batch.groups[size_t(group)].slots;
    const PoisonedCache& cache = hybrid ? window : kv;
    const PoisonedCache one(on.format, on.config.head_size(), 1, 1, float(on.config.args.kv_scale));
    for (int64_t r = 0, t = 0; r < batch.requests(); ++r)
        for (; t < batch.starts[size_t(r) + 1]; ++t) {
            if (!slots.empty() && slots[size_t(t)] < 0) continue;
            std::vector<float> values;
            for (int64_t d = 0; d < k_c.view().shape[1]; ++d) values.push_back(float(k_c.at(t, d)));
            for (int64_t d = 0; !hybrid && d < on.config.rope_dim(); ++d)
                values.push_back(float(k_pe.at(t, 0, d)));
            one.write(0, values);
            const int64_t position = batch.lengths[size_t(r)] - (batch.starts[size_t(r) + 1] - t);
            ASSERT_EQ(cache.read(row(group, r, position)), one.read(0)) << "token " << t;
        }
}

void World::expect_untouched() const {
    const int64_t tokens = batch.tokens ? batch.tokens : batch.query_tokens();
    const int64_t row_bytes = int64_t(out.bytes().size()) / std::max<int64_t>(1, tokens + spec.extra_rows);
    EXPECT_TRUE(std::equal(out_before_.begin() + tokens * row_bytes, out_before_.end(),
                           out.bytes().begin() + tokens * row_bytes));
    for (int64_t t = batch.query_tokens(); t < tokens; ++t)  // padding attends to nothing
        for (int64_t h = 0; h < args.out.shape[1]; ++h)
            for (int64_t v = 0; v < out.view().shape[2]; ++v) ASSERT_EQ(out.at(t, h, v), 0);
    for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t h = on.config.args.heads; h < on.config.args.heads + spec.padded_heads; ++h)
            ASSERT_EQ(out.at(t, h, 0), 0) << "a padded head";
        for (int64_t h = out.view().shape[1] - spec.view_heads; h < out.view().shape[1]; ++h)
            ASSERT_TRUE(std::isnan(out.at(t, h, 0))) << "behind the view";
    }
    // caches: rows of the step's tokens may differ, all others may not
    const bool hybrid = on.config.hybrid();
    const int group = hybrid ? kWindow : kPrimary;
    const PoisonedCache& cache = hybrid ? window : kv;
    std::vector<uint8_t> now = cache.memory, before = hybrid ? window_before_ : kv_before_;
    smla_cache view = cache.cache;
    const auto blank = [&](std::vector<uint8_t>& bytes) {
        view.data = bytes.data();
        const std::vector<float> zero(size_t(on.config.head_size()), 0.f);
        for (int64_t r = 0; r < batch.requests(); ++r)
            for (int32_t t = batch.starts[size_t(r)]; t < batch.starts[size_t(r) + 1] && !spec.written; ++t)
                CacheView(view).encode(
                    row(group, r, batch.lengths[size_t(r)] - (batch.starts[size_t(r) + 1] - t)), zero.data());
    };
    blank(now);
    blank(before);
    EXPECT_TRUE(now == before);
    if (!hybrid) return;
    EXPECT_TRUE(kv.memory == kv_before_);
}

}  // namespace smla::test
