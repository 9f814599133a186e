// What a backend's kernels need to know of a step, under the original's names, in buffers that never move.
// The sets of fields that a backend lists (sets.h) declare the fields and fill them.
#pragma once

#include "backends/instance.h"
#include "backends/metadata/field.h"
#include "backends/metadata/on_gpu.h"
#include "backends/step.h"
#include "plan/plan.h"

#include <deque>
#include <string_view>

namespace smla {

// Of one step, as forward() takes it; without a step, shapes only.
struct StepFields {
    int64_t tokens = 0;  // padding included
    StepBatch batch;
    Tensor row_limit{};  // [T] i32: how many listed rows count; 0 for padding
    // Of the caches, metadata know the pages alone: forward() brings the rest.
    CacheGroup kv;  // DSA
    Window window;  // HYBRID
    Entries entries;
};

// Fields that one rule declares and fills.
class FieldSet {
public:
    explicit FieldSet(Metadata& metadata) : on_(metadata) {}
    virtual ~FieldSet() = default;
    FieldSet(const FieldSet&) = delete;
    FieldSet& operator=(const FieldSet&) = delete;

    virtual void begin() {}                             // once, as soon as the fields have memory
    virtual void build(const PlanBatch& batch) = 0;     // on the host, from the plan of the step
    virtual void build_on_gpu(Device&, smla_stream) {}  // what kernels make of the fields that were sent
    virtual void add_to(StepFields&) const {}           // what forward() reads

protected:
    Metadata& on_;
};

class Metadata {
public:
    explicit Metadata(const BackendInstance& on);
    ~Metadata();
    Metadata(const Metadata&) = delete;
    Metadata& operator=(const Metadata&) = delete;

    // The batch lies on the host. A refused one changes nothing. On a GPU the fields lie there and change in
    // the order of the batch's stream; numbers stay on the host.
    void build(const PlanBatch& batch);
    const Tensor* find(std::string_view name) const;  // null: there is no such field
    std::span<const char* const> names() const { return names_; }
    const PlanBatch& batch() const { return batch_; }  // of the last build: pages and the caller's tables
    StepFields step() const;                           // as the kernels of the last build's step read it
    // Throws unless they were made for such an instance: forward() would misread metadata of another kind of
    // layer.
    void check_for(const BackendInstance& on) const;

    // For sets of fields.
    const BackendConfig& config() const { return config_; }
    const BackendArgs& args() const { return config_.args; }
    const Backend& backend() const { return *backend_; }
    smla_format format() const { return format_; }
    const Plan& plan() const { return plan_; }
    const BatchSplit& split() const { return plan_.split(); }
    int64_t requests() const { return plan_.size().requests; }
    int64_t tokens() const { return plan_.size().tokens; }

    // Declared in the constructors of sets; the references stay.
    enum class FieldIs { sent, made_there };  // to a GPU; made there: build_on_gpu() does it
    Field& own(const char* name, smla_dtype dtype, std::initializer_list<int64_t> largest, int32_t initial,
               FieldIs how = FieldIs::sent);
    int32_t& number(const char* name);  // i32 [1]; on the host
    Field& shown(const char* name);     // a part of another field, of the plan or of the batch's tables

    Field plan_field(Tensor PlanFields::*member) const;
    Field table(int32_t group) const;          // block table of the batch, as fields show it
    Tensor kernel_table(int32_t group) const;  // the same for kernels of captured graphs
    const Field& query_start_loc() const { return *query_start_loc_; }
    void limit_rows(int64_t token, int32_t most);  // of the token's list, the first so many count
    // Ends of the attend calls of a step: the decodes, then the prefills from request `first_prefill` on, in
    // calls of so many requests.
    void divide(int64_t decode_tokens, int64_t first_prefill, int64_t requests_per_call);

private:
    struct Declared {
        const char* name;
        Field field{};
        size_t bytes = 0;  // of memory of its own
        int32_t initial = 0;
        FieldIs how = FieldIs::sent;
        size_t sent = 0;  // bytes of the last send
        Tensor PlanFields::*of_plan = nullptr;
    };
    void declare_plan_fields();
    void place_fields();
    void show_plan();
    void fill_lengths(const PlanBatch& batch);
    void fill_chunks(const PlanBatch& batch);
    void send(const PlanBatch& batch);

    const Backend* backend_;
    BackendConfig config_;
    smla_format format_;
    Context* context_;
    Plan plan_;
    PlanBatch batch_{};
    bool built_ = false;
    std::vector<std::unique_ptr<FieldSet>> sets_;
    std::deque<Declared> fields_;
    std::deque<std::string> plan_names_;
    std::vector<const char*> names_;
    std::deque<int32_t> numbers_;
    std::vector<int32_t> parts_;
    size_t part_count_ = 0;
    smla_allocator allocator_{};
    void* memory_ = nullptr;
    std::unique_ptr<GpuMetadata> gpu_;  // null: on a CPU
    Field *query_start_loc_ = nullptr, *seq_lens_ = nullptr, *chunks_ = nullptr, *row_limit_ = nullptr;
    int32_t *num_reqs_, *num_actual_tokens_, *max_query_len_, *max_seq_len_;
    int64_t limited_ = 0;  // tokens that the last build wrote into row_limit_
};

// What a step of the largest size looks like to forward(), without memory.
StepFields largest_step(const BackendInstance& on, int64_t tokens);

}  // namespace smla
