// Drives a layer, with those that it reads, over whole sequences: prefill in chunks, then token by token,
// several requests in one step.
#pragma once

#include "chain.h"

#include <functional>

namespace smla::cli {

struct Sequence {
    Tensor hidden;                    // [S,hidden]
    std::vector<Tensor> read{};       // [S,hidden] of each layer that the layer reads (chain.h)
    Tensor positions{};               // [S] i32 or i64, optional
    Tensor topk{};                    // [S,k] i32, optional: forced selection
    Tensor out{};                     // [S,hidden] f32 or f64
    std::vector<int32_t> selected{};  // [S,k] positions attended to, filled if `keep_selected`
};

struct Schedule {
    std::vector<int32_t> chunks;  // tokens of a request's prefill steps; the last number repeats
    int32_t decode_tokens = 0;    // the last tokens, decoded one per step
    int32_t stagger = 0;          // request r joins at step r * stagger: steps mix prefill and decode
    bool keep_selected = false;
};

// The largest step that the schedule can make, in tokens.
int32_t largest_step(const Schedule& schedule, size_t sequences);

// Calls `progress` with the tokens of each step. Returns the seconds of the layer itself.
double run_sequences(LayerChain& chain, std::vector<Sequence>& sequences, const Schedule& schedule,
                     const std::function<void(int64_t tokens)>& progress);

}  // namespace smla::cli
