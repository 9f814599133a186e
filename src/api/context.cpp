#include "api/guard.h"

using namespace smla;

extern "C" {

smla_status smla_context_create(const smla_context_args* args, smla_context** out) {
    return api::guard([&] {
        SMLA_CHECK(out, "out", "null", "where the context goes");
        *out = nullptr;
        const smla_context_args copy = api::read_args(args);
        SMLA_CHECK(copy.version / 10000 == SMLA_VERSION_MAJOR, "args.version", copy.version,
                   text("SMLA_VERSION of major version ", SMLA_VERSION_MAJOR));
        *out = new smla_context{Context(copy)};
    });
}

void smla_context_destroy(smla_context* context) { delete context; }

const char* smla_context_description(const smla_context* context) {
    return context ? context->context.description().c_str() : "";
}

}  // extern "C"
