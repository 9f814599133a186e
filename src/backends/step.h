// The inner step, once for every layer and attention backend: from rotated queries and new keys to attention
// output. A stage whose input is absent does not run: an engine that projects, selects or rotates elsewhere
// hands in what it has.
//   dsa:    write_kv and write_index (which norm and rotate; pools: save_state, compress), quant_index_q
//           (which rotates), score_select, map, absorb, rope, attend, up_project
//   hybrid: write_kv (window), save_state, compress, write_index (V4.1), quant_index_q, score_select or
//           score_select_blocks, map, attend (which rotates its output back)
// Everything cached is written before anything is read, so a token may attend to itself.
#pragma once

#include "backends/runner.h"
#include "core/layer_kind.h"
#include "formats/format.h"

#include <span>

namespace smla {

// A cache with the step's view of it.
struct CacheGroup {
    smla_cache cache{};    // format NONE: the layer has none
    Tensor block_table{};  // [R,MB] i32
    Tensor slots{};        // [T] i64: row that each token writes; a hole where it writes none
};

// The local window of V4.
struct Window {
    CacheGroup group;
    Tensor rows{}, lengths{};  // [T,W], [T] i32: rows that each token attends to
};

// The compressed history of V4, one entry per `ratio` tokens.
struct Entries {
    CacheGroup group;          // slots: the row of the entry that a token closes
    Tensor visible{};          // [T] i32: how many entries each token sees
    Tensor rows{}, lengths{};  // [T,E], [T] i32: rows that each token attends to; absent with an indexer
};

// Which keys each token attends to: positions (V3.2) or entries (V4) of its request, in any order, -1 for
// none.
struct Selection {
    Tensor indices{};  // [T,k] i32
    Tensor lengths{};  // [T] i32, optional: how many of them count
    Tensor rows{};     // [T,k] i32, optional: where they lie in the cache that is attended to
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

// The rotation of a row by its token's position.
struct RowRotation {
    smla_rope_style style = SMLA_ROPE_INTERLEAVED;
    int32_t first = 0;     // the first rotated channel
    Tensor frequencies{};  // [n] f64; absent: not at all
};

// A row of each token that goes into a cache, and what becomes of it before; see smla_write_args.
struct KeyRow {
    Tensor head{}, tail{};  // [T,Dhead], [T,Dtail]; absent head: the cache is already written
    smla_norm_kind norm_kind = SMLA_NORM_RMS;
    double eps = 0;
    Tensor norm_weight{}, norm_bias{};  // [Dhead]; absent weight: head is normed already
    RowRotation rotation{};
};

// An indexer's projected queries, and the cache of its keys; absent q: the layer has none.
struct Indexer {
    Tensor q{};  // [T,Hi,D]
    RowRotation rotation{};
    Tensor w{};  // [T,Hi], unscaled
    double factor = 0;
    double amax_floor = 0;
    bool hadamard = false;
    smla_dtype query_dtype = SMLA_F32;  // with keys of row_bf16: bf16 selects bf16 arithmetic
    int64_t topk = 0;
    CacheGroup keys;  // V4: of compressed entries
    // V4.1: columns per block; 0: no blocks. The indexer selects within the candidate blocks `blocks`
    // (absent: among all columns) and writes its best blocks to `best_blocks`.
    int32_t block_size = 0;
    Tensor blocks{}, best_blocks{};  // [T,B], [T,KB] i32, optional
};
// Selects for each token t among the keys [0, ends[t]), which must be written already: ascending, padded with
// -1, in `topk` if that is present. `attended`: the cache whose rows are wanted, too; null: none.
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
    Tensor q{};            // [T,H,nope + rope], or [T,H,L + rope] if it is absorbed
    Tensor frequencies{};  // [rope / 2] f64; absent: the rope channels of q are rotated already
    KeyRow key{};          // the latent [T,L] and the rope part [T,R]
    KeyRow index_key{};    // [T,D]; absent: a shared layer, or pools
    Indexer indexer;
    // GLM-5.3: tokens per index key (0: each token has its own), what makes those keys of index_k, and how
    // many of them each token sees, [T] i32. Selections are of pools, and the tokens behind the last whole
    // pool are always attended to.
    int32_t pool = 0;
    Compressor index_compressor;
    Tensor visible_pools{};
    // [H,L,nope] and [H,v,L] views of kv_b_proj. Absent w_uk: q is absorbed and rotated; absent w_uv: out is
    // the attended latent.
    Tensor w_uk{}, w_uv{};
    Selection forced;                   // attend to these positions instead of the indexer's
    smla_dtype query_dtype = SMLA_F32;  // of absorbed queries: bf16 selects bf16 arithmetic
    smla_precision precision = SMLA_PRECISION_DEFAULT;
    double softmax_scale = 0;
    CacheGroup kv;
    Tensor topk{};  // [T,k] i32 out: what the indexer selected, for later shared layers; absent: scratch
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
    KeyRow index_key{};                     // V4.1, [T,D]: the keys themselves, of tokens that close an entry
    Selection forced;                       // attend to these entries instead of the indexer's
    Tensor topk{};                          // [T,k] i32 out: what the indexer selected; absent: scratch
    double softmax_scale = 0, q_scale = 0;  // q_scale: of e4m3 queries
    Tensor sink{};                          // [H]
    Tensor out{};                           // [T,H,D], rotated back
    Tensor lse{};                           // [T,H], optional
};
void run_hybrid_step(Runner& run, const StepBatch& batch, const HybridStep& step);

// V4.1: writes the entries that the step's tokens close, from step.compressor (without `score` at ratio 1) to
// step.entries. Returns these entries as they are before RoPE, [T,1,D], because index keys are computed from
// them. Rows of tokens that close no entry are undefined.
Tensor write_entries(Runner& run, const StepBatch& batch, const HybridStep& step);

// Copies [T,G,D] to memory of any strides and of any float type.
void copy_rows(Runner& run, const StepBatch& batch, const Tensor& from, const Tensor& to);

}  // namespace smla
