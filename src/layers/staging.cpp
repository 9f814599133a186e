#include "layers/staging.h"

#include <cstring>

namespace smla {

void Staging::reserve(size_t bytes) {
    if (context_.device().type() == SMLA_CPU) return;
    memory_ = context_.allocate(bytes);
    bytes_ = bytes;
}

void Staging::begin_step() {
    used_ = 0;
    more_.clear();
}

Tensor Staging::room(const Tensor& host) {
    if (stays(host)) return host;
    const size_t bytes = round_up(span_bytes(host), kAlignment);
    Tensor out = host;
    out.device_type = context_.device().type();
    out.device_index = context_.device().index();
    if (used_ + bytes <= bytes_) {
        out.data = static_cast<char*>(memory_) + used_;
        used_ += bytes;
    } else {
        out.data = more_.emplace_back(context_.device(), bytes).data();
    }
    return out;
}

Tensor Staging::put(const Tensor& host) {
    const Tensor out = room(host);
    if (out.data != host.data) context_.device().upload(out.data, host.data, span_bytes(host), nullptr);
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
