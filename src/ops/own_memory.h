// What a call writes lies apart from all else that it is given, so that no kernel's order of reads and writes
// shows. In place, where a stage works so, is the very same tensor.
#pragma once

#include "core/workspace.h"
#include "formats/format.h"
#include "ops/tensors_of.h"

#include <type_traits>

namespace smla {

// Bytes [begin, end); with gaps not all of them.
struct Extent {
    uintptr_t begin = 0, end = 0;
    bool gaps = false;
};
Extent extent_of(const Tensor& tensor);
Extent extent_of(const smla_cache& cache);
// Throws if they meet. Two with gaps may lie between each other, unless they begin at one place.
void check_own(const char* field, const Extent& output, const Extent& other);
bool same_elements(const Tensor& a, const Tensor& b);

// Calls use(field, tensor) on each output, absent ones too.
template <class Args, class Use>
void each_output(Args& a, Use use) {
#define SMLA_OUTPUT(name) \
    if constexpr (requires { a.name; }) use("args." #name ".data", a.name);
    SMLA_OUTPUT(out)
    SMLA_OUTPUT(max_logits)
    SMLA_OUTPUT(lse_out)
    SMLA_OUTPUT(q_out)
    SMLA_OUTPUT(scales)
    SMLA_OUTPUT(w_out)
    SMLA_OUTPUT(entries)
    SMLA_OUTPUT(logits)
    SMLA_OUTPUT(indices)
    SMLA_OUTPUT(selected)
    SMLA_OUTPUT(counts)
    SMLA_OUTPUT(rows)
    SMLA_OUTPUT(select.indices)
    SMLA_OUTPUT(select.selected)
    SMLA_OUTPUT(select.counts)
#undef SMLA_OUTPUT
    if constexpr (std::is_same_v<Args, smla_attend_args>) use("args.lse.data", a.lse);
}

inline const Tensor* in_place_of(const smla_norm_args& args) { return &args.x; }
inline const Tensor* in_place_of(const smla_rope_args& args) { return &args.x; }
inline const Tensor* in_place_of(const smla_map_args& args) { return &args.positions; }
inline const Tensor* in_place_of(const smla_quant_index_q_args& args) { return &args.w; }
inline const Tensor* in_place_of(const auto&) { return nullptr; }

template <class Args>
void check_own_memory(Args args, const Workspace& workspace) {
    const auto scratch = uintptr_t(workspace.data);
    each_output(args, [&](const char* field, Tensor& out) {
        const Extent mine = extent_of(out);
        if (mine.begin == mine.end) return;  // absent
        const auto tensor = [&](Tensor& other) {
            if (&other == &out || (&other == in_place_of(args) && same_elements(other, out))) return;
            check_own(field, mine, extent_of(other));
        };
        visit(args, tensor, [&](smla_cache& cache) { check_own(field, mine, extent_of(cache)); });
        check_own(field, mine, {scratch, scratch + workspace.bytes});
    });
}

}  // namespace smla
