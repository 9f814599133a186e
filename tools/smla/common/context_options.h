// The options of a context: --engine, --device, --isa, --threads, --kernel, --batch-invariant.
#pragma once

#include "cli_forward.h"
#include "engines/context.h"

#include <optional>
#include <string>

namespace smla::cli {

class Tool;

constexpr int kMostDevice = 1023;

// A field in errors of the library, and the option and the environment variable that set it. is_default: the
// tool reads the variable where the option is not given; the library reads the others.
struct ContextField {
    const char *field, *option, *variable;
    bool is_default = false;
};
constexpr ContextField kContextFields[] = {{"args.engine", "--engine", "SMLA_ENGINE", true},
                                           {"args.isa", "--isa", "SMLA_ISA"},
                                           {"args.threads", "--threads", "SMLA_THREADS", true},
                                           {"args.kernel", "--kernel", "SMLA_KERNEL", true},
                                           {"args.device_index", "--device", nullptr},
                                           {"device", "--device", nullptr},
                                           {"backend", "--backend", "SMLA_BACKEND"}};

struct ContextOptions {
    std::string engine = "auto", isa = "auto", kernel;
    std::optional<int> device;  // number of a GPU
    int threads = 0;
    bool batch_invariant = false;
    bool check_indices = false;  // an option of smla bench alone

    static constexpr const char* kGroup = "Where it runs";
    void add(CLI::App& command);
    // Points into this object. Without --engine, --device or a required kernel selects the engine.
    smla_context_args args() const;
    // Selects the GPU if there is one and nothing selects an engine. Options and variables that only concern
    // the CPU (--isa, --threads) select the CPU.
    smla_context_args args_here() const;
    Context create(const Tool& tool) const;  // also reports the engine
};

}  // namespace smla::cli
