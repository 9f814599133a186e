#include "engines/plan.h"
#include "api/guard.h"

#include <smla/plan.h>

using namespace smla;

namespace {

const Plan& checked_plan(const smla_plan* plan) {
    SMLA_CHECK(plan, "plan", "null", "a plan");
    return plan->plan;
}

std::string field_list(const Plan& plan) {
    std::string out;
    for (const char* name : plan.names()) out += (out.empty() ? "" : ", ") + std::string(name);
    return out;
}

}  // namespace

extern "C" {

smla_status smla_plan_create(const smla_plan_args* args, smla_plan** out) {
    return api::guard([&] {
        SMLA_CHECK(out, "out", "null", "where the plan goes");
        *out = nullptr;
        const smla_plan_args copy = api::read_args(args);
        *out = new smla_plan{Plan(copy, copy.context ? plan_place(copy.context->context) : PlanPlace{})};
    });
}

void smla_plan_destroy(smla_plan* plan) { delete plan; }

smla_status smla_plan_build(smla_plan* plan, const smla_plan_batch* batch) {
    return api::guard([&] {
        checked_plan(plan);
        plan->plan.build(api::read_args(batch));
    });
}

smla_status smla_plan_field(const smla_plan* plan, const char* name, smla_tensor* out) {
    return api::guard([&] {
        const Plan& checked = checked_plan(plan);
        SMLA_CHECK(name, "name", "null", "the name of a field");
        SMLA_CHECK(out, "out", "null", "where the field goes");
        const Tensor* field = checked.find(name);
        SMLA_CHECK(field, "name", name, field_list(checked));
        *out = *field;
    });
}

smla_status smla_plan_fields(const smla_plan* plan, const char* const** names, int32_t* count) {
    return api::guard([&] {
        const Plan& checked = checked_plan(plan);
        SMLA_CHECK(names, "names", "null", "where the names go");
        SMLA_CHECK(count, "count", "null", "where the number of names goes");
        *names = checked.names().data();
        *count = int32_t(checked.names().size());
    });
}

}  // extern "C"
