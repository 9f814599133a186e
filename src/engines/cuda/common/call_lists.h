// The lists of a call that its kernel scans itself, in contexts with check_indices.
#pragma once

#include "engines/candidate.h"
#include "ops/check_data.h"

namespace smla::cuda {

struct CallLists {
    const IndexScan* scan = nullptr;  // null: nothing is to be scanned
    Stage stage = Stage::attend;
};

// Calls run(lists) with those of a call of stage S.
template <Stage S, class Run>
void with_lists(const ArgsOf<S>& args, const Env& env, Run run) {
    if (!env.check_indices) return run(CallLists{});
    const IndexScan scan = index_scan(args);
    run(CallLists{&scan, S});
}

}  // namespace smla::cuda
