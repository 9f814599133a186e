// Checks output paths before the work begins.
#pragma once

#include <string>
#include <vector>

namespace smla::cli {

struct NamedPath {
    std::string option, path;  // empty path: the output is absent
};

// Throws if an output cannot be written, or is the same file as an input, a file of the checkpoint, or
// another output, by whatever name.
void check_outputs(const std::vector<NamedPath>& outputs, const std::vector<NamedPath>& inputs,
                   const std::string& checkpoint);

}  // namespace smla::cli
