// Copies of a call's memory on its engine's device: the blocks to which the arguments point, including the
// poison around and between tensors, are copied there and back.
#pragma once

#include "core/device.h"
#include "kit/memory.h"
#include "ops/field.h"

#include <memory>
#include <vector>

namespace smla::kit {

// Returns the GPU of this machine, opened once; throws if there is none.
Device& gpu();

class DeviceCopies {
public:
    // Allocates `bytes` of memory, which are freed with their last owner.
    using Allocate = std::shared_ptr<void> (*)(size_t bytes);

    // With `bare`, an allocator, each copy has only the bytes of a tensor or cache without poison around
    // them, for memory that ends at an unmapped page on a GPU or on the host. With on_gpu false, copies are
    // for an engine on the host.
    explicit DeviceCopies(Allocate bare = nullptr, bool on_gpu = true) : bare_(bare), on_gpu_(on_gpu) {}
    ~DeviceCopies();
    DeviceCopies(const DeviceCopies&) = delete;
    DeviceCopies& operator=(const DeviceCopies&) = delete;
    void move(smla_tensor& tensor);
    void move(smla_cache& cache);
    void move(const float*& scalar);

    void send() const;   // copies the host's contents
    void fetch() const;  // copies all contents back, including guards; waits

private:
    struct Copy {
        Range host;
        uint8_t* data;
        bool comes_back;
    };
    // Returns the copy of a host address: part of the copy of its block or, outside of all blocks, a copy of
    // `bytes`.
    void* of(const void* host, size_t bytes, bool comes_back = true);

    uint8_t* place(const Range& host);
    Device& device() const { return on_gpu_ ? gpu() : host_device(); }
    smla_device_type moved(smla_device_type type) const;

    Allocate bare_;
    bool on_gpu_;
    std::vector<std::shared_ptr<void>> bare_memory_;
    std::vector<Copy> copies_;
    Range there_;                          // all copies in one allocation, unless bare
    mutable std::vector<uint8_t> staged_;  // contents that are copied there or back
};

template <class Args>
void move(Args& args, DeviceCopies& copies) {
    visit(
        args, [&](smla_tensor& each) { copies.move(each); }, [&](smla_cache& each) { copies.move(each); });
    for (const StageField& field : fields_of<Args>())
        if (field.kind == FieldKind::scalar) copies.move(field_of<const float*>(&args, field));
}

}  // namespace smla::kit
