// Where a session's host tensors lie while a layer on a GPU reads them; on a CPU they stay where they are.
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

    // Allocates room for every later step, `numbers` bytes of it for put_numbers(). Before that, tensors stay
    // on the host, as in a sizing pass.
    void reserve(size_t numbers, size_t bytes);
    void begin_step();               // forgets what the last step put
    Tensor put(const Tensor& host);  // a copy on the device; what lies there already as it is
    // Room for a dense list of the session's own, of which the first `rows` are copied by send(). That waits
    // for nothing: with a copy of each list that waited, a step of one token took 30 to 60 us longer on an
    // H200.
    Tensor put_numbers(const Tensor& host, int64_t rows);
    void send();
    Tensor room(const Tensor& host);  // the same shape, not copied: for results
    // Copies the rows of a result back to `host`; does nothing where both are one memory.
    void get(const Tensor& placed, const Tensor& host) const;

    static constexpr size_t kAlignment = 256;  // of what put() and room() give

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
    std::vector<char> numbers_;  // as they will lie on the device
    size_t numbers_used_ = 0;
    std::vector<Piece> pieces_;
    std::vector<char> small_;         // what put() copies from
    std::vector<DeviceBuffer> more_;  // of a step with tensors wider than were reserved
};

}  // namespace smla
