#include "backends/maps/rows.h"

#include "ops/own_memory.h"

namespace smla {

namespace {

int32_t context_row(int32_t position, int32_t context_len) {
    return position >= 0 && position < context_len ? position : -1;
}
int32_t new_row(int32_t position, int32_t context_len) {
    return position >= 0 && position >= context_len ? position - context_len : -1;
}

}  // namespace

void split_context(const smla_split_context_args& args) {
    check_tensor("args.positions", args.positions, kInt32, {kAny, kAny}, kOnHost);
    const int64_t tokens = args.positions.shape[0], columns = args.positions.shape[1];
    check_tensor("args.context_lens", args.context_lens, kInt32, {tokens}, kOnHost);
    check_tensor("args.context_rows", args.context_rows, kInt32, {tokens, columns}, kOnHost);
    check_tensor("args.new_rows", args.new_rows, kInt32, {tokens, columns}, kOnHost);
    check_own_memory({{"args.context_rows", args.context_rows}, {"args.new_rows", args.new_rows}},
                     {{"args.positions", args.positions}, {"args.context_lens", args.context_lens}});
    for (int64_t t = 0; t < tokens; ++t)
        SMLA_CHECK(load_int(args.context_lens, t) >= 0, text("args.context_lens[", t, "]"),
                   load_int(args.context_lens, t), "0 or more");
    for (int64_t t = 0; t < tokens; ++t) {
        const int32_t context = int32_t(load_int(args.context_lens, t));
        for (int64_t j = 0; j < columns; ++j) {
            const int32_t position = int32_t(load_int(args.positions, t, j));
            *reinterpret_cast<int32_t*>(address(args.context_rows, t, j)) = context_row(position, context);
            *reinterpret_cast<int32_t*>(address(args.new_rows, t, j)) = new_row(position, context);
        }
    }
}

void lse_from_log2(const Tensor& log2_lse, const Tensor& lse) {
    check_tensor("log2_lse", log2_lse, dtypes(SMLA_F32), {kAny, kAny}, kOnHost);
    check_tensor("lse", lse, dtypes(SMLA_F32), {log2_lse.shape[0], log2_lse.shape[1]}, kOnHost);
    check_own_memory({{"lse", lse}}, {{"log2_lse", log2_lse}}, &log2_lse);
    for (int64_t t = 0; t < lse.shape[0]; ++t)
        for (int64_t h = 0; h < lse.shape[1]; ++h)
            *reinterpret_cast<float*>(address(lse, t, h)) =
                0.693147180559945309f *  // ln 2
                *reinterpret_cast<const float*>(address(log2_lse, t, h));
}

}  // namespace smla
