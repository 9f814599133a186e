// A valid call of every stage, with a list of its fields: what is true of all stages is tested on all of
// them, and what is wrong with a field is tested on every field.
#pragma once

#include "engines.h"
#include "kit/device_copies.h"
#include "memory.h"

#include "ops/ops.h"

#include <cstring>
#include <memory>
#include <stdexcept>

namespace contract {

using smla::kit::DeviceCopies;

// A tensor of a call, and its line in the stage's table.
struct TensorField {
    std::string name;
    smla_tensor* tensor;
    const smla::StageField* field;

    // May be left out by itself.
    bool is_optional() const { return field->is_optional && field->follows == smla::kNoField; }
    // The dimension that is cut with the tokens: "T", or a leading "N", which is at most T. -1: there is
    // none.
    int token_dim() const;
};
struct CacheField {
    std::string name;
    smla_cache* cache;
    const smla::StageField* field;
};
struct ChoiceField {  // an enum or a flag; reserved: 0 to 0
    std::string name;
    int32_t* value;
    int32_t low, high;
};
struct PositiveField {  // a finite number above 0
    std::string name;
    double* value;
    bool zero_is_default = false;
};

class Call {
public:
    Call(std::string name, smla_stage stage)
        : memory(uint32_t(stage) + 1), name(std::move(name)), stage(stage) {}
    virtual ~Call() = default;

    smla_status run(smla_context* context, smla_workspace workspace) const {
        return run_with(context, args(), workspace);
    }
    smla_status run_with(smla_context* context, const void* args, smla_workspace workspace) const;
    smla_status check(smla_context* context) const;  // smla_check_stage
    // The C function itself.
    virtual smla_status call(smla_context* context, const void* args, smla_workspace workspace,
                             smla_stream stream = nullptr) const = 0;
    // Arguments that point into copies on the GPU.
    virtual std::vector<char> moved(const void* args, DeviceCopies& copies) const = 0;
    virtual const void* args() const = 0;
    virtual uint32_t* struct_size() = 0;
    struct NestedSize {  // of a struct within the arguments
        const char* field;
        uint32_t* value;
        size_t right;
    };
    virtual std::vector<NestedSize> nested_struct_sizes() = 0;
    size_t workspace(smla_context* context, size_t budget = 0) const;
    // Written in every element by each call. gather writes no row past the last one that it was asked for.
    bool is_output(const TensorField& field) const {
        return field.field->is_output && stage != SMLA_STAGE_GATHER;
    }
    // Read and written: an input whose own output is left out.
    bool is_in_place(const TensorField& field) const;
    // No other field of the call has the length of this dimension.
    bool is_free(const TensorField& field, int dim) const;
    // Only tokens [begin, end) of the call.
    void slice_tokens(int64_t begin, int64_t end);
    // Tokens first, first + step, first + 2 * step and so on.
    void stride_tokens(int64_t first, int64_t step);

    Memory memory;
    std::string name;
    smla_stage stage;
    int64_t tokens = 0;
    std::vector<TensorField> tensors;
    std::vector<CacheField> caches;
    std::vector<ChoiceField> choices;
    std::vector<PositiveField> positives;
    bool has_tokens = true;     // cut into tokens, each on its own
    bool through_blas = false;  // sums as the BLAS library pleases
};

// A call's arguments where its context's engine works: themselves on a CPU, on a GPU or in memory of one's
// own copies.
class Placed {
public:
    Placed(const Call& call, smla_context* context, const void* args, DeviceCopies::Allocate bare = nullptr)
        : args_(args), copies_(bare, is_on_gpu(context)) {
        if (!args || (!bare && !is_on_gpu(context))) return;
        there_ = call.moved(args, copies_);
        args_ = there_.data();
        copies_.send();
    }
    Placed(const Placed&) = delete;
    Placed& operator=(const Placed&) = delete;
    const void* args() const { return args_; }
    void send() const { copies_.send(); }
    void fetch() const {
        if (!there_.empty()) copies_.fetch();
    }

private:
    const void* args_;
    DeviceCopies copies_;
    std::vector<char> there_;
};

template <class Args>
class CallOf : public Call {
public:
    using Function = smla_status (*)(smla_context*, const Args*, smla_workspace, smla_stream);
    CallOf(std::string name, smla_stage stage, Function function)
        : Call(std::move(name), stage), function_(function) {
        std::memset(&with, 0, sizeof with);
        with.struct_size = sizeof with;
    }
    smla_status call(smla_context* context, const void* args, smla_workspace workspace,
                     smla_stream stream = nullptr) const override {
        return function_(context, static_cast<const Args*>(args), workspace, stream);
    }
    std::vector<char> moved(const void* args, DeviceCopies& copies) const override {
        const size_t given = static_cast<const Args*>(args)->struct_size, most = size_t(1) << 16;
        std::vector<char> bytes(given > sizeof(Args) && given <= most ? given : sizeof(Args));
        std::memcpy(bytes.data(), args, bytes.size());
        Args there;
        std::memcpy(&there, args, sizeof there);
        move(there, copies);
        std::memcpy(bytes.data(), &there, sizeof there);
        return bytes;
    }
    const void* args() const override { return &with; }
    uint32_t* struct_size() override { return &with.struct_size; }
    std::vector<NestedSize> nested_struct_sizes() override {
        if constexpr (requires { with.score.struct_size; })
            return {{"args.score.struct_size", &with.score.struct_size, sizeof with.score},
                    {"args.select.struct_size", &with.select.struct_size, sizeof with.select}};
        return {};
    }

    // A new tensor of the call, with poison between its rows. `tensor` is a member of `with`: the stage's
    // table says the rest.
    smla_tensor& add(smla_tensor& tensor, smla_dtype dtype, std::initializer_list<int64_t> shape,
                     int64_t gap = 8, int64_t step = 1) {
        tensor = memory.tensor(dtype, shape, gap, step);
        const smla::StageField& field = field_at(&tensor);
        tensors.push_back({field.name.c_str(), &tensor, &field});
        if (is_output(tensors.back())) memory.allow(tensor);
        return tensor;
    }
    smla_tensor& add_normal(smla_tensor& tensor, smla_dtype dtype, std::initializer_list<int64_t> shape,
                            int64_t gap = 8, int64_t step = 1) {
        fill_normal(add(tensor, dtype, shape, gap, step), memory.rng);
        return tensor;
    }
    smla_cache& add_cache(smla_cache& cache, const CacheShape& shape) {
        cache = memory.cache(shape);
        const smla::StageField& field = field_at(&cache);
        caches.push_back({field.name.c_str(), &cache, &field});
        return cache;
    }

    Args with;

private:
    const smla::StageField& field_at(const void* member) const {
        const auto offset = size_t(static_cast<const char*>(member) - reinterpret_cast<const char*>(&with));
        for (const smla::StageField& field : smla::fields_of<Args>())
            if (field.offset == offset) return field;
        throw std::logic_error("the member is in no table");
    }

    Function function_;
};

using Maker = std::unique_ptr<Call> (*)(int64_t tokens);
struct NamedMaker {
    const char* name;
    Maker make;
};
std::vector<NamedMaker> linear_calls();
std::vector<NamedMaker> cache_calls();
std::vector<NamedMaker> index_calls();
std::vector<NamedMaker> attend_calls();
std::vector<NamedMaker> all_calls();
inline std::unique_ptr<Call> make(const NamedMaker& maker, int64_t tokens = 5) {
    std::unique_ptr<Call> call = maker.make(tokens);
    call->name = maker.name;
    call->tokens = tokens;
    call->memory.remember();
    return call;
}

// Runs it in a workspace of exactly the size it asked for; the counters are zero afterwards.
void run_exactly(const Call& call, smla_context* context, size_t budget = 0);

}  // namespace contract
