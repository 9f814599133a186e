// A layer and the layers whose work it reads, in one object: each has a session and takes part in every step.
#pragma once

#include "layers/session.h"

#include <span>

namespace smla::cli {

// Layers that `layer` reads, directly or not, ascending. `forced`: the caller gives the selection.
std::vector<int> layers_read(const AttentionConfig& config, int layer, bool forced);

class LayerChain {
public:
    // Every layer has caches as `options` says; entries_of is filled in.
    LayerChain(Context& context, const std::string& checkpoint, const AttentionConfig& config, int layer,
               const LayerPrecision& precision, const SessionOptions& options, bool forced = false);

    // `hidden`: [T,hidden] of each of layers_read(). Everything else in `step` is the layer's own. Returns
    // the seconds that the layer itself took.
    double forward(const Session::Step& step, std::span<const Tensor> hidden);
    // What the layer attended to in the last step without forced_topk: its own selection, or the one it read.
    Tensor selection() const;
    void end_request(int32_t request);
    Session& session() { return *links_.back().session; }  // of the layer itself
    const Session& session() const { return *links_.back().session; }

private:
    struct Link {
        std::unique_ptr<Layer> layer;
        std::unique_ptr<Session> session;
    };
    Session* find(int64_t layer) const;  // null: not in the chain
    void add_published(Session::Step& step, const Layer& layer) const;

    std::vector<Link> links_;   // ascending, the layer itself last
    std::vector<char> unused_;  // outputs of the layers read
};

}  // namespace smla::cli
