#include "engines/plan_cache.h"

namespace smla {

namespace {

constexpr uintptr_t kAlignment = 256;  // coarsest alignment that a plan requires

}  // namespace

template <class Pointer>
Pointer PlanKey::reduced(Pointer address) {
    const auto bits = uintptr_t(address);
    if (address_count_ < kMostAddresses) addresses_[address_count_] = bits;
    ++address_count_;
    return reinterpret_cast<Pointer>(bits % kAlignment + (bits ? kAlignment : 0));
}

void PlanKey::reduce(smla_cache& cache) {
    cache.data = reduced(cache.data);
    if (!cache.scale_device) return;
    if (const float* const read = reads_memory_ ? scale_in_memory(cache) : nullptr) {
        uint32_t bits;
        std::memcpy(&bits, read, sizeof bits);
        cache.scale_device = reinterpret_cast<const float*>(uintptr_t(bits) + (uintptr_t(1) << 32));
    } else {
        cache.scale_device = reduced(cache.scale_device);
    }
}

void PlanKey::reduce_addresses(std::span<const StageField> fields, char* args) {
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

void PlanKey::add_address(const void* address) {
    const auto kept = uint64_t(uintptr_t(reduced(address)));
    add(&kept, sizeof kept);
}

bool PlanKey::add_numbers(std::span<const int32_t> numbers) {
    if (numbers.size_bytes() + 8 > kMost - bytes_) return false;
    const uint64_t count = numbers.size();
    add(&count, sizeof count);
    add(numbers.data(), numbers.size_bytes());
    const int32_t zero = 0;
    if (count % 2) add(&zero, sizeof zero);  // pads to whole words, for the hash
    return true;
}

// Four independent sums, because one sum is bound by the latency of its multiplications.
uint64_t PlanKey::hash() const {
    constexpr size_t kLanes = 4;
    uint64_t lanes[kLanes] = {bytes_, 1, 2, 3};
    for (size_t at = 0; at < bytes_; at += kLanes * 8)
        for (size_t lane = 0; lane < kLanes && at + lane * 8 < bytes_; ++lane) {
            uint64_t word;
            std::memcpy(&word, data_.data() + at + lane * 8, 8);
            lanes[lane] = (lanes[lane] ^ word) * 0x9e3779b97f4a7c15u;
            lanes[lane] ^= lanes[lane] >> 29;
        }
    uint64_t out = 0;
    for (const uint64_t lane : lanes) out = (out ^ lane) * 0x9e3779b97f4a7c15u + (out >> 32);
    return out ^ out >> 32;
}

std::shared_ptr<const void> PlanCache::find(const PlanKey& key) const {
    if (!birthplace_.here()) return nullptr;
    const uint64_t hash = key.hash();
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < kProbes; ++i) {
        const Slot& slot = slots_[(hash + i) % kSlots];
        if (slot.plan && slot.hash == hash && slot.key.size() == key.bytes().size() &&
            std::memcmp(slot.key.data(), key.bytes().data(), slot.key.size()) == 0)
            return slot.plan;
    }
    return nullptr;
}

void PlanCache::keep(const PlanKey& key, std::shared_ptr<const void> plan) {
    if (!birthplace_.here()) return;
    const uint64_t hash = key.hash();
    const std::lock_guard lock(mutex_);
    size_t at = kProbes;
    for (size_t i = kProbes; i-- > 0;)
        if (!slots_[(hash + i) % kSlots].plan) at = i;
    if (at == kProbes) at = next_++ % kProbes;
    Slot& slot = slots_[(hash + at) % kSlots];
    slot.hash = hash;
    slot.key.assign(key.bytes().begin(), key.bytes().end());
    slot.plan = std::move(plan);
}

}  // namespace smla
