#include "engines/plan_cache.h"

namespace smla {

namespace {

constexpr uintptr_t kAlignment = 256;  // the coarsest that a plan asks for

template <class Pointer>
Pointer reduced(Pointer address) {
    const auto bits = uintptr_t(address);
    return reinterpret_cast<Pointer>(bits % kAlignment + (bits ? kAlignment : 0));
}

void reduce(smla_cache& cache) {
    cache.data = reduced(cache.data);
    if (!cache.scale_device) return;
    if (cache.device_type == SMLA_CPU) {
        uint32_t bits;
        std::memcpy(&bits, cache.scale_device, sizeof bits);
        cache.scale_device = reinterpret_cast<const float*>(uintptr_t(bits) + (uintptr_t(1) << 32));
    } else {
        cache.scale_device = reduced(cache.scale_device);
    }
}

}  // namespace

void CallKey::reduce_addresses(std::span<const StageField> fields, char* args) {
    for (const StageField& field : fields) switch (field.kind) {
            case FieldKind::tensor: {
                auto& tensor = field_of<Tensor>(args, field);
                tensor.data = reduced(tensor.data);
                break;
            }
            case FieldKind::cache: reduce(field_of<smla_cache>(args, field)); break;
            case FieldKind::scalar: {
                auto& pointer = field_of<const float*>(args, field);
                pointer = reduced(pointer);
                break;
            }
        }
}

uint64_t CallKey::hash() const {
    uint64_t out = bytes_;
    for (size_t at = 0; at + 8 <= bytes_; at += 8) {
        uint64_t word;
        std::memcpy(&word, data_.data() + at, 8);
        out = (out ^ word) * 0x9e3779b97f4a7c15u;
        out ^= out >> 29;
    }
    return out;
}

std::shared_ptr<const void> PlanCache::find(const CallKey& key) const {
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < kProbes; ++i) {
        const Slot& slot = slots_[(key.hash_value() + i) % kSlots];
        if (slot.plan && slot.hash == key.hash_value() && slot.key.size() == key.bytes().size() &&
            std::memcmp(slot.key.data(), key.bytes().data(), slot.key.size()) == 0)
            return slot.plan;
    }
    return nullptr;
}

void PlanCache::keep(const CallKey& key, std::shared_ptr<const void> plan) {
    const std::lock_guard lock(mutex_);
    size_t at = kProbes;
    for (size_t i = kProbes; i-- > 0;)
        if (!slots_[(key.hash_value() + i) % kSlots].plan) at = i;
    if (at == kProbes) at = next_++ % kProbes;
    Slot& slot = slots_[(key.hash_value() + at) % kSlots];
    slot.hash = key.hash_value();
    slot.key.assign(key.bytes().begin(), key.bytes().end());
    slot.plan = std::move(plan);
}

}  // namespace smla
