#include "engines/plan.h"
#include "api/guard.h"

#include <smla/plan.h>

using namespace smla;

extern "C" {

smla_status smla_plan_create(const smla_plan_args* args, smla_plan** out) {
    return api::create(out, "a pointer that receives the plan", [&] {
        const smla_plan_args copy = api::read_args(args);
        return new smla_plan{Plan(copy, copy.context ? plan_place(copy.context->context) : PlanPlace{})};
    });
}

void smla_plan_destroy(smla_plan* plan) { delete plan; }

smla_status smla_plan_build(smla_plan* plan, const smla_plan_batch* batch) {
    return api::guard([&] {
        smla_plan& on = api::handle(plan, "plan");
        const InUse use(&on.users, "plan", InUse::changes);
        on.plan.build(api::read_args(batch, "batch"));
    });
}

smla_status smla_plan_field(const smla_plan* plan, const char* name, smla_tensor* out) {
    return api::guard([&] {
        const InUse use = api::reading(plan, "plan");
        api::give_field(api::handle(plan, "plan").plan, name, out);
    });
}

smla_status smla_plan_fields(const smla_plan* plan, const char* const** names, int32_t* count) {
    return api::guard([&] { api::give_names(api::handle(plan, "plan").plan, names, count); });
}

}  // extern "C"
