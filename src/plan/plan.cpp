#include "plan/plan.h"

#include "core/workspace.h"

#include <algorithm>
#include <cstdlib>

namespace smla {

namespace {

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

smla_allocator or_malloc(const smla_allocator& given) {
    if (given.alloc) return given;
    return {[](void*, size_t bytes, size_t alignment) {
                return std::aligned_alloc(alignment, round_up(bytes, alignment));
            },
            [](void*, void* memory) { std::free(memory); }, nullptr};
}

Plan::Plan(const PlanMaxima& maxima, const PlanPlace& place) : maxima_(maxima), place_(place) {
    check_plan(maxima);
    size_t bytes = round_up(size_t(maxima.max_tokens) * sizeof(int32_t), kCacheLine) +
                   round_up((size_t(maxima.max_requests) + 1) * sizeof(int32_t), kCacheLine) + kCacheLine;
    for (const FieldSpec& spec : kPlanFieldSpecs)
        bytes += round_up(field_bytes(largest_field(spec, maxima)), kCacheLine);
    allocate(bytes);
    try {
        carve();
        schedule_ = plan_schedule(maxima);
        const int32_t schedule[] = {int32_t(schedule_.splits), int32_t(schedule_.rows)};
        if (present(fields_.schedule))
            place_.device->upload(fields_.schedule.data, schedule, sizeof schedule, nullptr);
        place_.device->wait(nullptr);  // builds may use any stream
    } catch (...) {
        release();
        throw;
    }
}

Plan::~Plan() { release(); }

void Plan::release() noexcept {
    if (place_.build) place_.device->release(memory_);
    else allocator_.free(allocator_.user, memory_);
}

void Plan::allocate(size_t bytes) {
    bytes_ = bytes;
    if (place_.build) {
        SMLA_CHECK(!maxima_.allocator.alloc, "args.allocator", "present",
                   "none, because the plan is on a GPU");
        memory_ = static_cast<char*>(place_.device->allocate(bytes));
        return;
    }
    allocator_ = or_malloc(maxima_.allocator);
    memory_ = static_cast<char*>(allocator_.alloc(allocator_.user, bytes, kCacheLine));
    if (!memory_)
        fail(SMLA_OUT_OF_MEMORY, "args.allocator", text("null for ", bytes, " bytes"), "a pointer to memory");
}

// Places the fields in memory and makes every token padding.
void Plan::carve() {
    char* memory = memory_;
    const auto take = [&](size_t bytes, int byte) {
        char* const at = memory;
        memory += round_up(bytes, kCacheLine);
        place_.device->fill(at, byte, bytes, nullptr);
        return at;
    };
    const auto numbers = [&](size_t count) {
        return reinterpret_cast<int32_t*>(take(count * sizeof(int32_t), 0));
    };
    listed_ = numbers(size_t(maxima_.max_tokens));
    starts_ = numbers(size_t(maxima_.max_requests) + 1);
    reach_ = numbers(2);
    for (const FieldSpec& spec : kPlanFieldSpecs) {
        Tensor& field = fields_.*spec.member;
        field = largest_field(spec, maxima_);
        if (!present(field)) continue;
        names_[name_count_++] = spec.name;
        field = placed_at(field, take(field_bytes(field), spec.padding ? 0xff : 0), *place_.device);
    }
    resize();
}

// Sets the shapes of this step; strides and addresses stay.
void Plan::resize() {
    for (const FieldSpec& spec : kPlanFieldSpecs) {
        Tensor& field = fields_.*spec.member;
        if (!present(field)) continue;
        if (per_token(spec.shape)) field.shape[0] = size_.tokens;
        else if (spec.shape == FieldShape::requests_plus_1) field.shape[0] = size_.requests + 1;
    }
}

const Tensor* Plan::find(std::string_view name) const {
    for (const FieldSpec& spec : kPlanFieldSpecs)
        if (name == spec.name) return present(fields_.*spec.member) ? &(fields_.*spec.member) : nullptr;
    return nullptr;
}

}  // namespace smla
