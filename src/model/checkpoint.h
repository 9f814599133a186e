// A checkpoint: tensors by name, of one safetensors file, of a folder of them, or of the caller's memory.
#pragma once

#include "core/device.h"
#include "model/safetensors.h"

#include <memory>
#include <string>
#include <vector>

namespace smla {

class Checkpoint {
public:
    // `path`: a .safetensors file, or a folder. In a folder, as transformers does: model.safetensors, else
    // model.safetensors.index.json with its shards, else every *.safetensors. With an index, a shard is
    // opened when a tensor of it is first asked for, so a partial download serves the layers it has.
    static Checkpoint open(const std::string& path);
    static Checkpoint from_file(SafetensorsFile file);
    // Tensors that the caller keeps, on the host or on `device`; `name` stands for them in errors. Other
    // tensors of a model may be among them: what is wrong with a tensor is an error when it is asked for.
    static Checkpoint from_tensors(const std::vector<NamedTensor>& tensors, std::string name,
                                   Device& device = host_device());

    const std::string& name() const;  // for errors: the path's last part
    bool has(const std::string& tensor) const;
    std::vector<std::string> names() const;  // sorted
    // tensor() and dtype() are safe to use from many threads. A tensor is contiguous, and a copy on the host
    // unless its `memory` is null: then it is the caller's own, on the host or on the device.
    HostTensor tensor(const std::string& tensor) const;
    std::string dtype(const std::string& tensor) const;  // as spelt in its file; of memory "BF16" likewise
    // A copy on the host, of a tensor that lies on the device.
    HostTensor on_host(const HostTensor& tensor) const;

private:
    struct State;
    const SafetensorsFile& file_of(const std::string& tensor) const;
    std::shared_ptr<State> state_;
};

}  // namespace smla
