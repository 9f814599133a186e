#include "layers/projected.h"

#include <algorithm>

namespace smla {

namespace {

bool is_dense(const Tensor& w) {
    return w.ndim == 2 && w.stride_elems[1] == 1 && w.stride_elems[0] == w.shape[1];
}

// Returns whether both can be rows of one dense matrix.
bool alike(const Tensor& a, const Tensor& b) {
    return is_dense(a) && is_dense(b) && a.dtype == b.dtype && a.shape[1] == b.shape[1] &&
           a.device_type == b.device_type && a.device_index == b.device_index;
}

// Returns whether b directly follows a on a GPU. On a host, the checkpoint decides which weights are
// adjacent.
bool follows(const Tensor& a, const Tensor& b) {
    return a.device_type != SMLA_CPU && alike(a, b) &&
           static_cast<const char*>(a.data) + span_bytes(a) == b.data;
}

// Calls use(first, last) for each run of items in which `joins` is true for all adjacent pairs.
template <class Items, class Joins, class Use>
void each_run(const Items& items, const Joins& joins, const Use& use) {
    for (auto first = items.begin(); first != items.end();) {
        auto last = std::next(first);
        while (last != items.end() && joins(*std::prev(last), *last)) ++last;
        use(first, last);
        first = last;
    }
}

std::vector<Projected::Product> of_dtype(const std::vector<const HostTensor*>& weights, smla_dtype dtype) {
    std::vector<Projected::Product> out;
    for (const HostTensor* each : weights) out.push_back({each, dtype});
    return out;
}

}  // namespace

void place_side_by_side(const std::vector<HostTensor*>& weights, Device& device) {
    if (device.type() == SMLA_CPU) return;
    std::vector<HostTensor*> here;
    for (HostTensor* each : weights)
        if (present(each->view)) here.push_back(each);
    const auto joins = [](const HostTensor* a, const HostTensor* b) {
        return a->view.device_type == SMLA_CPU && alike(a->view, b->view);
    };
    each_run(here, joins, [&](auto first, auto last) {
        if (last - first < 2) return;
        size_t bytes = 0;
        for (auto each = first; each != last; ++each) bytes += span_bytes((*each)->view);
        const auto memory = std::make_shared<DeviceBuffer>(device, bytes);
        auto* at = static_cast<char*>(memory->data());
        for (auto each = first; each != last; ++each) {
            Tensor& view = (*each)->view;
            const size_t size = span_bytes(view);
            device.upload(at, view.data, size, nullptr);
            view = placed_at(view, at, device);
            (*each)->memory = memory;
            at += size;
        }
    });
}

Projected::Projected(Runner& run, const Tensor& x, const std::vector<Product>& products) {
    std::vector<Product> here;
    for (const Product& each : products)
        if (present(each.weight->view)) here.push_back(each);
    const auto joins = [](const Product& a, const Product& b) {
        return a.dtype == b.dtype && follows(a.weight->view, b.weight->view);
    };
    each_run(here, joins, [&](auto first, auto last) {
        Tensor w = as_matrix(*first->weight);
        for (auto each = std::next(first); each != last; ++each) w.shape[1] += each->weight->view.shape[0];
        const Tensor out = run.activation(first->dtype, {x.shape[0], 1, w.shape[1]});
        run.run<Stage::project>({.x = x, .w = w, .out = out});
        int64_t begin = 0;
        for (auto each = first; each != last; ++each) {
            const int64_t end = begin + each->weight->view.shape[0];
            results_.push_back({each->weight, slice(out, 2, begin, end)});
            begin = end;
        }
    });
}

Projected::Projected(Runner& run, const Tensor& x, const std::vector<const HostTensor*>& weights,
                     smla_dtype dtype)
    : Projected(run, x, of_dtype(weights, dtype)) {}

const Tensor& Projected::by(const HostTensor& weight) const {
    for (const Result& each : results_)
        if (each.weight == &weight) return each.out;
    fail(SMLA_INTERNAL, "layer", "a weight that was not multiplied", "a weight of the layer");
}

}  // namespace smla
