// What a backend's kernels need to know of a step, under the original's names, in buffers that never move.
#pragma once

#include "backends/backend.h"
#include "backends/metadata_on_gpu.h"
#include "backends/step.h"
#include "plan/plan.h"

#include <deque>

namespace smla {

// Of one step, as forward() takes it; without a step, shapes only.
struct StepFields {
    int64_t tokens = 0;  // padding included
    StepBatch batch;
    Tensor slots{};      // [T] i64 of the DSA cache, or of the window
    Tensor row_limit{};  // [T] i32: how many listed rows count; 0 for padding
    Tensor block_table{}, window_table{};
    int32_t page_tokens = 0, page_rows = 0;  // of block_table
    Tensor window_rows{}, window_lengths{};
    Tensor entry_rows{}, entry_lengths{};
};

inline int32_t* ints(const Tensor& tensor) { return static_cast<int32_t*>(tensor.data); }

class Metadata {
public:
    virtual ~Metadata();
    Metadata(const Metadata&) = delete;
    Metadata& operator=(const Metadata&) = delete;

    // The batch lies on the host. A refused one changes nothing. On a GPU the fields lie there, in the order
    // of the batch's stream; numbers stay with the host.
    void build(const PlanBatch& batch);
    const Tensor* find(std::string_view name) const;  // null: there is no such field
    std::span<const char* const> names() const { return names_; }
    const Plan& plan() const { return plan_; }
    const PlanBatch& batch() const { return batch_; }  // of the last build: pages and the caller's tables
    StepFields step() const;                           // as the kernels of the last build's step read it
    // Throws unless they were made for such an instance: metadata of another kind of layer would be read as
    // its.
    void check_for(const BackendInstance& on) const;

protected:
    Metadata(const BackendInstance& on, const PlanMaxima& maxima);

    // Declared in the constructors, all before finish(); the references stay.
    enum class FieldIs { sent, made_there };  // to a GPU; made there: fill_there() does it
    Tensor& own(const char* name, smla_dtype dtype, std::initializer_list<int64_t> largest, int32_t initial,
                FieldIs how = FieldIs::sent);
    int32_t& number(const char* name);  // i32 [1]; the value is set after finish()
    Tensor& shown(const char* name);    // the caller's tensor, or a part of another field
    void finish();

    virtual void fill(const PlanBatch& batch) = 0;
    virtual void fill_there(const GpuMetadata&, smla_stream) {}
    virtual StepFields host_step() const;
    void limit_rows(int64_t token, int32_t most);  // of its list, the first so many count
    const Tensor& query_start_loc() const { return *query_start_loc_; }
    // Ends of the attend calls of a step: parts of `requests` requests behind the decodes.
    void divide(int64_t decode_tokens, int64_t first_prefill, int64_t requests_per_part);

    const BackendArgs& args() const { return args_; }
    const BatchSplit& split() const { return plan_.split(); }
    int64_t requests() const { return plan_.size().requests; }
    int64_t tokens() const { return plan_.size().tokens; }

private:
    struct Field {
        const char* name;
        Tensor tensor{};                // the largest, then the last build's
        const Tensor* other = nullptr;  // a field of the plan
        int64_t bytes = 0;              // of memory of its own
        int32_t initial = 0;
        FieldIs how = FieldIs::sent;
        bool number = false;
        size_t sent = 0;         // bytes of the last send
        mutable Tensor there{};  // as find() last gave it
    };
    void send(const PlanBatch& batch);
    void copy_lengths(const PlanBatch& batch);

    const Backend* backend_;
    BackendArgs args_;
    Plan plan_;
    PlanBatch batch_{};
    bool built_ = false;
    std::deque<Field> fields_;
    std::deque<std::string> plan_names_;
    std::vector<const char*> names_;
    std::deque<int32_t> numbers_;
    std::vector<int32_t> parts_;
    size_t part_count_ = 0;
    smla_allocator allocator_{};
    void* memory_ = nullptr;
    Context* context_;
    std::unique_ptr<GpuMetadata> gpu_;  // null: on a CPU
    Tensor *query_start_loc_ = nullptr, *seq_lens_ = nullptr, *chunks_ = nullptr, *row_limit_ = nullptr;
    int32_t *num_reqs_, *num_actual_tokens_, *max_query_len_, *max_seq_len_;
    int64_t limited_ = 0;  // tokens that the last build wrote into row_limit_
};

// What a batch of the largest size looks like to forward(), without memory.
StepFields largest_step(const BackendInstance& on, int64_t tokens);

}  // namespace smla
