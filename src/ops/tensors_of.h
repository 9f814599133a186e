// The tensors and caches of every stage's arguments, spelt once: for what treats all of them alike (copies
// between devices, marks of where they lie).
#pragma once

#include <smla/stages.h>

namespace smla {

// Calls tensor(t) and cache(c) on each of them, absent ones too.
template <class T, class C>
void visit(smla_norm_args& a, T tensor, C) {
    for (auto* t : {&a.x, &a.weight, &a.bias, &a.out}) tensor(*t);
}
template <class T, class C>
void visit(smla_rope_args& a, T tensor, C) {
    for (auto* t : {&a.x, &a.positions, &a.frequencies, &a.out}) tensor(*t);
}
template <class T, class C>
void visit(smla_project_args& a, T tensor, C) {
    for (auto* t : {&a.x, &a.w, &a.out}) tensor(*t);
}
template <class T, class C>
void visit(smla_quant_index_q_args& a, T tensor, C) {
    for (auto* t : {&a.q, &a.w, &a.q_out, &a.scales, &a.w_out}) tensor(*t);
}
template <class T, class C>
void visit(smla_write_args& a, T tensor, C cache) {
    for (auto* t : {&a.head, &a.tail, &a.slots}) tensor(*t);
    cache(a.cache);
}
template <class T, class C>
void visit(smla_save_state_args& a, T tensor, C cache) {
    for (auto* t : {&a.kv, &a.score, &a.ape, &a.positions, &a.slots}) tensor(*t);
    cache(a.state);
}
template <class T, class C>
void visit(smla_compress_args& a, T tensor, C cache) {
    for (auto* t : {&a.state_table, &a.request_of_token, &a.positions, &a.slots, &a.norm_weight,
                    &a.frequencies, &a.entries})
        tensor(*t);
    cache(a.state);
    cache(a.cache);
}
template <class T, class C>
void visit(smla_gather_args& a, T tensor, C cache) {
    for (auto* t : {&a.block_table, &a.starts, &a.cu, &a.out, &a.scales}) tensor(*t);
    cache(a.cache);
}
template <class T, class C>
void visit(smla_copy_pages_args& a, T tensor, C cache) {
    tensor(a.pairs);
    cache(a.source);
    cache(a.target);
}
template <class T, class C>
void visit(smla_score_args& a, T tensor, C cache) {
    for (auto* t :
         {&a.q, &a.q_scales, &a.w, &a.block_table, &a.request_of_token, &a.starts, &a.ends, &a.logits})
        tensor(*t);
    cache(a.keys);
}
template <class T, class C>
void visit(smla_select_args& a, T tensor, C) {
    for (auto* t : {&a.scores, &a.ids, &a.starts, &a.ends, &a.indices, &a.selected, &a.counts}) tensor(*t);
}
template <class T, class C>
void visit(smla_score_select_args& a, T tensor, C cache) {
    visit(a.score, tensor, cache);
    visit(a.select, tensor, cache);
}
template <class T, class C>
void visit(smla_map_args& a, T tensor, C) {
    for (auto* t : {&a.positions, &a.request_of_token, &a.block_table, &a.rows, &a.counts}) tensor(*t);
}
template <class T, class C>
void visit(smla_attend_args& a, T tensor, C cache) {
    for (auto* t : {&a.q, &a.sink, &a.out, &a.lse, &a.max_logits}) tensor(*t);
    for (auto* source : {&a.primary, &a.extra}) {
        tensor(source->rows);
        tensor(source->lengths);
        cache(source->cache);
    }
}
template <class T, class C>
void visit(smla_merge_args& a, T tensor, C) {
    for (auto* t : {&a.partials, &a.lse, &a.sink, &a.out, &a.lse_out}) tensor(*t);
}

}  // namespace smla
