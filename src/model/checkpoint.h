// A checkpoint: one safetensors file or a folder of them, tensors by name.
#pragma once

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

    const std::string& name() const;  // for errors: the path's last part
    bool has(const std::string& tensor) const;
    std::vector<std::string> names() const;  // sorted
    // Both may be called by several threads.
    HostTensor tensor(const std::string& tensor) const;
    const std::string& dtype(const std::string& tensor) const;  // as spelt in its file

private:
    struct State;
    const SafetensorsFile& file_of(const std::string& tensor) const;
    std::shared_ptr<State> state_;
};

}  // namespace smla
