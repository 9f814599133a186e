// smla/hpp/plan.hpp: plans, which contain the data about a batch that the kernels of a step use.
#ifndef SMLA_HPP_PLAN_HPP
#define SMLA_HPP_PLAN_HPP

#include <smla/plan.h>
#include <smla/hpp/context.hpp>
#include <smla/hpp/error.hpp>
#include <smla/hpp/tensor.hpp>

#include <memory>
#include <string_view>
#include <vector>

namespace smla {
inline namespace v0 {

// Buffers with fixed sizes and addresses, whose contents build() changes. A plan serves one build, or any
// number of readers, at a time.
class Plan {
public:
    explicit Plan(smla_plan_args args) {
        args = detail::sized(args);
        smla_plan* raw = nullptr;
        check(smla_plan_create(&args, &raw));
        handle_.reset(raw);
    }
    // Creates a plan whose fields are on the context's device. The plan keeps the context alive, which
    // args.context does not.
    Plan(const Context& context, smla_plan_args args) : Plan(with(context, args)) {
        handle_.get_deleter().alive = context.shared();
    }

    // Computes the fields of a step. An invalid batch changes nothing. Tensors on the host may be changed or
    // freed when build() returns; tensors on a GPU must stay valid until the work on batch.stream has
    // finished.
    void build(smla_plan_batch batch) {
        batch = detail::sized(batch);
        check(smla_plan_build(get(), &batch));
    }

    smla_plan* get() const { return handle_.get(); }

    // Fields of this plan by name; smla/plan.h documents their contents. A view reads the memory of the last
    // build with the shape at the time when the view was created. For a plan on a GPU, views throw; use
    // tensor() instead.
    std::vector<std::string_view> fields() const {
        const char* const* names = nullptr;
        int32_t count = 0;
        check(smla_plan_fields(get(), &names, &count));
        return {names, names + count};
    }
    smla_tensor tensor(const char* name) const {
        smla_tensor out{};
        check(smla_plan_field(get(), name, &out));
        return out;
    }
    template <Element T>
    View<const T> field(const char* name) const {
        return View<const T>(name, tensor(name));
    }

#define SMLA_HPP_FIELD(name, type) \
    View<const type> name() const { return field<type>(#name); }
    SMLA_HPP_FIELD(request_of_token, int32_t)
    SMLA_HPP_FIELD(position, int32_t)
    SMLA_HPP_FIELD(rope_position, int32_t)
    SMLA_HPP_FIELD(is_valid, uint8_t)
    SMLA_HPP_FIELD(visible_tokens, int32_t)
    SMLA_HPP_FIELD(primary_slot, int64_t)
    SMLA_HPP_FIELD(window_slot, int64_t)
    SMLA_HPP_FIELD(state_slot, int64_t)
    SMLA_HPP_FIELD(index_state_slot, int64_t)
    SMLA_HPP_FIELD(window_rows, int32_t)
    SMLA_HPP_FIELD(window_len, int32_t)
    SMLA_HPP_FIELD(visible_entries, int32_t)
    SMLA_HPP_FIELD(compressed_slot, int64_t)
    SMLA_HPP_FIELD(entry_rows, int32_t)
    SMLA_HPP_FIELD(entry_len, int32_t)
    SMLA_HPP_FIELD(index_slot, int64_t)
    SMLA_HPP_FIELD(score_start, int32_t)
    SMLA_HPP_FIELD(score_end, int32_t)
    SMLA_HPP_FIELD(ragged_cu, int32_t)
    SMLA_HPP_FIELD(ragged_start, int32_t)
    SMLA_HPP_FIELD(ragged_end, int32_t)
#undef SMLA_HPP_FIELD

    struct BatchSplit {
        int32_t decode_requests, prefill_requests, decode_tokens, prefill_tokens;
    };
    BatchSplit batch_split() const {
        const View<const int32_t> four = field<int32_t>("batch_split");
        return {four[0], four[1], four[2], four[3]};
    }
    struct Schedule {
        int32_t splits, rows_per_split;
    };
    Schedule schedule() const {
        const View<const int32_t> two = field<int32_t>("schedule");
        return {two[0], two[1]};
    }

private:
    struct Destroy {
        std::shared_ptr<smla_context> alive;
        void operator()(smla_plan* plan) const { smla_plan_destroy(plan); }
    };
    static smla_plan_args with(const Context& context, smla_plan_args args) {
        args.context = context.get();
        if (!args.context) throw Error(SMLA_INVALID_ARGUMENT, "context", "moved from", "a context");
        return args;
    }
    std::unique_ptr<smla_plan, Destroy> handle_;
};

}  // namespace v0
}  // namespace smla

#endif  // SMLA_HPP_PLAN_HPP
