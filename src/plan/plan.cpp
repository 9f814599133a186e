#include "plan/plan.h"

#include "core/workspace.h"

#include <algorithm>
#include <cstdlib>

namespace smla {

namespace {

void* default_allocate(void*, size_t bytes, size_t alignment) {
    return std::aligned_alloc(alignment, round_up(bytes, alignment));
}
void default_free(void*, void* memory) { std::free(memory); }

size_t field_bytes(const Tensor& field) {
    return size_t(element_count(field)) * size_t(dtype_bits(field.dtype)) / 8;
}

SplitSchedule plan_schedule(const PlanMaxima& maxima) {
    const int64_t width =
        int64_t(maxima.window) + (maxima.list_entries ? entry_columns(maxima) : maxima.topk);
    const int64_t decodes = int64_t(maxima.max_requests) * (1 + int64_t(maxima.speculative_tokens));
    const int64_t tokens = maxima.batch_invariant ? 1 : std::min<int64_t>(maxima.max_tokens, decodes);
    return split_schedule(tokens, maxima.heads, width, maxima.workers);
}

}  // namespace

Plan::Plan(const PlanMaxima& maxima) : maxima_(maxima) {
    check_plan(maxima);
    allocator_ =
        maxima.allocator.alloc ? maxima.allocator : smla_allocator{default_allocate, default_free, nullptr};
    size_t bytes = round_up(size_t(maxima.max_tokens) * sizeof(int32_t), kCacheLine);
    for (const FieldSpec& spec : kPlanFieldSpecs)
        bytes += round_up(field_bytes(largest_field(spec, maxima)), kCacheLine);
    memory_ = allocator_.alloc(allocator_.user, bytes, kCacheLine);
    if (!memory_) fail(SMLA_OUT_OF_MEMORY, "args.allocator", text("null for ", bytes, " bytes"), "memory");
    carve(static_cast<char*>(memory_));
    schedule_ = plan_schedule(maxima);
    if (auto* out = static_cast<int32_t*>(fields_.schedule.data)) {
        out[0] = int32_t(schedule_.splits);
        out[1] = int32_t(schedule_.rows);
    }
}

Plan::~Plan() { allocator_.free(allocator_.user, memory_); }

// Lays the fields out and makes every token padding.
void Plan::carve(char* memory) {
    listed_ = reinterpret_cast<int32_t*>(memory);
    std::fill(listed_, listed_ + maxima_.max_tokens, 0);
    memory += round_up(size_t(maxima_.max_tokens) * sizeof(int32_t), kCacheLine);
    for (const FieldSpec& spec : kPlanFieldSpecs) {
        Tensor& field = fields_.*spec.member;
        field = largest_field(spec, maxima_);
        if (!present(field)) continue;
        names_[name_count_++] = spec.name;
        field.data = memory;
        memory += round_up(field_bytes(field), kCacheLine);
        pad_field(spec, field, 0, maxima_.max_tokens);
    }
    resize();
}

// Shapes of this step; strides and addresses stay.
void Plan::resize() {
    for (const FieldSpec& spec : kPlanFieldSpecs) {
        Tensor& field = fields_.*spec.member;
        if (!present(field)) continue;
        if (per_token(spec.shape)) field.shape[0] = size_.tokens;
        else if (spec.shape == FieldShape::requests_plus_1) field.shape[0] = size_.requests + 1;
    }
}

// Tokens that the last build wrote and this one does not become padding again.
void Plan::pad_tokens() {
    const int64_t begin = size_.query_tokens, end = used_;
    used_ = begin;
    if (begin >= end) return;
    for (const FieldSpec& spec : kPlanFieldSpecs) {
        const Tensor& field = fields_.*spec.member;
        if (present(field) && per_token(spec.shape)) pad_field(spec, field, begin, end);
    }
}

const Tensor* Plan::find(std::string_view name) const {
    for (const FieldSpec& spec : kPlanFieldSpecs)
        if (name == spec.name) return present(fields_.*spec.member) ? &(fields_.*spec.member) : nullptr;
    return nullptr;
}

}  // namespace smla
