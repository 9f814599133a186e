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

// All that a call is given.
class Extents {
public:
    void add(const Tensor& tensor);
    void add(const smla_cache& cache);
    void add(const Workspace& scratch);
    // Throws if the output meets anything but itself and what it may be in the place of. Two with gaps may
    // lie between each other, unless they begin at one place.
    void check_own(const char* field, const Tensor& output, const Tensor* in_place_of) const;

private:
    struct Given {
        const void* what;  // the tensor or the cache
        Extent extent;
    };
    static constexpr size_t kMost = 24;
    Given given_[kMost];
    size_t count_ = 0;
    void add(const void* what, const Extent& extent);
};

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
    Extents all;
    visit(
        args, [&](Tensor& each) { all.add(each); }, [&](smla_cache& each) { all.add(each); });
    all.add(workspace);
    each_output(args, [&](const char* field, Tensor& out) { all.check_own(field, out, in_place_of(args)); });
}

}  // namespace smla
