// Recordings of a step on a GPU. Decode steps of an inference engine repeat their addresses; the host then
// queues a step with one call instead of one launch of 3 to 5 us per kernel.
#pragma once

#include "core/device.h"
#include "core/stage.h"

#include <array>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace smla {

// Kernel and time of a stage, for tables and logs.
struct StageRecord {
    const char* kernel = nullptr;
    int64_t calls = 0;
    double seconds = 0;
};
using StageRecords = std::array<StageRecord, kStageCount>;

// Recordings of the steps with one StepPlan, keyed by addresses. Thread-safe.
class StepRecordings {
public:
    using Addresses = std::span<const uintptr_t>;
    // Steps with fewer calls are not recorded, because separate launches are as fast.
    static constexpr size_t kLeastCalls = 6;

    // Queues the step that was recorded with these addresses. Returns false if there is none.
    bool replay(Addresses addresses, smla_stream stream, StageRecords* records);
    // Counts a step, and returns whether to record it now.
    bool due(Addresses addresses);
    // Stores a recording and what ran in it. A null recording marks addresses that are never due again.
    void keep(Addresses addresses, std::unique_ptr<Recording> recording, const StageRecords& ran);

private:
    struct Slot {
        std::vector<uintptr_t> addresses;
        int64_t steps = 0;  // steps with these addresses
        int64_t last = 0;   // clock_ of the latest step or lookup
        std::unique_ptr<Recording> recording;
        StageRecords ran{};
    };
    static constexpr int64_t kDue = 3;  // the third step with the same addresses is recorded
    static constexpr size_t kSlots = 8;

    Slot* find(Addresses addresses);

    std::mutex mutex_;
    std::vector<Slot> slots_;
    int64_t clock_ = 0;
};

}  // namespace smla
