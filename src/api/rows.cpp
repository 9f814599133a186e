#include "backends/maps/rows.h"
#include "api/guard.h"

#include <smla/rows.h>

using namespace smla;

extern "C" {

#define SMLA_ROW_OPERATION(name)                                \
    smla_status smla_##name(const smla_##name##_args* args) {   \
        return api::guard([&] { name(api::read_args(args)); }); \
    }
SMLA_ROW_OPERATION(request_rows)
SMLA_ROW_OPERATION(split_context)
SMLA_ROW_OPERATION(combined_rows)
SMLA_ROW_OPERATION(mixed_rows)
SMLA_ROW_OPERATION(decode_schedule)
#undef SMLA_ROW_OPERATION

smla_status smla_lse_from_log2(const smla_tensor* log2_lse, const smla_tensor* lse) {
    return api::guard(
        [&] { lse_from_log2(api::read_tensor(log2_lse, "log2_lse"), api::read_tensor(lse, "lse")); });
}

smla_status smla_prefill_chunks(smla_prefill_chunks_args* args) {
    return api::guard([&] {
        constexpr size_t kWithCount = offsetof(smla_prefill_chunks_args, reserved);
        SMLA_CHECK(!args || args->struct_size >= kWithCount, "args.struct_size", args->struct_size,
                   text("at least ", kWithCount, " (the struct must include count)"));
        smla_prefill_chunks_args copy = api::read_args(args);
        prefill_chunks(copy);
        args->count = copy.count;
    });
}

}  // extern "C"
