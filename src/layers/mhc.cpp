#include "layers/mhc.h"

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

HyperConnection::HyperConnection(const Checkpoint& checkpoint, const AttentionConfig& config, int layer,
                                 const LayerPrecision& precision)
    : config_(config) {
    SMLA_CHECK(config.mhc, "config.json: hc_mult", "absent", "a model with hyper-connections");
    weights_ = load_mhc_weights(checkpoint, config, layer, weight_options(precision));
}

// exp, then rows and columns normalised in turn, starting with a softmax over each row.
std::vector<double> HyperConnection::sinkhorn(std::vector<double> c) const {
    const size_t n = size_t(streams());
    const double eps = config_.mhc->eps;
    for (size_t j = 0; j < n; ++j) {
        double* row = c.data() + j * n;
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
    return c;
}

MhcMix HyperConnection::mix(const Tensor& streams_in) const {
    const int64_t n = streams(), hidden = config_.common.hidden_size, outputs = 2 * n + n * n;
    check_tensor("streams", streams_in, kFloats, {kAny, n, hidden});
    const std::vector<double> base = all_values(weights_.base.view), scale = all_values(weights_.scale.view);
    const std::vector<double> fn = all_values(weights_.fn.view);
    MhcMix out;
    std::vector<double> flat(size_t(n * hidden));
    for (int64_t t = 0; t < streams_in.shape[0]; ++t) {
        for (int64_t i = 0; i < n; ++i)
            load_row(streams_in, address(streams_in, t, i), hidden, flat.data() + i * hidden);
        double square = 0;
        for (const double v : flat) square += v * v;
        const double factor = 1 / std::sqrt(square / double(flat.size()) + config_.common.rms_norm_eps);
        std::vector<double> mixed(static_cast<size_t>(outputs));
        for (size_t o = 0; o < mixed.size(); ++o) {
            for (size_t i = 0; i < flat.size(); ++i) mixed[o] += fn[o * flat.size() + i] * flat[i];
            const size_t part = o < size_t(n) ? 0 : o < size_t(2 * n) ? 1 : 2;
            mixed[o] = mixed[o] * factor * scale[part] + base[o];
        }
        for (int64_t i = 0; i < n; ++i) {
            out.pre.push_back(sigmoid(mixed[size_t(i)]) + config_.mhc->eps);
            out.post.push_back(2 * sigmoid(mixed[size_t(n + i)]));
        }
        const std::vector<double> comb = sinkhorn({mixed.begin() + 2 * n, mixed.end()});
        out.comb.insert(out.comb.end(), comb.begin(), comb.end());
    }
    return out;
}

void HyperConnection::collapse(const MhcMix& mix, const Tensor& streams_in, const Tensor& out) const {
    const int64_t n = streams(), hidden = config_.common.hidden_size;
    check_tensor("out", out, kFloats, {streams_in.shape[0], hidden});
    std::vector<double> row(static_cast<size_t>(hidden)), sum(row.size());
    for (int64_t t = 0; t < streams_in.shape[0]; ++t) {
        std::fill(sum.begin(), sum.end(), 0.0);
        for (int64_t i = 0; i < n; ++i) {
            load_row(streams_in, address(streams_in, t, i), hidden, row.data());
            for (size_t d = 0; d < row.size(); ++d) sum[d] += mix.pre[size_t(t * n + i)] * row[d];
        }
        store_row(out, address(out, t), hidden, sum.data());
    }
}

void HyperConnection::expand(const MhcMix& mix, const Tensor& y, const Tensor& streams_in) const {
    const int64_t n = streams(), hidden = config_.common.hidden_size;
    check_tensor("y", y, kFloats, {streams_in.shape[0], hidden});
    std::vector<double> block(static_cast<size_t>(hidden)), old(size_t(n * hidden)), row(block.size());
    for (int64_t t = 0; t < streams_in.shape[0]; ++t) {
        load_row(y, address(y, t), hidden, block.data());
        for (int64_t j = 0; j < n; ++j)
            load_row(streams_in, address(streams_in, t, j), hidden, old.data() + j * hidden);
        for (int64_t k = 0; k < n; ++k) {
            for (size_t d = 0; d < row.size(); ++d) row[d] = mix.post[size_t(t * n + k)] * block[d];
            for (int64_t j = 0; j < n; ++j)
                for (size_t d = 0; d < row.size(); ++d)
                    row[d] += mix.comb[size_t((t * n + j) * n + k)] * old[size_t(j * hidden) + d];
            store_row(streams_in, address(streams_in, t, k), hidden, row.data());
        }
    }
}

void norm_block_input(const Layer& layer, const Tensor& x) {
    if (!present(layer.input_norm())) return;
    smla_norm_args args{};
    args.struct_size = sizeof args;
    args.eps = layer.config().common.rms_norm_eps;
    args.x = args.out = reshape_rows(x, {1, x.shape[1]});
    args.weight = layer.input_norm();
    NormOp::check(args);
    NormOp::reference(args, 0, NormOp::tasks(args));
}

}  // namespace smla
