// The select kernels of the cuda engine. score_select runs them on parts of its logits.
#pragma once

#include "engines/candidate.h"
#include "ops/map/row_of.h"

#include <type_traits>

namespace smla::cuda {

// Input of select: columns [begin, end) of each token's window, after the winners kept from earlier columns.
struct SelectInput {
    const void* scores = nullptr;  // score of column `begin` of the first token
    int64_t stride = 0;            // elements between tokens
    smla_dtype dtype = SMLA_F32;
    int64_t tokens = 0;
    smla_tensor starts{}, ends{};
    int64_t columns = 0, begin = 0,
            end = 0;  // columns: N, to which windows are clamped; [begin, end): current part
    const float* kept_scores = nullptr;     // [T,k]: best of the columns before `begin`, in column order
    const int32_t* kept_columns = nullptr;  // [T,k]
};

// Output of select: columns in ascending order, then -1 (and -inf).
struct SelectOutput {
    int32_t* indices = nullptr;  // [T,k]
    int64_t index_stride = 0;
    float* selected = nullptr;  // [T,k], optional
    int64_t selected_stride = 0;
    int32_t* counts = nullptr;  // [T], optional
    int64_t count_stride = 0;
    int64_t k = 0;
    bool relative = false;
    int32_t* rows = nullptr;  // [T,k], optional: the columns as cache rows
    int64_t row_stride = 0;
    BlockTable row_table{};  // table of that cache
    const int32_t* request_of_token = nullptr;
    int64_t request_stride = 0;
};
// Calls choose(rows), where rows.value says at compile time whether rows are requested.
template <class Choose>
auto with_rows(const SelectOutput& output, const Choose& choose) {
    return output.rows ? choose(std::true_type()) : choose(std::false_type());
}

inline size_t no_scratch(int64_t, int64_t, const Env&) { return 0; }

struct SelectKernel {
    const char* name;
    // Does not read through pointers; a null kept_scores means that no columns were kept.
    Support (*supports)(const SelectInput& input, int64_t k, const Env& env);
    // Returns the bytes, besides the workspace's header, for splitting rows over blocks.
    size_t (*scratch)(int64_t tokens, int64_t columns, const Env& env) = no_scratch;
    // `scratch` is null if no row is split.
    void (*run)(const SelectInput& input, const SelectOutput& output, void* scratch, const Env& env);
};

extern const Candidate<smla_select_args> kClusterSelect, kRegisterSelect, kSampledSelect, kGenericSelect;
// Returns the kernel for k of this input, or null if no allowed kernel supports it.
const SelectKernel* choose_select_kernel(const SelectInput& input, int64_t k, const Env& env);
// Returns the most scratch of any allowed kernel.
size_t select_scratch(const SelectInput& input, int64_t k, const Env& env);

SelectOutput select_output(const smla_select_args& args);

// cuda_cluster_select. refuse_cluster returns why the shape is unsupported, or an empty text; cluster_pays
// returns whether a cluster is faster than the other kernels.
std::string refuse_cluster(int64_t tokens, int64_t columns, int64_t k, const Env& env);
bool cluster_pays(int64_t tokens, int64_t columns, const Env& env);
void run_select_by_cluster(const SelectInput& input, const SelectOutput& output, void*, const Env& env);

// cuda_register_select. registers_select returns whether such rows fit in registers.
bool registers_select(const SelectInput& input);
void run_select_by_registers(const SelectInput& input, const SelectOutput& output, void*, const Env& env);

// cuda_sampled_select. refuse_sampled returns why a sample does not suffice, or an empty text.
std::string refuse_sampled(int64_t columns, int64_t k);
size_t sampled_scratch(int64_t tokens, int64_t columns, const Env& env);
void run_select_sampled(const SelectInput& input, const SelectOutput& output, void* scratch, const Env& env);

// cuda_generic_select
void run_select_exact(const SelectInput& input, const SelectOutput& output, void*, const Env& env);

// The exact kernel for lists with ids.
size_t select_ids_scratch(const smla_select_args& args, const Env& env);
void run_select_ids(const smla_select_args& args, void* scratch, const Env& env);

}  // namespace smla::cuda
