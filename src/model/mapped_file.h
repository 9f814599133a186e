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
// (file_range.h).
Bytes map_file(const std::string& path);

// The whole content of a small file (JSON); at most `limit` bytes.
std::string read_text_file(const std::string& path, size_t limit);

}  // namespace smla
