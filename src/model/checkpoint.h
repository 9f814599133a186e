// A checkpoint: named tensors of a safetensors file, of a folder with such files, or in the caller's memory.
#pragma once

#include "core/device.h"
#include "model/safetensors.h"

#include <memory>
#include <string>
#include <vector>

namespace smla {

class Checkpoint {
public:
    // `path`: a .safetensors file, or a folder. In a folder, as in transformers: model.safetensors, else
    // model.safetensors.index.json with its shards, else every *.safetensors. A shard of an index is opened
    // when one of its tensors is first requested, so a partial download suffices for its layers.
    static Checkpoint open(const std::string& path);
    static Checkpoint from_file(SafetensorsFile file);
    // Uses tensors that the caller keeps, on the host or on `device`; errors show `name`. Other tensors of a
    // model may be included, because a wrong tensor is an error only when it is requested.
    static Checkpoint from_tensors(const std::vector<NamedTensor>& tensors, std::string name,
                                   Device& device = host_device());

    const std::string& name() const;  // for errors: the path's last part
    bool has(const std::string& tensor) const;
    std::vector<std::string> names() const;  // sorted
    // tensor() and dtype() are thread-safe. A tensor is contiguous. A tensor with null `memory` is the
    // caller's, on the host or on the device; any other tensor is a copy on the host.
    HostTensor tensor(const std::string& tensor) const;
    std::string dtype(const std::string& tensor) const;  // name as in a file, e.g. "BF16"
    // Returns a host copy of a tensor on the device.
    HostTensor on_host(const HostTensor& tensor) const;

private:
    struct State;
    const SafetensorsFile& file_of(const std::string& tensor) const;
    std::shared_ptr<State> state_;
};

}  // namespace smla
