// The options of a context: --engine, --device, --isa, --threads, --kernel, --batch-invariant.
#pragma once

#include "cli_forward.h"
#include "engines/context.h"

#include <string>

namespace smla::cli {

constexpr int kMostDevice = 1023;

struct ContextOptions {
    std::string engine = "auto", isa = "auto", kernel;
    int device = 0, threads = 0;
    bool batch_invariant = false;

    void add(CLI::App& command);
    smla_context_args args() const;  // points into this object
    Context create() const;
};

}  // namespace smla::cli
