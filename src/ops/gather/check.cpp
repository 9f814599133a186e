#include "ops/gather/gather.h"

namespace smla {

void GatherOp::check(const Args& args) {
    SMLA_CHECK(args.raw == 0 || args.raw == 1, "args.raw", args.raw, "0 or 1");
    check_cache("args.cache", args.cache,
                args.raw ? formats(SMLA_INDEX_FP8_132) : kKvFormats | kIndexFormats);
    const int64_t width = CacheView(args.cache).width;
    check_tensor("args.block_table", args.block_table, kInt32, {kAny, kAny});
    const int64_t requests = args.block_table.shape[0];
    check_optional("args.starts", args.starts, kInt32, {requests});
    check_tensor("args.cu", args.cu, kInt32, {requests + 1});
    check_tensor("args.out", args.out, args.raw ? dtypes(SMLA_E4M3) : kFloats, {kAny, width});
    if (args.raw) {
        check_rows("args.out", args.out);
        check_output("args.scales", args.scales, dtypes(SMLA_F32), {args.out.shape[0]});
    } else {
        SMLA_CHECK(!present(args.scales), "args.scales", describe(args.scales),
                   "absent: only raw rows have scales");
    }
    check_apart("args.out", args.out);
}

}  // namespace smla
