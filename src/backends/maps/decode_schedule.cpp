#include "backends/maps/rows.h"

#include "core/workspace.h"
#include "ops/own_memory.h"

#include <algorithm>

namespace smla {

namespace {
constexpr int64_t kOverhead = 5;  // fixed cost of a request on a part, in blocks
}  // namespace

int64_t flash_mla_parts(int64_t multiprocessors, int64_t heads, int64_t tokens, bool sm_100) {
    const int64_t parts = std::max<int64_t>(multiprocessors / 2 / (ceil_div(heads, 128) * tokens), 1);
    return sm_100 ? 2 * parts : parts;
}

void decode_schedule(const smla_decode_schedule_args& args) {
    check_tensor("args.lens", args.lens, kInt32, {kAny}, kOnHost);
    const int64_t requests = args.lens.shape[0];
    check_tensor("args.schedule", args.schedule, kInt32, {kAny, kScheduleColumns}, kOnHost);
    check_tensor("args.splits", args.splits, kInt32, {requests + 1}, kOnHost);
    check_own_memory({{"args.schedule", args.schedule}, {"args.splits", args.splits}},
                     {{"args.lens", args.lens}});
    const int64_t parts = args.schedule.shape[0];
    SMLA_CHECK(parts >= 1, "args.schedule.shape[0]", parts, "1 or more");
    const auto blocks = [&](int64_t r) { return ceil_div(load_int(args.lens, r), kScheduleBlockRows); };
    int64_t work = 0;
    for (int64_t r = 0; r < requests; ++r) {
        SMLA_CHECK(load_int(args.lens, r) >= 0, text("args.lens[", r, "]"), load_int(args.lens, r),
                   "0 or more");
        work += blocks(r) + kOverhead;
    }
    const int64_t payload = ceil_div(work, parts) + kOverhead;
    const auto splits = [&](int64_t r) -> int32_t& {
        return *reinterpret_cast<int32_t*>(address(args.splits, r));
    };
    splits(0) = 0;
    int64_t request = 0, block = 0, split = 0;  // start of the next part
    for (int64_t p = 0; p < parts; ++p) {
        int64_t row[kScheduleColumns] = {-1, 0, 0, 0, 0, 0, 0, 0};
        if (request < requests) {
            row[0] = request;
            row[1] = block;
            row[4] = split;
            for (int64_t left = payload; request < requests;) {
                const int64_t rest = blocks(request) - block;
                if (left < rest + kOverhead) {
                    const int64_t taken = left - kOverhead;
                    if (taken > 0) {
                        block += taken;
                        row[2] = request;
                        row[3] = block;
                        ++split;
                    }
                    break;
                }
                left -= rest + kOverhead;
                row[2] = request;
                row[3] = blocks(request);
                splits(request + 1) = splits(request) + int32_t(split) + 1;
                ++request;
                block = split = 0;
            }
        }
        for (int64_t c = 0; c < kScheduleColumns; ++c)
            *reinterpret_cast<int32_t*>(address(args.schedule, p, c)) = int32_t(row[c]);
    }
}

}  // namespace smla
