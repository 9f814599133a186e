// What a command will write, looked at before it works for it.
#pragma once

#include <string>
#include <vector>

namespace smla::cli {

struct NamedPath {
    std::string option, path;  // no path: not asked for
};

// Throws if an output cannot be written, is one of the inputs (by whatever name), a file that a checkpoint in
// `checkpoint` is read from, or another output.
void check_outputs(const std::vector<NamedPath>& outputs, const std::vector<NamedPath>& inputs,
                   const std::string& checkpoint);

}  // namespace smla::cli
