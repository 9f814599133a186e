// GPU copies of a session's host tensors for one step. On a CPU, the tensors are used in place.
#pragma once

#include "core/tensor.h"
#include "core/workspace.h"
#include "engines/context.h"

#include <vector>

namespace smla {

class Staging {
public:
    explicit Staging(Context& context) : context_(context) {}
    ~Staging() { context_.release(memory_); }
    Staging(const Staging&) = delete;
    Staging& operator=(const Staging&) = delete;

    // Allocates room for all later steps, `numbers` bytes of it for put_numbers(). Before this call, as in a
    // sizing pass, tensors stay on the host.
    void reserve(size_t numbers, size_t bytes);
    void begin_step();               // drops the last step's tensors
    Tensor put(const Tensor& host);  // returns a copy on the device, or `host` if it is there
    // Returns room for a dense list in the session's memory. send() copies the first `rows` rows without
    // waiting: one waiting copy per list made one-token steps 30 to 60 us longer on an H200.
    Tensor put_numbers(const Tensor& host, int64_t rows);
    void send();
    Tensor room(const Tensor& host);  // memory of this shape, for results
    // Copies the rows of a result back to `host`, unless both are the same memory.
    void get(const Tensor& placed, const Tensor& host) const;

    static constexpr size_t kAlignment = 256;  // of put() and room()

private:
    bool stays(const Tensor& tensor) const {
        return !memory_ || !present(tensor) || tensor.device_type == context_.device().type();
    }
    static constexpr size_t kSmall = 64 << 10;
    struct Piece {
        size_t at, bytes;
    };

    Context& context_;
    void* memory_ = nullptr;  // numbers, then other tensors
    size_t bytes_ = 0, used_ = 0;
    std::vector<char> numbers_;  // in device layout
    size_t numbers_used_ = 0;
    std::vector<Piece> pieces_;
    std::vector<char> small_;         // source of put()'s copies
    std::vector<DeviceBuffer> more_;  // for tensors that exceed the reserved room
};

}  // namespace smla
