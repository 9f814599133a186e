// Every engine and cache format that applies to a golden file, and what came of it.
#pragma once

#include "golden/compare.h"

#include <functional>

namespace smla::golden {

struct VerifyOptions {
    smla_engine engine = SMLA_ENGINE_AUTO;  // AUTO: all that this machine has
    int32_t device = 0;                     // which GPU
    smla_isa isa = SMLA_ISA_AUTO;
    int32_t threads = 0;
    std::string kernel;  // demanded by name
};

// One combination of a file, an engine and cache formats.
struct Combination {
    std::string golden, engine, kv_format, index_format,
        how;             // how: "whole", "chunks 33,1,1", "forced topk", ...
    std::string kernel;  // that attend ran
    std::vector<Checked> checked;
    std::string skipped;      // why it did not run; empty: it ran
    bool as_demanded = true;  // if it ran: so did every kernel that was demanded

    bool ran() const { return skipped.empty(); }
    bool pass() const;
    // The check closest to its tolerance, or over it by most.
    const Checked* worst() const;
};

using Report = std::function<void(const Combination&)>;
void verify_golden(const Golden& golden, const VerifyOptions& options, const Report& report);

}  // namespace smla::golden
