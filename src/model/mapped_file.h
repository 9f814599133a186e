// A read-only mapping of a file, owned by `memory`.
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

// Maps a file. Throws SMLA_IO_ERROR with the path. If the file is truncated later, touching the mapping
// raises SIGBUS; mapped bytes may change at any time. Readers therefore copy the parts that they need
// (read_range).
Bytes map_file(const std::string& path);

// Returns the content of a small file (JSON) of at most `limit` bytes.
std::string read_text_file(const std::string& path, size_t limit);

// Returns a copy of [begin, begin + size) of a mapped file, made with file reads. If the file has become
// shorter, this throws SMLA_IO_ERROR for `name`; touching the mapping would raise SIGBUS. Memory of the
// caller (no file) is returned as is. `size` is at most the file's size, which limits the copy.
Bytes read_range(const Bytes& bytes, const std::string& name, size_t begin, size_t size);

}  // namespace smla
