#include "layers/mhc.h"

#include "engines/run.h"
#include "ops/norm/norm.h"

#include <algorithm>
#include <cmath>

namespace smla {

namespace {

double sigmoid(double z) { return 1 / (1 + std::exp(-z)); }

std::vector<double> all_values(const Tensor& tensor) {
    std::vector<double> out(static_cast<size_t>(element_count(tensor)));
    const Tensor flat = reshape(tensor, {int64_t(out.size())});
    load_row(flat, address(flat, 0), int64_t(out.size()), out.data());
    return out;
}

}  // namespace

HyperConnection::HyperConnection(const AttentionConfig& config, MhcWeights weights, Device& device)
    : config_(config), weights_(std::move(weights)), device_(&device) {
    SMLA_CHECK(config.mhc, "config.json: hc_mult", "absent", "a model with hyper-connections");
    if (!on_gpu()) return;
    if (streams() > kMostHyperStreams || weights_.fn.view.dtype != SMLA_F32)
        fail(SMLA_UNSUPPORTED, "hyper-connections", text(streams(), " streams, ", describe(weights_.fn.view)),
             text("on a GPU at most ", kMostHyperStreams, " streams and f32 weights"));
    for (HostTensor* each : {&weights_.fn, &weights_.base, &weights_.scale}) place(*each, device);
}

HyperConnection::HyperConnection(const Checkpoint& checkpoint, const AttentionConfig& config, int layer,
                                 const LayerPrecision& precision, Device& device)
    : HyperConnection(config, load_mhc_weights(checkpoint, config, layer, weight_options(precision)),
                      device) {}

MhcMix HyperConnection::reserve(int64_t tokens) const {
    MhcMix out;
    if (on_gpu())
        out.placed = DeviceBuffer(*device_, hyper_bytes(tokens, streams(), config_.common.hidden_size));
    else out.rows.reserve(size_t(tokens * outputs()));
    return out;
}

// For the arithmetic of a host; run() checks what a GPU is given.
const double* HyperConnection::mixed_rows(const MhcMix& mix, int64_t tokens) const {
    const int64_t needed = tokens * outputs();
    SMLA_CHECK(int64_t(mix.rows.size()) == needed, "mix", text(mix.rows.size(), " values"),
               text(needed, ": mix() of these ", tokens, " tokens"));
    return mix.rows.data();
}

Tensor HyperConnection::rows(const MhcMix& mix, int64_t tokens) const {
    if (!on_gpu()) return make_tensor(mixed_rows(mix, tokens), SMLA_F64, {tokens, outputs()});
    Tensor out = make_tensor(mix.placed.data(), SMLA_F32, {tokens, outputs()});
    out.device_type = device_->type();
    out.device_index = device_->index();
    return out;
}

void HyperConnection::run(HyperStep step, const MhcMix& mix, const Tensor& streams_in, const Tensor& block,
                          smla_stream stream) const {
    const size_t needed = hyper_bytes(streams_in.shape[0], streams(), config_.common.hidden_size);
    SMLA_CHECK(mix.placed.bytes() >= needed, "mix", text(mix.placed.bytes(), " bytes"),
               text(needed, " bytes: reserve() for this many tokens"));
    const auto weight = [](const HostTensor& each) { return static_cast<const float*>(each.view.data); };
    hyper_connection_on_gpu(step,
                            {.fn = weight(weights_.fn),
                             .base = weight(weights_.base),
                             .scale = weight(weights_.scale),
                             .streams = streams_in,
                             .block = block,
                             .rows = static_cast<float*>(mix.placed.data()),
                             .iterations = int32_t(config_.mhc->sinkhorn_iterations),
                             .norm_eps = float(config_.common.rms_norm_eps),
                             .eps = float(config_.mhc->eps)},
                            *device_, stream);
}

void HyperConnection::check(const Tensor& streams_in, const Tensor& block, const char* name) const {
    const CheckContext context = CheckContext::on(device_->type(), device_->index());
    const uint32_t allowed = on_gpu() ? kFloats & ~dtype_bit(SMLA_F64) : kFloats;
    const int64_t hidden = config_.common.hidden_size;
    check_tensor("streams", streams_in, allowed, {kAny, streams(), hidden}, context);
    if (name) check_tensor(name, block, allowed, {streams_in.shape[0], hidden}, context);
}

// exp, then rows and columns normalised in turn, starting with a softmax over each row.
void HyperConnection::sinkhorn(double* c) const {
    const size_t n = size_t(streams());
    const double eps = config_.mhc->eps;
    for (size_t j = 0; j < n; ++j) {
        double* row = c + j * n;
        const double peak = *std::max_element(row, row + n);
        double sum = 0;
        for (size_t k = 0; k < n; ++k) sum += row[k] = std::exp(row[k] - peak);
        for (size_t k = 0; k < n; ++k) row[k] = row[k] / sum + eps;
    }
    const auto normalise = [&](size_t step, size_t stride) {  // lines begin `step` apart, elements `stride`
        for (size_t line = 0; line < n; ++line) {
            double sum = 0;
            for (size_t i = 0; i < n; ++i) sum += c[line * step + i * stride];
            for (size_t i = 0; i < n; ++i) c[line * step + i * stride] /= sum + eps;
        }
    };
    normalise(1, n);
    for (int64_t i = 1; i < config_.mhc->sinkhorn_iterations; ++i) {
        normalise(n, 1);
        normalise(1, n);
    }
}

void HyperConnection::mix(const Tensor& streams_in, MhcMix& out, smla_stream stream) const {
    const int64_t n = streams(), hidden = config_.common.hidden_size;
    check(streams_in, {}, nullptr);
    if (on_gpu()) return run(HyperStep::mix, out, streams_in, {}, stream);
    const std::vector<double> base = all_values(weights_.base.view), scale = all_values(weights_.scale.view);
    const std::vector<double> fn = all_values(weights_.fn.view);
    out.rows.clear();
    std::vector<double> flat(size_t(n * hidden)), mixed(static_cast<size_t>(outputs()));
    for (int64_t t = 0; t < streams_in.shape[0]; ++t) {
        for (int64_t i = 0; i < n; ++i)
            load_row(streams_in, address(streams_in, t, i), hidden, flat.data() + i * hidden);
        double square = 0;
        for (const double v : flat) square += v * v;
        const double factor = 1 / std::sqrt(square / double(flat.size()) + config_.common.rms_norm_eps);
        for (size_t o = 0; o < mixed.size(); ++o) {
            double sum = 0;
            for (size_t i = 0; i < flat.size(); ++i) sum += fn[o * flat.size() + i] * flat[i];
            const size_t part = std::min(o / size_t(n), size_t(2));
            const double z = sum * factor * scale[part] + base[o];
            mixed[o] = part == 0 ? sigmoid(z) + config_.mhc->eps : part == 1 ? 2 * sigmoid(z) : z;
        }
        sinkhorn(mixed.data() + 2 * n);
        out.rows.insert(out.rows.end(), mixed.begin(), mixed.end());
    }
}

void HyperConnection::collapse(const MhcMix& mix, const Tensor& streams_in, const Tensor& out,
                               smla_stream stream) const {
    const int64_t n = streams(), hidden = config_.common.hidden_size;
    check(streams_in, out, "out");
    if (on_gpu()) return run(HyperStep::collapse, mix, streams_in, out, stream);
    const double* const rows = mixed_rows(mix, streams_in.shape[0]);
    std::vector<double> row(static_cast<size_t>(hidden)), sum(row.size());
    for (int64_t t = 0; t < streams_in.shape[0]; ++t) {
        std::fill(sum.begin(), sum.end(), 0.0);
        for (int64_t i = 0; i < n; ++i) {
            load_row(streams_in, address(streams_in, t, i), hidden, row.data());
            for (size_t d = 0; d < row.size(); ++d) sum[d] += rows[t * outputs() + i] * row[d];
        }
        store_row(out, address(out, t), hidden, sum.data());
    }
}

void HyperConnection::expand(const MhcMix& mix, const Tensor& y, const Tensor& streams_in,
                             smla_stream stream) const {
    const int64_t n = streams(), hidden = config_.common.hidden_size;
    check(streams_in, y, "y");
    if (on_gpu()) return run(HyperStep::expand, mix, streams_in, y, stream);
    const double* const rows = mixed_rows(mix, streams_in.shape[0]);
    std::vector<double> block(static_cast<size_t>(hidden)), old(size_t(n * hidden)), row(block.size());
    for (int64_t t = 0; t < streams_in.shape[0]; ++t) {
        load_row(y, address(y, t), hidden, block.data());
        for (int64_t j = 0; j < n; ++j)
            load_row(streams_in, address(streams_in, t, j), hidden, old.data() + j * hidden);
        const double* post = rows + t * outputs() + n;  // comb behind it
        for (int64_t k = 0; k < n; ++k) {
            for (size_t d = 0; d < row.size(); ++d) row[d] = post[k] * block[d];
            for (int64_t j = 0; j < n; ++j)
                for (size_t d = 0; d < row.size(); ++d)
                    row[d] += post[n + j * n + k] * old[size_t(j * hidden) + d];
            store_row(streams_in, address(streams_in, t, k), hidden, row.data());
        }
    }
}

void norm_block_input(const Layer& layer, const Tensor& x, const Env& env) {
    if (!present(layer.input_norm())) return;
    smla_norm_args args{};
    args.struct_size = sizeof args;
    args.eps = layer.config().common.rms_norm_eps;
    args.x = args.out = reshape_rows(x, {1, x.shape[1]});
    args.weight = layer.input_norm();
    if (env.device->type() != SMLA_CPU) {
        run_stage<Stage::norm>(args, env);
        return;
    }
    NormOp::check(args);
    NormOp::reference(args, 0, NormOp::tasks(args));
}

}  // namespace smla
