// A layer is a complete attention block: it projects hidden states, runs the inner step and projects back; it
// calls no attention stage itself. Weights come from a checkpoint, caches and metadata from the caller.
#pragma once

#include "backends/step.h"
#include "backends/step_key.h"
#include "layers/projected.h"
#include "model/config.h"
#include "model/weights.h"
#include "plan/plan.h"

#include <smla/model.h>

#include <memory>

namespace smla {

// The caches that a layer reads and writes; format NONE if its kind lacks that cache.
struct LayerCaches {
    CacheGroup kv;     // V3.2, GLM
    CacheGroup index;  // indexer keys of tokens, in V4 of entries
    Window window;     // V4
    Entries entries;
    CacheGroup state, index_state;
};

// Inputs and outputs of one step.
struct LayerStep {
    Tensor hidden{};  // [T,hidden] any float
    Tensor out{};     // [T,hidden] any float
    StepBatch batch;
    LayerCaches caches;
    // [T,k] i32, ascending, -1 last: positions (V4: entries) to attend to. GLM-5.2's shared layers require
    // the selection of the layer they follow; in other layers, this replaces their own selection.
    Tensor forced_topk{};
    Tensor topk{};  // optional out [T,k] i32: the selection, for later layers
    // V4.1, [T,B] i32: blocks of entries that the indexer searches, and blocks that it selects for later
    // layers.
    Tensor candidates{}, best_blocks{};
};

// Returns a step from its plan's fields. cut(field) returns this step's rows, group(SMLA_GROUP_*, slots) a
// cache.
template <class Cut, class Group>
LayerStep planned_step(const PlanFields& fields, const Cut& cut, const Group& group, int64_t max_columns) {
    LayerStep out{};
    out.batch = {cut(fields.request_of_token), cut(fields.position), cut(fields.rope_position),
                 cut(fields.visible_tokens), max_columns};
    out.caches = {.kv = group(SMLA_GROUP_PRIMARY, cut(fields.primary_slot)),
                  .index = group(SMLA_GROUP_INDEX, cut(fields.index_slot)),
                  .window = {.group = group(SMLA_GROUP_WINDOW, cut(fields.window_slot)),
                             .rows = cut(fields.window_rows),
                             .lengths = cut(fields.window_len)},
                  .entries = {.group = group(SMLA_GROUP_COMPRESSED, cut(fields.compressed_slot)),
                              .visible = cut(fields.visible_entries),
                              .rows = cut(fields.entry_rows),
                              .lengths = cut(fields.entry_len)},
                  .state = group(SMLA_GROUP_STATE, cut(fields.state_slot)),
                  .index_state = group(SMLA_GROUP_INDEX_STATE, cut(fields.index_state_slot))};
    return out;
}

// Returns the name of a step's member: "primary", "index", "window", ...
const char* group_name(int32_t bit);

struct LayerPrecision {
    smla_dtype activations = SMLA_F32;  // f64: reference engine
    smla_dtype queries = SMLA_F32;      // dtype of attend's q; bf16 selects bf16 arithmetic
    bool bf16_operands = false;         // whether products read activations in bf16
    std::string weight_prefix;          // prefix of all tensor names in the checkpoint
    bool as_stored = false;             // whether f32 and bf16 matrices keep their dtype

    smla_dtype operands() const { return bf16_operands ? SMLA_BF16 : activations; }
};

inline void place(HostTensor& tensor, Device& device) {
    if (tensor.view.device_type != SMLA_CPU) return;  // already on the layer's device
    const PlacedTensor placed = place(device, tensor.view);
    tensor.view = placed.view;
    if (placed.memory) tensor.memory = placed.memory;
}

class Layer {
public:
    virtual ~Layer() = default;
    Layer(const Layer&) = delete;
    Layer& operator=(const Layer&) = delete;
    virtual void forward(Runner& run, const LayerStep& step) const = 0;
    // [hidden] on the device: weight of the norm before the block; absent if the checkpoint has none
    virtual Tensor input_norm() const = 0;

    uint64_t id() const { return id_; }
    const AttentionConfig& config() const { return config_; }
    int layer_index() const { return layer_; }
    LayerKind kind() const { return config_.layer_kind(layer_); }
    const LayerPrecision& precision() const { return precision_; }
    size_t weight_bytes() const { return weight_bytes_; }
    size_t borrowed_bytes() const { return borrowed_bytes_; }  // in the caller's memory

protected:
    Layer(const AttentionConfig& config, int layer, LayerPrecision precision)
        : config_(config), layer_(layer), precision_(precision) {}

    // Moves the weights that forward() reads, and RoPE's frequencies, to the device.
    template <class Weights>
    void place(Weights& weights, Device& device) {
        place_side_by_side(hidden_weights(weights), device);
        place_side_by_side(latent_weights(weights), device);
        each_tensor(weights, [&](HostTensor& tensor) {
            smla::place(tensor, device);
            const size_t bytes = present(tensor.view) ? span_bytes(tensor.view) : 0;
            weight_bytes_ += bytes;
            if (!tensor.memory) borrowed_bytes_ += bytes;
        });
        frequencies_ = rope_frequencies(config_.common.rope_dim, config_.rope(layer_));
        placed_frequencies_.view = make_tensor(frequencies_.data(), SMLA_F64, {int64_t(frequencies_.size())});
        smla::place(placed_frequencies_, device);
    }
    const Tensor& frequencies() const { return placed_frequencies_.view; }
    // Returns a tensor for a product's operand: x if it has the operands' dtype, else a new one of x's shape.
    Tensor operand_of(Runner& run, const Tensor& x) const {
        return x.dtype == precision_.operands()
                   ? x
                   : run.activation(precision_.operands(), {x.shape[0], x.shape[1], x.shape[2]});
    }

    AttentionConfig config_;
    int layer_;
    LayerPrecision precision_;

private:
    const uint64_t id_ = unique_id();
    size_t weight_bytes_ = 0, borrowed_bytes_ = 0;
    std::vector<double> frequencies_;
    HostTensor placed_frequencies_;
};

inline WeightOptions weight_options(const LayerPrecision& precision) {
    return {.matrices = precision.operands(),
            .prefix = precision.weight_prefix,
            .as_stored = precision.as_stored};
}

// Reads the weights of one layer onto a device. Throws one error that lists all missing or misshapen tensors.
std::unique_ptr<Layer> open_layer(const Checkpoint& checkpoint, const AttentionConfig& config, int layer,
                                  LayerPrecision precision, Device& device = host_device());
std::unique_ptr<Layer> make_dsa_layer(const Checkpoint&, const AttentionConfig&, int layer, LayerPrecision,
                                      Device&);
std::unique_ptr<Layer> make_hybrid_layer(const Checkpoint&, const AttentionConfig&, int layer, LayerPrecision,
                                         Device&);

// Returns groups, window, ratio and list_entries for plans of the layer's steps.
PlanMaxima plan_for(const AttentionConfig& config, int layer);
inline PlanMaxima plan_for(const Layer& layer) { return plan_for(layer.config(), layer.layer_index()); }
// Returns a layer's info, except the bytes of its weights. Throws for a layer that smla does not compute.
smla_layer_info describe_layer(const AttentionConfig& config, int layer);
// Throws if steps of `plan` are wrong for a layer whose plan_for() is `wanted`. A plan may have more
// features, for other layers.
void check_plan(const char* field, const PlanMaxima& plan, const PlanMaxima& wanted);

// Checks LayerStep::forced_topk: the kind of layer requires, allows or rejects it.
void check_forced_topk(const char* field, const Layer& layer, const Tensor& given, int64_t tokens,
                       const CheckContext& context = {});

// Checks LayerStep::candidates and best_blocks. `selects`: whether the layer's own indexer runs.
void check_candidates(const Layer& layer, const Tensor& candidates, const Tensor& best_blocks, bool selects,
                      int64_t tokens, const CheckContext& context = {});

// layer_workspace() returns the bytes of workspace that run_layer() needs for these shapes.
size_t layer_workspace(const Layer& layer, const Env& env, const LayerStep& step, size_t stage_budget,
                       const Tap* tap);
void run_layer(const Layer& layer, const Env& env, const LayerStep& step, Workspace workspace,
               size_t stage_budget, StageRecords* records, const Tap* tap);

}  // namespace smla
