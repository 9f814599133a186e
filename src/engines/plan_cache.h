// The plans of a context's calls, kept by what they were made from: the arguments with every address reduced
// to what a plan may depend on. A call that comes again costs a look-up, neither a check nor a search.
#pragma once

#include "engines/candidate.h"
#include "ops/field.h"

#include <array>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

namespace smla {

// What is kept of a call.
enum class PlanUse : uint8_t { run, size, check };

class CallKey {
public:
    template <class Args>
    CallKey(Stage stage, PlanUse use, size_t budget, const Args& args, const Env& env) {
        static_assert(sizeof(Head) + sizeof(Args) <= kMost);
        const Head head{.stage = uint16_t(stage),
                        .use = uint16_t(use),
                        .isa = uint16_t(env.isa),
                        .flags = uint16_t(env.batch_invariant + 2 * env.slow_bf16_dots),
                        .engine = int32_t(env.engine),
                        .threads = int32_t(env.threads()),
                        .budget = budget,
                        .demands = env.demanded.hash()};
        bytes_ = sizeof head + sizeof args;
        std::memcpy(data_.data(), &head, sizeof head);
        std::memcpy(data_.data() + sizeof head, &args, sizeof args);
        reduce_addresses(fields_of<Args>(), data_.data() + sizeof head);
        hash_ = hash();
    }
    uint64_t hash_value() const { return hash_; }
    std::span<const char> bytes() const { return {data_.data(), bytes_}; }

private:
    struct Head {
        uint16_t stage, use, isa, flags;
        int32_t engine, threads;
        uint64_t budget, demands;
    };
    static constexpr size_t kMost = 2048;
    alignas(8) std::array<char, kMost> data_;
    size_t bytes_;
    uint64_t hash_;

    // An address becomes its alignment and whether it is null; a scale in the host's memory its value, which
    // checks look at.
    static void reduce_addresses(std::span<const StageField> fields, char* args);
    uint64_t hash() const;
};

// Safe to use from many threads. Holds a bounded number of plans; a new one may push out an older one.
class PlanCache {
public:
    std::shared_ptr<const void> find(const CallKey& key) const;
    void keep(const CallKey& key, std::shared_ptr<const void> plan);

private:
    struct Slot {
        uint64_t hash = 0;
        std::vector<char> key;
        std::shared_ptr<const void> plan;
    };
    static constexpr size_t kSlots = 512, kProbes = 4;
    mutable std::mutex mutex_;
    std::vector<Slot> slots_ = std::vector<Slot>(kSlots);
    size_t next_ = 0;  // which of a full line of slots goes
};

}  // namespace smla
