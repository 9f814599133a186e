// Tensors of all argument structs except those for stages, which have field tables (ops/field.h). read_args()
// (guard.h) sets omitted strides in them.
#pragma once

#include <smla/backend.h>
#include <smla/layer.h>
#include <smla/plan.h>
#include <smla/rows.h>

#include <initializer_list>

namespace smla::api {

inline void each_tensor(smla_plan_batch& a, auto use) {
    for (auto* t : {&a.query_start_loc, &a.seq_lens, &a.rope_positions}) use(*t);
    for (auto* group : {&a.primary, &a.window, &a.compressed, &a.index, &a.state, &a.index_state}) {
        use(group->block_table);
        use(group->slots);
    }
}

inline void each_tensor(smla_backend_forward_args& a, auto use) {
    for (auto* t : {&a.q, &a.q_pe, &a.k_c, &a.k_pe, &a.topk_indices, &a.w_uk_t, &a.w_uv, &a.sink, &a.out,
                    &a.lse, &a.output_scale, &a.output_block_scale})
        use(*t);
}

inline void each_tensor(smla_layer_step& a, auto use) {
    for (auto* t : {&a.hidden, &a.out, &a.forced_topk, &a.topk, &a.candidates, &a.best_blocks}) use(*t);
    for (auto* each : {&a.primary, &a.window, &a.compressed, &a.index, &a.state, &a.index_state})
        use(each->block_table);
}

inline void each_tensor(smla_session_step& a, auto use) {
    for (auto* t : {&a.hidden, &a.out, &a.rope_positions, &a.forced_topk, &a.candidates}) use(*t);
}

inline void each_tensor(smla_request_rows_args& a, auto use) {
    for (auto* t : {&a.positions, &a.request_of_token, &a.block_table, &a.is_valid, &a.workspace_of_token,
                    &a.workspace_starts, &a.rows, &a.counts})
        use(*t);
}

inline void each_tensor(smla_split_context_args& a, auto use) {
    for (auto* t : {&a.positions, &a.context_lens, &a.context_rows, &a.new_rows}) use(*t);
}

inline void each_tensor(smla_combined_rows_args& a, auto use) {
    for (auto* t : {&a.selected, &a.query_start_loc, &a.seq_lens, &a.gather_lens, &a.rows, &a.lens}) use(*t);
}

inline void each_tensor(smla_mixed_rows_args& a, auto use) {
    for (auto* t : {&a.decode_window_rows, &a.decode_entries, &a.decode_lens, &a.is_valid, &a.prefill_entries,
                    &a.query_start_loc, &a.seq_lens, &a.request_of_token, &a.window_table, &a.entry_table,
                    &a.rows, &a.lens})
        use(*t);
}

inline void each_tensor(smla_decode_schedule_args& a, auto use) {
    for (auto* t : {&a.lens, &a.schedule, &a.splits}) use(*t);
}

inline void each_tensor(smla_prefill_chunks_args& a, auto use) {
    for (auto* t : {&a.query_start_loc, &a.seq_lens, &a.chunks}) use(*t);
}

}  // namespace smla::api
