// smla bench --suite: cases with measured times of peers, in a fixed order.
#pragma once

#include "measure.h"

namespace smla::cli {

struct SuiteCase {
    std::string stage, name, peer;  // peer: empty if there is none
    double peer_us;
    std::function<Measured(Bench&)> run;
};

// On an H200: sparse decode and prefill, index scores and selections. quick: those that a CPU can run too.
std::vector<SuiteCase> hopper_suite(bool quick);

}  // namespace smla::cli
