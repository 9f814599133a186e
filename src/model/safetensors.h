// Safetensors files: 8 bytes of header length (little endian), a JSON header, then the tensors' bytes without
// gaps. The reader validates everything; every error names the file, the tensor and the wrong member.
#pragma once

#include "core/tensor.h"
#include "model/mapped_file.h"

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace smla {

// A tensor on the host and the owner of its memory.
struct HostTensor {
    Tensor view{};
    std::shared_ptr<const void> memory;
};

constexpr size_t kMaxSafetensorsHeader = 100000000;  // limit of the official reader

class SafetensorsFile {
public:
    static SafetensorsFile open(const std::string& path);
    // Errors show `name` as the file.
    static SafetensorsFile from_bytes(Bytes bytes, std::string name);

    const std::string& name() const { return name_; }
    bool has(const std::string& tensor) const { return entries_.count(tensor) != 0; }
    std::vector<std::string> names() const;  // sorted
    const std::string& dtype(const std::string& tensor) const { return entry(tensor).dtype; }
    const std::map<std::string, std::string>& metadata() const { return metadata_; }

    // Returns a copy of the file's bytes, or a view of aligned from_bytes() data; a scalar is [1]. Supports
    // F64, F32, F16, BF16, F8_E4M3, F8_E8M0, I32, I64, U8, I8 (as u8 bits); other dtypes throw here, not in
    // open().
    HostTensor tensor(const std::string& tensor) const;

private:
    friend class SafetensorsHeader;
    struct Entry {
        std::string dtype;  // as in the file
        std::vector<int64_t> shape;
        uint64_t begin = 0, end = 0;  // within the data
    };
    const Entry& entry(const std::string& tensor) const;
    std::string name_;
    Bytes bytes_;
    const char* data_ = nullptr;  // first byte after the header
    std::map<std::string, Entry> entries_;
    std::map<std::string, std::string> metadata_;
};

struct NamedTensor {
    std::string name;
    Tensor tensor;  // on the host, any strides; no e2m1
};

// Writes through an OutputFile: `path` has either its old content or all of the new. The widest dtypes come
// first, so that every tensor is aligned.
void write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace smla
