// Recordings of a step on a GPU. An inference engine's decode steps use the same addresses again and again;
// the host then queues a step with one call instead of one launch of 3 to 5 us per kernel.
#pragma once

#include "core/device.h"
#include "core/stage.h"

#include <array>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace smla {

// What ran, for tables and logs.
struct StageRecord {
    const char* kernel = nullptr;
    int64_t calls = 0;
    double seconds = 0;
};
using StageRecords = std::array<StageRecord, kStageCount>;

// The recordings of steps that share one StepPlan, by the steps' addresses. Safe to use from many threads.
class StepRecordings {
public:
    using Addresses = std::span<const uintptr_t>;
    // A step of fewer calls is not worth a recording: launched one by one it is as fast.
    static constexpr size_t kLeastCalls = 6;

    // Queues the step that was recorded with these addresses; false: there is none.
    bool replay(Addresses addresses, smla_stream stream, StageRecords* records);
    // Notes a step; true: it came often enough to be recorded now.
    bool due(Addresses addresses);
    // Keeps a recording and what ran in it. A null one is kept too: these addresses are never due again.
    void keep(Addresses addresses, std::unique_ptr<Recording> recording, const StageRecords& ran);

private:
    struct Slot {
        std::vector<uintptr_t> addresses;
        int64_t steps = 0;  // how many had these addresses
        int64_t last = 0;   // clock_ of the latest step or look-up
        std::unique_ptr<Recording> recording;
        StageRecords ran{};
    };
    static constexpr int64_t kDue = 3;  // the third step of the same addresses is recorded
    static constexpr size_t kSlots = 8;

    Slot* find(Addresses addresses);

    std::mutex mutex_;
    std::vector<Slot> slots_;
    int64_t clock_ = 0;
};

}  // namespace smla
