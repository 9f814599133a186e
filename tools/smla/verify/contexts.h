// Contexts of problems. Settings that no option fixes are drawn for each problem.
#pragma once

#include "context_options.h"
#include "kit/problem.h"

#include <map>
#include <tuple>

namespace smla::cli {

struct Setting {
    smla_isa isa;
    int32_t threads, batch_invariant;
    bool operator<(const Setting& other) const {
        return std::tie(isa, threads, batch_invariant) <
               std::tie(other.isa, other.threads, other.batch_invariant);
    }
};

class Contexts {
public:
    explicit Contexts(const ContextOptions& options);

    std::vector<smla_engine> engines() const;
    // `any_isa`: also draw weaker instruction sets, unless an option fixes the set.
    Setting draw(kit::Random& random, bool any_isa) const;
    Context& get(smla_engine engine, const Setting& setting);
    std::string demanded(smla_engine engine, Stage stage);
    // Returns the requirement in a kernel's name that no context of these options meets; empty if there is
    // none.
    std::string lacks(smla_engine engine, const std::string& kernel);

private:
    Context& strongest(smla_engine engine) { return get(engine, {args_.isa, 1, 0}); }

    smla_context_args args_;
    bool open_isa_;
    std::map<std::pair<smla_engine, Setting>, std::unique_ptr<Context>> contexts_;
};

}  // namespace smla::cli
