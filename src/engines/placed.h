// Copies a call's tensors and caches from the host to a device, and back. Arguments that begin at one address
// share a copy. On a CPU nothing is copied.
#pragma once

#include "core/device.h"
#include "formats/format.h"
#include "ops/field.h"

#include <algorithm>
#include <map>
#include <vector>

namespace smla {

// Blocks of host memory and their copies.
class PlacedMemory {
public:
    explicit PlacedMemory(Device& device) : device_(device) {}
    void take(Tensor& tensor);
    void take(smla_cache& cache);
    void take(const float*& scalar);
    void copy_back() const;

private:
    struct Block {
        size_t bytes = 0;
        DeviceBuffer memory;
    };
    void* copy_of(const void* host, size_t bytes);

    Device& device_;
    std::map<const void*, Block> blocks_;
};

template <class Args>
class Placed {
public:
    Placed(Device& device, const Args& host) : args(host), memory_(device) {
        if (device.type() == SMLA_CPU) return;
        // longest tensor first, because views at one address share its copy
        std::vector<Tensor*> tensors;
        std::vector<smla_cache*> caches;
        visit(
            args, [&](Tensor& each) { tensors.push_back(&each); },
            [&](smla_cache& each) { caches.push_back(&each); });
        std::stable_sort(tensors.begin(), tensors.end(),
                         [](const Tensor* a, const Tensor* b) { return span_bytes(*a) > span_bytes(*b); });
        for (Tensor* each : tensors) memory_.take(*each);
        for (smla_cache* each : caches) memory_.take(*each);
        for (const StageField& field : fields_of<Args>())
            if (field.kind == FieldKind::scalar) memory_.take(field_of<const float*>(&args, field));
    }
    void copy_back() const { memory_.copy_back(); }

    Args args;

private:
    PlacedMemory memory_;
};

}  // namespace smla
