// Parts of a file that may change under us.
#pragma once

#include "model/mapped_file.h"

namespace smla {

// A copy of [begin, begin + size) of a mapped file, made by reads of the file: where it was shortened since,
// that is SMLA_IO_ERROR under `name`, while touching the mapping would end the process with SIGBUS. Memory of
// the caller's own (no file) is given as it is. `size` is at most the file's, so a copy never exceeds it.
Bytes read_range(const Bytes& bytes, const std::string& name, size_t begin, size_t size);

}  // namespace smla
