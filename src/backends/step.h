// The inner step of all layers and attention backends, from rotated queries and new keys to attention output.
// A stage runs only if its input is present, so an engine may project, select or rotate elsewhere.
//   DSA:    write_kv and write_index (with norm and rotation; pools: save_state, compress), quant_index_q
//           (with rotation), score_select, map, absorb, rope, attend, up_project.
//   HYBRID: write_kv (window), save_state, compress, write_index (V4.1), quant_index_q, score_select or
//           score_select_blocks, map, attend (with inverse rotation of its output).
// All cache writes precede all reads, so a token may attend to itself.
#pragma once

#include "backends/runner.h"
#include "core/layer_kind.h"
#include "formats/format.h"

#include <span>

namespace smla {

// A cache with the step's block table and slots.
struct CacheGroup {
    smla_cache cache{};    // NONE: no such cache
    Tensor block_table{};  // [R,MB] i32
    Tensor slots{};        // [T] i64: row that each token writes; negative: none
};

// The local window of V4.
struct Window {
    CacheGroup group;
    Tensor rows{}, lengths{};  // [T,W], [T] i32: rows that each token attends to
};

// The compressed history of V4, one entry per `ratio` tokens.
struct Entries {
    CacheGroup group;          // slots: row of the entry that a token closes
    Tensor visible{};          // [T] i32: number of entries that each token sees
    Tensor rows{}, lengths{};  // [T,E], [T] i32: rows that each token attends to; absent with an indexer
};

// Keys that each token attends to: positions (V3.2) or entries (V4) of its request, in any order; -1: none.
struct Selection {
    Tensor indices{};  // [T,k] i32
    Tensor lengths{};  // [T] i32, optional: number of valid indices
    Tensor rows{};     // [T,k] i32, optional: rows in the attended cache
};

// The plan's tensors for the T tokens of a step.
struct StepBatch {
    Tensor request_of_token{};         // [T] i32
    Tensor position{};                 // [T] i32: order in the request (causality, window, compression)
    Tensor rope_position{};            // [T] i32: positions for RoPE
    Tensor visible_tokens{};           // [T] i32: position + 1, 0 for padding
    int64_t max_columns = 0;           // upper bound on columns that a token scores
    std::span<const int32_t> parts{};  // one attend call per [parts[i], parts[i+1]); empty: one call
};

// Rotation of a row by its token's position.
struct RowRotation {
    smla_rope_style style = SMLA_ROPE_INTERLEAVED;
    int32_t first = 0;     // the first rotated channel
    Tensor frequencies{};  // [n] f64; absent: no rotation
};

// A row of each token for a cache, with norm and rotation; see smla_write_args.
struct KeyRow {
    Tensor head{}, tail{};  // [T,Dhead], [T,Dtail]; absent head: the cache is already written
    smla_norm_kind norm_kind = SMLA_NORM_RMS;
    double eps = 0;
    Tensor norm_weight{}, norm_bias{};  // [Dhead]; absent weight: head is already normalized
    RowRotation rotation{};
};

// An indexer's projected queries and the cache of its keys; absent q: the layer has no indexer.
struct Indexer {
    Tensor q{};  // [T,Hi,D]
    RowRotation rotation{};
    Tensor w{};  // [T,Hi], unscaled
    double factor = 0;
    double amax_floor = 0;
    bool hadamard = false;
    smla_dtype query_dtype = SMLA_F32;  // bf16 selects bf16 arithmetic if keys are row_bf16
    int64_t topk = 0;
    CacheGroup keys;  // V4: of compressed entries
    // V4.1: columns per block; 0: no blocks. The indexer selects within the blocks `blocks` (absent: all
    // columns) and writes its best blocks to `best_blocks`.
    int32_t block_size = 0;
    Tensor blocks{}, best_blocks{};  // [T,B], [T,KB] i32, optional
};
// Returns each token t's selection among the keys [0, ends[t]), which must already be written. Indices
// ascend, are padded with -1, and are stored in `topk` if present. Also returns rows of `attended`, if not
// null.
Selection run_indexer(Runner& run, const StepBatch& batch, const Indexer& in, const Tensor& ends,
                      const Tensor& topk, const CacheGroup* attended = nullptr);

// A compressor's projected rows of the step's tokens, and the cache of its state.
struct Compressor {
    Tensor kv{}, score{};  // [T, coff * D]; absent: the entries are already written
    Tensor ape{};          // [ratio, coff * D]; optional
    Tensor norm_weight{};  // [D]; absent: no norm
    CacheGroup state;
    bool hadamard = false;
};

struct DsaStep {
    Tensor q{};            // [T,H,nope + rope], or [T,H,L + rope] if absorbed
    Tensor frequencies{};  // [rope / 2] f64; absent: q is already rotated
    KeyRow key{};          // the latent [T,L] and the rope part [T,R]
    KeyRow index_key{};    // [T,D]; absent in shared layers and with pools
    Indexer indexer;
    // GLM-5.3: tokens per index key (0: one key per token), the compressor that makes these keys from
    // index_k, and the number of keys that each token sees, [T] i32. Selections are pools, and the tokens
    // behind the last whole pool are always attended to.
    int32_t pool = 0;
    Compressor index_compressor;
    Tensor visible_pools{};
    // [H,L,nope] and [H,v,L] views of kv_b_proj. Without w_uk, q is already absorbed and rotated; without
    // w_uv, out is the attended latent.
    Tensor w_uk{}, w_uv{};
    Selection forced;                   // replaces the indexer's positions
    smla_dtype query_dtype = SMLA_F32;  // dtype of absorbed queries; bf16 selects bf16 arithmetic
    smla_precision precision = SMLA_PRECISION_DEFAULT;
    double softmax_scale = 0;
    CacheGroup kv;
    Tensor topk{};  // [T,k] i32 out: the indexer's selection, for later shared layers; absent: scratch
    Tensor out{};   // [T,H,v]
    Tensor lse{};   // [T,H], optional
};
void run_dsa_step(Runner& run, const StepBatch& batch, const DsaStep& step);

struct HybridStep {
    LayerKind kind = LayerKind::sliding;
    int32_t ratio = 0;     // tokens per entry
    Tensor q{};            // [T,H,D] rotated
    KeyRow key{};          // [T,D]
    Tensor frequencies{};  // [n] f64; absent: out stays rotated
    double eps = 0;        // of the compressors' norms
    smla_precision precision = SMLA_PRECISION_DEFAULT;
    Window window;
    Entries entries;
    Compressor compressor;
    Indexer indexer;
    Compressor index_compressor;            // writes the indexer's keys
    KeyRow index_key{};                     // V4.1, [T,D]: keys of tokens that close an entry
    Selection forced;                       // replaces the indexer's entries
    Tensor topk{};                          // [T,k] i32 out: the indexer's selection; absent: scratch
    double softmax_scale = 0, q_scale = 0;  // q_scale: of e4m3 queries
    Tensor sink{};                          // [H]
    Tensor out{};                           // [T,H,D], rotated back
    Tensor lse{};                           // [T,H], optional
};
void run_hybrid_step(Runner& run, const StepBatch& batch, const HybridStep& step);

// V4.1: writes the entries that the step's tokens close, from step.compressor (without `score` at ratio 1) to
// step.entries. Returns these entries before RoPE, [T,1,D], which index keys are computed from. Rows of
// tokens that close no entry are undefined.
Tensor write_entries(Runner& run, const StepBatch& batch, const HybridStep& step);

// Copies [T,G,D] to memory of any strides and float type.
void copy_rows(Runner& run, const StepBatch& batch, const Tensor& from, const Tensor& to);

}  // namespace smla
