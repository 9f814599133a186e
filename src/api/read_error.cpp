#include "api/guard.h"
#include "engines/error_word.h"

#include <smla/stages.h>

using namespace smla;

extern "C" smla_status smla_read_error(smla_context* context, smla_workspace workspace, smla_stream stream,
                                       smla_error_word* out) {
    return api::guard([&] {
        const Context& on = api::checked(context);
        SMLA_CHECK(out, "out", "null", "where the error word goes");
        *out = take_error(on.device(), api::read_workspace(workspace), stream);
    });
}
