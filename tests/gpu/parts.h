// Handles of every kind on a GPU with their arguments: a stage, a plan, a backend, layers with their
// sessions.
#pragma once

#include <smla/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace gpu {

using Bits = std::vector<uint8_t>;

class Part {
public:
    virtual ~Part() = default;
    // The same step each time. A session works in the default stream.
    virtual void run(smla_stream stream) = 0;
    virtual Bits bits() = 0;  // of the last step; waits for the device
};

struct NamedPart {
    std::string name;
    std::function<std::unique_ptr<Part>()> make;  // with a context of its own
};
const std::vector<NamedPart>& parts();

// Makes, runs once and destroys.
Bits bits_of(const NamedPart& part);

}  // namespace gpu
