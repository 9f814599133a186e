#include "backends/step_recordings.h"

#include <algorithm>

namespace smla {

StepRecordings::Slot* StepRecordings::find(Addresses addresses) {
    for (Slot& slot : slots_)
        if (std::equal(addresses.begin(), addresses.end(), slot.addresses.begin(), slot.addresses.end())) {
            slot.last = ++clock_;
            return &slot;
        }
    return nullptr;
}

bool StepRecordings::replay(Addresses addresses, smla_stream stream, StageRecords* records) {
    const std::lock_guard lock(mutex_);
    const Slot* slot = find(addresses);
    if (!slot || !slot->recording) return false;
    slot->recording->replay(stream);
    if (!records) return true;
    for (size_t stage = 0; stage < records->size(); ++stage) {
        if (slot->ran[stage].calls == 0) continue;
        (*records)[stage].kernel = slot->ran[stage].kernel;
        (*records)[stage].calls += slot->ran[stage].calls;
    }
    return true;
}

bool StepRecordings::due(Addresses addresses) {
    const std::lock_guard lock(mutex_);
    if (Slot* slot = find(addresses)) return ++slot->steps == kDue;
    if (slots_.size() == kSlots)  // evict the least recently used
        slots_.erase(std::min_element(slots_.begin(), slots_.end(),
                                      [](const Slot& a, const Slot& b) { return a.last < b.last; }));
    slots_.push_back({.addresses = {addresses.begin(), addresses.end()}, .steps = 1, .last = ++clock_});
    return false;
}

void StepRecordings::keep(Addresses addresses, std::unique_ptr<Recording> recording,
                          const StageRecords& ran) {
    const std::lock_guard lock(mutex_);
    Slot* slot = find(addresses);
    if (!slot) return;  // evicted meanwhile
    slot->recording = std::move(recording);
    slot->ran = ran;
}

}  // namespace smla
