// The memory of a call where its engine works: copies of the blocks that its arguments point into, with the
// poison around and between what they hold, there and back.
#pragma once

#include "core/device.h"
#include "kit/memory.h"
#include "ops/field.h"

#include <memory>
#include <vector>

namespace smla::kit {

// The GPU of this machine, opened once; throws where there is none.
Device& gpu();

class DeviceCopies {
public:
    // Memory of so many bytes, freed with its last owner.
    using Allocate = std::shared_ptr<void> (*)(size_t bytes);

    // With an allocator of one's own each copy holds what a tensor or a cache may have of it, and no poison
    // around: for memory that ends where nothing is mapped, of a GPU or of the host. Not on a GPU: copies for
    // an engine of the host.
    explicit DeviceCopies(Allocate bare = nullptr, bool on_gpu = true) : bare_(bare), on_gpu_(on_gpu) {}
    ~DeviceCopies();
    DeviceCopies(const DeviceCopies&) = delete;
    DeviceCopies& operator=(const DeviceCopies&) = delete;
    void move(smla_tensor& tensor);
    void move(smla_cache& cache);
    void move(const float*& scalar);

    void send() const;   // what the host holds now
    void fetch() const;  // all of it back, guards too; waits

private:
    struct Copy {
        Range host;
        uint8_t* data;
        bool comes_back;
    };
    // Where the copy of a host address lies: in that of its block or, outside of all, in one of `bytes`
    // alone.
    void* of(const void* host, size_t bytes, bool comes_back = true);

    uint8_t* place(const Range& host);
    Device& device() const { return on_gpu_ ? gpu() : host_device(); }
    smla_device_type moved(smla_device_type type) const;

    Allocate bare_;
    bool on_gpu_;
    std::vector<std::shared_ptr<void>> bare_memory_;
    std::vector<Copy> copies_;
    Range there_;                          // all copies, unless bare, side by side
    mutable std::vector<uint8_t> staged_;  // what goes there or came from there
};

template <class Args>
void move(Args& args, DeviceCopies& copies) {
    visit(
        args, [&](smla_tensor& each) { copies.move(each); }, [&](smla_cache& each) { copies.move(each); });
    for (const StageField& field : fields_of<Args>())
        if (field.kind == FieldKind::scalar) copies.move(field_of<const float*>(&args, field));
}

}  // namespace smla::kit
