// Small random problems on a context's engine, compared with double precision.
#pragma once

#include "engines/context.h"

#include <functional>
#include <string>
#include <vector>

namespace smla::cli {

struct SelfTestResult {
    std::string stage, problem, kernel;
    double error, limit;
    std::string failure;  // error message of the call; empty if it ran
    bool skipped;         // the kernel named by --kernel cannot run this problem
    bool passed() const { return skipped || (failure.empty() && error <= limit); }
};

int self_test_count();
std::vector<SelfTestResult> self_test(Context& context,
                                      const std::function<void(const std::string&)>& progress);

}  // namespace smla::cli
