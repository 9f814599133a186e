// A file mapped read-only. The mapping lives as long as anybody holds it.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace smla {

struct Bytes {
    std::shared_ptr<const void> memory;  // owner
    const char* data = nullptr;
    size_t size = 0;
};

// Throws SMLA_IO_ERROR naming the path. Where the file has been truncated since, touching the mapping raises
// SIGBUS, and mapped bytes may change at any time. Readers therefore copy the parts that they need
// (read_range).
Bytes map_file(const std::string& path);

// The whole content of a small file (JSON); at most `limit` bytes.
std::string read_text_file(const std::string& path, size_t limit);

// A copy of [begin, begin + size) of a mapped file, made by reads of the file: where it was shortened since,
// that is SMLA_IO_ERROR under `name`, while touching the mapping would end the process with SIGBUS. Memory of
// the caller's own (no file) is given as it is. `size` is at most the file's, so a copy never exceeds it.
Bytes read_range(const Bytes& bytes, const std::string& name, size_t begin, size_t size);

}  // namespace smla
