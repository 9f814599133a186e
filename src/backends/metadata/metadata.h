// Step information that a backend's kernels need, under the original's names, at fixed addresses. The field
// sets of a backend (sets.h) declare and fill the fields.
#pragma once

#include "backends/instance.h"
#include "backends/metadata/field.h"
#include "backends/metadata/on_gpu.h"
#include "backends/metadata/tables.h"
#include "backends/step.h"
#include "engines/metadata_job.h"
#include "plan/plan.h"

#include <deque>
#include <string_view>

namespace smla {

// Fields of one step, as passed to forward(); without a step, only their shapes.
struct StepFields {
    int64_t tokens = 0;  // padding included
    StepBatch batch;
    Tensor row_limit{};  // [T] i32: number of valid listed rows; 0 for padding
    // The metadata sets the page sizes of the caches; forward() sets the rest.
    CacheGroup kv;  // DSA
    Window window;  // HYBRID
    Entries entries;
};

// Division of the step's tokens into attend calls, one per [ends[i], ends[i+1]).
class AttendCalls {
public:
    explicit AttendCalls(int64_t most_requests) : ends_(size_t(most_requests) + 3) {}

    void begin() {
        ends_[0] = 0;
        count_ = 1;
    }
    // Ends the current call before `token`, unless the call is empty.
    void end(int64_t token) {
        if (token > ends_[count_ - 1]) ends_[count_++] = int32_t(token);
    }
    // Adds padding to the last call.
    void finish(int64_t tokens) {
        if (count_ == 1) end(tokens);
        else ends_[count_ - 1] = std::max(ends_[count_ - 1], int32_t(tokens));
    }
    std::span<const int32_t> ends() const { return {ends_.data(), count_}; }

private:
    std::vector<int32_t> ends_;
    size_t count_ = 0;
};

inline void show_pages(smla_cache& cache, const PlanGroup& group) {
    cache.page_tokens = group.page_tokens;
    cache.page_rows = group.page_rows;
}

// A set of fields with one rule that declares and fills them.
class FieldSet {
public:
    explicit FieldSet(Metadata& metadata) : on_(metadata) {}
    virtual ~FieldSet() = default;
    FieldSet(const FieldSet&) = delete;
    FieldSet& operator=(const FieldSet&) = delete;

    virtual void begin() {}                             // called once, when the fields have memory
    virtual void shape(const PlanBatch& batch) = 0;     // sets shapes, numbers and views of tensors
    virtual void fill(const PlanBatch&) {}              // computes host values from the step's plan
    virtual void add_to_job(MetadataJob&) const {}      // adds kernel outputs for a GPU batch
    virtual void build_on_gpu(Device&, smla_stream) {}  // derives fields from fields that the host sent
    virtual void add_to(StepFields&) const {}           // adds the fields that forward() reads

protected:
    Metadata& on_;
};

class Metadata {
public:
    explicit Metadata(const BackendInstance& on);
    ~Metadata();
    Metadata(const Metadata&) = delete;
    Metadata& operator=(const Metadata&) = delete;

    // Builds the metadata of a batch. A rejected batch changes nothing. On a GPU, fields change in stream
    // order, and numbers stay on the host. The build never waits for a GPU batch and may be captured.
    void build(const PlanBatch& batch);
    // Returns the kernel's job for a GPU batch, after its plan was built on the GPU.
    MetadataJob job(const PlanBatch& batch, const Plan& plan) const;
    const Tensor* find(std::string_view name) const;  // null if there is no such field
    std::span<const char* const> names() const { return names_; }
    // Returns pages and tables of the last build. Tables of a GPU batch are the caller's; others are copies.
    const PlanBatch& batch() const { return batch_; }
    StepFields step() const;  // the last build's fields
    // Throws unless the metadata suits `on`: forward() would misread metadata of another kind of layer.
    void check_for(const BackendInstance& on) const;

    // For sets of fields.
    const BackendConfig& config() const { return config_; }
    const BackendArgs& args() const { return config_.args; }
    const Backend& backend() const { return *backend_; }
    smla_format format() const { return format_; }
    const Plan& plan() const { return plan_; }
    const BatchSplit& split() const { return split_; }
    int64_t requests() const { return size_.requests; }
    int64_t tokens() const { return size_.tokens; }
    int64_t longest_query() const { return *max_query_len_; }

    // Constructors of sets call these functions; returned references stay valid.
    enum class FieldIs { sent, made_there };  // sent by each build, or filled by build_on_gpu()
    Field& own(const char* name, smla_dtype dtype, std::initializer_list<int64_t> largest, int32_t initial,
               FieldIs how = FieldIs::sent);
    int32_t& number(const char* name);  // i32 [1]; on the host
    Field& shown(const char* name);     // a view of another field, the plan or the tables

    Field plan_field(Tensor PlanFields::*member) const;
    Field table(PlanGroup PlanBatch::*member) const;  // block table of the batch
    // Returns that block table with the rows of later batches, for graphs.
    Tensor kernel_table(PlanGroup PlanBatch::*member) const;
    const Field& query_start_loc() const { return *query_start_loc_; }
    void limit_rows(int64_t token, int32_t most);  // a token's valid prefix of listed rows
    // Divides the step's tokens into attend calls: decodes, then prefills from request `first_prefill` on,
    // with `requests_per_call` requests each. Padding joins the last call.
    void divide(int64_t decode_tokens, int64_t first_prefill, int64_t requests_per_call);

private:
    struct Declared {
        const char* name;
        Field field{};
        size_t bytes = 0;  // of its own memory
        int32_t initial = 0;
        FieldIs how = FieldIs::sent;
        size_t sent = 0;  // bytes of the last send
        Tensor PlanFields::*of_plan = nullptr;
    };
    void build_here(const PlanBatch& batch);
    void build_there(const PlanBatch& batch);
    void shape(const PlanBatch& batch);
    void declare_plan_fields();
    bool on_gpu() const { return context_ && context_->device().type() != SMLA_CPU; }
    void place_fields();
    void show_plan();
    void count_lengths(const PlanBatch& batch);
    void fill_lengths(const PlanBatch& batch);
    void fill_chunks(const PlanBatch& batch);
    void send(const PlanBatch& batch);

    const Backend* backend_;
    BackendConfig config_;
    smla_format format_;
    Context* context_;
    Plan plan_;
    BatchTables tables_;
    PlanBatch batch_{};
    BatchSize size_;
    BatchSplit split_;
    bool built_ = false, built_there_ = false;
    std::vector<std::unique_ptr<FieldSet>> sets_;
    std::deque<Declared> fields_;
    std::deque<std::string> plan_names_;
    std::vector<const char*> names_;
    std::deque<int32_t> numbers_;
    AttendCalls calls_;
    struct FreeMemory {
        smla_allocator allocator;
        void operator()(void* memory) const { allocator.free(allocator.user, memory); }
    };
    smla_allocator allocator_{};
    std::unique_ptr<void, FreeMemory> memory_;
    std::unique_ptr<GpuMetadata> gpu_;  // null: on a CPU
    Field *query_start_loc_ = nullptr, *seq_lens_ = nullptr, *chunks_ = nullptr, *row_limit_ = nullptr;
    int32_t *num_reqs_, *num_actual_tokens_, *max_query_len_, *max_seq_len_;
    int64_t limited_ = 0;  // tokens that the last build wrote into row_limit_
};

// Returns the fields of the largest step for forward(), without memory.
StepFields largest_step(const BackendInstance& on, int64_t tokens);

}  // namespace smla
