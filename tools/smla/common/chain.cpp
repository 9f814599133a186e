#include "chain.h"

#include <chrono>
#include <set>

namespace smla::cli {

std::vector<int> layers_read(const AttentionConfig& config, int layer, bool forced) {
    std::set<int> found;
    std::vector<int> open{layer};
    while (!open.empty()) {
        const int each = open.back();
        open.pop_back();
        const LayerSources sources = config.sources(each);
        const bool selects = each != layer || !forced;
        for (const int64_t source :
             {sources.entries, selects ? sources.selection : -1, selects ? sources.candidates : -1})
            if (source >= 0 && source != each && found.insert(int(source)).second)
                open.push_back(int(source));
    }
    return {found.begin(), found.end()};
}

LayerChain::LayerChain(Context& context, const std::string& checkpoint, const AttentionConfig& config,
                       int layer, const LayerPrecision& precision, const SessionOptions& options,
                       bool forced) {
    const Checkpoint weights = Checkpoint::open(checkpoint);
    std::vector<int> layers = layers_read(config, layer, forced);
    layers.push_back(layer);
    for (const int each : layers) {
        Link link;
        link.layer = open_layer(weights, config, each, precision, context.device());
        SessionOptions own = options;
        const int64_t writer = config.sources(each).entries;
        if (const Session* const source = writer == each ? nullptr : find(writer))
            own.entries_of = source->place();
        link.session = std::make_unique<Session>(context, *link.layer, own);
        links_.push_back(std::move(link));
    }
}

Session* LayerChain::find(int64_t layer) const {
    for (const Link& link : links_)
        if (link.layer->layer_index() == layer) return link.session.get();
    return nullptr;
}

// Selection and candidate blocks of the layers before this one.
void LayerChain::add_published(Session::Step& step, const Layer& layer) const {
    if (present(step.forced_topk)) return;
    const LayerSources sources = layer.config().sources(layer.layer_index());
    if (sources.selection >= 0 && sources.selection != layer.layer_index())
        step.forced_topk = find(sources.selection)->topk();
    else if (sources.candidates >= 0 && sources.candidates != layer.layer_index())
        step.candidates = find(sources.candidates)->candidates();
}

double LayerChain::forward(const Session::Step& step, std::span<const Tensor> hidden) {
    SMLA_CHECK(hidden.size() + 1 == links_.size(), "hidden", hidden.size(),
               text("tensors of ", links_.size() - 1, " layers"));
    for (size_t i = 0; i < hidden.size(); ++i) {
        Session::Step each = step;
        each.hidden = hidden[i];
        each.forced_topk = {};
        each.tap = nullptr;
        unused_.resize(span_bytes(step.out));
        each.out = step.out;
        each.out.data = unused_.data();
        add_published(each, *links_[i].layer);
        links_[i].session->forward(each);
    }
    Session::Step last = step;
    add_published(last, *links_.back().layer);
    const auto start = std::chrono::steady_clock::now();
    session().forward(last);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Tensor LayerChain::selection() const {
    const Layer& layer = *links_.back().layer;
    const Session* const source = find(layer.config().sources(layer.layer_index()).selection);
    return source ? source->topk() : Tensor{};
}

void LayerChain::end_request(int32_t request) {
    for (const Link& link : links_) link.session->end_request(request);
}

}  // namespace smla::cli
