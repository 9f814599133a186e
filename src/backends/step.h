// The inner step, once for every layer and attention backend: from rotated queries and new keys to attention
// output. Absent inputs leave their stages out: an engine that projects, indexes or rotates elsewhere hands
// in what it has.
//   dsa:    write_kv, write_index, quant_index_q, score_select, map, absorb, attend, up_project
//   hybrid: write_kv (window), save_state, compress, quant_index_q, score_select, map, attend, inverse_rope
// Everything cached is written before anything is read, so a token may attend to itself.
#pragma once

#include "backends/runner.h"
#include "formats/format.h"

#include <span>

namespace smla {

// A cache with the step's view of it.
struct CacheGroup {
    smla_cache cache{};    // format NONE: the layer has none
    Tensor block_table{};  // [R,MB] i32
    Tensor slots{};        // [T] i64: row that each token writes
};

// What the plan says of the step's T tokens.
struct StepBatch {
    Tensor request_of_token{};         // [T] i32
    Tensor position{};                 // [T] i32: order in the request (causality, window, compression)
    Tensor rope_position{};            // [T] i32: what RoPE follows
    Tensor visible_tokens{};           // [T] i32: position + 1, 0 for padding
    int64_t max_columns = 0;           // host bound of the columns any token may score
    std::span<const int32_t> parts{};  // attend in one call per [parts[i], parts[i+1]); empty: in one
};

// Queries and keys of an indexer; absent q: no indexer.
struct IndexInput {
    Tensor q{};  // [T,Hi,D], rotated
    Tensor w{};  // [T,Hi], unscaled
    double factor = 0;
    double amax_floor = 0;
    bool hadamard = false;
    int64_t topk = 0;
};

struct DsaStep {
    Tensor q{};            // [T,H,nope + rope], not yet rotated; or [T,H,L + rope], absorbed
    Tensor frequencies{};  // [rope / 2] f64
    Tensor latent{};       // [T,L] normed; absent: the cache is already written
    Tensor k_rope{};       // [T,R] rotated
    Tensor index_k{};      // [T,D] normed and rotated; absent: shared layer
    IndexInput index;
    // [H,L,nope] and [H,v,L] views of kv_b_proj. Absent w_uk: q is absorbed and rotated; absent w_uv: out is
    // the attended latent
    Tensor w_uk{}, w_uv{};
    Tensor forced_topk{};               // [T,k] i32: attend to these positions instead of the indexer's
    Tensor row_lengths{};               // [T] i32, optional: how many of them count
    smla_dtype query_dtype = SMLA_F32;  // of absorbed queries: bf16 selects bf16 arithmetic
    double softmax_scale = 0;
    CacheGroup kv, index_cache;
    Tensor topk{};  // [T,k] i32 out: positions selected, for later shared layers; absent: scratch
    Tensor out{};   // [T,H,v]
    Tensor lse{};   // [T,H], optional
};
void run_dsa_step(Runner& run, const StepBatch& batch, const DsaStep& step);

// One compressor: projected rows of the step's tokens, and where its state and entries live.
struct CompressInput {
    Tensor kv{}, score{};  // [T, coff * D]; absent: the entries are already written
    Tensor ape{};          // [ratio, coff * D]
    Tensor norm_weight{};  // [D]
    CacheGroup state;
    CacheGroup entries;  // slots: the row of the entry that a token closes, else a hole
    bool hadamard = false;
};

struct HybridStep {
    int32_t ratio = 0;     // 0: window only; 4: with indexer; else all visible entries
    Tensor q{};            // [T,H,D] rotated
    Tensor kv{};           // [T,D] rotated; absent: the window cache is already written
    Tensor frequencies{};  // [n] f64; absent: out stays rotated
    double eps = 0;
    CompressInput main, indexer;
    IndexInput index;
    Tensor forced_topk{};  // [T,k] i32: attend to these entries instead of the indexer's (ratio 4)
    Tensor topk{};         // [T,k] i32 out: entries selected (ratio 4); absent: scratch
    double softmax_scale = 0, q_scale = 0;  // q_scale: e4m3 queries
    Tensor sink{};                          // [H]
    CacheGroup window;
    Tensor window_rows{}, window_lengths{};  // [T,W], [T] i32
    Tensor visible_entries{};                // [T] i32
    Tensor entry_rows{}, entry_lengths{};    // [T,E], [T] i32: the entries to attend to, without an indexer;
                                             // lengths are optional, and bound an indexer's too
    Tensor out{};                            // [T,H,D], de-rotated
    Tensor lse{};                            // [T,H], optional
};
void run_hybrid_step(Runner& run, const StepBatch& batch, const HybridStep& step);

}  // namespace smla
