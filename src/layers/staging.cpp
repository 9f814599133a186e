#include "layers/staging.h"

#include <cstring>

namespace smla {

void Staging::reserve(size_t numbers, size_t bytes) {
    if (context_.device().type() == SMLA_CPU) return;
    numbers_.resize(numbers);
    bytes_ = numbers + bytes;
    memory_ = context_.allocate(bytes_);
    begin_step();
}

void Staging::begin_step() {
    used_ = numbers_.size();
    numbers_used_ = 0;
    pieces_.clear();
    more_.clear();
}

Tensor Staging::room(const Tensor& host) {
    if (stays(host)) return host;
    const size_t bytes = round_up(span_bytes(host), kAlignment);
    if (used_ + bytes > bytes_)
        return placed_at(host, more_.emplace_back(context_.device(), bytes).data(), context_.device());
    used_ += bytes;
    return placed_at(host, static_cast<char*>(memory_) + used_ - bytes, context_.device());
}

Tensor Staging::put_numbers(const Tensor& host, int64_t rows) {
    if (stays(host)) return host;
    const size_t at = numbers_used_, bytes = rows > 0 ? span_bytes(slice(host, 0, 0, rows)) : 0;
    numbers_used_ += round_up(span_bytes(host), kAlignment);
    std::memcpy(numbers_.data() + at, host.data, bytes);
    pieces_.push_back({at, bytes});
    return placed_at(host, static_cast<char*>(memory_) + at, context_.device());
}

void Staging::send() {
    if (numbers_used_ <= kSmall) pieces_ = {{0, numbers_used_}};  // larger pieces are copied one by one
    for (const Piece& each : pieces_)
        context_.device().upload_heap(static_cast<char*>(memory_) + each.at, numbers_.data() + each.at,
                                      each.bytes, nullptr);
    pieces_.clear();
}

// Copies small tensors through the session's own memory, so that nothing waits.
Tensor Staging::put(const Tensor& host) {
    const Tensor out = room(host);
    if (out.data == host.data) return out;
    const size_t bytes = span_bytes(host);
    if (bytes > kSmall) {
        context_.device().upload(out.data, host.data, bytes, nullptr);
    } else if (bytes > 0) {
        small_.resize(kSmall);
        std::memcpy(small_.data(), host.data, bytes);
        context_.device().upload_heap(out.data, small_.data(), bytes, nullptr);
    }
    return out;
}

void Staging::get(const Tensor& placed, const Tensor& host) const {
    if (placed.data == host.data) return;
    std::unique_ptr<char[]> memory;
    const Tensor rows = fetch(context_.device(), placed, nullptr, memory);
    const size_t bytes = size_t(host.shape[1]) * size_t(dtype_bits(host.dtype)) / 8;
    for (int64_t i = 0; i < host.shape[0]; ++i) std::memcpy(address(host, i), address(rows, i), bytes);
}

}  // namespace smla
