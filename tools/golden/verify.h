// Checks a golden file on every engine and cache format that applies to it.
#pragma once

#include "golden/compare.h"

#include <functional>

namespace smla::golden {

struct VerifyOptions {
    smla_engine engine = SMLA_ENGINE_AUTO;  // AUTO: all engines of this machine
    int32_t device = 0;                     // which GPU
    smla_isa isa = SMLA_ISA_AUTO;
    int32_t threads = 0;
    bool batch_invariant = false;
    std::string kernel;  // requested by name
};

// One combination of a file, an engine and cache formats.
struct Combination {
    std::string golden, engine, kv_format, index_format,
        how;             // how: "whole", "chunks 33,1,1", "forced topk", ...
    std::string kernel;  // kernel that attend ran
    std::vector<Checked> checked;
    std::string skipped;      // why it did not run; empty if it ran
    bool as_demanded = true;  // if it ran: whether every kernel named by --kernel ran

    bool ran() const { return skipped.empty(); }
    bool pass() const;
    // The check with the largest error relative to its tolerance.
    const Checked* worst() const;
};

using Report = std::function<void(const Combination&)>;
void verify_golden(const Golden& golden, const VerifyOptions& options, const Report& report);

}  // namespace smla::golden
